//! What reading costs the server's CPU.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::common::data::{self, Walk};
use crate::common::store::Store;
use crate::report::Report;
use crate::setting;

/// CPU time of the server in a minute without and in a minute with reads, the client connected
/// in both.
pub(crate) fn measure(report: &mut Report, store: &Store, pairs: u64) -> Result<()> {
    let period = Duration::from_secs(setting("ONESIDED_BENCH_IDLE_S", 60) as u64);
    eprintln!("server CPU: {} s idle, then as long with reads", period.as_secs());
    // What is still under way from the writes before ends first.
    std::thread::sleep(Duration::from_secs(2));
    let start = store.server.cpu()?;
    std::thread::sleep(period);
    let idle = store.server.cpu()? - start;
    let start = store.server.cpu()?;
    let gets = read_for(store, pairs, period)?;
    let reading = store.server.cpu()? - start;
    let ms = |time: Duration| time.as_micros() as f64 / 1e3;
    report.figure(
        &format!("server CPU in {} s: idle, and with {gets} GETs", period.as_secs()),
        &format!("{:.1} ms, {:.1} ms", ms(idle), ms(reading)),
        "the same",
        // Heartbeats fall on either side of a period's end; caches are colder beside a reader.
        ms(reading) <= ms(idle) * 1.5 + 5.0,
    );
    Ok(())
}

fn read_for(store: &Store, pairs: u64, period: Duration) -> Result<u64> {
    let mut walk = Walk::new(46, pairs);
    let mut gets = 0;
    let start = Instant::now();
    while start.elapsed() < period {
        for _ in 0..1_000 {
            anyhow::ensure!(store.table.get(data::key(walk.next()))?.is_some(), "a key is gone");
        }
        gets += 1_000;
    }
    Ok(gets)
}
