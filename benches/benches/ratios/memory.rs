//! Bytes beside keys and values.

use anyhow::{Context, Result};
use onesided::FabricChoice;

use crate::common::data::{KEY_BYTES, VALUE_BYTES};
use crate::common::store::{self, Store};
use crate::report::Report;

/// Overhead of a pair at all pairs, and the most on the way there from a tenth of them.
pub(crate) fn measure(report: &mut Report, pairs: u64) -> Result<()> {
    eprintln!("memory");
    let store = Store::empty(FabricChoice::Shm)?;
    let resident_before = store.server.resident_bytes()?;
    let step = (pairs / 500).max(1);
    let (mut keys, mut worst, mut worst_at, mut last) = (0, 0.0, 0, 0.0);
    while keys < pairs {
        let next = pairs.min(keys + step);
        store::fill(&store.table, keys..next)?;
        keys = next;
        last = overhead(&store, keys)?;
        if keys >= pairs / 10 && last > worst {
            (worst, worst_at) = (last, keys);
        }
    }
    let payload = (KEY_BYTES + VALUE_BYTES) as f64;
    let resident = store.server.resident_bytes()? - resident_before;
    let resident = resident as f64 / pairs as f64 - payload;
    let bytes = |number: f64| format!("{number:.1} bytes");
    let what = format!("overhead of a pair of 16+100 bytes at {pairs} keys (index, log, padding)");
    report.figure(&what, &bytes(last), "at most 64", last <= 64.0);
    let what = format!("the most on the way from {} keys, at {worst_at} keys", pairs / 10);
    report.figure(&what, &bytes(worst), "at most 70", worst <= 70.0);
    let what = format!("the same by the server's resident memory at {pairs} keys");
    report.figure(&what, &bytes(resident), "at most 70", resident <= 70.0);
    Ok(())
}

fn overhead(store: &Store, keys: u64) -> Result<f64> {
    let tables = store.client.tables()?;
    let table = tables.iter().find(|table| table.name == "default").context("no table")?;
    anyhow::ensure!(table.keys == keys, "{} keys instead of {keys}", table.keys);
    let bytes = (table.log_bytes + table.index_bytes) as f64;
    Ok(bytes / keys as f64 - (KEY_BYTES + VALUE_BYTES) as f64)
}
