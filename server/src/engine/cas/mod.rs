//! Tables whose entries clients update by WRITE and compare-and-swap (design.md 6).
//!
//! | file | what |
//! |---|---|
//! | this | from a slot to the key's newest entry |
//! | `change` | what the server does to entries of such a table |
//! | `lease` | room in the log that clients write entries into |
//! | `walk` | all entries of a segment, whoever wrote them |
//!
//! Clients never write the index. They replace an entry by forwarding it to one in a lease of
//! theirs, so slots lag: slot, entry, forwarded, ..., newest. Under the lock of a key's index
//! segment everything begins with *following* to the newest entry, which is committed then, and
//! pointing the slot at it; so what comes after knows no chains. The lock keeps other threads of
//! the server out, and no client: state words change by compare-and-swap only, and whoever loses
//! one looks again.
//!
//! **Accounts.** What holds a segment is the sum, over the slots that point into it, of what the
//! slot's size class says: slots are the server's own, so nothing that a client writes can make
//! what is taken off differ from what was put on. By how much that is more than the entries take
//! (up to 48 bytes of short ones, an eighth of long ones) is counted beside it, by what their
//! headers say when a slot begins to point at them and when it ends: exact as long as no client
//! changes a header; otherwise the table's figures are wrong by as much, and its segments are
//! cleaned too early or too late. An entry between a slot and the newest one lies
//! in a lease, which holds its segment, or is passed over by the walk that ends the lease. So a
//! segment is free when no slot points into it and nobody may link what lies there.
//!
//! **Nothing that clients write is believed.** An address is followed only into a log segment of
//! this very table, an entry must end inside it, have the key, a greater version than the one
//! before, and the checksum that its state word says. What does not prove itself is gone: the key
//! is removed and counted, as a client of this tenant has broken it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use onesided_protocol::LogAddr;
use onesided_protocol::control::UpdateMode;
use onesided_protocol::layout::entry::{EntryHeader, HEADER_BYTES};
use onesided_protocol::layout::line::{INDEX_SEGMENT_BYTES, LINE_WORDS};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::State;

use super::bucket::{Hit, header_at};
use super::index::Segment;
use super::publish;
use super::table::{Found, Table};

mod change;
mod lease;
mod walk;

pub use lease::CasStatus;

pub(super) use change::{LOST_MAX, contended};
pub(super) use walk::Stretch;

/// What an engine knows of such tables beside them.
#[derive(Default)]
pub(super) struct Cas {
    leases: lease::Leases,
    counts: Counts,
}

/// Steps from a slot to the newest entry that any chain may have: who updates one key over and
/// over has the server repair its slot long before.
const STEPS_MIN: usize = 1 << 16;

/// What happened in all tables.
#[derive(Default)]
struct Counts {
    /// Slots that were pointed at a newer entry.
    repaired: AtomicU64,
    /// Entries that a client had linked and the server committed.
    finished: AtomicU64,
    /// Compare-and-swaps that a client was faster than.
    lost: AtomicU64,
    /// Keys that were removed because what clients wrote did not prove itself.
    broken: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What a slot adds to the live bytes of the segment that it points into.
fn counted_bytes(slot: Slot) -> usize {
    size_class::bytes(slot.class())
}

/// By how much that is more than its entry takes, by what the header says now: a client may have
/// written any length there, of which only those of the class count.
fn over_bytes(slot: Slot, header: &EntryHeader) -> i32 {
    let below = slot.class().checked_sub(1).map_or(0, size_class::bytes);
    let taken_bytes = header.padded_bytes().clamp(below, counted_bytes(slot));
    (counted_bytes(slot) - taken_bytes) as i32
}

thread_local! {
    /// An entry's covered bytes, out of reach of who wrote them.
    static COVERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Table {
    /// Whether clients change its entries.
    #[inline]
    pub(super) fn is_cas(&self) -> bool {
        self.update == UpdateMode::Cas
    }

    /// Points the key's slot at its newest entry, which is committed then and what `found` says.
    /// The caller holds the lock of the key's index segment.
    pub(super) fn follow(&self, found: &mut Found<'_>, key: &[u8]) {
        let Some(hit) = found.probe.hit else { return };
        let newest = self
            .newest(hit, key)
            .filter(|newest| newest.addr == hit.addr || self.point(found, hit.slot_bytes, newest));
        match newest {
            Some(newest) => {
                found.state.contents.sub(&hit.header);
                found.state.contents.add(&newest.header);
                found.probe.hit = Some(newest);
            }
            None => self.forsake(found, hit),
        }
    }

    /// Lets the slot point at another entry of its key. `false`: its segment is free.
    fn point(&self, found: &Found<'_>, slot_bytes: usize, newest: &Hit) -> bool {
        let at = found.base.plus(slot_bytes);
        let class = size_class::of(newest.header.padded_bytes());
        let (old, new) = (at.load(), Slot::new(found.fingerprint(), class, newest.addr));
        if !self.shared.pool.count(newest.addr, counted_bytes(new)) {
            return false;
        }
        self.shared.pool.note_over(newest.addr, over_bytes(new, &newest.header));
        at.store(new.0);
        self.release_slot(Slot(old));
        if newest.header.expiry_s != 0 {
            // Of what clients store nobody else tells the rounds that look for what is over.
            self.expiring.store(true, Ordering::Relaxed);
        }
        count(&self.shared.cas.counts.repaired);
        true
    }

    /// A slot points no more.
    pub(super) fn release_slot(&self, slot: Slot) {
        if let Some(addr) = slot.addr() {
            let pool = &self.shared.pool;
            // Before it may be free, and another table's.
            pool.note_over(addr, -over_bytes(slot, &header_at(pool.at(addr))));
            self.account.give(pool.sub(addr, counted_bytes(slot)));
        }
    }

    /// The last entry of the chain that begins at the slot of `hit`, committed; or pending, if the
    /// device that commits it failed: its value counts all the same. `None`: what a client wrote
    /// leads nowhere.
    fn newest(&self, hit: Hit, key: &[u8]) -> Option<Hit> {
        let mut at = Hit { header: self.entry_at(hit.addr, key)?, ..hit };
        // While this takes its steps clients may lengthen the chain, and be given leases for that.
        let mut steps = 0;
        while steps < self.steps_max() {
            steps += 1;
            let word = self.shared.pool.at(at.addr).load();
            match State::decode(word) {
                State::Committed(sum) => return self.proves(&at, sum).then_some(at),
                // Something leads to it: the update has taken effect.
                State::Pending(sum) if self.proves(&at, sum) => {
                    if publish::finish(&self.shared, at.addr, word, sum).is_err() {
                        return Some(at);
                    }
                    count(&self.shared.cas.counts.finished);
                }
                State::Forwarded(_, Some(addr)) => {
                    let header = self.entry_at(addr, key)?;
                    // No circle is longer than its versions, and only clients link entries here.
                    if header.version <= at.header.version || header.flags != 0 {
                        return None;
                    }
                    at = Hit { addr, header, ..at };
                }
                State::Pending(_) | State::Forwarded(..) | State::Dead(_) => return None,
            }
        }
        None
    }

    /// More steps than the longest chain has. A server that did not run for a while finds one of
    /// all that its clients had room for: what lies between a slot and the newest entry is in
    /// leases, and none of them is walked through while the key's index segment is locked.
    fn steps_max(&self) -> usize {
        STEPS_MIN + self.leased_bytes.load(Ordering::Relaxed) / HEADER_BYTES
    }

    /// The header of what may be the key's entry at `addr`: all of it lies in one of this table's
    /// log segments.
    fn entry_at(&self, addr: LogAddr, key: &[u8]) -> Option<EntryHeader> {
        let header = self.shape_at(addr, self.shared.pool.log_room(addr, self.id())?)?;
        let at = self.shared.pool.at(addr).plus(header.key_offset());
        (usize::from(header.key_len) == key.len() && at.holds(key)).then_some(header)
    }

    /// The header of what may be an entry, which ends within `room_bytes`.
    fn shape_at(&self, addr: LogAddr, room_bytes: usize) -> Option<EntryHeader> {
        if room_bytes < HEADER_BYTES {
            return None;
        }
        let header = header_at(self.shared.pool.at(addr));
        (header.padded_bytes() <= room_bytes).then_some(header)
    }

    /// Whether the entry has this checksum, now that its header was copied.
    fn proves(&self, hit: &Hit, checksum: u64) -> bool {
        COVERED.with_borrow_mut(|bytes| {
            bytes.resize(hit.header.covered_to(), 0);
            self.shared.pool.at(hit.addr).read(bytes);
            let header = bytes.as_chunks::<8>().0.get(1..4).map(|words| {
                EntryHeader::from_words(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
            });
            header == Some(hit.header) && self.sums.checksum(hit.addr, bytes) == checksum
        })
    }

    /// Removes a key that clients have broken.
    #[cold]
    fn forsake(&self, found: &mut Found<'_>, hit: Hit) {
        let slot = found.base.plus(hit.slot_bytes);
        let old = Slot(slot.load());
        slot.store(Slot::EMPTY.0);
        found.gone(hit);
        self.release_slot(old);
        self.note_broken();
    }

    /// As [`Self::forsake`], of the slots of an index segment that still point at one of these.
    #[cold]
    fn forsake_all(&self, segment: &Segment, addrs: &[LogAddr]) {
        let mut state = segment.state.lock();
        if self.dropped.load(Ordering::Acquire) {
            return;
        }
        let base = self.shared.pool.at(segment.addr);
        let mut words = vec![0; INDEX_SEGMENT_BYTES / 8];
        base.read_words(&mut words);
        let is_slot = |n: &usize| !n.is_multiple_of(LINE_WORDS);
        for n in (0..words.len()).filter(is_slot) {
            let Some(addr) = Slot(words[n]).addr().filter(|addr| addrs.contains(addr)) else {
                continue;
            };
            base.plus(n * 8).store(Slot::EMPTY.0);
            state.count -= 1;
            state.contents.sub(&header_at(self.shared.pool.at(addr)));
            self.release_slot(Slot(words[n]));
            self.note_broken();
        }
    }

    fn note_broken(&self) {
        // Powers of two: whoever breaks many keys fills no log.
        let broken = self.shared.cas.counts.broken.fetch_add(1, Ordering::Relaxed) + 1;
        if broken.is_power_of_two() {
            let table = self.name();
            tracing::warn!(
                table,
                broken,
                "a client has broken the entry of a key, which was removed: clients of a table of \
                 mode `cas` can write its entries"
            );
        }
    }
}
