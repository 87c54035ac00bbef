//! `load`: every file below a directory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use onesided::Error;
use onesided::blocking::Table;
use onesided_protocol::layout::cell;
use onesided_protocol::limits::VALUE_MAX_BYTES;
use serde_json::json;
use walkdir::WalkDir;

use crate::args::{COUNTERS_TABLE, LoadArgs};
use crate::bulk::{self, Done, Failure, Tally};
use crate::output;
use crate::session::{Outcome, Session};

/// A file and the key it gets.
struct Item {
    path: PathBuf,
    key: Vec<u8>,
    stored: AtomicBool,
}

#[derive(Default)]
struct Found {
    items: Vec<Item>,
    /// Symbolic links, pipes, sockets, devices.
    skipped: u64,
    /// Directories that could not be read.
    unreadable: u64,
}

pub(crate) fn run(session: &Session, args: &LoadArgs) -> Result<Outcome> {
    if !args.dir.is_dir() {
        bail!("{} is not a directory; load takes one", args.dir.display());
    }
    let found = find(&args.dir);
    if found.unreadable > 0 && args.pace.stop_on_error {
        bail!("not everything below {} can be read; nothing was loaded", args.dir.display());
    }
    let table = session.table()?;
    let name = |item: &Item| item.path.display().to_string();
    let loaded = bulk::run("load", &found.items, args.pace, name, |item| store(&table, item));
    let mut verified = None;
    if args.verify && loaded.left_out == 0 {
        let is_stored = |item: &&Item| item.stored.load(Ordering::Relaxed);
        let stored: Vec<&Item> = found.items.iter().filter(is_stored).collect();
        let name = |item: &&Item| name(item);
        let compare = |item: &&Item| compare(&table, item);
        verified = Some(bulk::run("verify", &stored, args.pace, name, compare));
    }
    report(session, &found, &loaded, verified.as_ref())?;
    let wrong = |tally: &Tally| tally.failed + tally.absent + tally.left_out;
    let bad = found.unreadable + wrong(&loaded) + verified.as_ref().map_or(0, wrong);
    Ok(if bad == 0 { Outcome::Done } else { Outcome::Failed })
}

fn find(dir: &Path) -> Found {
    let mut found = Found::default();
    for entry in WalkDir::new(dir).follow_links(false).follow_root_links(true) {
        match entry {
            Ok(entry) if entry.file_type().is_file() => {
                // Below `dir`, so the prefix is there.
                let relative = entry.path().strip_prefix(dir).unwrap_or(entry.path());
                let key = relative.as_os_str().as_bytes().to_vec();
                let (path, stored) = (entry.into_path(), AtomicBool::new(false));
                found.items.push(Item { path, key, stored });
            }
            Ok(entry) if entry.file_type().is_dir() => {}
            Ok(_) => found.skipped += 1,
            Err(error) => {
                found.unreadable += 1;
                eprintln!("onesided: {error}");
            }
        }
    }
    found
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than any server takes: it refuses, and a huge file is not read for nothing.
    File::open(path)?.take(VALUE_MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > VALUE_MAX_BYTES {
        return Err(io::Error::other(format!("longer than any value ({VALUE_MAX_BYTES} bytes)")));
    }
    Ok(bytes)
}

fn store(table: &Table, item: &Item) -> Result<Done, Failure> {
    let bytes = read(&item.path).map_err(|error| Failure::new(error.to_string()))?;
    match number_of(&bytes) {
        Some(number) if table.name() == COUNTERS_TABLE => set(table, &item.key, number)?,
        _ => drop(table.put(&item.key, &bytes)?),
    }
    item.stored.store(true, Ordering::Relaxed);
    Ok(Done::Bytes(bytes.len() as u64))
}

/// What `dump` writes of a counter.
fn number_of(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    let is_it = number.to_string().as_bytes() == bytes && cell::is_in_range(number);
    is_it.then_some(number)
}

/// Whatever the key has.
fn set(table: &Table, key: &[u8], number: i64) -> Result<(), Error> {
    match table.counter(key).set(number) {
        Err(Error::WrongType(_)) => {
            table.delete(key)?;
            table.counter(key).set(number)
        }
        set => set,
    }
}

fn compare(table: &Table, item: &Item) -> Result<Done, Failure> {
    let bytes = read(&item.path).map_err(|error| Failure::new(error.to_string()))?;
    match table.get(&item.key)? {
        None => Ok(Done::Absent),
        Some(value) if *value == *bytes => Ok(Done::Bytes(bytes.len() as u64)),
        Some(_) => Err(Failure::new("read back, the value differs from the file")),
    }
}

fn report(
    session: &Session,
    found: &Found,
    loaded: &Tally,
    verified: Option<&Tally>,
) -> Result<()> {
    let as_json = || {
        json!({
            "files": loaded.done,
            "bytes": loaded.bytes,
            "skipped": found.skipped,
            "failed": loaded.failed + found.unreadable,
            "left_out": loaded.left_out,
            "elapsed_s": loaded.elapsed.as_secs_f64(),
            "megabytes_per_s": loaded.megabytes_per_s(),
            "verified": verified.map(|tally| tally.done),
        })
    };
    let as_text = || {
        let mut text = format!(
            "{} files, {} in {} ({:.1} MB/s)",
            output::count(loaded.done),
            output::megabytes(loaded.bytes),
            output::time(loaded.elapsed),
            loaded.megabytes_per_s(),
        );
        let mut also = |number: u64, what: &str| {
            if number > 0 {
                text += &format!("; {} {what}", output::count(number));
            }
        };
        also(found.skipped, "links and special files skipped");
        also(loaded.failed + found.unreadable, "failed");
        also(loaded.left_out, "not tried any more");
        if let Some(tally) = verified {
            also(tally.done, "read back equal");
            also(tally.failed + tally.absent, "NOT EQUAL");
        }
        text
    };
    output::either(session.json, as_json, as_text).context("stdout")
}
