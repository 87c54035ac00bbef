//! An update where the server's memory is mapped: a few stores and a compare-and-swap of the
//! processor's.

use std::cell::RefCell;

use onesided_fabric::{Loads, Memory, RegionId};
use onesided_protocol::LogAddr;
use onesided_protocol::layout::state::State;

use super::entry::{self, Words};
use super::known::Remembered;
use super::{Done, Put, REPAIR_EVERY, TRIES, Tried, Updates};
use crate::read::{self, Current, Look};
use crate::stats::Counter;
use crate::table::{OpenTable, Own};

thread_local! {
    static ENTRY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn put(
    open: &OpenTable,
    own: &Own,
    loads: &Loads,
    updates: &Updates,
    put: Put<'_>,
) -> Tried {
    Update { open, own, loads, updates, put }.make()
}

struct Update<'a> {
    open: &'a OpenTable,
    own: &'a Own,
    loads: &'a Loads,
    updates: &'a Updates,
    put: Put<'a>,
}

impl Update<'_> {
    fn make(&self) -> Tried {
        let view = &self.open.view;
        let hash = view.hash(self.put.key);
        let tag = self.updates.known.tag(hash, self.put.key);
        let Remembered { current, updates } = match self.updates.known.get(tag) {
            Some(remembered) => remembered,
            None => match read::current_now(&self.open.io(), view, self.put.key) {
                Look::Found(current) => Remembered { current, updates: 0 },
                Look::NoSlot => return Tried::AskServer,
                Look::Unknown => return Tried::LookUp,
            },
        };
        let len_bytes = entry::len_bytes(self.put.key, self.put.value);
        // Locked until it is written: see `extents`.
        let Some(mut room) = self.updates.extents.lock_in(self.updates.turn) else {
            return Tried::AskServer;
        };
        let Some(addr) = room.place(len_bytes) else {
            return if room.pauses() { Tried::AskServer } else { Tried::NoRoom };
        };
        let linked = self.link(current, addr, len_bytes);
        let Some((version, words)) = linked else {
            room.give_back(len_bytes);
            drop(room);
            self.updates.known.forget(tag);
            return Tried::AskServer;
        };
        let tend = room.is_low();
        drop(room);
        let word = words.committed;
        let current = Current { addr, word, version, expiry_s: self.put.expiry_s };
        let repair = updates + 1 >= REPAIR_EVERY;
        let updates = if repair { 0 } else { updates + 1 };
        self.updates.known.put(tag, Remembered { current, updates });
        Tried::Done(Done { version, tend, repair })
    }

    /// Links an entry at `addr` behind the newest one, and commits it. Gives its version.
    fn link(&self, mut current: Current, addr: LogAddr, len_bytes: usize) -> Option<(u64, Words)> {
        let memory = self.loads.region(RegionId(addr.region()))?;
        ENTRY.with_borrow_mut(|bytes| {
            bytes.resize(len_bytes, 0);
            for _ in 0..TRIES {
                if !self.put.may_replace(self.open, &current) {
                    return None;
                }
                let version = current.version.checked_add(1)?;
                let sums = &self.open.view.sums;
                let words = entry::lay_out(bytes, &self.put, version, addr, sums);
                // What is written from here on may not be seen by anybody: the session is over.
                if !self.loads.is_open() {
                    return None;
                }
                memory.write_bytes(addr.offset_bytes(), bytes).ok()?;
                self.own.shard.add(Counter::UpdateRoundTrips, 1);
                let found = swap(self.loads, current.addr, current.word, words.forward)?;
                if found == current.word {
                    // Whatever it finds: somebody else may have done so, and more.
                    let at = addr.offset_bytes();
                    let _committed = memory.compare_swap(at, words.pending, words.committed);
                    return Some((version, words));
                }
                self.own.shard.add(Counter::UpdatesLost, 1);
                current = self.newer(found)?;
            }
            None
        })
    }

    /// The newest entry, when the state word of one before it was this.
    fn newer(&self, found: u64) -> Option<Current> {
        match State::decode(found) {
            State::Forwarded(class, Some(addr)) => {
                read::newest_now(&self.open.io(), &self.open.view, (class, addr), self.put.key)
            }
            _ => match read::current_now(&self.open.io(), &self.open.view, self.put.key) {
                Look::Found(current) => Some(current),
                Look::NoSlot | Look::Unknown => None,
            },
        }
    }
}

/// A compare-and-swap of the state word at `addr`.
fn swap(loads: &Loads, addr: LogAddr, expected: u64, new: u64) -> Option<u64> {
    let memory: &Memory = loads.region(RegionId(addr.region()))?;
    memory.compare_swap(addr.offset_bytes(), expected, new).ok()
}
