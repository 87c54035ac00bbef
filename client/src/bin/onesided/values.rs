//! `put`, `get`, `del`, `incr`.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use anyhow::{Context, Result};
use onesided::{Error, Expect, PutOptions, Ttl, Value};
use onesided_protocol::limits::VALUE_MAX_BYTES;
use serde_json::{Map, json};

use crate::args::{COUNTERS_TABLE, Condition, DelArgs, GetArgs, IncrArgs, PutArgs};
use crate::output;
use crate::session::{Outcome, Session};

pub(crate) fn put(session: &Session, args: &PutArgs) -> Result<Outcome> {
    let value = value_of(args)?;
    let ttl = match args.ttl {
        None => Ttl::TableDefault,
        Some(0) => Ttl::Never,
        Some(seconds) => Ttl::Seconds(seconds),
    };
    let options =
        PutOptions::default().ttl(ttl).user_flags(args.flags).expect(expect_of(&args.condition));
    let result = session.table()?.put_with(args.key.as_bytes(), &value, options);
    let Some(version) = or_unmet(result)? else { return Ok(Outcome::Absent) };
    output::either(session.json, || json!({ "version": version }), || version.to_string())?;
    Ok(Outcome::Done)
}

pub(crate) fn get(session: &Session, args: &GetArgs) -> Result<Outcome> {
    let key = args.key.as_bytes();
    let Some(value) = session.table()?.get(key)? else {
        return Ok(Outcome::Absent);
    };
    if args.meta {
        let expires = expiry_s(&value).map_or("never".to_owned(), |second| second.to_string());
        eprintln!(
            "version {}\nflags {}\nexpires_unix_s {expires}",
            value.version(),
            value.user_flags()
        );
    }
    if session.json {
        output::line(&value_json(key, &value).to_string())?;
    } else {
        output::raw(&value)?;
    }
    Ok(Outcome::Done)
}

pub(crate) fn del(session: &Session, args: &DelArgs) -> Result<Outcome> {
    let expect = args.if_version.map_or(Expect::Any, Expect::Version);
    let result = session.table()?.delete_with(args.key.as_bytes(), expect);
    let Some(deleted) = or_unmet(result)? else { return Ok(Outcome::Absent) };
    if session.json {
        output::line(&json!({ "deleted": deleted }).to_string())?;
    }
    Ok(if deleted { Outcome::Done } else { Outcome::Absent })
}

pub(crate) fn incr(session: &Session, args: &IncrArgs) -> Result<Outcome> {
    let (table, key) = (session.table()?, args.key.as_bytes());
    let number = match table.name() {
        COUNTERS_TABLE => table.counter(key).fetch_add(args.by)? + args.by,
        _ => table.increment(key, args.by)?,
    };
    output::either(session.json, || json!({ "number": number }), || number.to_string())?;
    Ok(Outcome::Done)
}

/// `None`, with a line on stderr, when the condition was not met.
fn or_unmet<T>(result: Result<T, Error>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ Error::Unexpected(_)) => {
            eprintln!("onesided: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn expect_of(condition: &Condition) -> Expect {
    match condition {
        Condition { if_absent: true, .. } => Expect::Absent,
        Condition { if_present: true, .. } => Expect::Present,
        Condition { if_version: Some(version), .. } => Expect::Version(*version),
        _ => Expect::Any,
    }
}

fn value_of(args: &PutArgs) -> Result<Vec<u8>> {
    if let Some(path) = &args.file {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        return bounded(file).with_context(|| path.display().to_string());
    }
    match &args.value {
        Some(value) if value != "-" => Ok(value.as_bytes().to_vec()),
        _ => {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                eprintln!("onesided: reading the value from the terminal; end it with Ctrl-D");
            }
            bounded(stdin.lock()).context("stdin")
        }
    }
}

/// All of it, if it is not longer than any value may be.
fn bounded(source: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(VALUE_MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(
        bytes.len() <= VALUE_MAX_BYTES,
        "longer than any value may be ({VALUE_MAX_BYTES} bytes); split it"
    );
    Ok(bytes)
}

fn expiry_s(value: &Value) -> Option<u64> {
    let after = value.expires_at()?.duration_since(SystemTime::UNIX_EPOCH);
    after.ok().map(|after| after.as_secs())
}

pub(crate) fn value_json(key: &[u8], value: &Value) -> serde_json::Value {
    let mut object = Map::new();
    object.extend([output::bytes_json("key", key), output::bytes_json("value", value)]);
    object.insert("version".to_owned(), value.version().into());
    object.insert("flags".to_owned(), value.user_flags().into());
    object.insert("expires_unix_s".to_owned(), expiry_s(value).into());
    object.into()
}
