//! What additions to ONE counter take that many clients make at once, each with a connection of its
//! own; and that none of them is lost or done twice: each number before an addition is handed out
//! once. In a guest, over RDMA: `tools/guests/test contention`.
//!
//!     cargo bench -p onesided-bench --bench adds -- URL CLIENTS SECONDS [TIMES]
//!
//! ends after SECONDS, or after TIMES additions of all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use onesided::blocking::Client;
use onesided_bench::report::figures::quantile_us;
use onesided_bench::run::measure::{Measure, Status, Times};
use onesided_bench::run::series::Series;
use onesided_bench::workload::operations::Kind;

const TABLE: &str = "counters";
const KEY: &str = "bench-adds";

fn main() -> Result<()> {
    // cargo says --bench, too.
    let words: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let [url, clients, seconds, rest @ ..] = &words[..] else {
        println!("adds: nothing is measured without URL CLIENTS SECONDS");
        return Ok(());
    };
    let clients: u64 = clients.parse().context("CLIENTS")?;
    let limit = Duration::try_from_secs_f64(seconds.parse().context("SECONDS")?)?;
    let times = rest.first().map_or(Ok(u64::MAX), |word| word.parse()).context("TIMES")?;
    let all = (0..clients).map(|_| Client::connect(url)).collect::<Result<Vec<_>, _>>()?;
    let first = all.first().context("CLIENTS: one at least")?;
    let table = first.table(TABLE)?;
    table.delete(KEY)?;
    let cpu = cpu_ns(first)?;
    let (series, stop, start) = (Series::default(), AtomicBool::new(false), Instant::now());
    let parts: Vec<Result<_>> = std::thread::scope(|scope| {
        let mut threads = vec![];
        for (number, client) in all.iter().enumerate() {
            let quota = times / clients + u64::from((number as u64) < times % clients);
            let part = Part { client, quota, limit, start, series: &series, stop: &stop };
            threads.push(scope.spawn(move || part.add()));
        }
        let panicked = |_| Err(anyhow!("a thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let parts: Vec<(Measure, u128)> = parts.into_iter().collect::<Result<_>>()?;
    let cpu = cpu_ns(first)? - cpu;
    tell(first, &parts, cpu);
    let done = u128::from(parts.iter().map(|(measure, _)| measure.operations()).sum::<u64>());
    let counter = u128::try_from(table.counter(KEY).get()?)?;
    ensure!(counter == done, "WRONG: after {done} additions the counter is {counter}");
    let handed_out: u128 = parts.iter().map(|(_, sum)| sum).sum();
    ensure!(
        handed_out == done * done.saturating_sub(1) / 2,
        "WRONG: a number was handed out twice"
    );
    table.delete(KEY)?;
    Ok(())
}

struct Part<'a> {
    client: &'a Client,
    quota: u64,
    limit: Duration,
    start: Instant,
    series: &'a Series,
    stop: &'a AtomicBool,
}

impl Part<'_> {
    /// Adds until it is over. What it measured, and the sum of the numbers that it was given.
    fn add(self) -> Result<(Measure, u128)> {
        let added = self.add_all();
        // Then nothing that the others still do counts.
        self.stop.fetch_or(added.is_err(), Ordering::Relaxed);
        added
    }

    fn add_all(&self) -> Result<(Measure, u128)> {
        let counter = self.client.table(TABLE)?.counter(KEY);
        let (mut measure, mut sum, mut last) = (Measure::new(), 0, -1);
        let now_ns = || self.start.elapsed().as_nanos() as u64;
        let (mut began_ns, limit_ns) = (now_ns(), self.limit.as_nanos() as u64);
        for _ in 0..self.quota {
            if began_ns >= limit_ns || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let before = counter.fetch_add(1)?;
            let ended_ns = now_ns();
            ensure!(before > last, "WRONG: {before} after {last}, which the same client was given");
            (sum, last) = (sum + u128::try_from(before)?, before);
            measure.tick(ended_ns, self.series);
            let times = Times { intended_ns: None, began_ns, ended_ns };
            measure.record(Kind::Update, Status::Ok, Some(times));
            began_ns = ended_ns;
        }
        measure.tick(now_ns(), self.series);
        Ok((measure, sum))
    }
}

/// CPU time of the server, 0 if it does not say.
fn cpu_ns(client: &Client) -> Result<u64> {
    let stats = client.server_stats()?;
    Ok(stats.iter().find(|(name, _)| name == "process_cpu_ns").map_or(0, |(_, value)| *value))
}

fn tell(client: &Client, parts: &[(Measure, u128)], server_cpu_ns: u64) {
    let mut all = Measure::new();
    parts.iter().for_each(|(measure, _)| all.merge(measure));
    let by_client = || parts.iter().map(|(measure, _)| measure.operations());
    let (done, seconds) = (all.operations(), all.ended_ns as f64 / 1e9);
    let latencies = &all.kinds[Kind::Update as usize].latencies;
    println!(
        "adds over {}: {} clients, {done} additions in {seconds:.2} s, {:.0}/s, p50 {:.2} us, \
         p99 {:.2}; a client did {} to {}, {} or more in each second; server CPU {:.3} us each",
        client.fabric(),
        parts.len(),
        done as f64 / seconds,
        quantile_us(latencies, 0.5),
        quantile_us(latencies, 0.99),
        by_client().min().unwrap_or(0),
        by_client().max().unwrap_or(0),
        all.fewest_in_a_second.map_or("?".to_owned(), |fewest| fewest.to_string()),
        server_cpu_ns as f64 / 1e3 / done.max(1) as f64,
    );
}
