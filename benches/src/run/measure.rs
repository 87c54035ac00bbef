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
    fn new() -> Self {
        let [latencies, intended, failures] = [(); 3].map(|()| histogram(3));
        Self { count: 0, failed: 0, absent: 0, latencies, intended, failures }
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.failed += other.failed;
        self.absent += other.absent;
        // The bounds are the same.
        let _ = self.latencies.add(&other.latencies);
        let _ = self.intended.add(&other.intended);
        let _ = self.failures.add(&other.failures);
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
    /// With verification.
    pub verdicts: Verdicts,
    /// First message of a failure.
    pub first_failure: Option<String>,
    /// What the target cannot do at all.
    pub unsupported: Option<Kind>,
    /// One of so many batches was timed.
    pub timed_one_of: u64,
    /// When the last operation ended, in ns after the start.
    pub ended_ns: u64,
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
            verdicts: Verdicts::default(),
            first_failure: None,
            unsupported: None,
            timed_one_of: 1,
            ended_ns: 0,
            in_second: 0,
            second: 0,
            second_latencies: histogram(2),
        }
    }

    /// An operation is over.
    #[inline]
    pub fn record(&mut self, kind: Kind, status: Status, times: Option<Times>) {
        let of_kind = &mut self.kinds[kind as usize];
        self.in_second += 1;
        let histogram = if status == Status::Ok {
            of_kind.count += 1;
            &mut of_kind.latencies
        } else {
            of_kind.failed += 1;
            of_kind.absent += u64::from(status == Status::Absent);
            &mut of_kind.failures
        };
        let Some(times) = times else { return };
        let ns = times.ended_ns - times.began_ns;
        histogram.saturating_record(ns);
        let mut told = ns;
        if let (Some(intended_ns), Status::Ok) = (times.intended_ns, status) {
            told = times.ended_ns.saturating_sub(intended_ns);
            of_kind.intended.saturating_record(told);
        }
        self.second_latencies.saturating_record(told);
    }

    /// Tells the series of what is over when a second is.
    #[inline]
    pub fn tick(&mut self, now_ns: u64, series: &Series) {
        self.ended_ns = now_ns;
        if now_ns / 1_000_000_000 != self.second as u64 {
            self.flush(series);
            self.second = (now_ns / 1_000_000_000) as usize;
        }
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
        self.verdicts.merge(&other.verdicts);
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        self.timed_one_of = self.timed_one_of.max(other.timed_one_of);
        self.unsupported = self.unsupported.or(other.unsupported);
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
}
