//! `dump`: a file for every key.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use onesided::blocking::Table;
use serde_json::json;

use crate::args::DumpArgs;
use crate::bulk::{self, Done, Failure, Tally};
use crate::output;
use crate::place::Place;
use crate::session::{Outcome, Session};

pub(crate) fn run(session: &Session, args: &DumpArgs) -> Result<Outcome> {
    let table = session.table()?;
    let keys = match &args.keys_from {
        Some(file) => listed(file)?,
        None => table.keys().context("dump needs --keys-from FILE here, or a one-sided fabric")?,
    };
    let place = Place::open(&args.dir).with_context(|| args.dir.display().to_string())?;
    let name = |key: &Vec<u8>| output::shown(key);
    let tally = bulk::run("dump", &keys, args.pace, name, |key| write(&table, &place, key));
    report(session, &tally)?;
    Ok(match tally {
        Tally { failed: 0, left_out: 0, absent: 0, .. } => Outcome::Done,
        Tally { failed: 0, left_out: 0, .. } => Outcome::Absent,
        _ => Outcome::Failed,
    })
}

/// The lines of a file or of stdin; what is between two line ends is the key.
fn listed(file: &Path) -> Result<Vec<Vec<u8>>> {
    let mut text = Vec::new();
    if file == Path::new("-") {
        io::stdin().read_to_end(&mut text).context("stdin")?;
    } else {
        let mut file = File::open(file).with_context(|| file.display().to_string())?;
        file.read_to_end(&mut text)?;
    }
    let lines = text.strip_suffix(b"\n").unwrap_or(&text).split(|&byte| byte == b'\n');
    Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

fn write(table: &Table, place: &Place, key: &[u8]) -> Result<Done, Failure> {
    let Some(value) = table.get(key)? else { return Ok(Done::Absent) };
    place.write(key, &value).map_err(Failure::new)?;
    Ok(Done::Bytes(value.len() as u64))
}

fn report(session: &Session, tally: &Tally) -> Result<()> {
    let as_json = || {
        json!({
            "files": tally.done,
            "bytes": tally.bytes,
            "absent": tally.absent,
            "failed": tally.failed,
            "left_out": tally.left_out,
            "elapsed_s": tally.elapsed.as_secs_f64(),
            "megabytes_per_s": tally.megabytes_per_s(),
        })
    };
    let as_text = || {
        let mut text = format!(
            "{} files, {} in {} ({:.1} MB/s)",
            output::count(tally.done),
            output::megabytes(tally.bytes),
            output::time(tally.elapsed),
            tally.megabytes_per_s(),
        );
        for (number, what) in
            [(tally.absent, "absent"), (tally.failed, "failed"), (tally.left_out, "not tried")]
        {
            if number > 0 {
                text += &format!("; {} {what}", output::count(number));
            }
        }
        text
    };
    output::either(session.json, as_json, as_text).context("stdout")
}
