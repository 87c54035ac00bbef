//! `scan`: keys of an ordered table, and their values.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use onesided::{KeyRange, Value};
use serde_json::json;

use crate::args::ScanArgs;
use crate::output;
use crate::session::{Outcome, Session};
use crate::values::value_json;

/// Pairs that are in memory together.
const PAGE: usize = 100;

pub(crate) fn run(session: &Session, args: &ScanArgs) -> Result<Outcome> {
    let table = session.table()?;
    let mut range = range_of(args);
    let mut left = if args.limit == 0 { usize::MAX } else { args.limit };
    let mut out = io::stdout().lock();
    while left > 0 {
        let wanted = left.min(PAGE);
        let page = table.scan_range(&range, wanted)?;
        for (key, value) in &page {
            writeln!(out, "{}", shown(session, args, key, value))?;
        }
        out.flush()?;
        left -= page.len();
        match page.last() {
            Some((last, _)) if page.len() == wanted => range = range.after(last),
            _ => break,
        }
    }
    Ok(Outcome::Done)
}

fn range_of(args: &ScanArgs) -> KeyRange {
    let prefix = args.prefix.as_deref().unwrap_or_default();
    KeyRange::prefix(prefix.as_bytes()).from(args.from.as_deref().unwrap_or_default().as_bytes())
}

fn shown(session: &Session, args: &ScanArgs, key: &[u8], value: &Value) -> String {
    match (session.json, args.keys) {
        (true, false) => value_json(key, value).to_string(),
        (true, true) => {
            let (name, key) = output::bytes_json("key", key);
            json!({ name: key }).to_string()
        }
        (false, true) => key.escape_ascii().to_string(),
        (false, false) => format!("{}\t{}", key.escape_ascii(), value.escape_ascii()),
    }
}
