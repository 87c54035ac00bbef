//! Where the memory is.

use std::sync::Arc;

use super::cas::CasStatus;
use super::clean::CleaningStatus;
use super::log::Log;
use super::order::Order;
use super::shrink::ShrinkingStatus;
use super::table::Table;
use super::{Budget, Engine};

/// How often memory is looked at anew, at most, since a region came or went meanwhile.
pub(crate) const LOOKS_MAX: usize = 8;

/// Bytes by use. `log_bytes` = live + dead + free, and `limit_bytes` = `log_bytes` +
/// `meta_bytes` + `cells_bytes` + `free_bytes` + `retired_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStatus {
    /// What entries and indexes may take in all; less, if other engines took of the budget.
    pub limit_bytes: u64,
    /// Regions that there are, the catalog included.
    pub regions: u32,
    /// Their length, the catalog's excepted.
    pub region_bytes: u64,
    /// Regions that are given back as soon as no session can look at them any more.
    pub retired_bytes: u64,
    /// The catalog.
    pub catalog_bytes: u64,
    /// Log segments.
    pub log_bytes: u64,
    /// Live entries, headers and padding included.
    pub log_live_bytes: u64,
    /// Entries that are dead, and rests of segments too short for the next entry.
    pub log_dead_bytes: u64,
    /// Rests of the segments that are appended to.
    pub log_free_bytes: u64,
    /// Blocks for index segments and directories, and those that stand for the keys of ordered
    /// tables.
    pub meta_bytes: u64,
    /// Blocks for cells of counters, those of dropped tables included until no session can know
    /// them.
    pub cells_bytes: u64,
    /// What keeps the keys of ordered tables in order, about: beside the regions, and counted by
    /// blocks that stay unused.
    pub order_bytes: u64,
    /// Index segments and directories in use, quarantined ones included.
    pub index_bytes: u64,
    /// Those of dropped tables, until no session can look at them any more.
    pub quarantined_bytes: u64,
    /// Blocks that nothing uses, those of regions not made yet included.
    pub free_bytes: u64,
    /// Of these, of regions not made yet.
    pub unmade_bytes: u64,
    /// Of these, what is left to a first region that clients may write.
    pub kept_writable_bytes: u64,
    /// Regions that clients may write: only entries of tables of mode
    /// [`cas`](onesided_protocol::control::UpdateMode::Cas) and counters go there.
    pub writable_bytes: u64,
    /// Of these, what is free or dead.
    pub writable_room_bytes: u64,
    /// In huge pages, whatever it is used for.
    pub huge_bytes: u64,
    /// What the kernel refused huge pages for, or was in use before they were made.
    pub huge_refused_bytes: u64,
    /// Server-private state of indexes, and of what keys were used in tables that evict, about.
    pub private_bytes: u64,
    /// What cleaning has done.
    pub cleaning: CleaningStatus,
    /// What clients write by themselves.
    pub cas: CasStatus,
    /// What went back to the system, and what waits for sessions.
    pub shrinking: ShrinkingStatus,
}

/// What one kind of entries can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    /// In all.
    pub(crate) len_bytes: u64,
    /// Of it, what is free, not made yet, or dead.
    pub(crate) room_bytes: u64,
}

impl MemoryStatus {
    /// Of the regions that clients only read and those that may still be made: what tables take
    /// whose entries the server writes.
    pub(crate) fn read_only(&self) -> Reach {
        let len_bytes = self.region_bytes + self.unmade_bytes;
        let room_bytes = self.free_bytes + self.log_dead_bytes + self.log_free_bytes;
        let kept_bytes = self.kept_writable_bytes;
        Reach {
            len_bytes: len_bytes.saturating_sub(self.writable_bytes + kept_bytes),
            room_bytes: room_bytes.saturating_sub(self.writable_room_bytes + kept_bytes),
        }
    }

    /// Of the regions that clients may write and those that may still be made, if there are any of
    /// the former.
    pub(crate) fn writable(&self) -> Option<Reach> {
        (self.writable_bytes > 0).then(|| Reach {
            len_bytes: self.writable_bytes + self.unmade_bytes,
            room_bytes: self.writable_room_bytes + self.unmade_bytes,
        })
    }

    /// Of all engines that share a budget.
    #[must_use]
    pub fn sum(parts: impl IntoIterator<Item = Self>, budget: &Budget) -> Self {
        let mut sum = Self { unmade_bytes: budget.left_bytes() as u64, ..Self::default() };
        for part in parts {
            sum.regions += part.regions;
            sum.region_bytes += part.region_bytes;
            sum.retired_bytes += part.retired_bytes;
            sum.catalog_bytes += part.catalog_bytes;
            sum.log_bytes += part.log_bytes;
            sum.log_live_bytes += part.log_live_bytes;
            sum.log_dead_bytes += part.log_dead_bytes;
            sum.log_free_bytes += part.log_free_bytes;
            sum.meta_bytes += part.meta_bytes;
            sum.cells_bytes += part.cells_bytes;
            sum.order_bytes += part.order_bytes;
            sum.index_bytes += part.index_bytes;
            sum.quarantined_bytes += part.quarantined_bytes;
            sum.free_bytes += part.free_bytes - part.unmade_bytes;
            sum.kept_writable_bytes += part.kept_writable_bytes;
            sum.writable_bytes += part.writable_bytes;
            sum.writable_room_bytes += part.writable_room_bytes;
            sum.huge_bytes += part.huge_bytes;
            sum.huge_refused_bytes += part.huge_refused_bytes;
            sum.private_bytes += part.private_bytes;
            sum.cleaning = sum.cleaning.and(&part.cleaning);
            sum.cas = sum.cas.and(&part.cas);
            sum.shrinking = sum.shrinking.and(&part.shrinking);
        }
        sum.free_bytes += sum.unmade_bytes;
        sum.kept_writable_bytes = sum.kept_writable_bytes.min(sum.unmade_bytes);
        sum.limit_bytes = sum.region_bytes + sum.retired_bytes + sum.unmade_bytes;
        sum
    }
}

impl Engine {
    /// Where the memory is, at about one moment. The sums hold whatever happens meanwhile.
    #[must_use]
    pub fn memory_status(&self) -> MemoryStatus {
        let pool = &self.shared.pool;
        let (mut before, mut totals) = (pool.regions(), pool.totals());
        let mut unmade_bytes = pool.unmade_bytes();
        // A region that comes or goes meanwhile would be missing in one of them.
        for _ in 0..LOOKS_MAX {
            let now = pool.regions();
            if now == before {
                break;
            }
            (before, totals, unmade_bytes) = (now, pool.totals(), pool.unmade_bytes());
        }
        let (regions, region_bytes, retired_bytes) = before;
        let (huge_bytes, huge_refused_bytes) = pool.huge_bytes();
        let tables = self.by_id.load_full();
        let rest: usize =
            tables.iter().flat_map(|table| [&table.log, &table.kept]).map(Log::rest_bytes).sum();
        let private_of = |table: &Arc<Table>| table.index.private_bytes() + table.heat.len_bytes();
        let private: usize = tables.iter().map(private_of).sum();
        let order_of = |table: &Arc<Table>| table.order.as_ref().map_or(0, Order::used_bytes);
        // Segments come and go while they are added up.
        let log_live_bytes = totals.live.min(totals.log);
        let log_dead_bytes = totals.log.saturating_sub(log_live_bytes + rest as u64);
        let order_bytes: u64 = tables.iter().map(order_of).sum();
        let index_bytes = self.shared.meta.used_bytes() as u64;
        MemoryStatus {
            limit_bytes: (region_bytes + retired_bytes + unmade_bytes) as u64,
            regions,
            region_bytes: region_bytes as u64,
            retired_bytes: retired_bytes as u64,
            catalog_bytes: self.shared.catalog.memory().len_bytes() as u64,
            log_bytes: totals.log,
            log_live_bytes,
            log_dead_bytes,
            log_free_bytes: totals.log - log_live_bytes - log_dead_bytes,
            meta_bytes: totals.meta,
            cells_bytes: totals.cells,
            order_bytes,
            index_bytes: index_bytes.min(totals.meta.saturating_sub(order_bytes)),
            quarantined_bytes: self.shared.epochs.index_bytes() as u64,
            free_bytes: totals.free + unmade_bytes as u64,
            unmade_bytes: unmade_bytes as u64,
            kept_writable_bytes: pool.kept_writable_bytes().min(unmade_bytes) as u64,
            writable_bytes: totals.writable,
            writable_room_bytes: totals.writable.saturating_sub(totals.writable_taken),
            huge_bytes,
            huge_refused_bytes,
            private_bytes: private as u64,
            cleaning: self.cleaning_status(),
            cas: self.cas_status(),
            shrinking: self.shrinking_status(),
        }
    }
}
