//! What a client waits for that changes memory by itself: the median of a PUT of 100 bytes in a
//! table of mode `cas`, of one key whose entry is known and of many in turn, and of an addition to
//! a counter; with their round trips, by the client's statistics. Beside bare verbs:
//! `tools/guests/test update`.
//!
//!     cargo bench -p onesided-bench --bench update -- URL TIMES

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use onesided::blocking::Client;
use onesided::{Error, Stats, TableOptions, UpdateMode};

/// Those that are updated in turn.
const KEYS: u64 = 64;
/// Before anything is measured.
const WARM_UP: u64 = 500;

fn main() -> Result<()> {
    // cargo says --bench, too.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let Some(url) = words.next() else {
        println!("update: nothing is measured without the URL of a server");
        return Ok(());
    };
    let times = words.next().map_or(Ok(10_000), |word| word.parse()).context("TIMES")?;
    let client = Client::connect(url)?;
    let options = TableOptions { update: UpdateMode::Cas, ..TableOptions::default() };
    let table = client.create_table("bench-update", options)?;
    let value = [7; 100];
    let key = "0123456789abcdef";
    let puts = |stats: &Stats| (stats.one_sided_puts, stats.update_round_trips);
    measure("PUT", times, &client, puts, || table.put(key, value).map(|_| ()))?;
    let keys: Vec<_> = (0..KEYS).map(|n| format!("0123456789ab{n:04}")).collect();
    let mut keys = keys.iter().cycle();
    let put_next = || table.put(keys.next().map_or("", |key| key), value).map(|_| ());
    measure("PUT in turn", times, &client, puts, put_next)?;
    let counter = table.counter("counter");
    let adds = |stats: &Stats| (stats.counter_updates, stats.counter_round_trips);
    measure("fetch_add", times, &client, adds, || counter.fetch_add(1).map(|_| ()))?;
    client.drop_table("bench-update")?;
    Ok(())
}

/// `counts`: how many were done without the server, and their round trips.
fn measure(
    name: &str,
    times: u64,
    client: &Client,
    counts: impl Fn(&Stats) -> (u64, u64),
    mut act: impl FnMut() -> Result<(), Error>,
) -> Result<()> {
    for _ in 0..WARM_UP {
        act()?;
    }
    let mut took_ns = Histogram::<u64>::new(3)?;
    let before = counts(&client.stats());
    for _ in 0..times {
        let begin = Instant::now();
        act()?;
        took_ns.record(begin.elapsed().as_nanos() as u64)?;
    }
    let after = counts(&client.stats());
    let (done, round_trips) = (after.0 - before.0, after.1 - before.1);
    ensure!(done > 0, "{name}: the server did them all: is it a fabric with one-sided access?");
    let us = |quantile| took_ns.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "{name} over {}: p50 {:.2} us, p90 {:.2}, p99 {:.2}, mean {:.2}; {:.1} % without the \
         server, {:.4} round trips each",
        client.fabric(),
        us(0.5),
        us(0.9),
        us(0.99),
        took_ns.mean() / 1e3,
        100.0 * done as f64 / times as f64,
        round_trips as f64 / done as f64,
    );
    Ok(())
}
