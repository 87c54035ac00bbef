//! Memory, log, index, tables.

use super::{Metric, counter, gauge};
use crate::engine::Reach;
use crate::metrics::render::Rows;
use crate::metrics::snapshot::{Snapshot, TableNow};

const OF_TABLE: &[&str] = &["tenant", "table"];
const OF_EVICTED: &[&str] = &["tenant", "table", "reason"];
const OF_REGIONS: &[&str] = &["regions"];

/// One value for each table that has a label, and one for all others.
fn each(s: &Snapshot, rows: &mut Rows, of: fn(&TableNow) -> u64) {
    for table in &s.tables {
        rows.put(&[&table.tenant, &table.name], of(table) as f64);
    }
}

/// As [`each`] without all others: what they count goes when one of them is dropped.
fn each_own(s: &Snapshot, rows: &mut Rows, of: fn(&TableNow) -> u64) {
    for table in s.tables.iter().filter(|table| !table.is_other) {
        rows.put(&[&table.tenant, &table.name], of(table) as f64);
    }
}

/// One value for each kind of regions.
fn each_reach(s: &Snapshot, rows: &mut Rows, of: fn(&Reach) -> u64) {
    rows.put(&["read_only"], of(&s.memory.read_only()) as f64);
    if let Some(reach) = s.memory.writable() {
        rows.put(&["writable"], of(&reach) as f64);
    }
}

pub(super) const METRICS: &[Metric] = &[
    gauge(
        "onesided_memory_limit_bytes",
        "What entries and indexes may take in all.",
        &[],
        |s, rows| {
            rows.count(s.memory.limit_bytes);
        },
    ),
    gauge(
        "onesided_memory_bytes",
        "Memory by use; together it is onesided_memory_limit_bytes. log_live: entries; log_dead: \
         overwritten, deleted or expired ones; log_free: rests of segments; index; index_held: of \
         dropped tables, until no session looks at it; order: keys of ordered tables; index_spare: \
         taken and not used yet; cells: of counters; retired: \
         regions that go back to the system once no session can look at them; free.",
        &["use"],
        |s, rows| {
            let m = &s.memory;
            for (usage, bytes) in [
                ("log_live", m.log_live_bytes),
                ("log_dead", m.log_dead_bytes),
                ("log_free", m.log_free_bytes),
                ("index", m.index_bytes.saturating_sub(m.quarantined_bytes)),
                ("index_held", m.quarantined_bytes),
                ("order", m.order_bytes),
                ("index_spare", m.meta_bytes.saturating_sub(m.index_bytes + m.order_bytes)),
                ("cells", m.cells_bytes),
                ("retired", m.retired_bytes),
                ("free", m.free_bytes),
            ] {
                rows.put(&[usage], bytes as f64);
            }
        },
    ),
    gauge(
        "onesided_memory_reach_bytes",
        "What entries can take, by the regions that they go into. read_only: entries that the \
         server writes, and indexes; writable: counters, and entries of tables with update=cas, \
         once there are such regions. Regions not made yet count for both, but for what is left to \
         a first writable one.",
        OF_REGIONS,
        |s, rows| each_reach(s, rows, |reach| reach.len_bytes),
    ),
    gauge(
        "onesided_memory_room_bytes",
        "Of onesided_memory_reach_bytes, what is free, not made yet, or dead: one kind may be full \
         while the other is not.",
        OF_REGIONS,
        |s, rows| each_reach(s, rows, |reach| reach.room_bytes),
    ),
    gauge(
        "onesided_memory_regions",
        "Regions that there are, catalogs included.",
        &[],
        |s, rows| {
            rows.count(s.memory.regions.into());
        },
    ),
    counter(
        "onesided_memory_given_back_regions_total",
        "Regions that were too many for a while and whose memory went back to the system.",
        &[],
        |s, rows| rows.count(s.memory.shrinking.given_back_regions),
    ),
    counter("onesided_memory_given_back_bytes_total", "Their length.", &[], |s, rows| {
        rows.count(s.memory.shrinking.given_back_bytes)
    }),
    counter(
        "onesided_memory_epochs_total",
        "Regions and indexes of dropped tables that came back when all sessions had acknowledged.",
        &[],
        |s, rows| rows.count(s.memory.shrinking.epochs_over),
    ),
    gauge(
        "onesided_memory_epochs_waiting",
        "Regions and indexes of dropped tables that wait until sessions have acknowledged.",
        &[],
        |s, rows| rows.count(s.memory.shrinking.epochs_waiting),
    ),
    gauge(
        "onesided_memory_epoch_longest_wait_seconds",
        "The longest such wait since the start.",
        &[],
        |s, rows| rows.one(s.memory.shrinking.longest_wait_ms as f64 / 1e3),
    ),
    gauge(
        "onesided_memory_region_bytes",
        "Length of the regions, without the catalogs.",
        &[],
        |s, rows| {
            rows.count(s.memory.region_bytes);
        },
    ),
    gauge("onesided_memory_catalog_bytes", "Length of the catalogs.", &[], |s, rows| {
        rows.count(s.memory.catalog_bytes);
    }),
    gauge("onesided_memory_huge_page_bytes", "Memory in huge pages.", &[], |s, rows| {
        rows.count(s.memory.huge_bytes);
    }),
    gauge(
        "onesided_memory_huge_page_refused_bytes",
        "Memory that the kernel refused huge pages for, or that was in use before they were made.",
        &[],
        |s, rows| {
            rows.count(s.memory.huge_refused_bytes);
        },
    ),
    gauge(
        "onesided_memory_private_bytes",
        "About what the server keeps of indexes and of keys' use beside what clients read.",
        &[],
        |s, rows| rows.count(s.memory.private_bytes),
    ),
    counter(
        "onesided_written_bytes_total",
        "Bytes of entries that were written for clients.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.written_bytes);
        },
    ),
    counter(
        "onesided_evicted_entries_total",
        "Live entries that went because memory was full.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.evicted_entries);
        },
    ),
    counter(
        "onesided_cleaning_moved_bytes_total",
        "Bytes of entries that cleaning copied.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.moved_bytes);
        },
    ),
    counter(
        "onesided_cleaning_moved_entries_total",
        "Entries that cleaning copied.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.moved_entries);
        },
    ),
    counter(
        "onesided_cleaning_expired_entries_total",
        "Expired entries that cleaning found.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.expired_entries);
        },
    ),
    counter(
        "onesided_cleaning_segments_total",
        "Log segments that cleaning emptied.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.segments);
        },
    ),
    counter(
        "onesided_cleaning_freed_bytes_total",
        "Bytes that became free by cleaning.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.freed_bytes);
        },
    ),
    counter(
        "onesided_cleaning_given_up_total",
        "Segments that were not emptied, since there was no room for copies.",
        &[],
        |s, rows| rows.count(s.memory.cleaning.given_up),
    ),
    counter(
        "onesided_cleaning_in_place_entries_total",
        "Entries that were overwritten where they lay, for want of room.",
        &[],
        |s, rows| rows.count(s.memory.cleaning.in_place_entries),
    ),
    counter(
        "onesided_cleaning_waits_total",
        "Writes that found no room and cleaned until there was some.",
        &[],
        |s, rows| {
            rows.count(s.memory.cleaning.waits);
        },
    ),
    gauge(
        "onesided_cleaning_longest_wait_seconds",
        "The longest such wait since the start.",
        &[],
        |s, rows| {
            rows.one(s.memory.cleaning.longest_wait_us as f64 / 1e6);
        },
    ),
    gauge(
        "onesided_leases",
        "Runs of log blocks that clients write entries into.",
        &[],
        |s, rows| {
            rows.count(s.memory.cas.leases);
        },
    ),
    gauge(
        "onesided_lease_bytes",
        "Bytes of leases; they count as dead until they are given back and walked through.",
        &[],
        |s, rows| {
            rows.count(s.memory.cas.lease_bytes);
        },
    ),
    counter(
        "onesided_cas_repaired_slots_total",
        "Slots that were pointed at a newer entry that clients had linked.",
        &[],
        |s, rows| {
            rows.count(s.memory.cas.repaired_slots);
        },
    ),
    counter(
        "onesided_cas_finished_entries_total",
        "Entries that a client had linked and the server committed.",
        &[],
        |s, rows| {
            rows.count(s.memory.cas.finished_entries);
        },
    ),
    counter(
        "onesided_cas_lost_swaps_total",
        "Compare-and-swaps of the server that a client was faster than.",
        &[],
        |s, rows| {
            rows.count(s.memory.cas.lost_swaps);
        },
    ),
    counter(
        "onesided_cas_broken_keys_total",
        "Keys removed since what clients wrote did not prove itself.",
        &[],
        |s, rows| {
            rows.count(s.memory.cas.broken_keys);
        },
    ),
    gauge(
        "onesided_orphaned_sessions",
        "Sessions that are over and whose process, which may still write their leases, is not.",
        &[],
        |s, rows| rows.count(s.orphans as u64),
    ),
    gauge("onesided_tables", "Tables of all tenants.", &[], |s, rows| {
        rows.count(s.tables_count as u64);
    }),
    gauge(
        "onesided_table_keys",
        "Keys, expired ones that nobody has met included. The first 64 tables of a server's life \
         have labels of their own; table `other` of no tenant is all others together.",
        OF_TABLE,
        |s, rows| each(s, rows, |table| table.index.keys),
    ),
    gauge("onesided_table_live_bytes", "Bytes of live entries.", OF_TABLE, |s, rows| {
        each(s, rows, |table| table.status.live_bytes);
    }),
    gauge(
        "onesided_table_payload_bytes",
        "Of the live bytes, those of keys and values; headers and padding are the rest.",
        OF_TABLE,
        |s, rows| each(s, rows, |table| table.status.payload_bytes),
    ),
    gauge(
        "onesided_table_padding_bytes",
        "Of the live bytes, those that fill entries up to multiples of 16.",
        OF_TABLE,
        |s, rows| each(s, rows, |table| table.status.padding_bytes),
    ),
    gauge(
        "onesided_table_dead_bytes",
        "Bytes of dead entries, and rests too short for an entry.",
        OF_TABLE,
        |s, rows| {
            each(s, rows, |table| table.status.dead_bytes);
        },
    ),
    gauge("onesided_table_log_bytes", "Bytes of log segments.", OF_TABLE, |s, rows| {
        each(s, rows, |table| table.status.log_bytes);
    }),
    gauge(
        "onesided_table_index_bytes",
        "Bytes of index segments and directory, and of what keeps keys in order.",
        OF_TABLE,
        |s, rows| {
            each(s, rows, |table| table.status.index_bytes);
        },
    ),
    gauge("onesided_table_index_segments", "Segments of the index.", OF_TABLE, |s, rows| {
        each(s, rows, |table| table.index.segments);
    }),
    gauge(
        "onesided_table_index_slots",
        "Slots of the index; keys by slots is its load.",
        OF_TABLE,
        |s, rows| {
            each(s, rows, |table| table.index.slots);
        },
    ),
    gauge(
        "onesided_table_index_overflow_lines",
        "Overflow lines in use: keys in them cost a READ more.",
        OF_TABLE,
        |s, rows| each(s, rows, |table| table.index.overflow_lines),
    ),
    gauge(
        "onesided_table_expiry_backlog",
        "Expired entries that the last round found.",
        OF_TABLE,
        |s, rows| {
            each(s, rows, |table| table.status.expiry_backlog);
        },
    ),
    counter(
        "onesided_table_index_splits_total",
        "Splits of the index; not for `other`.",
        OF_TABLE,
        |s, rows| {
            each_own(s, rows, |table| table.status.splits);
        },
    ),
    counter(
        "onesided_table_expired_entries_total",
        "Entries removed since their time was over; not for `other`.",
        OF_TABLE,
        |s, rows| each_own(s, rows, |table| table.status.expired_entries),
    ),
    counter(
        "onesided_table_evicted_entries_total",
        "Live entries that went because memory or quota, as `reason` says, was full; not for \
         `other`.",
        OF_EVICTED,
        |s, rows| {
            for TableNow { tenant, name, status, .. } in s.tables.iter().filter(|t| !t.is_other) {
                let for_quota = status.evicted_for_quota;
                let for_memory = status.evicted_entries.saturating_sub(for_quota);
                rows.put(&[tenant, name, "memory"], for_memory as f64);
                rows.put(&[tenant, name, "quota"], for_quota as f64);
            }
        },
    ),
    counter(
        "onesided_table_moved_bytes_total",
        "Bytes of entries that cleaning has copied; not for `other`.",
        OF_TABLE,
        |s, rows| each_own(s, rows, |table| table.status.moved_bytes),
    ),
    counter(
        "onesided_table_written_bytes_total",
        "Bytes of entries that were written for clients; not for `other`.",
        OF_TABLE,
        |s, rows| each_own(s, rows, |table| table.status.written_bytes),
    ),
];
