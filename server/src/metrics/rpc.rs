//! What one poller counts of the requests that it serves: its own memory, so that an addition is
//! neither a locked instruction nor a line of the cache that others write.

use std::sync::atomic::{AtomicU64, Ordering};

use onesided_protocol::latency::{LATENCY_BUCKETS, bucket_of};
use onesided_protocol::rpc::{ErrorCode, Op, Reply, RpcError};

/// Operations, by name.
pub(crate) const VERBS: [&str; 14] = [
    "ping",
    "get",
    "put",
    "delete",
    "append",
    "increment",
    "touch",
    "batch",
    "write_at",
    "scan",
    "lease",
    "seal",
    "linked",
    "counter",
];
/// `ok`; `miss`: there was nothing; `unmet`: the condition was not met; `failed`: all else.
pub(crate) const CLASSES: [&str; 4] = ["ok", "miss", "unmet", "failed"];

/// Position in [`VERBS`].
pub(crate) fn verb(op: &Op<'_>) -> usize {
    match op {
        Op::Ping => 0,
        Op::Get { .. } => 1,
        Op::Put { .. } => 2,
        Op::Delete { .. } => 3,
        Op::Append { .. } => 4,
        Op::Increment { .. } => 5,
        Op::Touch { .. } => 6,
        Op::Batch(_) => 7,
        Op::WriteAt { .. } => 8,
        Op::Scan { .. } => 9,
        Op::Lease { .. } => 10,
        Op::Seal { .. } => 11,
        Op::Linked { .. } => 12,
        Op::Counter { .. } => 13,
    }
}

/// A histogram of durations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Latency {
    /// By bucket (`onesided_protocol::latency`).
    pub(crate) counts: [u64; LATENCY_BUCKETS],
    pub(crate) sum_ns: u64,
}

impl Latency {
    /// Adds another one. Sums that clients report may be anything.
    pub(crate) fn add(&mut self, other: &Self) {
        let both = self.counts.iter_mut().zip(other.counts);
        both.for_each(|(count, more)| *count = count.saturating_add(more));
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// One thread adds to it: no read-modify-write.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

#[derive(Debug, Default)]
struct Times {
    counts: [AtomicU64; LATENCY_BUCKETS],
    sum_ns: AtomicU64,
}

/// What one poller has counted. Only its thread may add.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RpcShard {
    results: [[AtomicU64; CLASSES.len()]; VERBS.len()],
    times: [Times; VERBS.len()],
    slow: AtomicU64,
}

impl RpcShard {
    /// Counts an operation by what came of it.
    pub(crate) fn count(&self, op: &Op<'_>, result: Result<&Reply<'_>, &RpcError>) {
        let class = match result {
            Ok(Reply::Absent) => 1,
            Ok(_) => 0,
            Err(error) if error.code == ErrorCode::Unexpected => 2,
            Err(_) => 3,
        };
        add(&self.results[verb(op)][class], 1);
    }

    /// Counts an operation that gave what it was to give.
    pub(crate) fn ok(&self, op: &Op<'_>) {
        add(&self.results[verb(op)][0], 1);
    }

    /// A request was served in so many ns.
    pub(crate) fn time(&self, verb: usize, ns: u64) {
        let times = &self.times[verb];
        add(&times.counts[bucket_of(ns)], 1);
        add(&times.sum_ns, ns);
    }

    /// It took too long.
    pub(crate) fn slow(&self) {
        add(&self.slow, 1);
    }
}

/// The sum over pollers.
#[derive(Clone, Default, Debug)]
pub(crate) struct RpcCounts {
    /// By operation and class.
    pub(crate) results: [[u64; CLASSES.len()]; VERBS.len()],
    /// By operation.
    pub(crate) times: [Latency; VERBS.len()],
    pub(crate) slow: u64,
}

impl RpcCounts {
    pub(crate) fn add(&mut self, shard: &RpcShard) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (sums, counters) in self.results.iter_mut().zip(&shard.results) {
            sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += of(counter));
        }
        for (sum, times) in self.times.iter_mut().zip(&shard.times) {
            sum.add(&Latency {
                counts: times.counts.each_ref().map(of),
                sum_ns: of(&times.sum_ns),
            });
        }
        self.slow += of(&shard.slow);
    }
}
