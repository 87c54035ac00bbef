//! What cleaning has done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;

/// What cleaning has done since the engine began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CleaningStatus {
    /// Bytes of entries that were written for clients.
    pub written_bytes: u64,
    /// Bytes of entries that were copied to empty segments.
    pub moved_bytes: u64,
    /// Entries that were.
    pub moved_entries: u64,
    /// Entries whose time was over, and that cleaning found.
    pub expired_entries: u64,
    /// Live entries that went because memory, or their table's quota, was full.
    pub evicted_entries: u64,
    /// Of these, those that went for their table's quota.
    pub evicted_for_quota: u64,
    /// Segments that were emptied.
    pub segments: u64,
    /// Bytes that became free by it.
    pub freed_bytes: u64,
    /// Segments that were not, because there was no room for copies.
    pub given_up: u64,
    /// Entries that were overwritten where they lay, for want of room.
    pub in_place_entries: u64,
    /// Writes that found no room and cleaned until there was some, or there was none to be had.
    pub waits: u64,
    /// The longest of these waits, us.
    pub longest_wait_us: u64,
}

impl CleaningStatus {
    /// Both together.
    pub(in crate::engine) fn and(self, other: &Self) -> Self {
        Self {
            written_bytes: self.written_bytes + other.written_bytes,
            moved_bytes: self.moved_bytes + other.moved_bytes,
            moved_entries: self.moved_entries + other.moved_entries,
            expired_entries: self.expired_entries + other.expired_entries,
            evicted_entries: self.evicted_entries + other.evicted_entries,
            evicted_for_quota: self.evicted_for_quota + other.evicted_for_quota,
            segments: self.segments + other.segments,
            freed_bytes: self.freed_bytes + other.freed_bytes,
            given_up: self.given_up + other.given_up,
            in_place_entries: self.in_place_entries + other.in_place_entries,
            waits: self.waits + other.waits,
            longest_wait_us: self.longest_wait_us.max(other.longest_wait_us),
        }
    }

    /// Bytes that were put into logs for each thousand that clients wrote; 0 before they did.
    #[must_use]
    pub fn write_amplification_per_mille(&self) -> u64 {
        let all_bytes = u128::from(self.written_bytes + self.moved_bytes);
        (all_bytes * 1_000).checked_div(self.written_bytes.into()).unwrap_or(0) as u64
    }
}

/// What has been done so far.
#[derive(Default)]
pub(in crate::engine) struct Counts {
    /// Bytes that were written into tables that were dropped.
    pub(in crate::engine) written_before_bytes: AtomicU64,
    pub(in crate::engine) moved_entries: AtomicU64,
    pub(in crate::engine) moved_bytes: AtomicU64,
    pub(in crate::engine) expired: AtomicU64,
    pub(in crate::engine) evicted_for_memory: AtomicU64,
    pub(in crate::engine) evicted_for_quota: AtomicU64,
    /// Emptied segments.
    pub(in crate::engine) segments: AtomicU64,
    /// Bytes that became free by it.
    pub(in crate::engine) freed_bytes: AtomicU64,
    /// Segments that were given up, because there was no room for copies.
    pub(in crate::engine) given_up: AtomicU64,
    /// Entries that were overwritten where they lay.
    pub(in crate::engine) in_place: AtomicU64,
    /// Writes that waited for room, and the longest such wait.
    pub(in crate::engine) waits: AtomicU64,
    pub(in crate::engine) longest_wait_us: AtomicU64,
}

pub(in crate::engine) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Engine {
    pub(in crate::engine) fn cleaning_status(&self) -> CleaningStatus {
        let counts = &self.shared.cleaner.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let evicted_for_quota = count(&counts.evicted_for_quota);
        CleaningStatus {
            written_bytes: self.written_bytes(),
            moved_bytes: count(&counts.moved_bytes),
            moved_entries: count(&counts.moved_entries),
            expired_entries: count(&counts.expired),
            evicted_entries: count(&counts.evicted_for_memory) + evicted_for_quota,
            evicted_for_quota,
            segments: count(&counts.segments),
            freed_bytes: count(&counts.freed_bytes),
            given_up: count(&counts.given_up),
            in_place_entries: count(&counts.in_place),
            waits: count(&counts.waits),
            longest_wait_us: count(&counts.longest_wait_us),
        }
    }
}
