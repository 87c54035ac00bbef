//! Memory that nobody has needed for a while goes back to the system, region by region.
//!
//! What lies in the region that is the least work to empty is moved elsewhere by the cleaner, as
//! if it were cleaned; then the region is retired, as the index of a dropped table is
//! ([`super::epoch`]), and its pages go when no session can READ it any more.

use parking_lot::Mutex;

use super::Engine;
use super::epoch::Memory;

/// Since when there is more memory than is needed.
#[derive(Default)]
pub(super) struct Shrinking {
    slack_since_ns: Mutex<Option<u64>>,
    /// Held by who empties a region: one at a time.
    pub(super) leaving: Mutex<()>,
}

/// What went back to the system since the engine began, and what waits for sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShrinkingStatus {
    /// Regions that went.
    pub given_back_regions: u64,
    /// Their length.
    pub given_back_bytes: u64,
    /// Regions and indexes of dropped tables that came back when sessions had acknowledged.
    pub epochs_over: u64,
    /// Those that sessions have still to acknowledge.
    pub epochs_waiting: u64,
    /// The longest of these waits that are over, in ms.
    pub longest_wait_ms: u64,
}

impl ShrinkingStatus {
    /// Both together.
    pub(super) fn and(self, other: &Self) -> Self {
        Self {
            given_back_regions: self.given_back_regions + other.given_back_regions,
            given_back_bytes: self.given_back_bytes + other.given_back_bytes,
            epochs_over: self.epochs_over + other.epochs_over,
            epochs_waiting: self.epochs_waiting + other.epochs_waiting,
            longest_wait_ms: self.longest_wait_ms.max(other.longest_wait_ms),
        }
    }
}

/// Ns of a second.
const SECOND_NS: u64 = 1_000_000_000;

impl Engine {
    /// Retires a region, if more than one has been too many for the configured time. To be called
    /// every second or so; it may take as long as copying a region does.
    pub fn shrink(&self) -> bool {
        let after_s = u64::from(self.shared.shrink_after_s);
        if after_s == 0 {
            return false;
        }
        let slack = self.shared.pool.slack();
        let now_ns = self.clock_ns();
        let mut since = self.shared.shrinking.slack_since_ns.lock();
        if slack.bytes < slack.region_bytes {
            *since = None;
            return false;
        }
        let sustained = now_ns >= since.get_or_insert(now_ns).saturating_add(after_s * SECOND_NS);
        drop(since);
        sustained && self.leave_region()
    }

    /// Whether [`Self::shrink`] has something to look at.
    #[must_use]
    pub fn may_shrink(&self) -> bool {
        self.shared.shrink_after_s != 0 && self.shared.pool.regions().1 > 0
    }

    /// Empties the region that is the least work to empty, and retires it; whether or not its
    /// memory is needed, so that only tests call this of themselves. `false`: none could be.
    pub fn leave_region(&self) -> bool {
        let left = self.shared.leave_region(&self.by_id.load_full());
        if let Some(id) = left {
            self.shared.epochs.retire(Memory::Region { id }, None, self.clock_ns());
        }
        left.is_some()
    }
}
