//! How much memory stays free, for whom, and when cleaning begins.
//!
//! | free blocks, of those in regions | who may take blocks |
//! |---|---|
//! | above the low mark | everybody; the cleaner rests |
//! | above half of it | everybody; the cleaner works |
//! | above the floor for growth | everybody, and whoever writes helps to clean |
//! | above the floor for replacing | who puts an entry in the place of one that is as long |
//! | below | the cleaner, for its copies |
//!
//! So a full store still takes what does not make it fuller, and cleaning, which needs room before
//! it makes some, always has it. As long as regions can still be made, all of this waits.
//!
//! Blocks that clients may write and those that they may only read are counted apart: free ones of
//! one kind are no use for the other.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use onesided_fabric::Rights;

/// What blocks are wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// New and longer entries, and the index.
    Grow,
    /// An entry in the place of one that is at least as long.
    Replace,
    /// A copy that lets something become free.
    Clean,
}

/// So many bytes in a row, for this, in regions of this right.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// The table that wants them.
    pub(super) owner: u32,
    pub(super) len_bytes: usize,
    pub(super) need: Need,
    pub(super) rights: Rights,
}

impl Wanted {
    /// For what clients only read.
    pub(super) fn to_read(owner: u32, len_bytes: usize, need: Need) -> Self {
        Self { owner, len_bytes, need, rights: Rights::ReadOnly }
    }
}

/// How much room there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Level {
    Ample,
    /// The cleaner is to work.
    Low,
    /// Who writes is to help.
    Short,
    /// Nothing may grow.
    Full,
}

/// Most of the room that the cleaner keeps ahead of writers: what they fill in a moment.
const AHEAD_MAX_BYTES: usize = 64 << 20;

/// So much is always worth a look.
const DUE: u64 = u64::MAX / 2;

/// The numbers of free blocks at which something changes.
pub(super) struct Marks {
    segment_blocks: usize,
    ahead_max_blocks: usize,
}

impl Marks {
    pub(super) fn new(segment_blocks: usize, block_bytes: usize) -> Self {
        Self { segment_blocks, ahead_max_blocks: AHEAD_MAX_BYTES / block_bytes }
    }

    /// Blocks that have to stay free, of so many that there are.
    pub(super) fn floor(&self, need: Need, made_blocks: usize) -> usize {
        let small = made_blocks / 16;
        let for_cleaner = (2 * self.segment_blocks).min(small);
        let for_replacing = (made_blocks / 32).max(self.segment_blocks.min(small));
        match need {
            Need::Grow => for_cleaner + for_replacing,
            Need::Replace => for_cleaner,
            Need::Clean => 0,
        }
    }

    /// What the cleaner keeps free above the floor.
    fn ahead(&self, made_blocks: usize) -> usize {
        let least = self.segment_blocks.min(made_blocks / 16);
        (made_blocks / 64).min(self.ahead_max_blocks).max(least)
    }

    pub(super) fn level(&self, free_blocks: usize, made_blocks: usize, grows: bool) -> Level {
        let floor = self.floor(Need::Grow, made_blocks);
        let ahead = self.ahead(made_blocks);
        match free_blocks {
            _ if grows => Level::Ample,
            n if n >= floor + ahead => Level::Ample,
            n if n >= floor + ahead / 2 => Level::Low,
            n if n >= floor => Level::Short,
            _ => Level::Full,
        }
    }
}

/// The level, and what died since somebody looked for something to clean.
#[derive(Default)]
pub(super) struct Room {
    level: AtomicU8,
    dead_bytes: AtomicU64,
    /// The last look that found nothing was for segments of which one of so many parts is dead.
    looked_for_part: AtomicUsize,
}

impl Room {
    pub(super) fn set(&self, level: Level) {
        if level == Level::Ample {
            // What dies meanwhile is not counted: when it gets low, a look is due.
            self.look_again();
        }
        self.level.store(level as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> Level {
        match self.level.load(Ordering::Relaxed) {
            0 => Level::Ample,
            1 => Level::Low,
            2 => Level::Short,
            _ => Level::Full,
        }
    }

    /// Bytes are dead. Counted only when it matters, since everybody counts here.
    #[inline]
    pub(super) fn note_dead(&self, bytes: usize) {
        if self.level.load(Ordering::Relaxed) != Level::Ample as u8 {
            self.dead_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Whether so much died since a look found nothing to gain, or that look was for segments of
    /// which more is dead than one of so many parts.
    pub(super) fn has_died(&self, bytes: u64, dead_part: usize) -> bool {
        self.dead_bytes.load(Ordering::Relaxed) >= bytes
            || self.looked_for_part.load(Ordering::Relaxed) < dead_part
    }

    /// A look is due, whatever the last one found.
    pub(super) fn look_again(&self) {
        self.dead_bytes.store(DUE, Ordering::Relaxed);
    }

    /// A look found nothing to gain of which one of so many parts is dead.
    pub(super) fn nothing_to_gain(&self, dead_part: usize) {
        self.looked_for_part.store(dead_part, Ordering::Relaxed);
        self.dead_bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_for_much_does_not_stand_for_one_for_little() {
        let room = Room::default();
        room.set(Level::Full);
        room.look_again();
        assert!(room.has_died(1_000, 16), "a look is due");
        room.nothing_to_gain(16);
        assert!(!room.has_died(1_000, 16), "there was none");
        assert!(room.has_died(1_000, 64), "none of which a 64th is dead, that is not known");
        room.nothing_to_gain(64);
        assert!(!room.has_died(1_000, 64) && !room.has_died(1_000, 16));
        room.note_dead(999);
        assert!(!room.has_died(1_000, 64));
        room.note_dead(1);
        assert!(room.has_died(1_000, 16), "so much has died since");
    }
}
