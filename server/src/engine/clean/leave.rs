//! Emptying a whole region, so that it can go.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{Cleaning, Step, Walk};
use crate::engine::Shared;
use crate::engine::room::Level;
use crate::engine::table::Table;

/// Segments that are cleaned elsewhere for one region, at most.
const STEPS_MAX: usize = 256;

impl Shared {
    /// Empties the region that is the least work to empty, and sees to it that nothing is put there
    /// any more. Gives its id; `None`: there is none, or somebody is at work in it.
    ///
    /// Others, who may need room, get the cleaner's work between any two segments.
    pub(in crate::engine) fn leave_region(&self, tables: &[Arc<Table>]) -> Option<u32> {
        let _alone = self.shrinking.leaving.lock();
        let id = self.pool.easiest_to_leave()?;
        if self.cleaner.mode != Cleaning::Off {
            self.make_room_beside(id);
        }
        // Neither copies nor others take what becomes free in it meanwhile.
        let _held = self.pool.hold_region(self.pool.blocks_of(id));
        tables.iter().for_each(|table| table.leave(id));
        let segments = self.pool.segments_of(id);
        if self.cleaner.mode == Cleaning::Off && !segments.is_empty() {
            return None;
        }
        for segment in segments {
            let mut work = self.cleaner.work.lock();
            // What is in work may be this one.
            work.finish(self);
            if let Some(walk) = Walk::pin(self, segment, None, |_| true) {
                work.empty(self, walk);
            }
            MutexGuard::unlock_fair(work);
        }
        self.pool.retire(id).then_some(id)
    }

    /// Cleans elsewhere until what is live in a region has room beside it, so that none is made for
    /// that, and copies do not fail at the limit.
    fn make_room_beside(&self, id: u32) {
        self.pool.look_again();
        let rights = self.pool.rights(id);
        for _ in 0..STEPS_MAX {
            if self.pool.has_room_beside(id) {
                return;
            }
            let choice = self.cleaner.choice(Some(rights), Level::Low);
            let mut work = self.cleaner.work.lock();
            if work.go_on(self, choice, usize::MAX) == Step::Nothing {
                return;
            }
            MutexGuard::unlock_fair(work);
        }
    }
}

impl Table {
    /// Appends no more to segments of this region.
    fn leave(&self, region: u32) {
        for log in [&self.log, &self.kept] {
            log.leave(&self.shared.pool, &self.account, region);
        }
    }
}
