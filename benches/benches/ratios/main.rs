//! Every figure of docs/BENCHMARKS.md in one run: `benches/run.sh`. Prints the tables to stdout and
//! what it is doing to stderr. Contestants take turns; medians of rounds; fixed seeds.
//!
//! `ONESIDED_BENCH_KEYS`, `ONESIDED_BENCH_ROUNDS`, `ONESIDED_BENCH_IDLE_S` make it shorter.

#[path = "../common/mod.rs"]
mod common;
mod cpu;
mod gets;
mod memory;
mod puts;
mod report;

use std::time::Duration;

use anyhow::Result;
use common::redis::RedisServer;
use report::Report;

/// How long one contestant runs before the next one's turn.
const TURN: Duration = Duration::from_millis(150);

/// Of how many rounds the median is taken.
fn rounds() -> usize {
    setting("ONESIDED_BENCH_ROUNDS", 11)
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> Result<()> {
    // `cargo test --benches` runs benches without this flag: nothing to do then.
    if common::process::serve_if_told() || !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let pairs = common::data::pairs();
    let load_before = load();
    let mut report = Report::default();
    let redis = RedisServer::start();
    if let Err(error) = &redis {
        let why = format!("redis-server does not start ({error}); apt-get install redis-server");
        report.not_measured("Redis", &why);
    }
    let redis = redis.ok();
    let store = gets::measure(&mut report, pairs, redis.as_ref())?;
    puts::measure(&mut report, &store, pairs, redis.as_ref())?;
    cpu::measure(&mut report, &store, pairs)?;
    drop((store, redis));
    memory::measure(&mut report, pairs)?;
    report.print(&machine(&load_before));
    Ok(())
}

/// Which machine it was, and what else it did.
fn machine(load_before: &str) -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let now = load();
    format!("{model}, {cpus} CPUs. Load average {load_before} before this run, {now} after it.")
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}
