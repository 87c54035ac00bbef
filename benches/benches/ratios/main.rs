//! Every figure of docs/BENCHMARKS.md in one run: `benches/run.sh`. Prints the tables to stdout and
//! what it is doing to stderr. Contestants take turns; medians of rounds; fixed seeds.
//!
//! `cargo bench -p onesided-bench --bench ratios -- memory` measures one part of gets, puts, cpu,
//! memory.
//! `ONESIDED_BENCH_KEYS`, `ONESIDED_BENCH_ROUNDS`, `ONESIDED_BENCH_IDLE_S` make it shorter.

#[path = "../common/mod.rs"]
mod common;
mod cpu;
mod gets;
mod huge;
mod memory;
mod puts;
mod report;

use std::time::Duration;

use anyhow::Result;
use common::redis::RedisServer;
use common::store::Store;
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
    if huge::measure_if_told(pairs) {
        return Ok(());
    }
    let load_before = load();
    let mut report = Report::default();
    let redis = RedisServer::start();
    if let Err(error) = &redis {
        let why = format!("redis-server does not start ({error}); apt-get install redis-server");
        report.not_measured("Redis", &why);
    }
    let redis = redis.ok();
    if ["gets", "puts", "cpu"].into_iter().any(wanted) {
        with_store(&mut report, pairs, redis.as_ref())?;
    }
    drop(redis);
    if wanted("memory") {
        memory::measure(&mut report, pairs)?;
    }
    report.print(&machine(&load_before));
    Ok(())
}

/// What is measured on a server that holds all pairs.
fn with_store(report: &mut Report, pairs: u64, redis: Option<&RedisServer>) -> Result<()> {
    let store = match wanted("gets") {
        true => gets::measure(report, pairs, redis)?,
        false => Store::filled(pairs)?,
    };
    if wanted("puts") {
        puts::measure(report, &store, pairs, redis)?;
    }
    if wanted("cpu") {
        cpu::measure(report, &store, pairs)?;
    }
    Ok(())
}

/// Whether a part is to be measured: it was named, or none was.
fn wanted(part: &str) -> bool {
    let parts: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    parts.is_empty() || parts.iter().any(|named| named == part)
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
