//! What happened in each second, for all threads together.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Seconds that are kept as histograms; older ones become figures.
const OPEN_SECONDS: usize = 4;

/// A histogram of nanoseconds up to a minute, with so many digits.
#[must_use]
pub fn histogram(digits: u8) -> Histogram<u64> {
    const LONGEST_NS: u64 = 60_000_000_000;
    // Only digits beyond 5 and empty ranges are refused.
    Histogram::new_with_bounds(1, LONGEST_NS, digits.min(5)).unwrap_or_else(|_| fallback())
}

fn fallback() -> Histogram<u64> {
    Histogram::new(3).unwrap_or_else(|error| panic!("a histogram of three digits: {error}"))
}

/// One second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Second {
    /// How much of it there was: 1, but for the last.
    pub seconds: f64,
    /// Operations that ended in it.
    pub operations: u64,
    /// Median latency in ns.
    pub p50_ns: u64,
    /// 99 of 100 took at most this, in ns.
    pub p99_ns: u64,
    /// The longest, in ns.
    pub max_ns: u64,
}

impl Default for Second {
    fn default() -> Self {
        Self { seconds: 1.0, operations: 0, p50_ns: 0, p99_ns: 0, max_ns: 0 }
    }
}

/// All seconds of a run.
#[derive(Default)]
pub struct Series(Mutex<Seconds>);

#[derive(Default)]
struct Seconds {
    open: BTreeMap<usize, (u64, Histogram<u64>)>,
    closed: Vec<Second>,
}

impl Series {
    /// Adds what one thread did in a second: operations, and the latencies of those that were
    /// timed.
    pub fn add(&self, second: usize, operations: u64, latencies: &Histogram<u64>) {
        let mut seconds = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(closed) = seconds.closed.get_mut(second) {
            // A thread that was stuck for long: the figures of that second are made.
            closed.operations += operations;
            return;
        }
        let open = seconds.open.entry(second).or_insert_with(|| (0, histogram(2)));
        open.0 += operations;
        // The bounds are the same.
        let _ = open.1.add(latencies);
        while seconds.open.len() > OPEN_SECONDS {
            seconds.close_first();
        }
    }

    /// All seconds of a run that was so long. The last one is seldom a whole one.
    #[must_use]
    pub fn of(&self, elapsed: Duration) -> Vec<Second> {
        let mut seconds = self.seconds();
        let before = seconds.len().saturating_sub(1) as f64;
        if let Some(last) = seconds.last_mut() {
            last.seconds = (elapsed.as_secs_f64() - before).clamp(0.0, 1.0);
        }
        seconds
    }

    /// All seconds up to now, also those without operations.
    #[must_use]
    pub fn seconds(&self) -> Vec<Second> {
        let seconds = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut all = seconds.closed.clone();
        for (second, (operations, latencies)) in &seconds.open {
            all.resize((*second).max(all.len()), Second::default());
            all.push(figures(*operations, latencies));
        }
        all
    }
}

impl Seconds {
    fn close_first(&mut self) {
        let Some((second, (operations, latencies))) = self.open.pop_first() else { return };
        self.closed.resize(second, Second::default());
        self.closed.push(figures(operations, &latencies));
    }
}

fn figures(operations: u64, latencies: &Histogram<u64>) -> Second {
    Second {
        seconds: 1.0,
        operations,
        p50_ns: latencies.value_at_quantile(0.5),
        p99_ns: latencies.value_at_quantile(0.99),
        max_ns: latencies.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_all_threads_add_up_and_gaps_are_shown() {
        let series = Series::default();
        let mut latencies = histogram(2);
        latencies.saturating_record(100);
        for second in [0, 0, 1, 3, 4, 5, 6, 7, 9] {
            series.add(second, 10, &latencies);
        }
        // A late thread.
        series.add(1, 5, &latencies);
        let operations: Vec<u64> = series.seconds().iter().map(|one| one.operations).collect();
        assert_eq!(operations, [20, 15, 0, 10, 10, 10, 10, 10, 0, 10]);
        assert!(series.seconds()[0].p50_ns >= 100);
        let lengths = |ms| series.of(Duration::from_millis(ms)).into_iter().map(|one| one.seconds);
        assert!(lengths(9_250).eq([&[1.0; 9][..], &[0.25]].concat()));
        assert!(lengths(11_000).eq([1.0; 10]));
    }
}
