//! How many GETs find their value in a cache that is too small? onesided with reports of one GET
//! in 1, 8, 64 and none, beside Redis, memcached and what an oracle could reach, all with the same
//! bytes of memory and the same stream: a GET, and a PUT if it finds nothing.
//!
//! `cargo bench -p onesided-bench --bench hit_ratio` takes a Zipf stream over ten times as many
//! bytes as there is memory; `-- FILE` a trace, a line per GET: `key,value_bytes`.
//! `ONESIDED_BENCH_REQUESTS` and `ONESIDED_BENCH_MEMORY_MIB` make it shorter or longer.

#[path = "../common/mod.rs"]
mod common;
mod oracle;
mod stores;
mod stream;

use anyhow::Result;
use stores::{Contestant, contestants};
use stream::Stream;

/// Requests that are sent together.
const BATCH: usize = 64;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> Result<()> {
    // `cargo test --benches` runs benches without this flag: nothing to do then.
    if common::process::serve_if_told() || !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let memory_mib = setting("ONESIDED_BENCH_MEMORY_MIB", 64);
    let stream = match std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        Some(path) => Stream::of_trace(path.as_ref())?,
        None => Stream::zipf(memory_mib << 20, setting("ONESIDED_BENCH_REQUESTS", 8_000_000)),
    };
    println!("{}; {memory_mib} MiB of memory; the first quarter warms up.\n", stream.what);
    println!("| cache | found | time |\n|---|---:|---:|");
    let bound = oracle::hits(&stream, memory_mib << 20);
    println!("| an oracle (Belady), no overhead at all | {} | |", percent(bound));
    for contestant in contestants(memory_mib) {
        match measure(&stream, contestant) {
            Ok(line) => println!("{line}"),
            Err(error) => println!("| not measured: {error:#} | | |"),
        }
    }
    Ok(())
}

fn measure(stream: &Stream, contestant: Result<Contestant>) -> Result<String> {
    let Contestant { name, mut cache, .. } = contestant?;
    eprintln!("{name}");
    let start = std::time::Instant::now();
    let (mut found, mut counted) = (0, 0);
    for (at, batch) in stream.batches(BATCH) {
        let hits = cache.get_or_put(&batch.requests)? + batch.repeated;
        if at >= stream.warm_up() {
            found += hits;
            counted += batch.requests.len() + batch.repeated;
        }
    }
    let share = percent(found as f64 / counted.max(1) as f64);
    Ok(format!("| {name} | {share} | {:.0} s |", start.elapsed().as_secs_f64()))
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}
