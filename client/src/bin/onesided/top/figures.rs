//! What there is to see: counters that the server gives, and what they did of late.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use onesided_protocol::control::TableStatus;

/// What rates are averages of.
const WINDOW: Duration = Duration::from_secs(10);
/// Rates that are kept for the curves.
const HISTORY: usize = 240;

/// One look at the server.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) stats: HashMap<String, u64>,
    pub(super) tables: Vec<TableStatus>,
}

impl Sample {
    fn get(&self, name: &str) -> u64 {
        self.stats.get(name).copied().unwrap_or(0)
    }

    /// All of these that begin and end so.
    fn sum(&self, start: &str, end: &str) -> u64 {
        let fits = |name: &&String| name.starts_with(start) && name.ends_with(end);
        self.stats.iter().filter(|(name, _)| fits(name)).map(|(_, value)| *value).sum()
    }

    /// Operations that came by RPC; of a batch what is in it.
    fn rpcs(&self) -> u64 {
        let results = ["_ok", "_miss", "_unmet", "_failed"];
        let all: u64 = results.iter().map(|result| self.sum("rpc_", result)).sum();
        let batches: u64 = results.iter().map(|end| self.sum("rpc_batch", end)).sum();
        all.saturating_sub(batches)
    }

    /// Counts of a histogram, by upper bound in ns; the last bucket has none.
    fn times(&self, start: &str) -> Vec<(u64, u64)> {
        let parse = |(name, count): (&String, &u64)| {
            let bound = name.strip_prefix(start)?.strip_suffix("_ns")?;
            Some((bound.parse().unwrap_or(u64::MAX), *count))
        };
        let mut times: Vec<_> = self.stats.iter().filter_map(parse).collect();
        times.sort_unstable();
        times
    }
}

/// Figures of the window before the last look; those that need two looks are `None` until then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) one_sided_gets: f64,
    /// PUTs and operations on counters.
    pub(super) one_sided_updates: f64,
    /// Those of them that had to be done again.
    pub(super) updates_lost: f64,
    pub(super) rpcs: f64,
    pub(super) reads: f64,
    pub(super) read_bytes: f64,
    pub(super) cpu_cores: f64,
    pub(super) hit_ratio: Option<f64>,
    /// Upper bounds, ns.
    pub(super) get_ns: [Option<u64>; 2],
    pub(super) rpc_ns: [Option<u64>; 2],
}

/// All that is drawn.
#[derive(Default)]
pub(super) struct Figures {
    samples: VecDeque<Sample>,
    pub(super) rates: Option<Rates>,
    /// One-sided GETs and RPCs in a second, the latest last.
    pub(super) curves: [VecDeque<u64>; 2],
    /// Why the last look failed.
    pub(super) lost: Option<String>,
    /// Restarts of the server that were seen.
    pub(super) restarts: u32,
}

/// Shares of which percentiles are shown.
const SHARES: [f64; 2] = [0.5, 0.99];

impl Figures {
    /// The last look, if there was one.
    pub(super) fn last(&self) -> Option<&Sample> {
        self.samples.back()
    }

    pub(super) fn stat(&self, name: &str) -> Option<u64> {
        self.last()?.stats.get(name).copied()
    }

    /// Takes one more look.
    pub(super) fn add(&mut self, sample: Sample) {
        self.lost = None;
        // Uptime does not tell: the server's next life may be longer than the last by now.
        let before = self.last().map(|last| last.get("start_unix_ms"));
        if before.is_some_and(|before| sample.get("start_unix_ms") != before) {
            // Another life's counters have nothing to do with these.
            self.samples.clear();
            self.restarts += 1;
        }
        let now = sample.at;
        self.samples.push_back(sample);
        let is_old = |next: &Sample| now.saturating_duration_since(next.at) >= WINDOW;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.rates = self.samples.front().zip(self.last()).and_then(|(a, b)| rates(a, b));
        let Some(rates) = self.rates else { return };
        for (curve, value) in self.curves.iter_mut().zip([rates.one_sided_gets, rates.rpcs]) {
            curve.push_back(value as u64);
            if curve.len() > HISTORY {
                curve.pop_front();
            }
        }
    }
}

fn rates(from: &Sample, to: &Sample) -> Option<Rates> {
    let seconds = to.at.saturating_duration_since(from.at).as_secs_f64();
    if seconds < 0.1 {
        return None;
    }
    let more = |name: &str| to.get(name).saturating_sub(from.get(name)) as f64;
    let per_s = |name: &str| more(name) / seconds;
    let found = more("clients_reported_one_sided_hits") + more("rpc_get_ok");
    let gets = more("clients_reported_one_sided_gets") + more("rpc_get_ok") + more("rpc_get_miss");
    let times = |start: &str| {
        let (from, to) = (from.times(start), to.times(start));
        SHARES.map(|share| percentile(&from, &to, share))
    };
    Some(Rates {
        one_sided_gets: per_s("clients_reported_one_sided_gets"),
        one_sided_updates: per_s("clients_reported_one_sided_puts")
            + per_s("clients_reported_counter_atomics"),
        updates_lost: per_s("clients_reported_lost_swaps")
            + per_s("clients_reported_counter_retries"),
        rpcs: to.rpcs().saturating_sub(from.rpcs()) as f64 / seconds,
        reads: per_s("clients_reported_reads"),
        read_bytes: per_s("clients_reported_read_bytes"),
        cpu_cores: per_s("threads_cpu_ns") / 1e9,
        hit_ratio: (gets > 0.0).then(|| found / gets),
        get_ns: times("clients_reported_get_time_up_to_"),
        rpc_ns: times("rpc_time_up_to_"),
    })
}

/// Upper bound of the bucket in which a share of what came between two looks lies.
fn percentile(from: &[(u64, u64)], to: &[(u64, u64)], share: f64) -> Option<u64> {
    let before = |bound: u64| from.iter().find(|(other, _)| *other == bound).map_or(0, |b| b.1);
    let came: Vec<_> =
        to.iter().map(|(bound, count)| (*bound, count.saturating_sub(before(*bound)))).collect();
    let all: u64 = came.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * share).ceil() as u64;
    let mut below = 0;
    came.iter().filter(|_| all > 0).find_map(|(bound, count)| {
        below += count;
        (below >= wanted).then_some(*bound)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A server that has served for so many seconds.
    pub(crate) fn sample(start: Instant, second: u64) -> Sample {
        let stats = [
            ("uptime_ms", 1000 * second),
            ("clients_reported_one_sided_gets", 1000 * second),
            ("clients_reported_one_sided_hits", 900 * second),
            ("clients_reported_reads", 2000 * second),
            ("clients_reported_one_sided_puts", 300 * second),
            ("clients_reported_counter_atomics", 150 * second),
            ("clients_reported_lost_swaps", 20 * second),
            ("clients_reported_counter_retries", 5 * second),
            ("clients_reported_read_bytes", 512_000 * second),
            ("clients_reported_get_time_up_to_512_ns", 90 * second),
            ("clients_reported_get_time_up_to_1024_ns", 10 * second),
            ("rpc_time_up_to_2048_ns", 5 * second),
            ("rpc_time_up_to_more_ns", 5 * second),
            ("rpc_put_ok", 40 * second),
            ("rpc_get_miss", 10 * second),
            ("rpc_batch_ok", 7 * second),
            ("rpc_malformed", 3 * second),
            ("threads_cpu_ns", 250_000_000 * second),
            ("memory_limit_bytes", 1 << 30),
            ("memory_free_bytes", 3 << 28),
            ("memory_log_live_bytes", 150 << 20),
            ("memory_log_dead_bytes", 50 << 20),
            ("memory_meta_bytes", 56 << 20),
            ("sessions", 3),
            ("endpoints_shm", 2),
            ("endpoints_tcp", 1),
            ("fabric_shm_offered", 1),
            ("fabric_tcp_offered", 1),
        ];
        let stats = stats.map(|(name, value)| (name.to_owned(), value)).into();
        let table = |name: &str, keys| TableStatus {
            name: name.to_owned(),
            keys,
            live_bytes: keys * 100,
            ..TableStatus::default()
        };
        let tables = vec![table("default", 5_000), table("sessions", 70_000 + second)];
        Sample { at: start + Duration::from_secs(second), stats, tables }
    }

    #[test]
    fn rates_are_averages_of_the_window() {
        let (start, mut figures) = (Instant::now(), Figures::default());
        figures.add(sample(start, 1));
        assert_eq!(figures.rates, None, "one look is none");
        for second in 2..30 {
            figures.add(sample(start, second));
        }
        let rates = figures.rates.expect("rates");
        assert_eq!((rates.one_sided_gets, rates.rpcs, rates.reads), (1000.0, 50.0, 2000.0));
        assert_eq!((rates.one_sided_updates, rates.updates_lost), (450.0, 25.0));
        assert_eq!((rates.cpu_cores, rates.read_bytes), (0.25, 512_000.0));
        assert!((rates.hit_ratio.expect("GETs") - 900.0 / 1010.0).abs() < 1e-9);
        assert_eq!(rates.get_ns, [Some(512), Some(1024)]);
        assert_eq!(rates.rpc_ns, [Some(2048), Some(u64::MAX)], "without a bound");
        assert!(figures.samples.len() <= 11);
        assert_eq!(figures.curves[0].len(), 28);
    }

    #[test]
    fn a_restart_begins_anew() {
        let (start, mut figures) = (Instant::now(), Figures::default());
        figures.add(sample(start, 100));
        figures.add(sample(start, 101));
        let mut young = sample(start, 102);
        young.stats.insert("start_unix_ms".to_owned(), 2_000);
        figures.add(young);
        assert_eq!((figures.restarts, figures.rates), (1, None));
    }
}
