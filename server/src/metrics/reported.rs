//! Sums of what clients report, by table. They stay when clients and tables go.

use std::time::Instant;

use onesided_protocol::control::TableCounts;
use parking_lot::Mutex;

use super::labels::TABLES_SHOWN_MAX;

/// What one client may have counted of anything in a second, over all its threads: more than any
/// host does.
const COUNTED_PER_S: u64 = 1 << 30;
/// Bytes that one READ may stand for on average, beyond which a claim is cut: 256 GiB a second.
const BYTES_PER_COUNT: u64 = 256;
/// Threads whose time a second of latencies may add up to.
const NS_PER_COUNT: u64 = 1024;
/// What a session may claim at its begin, and what it may save up, in seconds.
const FIRST_S: u64 = 10;
const SAVED_MAX_S: u64 = 3600;

/// What a session may claim to have counted until now.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u64,
    since: Instant,
}

impl Allowance {
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: FIRST_S * COUNTED_PER_S, since: now }
    }

    /// Cuts a claim to what is possible; says whether that changed it.
    pub(crate) fn cut(&mut self, claim: &mut TableCounts, now: Instant) -> bool {
        let passed_us = now.saturating_duration_since(self.since).as_micros();
        let more = passed_us.saturating_mul(COUNTED_PER_S.into()) / 1_000_000;
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        self.since = now;
        self.left = self.left.saturating_add(more).min(SAVED_MAX_S * COUNTED_PER_S);
        let claimed = *claim;
        let left = self.left;
        claim.events_mut().for_each(|count| *count = left.min(*count));
        claim.read_bytes = claim.read_bytes.min(left.saturating_mul(BYTES_PER_COUNT));
        claim.latency_ns = claim.latency_ns.min(left.saturating_mul(NS_PER_COUNT));
        let most = claim.events_mut().map(|count| *count).max().unwrap_or(0);
        self.left -= most.max(claim.read_bytes / BYTES_PER_COUNT);
        *claim != claimed
    }
}

/// By number of the table's label.
#[derive(Debug)]
pub(crate) struct Reported {
    sums: Vec<Mutex<Option<TableCounts>>>,
}

impl Default for Reported {
    fn default() -> Self {
        Self { sums: (0..=TABLES_SHOWN_MAX).map(|_| Mutex::default()).collect() }
    }
}

impl Reported {
    /// A client counted this since it said so last.
    pub(crate) fn add(&self, label: usize, more: &TableCounts) {
        let mut sum = self.sums[label].lock();
        sum.get_or_insert_default().add(more);
    }

    /// What was reported of a table, if anything ever was.
    pub(crate) fn of(&self, label: usize) -> Option<TableCounts> {
        *self.sums[label].lock()
    }

    /// Over all tables.
    pub(crate) fn total(&self) -> TableCounts {
        let mut total = TableCounts::default();
        self.sums.iter().filter_map(|sum| *sum.lock()).for_each(|sum| total.add(&sum));
        total
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn claims_are_cut_to_what_is_possible() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let honest =
            TableCounts { reads: 2_000_000, one_sided_hits: 1_000_000, ..Default::default() };
        let mut claim = honest;
        assert!(!allowance.cut(&mut claim, start + Duration::from_secs(1)));
        assert_eq!(claim, honest);
        let mut sum = TableCounts::default();
        for second in 2..100 {
            let mut claim = TableCounts {
                reads: u64::MAX,
                one_sided_puts: u64::MAX,
                counter_atomics: u64::MAX,
                read_bytes: u64::MAX,
                latency: [u64::MAX; 18],
                latency_ns: u64::MAX,
                ..Default::default()
            };
            assert!(allowance.cut(&mut claim, start + Duration::from_secs(second)));
            sum.add(&claim);
        }
        for events in [sum.reads, sum.one_sided_puts, sum.counter_atomics] {
            assert!(events <= (100 + FIRST_S) * COUNTED_PER_S, "{events}");
        }
        assert!(sum.read_bytes <= (100 + FIRST_S) * COUNTED_PER_S * BYTES_PER_COUNT);
        // Time that does not pass, or goes back, gives nothing.
        let mut claim = TableCounts { reads: 1, ..Default::default() };
        assert!(allowance.cut(&mut claim, start));
        assert_eq!(claim.reads, 0);
    }
}
