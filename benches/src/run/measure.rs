//! What one thread measures.

use hdrhistogram::Histogram;

use super::history::Verdicts;
use super::series::{Series, histogram};
use crate::workload::operations::Kind;

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// No answer has come.
    Pending,
    /// As it should.
    Ok,
    /// There was no such record.
    Absent,
    /// It did not succeed.
    Failed,
}

/// Latencies of one kind of operation.
pub struct OfKind {
    /// Operations that succeeded, timed or not.
    pub count: u64,
    /// Operations that did not; those that found no record are among them.
    pub failed: u64,
    /// Operations that found no record.
    pub absent: u64,
    /// Successful ones from when they began, in ns.
    pub latencies: Histogram<u64>,
    /// Successful ones from when they should have begun, in ns; empty in a closed loop.
    pub intended: Histogram<u64>,
    /// Failed ones from when they began, in ns.
    pub failures: Histogram<u64>,
}

impl OfKind {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        let [latencies, intended, failures] = [(); 3].map(|()| histogram(3));
        Self { count: 0, failed: 0, absent: 0, latencies, intended, failures }
    }

    /// One is over. Its latency in ns as reports tell it, if it was timed.
    #[inline]
    fn record(&mut self, status: Status, times: Option<Times>) -> Option<u64> {
        let histogram = if status == Status::Ok {
            self.count += 1;
            &mut self.latencies
        } else {
            self.failed += 1;
            self.absent += u64::from(status == Status::Absent);
            &mut self.failures
        };
        let times = times?;
        let ns = times.ended_ns.saturating_sub(times.began_ns);
        histogram.saturating_record(ns);
        let (Some(intended_ns), Status::Ok) = (times.intended_ns, status) else {
            return Some(ns);
        };
        let told = times.ended_ns.saturating_sub(intended_ns);
        self.intended.saturating_record(told);
        Some(told)
    }

    /// Adds others of the kind.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.failed += other.failed;
        self.absent += other.absent;
        // The bounds are the same.
        let _ = self.latencies.add(&other.latencies);
        let _ = self.intended.add(&other.intended);
        let _ = self.failures.add(&other.failures);
    }
}

impl Default for OfKind {
    fn default() -> Self {
        Self::new()
    }
}

/// When an operation began and ended, in ns after the start of all.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When it should have begun, in an open loop.
    pub intended_ns: Option<u64>,
    /// When it began.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

/// All that one thread has measured, and then all threads together.
pub struct Measure {
    /// By kind.
    pub kinds: [OfKind; Kind::ALL.len()],
    /// Reads and updates that read-modify-writes were made of: YCSB counts them among its own.
    pub halves: [OfKind; 2],
    /// With verification.
    pub verdicts: Verdicts,
    /// First message of a failure.
    pub first_failure: Option<String>,
    /// What the target cannot do at all.
    pub unsupported: Option<Kind>,
    /// What ended the thread before its time.
    pub broken: Option<String>,
    /// One of so many batches was timed.
    pub timed_one_of: u64,
    /// When the last operation ended, in ns after the start.
    pub ended_ns: u64,
    /// The fewest operations that ended in a whole second; `None` if there was none.
    pub fewest_in_a_second: Option<u64>,
    /// Operations of the second under way.
    in_second: u64,
    second: usize,
    second_latencies: Histogram<u64>,
}

impl Measure {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kinds: Kind::ALL.map(|_| OfKind::new()),
            halves: [OfKind::new(), OfKind::new()],
            verdicts: Verdicts::default(),
            first_failure: None,
            unsupported: None,
            broken: None,
            timed_one_of: 1,
            ended_ns: 0,
            fewest_in_a_second: None,
            in_second: 0,
            second: 0,
            second_latencies: histogram(2),
        }
    }

    /// An operation is over.
    #[inline]
    pub fn record(&mut self, kind: Kind, status: Status, times: Option<Times>) {
        self.in_second += 1;
        if let Some(told) = self.kinds[kind as usize].record(status, times) {
            self.second_latencies.saturating_record(told);
        }
    }

    /// A read-modify-write is over: its read at `read_ns`, with `read`; its update, if there was
    /// one, at the end.
    #[cold]
    pub fn record_halves(
        &mut self,
        read: Status,
        status: Status,
        read_ns: u64,
        times: Option<Times>,
    ) {
        let [reads, updates] = &mut self.halves;
        reads.record(read, times.map(|times| Times { ended_ns: read_ns, ..times }));
        if read == Status::Ok {
            updates.record(status, times.map(|times| Times { began_ns: read_ns, ..times }));
        }
    }

    /// Tells the series of what is over when a second is; what is recorded next ended now.
    #[inline]
    pub fn tick(&mut self, now_ns: u64, series: &Series) {
        self.ended_ns = now_ns;
        if now_ns / 1_000_000_000 != self.second as u64 {
            self.end_second((now_ns / 1_000_000_000) as usize, series);
        }
    }

    #[cold]
    fn end_second(&mut self, next: usize, series: &Series) {
        // In seconds between them nothing ended.
        let fewest = if next > self.second + 1 { 0 } else { self.in_second };
        self.fewest_in_a_second = fewer(self.fewest_in_a_second, Some(fewest));
        self.flush(series);
        self.second = next;
    }

    /// Tells the series of what it does not know yet.
    #[cold]
    pub fn flush(&mut self, series: &Series) {
        if self.in_second > 0 {
            series.add(self.second, self.in_second, &self.second_latencies);
        }
        self.in_second = 0;
        self.second_latencies.reset();
    }

    /// Adds what another thread measured.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in self.kinds.iter_mut().zip(&other.kinds) {
            own.merge(other);
        }
        for (own, other) in self.halves.iter_mut().zip(&other.halves) {
            own.merge(other);
        }
        self.verdicts.merge(&other.verdicts);
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        self.fewest_in_a_second = fewer(self.fewest_in_a_second, other.fewest_in_a_second);
        self.timed_one_of = self.timed_one_of.max(other.timed_one_of);
        self.unsupported = self.unsupported.or(other.unsupported);
        if self.broken.is_none() {
            self.broken.clone_from(&other.broken);
        }
        if self.first_failure.is_none() {
            self.first_failure.clone_from(&other.first_failure);
        }
    }

    /// Operations of all kinds, failed ones too.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.kinds.iter().map(|of_kind| of_kind.count + of_kind.failed).sum()
    }

    /// Those of them that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.kinds.iter().map(|of_kind| of_kind.failed).sum()
    }

    /// Those of them that found no record.
    #[must_use]
    pub fn absent(&self) -> u64 {
        self.kinds.iter().map(|of_kind| of_kind.absent).sum()
    }
}

/// The less of two figures, of which there may be one or none.
fn fewer(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl Default for Measure {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_latencies_are_kept_and_failures_apart() {
        let mut measure = Measure::new();
        let times = Times { intended_ns: Some(1000), began_ns: 5000, ended_ns: 6000 };
        measure.record(Kind::Read, Status::Ok, Some(times));
        measure.record(Kind::Read, Status::Absent, Some(times));
        measure.record(Kind::Read, Status::Ok, None);
        let mut all = Measure::new();
        all.merge(&measure);
        all.merge(&measure);
        let read = &all.kinds[Kind::Read as usize];
        assert_eq!((read.count, read.failed, read.absent), (4, 2, 2));
        assert_eq!((read.latencies.len(), read.intended.len(), read.failures.len()), (2, 2, 2));
        assert!((1000..1010).contains(&read.latencies.max()));
        assert!((5000..5010).contains(&read.intended.max()));
        assert_eq!((all.operations(), all.failed()), (6, 2));
    }

    #[test]
    fn the_poorest_whole_second_of_a_thread_counts_and_empty_ones_are_seconds() {
        let series = Series::default();
        // What ends at these times, in ms; the rest of the last second is none.
        let of = |ends_ms: &[u64], over_ms: u64| {
            let mut measure = Measure::new();
            for ms in ends_ms {
                measure.tick(ms * 1_000_000, &series);
                measure.record(Kind::Update, Status::Ok, None);
            }
            measure.tick(over_ms * 1_000_000, &series);
            measure
        };
        let steady = of(&[100, 900, 1100, 1200, 1300, 2100], 2500);
        assert_eq!(steady.fewest_in_a_second, Some(2));
        assert_eq!(of(&[100, 900, 1100], 2000).fewest_in_a_second, Some(1));
        assert_eq!(of(&[100, 200], 900).fewest_in_a_second, None);
        let stuck = of(&[100, 900, 2100], 3000);
        assert_eq!(stuck.fewest_in_a_second, Some(0), "nothing in the second between");
        let mut all = Measure::new();
        all.merge(&steady);
        assert_eq!(all.fewest_in_a_second, Some(2));
        all.merge(&stuck);
        assert_eq!(all.fewest_in_a_second, Some(0));
    }
}
