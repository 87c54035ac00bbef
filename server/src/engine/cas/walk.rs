//! Going through all entries of a segment of a table that clients update, whoever wrote them: when
//! a lease ends, so that every slot points past what lies there, and before the segment is used
//! again.

use std::ops::Range;
use std::sync::atomic::Ordering;

use onesided_protocol::LogAddr;
use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::layout::line::INDEX_SEGMENT_BYTES;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::State;
use onesided_protocol::rpc::RpcError;
use onesided_protocol::rules::{Rule, holds};

use super::LOST_MAX;
use crate::engine::bucket::header_at;
use crate::engine::clean::count;
use crate::engine::index::Segment;
use crate::engine::room::Need;
use crate::engine::table::{Table, read_value};

const SEGMENT_WORDS: usize = INDEX_SEGMENT_BYTES / 8;

/// A part of a segment: from its start, bytes.
pub(in crate::engine) struct Stretch {
    pub(in crate::engine) start: LogAddr,
    pub(in crate::engine) bytes: Range<usize>,
}

impl Stretch {
    fn at(&self, bytes: usize) -> LogAddr {
        LogAddr::new(self.start.region(), self.start.offset_bytes() + bytes)
    }

    /// Where in it an address is, from the segment's start.
    fn place_of(&self, addr: LogAddr) -> Option<usize> {
        let bytes = addr.offset_bytes().checked_sub(self.start.offset_bytes())?;
        (addr.region() == self.start.region() && self.bytes.contains(&bytes)).then_some(bytes)
    }
}

impl Table {
    /// Every slot whose chain leads through one of these entries points at the newest one.
    pub(super) fn repair(&self, stretch: &Stretch) {
        let (mut key, mut next) = (Vec::new(), stretch.bytes.start);
        while let Some((header, is_passed)) = self.next_entry(stretch, next) {
            if !is_passed {
                self.read_key(stretch.at(next), &header, &mut key);
                // That is all there is to it. A dropped table has no slots.
                let _followed = self.find(&key);
            }
            next += header.padded_bytes();
        }
    }

    /// The keys of some entries of a segment from `next` on have no entry in it any more when this
    /// is done. Gives where to go on; `None`: there are no others.
    pub(in crate::engine) fn empty(
        &self,
        stretch: &Stretch,
        mut next: usize,
        most: usize,
        (key, value): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<Option<usize>, RpcError> {
        for _ in 0..most {
            let Some((header, is_passed)) = self.next_entry(stretch, next) else {
                return Ok(None);
            };
            if !is_passed {
                self.read_key(stretch.at(next), &header, key);
                self.move_out(stretch, key, value)?;
            }
            next += header.padded_bytes();
        }
        Ok(Some(next))
    }

    /// As [`Self::empty`], of what the walk has not met: clients have broken what leads there. Goes
    /// through all slots; what proves itself is moved, and the other keys are gone.
    pub(in crate::engine) fn empty_by_slots(
        &self,
        stretch: &Stretch,
        (key, value): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), RpcError> {
        for segment in self.index.segments() {
            let addrs = self.slots_into(segment, stretch);
            for &addr in &addrs {
                let room_bytes = self.shared.pool.log_room(addr, self.id());
                if let Some(header) = room_bytes.and_then(|bytes| self.shape_at(addr, bytes)) {
                    self.read_key(addr, &header, key);
                    self.move_out(stretch, key, value)?;
                }
            }
            if !addrs.is_empty() {
                self.forsake_all(segment, &addrs);
            }
        }
        Ok(())
    }

    /// Where the slots of an index segment point to in a stretch.
    fn slots_into(&self, segment: &Segment, stretch: &Stretch) -> Vec<LogAddr> {
        let mut words = vec![0; SEGMENT_WORDS];
        let _state = segment.state.lock();
        if self.dropped.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.shared.pool.at(segment.addr).read_words(&mut words);
        let is_there = |addr: &LogAddr| stretch.place_of(*addr).is_some();
        super::super::split::slots(&words).filter_map(Slot::addr).filter(is_there).collect()
    }

    /// The entry at `next`, if something was written there; and whether its key need not be looked
    /// at, since a later entry of the same key in this segment leads on.
    fn next_entry(&self, stretch: &Stretch, next: usize) -> Option<(EntryHeader, bool)> {
        let room_bytes = stretch.bytes.end.checked_sub(next)?;
        let header = self.shape_at(stretch.at(next), room_bytes)?;
        // Leases begin as zeros, and an entry has a version. One that was being written when its
        // client died is the last: clients write them in the order of their places.
        if header == EntryHeader::default() {
            return None;
        }
        let is_passed = match State::decode(self.shared.pool.at(stretch.at(next)).load()) {
            State::Dead(_) => true,
            State::Forwarded(_, Some(to)) if holds(Rule::RepairBeforeReuse) => {
                stretch.place_of(to).is_some_and(|place| place > next)
            }
            State::Forwarded(..) => !holds(Rule::RepairBeforeReuse),
            State::Pending(_) | State::Committed(_) => false,
        };
        Some((header, is_passed))
    }

    /// The key of an entry whose shape is known.
    fn read_key(&self, addr: LogAddr, header: &EntryHeader, key: &mut Vec<u8>) {
        key.resize(usize::from(header.key_len), 0);
        self.shared.pool.at(addr).plus(header.key_offset()).read(key);
    }

    /// Lets a key's entry be elsewhere, if it is in this segment.
    fn move_out(&self, stretch: &Stretch, key: &[u8], value: &mut Vec<u8>) -> Result<(), RpcError> {
        let counts = &self.shared.cleaner.counts;
        for _ in 0..LOST_MAX {
            // No such table any more: nothing of it is live.
            let Ok(mut found) = self.find(key) else { return Ok(()) };
            let Some(hit) = self.drop_expired(&mut found, key)? else { return Ok(()) };
            if stretch.place_of(hit.addr).is_none() {
                return Ok(());
            }
            read_value(self.shared.pool.at(hit.addr), &hit.header, value);
            let fresh = self.append_entry(&self.kept, Need::Clean, hit.header, key, value)?;
            if self.link(&found, hit, &fresh)? {
                count(&counts.moved_entries, 1);
                count(&counts.moved_bytes, hit.header.padded_bytes() as u64);
                return Ok(());
            }
        }
        Err(super::change::contended())
    }

    /// Removes what has expired of the keys of an index segment. Gives how many.
    pub(in crate::engine) fn expire_shared(&self, segment: &Segment) -> usize {
        let is_over = |key: &Vec<u8>| {
            let Ok(mut found) = self.find(key) else { return false };
            found.probe.hit.is_some() && matches!(self.drop_expired(&mut found, key), Ok(None))
        };
        self.seemingly_expired(segment).iter().filter(|&key| is_over(key)).count()
    }

    /// Keys of entries that slots point at and whose time is over: newer ones may have replaced
    /// them.
    fn seemingly_expired(&self, segment: &Segment) -> Vec<Vec<u8>> {
        let pool = &self.shared.pool;
        let mut words = vec![0; SEGMENT_WORDS];
        let _state = segment.state.lock();
        if self.dropped.load(Ordering::Acquire) {
            return Vec::new();
        }
        pool.at(segment.addr).read_words(&mut words);
        let key_of = |addr: LogAddr| {
            let header = header_at(pool.at(addr));
            let room_bytes = pool.log_room(addr, self.id())?;
            if !self.is_expired(&header) || header.padded_bytes() > room_bytes {
                return None;
            }
            let mut key = Vec::new();
            self.read_key(addr, &header, &mut key);
            Some(key)
        };
        super::super::split::slots(&words).filter_map(Slot::addr).filter_map(key_of).collect()
    }
}
