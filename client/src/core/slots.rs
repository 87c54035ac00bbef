//! Permits for the places of what is pending.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

/// Places beyond those that there are permits for: they are for what was posted without one, and
/// takes long.
pub(super) const LATE_MAX: usize = 64;

/// One permit for each place but the last [`LATE_MAX`].
pub(super) struct Slots {
    pub(super) permits: Semaphore,
    count: usize,
    /// Places that were taken when there was no permit: as many that become free give none.
    owed: AtomicUsize,
}

impl Slots {
    /// For so many places.
    pub(super) fn new(places: usize) -> Self {
        let count = places - LATE_MAX;
        Self { permits: Semaphore::new(count), count, owed: AtomicUsize::new(0) }
    }

    /// How many places there must be so that there are `permits`.
    pub(super) fn places(permits: usize) -> usize {
        permits + LATE_MAX
    }

    /// Whether there will be a place for one that is posted without a permit, as long as nobody
    /// else calls [`Self::take_late`].
    #[inline]
    pub(super) fn may_be_late(&self) -> bool {
        self.owed.load(Ordering::Relaxed) < LATE_MAX
    }

    /// Takes a place of those that [`Self::may_be_late`] spoke of. `false`: the connection was
    /// lost.
    pub(super) fn take_late(&self) -> bool {
        match self.permits.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(_) if self.permits.is_closed() => return false,
            Err(_) => _ = self.owed.fetch_add(1, Ordering::Relaxed),
        }
        true
    }

    /// So many places are free again.
    pub(super) fn give_back(&self, places: usize) {
        let mut owed = 0;
        let pay = |before: usize| {
            owed = before.min(places);
            Some(before - owed)
        };
        // The closure always gives a number.
        let _always_ok = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        self.permits.add_permits(places - owed);
    }

    /// Whether nobody has any.
    pub(super) fn are_free(&self) -> bool {
        self.permits.available_permits() == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_takes_a_place_when_no_permit_is_left_and_gives_none_back() {
        let slots = Slots::new(Slots::places(2));
        assert!(slots.take_late(), "with a permit");
        assert_eq!(slots.permits.available_permits(), 1);
        slots.permits.try_acquire().expect("the other").forget();
        for late in 0..LATE_MAX {
            assert!(slots.may_be_late() && slots.take_late(), "{late}");
        }
        assert!(!slots.may_be_late(), "as many as there are places");
        for late in 0..LATE_MAX {
            assert_eq!(slots.permits.available_permits(), 0, "{late}");
            slots.give_back(1);
        }
        assert!(slots.may_be_late());
        slots.give_back(2);
        assert!(slots.are_free());
        slots.permits.close();
        assert!(!slots.take_late(), "it was lost");
    }
}
