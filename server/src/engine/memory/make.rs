//! Regions are made on demand, within the engine's limit and what its budget has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use onesided_fabric::Rights;
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::free::FreeBlocks;
use super::left::NOBODY;
use super::{Block, Pool, Region};
use crate::engine::room::Wanted;

/// Where regions are not made as long as they may be, they begin with this part of the memory, one
/// of so many, and are as long as all of their right before them together.
const FIRST_PART: usize = 64;

impl Pool {
    /// Makes the next region, if memory is left for one that holds that many blocks in a row.
    pub(super) fn make_region(
        &self,
        free: &mut FreeBlocks,
        wanted: Wanted,
        blocks: usize,
    ) -> Result<(), RpcError> {
        let rights = wanted.rights;
        let need_bytes = blocks * self.block_bytes;
        let most_bytes = self.most_bytes(free, rights, need_bytes);
        let id = free.made;
        // Where regions came and went so often that no number is left.
        let full = || self.full(free, rights, need_bytes);
        if self.left_for(free, wanted.need, wanted.owner, rights) == 0 {
            return Err(full());
        }
        let place = self.regions.get(id as usize).ok_or_else(full)?;
        let len_bytes = self.budget.take(self.share, most_bytes, need_bytes, self.segment_bytes);
        let len_bytes = len_bytes.ok_or_else(full)?;
        let name = format!("onesided-region-{id}");
        let memory = (self.make_memory)(&name, len_bytes, rights).map_err(|error| {
            self.budget.give(self.share, len_bytes);
            let text = format!(
                "the system gave no memory for region {id} of {len_bytes} bytes: {error}; \
                 nothing was changed: lower --memory or free memory on the host"
            );
            RpcError::new(ErrorCode::OutOfMemory, text)
        })?;
        let count = len_bytes / self.block_bytes;
        let blocks = (0..count).map(|_| Block::default()).collect();
        let memory = Arc::new(memory);
        let (huge, retired) = (Arc::default(), AtomicBool::new(false));
        let made = place.set(Region { memory, rights, blocks, huge, retired });
        debug_assert!(made.is_ok(), "region {id} was made twice");
        let side = free.of_mut(rights);
        side.numbers.extend((0..count).map(|block| self.number(id, block)));
        side.made_bytes += len_bytes;
        free.made += 1;
        self.catalog.add_region(id, len_bytes, rights);
        self.note_levels(free);
        free.registrar.iter().for_each(Thread::unpark);
        Ok(())
    }

    /// There are tables whose entries lie in writable regions, and whose indexes do not: regions of
    /// either right leave the other one half of what is left, and take no more than it seems they
    /// need. (Most of a small memory would else be one region.)
    pub(in crate::engine) fn share(&self) {
        self.shares.store(true, Ordering::Relaxed);
    }

    /// How long the next region may be. Counters alone need little, and what they take is no use
    /// for tables that clients only read.
    fn most_bytes(&self, free: &FreeBlocks, rights: Rights, need_bytes: usize) -> usize {
        let segment_bytes = self.segment_bytes;
        let kept_bytes = self.kept_for_writable(free, rights);
        let left_bytes = self.left_bytes(free).saturating_sub(kept_bytes);
        let most_bytes = left_bytes.min(self.region_blocks * self.block_bytes);
        let shares = self.shares.load(Ordering::Relaxed);
        if rights == Rights::ReadOnly && !shares {
            return most_bytes;
        }
        let fitting_bytes = need_bytes.next_multiple_of(segment_bytes);
        let first_bytes = self.limit_bytes / FIRST_PART / segment_bytes * segment_bytes;
        let grown_bytes = first_bytes.max(free.of(rights).made_bytes);
        let others_bytes = if shares { left_bytes / 2 } else { 0 };
        // Whole segments: the last one is somebody's.
        let fair_bytes = (left_bytes - others_bytes) / segment_bytes * segment_bytes;
        most_bytes.min(grown_bytes.min(fair_bytes).max(fitting_bytes))
    }

    fn full(&self, free: &FreeBlocks, rights: Rights, need_bytes: usize) -> RpcError {
        let limit_bytes = self.limit_bytes;
        let free_blocks = free.of(rights).numbers.len();
        let in_use_bytes = free.made_bytes() - free.count() * self.block_bytes;
        let others_bytes = self.budget.taken_bytes() - free.made_bytes() - free.retired_bytes;
        let kept_bytes = self.kept_for_writable(free, rights);
        let own_left_bytes = self.own_left_bytes(free).saturating_sub(kept_bytes);
        let own = limit_bytes < self.budget.limit_bytes() && own_left_bytes < need_bytes;
        let (limit, raise) = match (own, others_bytes) {
            (true, _) => (format!("limit of the tenant {limit_bytes} bytes"), "that limit"),
            (false, 0) => (format!("limit {limit_bytes} bytes"), "--memory"),
            (false, _) => {
                let all_bytes = self.budget.limit_bytes();
                (format!("limit {all_bytes} bytes, other tenants hold {others_bytes}"), "--memory")
            }
        };
        let apart_bytes = (free.count() - free_blocks) * self.block_bytes;
        let apart = match (apart_bytes, rights) {
            (0, _) => String::new(),
            (_, Rights::ReadOnly) => {
                format!(
                    " ({apart_bytes} more are free for counters and tables with update=cas only)"
                )
            }
            (_, Rights::ReadWrite) => {
                format!(
                    " that clients may write ({apart_bytes} more are free for other tables only)"
                )
            }
        };
        let owed_bytes = self.floors.owed_bytes(NOBODY, rights);
        let owed = match owed_bytes {
            0 => String::new(),
            bytes => format!(", {bytes} kept for tables below their floor"),
        };
        let what = match rights {
            Rights::ReadOnly => "delete keys or drop a table",
            // What is deleted elsewhere is of use here only when a whole region of it went back.
            Rights::ReadWrite => {
                "delete keys of tables with update=cas, or give such a table a floor before others \
                 have taken the memory"
            }
        };
        let text = format!(
            "memory is full: {limit}, {in_use_bytes} in use{owed}, no {need_bytes} bytes in a row \
             left{apart}; nothing was changed: raise {raise}, or {what}",
        );
        RpcError::new(ErrorCode::OutOfMemory, text)
    }

    /// The refusal of an entry of `len_bytes`.
    pub(in crate::engine) fn refusal(&self, len_bytes: usize, rights: Rights) -> RpcError {
        self.full(&self.free.lock(), rights, len_bytes)
    }

    /// Bytes of the regions that may still be made.
    pub(in crate::engine) fn unmade_bytes(&self) -> usize {
        self.left_bytes(&self.free.lock())
    }

    pub(super) fn left_bytes(&self, free: &FreeBlocks) -> usize {
        let left_bytes = self.own_left_bytes(free);
        left_bytes.min(self.budget.left_for(self.share) / self.segment_bytes * self.segment_bytes)
    }

    /// As [`Self::left_bytes`], whatever others take.
    fn own_left_bytes(&self, free: &FreeBlocks) -> usize {
        self.limit_bytes - free.made_bytes() - free.retired_bytes
    }
}
