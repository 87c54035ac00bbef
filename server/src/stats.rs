//! Counters. What a poller counts is one relaxed atomic addition; names are made when asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onesided_fabric::FabricKind;
use onesided_protocol::control::TableCounts;
use onesided_protocol::latency::{LATENCY_BUCKETS, bound_ns};
use parking_lot::Mutex;

use crate::engine::MemoryStatus;
use crate::metrics::rpc::{CLASSES, RpcCounts, RpcShard, VERBS};

/// A counter, or a gauge.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a session is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Its client said goodbye.
    Goodbye,
    /// No heartbeat within the lease.
    Lease,
    /// Its client was gone, and another one needed its place.
    Displaced,
    /// It did not acknowledge in time that memory was retired.
    Fenced,
    /// The server stops.
    Stop,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Goodbye => "goodbye",
            Self::Lease => "no heartbeat within the lease",
            Self::Displaced => "its client was gone, and another one needed its place",
            Self::Fenced => "it did not acknowledge that memory was retired",
            Self::Stop => "the server is stopping",
        })
    }
}

/// Sessions that ended, by reason, in the order of [`Ended`].
#[derive(Debug)]
pub(crate) struct EndedCounts(pub(crate) [(&'static str, Counter); 5]);

impl Default for EndedCounts {
    fn default() -> Self {
        let names = ["goodbye", "lease", "displaced", "fenced", "stop"];
        Self(names.map(|name| (name, Counter::default())))
    }
}

/// What a server counts.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// One for each poller.
    shards: Mutex<Vec<Arc<RpcShard>>>,
    pub(crate) rpc_malformed: Counter,
    pub(crate) rpc_retries: Counter,
    /// Requests whose values are being READ, or wait for their turn.
    pub(crate) fetching: Counter,
    pub(crate) values_fetched: Counter,
    pub(crate) values_fetched_bytes: Counter,
    pub(crate) endpoints_shm: Counter,
    pub(crate) endpoints_verbs: Counter,
    pub(crate) endpoints_tcp: Counter,
    pub(crate) endpoints_closed: Counter,
    pub(crate) connections: Counter,
    pub(crate) accepted: Counter,
    pub(crate) refused_full: Counter,
    pub(crate) refused_hellos: Counter,
    pub(crate) refused_tickets: Counter,
    pub(crate) malformed_control: Counter,
    /// Samples of GETs in tables that evict.
    pub(crate) accesses: Counter,
    /// Reports of clients of what they did by themselves, and how often that was more than is
    /// possible.
    pub(crate) reports: Counter,
    pub(crate) reports_cut: Counter,
    pub(crate) sessions_opened: Counter,
    pub(crate) sessions_resumed: Counter,
    pub(crate) sessions_ended: EndedCounts,
    pub(crate) admin_connections: Counter,
    /// Those that were closed since others came.
    pub(crate) admin_displaced: Counter,
    /// Requests to the admin port without the token, and under a name that is not this host's.
    pub(crate) admin_without_token: Counter,
    pub(crate) admin_of_foreign_name: Counter,
    /// For the log lines of slow requests.
    pub(crate) slow_log: LogLimit,
    /// For the log lines of lives of connections and sessions: many clients may end at once.
    pub(crate) life_log: LogLimit<100>,
    /// For the log lines of closed endpoints.
    pub(crate) closing_log: LogLimit,
}

impl Stats {
    /// What one poller counts in from now on, as the only one. One that ended leaves its counts to
    /// the next: they never go back.
    pub(crate) fn shard(&self) -> Arc<RpcShard> {
        let mut shards = self.shards.lock();
        if let Some(free) = shards.iter().find(|shard| Arc::strong_count(shard) == 1) {
            return Arc::clone(free);
        }
        let shard = Arc::<RpcShard>::default();
        shards.push(Arc::clone(&shard));
        shard
    }

    /// What pollers have counted, all together.
    pub(crate) fn rpc(&self) -> RpcCounts {
        let mut sum = RpcCounts::default();
        self.shards.lock().iter().for_each(|shard| sum.add(shard));
        sum
    }

    /// Number of endpoints of a fabric.
    pub(crate) fn endpoints(&self, kind: FabricKind) -> &Counter {
        match kind {
            FabricKind::Shm => &self.endpoints_shm,
            FabricKind::Verbs => &self.endpoints_verbs,
            _ => &self.endpoints_tcp,
        }
    }

    /// All fabrics, with the number of endpoints.
    pub(crate) fn endpoints_by_fabric(&self) -> [(&'static str, &Counter); 3] {
        [
            ("shm", &self.endpoints_shm),
            ("verbs", &self.endpoints_verbs),
            ("tcp", &self.endpoints_tcp),
        ]
    }

    /// A session has ended.
    pub(crate) fn session_ended(&self, why: Ended) {
        self.sessions_ended.0[why as usize].1.add(1);
    }

    /// Everything, with names.
    pub(crate) fn list(&self, sessions: usize, clients: &TableCounts) -> Vec<(String, u64)> {
        let mut list = Vec::with_capacity(64);
        let rpc = self.rpc();
        for (verb, classes) in VERBS.iter().zip(&rpc.results) {
            for (class, count) in CLASSES.iter().zip(classes) {
                list.push((format!("rpc_{verb}_{class}"), *count));
            }
        }
        let one_sided_gets = clients.one_sided_hits.saturating_add(clients.one_sided_misses);
        let named = [
            ("rpc_malformed", self.rpc_malformed.get()),
            ("rpc_retries_answered", self.rpc_retries.get()),
            ("value_fetches_pending", self.fetching.get()),
            ("values_fetched", self.values_fetched.get()),
            ("values_fetched_bytes", self.values_fetched_bytes.get()),
            ("sessions", sessions as u64),
            ("endpoints_shm", self.endpoints_shm.get()),
            ("endpoints_verbs", self.endpoints_verbs.get()),
            ("endpoints_tcp", self.endpoints_tcp.get()),
            ("endpoints_closed_by_server", self.endpoints_closed.get()),
            ("control_connections", self.connections.get()),
            ("connections_accepted", self.accepted.get()),
            ("connections_refused_full", self.refused_full.get()),
            ("hellos_refused", self.refused_hellos.get()),
            ("tickets_refused", self.refused_tickets.get()),
            ("control_malformed", self.malformed_control.get()),
            ("sessions_fenced", self.sessions_ended.0[Ended::Fenced as usize].1.get()),
            ("clients_reported_accesses", self.accesses.get()),
            ("clients_reported_reads", clients.reads),
            ("clients_reported_read_bytes", clients.read_bytes),
            ("clients_reported_one_sided_gets", one_sided_gets),
            ("clients_reported_one_sided_hits", clients.one_sided_hits),
            ("clients_reported_retries", clients.retries),
            ("clients_reported_checksum_failures", clients.checksum_failures),
            ("clients_reported_one_sided_puts", clients.one_sided_puts),
            ("clients_reported_lost_swaps", clients.lost_swaps),
            ("clients_reported_counter_atomics", clients.counter_atomics),
            ("clients_reported_counter_retries", clients.counter_retries),
        ];
        list.extend(named.map(|(name, value)| (name.to_owned(), value)));
        let mut rpc_times = [0u64; LATENCY_BUCKETS];
        for times in &rpc.times {
            rpc_times.iter_mut().zip(times.counts).for_each(|(sum, count)| *sum += count);
        }
        times(&mut list, "rpc", &rpc_times);
        times(&mut list, "clients_reported_get", &clients.latency);
        list
    }
}

/// A histogram, without what is empty.
fn times(list: &mut Vec<(String, u64)>, of: &str, counts: &[u64; LATENCY_BUCKETS]) {
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let bound = bound_ns(bucket).map_or("more".to_owned(), |bound| bound.to_string());
        list.push((format!("{of}_time_up_to_{bound}_ns"), *count));
    }
}

/// The engine's memory, by name.
pub(crate) fn memory(status: &MemoryStatus) -> Vec<(String, u64)> {
    let (cleaning, shrinking) = (&status.cleaning, &status.shrinking);
    [
        ("memory_limit_bytes", status.limit_bytes),
        ("memory_regions", u64::from(status.regions)),
        ("memory_region_bytes", status.region_bytes),
        ("memory_retired_bytes", status.retired_bytes),
        ("memory_catalog_bytes", status.catalog_bytes),
        ("memory_log_bytes", status.log_bytes),
        ("memory_log_live_bytes", status.log_live_bytes),
        ("memory_log_dead_bytes", status.log_dead_bytes),
        ("memory_log_free_bytes", status.log_free_bytes),
        ("memory_meta_bytes", status.meta_bytes),
        ("memory_cells_bytes", status.cells_bytes),
        ("memory_order_bytes", status.order_bytes),
        ("memory_index_bytes", status.index_bytes),
        ("memory_quarantined_bytes", status.quarantined_bytes),
        ("memory_free_bytes", status.free_bytes),
        ("memory_writable_bytes", status.writable_bytes),
        ("memory_writable_room_bytes", status.writable_room_bytes),
        ("memory_huge_bytes", status.huge_bytes),
        ("memory_huge_refused_bytes", status.huge_refused_bytes),
        ("memory_private_bytes", status.private_bytes),
        ("memory_given_back_regions", shrinking.given_back_regions),
        ("memory_given_back_bytes", shrinking.given_back_bytes),
        ("memory_epochs", shrinking.epochs_over),
        ("memory_epochs_waiting", shrinking.epochs_waiting),
        ("memory_epoch_longest_wait_ms", shrinking.longest_wait_ms),
        ("cleaning_written_bytes", cleaning.written_bytes),
        ("cleaning_moved_bytes", cleaning.moved_bytes),
        ("cleaning_moved_entries", cleaning.moved_entries),
        ("cleaning_expired_entries", cleaning.expired_entries),
        ("cleaning_evicted_entries", cleaning.evicted_entries),
        ("cleaning_evicted_for_quota", cleaning.evicted_for_quota),
        ("cleaning_segments", cleaning.segments),
        ("cleaning_freed_bytes", cleaning.freed_bytes),
        ("cleaning_given_up", cleaning.given_up),
        ("cleaning_in_place_entries", cleaning.in_place_entries),
        ("cleaning_waits", cleaning.waits),
        ("cleaning_longest_wait_us", cleaning.longest_wait_us),
        ("cleaning_write_amplification_per_mille", cleaning.write_amplification_per_mille()),
        ("leases", status.cas.leases),
        ("lease_bytes", status.cas.lease_bytes),
        ("cas_repaired_slots", status.cas.repaired_slots),
        ("cas_finished_entries", status.cas.finished_entries),
        ("cas_lost_swaps", status.cas.lost_swaps),
        ("cas_broken_keys", status.cas.broken_keys),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// CPU time of this process in user and in system mode, in ms; `None` without /proc.
fn cpu_ms() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold anything; fields 14 and 15 count from after it.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let per_s = rustix::param::clock_ticks_per_second().max(1);
    Some((user * 1000 / per_s, system * 1000 / per_s))
}

/// What this process is and uses: its number, CPU time, resident memory (shared memory included).
pub(crate) fn process() -> Vec<(String, u64)> {
    let mut list = vec![("process_id".to_owned(), u64::from(std::process::id()))];
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
    list.push(("process_cpu_ns".to_owned(), cpu_ns));
    if let Some((user_ms, system_ms)) = cpu_ms() {
        list.push(("process_cpu_user_ms".to_owned(), user_ms));
        list.push(("process_cpu_system_ms".to_owned(), system_ms));
    }
    // The second number is of resident pages.
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    if let Some(pages) = pages {
        let bytes = pages * rustix::param::page_size() as u64;
        list.push(("process_resident_bytes".to_owned(), bytes));
    }
    list
}

/// At most `N` log lines a second; the rest is counted and told with the next.
#[derive(Debug, Default)]
pub(crate) struct LogLimit<const N: u32 = 5> {
    state: Mutex<(Option<std::time::Instant>, u32, u64)>,
}

impl<const N: u32> LogLimit<N> {
    /// `Some(suppressed)` if a line may be written now.
    pub(crate) fn allow(&self) -> Option<u64> {
        let now = std::time::Instant::now();
        let mut state = self.state.lock();
        let fresh = state.0.is_none_or(|since| now.duration_since(since).as_secs() >= 1);
        if fresh {
            state.0 = Some(now);
            state.1 = 0;
        }
        if state.1 >= N {
            state.2 += 1;
            return None;
        }
        state.1 += 1;
        Some(std::mem::take(&mut state.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_known() {
        let list = process();
        let of = |wanted: &str| list.iter().find(|(name, _)| name == wanted).map(|pair| pair.1);
        assert_eq!(of("process_id"), Some(std::process::id().into()));
        assert!(of("process_cpu_ns") > Some(0) && of("process_cpu_user_ms").is_some());
        assert!(of("process_resident_bytes") > Some(1 << 20));
    }

    #[test]
    fn log_lines_are_limited_and_counted() {
        let limit = LogLimit::<5>::default();
        let lines = (0..1000).filter(|_| limit.allow().is_some()).count();
        // A second may pass in between on a busy machine.
        assert!((5..100).contains(&lines), "{lines}");
    }

    #[test]
    fn a_poller_that_ended_leaves_its_counts_to_the_next() {
        let stats = Stats::default();
        let first = stats.shard();
        first.time(1, 5);
        assert!(!Arc::ptr_eq(&first, &stats.shard()), "each has its own");
        drop(first);
        let second = stats.shard();
        second.time(1, 5);
        assert_eq!(stats.rpc().times[1].sum_ns, 10);
        assert_eq!(stats.shards.lock().len(), 2);
    }
}
