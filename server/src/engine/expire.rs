//! Removes entries whose time is over: nobody may come for their keys any more, and their memory
//! is to be used again. To a reader they are gone already; what it sees here is a delete.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use onesided_protocol::layout::line::{INDEX_SEGMENT_BYTES, LINE_WORDS};
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::Death;

use super::bucket::header_at;
use super::index::Segment;
use super::log::Log;
use super::table::Table;
use super::{Engine, publish};

/// A table is gone through once in so many calls of [`Engine::expire`].
const CALLS_PER_ROUND: usize = 60;
/// Where memory is full, a write goes through so many segments of the index, which is about a
/// millisecond, and at most one does in so much time.
const FULL_PART_SEGMENTS: usize = 2;
const FULL_PART_MIN_NS: u64 = 10_000_000;
/// Bytes of an entry that are looked at.
const HEADER_PREFETCH_BYTES: usize = 32;

/// Where removing expired entries goes on, and what the last round found.
#[derive(Default)]
pub(super) struct ExpiryRound {
    next_segment: AtomicUsize,
    found: AtomicU64,
    last_found: AtomicU64,
}

impl ExpiryRound {
    /// Entries that the last whole round found, and at least those of this one.
    pub(super) fn backlog(&self) -> u64 {
        self.last_found.load(Ordering::Relaxed).max(self.found.load(Ordering::Relaxed))
    }

    fn note(&self, found: usize, is_over: bool) {
        let found = self.found.fetch_add(found as u64, Ordering::Relaxed) + found as u64;
        if is_over {
            self.last_found.store(found, Ordering::Relaxed);
            self.found.store(0, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// Whether [`Self::expire`] has something to look at.
    #[must_use]
    pub fn has_expiring(&self) -> bool {
        self.by_id.load().iter().any(|table| table.expiring.load(Ordering::Relaxed))
    }

    /// Removes entries whose time is over from the next part of every table that holds any with
    /// an expiry. Gives how many. To be called every second or so: each call goes through a
    /// sixtieth, holding the lock of one index segment at a time.
    pub fn expire(&self) -> usize {
        self.by_id.load_full().iter().map(|table| table.expire_next()).sum()
    }
}

impl Table {
    fn expire_next(&self) -> usize {
        if !self.expiring.load(Ordering::Relaxed) {
            return 0;
        }
        self.expire_part(self.index.segment_count().div_ceil(CALLS_PER_ROUND))
    }

    /// Goes on with the round for so many segments of the index.
    fn expire_part(&self, count: usize) -> usize {
        let segments = self.index.segment_count();
        let count = count.min(segments);
        let first = self.expiry_round.next_segment.fetch_add(count, Ordering::Relaxed);
        let part = (first..first + count).map(|n| n % segments);
        let found = part.map(|n| self.expire_segment(self.index.segment(n as u32))).sum();
        self.expiry_round.note(found, first % segments + count >= segments);
        found
    }

    /// Memory is full: goes through a part of the table, unless that was done a moment ago; all of
    /// it would keep everybody else waiting. Gives whether something became free.
    pub(super) fn expire_for_room(&self) -> bool {
        if !self.expiring.load(Ordering::Relaxed) {
            return false;
        }
        let now_ns = self.shared.clock.unix_ns();
        let last_ns = self.full_part_ns.load(Ordering::Relaxed);
        let (set, fail) = (Ordering::Relaxed, Ordering::Relaxed);
        if now_ns < last_ns.saturating_add(FULL_PART_MIN_NS)
            || self.full_part_ns.compare_exchange(last_ns, now_ns, set, fail).is_err()
        {
            return false;
        }
        self.expire_part(FULL_PART_SEGMENTS) > 0
    }

    fn expire_segment(&self, segment: &Segment) -> usize {
        if self.is_cas() {
            return self.expire_shared(segment);
        }
        let pool = &self.shared.pool;
        let mut state = segment.state.lock();
        if state.count == 0 || self.dropped.load(Ordering::Acquire) {
            return 0;
        }
        let base = pool.at(segment.addr);
        let mut words = vec![0; INDEX_SEGMENT_BYTES / 8];
        base.read_words(&mut words);
        let before = state.count;
        for (n, line) in words.chunks_exact(LINE_WORDS).enumerate() {
            let slots = || (1..).zip(&line[1..]).filter_map(|(i, &w)| Some((i, Slot(w).addr()?)));
            slots().for_each(|(_, addr)| pool.at(addr).prefetch(HEADER_PREFETCH_BYTES));
            for (i, addr) in slots() {
                let at = pool.at(addr);
                let header = header_at(at);
                if self.is_expired(&header) {
                    publish::remove(at, base.plus((n * LINE_WORDS + i) * 8), Death::Expired);
                    state.count -= 1;
                    state.contents.sub(&header);
                    self.forget(at, &header);
                    Log::release(pool, &self.account, addr, header.padded_bytes());
                }
            }
        }
        let found = before - state.count;
        self.expired.fetch_add(found.into(), Ordering::Relaxed);
        found as usize
    }
}
