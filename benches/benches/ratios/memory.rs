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
    let (mut keys, mut last) = (0, Overhead::default());
    let mut worst = [Worst { from: pairs / 10, ..Worst::default() }; 2];
    worst[1].from = pairs / 4;
    while keys < pairs {
        let next = pairs.min(keys + step);
        store::fill(&store.table, keys..next)?;
        keys = next;
        last = overhead(&store, keys)?;
        worst.iter_mut().for_each(|worst| worst.look(keys, last));
    }
    let payload = (KEY_BYTES + VALUE_BYTES) as f64;
    let resident = store.server.resident_bytes()? - resident_before;
    let resident = resident as f64 / pairs as f64 - payload;
    let bytes = |number: f64| format!("{number:.1} bytes");
    let what = format!("overhead of a pair of 16+100 bytes at {pairs} keys (index, log, padding)");
    report.figure(&what, &bytes(last.all), "at most 64", last.all <= 64.0);
    for Worst { from, at, overhead } in worst {
        let what = format!("the most on the way from {from} keys, at {at} keys");
        report.figure(&what, &bytes(overhead.all), "at most 70", overhead.all <= 70.0);
        let rest = "without the part of the last log segment that is still empty";
        let what = format!("the same, {rest}");
        report.figure(&what, &bytes(overhead.used), "at most 70", overhead.used <= 70.0);
    }
    let what = format!("the same by the server's resident memory at {pairs} keys");
    report.figure(&what, &bytes(resident), "at most 70", resident <= 70.0);
    Ok(())
}

/// Bytes of a pair beside its key and value.
#[derive(Clone, Copy, Default)]
struct Overhead {
    /// Index and log segments.
    all: f64,
    /// Index, and entries that are alive.
    used: f64,
}

#[derive(Clone, Copy, Default)]
struct Worst {
    from: u64,
    at: u64,
    overhead: Overhead,
}

impl Worst {
    fn look(&mut self, keys: u64, overhead: Overhead) {
        if keys >= self.from && overhead.all > self.overhead.all {
            (self.at, self.overhead) = (keys, overhead);
        }
    }
}

fn overhead(store: &Store, keys: u64) -> Result<Overhead> {
    let tables = store.client.tables()?;
    let table = tables.iter().find(|table| table.name == "default").context("no table")?;
    anyhow::ensure!(table.keys == keys, "{} keys instead of {keys}", table.keys);
    let per_key = |bytes: u64| bytes as f64 / keys as f64 - (KEY_BYTES + VALUE_BYTES) as f64;
    Ok(Overhead {
        all: per_key(table.log_bytes + table.index_bytes),
        used: per_key(table.live_bytes + table.index_bytes),
    })
}
