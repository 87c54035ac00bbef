//! How much is left, and for whom: what stays free for cleaning and replacing, and what tables are
//! owed by their floors ([`crate::engine::floor`]).

use std::sync::Arc;

use onesided_fabric::Rights;

use super::free::FreeBlocks;
use super::{Pool, place_of};
use crate::engine::account::Account;
use crate::engine::room::{Need, Wanted};

/// Of the memory, one of so many bytes is left to a first writable region, whatever those take
/// that clients only read: where these have filled it there would never be a counter,
const FIRST_WRITABLE_PART: usize = 64;
/// and a segment at least, unless there are only so many.
const FEW_SEGMENTS: usize = 32;

/// How much that is.
pub(super) fn first_writable_bytes(limit_bytes: usize, segment_bytes: usize) -> usize {
    match limit_bytes / segment_bytes {
        0..FEW_SEGMENTS => 0,
        segments => (segments / FIRST_WRITABLE_PART).max(1) * segment_bytes,
    }
}

/// No table's id.
pub(super) const NOBODY: u32 = 0;

impl Pool {
    /// Whether so many bytes in a row could be taken now.
    pub(in crate::engine) fn has_room(&self, wanted: Wanted) -> bool {
        let blocks = self.blocks_for(wanted.len_bytes);
        let free = self.free.lock();
        let left_bytes = self.left_for(&free, wanted.need, wanted.owner, wanted.rights);
        left_bytes >= blocks * self.block_bytes || self.find(&free, blocks, wanted).is_some()
    }

    /// Whether so many bytes in a row might be taken if all logs were empty. Looks closely only for
    /// what is longer than a segment.
    pub(in crate::engine) fn could_hold(&self, wanted: Wanted) -> bool {
        if wanted.len_bytes <= self.segment_bytes {
            return true;
        }
        let all_bytes = match wanted.rights {
            Rights::ReadOnly => self.most_to_read_bytes(),
            Rights::ReadWrite => self.limit_bytes,
        };
        let all_blocks = all_bytes / self.block_bytes;
        let totals = self.totals();
        let meta_blocks = (totals.meta + totals.cells) as usize / self.block_bytes;
        let floors_blocks = self.floors.floor_bytes(wanted.owner).div_ceil(self.block_bytes);
        let kept_blocks = self.marks.floor(wanted.need, all_blocks) + floors_blocks + meta_blocks;
        self.blocks_for(wanted.len_bytes) + kept_blocks <= all_blocks
    }

    /// Whether as much stays free without `blocks` as this need has to leave to others.
    pub(super) fn leaves_enough(&self, free: &FreeBlocks, blocks: usize, wanted: Wanted) -> bool {
        let Wanted { owner, need, rights, .. } = wanted;
        let kept_blocks = self.marks.floor(need, free.of(rights).made_bytes / self.block_bytes);
        let owed_blocks = match need {
            // What a copy takes comes back.
            Need::Clean => 0,
            _ => self.owed_blocks(free, owner, rights),
        };
        free.count_of(rights) >= blocks + kept_blocks + owed_blocks
    }

    /// Blocks of the regions that there are which others than `owner` are owed: what is left to be
    /// made will not do.
    fn owed_blocks(&self, free: &FreeBlocks, owner: u32, rights: Rights) -> usize {
        let owed_bytes = self.floors.owed_bytes(owner, rights);
        if owed_bytes == 0 {
            return 0;
        }
        let other = match rights {
            Rights::ReadOnly => Rights::ReadWrite,
            Rights::ReadWrite => Rights::ReadOnly,
        };
        let others_bytes =
            self.floors.owed_bytes(owner, other) + self.kept_for_writable(free, rights);
        let left_bytes = self.left_bytes(free).saturating_sub(others_bytes);
        owed_bytes.saturating_sub(left_bytes).div_ceil(self.block_bytes)
    }

    /// Blocks that have to stay free of so many, for what is new.
    pub(in crate::engine) fn kept_blocks(&self, all_blocks: usize) -> usize {
        self.marks.floor(Need::Grow, all_blocks)
    }

    /// So much is this engine's alone, if others were not promised too much for that.
    pub(in crate::engine) fn promise(&self, bytes: usize) -> bool {
        self.budget.promise(self.share, bytes)
    }

    /// These accounts have floors.
    pub(in crate::engine) fn set_floors(&self, accounts: Vec<Arc<Account>>) {
        let free = self.free.lock();
        self.floors.set(accounts);
        self.note_levels(&free);
    }

    /// Says how much room there is: whoever changes the number of free blocks calls it.
    pub(super) fn note_levels(&self, free: &FreeBlocks) {
        for rights in [Rights::ReadOnly, Rights::ReadWrite] {
            let grows = self.left_for(free, Need::Grow, NOBODY, rights) > 0;
            let made_blocks = free.of(rights).made_bytes / self.block_bytes;
            let owed_blocks = self.owed_blocks(free, NOBODY, rights);
            let free_blocks = free.count_of(rights).saturating_sub(owed_blocks);
            let level = self.marks.level(free_blocks, made_blocks, grows);
            self.rooms[place_of(rights)].set(level);
        }
    }

    /// So many free blocks in a row, in one region, if they may be taken.
    pub(super) fn find(&self, free: &FreeBlocks, blocks: usize, wanted: Wanted) -> Option<u32> {
        if !self.leaves_enough(free, blocks, wanted) {
            return None;
        }
        self.find_row(free, wanted.rights, blocks)
    }

    /// Bytes of the regions of this right that may still be made for a table: not what others are
    /// owed.
    pub(super) fn left_for(
        &self,
        free: &FreeBlocks,
        need: Need,
        owner: u32,
        rights: Rights,
    ) -> usize {
        let owed = |rights| self.floors.owed_bytes(owner, rights);
        let owed_bytes = match need {
            Need::Clean => 0,
            _ => owed(Rights::ReadOnly) + owed(Rights::ReadWrite),
        };
        let kept_bytes = owed_bytes + self.kept_for_writable(free, rights);
        self.left_bytes(free).saturating_sub(kept_bytes)
    }

    /// What is left to a first writable region.
    pub(in crate::engine) fn kept_writable_bytes(&self) -> usize {
        self.kept_for_writable(&self.free.lock(), Rights::ReadOnly)
    }

    /// What regions of this right leave to a first writable one.
    pub(super) fn kept_for_writable(&self, free: &FreeBlocks, rights: Rights) -> usize {
        let is_there = free.of(Rights::ReadWrite).made_bytes > 0;
        if rights == Rights::ReadWrite || is_there { 0 } else { self.first_writable_bytes }
    }
}
