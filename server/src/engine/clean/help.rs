//! What writers do for room: a little whenever it is short, and as much as it takes when there is
//! none.

use std::sync::atomic::Ordering;
use std::time::Instant;

use onesided_fabric::Rights;
use parking_lot::MutexGuard;

use super::{Choice, Cleaning, Step, count, row};
use crate::engine::Shared;
use crate::engine::room::{Level, Need, Wanted};
use crate::engine::table::Table;

/// How much a writer that helps walks through, for each byte it has written: more than has to be
/// walked through for a byte of room, as long as [`Cleaner::choice`] finds a segment.
const HELP_FACTOR: usize = 12;
const HELP_FACTOR_FULL: usize = 80;
/// And at most, so that no write takes much longer than others; or so many times what it has
/// written, since long values would take room faster than short ones make it.
const HELP_MAX_BYTES: usize = 128 << 10;
const HELP_MAX_FACTOR: usize = 4;
/// Segments that a writer without room empties before it tries again.
const SEGMENTS_FOR_ROOM: usize = 64;
/// Bytes that a write which would make the store fuller copies before it spares nothing that may
/// go, and how often as many as it wants; after twice as many it is refused: others wait meanwhile.
const EFFORT_MIN_BYTES: usize = 16 << 20;
const EFFORT_FACTOR: usize = 16;
/// A look at all segments takes as long as copying one byte for so many of the memory,
const LOOK_PART: usize = 8 << 10;
/// and any step as long as copying so many.
const STEP_BYTES: usize = 4 << 10;
/// How often it looks, meanwhile, for a stretch of a region to empty.
const ROWS_FOR_ROOM: usize = 4;

/// What a write has done for room so far.
#[derive(Default)]
pub(in crate::engine) struct Effort {
    /// Of copies, and what took as long.
    bytes: usize,
}

impl Effort {
    /// How often it has done what may be asked of it. What makes the store no fuller goes on as
    /// long as there is something to try.
    fn times(&self, Wanted { len_bytes, need, .. }: Wanted) -> usize {
        let most_bytes = EFFORT_MIN_BYTES.max(EFFORT_FACTOR.saturating_mul(len_bytes));
        if need == Need::Grow { self.bytes / most_bytes } else { 0 }
    }

    fn note(&mut self, moved_bytes: u64, looks: u64, memory_bytes: usize) {
        self.bytes += moved_bytes as usize + looks as usize * (memory_bytes / LOOK_PART);
        self.bytes += STEP_BYTES;
    }
}

impl Table {
    /// Something was written. When room is short, whoever writes cleans a little, in proportion;
    /// the caller holds no lock of the engine.
    #[inline]
    pub(in crate::engine) fn help_to_clean(&self, written_bytes: usize) {
        let rights = self.log.rights();
        let level = self.shared.pool.level(rights);
        if level != Level::Ample {
            self.shared.help_to_clean(rights, level, written_bytes);
        }
    }

    /// Seals the segments that are appended to, if they are worth emptying, and lets everything be
    /// looked at again. `false`: there is no more to gain than before.
    fn close_logs(&self, need: Need) -> bool {
        let pool = &self.shared.pool;
        let fresh = self.log.close_to_clean(pool, &self.account, self.evicts());
        let kept = self.kept.close_to_clean(pool, &self.account, false);
        // What replaces an entry is refused only after a look of its own, however little has died.
        let looks = fresh || kept || need == Need::Replace;
        if looks {
            pool.look_again();
        }
        looks
    }

    /// Tries to make room for so many bytes in a row. `false`: there is none to be had.
    pub(in crate::engine) fn make_room(&self, wanted: Wanted, effort: &mut Effort) -> bool {
        let began = Instant::now();
        let made = self.expire_for_room() || self.shared.make_room(Some(self), wanted, effort);
        let counts = &self.shared.cleaner.counts;
        count(&counts.waits, 1);
        let waited_us = began.elapsed().as_micros() as u64;
        counts.longest_wait_us.fetch_max(waited_us, Ordering::Relaxed);
        made
    }
}

impl Shared {
    #[cold]
    fn help_to_clean(&self, rights: Rights, level: Level, written_bytes: usize) {
        if self.cleaner.mode == Cleaning::Off {
            return;
        }
        let choice = self.cleaner.choice(Some(rights), level);
        if self.pool.has_changed(choice.rights, choice.dead_part) {
            self.cleaner.waker.wake();
        }
        if level == Level::Low {
            return;
        }
        if let Some(mut work) = self.cleaner.work.try_lock() {
            let factor = if level == Level::Full { HELP_FACTOR_FULL } else { HELP_FACTOR };
            let most_bytes = HELP_MAX_BYTES.max(written_bytes * HELP_MAX_FACTOR);
            let budget_bytes = (written_bytes * factor).min(most_bytes);
            work.go_on(self, choice, budget_bytes);
        }
    }

    /// Tries to make room for so many bytes in a row; in a table, or for one that is to be made.
    pub(in crate::engine) fn make_room(
        &self,
        table: Option<&Table>,
        wanted: Wanted,
        effort: &mut Effort,
    ) -> bool {
        let Wanted { len_bytes, need, rights, .. } = wanted;
        let taken_bytes = len_bytes.next_multiple_of(self.pool.block_bytes());
        let spare_bytes = self.pool.segment_bytes();
        // Nothing is to go for what cannot fit at all.
        let quota_could = |table: &Table| table.account.could_hold(taken_bytes, need, spare_bytes);
        let could = self.pool.could_hold(wanted) && table.is_none_or(quota_could);
        if self.cleaner.mode == Cleaning::Off || !could {
            return false;
        }
        self.cleaner.waker.wake();
        let mut work = self.cleaner.work.lock();
        let over_quota =
            || table.filter(|table| table.account.is_over(taken_bytes, need, spare_bytes));
        let (mut closed, mut rows) = (false, 0);
        for n in 0..SEGMENTS_FOR_ROOM {
            // Those who need less may find it by now.
            MutexGuard::bump(&mut work);
            let owner = over_quota().map(Table::id);
            if owner.is_none() {
                if self.pool.has_room(wanted) {
                    return true;
                }
                // What is in work goes to its end first: nothing else is emptied meanwhile.
                let enough = work.walk.is_none() && self.pool.has_enough(wanted);
                if enough && rows < ROWS_FOR_ROOM {
                    rows += 1;
                    if row::make(self, &mut work, wanted) {
                        return true;
                    }
                }
            }
            let times = effort.times(wanted);
            if times >= 2 {
                return false;
            }
            // The coldest may all be where nothing is emptied, or make too little room.
            let spares_none = n >= SEGMENTS_FOR_ROOM / 2 || times == 1;
            // What a table over its quota loses may lie anywhere.
            let rights = owner.is_none().then_some(rights);
            let choice = self.cleaner.choice(rights, Level::Full);
            let choice =
                Choice { owner, spares_none, wanted_by: table.map_or(0, Table::id), ..choice };
            let moved_bytes = || self.cleaner.counts.moved_bytes.load(Ordering::Relaxed);
            let before = (moved_bytes(), work.looks());
            let step = work.go_on(self, choice, usize::MAX);
            let (moved_bytes, looks) = (moved_bytes() - before.0, work.looks() - before.1);
            effort.note(moved_bytes, looks, self.pool.limit_bytes());
            if step != Step::Nothing {
                continue;
            }
            // What can be cleaned may all be in the segments that are appended to.
            let close = |table: &Table| table.close_logs(need);
            if std::mem::replace(&mut closed, true) || !table.is_some_and(close) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY_BYTES: usize = 2 << 30;

    fn steps_until(times: usize, wanted: Wanted, (moved_bytes, looks): (u64, u64)) -> usize {
        let mut effort = Effort::default();
        let steps = (0..10_000).take_while(|_| {
            let goes_on = effort.times(wanted) < times;
            effort.note(moved_bytes, looks, MEMORY_BYTES);
            goes_on
        });
        steps.count()
    }

    #[test]
    fn a_write_that_grows_works_for_room_in_proportion_and_no_longer() {
        let grow = |len_bytes| Wanted::to_read(0, len_bytes, Need::Grow);
        let segment = ((1 << 20) - STEP_BYTES as u64, 0);
        assert_eq!([1, 2].map(|times| steps_until(times, grow(100), segment)), [16, 32]);
        assert_eq!(steps_until(2, grow(4 << 20), segment), 128);
        // What frees nothing ends, too, and looks are dearer where there is more to look at.
        assert_eq!(steps_until(2, grow(100), (0, 1)), 127);
        assert_eq!(steps_until(2, grow(100), (0, 0)), 8_192);
    }

    #[test]
    fn a_write_that_does_not_grow_is_not_refused_for_its_effort() {
        let wanted = Wanted::to_read(0, 100, Need::Replace);
        assert_eq!(steps_until(1, wanted, (1 << 20, 1)), 10_000);
    }
}
