//! Regions that are given back to the system: one is emptied, retired when nothing is in it, and
//! its pages go when no session can READ it any more.

use std::ops::Range;
use std::sync::atomic::Ordering;

use onesided_protocol::LogAddr;

use super::{Pool, Region};
use crate::engine::block::Use;

/// What could be given back if all that is live lay side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::engine) struct Slack {
    /// Bytes of regions beyond what is live, and what writers are to find free.
    pub(in crate::engine) bytes: usize,
    /// The longest region.
    pub(in crate::engine) region_bytes: usize,
}

/// Of what is live, so much more stays for writers, one of so many bytes.
const SPARE_PART: usize = 8;
/// A region is worth emptying if so much of it is not live, one of so many bytes.
const WORTH_PART: u64 = 16;

impl Pool {
    pub(in crate::engine) fn slack(&self) -> Slack {
        let totals = self.totals();
        let made_bytes = self.free.lock().made_bytes();
        let region_bytes = self.region_blocks * self.block_bytes;
        let used_bytes = (totals.live + totals.meta + totals.cells) as usize;
        let kept_bytes = used_bytes + used_bytes / SPARE_PART + region_bytes / 2;
        Slack { bytes: made_bytes.saturating_sub(kept_bytes), region_bytes }
    }

    /// The region that is the least work to empty, of those that hold log segments only and are
    /// worth it. Whether numbers are left to make as many as there may be again is looked at, too.
    pub(in crate::engine) fn easiest_to_leave(&self) -> Option<u32> {
        let (made, made_bytes) = {
            let free = self.free.lock();
            (free.made as usize, free.made_bytes())
        };
        let again = (self.limit_bytes - made_bytes).div_ceil(self.region_blocks * self.block_bytes);
        if made + again + 1 >= self.regions.len() {
            return None;
        }
        let live = |(id, region)| Some((live_bytes(region)?, id, region));
        let all = self.live_regions().filter_map(live);
        let (live_bytes, id, region) = all.min_by_key(|&(live_bytes, ..)| live_bytes)?;
        let len_bytes = region.memory.len_bytes() as u64;
        let worth_it = live_bytes + len_bytes / WORTH_PART <= len_bytes;
        worth_it.then_some(id)
    }

    /// Whether what is live in a region, and a segment more for rests, has room in free blocks
    /// elsewhere.
    pub(in crate::engine) fn has_room_beside(&self, id: u32) -> bool {
        let live_bytes: u64 = self.region(id).blocks.iter().map(|block| block.live_bytes()).sum();
        let needed = (live_bytes as usize + 2 * self.segment_bytes).div_ceil(self.block_bytes);
        let free = self.free.lock();
        let numbers = &free.of(self.region(id).rights).numbers;
        let within = numbers.range(self.blocks_of(id)).count();
        numbers.len() - within >= needed
    }

    /// Numbers of a region's blocks.
    pub(in crate::engine) fn blocks_of(&self, id: u32) -> Range<u32> {
        let first = self.number(id, 0);
        first..first + self.region(id).blocks.len() as u32
    }

    /// The log segments in a region.
    pub(in crate::engine) fn segments_of(&self, id: u32) -> Vec<LogAddr> {
        let blocks = (0..).step_by(self.block_bytes).zip(&self.region(id).blocks);
        let first = blocks.filter(|(_, block)| block.used_for() == Use::Log);
        first.map(|(at, _)| LogAddr::new(id, at)).collect()
    }

    /// Nothing is put into a region any more, and nobody who asks is told of it, if all its blocks
    /// are free. The catalog does not name it either.
    pub(in crate::engine) fn retire(&self, id: u32) -> bool {
        let mut free = self.free.lock();
        let region = self.region(id);
        let side = free.of_mut(region.rights);
        if !self.blocks_of(id).all(|number| side.numbers.contains(&number)) {
            return false;
        }
        self.blocks_of(id).for_each(|number| _ = side.numbers.remove(&number));
        region.retired.store(true, Ordering::Release);
        let len_bytes = region.memory.len_bytes();
        free.of_mut(region.rights).made_bytes -= len_bytes;
        free.retired += 1;
        free.retired_bytes += len_bytes;
        self.catalog.clear_region(id);
        self.note_levels(&free);
        true
    }

    /// Gives a retired region's memory back: no session can look at it any more. Says its length.
    pub(in crate::engine) fn give_back(&self, id: u32) -> usize {
        let region = self.region(id);
        if let Err(error) = region.memory.discard() {
            tracing::error!(%error, id, "the system did not take a region's memory back");
        }
        self.huge.gone(&region.huge);
        let len_bytes = region.memory.len_bytes();
        let mut free = self.free.lock();
        free.retired_bytes -= len_bytes;
        self.budget.give(self.share, len_bytes);
        self.note_levels(&free);
        len_bytes
    }
}

/// Live bytes of a region; `None`: something in it cannot be moved.
fn live_bytes(region: &Region) -> Option<u64> {
    let stays =
        |block: &super::Block| matches!(block.used_for(), Use::Meta | Use::Held | Use::Cells);
    let live = |block: &super::Block| (!stays(block)).then(|| block.live_bytes());
    region.blocks.iter().map(live).sum()
}
