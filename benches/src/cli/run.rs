//! `run` and `load`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onesided::UpdateMode;

use super::args::RunArgs;
use super::interrupt::Interrupt;
use super::progress::Progress;
use super::targets::{Wanted, wanted};
use super::{measure_all, note_of, plan, probe, stored, tell};
use crate::report::{Report, TargetReport};
use crate::run::phase::{self, Plan};
use crate::target::{Options, Target};
pub(super) use crate::workload::operations::Phase;
use crate::workload::operations::{Shared, Stream};
use crate::workload::properties::Properties;
use crate::workload::spec::{Proportions, Workload};
use crate::workload::standard;

/// Of the workloads by letter, unless told otherwise.
const RECORDS: u64 = 100_000;
const DURATION: Duration = Duration::from_secs(10);
/// Storing records ahead, so many are outstanding, and so many bytes.
const FILL_PIPELINE: usize = 256;
const FILL_BYTES: usize = 256 << 10;

/// Measures all targets. False if verification found something.
pub(super) fn main(args: &RunArgs, phase: Phase, interrupt: &Interrupt) -> Result<bool> {
    let (name, workload) = workload(args)?;
    let mut plan = plan(&args.load, workload.threads);
    match phase {
        Phase::Run => {
            plan.rate = workload.rate;
            plan.operations = workload.operations;
            plan.duration = workload.seconds.map(Duration::from_secs_f64);
            ensure!(
                plan.operations.is_some() || plan.duration.is_some(),
                "nothing says when it is over: say --operations N or --duration S"
            );
        }
        Phase::Load => plan.operations = Some(workload.insert_count),
    }
    let options = Options {
        record_bytes: workload.record_max_bytes(),
        records: workload.records + workload.expected_inserts(),
        ordered: workload.proportions.scan > 0.0,
        verify: workload.verify,
        ..Options::default()
    };
    let all = wanted(&args.target, &options)?;
    ensure!(
        !workload.verify || all.iter().all(Wanted::keeps_values),
        "null:// keeps no values: there is nothing to verify; leave --verify or null:// out"
    );
    // What is wrong in the workload is no target's failure.
    drop(Shared::new(workload.clone(), plan.threads, args.load.seed)?);
    probe(&args.report, &all, &plan)?;
    let mut report = Report {
        command: if phase == Phase::Run { "run" } else { "load" },
        arguments: std::env::args().skip(1).collect(),
        workload: name,
        properties: workload.properties.iter().map(|(k, v)| (k.into(), v.into())).collect(),
        notes: notes(&workload, &plan, args.target.update),
        seed: args.load.seed,
        plan,
        targets: vec![],
    };
    let job = Job { args, phase, workload: &workload, plan: report.plan.clone(), interrupt };
    report.targets = measure_all(&all, interrupt, |wanted| job.measure(wanted));
    report.notes.extend(note_of(interrupt));
    tell(&report, &args.report, (workload.interval, &workload.percentiles))
}

/// What is the same for all targets.
struct Job<'a> {
    args: &'a RunArgs,
    phase: Phase,
    workload: &'a Workload,
    plan: Plan,
    interrupt: &'a Interrupt,
}

impl Job<'_> {
    fn measure(&self, wanted: &Wanted) -> Result<TargetReport> {
        let opened = wanted.open()?;
        let target = &*opened.target;
        // After the phase the server may be gone.
        let description = target.describe()?;
        if self.args.target.clear {
            target.clear().with_context(|| format!("clearing {}", wanted.url))?;
        }
        let plan = &self.plan;
        let shared = Shared::new(self.workload.clone(), plan.threads, self.args.load.seed)?;
        let mut fill = None;
        if self.phase == Phase::Run && !self.args.no_fill {
            fill = Some(self.fill(target, &shared)?);
        } else if self.phase == Phase::Run {
            stored::check(target, self.workload)?;
        }
        let progress = Progress::new(&target.name(), plan);
        let source = |thread| Stream::new(&shared, self.phase, thread);
        let measured = phase::run(target, plan, source, |elapsed, series| {
            progress.look(elapsed, series);
            !self.interrupt.came()
        })?;
        drop(progress);
        Ok(TargetReport {
            url: wanted.url.clone(),
            name: target.name(),
            description: target.describe().unwrap_or(description),
            fill,
            failure: measured.broken.clone(),
            measured,
            verified: self.workload.verify,
        })
    }

    /// Stores the records, as fast as can be.
    fn fill(&self, target: &dyn Target, shared: &Arc<Shared>) -> Result<Duration> {
        let of_bytes = FILL_BYTES / self.workload.record_max_bytes().max(1);
        let plan = Plan {
            pipeline: of_bytes.clamp(1, FILL_PIPELINE),
            operations: Some(self.workload.insert_count),
            duration: None,
            rate: None,
            ..self.plan.clone()
        };
        let progress = Progress::new(&format!("{}: storing", target.name()), &plan);
        let start = Instant::now();
        let source = |thread| Stream::new(shared, Phase::Load, thread);
        let measured = phase::run(target, &plan, source, |elapsed, series| {
            progress.look(elapsed, series);
            !self.interrupt.came()
        })?;
        ensure!(!self.interrupt.came(), "interrupted while records were stored");
        if let Some(why) = measured.broken {
            bail!("{}: while records were stored: {why}", target.name());
        }
        let (failed, measure) = (measured.measure.failed(), &measured.measure);
        if failed > 0 {
            let why = measure.first_failure.as_deref().unwrap_or("it does not say why");
            bail!("{}: {failed} records could not be stored: {why}", target.name());
        }
        Ok(start.elapsed())
    }
}

/// The workload, and what to call it.
fn workload(args: &RunArgs) -> Result<(String, Workload)> {
    let mut properties = Properties::default();
    let mut name = args.workload.clone();
    if name.is_none() && args.files.is_empty() {
        name = Some("b".to_owned());
    }
    if let Some(name) = &name {
        if standard::read(name, &mut properties)? {
            properties.put("recordcount", RECORDS, "the default");
            properties.put("operationcount", 0, "the default");
            properties.put("maxexecutiontime", DURATION.as_secs(), "the default");
        } else {
            let path = Path::new(name);
            ensure!(path.exists(), "--workload {name}: neither a, b, c, d, e, f nor a file");
            properties.read(path)?;
        }
    }
    for path in &args.files {
        properties.read(path)?;
    }
    for property in &args.properties {
        properties.set(property)?;
    }
    flags(args, &mut properties)?;
    let name = name.unwrap_or_else(|| args.files[0].display().to_string());
    Ok((name, Workload::new(properties, args.allow_unknown)?))
}

/// Flags that stand for properties.
fn flags(args: &RunArgs, properties: &mut Properties) -> Result<()> {
    if let Some(records) = args.records {
        properties.put("recordcount", records, "--records");
    }
    if let Some(operations) = args.load.operations {
        properties.put("operationcount", operations, "--operations");
        properties.put("maxexecutiontime", 0, "--operations");
    }
    if let Some(duration) = args.load.duration {
        properties.put("maxexecutiontime", duration.as_secs_f64(), "--duration");
        properties.put("operationcount", 0, "--duration");
    }
    if let Some(rate) = args.load.rate {
        properties.put("target", rate, "--rate");
    }
    if args.verify {
        properties.put("dataintegrity", true, "--verify");
    }
    if let Some(size) = &args.value_size {
        value_size(size, properties)?;
    }
    Ok(())
}

fn value_size(text: &str, properties: &mut Properties) -> Result<()> {
    let origin = "--value-size";
    let mut put = |key: &str, value: &str| properties.put(key, value, origin);
    put("fieldcount", "1");
    let Some((kind, range)) = text.split_once(':') else {
        put("fieldlengthdistribution", "constant");
        put("fieldlength", text);
        return Ok(());
    };
    let known = ["uniform", "zipfian"].contains(&kind);
    match range.split_once('-').filter(|_| known) {
        Some((min, max)) => {
            put("fieldlengthdistribution", kind);
            put("minfieldlength", min);
            put("fieldlength", max);
            Ok(())
        }
        None => bail!("--value-size {text}: write N, uniform:MIN-MAX or zipfian:MIN-MAX"),
    }
}

/// What a reader of the figures has to know.
fn notes(workload: &Workload, plan: &Plan, update: UpdateMode) -> Vec<String> {
    let mut notes = vec![];
    let Proportions { update: updates, read_modify_write, .. } = workload.proportions;
    if update == UpdateMode::Cas && !workload.whole_updates && updates + read_modify_write > 0.0 {
        let what = "--update cas: a record is replaced one-sidedly, one of its fields is not";
        notes.push(format!("{what}: say --value-size N or -p writeallfields=true"));
    }
    if workload.one_field_reads {
        notes.push("readallfields=false: records are read as a whole nevertheless".to_owned());
    }
    if workload.layout.constant_bytes.is_none() {
        let what = "fields have length prefixes, and an update of one reads, replaces and writes";
        notes.push(format!("{what} the record if it is still the same"));
    }
    if plan.pipeline > 1 {
        notes.push("an operation of a pipeline takes as long as all of its batch".to_owned());
    }
    if !workload.ignored.is_empty() {
        notes.push(format!("properties without effect here: {}", workload.ignored.join(", ")));
    }
    notes
}
