//! What clients report of their own reads and updates: the server takes no part in these, so that
//! it believes what it is told, within what is possible (docs/SECURITY.md).

use onesided_protocol::control::TableCounts;

use super::{Metric, counter, histogram};
use crate::metrics::render::Rows;
use crate::metrics::rpc::Latency;
use crate::metrics::snapshot::Snapshot;

const OF_TABLE: &[&str] = &["tenant", "table"];
const OF_TABLE_BY_PATH: &[&str] = &["tenant", "table", "path"];

/// One value for each table that somebody reported of.
fn each(s: &Snapshot, rows: &mut Rows, of: fn(&TableCounts) -> u64) {
    for table in &s.reported {
        rows.put(&[&table.tenant, &table.name], of(&table.counts) as f64);
    }
}

/// The same by path: without the server, and by RPC.
fn by_path(s: &Snapshot, rows: &mut Rows, of: fn(&TableCounts) -> [u64; 2]) {
    for table in &s.reported {
        for (path, count) in ["one_sided", "rpc"].into_iter().zip(of(&table.counts)) {
            rows.put(&[&table.tenant, &table.name, path], count as f64);
        }
    }
}

pub(super) const METRICS: &[Metric] = &[
    counter(
        "onesided_client_reported_gets_total",
        "GETs as clients report them, each key of a batch counted. Path one_sided: without the \
         server's CPU; rpc: by asking it. Result hit: a value; miss: proof that there is none; of \
         path rpc clients report no result (unknown).",
        &["tenant", "table", "path", "result"],
        |s, rows| {
            for table in &s.reported {
                let counts = &table.counts;
                let mut put = |path, result, count| {
                    rows.put(&[&table.tenant, &table.name, path, result], count as f64);
                };
                put("one_sided", "hit", counts.one_sided_hits);
                put("one_sided", "miss", counts.one_sided_misses);
                put("rpc", "unknown", counts.rpc_gets);
            }
        },
    ),
    histogram(
        "onesided_client_reported_get_duration_seconds",
        "Time of GETs that clients sample, about one of 256, from the call to its result, whatever \
         the path; buckets are powers of two.",
        OF_TABLE,
        |s, rows| {
            for table in &s.reported {
                let TableCounts { latency, latency_ns, .. } = table.counts;
                let latency = Latency { counts: latency, sum_ns: latency_ns };
                rows.latency(&[&table.tenant, &table.name], &latency);
            }
        },
    ),
    counter(
        "onesided_client_reported_reads_total",
        "One-sided READs, as clients report them.",
        OF_TABLE,
        |s, rows| {
            each(s, rows, |counts| counts.reads);
        },
    ),
    counter(
        "onesided_client_reported_read_bytes_total",
        "Bytes of these READs.",
        OF_TABLE,
        |s, rows| {
            each(s, rows, |counts| counts.read_bytes);
        },
    ),
    counter(
        "onesided_client_reported_round_trips_total",
        "Times that clients waited for a READ or a batch of READs; loads over shared memory are \
         counted alike.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.round_trips),
    ),
    counter(
        "onesided_client_reported_cache_hits_total",
        "Look-ups of clients that began with a cached bucket.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.cache_hits),
    ),
    counter(
        "onesided_client_reported_retries_total",
        "Rounds of one-sided GETs that had to look again.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.retries),
    ),
    counter(
        "onesided_client_reported_forward_hops_total",
        "Forwards from a replaced entry to its successor that clients followed.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.forward_hops),
    ),
    counter(
        "onesided_client_reported_checksum_failures_total",
        "Entries whose checksum did not fit: torn by a concurrent write, or reused; clients look \
         again then. Those that are not committed yet do not count.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.checksum_failures),
    ),
    counter(
        "onesided_client_reported_puts_total",
        "PUTs as clients report them, each pair of a batch counted. Path one_sided: an entry \
         replaced without the server's CPU; rpc: by asking it.",
        OF_TABLE_BY_PATH,
        |s, rows| by_path(s, rows, |counts| [counts.one_sided_puts, counts.rpc_puts]),
    ),
    counter(
        "onesided_client_reported_lost_swaps_total",
        "Compare-and-swaps of one-sided PUTs that another writer of the same key was faster than: \
         they are done again, or by RPC.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.lost_swaps),
    ),
    counter(
        "onesided_client_reported_counter_operations_total",
        "Operations on counters as clients report them. Path one_sided: atomic operations without \
         the server's CPU; rpc: changes, and searches for a counter's place, by asking it.",
        OF_TABLE_BY_PATH,
        |s, rows| by_path(s, rows, |counts| [counts.counter_atomics, counts.rpc_counters]),
    ),
    counter(
        "onesided_client_reported_counter_retries_total",
        "Atomic operations on counters that had to be done again: the counter was another number, \
         or in another place.",
        OF_TABLE,
        |s, rows| each(s, rows, |counts| counts.counter_retries),
    ),
    counter(
        "onesided_client_reports_total",
        "Reports of what clients did by themselves.",
        &[],
        |s, rows| {
            rows.count(s.stats.reports.get());
        },
    ),
    counter(
        "onesided_client_reports_cut_total",
        "Reports that claimed more than is possible, and were cut to it.",
        &[],
        |s, rows| rows.count(s.stats.reports_cut.get()),
    ),
    counter(
        "onesided_client_reported_accesses_total",
        "Samples of GETs in tables that evict, by which the server knows what is used.",
        &[],
        |s, rows| rows.count(s.stats.accesses.get()),
    ),
];
