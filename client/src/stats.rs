//! Counters of a client. A GET counts without a contended cache line and without a locked
//! instruction: every thread adds to a shard of its own, and reading sums them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use onesided_fabric::FabricKind;
use onesided_protocol::control::Heartbeat;
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
    /// Touches.
    RpcTouches,
    /// Pings.
    RpcPings,
    /// Requests sent again after a broken connection.
    RpcRetries,
    /// Values that went through staging memory.
    Staged,
    /// Values that the server READ from buffers of the caller's.
    Lent,
    /// Connections made after the first one was lost.
    Reconnects,
    /// Connections closed since nobody used them.
    IdleCloses,
    /// Connections over a better fabric than the one before.
    FabricUpgrades,
}

const COUNTERS: usize = Counter::FabricUpgrades as usize + 1;

/// The counters of one thread: nobody else adds to them.
#[derive(Default, Debug)]
#[repr(align(128))]
pub struct Shard {
    counters: [AtomicU64; COUNTERS],
    /// GETs on the fast path: one addition for what [`Self::per_fast_get`] says.
    fast_gets: AtomicU64,
    /// Odd while the thread is in the middle of a look.
    looks: AtomicU64,
}

/// While this lives its thread looks at what may be READ.
pub(crate) struct Look<'a> {
    looks: &'a AtomicU64,
    number: u64,
}

impl Drop for Look<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Released: what it READ is READ.
        self.looks.store(self.number + 1, Ordering::Release);
    }
}

impl Shard {
    /// The thread begins a look: two plain stores, no fence that the processor heeds. (Whoever asks
    /// whether it is in one makes it heed: `core::operations`.) `None`: it is in one already.
    #[inline(always)]
    pub(crate) fn look(&self) -> Option<Look<'_>> {
        let before = self.looks.load(Ordering::Relaxed);
        if before & 1 != 0 {
            return None;
        }
        let number = before + 1;
        self.looks.store(number, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(Look { looks: &self.looks, number })
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

/// Counts for one client.
#[derive(Default)]
pub struct ClientStats {
    shards: ThreadLocal<Arc<Shard>>,
}

impl std::fmt::Debug for ClientStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientStats").finish_non_exhaustive()
    }
}

impl ClientStats {
    /// This thread's shard: take it once for several additions.
    #[inline]
    #[must_use]
    pub fn shard(&self) -> &Arc<Shard> {
        self.shards.get_or_default()
    }

    /// Adds to one counter.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.shard().add(counter, n);
    }

    /// `reads` READs were made, and waited for once.
    #[inline]
    pub fn one_sided_read(&self, reads: u64, bytes: u64) {
        let shard = self.shard();
        shard.add(Counter::RoundTrips, 1);
        shard.add(Counter::Reads, reads);
        shard.add(Counter::ReadBytes, bytes);
    }

    /// A round began with a cached bucket.
    #[inline]
    pub fn cache_hit(&self) {
        self.add(Counter::CacheHits, 1);
    }

    /// A round had to look again.
    #[inline]
    pub fn retry(&self) {
        self.add(Counter::Retries, 1);
    }

    /// A forward was followed.
    #[inline]
    pub fn forward_hop(&self) {
        self.add(Counter::ForwardHops, 1);
    }

    /// A checksum did not fit.
    #[inline]
    pub fn checksum_failure(&self) {
        self.add(Counter::ChecksumFailures, 1);
    }

    /// The sum over all threads.
    #[must_use]
    pub fn sum(&self, counter: Counter) -> u64 {
        self.shards.iter().map(|shard| shard.get(counter)).fold(0, u64::wrapping_add)
    }

    /// Another number after each operation.
    #[must_use]
    pub(crate) fn activity(&self) -> u64 {
        let of = |shard: &Arc<Shard>| {
            let counters = shard.counters.iter().map(|counter| counter.load(Ordering::Relaxed));
            counters.fold(shard.fast_gets.load(Ordering::Relaxed), u64::wrapping_add)
        };
        self.shards.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// The threads that are in the middle of a look, and the number of it.
    pub(crate) fn looks(&self) -> Vec<(Arc<Shard>, u64)> {
        let of = |shard: &Arc<Shard>| {
            let look = shard.looks.load(Ordering::Acquire);
            (look & 1 != 0).then(|| (Arc::clone(shard), look))
        };
        self.shards.iter().filter_map(of).collect()
    }

    /// What the server is told.
    #[must_use]
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let hits = self.sum(Counter::OneSidedHits);
        Heartbeat {
            reads: self.sum(Counter::Reads),
            read_bytes: self.sum(Counter::ReadBytes),
            one_sided_gets: hits + self.sum(Counter::OneSidedMisses),
            retries: self.sum(Counter::Retries),
            checksum_failures: self.sum(Counter::ChecksumFailures),
            epoch: 0,
        }
    }
}

/// A snapshot of a client's counters, per path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stats {
    /// Fabric in use.
    pub fabric: String,
    /// Why it is no better one, where one was to be tried first.
    pub fallback: Option<String>,
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
    /// GETs that asked by RPC.
    pub rpc_gets: u64,
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
    /// Pings.
    pub rpc_pings: u64,
    /// Requests sent again after a broken connection.
    pub rpc_retries: u64,
    /// Values that went through staging memory.
    pub staged: u64,
    /// Values that the server READ from registered buffers of the caller's.
    pub lent: u64,
    /// Connections made after the first one was lost.
    pub reconnects: u64,
    /// Connections closed since nobody used them; the next operation makes another one.
    pub idle_closes: u64,
    /// Connections over a better fabric than the one before.
    pub fabric_upgrades: u64,
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
        let (buffers, parking) = (shared.pool.usage(), shared.parking.usage());
        Self {
            fabric: fabric.to_string(),
            fallback: now.and_then(Connection::fallback).map(str::to_owned),
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
            rpc_gets: sum(Counter::RpcGets),
            rpc_puts: sum(Counter::RpcPuts),
            rpc_deletes: sum(Counter::RpcDeletes),
            rpc_appends: sum(Counter::RpcAppends),
            rpc_writes_at: sum(Counter::RpcWritesAt),
            rpc_increments: sum(Counter::RpcIncrements),
            rpc_touches: sum(Counter::RpcTouches),
            rpc_pings: sum(Counter::RpcPings),
            rpc_retries: sum(Counter::RpcRetries),
            staged: sum(Counter::Staged),
            lent: sum(Counter::Lent),
            reconnects: sum(Counter::Reconnects),
            idle_closes: sum(Counter::IdleCloses),
            fabric_upgrades: sum(Counter::FabricUpgrades),
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
        stats.add(Counter::Gets, 5);
        stats.shard().fast_gets(3, 1000);
        let sums = [Counter::Gets, Counter::OneSidedHits, Counter::Reads, Counter::ReadBytes];
        assert_eq!(sums.map(|counter| stats.sum(counter)), [8, 3, 6, 1000]);
    }
}
