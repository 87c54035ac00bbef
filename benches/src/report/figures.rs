//! Numbers of a phase, as all reports show them.

use hdrhistogram::Histogram;

use crate::run::measure::{Measure, OfKind};
use crate::run::phase::Measured;
use crate::workload::operations::Kind;

/// Quantiles that every report has, with their names in JSON.
pub const QUANTILES: [(&str, f64); 5] = [
    ("p50_us", 0.5),
    ("p95_us", 0.95),
    ("p99_us", 0.99),
    ("p99_9_us", 0.999),
    ("p99_99_us", 0.9999),
];

/// A quantile in microseconds.
#[must_use]
pub fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

/// From the intended start in an open loop, else from the start.
#[must_use]
pub fn told(of_kind: &OfKind) -> &Histogram<u64> {
    if of_kind.intended.is_empty() { &of_kind.latencies } else { &of_kind.intended }
}

/// Kinds of operations that there were.
pub fn kinds(measure: &Measure) -> impl Iterator<Item = (Kind, &OfKind)> {
    let all = Kind::ALL.into_iter().zip(&measure.kinds);
    all.filter(|(_, of_kind)| of_kind.count + of_kind.failed > 0)
}

/// Of the reads that were answered, the part that found a record; `None` if there were none.
#[must_use]
pub fn hit_ratio(measure: &Measure) -> Option<f64> {
    let reads = &measure.kinds[Kind::Read as usize];
    let answered = reads.count + reads.absent;
    (answered > 0).then(|| reads.count as f64 / answered as f64)
}

/// Latencies of all kinds together.
#[must_use]
pub fn all(measure: &Measure) -> Histogram<u64> {
    let mut all = crate::run::series::histogram(3);
    for (_, of_kind) in kinds(measure) {
        // The bounds are the same.
        let _ = all.add(told(of_kind));
    }
    all
}

/// How evenly threads came to their turns: the fewest operations of one, and the most. `None` if
/// there was only one.
#[must_use]
pub fn fewest_and_most(measured: &Measured) -> Option<(u64, u64)> {
    let by_thread = &measured.by_thread;
    let (fewest, most) = (by_thread.iter().min()?, by_thread.iter().max()?);
    (by_thread.len() > 1).then_some((*fewest, *most))
}

/// What an operation cost, where it is known.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Costs {
    /// Round trips of an operation.
    pub round_trips: Option<f64>,
    /// Bytes both ways of an operation, of READs and of messages.
    pub bytes: Option<f64>,
    /// Bytes of the one-sided READs of an operation.
    pub read_bytes: Option<f64>,
    /// One-sided READs of an operation.
    pub one_sided_reads: Option<f64>,
    /// Of the GETs, the part that the server's CPU had nothing to do with.
    pub one_sided_share: Option<f64>,
    /// Of the GETs, the part whose bucket was cached.
    pub cache_hit_share: Option<f64>,
    /// GETs that had to look again, of all operations.
    pub retries: Option<u64>,
    /// Requests that the server answered, of an operation.
    pub rpcs: Option<f64>,
    /// PUTs that the server's CPU had nothing to do with, of all operations.
    pub one_sided_puts: Option<f64>,
    /// Round trips of one of them before it returned.
    pub update_round_trips: Option<f64>,
    /// Compare-and-swaps of theirs that others were faster than.
    pub updates_lost: Option<u64>,
    /// CPU seconds of the server for a million operations.
    pub server_cpu_s_per_million: Option<f64>,
    /// CPU microseconds of this process for an operation.
    pub client_cpu_us: f64,
}

impl Costs {
    /// Of a phase.
    #[must_use]
    pub fn of(measured: &Measured) -> Self {
        let operations = measured.measure.operations().max(1) as f64;
        let counters = &measured.counters;
        let per_operation = |count: Option<u64>| count.map(|count| count as f64 / operations);
        let of_gets = |count: Option<u64>| {
            let gets = counters.gets.filter(|gets| *gets > 0)?;
            Some(count? as f64 / gets as f64)
        };
        let of_puts = |count: Option<u64>| {
            let puts = counters.one_sided_puts.filter(|puts| *puts > 0)?;
            Some(count? as f64 / puts as f64)
        };
        let server = measured.usage.map(|usage| usage.cpu_seconds * 1e6 / operations);
        Self {
            round_trips: per_operation(counters.round_trips),
            bytes: per_operation(counters.bytes),
            read_bytes: per_operation(counters.read_bytes),
            one_sided_reads: per_operation(counters.one_sided_reads),
            one_sided_share: of_gets(counters.one_sided),
            cache_hit_share: of_gets(counters.cache_hits),
            retries: counters.retries,
            rpcs: per_operation(counters.rpcs),
            one_sided_puts: per_operation(counters.one_sided_puts),
            update_round_trips: of_puts(counters.update_round_trips),
            updates_lost: counters.updates_lost,
            server_cpu_s_per_million: server,
            client_cpu_us: measured.client_cpu.as_secs_f64() * 1e6 / operations,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::measure::{Status, Times};
    use crate::target::{Counters, Usage};

    /// 100 reads of 1 to 100 us in two seconds, and two of nothing.
    pub(crate) fn measured() -> Measured {
        let mut measure = Measure::new();
        for us in 1..=100 {
            let times = Times { intended_ns: None, began_ns: 0, ended_ns: us * 1000 };
            measure.record(Kind::Read, Status::Ok, Some(times));
        }
        for _ in 0..2 {
            measure.record(Kind::Read, Status::Absent, None);
        }
        let counters = Counters {
            round_trips: Some(204),
            gets: Some(50),
            one_sided: Some(25),
            one_sided_puts: Some(51),
            update_round_trips: Some(102),
            ..Counters::default()
        };
        Measured {
            measure,
            seconds: vec![],
            elapsed: Duration::from_secs(2),
            client_cpu: Duration::from_micros(102),
            by_thread: vec![40, 62],
            usage: Some(Usage { process: 1, cpu_seconds: 0.5, resident_bytes: 1 << 20 }),
            counters,
            broken: None,
        }
    }

    #[test]
    fn costs_are_of_an_operation() {
        let costs = Costs::of(&measured());
        assert_eq!((costs.round_trips, costs.bytes), (Some(2.0), None));
        assert_eq!((costs.one_sided_share, costs.cache_hit_share), (Some(0.5), None));
        assert_eq!(costs.client_cpu_us, 1.0);
        assert_eq!((costs.one_sided_puts, costs.update_round_trips), (Some(0.5), Some(2.0)));
        assert_eq!(fewest_and_most(&measured()), Some((40, 62)));
        assert_eq!(fewest_and_most(&Measured { by_thread: vec![9], ..measured() }), None);
        assert_eq!(hit_ratio(&measured().measure), Some(100.0 / 102.0));
        assert_eq!(measured().throughput(), 51.0);
        assert!((costs.server_cpu_s_per_million.unwrap_or(0.0) - 0.5e6 / 102.0).abs() < 1e-6);
        assert!((99.0..101.0).contains(&quantile_us(&all(&measured().measure), 1.0)));
    }
}
