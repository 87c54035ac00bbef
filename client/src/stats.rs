//! Counters of a client. A GET counts without a contended cache line and without a locked
//! instruction: every thread adds to a shard of its own, and reading sums them.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use onesided_fabric::FabricKind;
use onesided_protocol::control::TableCounts;
use onesided_protocol::latency::{LATENCY_BUCKETS, bucket_of};
use parking_lot::Mutex;
use serde::Serialize;
use thread_local::ThreadLocal;

use crate::core::{Connection, Shared};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Counter {
    /// GETs, each key of a get_many counted.
    Gets,
    /// GETs answered one-sidedly with a value.
    OneSidedHits,
    /// GETs answered one-sidedly with a miss.
    OneSidedMisses,
    /// Rounds that began with a cached bucket.
    CacheHits,
    /// Times that a READ or a batch of READs was waited for.
    RoundTrips,
    /// One-sided READs.
    Reads,
    /// Bytes of them.
    ReadBytes,
    /// Rounds that had to look again.
    Retries,
    /// Forwards followed.
    ForwardHops,
    /// Checksums that did not fit.
    ChecksumFailures,
    /// GETs that asked by RPC.
    RpcGets,
    /// Changes of words by CAS or FAA.
    CounterUpdates,
    /// Times that one of them was waited for.
    CounterRoundTrips,
    /// Those that had to be done again: the word was another one.
    CounterRetries,
    /// PUTs.
    RpcPuts,
    /// DELETEs.
    RpcDeletes,
    /// Appends.
    RpcAppends,
    /// Writes at an offset.
    RpcWritesAt,
    /// Increments.
    RpcIncrements,
    /// Counters changed, or looked for.
    RpcCounters,
    /// Touches.
    RpcTouches,
    /// Pages of scans.
    RpcScans,
    /// Pings.
    RpcPings,
    /// Requests sent, each an answer that is waited for; several operations may share one.
    RpcMessages,
    /// Bytes of requests and answers, values that travelled beside them included.
    RpcBytes,
    /// Requests sent again after a broken connection.
    RpcRetries,
    /// Values that went through staging memory.
    Staged,
    /// Values that the server READ from buffers of the caller's.
    Lent,
    /// One-sided requests that were refused: no memory that this client may use was there.
    AccessErrors,
    /// Connections made after the first one was lost.
    Reconnects,
    /// Connections closed since nobody used them.
    IdleCloses,
    /// Connections over a better fabric than the one before.
    FabricUpgrades,
    /// PUTs that replaced an entry without the server.
    OneSidedPuts,
    /// Times that such a PUT waited for the server's memory.
    UpdateRoundTrips,
    /// Compare-and-swaps of such PUTs that somebody else was faster than.
    UpdatesLost,
}

const COUNTERS: usize = Counter::UpdatesLost as usize + 1;

/// The counters of one thread: nobody else adds to them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Shard {
    counters: [AtomicU64; COUNTERS],
    /// GETs on the fast path: one addition for what [`Self::per_fast_get`] says.
    fast_gets: AtomicU64,
    /// Sampled GETs by how long they took.
    latency: [AtomicU64; LATENCY_BUCKETS],
    latency_ns: AtomicU64,
    /// Odd while the thread is in the middle of a look.
    looks: AtomicU64,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            counters: std::array::from_fn(|_| AtomicU64::default()),
            fast_gets: AtomicU64::default(),
            latency: Default::default(),
            latency_ns: AtomicU64::default(),
            looks: AtomicU64::default(),
        }
    }
}

/// While this lives its thread looks at what may be READ.
pub(crate) struct Look<'a>(&'a Arc<Shard>);

impl Drop for Look<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let looks = &self.0.looks;
        // Released: what it READ is READ.
        looks.store(looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl Shard {
    /// The thread begins a look, and is in none: two plain stores, no fence that the processor
    /// heeds. (Whoever asks whether it is in one makes it heed: `core::operations`.)
    #[inline(always)]
    pub(crate) fn look(self: &Arc<Self>) -> Look<'_> {
        let before = self.looks.load(Ordering::Relaxed);
        debug_assert_eq!(before & 1, 0, "a look in a look");
        self.looks.store(before.wrapping_add(1), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Look(self)
    }

    /// Whether the thread is in the middle of this look.
    pub(crate) fn is_in_look(&self, number: u64) -> bool {
        self.looks.load(Ordering::Acquire) == number
    }

    /// Adds.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        add(&self.counters[counter as usize], n);
    }

    /// `gets` GETs were answered with values by two READs each that are loads.
    #[inline]
    pub(crate) fn fast_gets(&self, gets: u64, read_bytes: u64) {
        add(&self.fast_gets, gets);
        add(&self.counters[Counter::ReadBytes as usize], read_bytes);
    }

    /// A sampled GET took so long.
    pub(crate) fn time(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.latency[bucket_of(ns)], 1);
        add(&self.latency_ns, ns);
    }

    /// Adds what another shard has counted.
    fn add_all(&self, other: &Self) {
        let both = |own: &[AtomicU64], more: &[AtomicU64]| {
            let pairs = own.iter().zip(more);
            pairs.for_each(|(sum, n)| add(sum, n.load(Ordering::Relaxed)));
        };
        both(&self.counters, &other.counters);
        both(&self.latency, &other.latency);
        add(&self.fast_gets, other.fast_gets.load(Ordering::Relaxed));
        add(&self.latency_ns, other.latency_ns.load(Ordering::Relaxed));
    }

    fn per_fast_get(counter: Counter) -> u64 {
        match counter {
            Counter::Gets | Counter::OneSidedHits => 1,
            Counter::RoundTrips | Counter::Reads => 2,
            _ => 0,
        }
    }

    fn get(&self, counter: Counter) -> u64 {
        let fast = self.fast_gets.load(Ordering::Relaxed);
        let counted = self.counters[counter as usize].load(Ordering::Relaxed);
        counted.wrapping_add(fast.wrapping_mul(Self::per_fast_get(counter)))
    }
}

/// One writer: no read-modify-write, which would be a fence between two GETs.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Counters of one table, or of what belongs to none.
#[derive(Default)]
pub(crate) struct Counts {
    shards: ThreadLocal<Arc<Shard>>,
}

impl Counts {
    /// This thread's shard: take it once for several additions.
    #[inline]
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        self.shards.get_or_default()
    }

    /// Adds to one counter.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.shard().add(counter, n);
    }

    /// `reads` READs were made, and waited for once.
    #[inline]
    pub(crate) fn one_sided_read(&self, reads: u64, bytes: u64) {
        let shard = self.shard();
        shard.add(Counter::RoundTrips, 1);
        shard.add(Counter::Reads, reads);
        shard.add(Counter::ReadBytes, bytes);
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.shards.iter().map(|shard| shard.get(counter)).fold(0, u64::wrapping_add)
    }

    fn activity(&self) -> u64 {
        let of = |shard: &Arc<Shard>| {
            let counters = shard.counters.iter().map(|counter| counter.load(Ordering::Relaxed));
            counters.fold(shard.fast_gets.load(Ordering::Relaxed), u64::wrapping_add)
        };
        self.shards.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// The threads that are in the middle of a look, and the number of it.
    fn looks(&self) -> Vec<(Arc<Shard>, u64)> {
        let of = |shard: &Arc<Shard>| {
            let look = shard.looks.load(Ordering::Acquire);
            (look & 1 != 0).then(|| (Arc::clone(shard), look))
        };
        self.shards.iter().filter_map(of).collect()
    }

    /// What the server is told.
    pub(crate) fn told(&self) -> TableCounts {
        let mut counts = TableCounts {
            one_sided_hits: self.sum(Counter::OneSidedHits),
            one_sided_misses: self.sum(Counter::OneSidedMisses),
            rpc_gets: self.sum(Counter::RpcGets),
            reads: self.sum(Counter::Reads),
            round_trips: self.sum(Counter::RoundTrips),
            cache_hits: self.sum(Counter::CacheHits),
            retries: self.sum(Counter::Retries),
            forward_hops: self.sum(Counter::ForwardHops),
            checksum_failures: self.sum(Counter::ChecksumFailures),
            read_bytes: self.sum(Counter::ReadBytes),
            one_sided_puts: self.sum(Counter::OneSidedPuts),
            rpc_puts: self.sum(Counter::RpcPuts),
            lost_swaps: self.sum(Counter::UpdatesLost),
            counter_atomics: self.sum(Counter::CounterUpdates),
            rpc_counters: self.sum(Counter::RpcCounters),
            counter_retries: self.sum(Counter::CounterRetries),
            ..TableCounts::default()
        };
        for shard in self.shards.iter() {
            let times = counts.latency.iter_mut().zip(&shard.latency);
            times.for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
            let ns = shard.latency_ns.load(Ordering::Relaxed);
            counts.latency_ns = counts.latency_ns.wrapping_add(ns);
        }
        counts
    }
}

/// Counts for one client: what its tables count, each for itself, and what belongs to none.
#[derive(Default)]
pub struct ClientStats {
    own: Counts,
    tables: Mutex<Vec<Weak<Counts>>>,
}

impl std::fmt::Debug for ClientStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientStats").finish_non_exhaustive()
    }
}

impl ClientStats {
    /// Adds to one counter.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.own.add(counter, n);
    }

    /// Counters of one more table.
    pub(crate) fn table(&self) -> Arc<Counts> {
        let counts = Arc::<Counts>::default();
        let mut tables = self.tables.lock();
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(&counts));
        counts
    }

    /// A table is gone: what it counted stays.
    pub(crate) fn keep(&self, table: &Arc<Counts>) {
        let mut tables = self.tables.lock();
        tables.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(table)));
        let own = self.own.shard();
        table.shards.iter().for_each(|shard| own.add_all(shard));
    }

    fn over_all<T>(&self, of: impl Fn(&Counts) -> T, sum: impl Fn(T, T) -> T) -> T {
        let tables = self.tables.lock();
        let live = tables.iter().filter_map(Weak::upgrade);
        live.fold(of(&self.own), |so_far, table| sum(so_far, of(&table)))
    }

    /// The sum over all threads and tables.
    #[must_use]
    pub fn sum(&self, counter: Counter) -> u64 {
        self.over_all(|counts| counts.sum(counter), u64::wrapping_add)
    }

    /// Another number after each operation.
    #[must_use]
    pub(crate) fn activity(&self) -> u64 {
        self.over_all(Counts::activity, u64::wrapping_add)
    }

    /// The threads that are in the middle of a look, and the number of it.
    pub(crate) fn looks(&self) -> Vec<(Arc<Shard>, u64)> {
        let both = |mut a: Vec<_>, b| {
            a.extend(b);
            a
        };
        self.over_all(Counts::looks, both)
    }

    /// What the server is told, of all tables together.
    pub(crate) fn told(&self) -> TableCounts {
        let sum = |mut a: TableCounts, b: TableCounts| {
            a.add(&b);
            a
        };
        self.over_all(Counts::told, sum)
    }
}

/// A snapshot of a client's counters, per path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stats {
    /// Fabric in use.
    pub fabric: String,
    /// Why it is no better one, where one was to be tried first.
    pub fallback: Option<String>,
    /// Longest packets of an RDMA connection, in bytes.
    pub path_mtu_bytes: Option<u32>,
    /// Whether there is a connection now: none after a loss, or while nobody uses it.
    pub connected: bool,
    /// GETs, each key of a get_many counted.
    pub gets: u64,
    /// GETs answered one-sidedly with a value.
    pub one_sided_hits: u64,
    /// GETs answered one-sidedly with a miss.
    pub one_sided_misses: u64,
    /// Rounds that began with a cached bucket.
    pub cache_hits: u64,
    /// Times that a READ or a batch of READs was waited for.
    pub round_trips: u64,
    /// One-sided READs.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Rounds that had to look again.
    pub retries: u64,
    /// Forwards followed.
    pub forward_hops: u64,
    /// Checksums that did not fit.
    pub checksum_failures: u64,
    /// About one of 256 GETs is timed: by how long they took, in buckets of powers of two: the
    /// first one up to 128 ns, the last one without bound.
    pub get_latency: [u64; LATENCY_BUCKETS],
    /// How long they took together, in ns.
    pub get_latency_ns: u64,
    /// GETs that asked by RPC.
    pub rpc_gets: u64,
    /// Changes of counters without the server's processor.
    pub counter_updates: u64,
    /// Times that one of them was waited for.
    pub counter_round_trips: u64,
    /// Those that had to be done again: the counter was another one, or changed.
    pub counter_retries: u64,
    /// Counters changed by RPC, or looked for.
    pub rpc_counters: u64,
    /// PUTs.
    pub rpc_puts: u64,
    /// DELETEs.
    pub rpc_deletes: u64,
    /// Appends.
    pub rpc_appends: u64,
    /// Writes at an offset.
    pub rpc_writes_at: u64,
    /// Increments.
    pub rpc_increments: u64,
    /// Touches.
    pub rpc_touches: u64,
    /// Pages of scans.
    pub rpc_scans: u64,
    /// Pings.
    pub rpc_pings: u64,
    /// Requests sent, each an answer that is waited for; several operations may share one.
    pub rpc_messages: u64,
    /// Bytes of requests and answers, values that travelled beside them included. What a fabric
    /// adds is not.
    pub rpc_bytes: u64,
    /// Requests sent again after a broken connection.
    pub rpc_retries: u64,
    /// Values that went through staging memory.
    pub staged: u64,
    /// Values that the server READ from registered buffers of the caller's.
    pub lent: u64,
    /// One-sided requests that the fabric or the server's device refused: outside its regions, or
    /// the right was missing. Over verbs each ends the connection. When a server ends this can be;
    /// otherwise it should not.
    pub access_errors: u64,
    /// Connections made after the first one was lost.
    pub reconnects: u64,
    /// Connections closed since nobody used them; the next operation makes another one.
    pub idle_closes: u64,
    /// Connections over a better fabric than the one before.
    pub fabric_upgrades: u64,
    /// PUTs that replaced an entry without the server.
    pub one_sided_puts: u64,
    /// Times that such a PUT waited for the server's memory before it returned.
    pub update_round_trips: u64,
    /// Compare-and-swaps of such PUTs that somebody else was faster than.
    pub updates_lost: u64,
    /// Bytes of buffers mapped now, in use or kept for later.
    pub buffer_bytes: u64,
    /// Mappings made for buffers so far, each registered once where a device uses it: beside
    /// `reads` the misses of the pool.
    pub buffer_mappings: u64,
    /// Registered buffers of callers' that had been registered before.
    pub registered_hits: u64,
    /// Registered buffers of callers' that were mapped anew, and registered at their first use.
    pub registered_misses: u64,
    /// Bytes of them that nobody has and that wait, registered, to be used again.
    pub registered_idle_bytes: u64,
}

impl Stats {
    pub(crate) fn of(shared: &Shared, fabric: FabricKind, now: Option<&Connection>) -> Self {
        let sum = |counter| shared.stats.sum(counter);
        let told = shared.stats.told();
        let (buffers, parking) = (shared.pool.usage(), shared.parking.usage());
        Self {
            fabric: fabric.to_string(),
            fallback: now.and_then(Connection::fallback).map(str::to_owned),
            path_mtu_bytes: now.and_then(|connection| connection.endpoint().path_mtu_bytes()),
            connected: now.is_some_and(Connection::is_alive),
            gets: sum(Counter::Gets),
            one_sided_hits: sum(Counter::OneSidedHits),
            one_sided_misses: sum(Counter::OneSidedMisses),
            cache_hits: sum(Counter::CacheHits),
            round_trips: sum(Counter::RoundTrips),
            reads: sum(Counter::Reads),
            read_bytes: sum(Counter::ReadBytes),
            retries: sum(Counter::Retries),
            forward_hops: sum(Counter::ForwardHops),
            checksum_failures: sum(Counter::ChecksumFailures),
            get_latency: told.latency,
            get_latency_ns: told.latency_ns,
            rpc_gets: sum(Counter::RpcGets),
            counter_updates: sum(Counter::CounterUpdates),
            counter_round_trips: sum(Counter::CounterRoundTrips),
            counter_retries: sum(Counter::CounterRetries),
            rpc_counters: sum(Counter::RpcCounters),
            rpc_puts: sum(Counter::RpcPuts),
            rpc_deletes: sum(Counter::RpcDeletes),
            rpc_appends: sum(Counter::RpcAppends),
            rpc_writes_at: sum(Counter::RpcWritesAt),
            rpc_increments: sum(Counter::RpcIncrements),
            rpc_touches: sum(Counter::RpcTouches),
            rpc_scans: sum(Counter::RpcScans),
            rpc_pings: sum(Counter::RpcPings),
            rpc_messages: sum(Counter::RpcMessages),
            rpc_bytes: sum(Counter::RpcBytes),
            rpc_retries: sum(Counter::RpcRetries),
            staged: sum(Counter::Staged),
            lent: sum(Counter::Lent),
            access_errors: sum(Counter::AccessErrors),
            reconnects: sum(Counter::Reconnects),
            idle_closes: sum(Counter::IdleCloses),
            fabric_upgrades: sum(Counter::FabricUpgrades),
            one_sided_puts: sum(Counter::OneSidedPuts),
            update_round_trips: sum(Counter::UpdateRoundTrips),
            updates_lost: sum(Counter::UpdatesLost),
            buffer_bytes: buffers.mapped_bytes as u64,
            buffer_mappings: buffers.chunks_made,
            registered_hits: parking.hits,
            registered_misses: parking.misses,
            registered_idle_bytes: parking.parked_bytes as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: u64 = 40;

    #[test]
    fn threads_add_up() {
        let stats = ClientStats::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..100).for_each(|_| stats.add(Counter::Gets, 1)));
            }
        });
        assert_eq!(stats.sum(Counter::Gets), THREADS * 100);
        assert_eq!(stats.sum(Counter::Reads), 0);
    }

    #[test]
    fn a_fast_get_counts_as_what_it_is() {
        let stats = ClientStats::default();
        let table = stats.table();
        table.add(Counter::Gets, 5);
        table.shard().fast_gets(3, 1000);
        let sums = [Counter::Gets, Counter::OneSidedHits, Counter::Reads, Counter::ReadBytes];
        assert_eq!(sums.map(|counter| stats.sum(counter)), [8, 3, 6, 1000]);
    }

    #[test]
    fn what_tables_counted_stays_when_they_go() {
        let stats = ClientStats::default();
        for n in 1..=10 {
            let table = stats.table();
            table.shard().fast_gets(n, 100);
            table.add(Counter::Retries, 1);
            table.add(Counter::OneSidedPuts, 2);
            table.add(Counter::UpdatesLost, 3);
            table.add(Counter::CounterUpdates, 4);
            table.shard().time(Duration::from_nanos(200));
            let before = stats.told();
            stats.keep(&table);
            assert_eq!(stats.told(), before);
        }
        let told = stats.told();
        assert_eq!((told.one_sided_hits, told.retries, told.read_bytes), (55, 10, 1000));
        assert_eq!((told.latency[1], told.latency_ns), (10, 2000));
        assert_eq!((told.one_sided_puts, told.lost_swaps, told.counter_atomics), (20, 30, 40));
        assert_eq!(stats.sum(Counter::Gets), 55);
        assert!(stats.tables.lock().is_empty());
    }
}
