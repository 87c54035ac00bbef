//! A workload, checked: from properties, with YCSB's defaults.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::distribution::{
    Chooser, Exponential, Histogram, Hotspot, Latest, Lengths, Scrambled, Sequential, Uniform,
};
use super::keys::{Naming, PADDING_MAX};
use super::properties::Properties;
use super::record::Layout;

mod known;

use known::{IGNORED, USED};

/// How much the proportions may differ from 1 together: what decimal fractions need.
const SUM_TOLERANCE: f64 = 1e-6;
/// Longest record.
const RECORD_MAX_BYTES: u64 = 256 << 20;

/// Which part of all operations is what.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Proportions {
    /// Reads.
    pub read: f64,
    /// Updates.
    pub update: f64,
    /// Inserts of new records.
    pub insert: f64,
    /// Scans.
    pub scan: f64,
    /// Reads, each with an update after it.
    pub read_modify_write: f64,
}

/// Which latencies YCSB's own lines are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interval {
    /// From when an operation began.
    Op,
    /// From when it should have begun.
    Intended,
    /// Both.
    Both,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Workload {
    /// As properties: for the report.
    pub properties: Properties,
    /// Keys that have no effect here.
    pub ignored: Vec<String>,
    /// Records that are there when operations begin.
    pub records: u64,
    /// Number of the first record that this program loads.
    pub insert_start: u64,
    /// How many it loads; operations ask for these.
    pub insert_count: u64,
    /// Operations of a run; `None` = only time ends it.
    pub operations: Option<u64>,
    /// Seconds of a run, at most.
    pub seconds: Option<f64>,
    /// Of the operations.
    pub proportions: Proportions,
    /// How fields stand in a record.
    pub layout: Layout,
    /// Of a field.
    pub field_lengths: Lengths,
    /// An update writes all of a record.
    pub whole_updates: bool,
    /// Reads are of one field. Records are read as a whole nevertheless: the report says so.
    pub one_field_reads: bool,
    /// Records of a scan.
    pub scan_lengths: Lengths,
    /// Of keys.
    pub naming: Naming,
    /// Every value that is read is checked.
    pub verify: bool,
    /// Operations per second of all threads; `None` = as many as can be.
    pub rate: Option<f64>,
    /// Threads, if the properties say so.
    pub threads: Option<usize>,
    /// Which latencies YCSB's lines are about.
    pub interval: Interval,
    /// Percentiles of YCSB's lines.
    pub percentiles: Vec<f64>,
}

impl Workload {
    /// Checks all properties. Keys that nobody knows are an error unless `allow_unknown`.
    pub fn new(properties: Properties, allow_unknown: bool) -> Result<Self> {
        let ignored = check_keys(&properties, allow_unknown)?;
        let p = Reader(&properties);
        let records = p.number("recordcount", None)?;
        ensure!(
            records > 0,
            "recordcount=0: say how many records there are, as --records N or -p recordcount=N"
        );
        let insert_start = p.number("insertstart", Some(0))?;
        let left = records.saturating_sub(insert_start);
        let insert_count = p.number("insertcount", Some(left))?;
        ensure!(
            insert_count > 0
                && insert_start.checked_add(insert_count).is_some_and(|e| e <= records),
            "insertstart={insert_start} and insertcount={insert_count}: together at most \
             recordcount={records}, and one record at least"
        );
        let field_lengths = field_lengths(p)?;
        let fields = p.number("fieldcount", Some(10))?;
        ensure!((1..=65_536).contains(&fields), "fieldcount={fields}: 1 to 65536");
        let constant_bytes = field_lengths.constant().map(|len| len as usize);
        let layout = Layout { fields: fields as usize, constant_bytes };
        ensure!(
            field_lengths.max().saturating_mul(fields) <= RECORD_MAX_BYTES,
            "fieldcount={fields} and fields of up to {} bytes: records of more than 256 MiB",
            field_lengths.max()
        );
        let verify = p.flag("dataintegrity", false)?;
        Ok(Self {
            proportions: proportions(p)?,
            layout,
            field_lengths,
            whole_updates: fields == 1 || p.flag("writeallfields", false)?,
            one_field_reads: !p.flag("readallfields", true)?,
            scan_lengths: scan_lengths(p)?,
            naming: naming(p)?,
            interval: interval(p)?,
            percentiles: percentiles(p)?,
            rate: p.positive("target")?,
            seconds: p.positive("maxexecutiontime")?,
            threads: p.optional("threadcount")?.map(|threads| threads as usize),
            operations: p.optional("operationcount")?.filter(|operations| *operations > 0),
            records,
            insert_start,
            insert_count,
            verify,
            ignored,
            properties,
        })
    }

    /// Longest record.
    #[must_use]
    pub fn record_max_bytes(&self) -> usize {
        self.layout.record_bytes(self.field_lengths.max() as usize)
    }

    /// How many records inserts of a run may add: twice what is expected, as YCSB does.
    #[must_use]
    pub fn expected_inserts(&self) -> u64 {
        let operations = self.operations.unwrap_or(0) as f64;
        (operations * self.proportions.insert * 2.0) as u64
    }

    /// Which record comes next.
    pub fn chooser(&self) -> Result<Chooser> {
        let p = Reader(&self.properties);
        let (first, count) = (self.insert_start, self.insert_count);
        Ok(match p.text("requestdistribution", "uniform") {
            "uniform" => Chooser::Uniform(Uniform::new(first, count)),
            "zipfian" => {
                Chooser::Scrambled(Scrambled::new(first, count + self.expected_inserts() + 1))
            }
            "latest" => Chooser::Latest(Latest::new(self.records)),
            "sequential" => Chooser::Sequential(Sequential::new(first, count)),
            "hotspot" => {
                let data = p.fraction("hotspotdatafraction", 0.2)?;
                let operations = p.fraction("hotspotopnfraction", 0.8)?;
                Chooser::Hotspot(Hotspot::new(first, count, data, operations))
            }
            "exponential" => {
                let percentile = p.real("exponential.percentile", 95.0)?;
                let fraction = p.real("exponential.frac", 0.857_142_857_1)?;
                ensure!(
                    percentile > 0.0 && percentile < 100.0 && fraction > 0.0,
                    "exponential.percentile={percentile} and exponential.frac={fraction}: a \
                     percentile is between 0 and 100, a fraction above 0"
                );
                Chooser::Exponential(Exponential::new(percentile, self.records as f64 * fraction))
            }
            other => bail!(
                "requestdistribution={other}: uniform, zipfian, latest, hotspot, sequential or \
                 exponential"
            ),
        })
    }
}

/// Names those that have no effect; refuses those that nobody knows.
fn check_keys(properties: &Properties, allow_unknown: bool) -> Result<Vec<String>> {
    let mut ignored = vec![];
    for (key, value) in properties.iter() {
        if USED.contains(&key) {
            continue;
        }
        if !IGNORED.contains(&key) && !allow_unknown {
            bail!(
                "{key}={value} ({}): no property of YCSB's core workload; mend its name, or say \
                 --allow-unknown",
                properties.origin(key)
            );
        }
        ignored.push(key.to_owned());
    }
    if let Some(class) = properties.get("workload") {
        let is_core = class.rsplit('.').next() == Some("CoreWorkload");
        ensure!(is_core, "workload={class}: only CoreWorkload is known here");
    }
    Ok(ignored)
}

/// Typed properties, with defaults.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a Properties);

impl<'a> Reader<'a> {
    fn text(self, key: &str, default: &'a str) -> &'a str {
        self.0.get(key).unwrap_or(default)
    }

    fn optional(self, key: &str) -> Result<Option<u64>> {
        self.0.parsed(key, "a whole number from 0")
    }

    fn number(self, key: &str, default: Option<u64>) -> Result<u64> {
        let Some(number) = self.optional(key)?.or(default) else {
            bail!("{key} is missing: say -p {key}=N");
        };
        Ok(number)
    }

    fn real(self, key: &str, default: f64) -> Result<f64> {
        let number = self.0.parsed(key, "a number")?.unwrap_or(default);
        ensure!(f64::is_finite(number), "{key}={number}: not a number");
        Ok(number)
    }

    fn fraction(self, key: &str, default: f64) -> Result<f64> {
        let number = self.real(key, default)?;
        ensure!(
            (0.0..=1.0).contains(&number),
            "{key}={number} ({}): a part of all is from 0 to 1",
            self.0.origin(key)
        );
        Ok(number)
    }

    /// Not set and 0 are the same.
    fn positive(self, key: &str) -> Result<Option<f64>> {
        let number = self.real(key, 0.0)?;
        ensure!(number >= 0.0, "{key}={number}: not below 0");
        Ok(Some(number).filter(|number| *number > 0.0))
    }

    fn flag(self, key: &str, default: bool) -> Result<bool> {
        match self.text(key, if default { "true" } else { "false" }).to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => bail!("{key}={other} ({}): true or false", self.0.origin(key)),
        }
    }
}

fn proportions(p: Reader<'_>) -> Result<Proportions> {
    let proportions = Proportions {
        read: p.fraction("readproportion", 0.95)?,
        update: p.fraction("updateproportion", 0.05)?,
        insert: p.fraction("insertproportion", 0.0)?,
        scan: p.fraction("scanproportion", 0.0)?,
        read_modify_write: p.fraction("readmodifywriteproportion", 0.0)?,
    };
    let Proportions { read, update, insert, scan, read_modify_write } = proportions;
    let sum = read + update + insert + scan + read_modify_write;
    ensure!(
        (sum - 1.0).abs() <= SUM_TOLERANCE,
        "readproportion={read}, updateproportion={update}, insertproportion={insert}, \
         scanproportion={scan} and readmodifywriteproportion={read_modify_write} are {sum} \
         together: make them 1 (what is not set is 0.95 for reads and 0.05 for updates)"
    );
    Ok(proportions)
}

fn field_lengths(p: Reader<'_>) -> Result<Lengths> {
    let max = p.number("fieldlength", Some(100))?;
    let min = p.number("minfieldlength", Some(1))?;
    let kind = p.text("fieldlengthdistribution", "constant");
    ensure!(max > 0, "fieldlength=0: a field has one byte at least");
    ensure!(
        !["uniform", "zipfian"].contains(&kind) || min <= max,
        "minfieldlength={min} is more than fieldlength={max}"
    );
    Ok(match kind {
        "constant" => Lengths::Constant(max),
        "uniform" => Lengths::Uniform { min, max },
        "zipfian" => Lengths::zipfian(min, max),
        "histogram" => {
            let path = p.text("fieldlengthhistogram", "hist.txt");
            Lengths::Histogram(Histogram::read(Path::new(path))?)
        }
        other => {
            bail!("fieldlengthdistribution={other}: constant, uniform, zipfian or histogram")
        }
    })
}

fn scan_lengths(p: Reader<'_>) -> Result<Lengths> {
    let max = p.number("maxscanlength", Some(1000))?;
    let min = p.number("minscanlength", Some(1))?;
    ensure!(
        (1..=max).contains(&min),
        "minscanlength={min} and maxscanlength={max}: at least 1, and the first at most the second"
    );
    Ok(match p.text("scanlengthdistribution", "uniform") {
        "uniform" => Lengths::Uniform { min, max },
        "zipfian" => Lengths::zipfian(min, max),
        other => bail!("scanlengthdistribution={other}: uniform or zipfian"),
    })
}

fn naming(p: Reader<'_>) -> Result<Naming> {
    let zero_padding = p.number("zeropadding", Some(1))? as usize;
    ensure!(zero_padding <= PADDING_MAX, "zeropadding={zero_padding}: at most {PADDING_MAX}");
    // As in YCSB, where everything but "hashed" is ordered.
    Ok(Naming { ordered: p.text("insertorder", "hashed") != "hashed", zero_padding })
}

fn interval(p: Reader<'_>) -> Result<Interval> {
    // YCSB says op; but who sets a rate wants to know both.
    let default = if p.positive("target")?.is_some() { "both" } else { "op" };
    Ok(match p.text("measurement.interval", default) {
        "op" => Interval::Op,
        "intended" => Interval::Intended,
        "both" => Interval::Both,
        other => bail!("measurement.interval={other}: op, intended or both"),
    })
}

fn percentiles(p: Reader<'_>) -> Result<Vec<f64>> {
    let text = p.text("hdrhistogram.percentiles", "50,95,99");
    let all = text.split(',').map(|one| one.trim().parse::<f64>().ok());
    let all = all.map(|one| one.filter(|one| (0.0..=100.0).contains(one))).collect();
    let Some(all) = all else {
        bail!("hdrhistogram.percentiles={text}: numbers from 0 to 100, with commas between");
    };
    Ok(all)
}
