//! The steps by which a change becomes visible (design.md 5): the only place that stores state
//! words, and slots but for those that a split moves. The caller holds the lock of the key's
//! index segment, so nobody else changes the same words.
//!
//! | change | steps, each released before the next |
//! |---|---|
//! | insert | entry pending, slot, committed |
//! | update | entry pending, old entry forwarded, committed, slot |
//! | relocate | as update: the same version and value at another address |
//! | delete | old entry dead, slot empty |
//! | overwrite ([`super::in_place`]) | the same entry pending, committed, slot |
//! | patch ([`super::in_place`]) | the same entry pending, committed |
//!
//! Where clients change state words too ([`super::cas`]) what was committed changes by
//! compare-and-swap only, and a change may fail there.
//!
//! [`rules::holds`](onesided_protocol::rules::holds) lets a test leave one out, in the way that
//! the model does.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::layout::entry::{
    APPEND_NUMBER_OFFSET, COVERED_FROM, EntryHeader, STATE_OFFSET, VERSION_OFFSET,
};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::{Death, State};
use onesided_protocol::rpc::RpcError;
use onesided_protocol::rules::{Rule, holds};

use super::Shared;
use super::spot::Spot;

/// An entry that is to be written.
pub(super) struct Draft<'a> {
    pub(super) header: EntryHeader,
    /// Never given before in this server life; used if the entry is large.
    pub(super) append_number: u64,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

/// An entry that was written, pending.
pub(super) struct Pending<'a> {
    at: Spot<'a>,
    addr: LogAddr,
    class: u8,
    committed: u64,
}

/// Where an entry has its version.
const VERSION: Range<usize> = VERSION_OFFSET..VERSION_OFFSET + 8;

thread_local! {
    /// The covered bytes of the entry being written: at most a long key and a value that is not
    /// large.
    static COVERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes an entry at `addr`, whose place is `at`, pending. Its state word comes first and its
/// bytes in an order that helps no reader: nobody may rely on more.
pub(super) fn write<'a>(
    at: Spot<'a>,
    addr: LogAddr,
    sums: &ChecksumKey,
    draft: &Draft<'_>,
) -> Pending<'a> {
    COVERED.with_borrow_mut(|bytes| {
        lay_out(bytes, draft);
        let checksum = sums.checksum(addr, &bytes[..draft.header.covered_to()]);
        let committed = State::committed(checksum);
        let first = if holds(Rule::Pending) { State::pending(checksum) } else { committed };
        at.plus(STATE_OFFSET).store(first);
        // Where this is written over an entry: who sees anything new sees that it is pending.
        fence(Ordering::Release);
        // The value first, then what says whose it is.
        let key_end = draft.header.value_offset() / 8 * 8;
        if draft.header.is_large() {
            at.plus(draft.header.value_offset()).write(draft.value);
        }
        at.plus(key_end).write(&bytes[key_end..]);
        at.plus(COVERED_FROM).write(&bytes[COVERED_FROM..key_end]);
        let class = size_class::of(draft.header.padded_bytes());
        Pending { at, addr, class, committed }
    })
}

/// Replaces bytes of the value of a committed entry that is not large, where it lies. The new
/// header differs in its version alone: who walks through entries without a lock relies on lengths
/// and keys.
pub(super) fn patch(
    at: Spot<'_>,
    addr: LogAddr,
    sums: &ChecksumKey,
    header: &EntryHeader,
    offset_bytes: usize,
    value: &[u8],
) {
    COVERED.with_borrow_mut(|entry| {
        entry.clear();
        at.append_to(header.padded_bytes(), entry);
        let from = header.value_offset() + offset_bytes;
        let to = from + value.len();
        entry[from..to].copy_from_slice(value);
        entry[VERSION].copy_from_slice(&header.version.to_le_bytes());
        let checksum = sums.checksum(addr, &entry[..header.covered_to()]);
        let committed = State::committed(checksum);
        let first = if holds(Rule::Pending) { State::pending(checksum) } else { committed };
        at.plus(STATE_OFFSET).store(first);
        fence(Ordering::Release);
        // Whole words are stored faster than edges, and entries are made of them.
        let words = from / 8 * 8..to.next_multiple_of(8);
        at.plus(words.start).write(&entry[words]);
        at.plus(VERSION.start).write(&entry[VERSION]);
        at.plus(STATE_OFFSET).store(committed);
    });
}

/// The bytes of an entry without its state word: up to the value, and with it if not large.
fn lay_out(bytes: &mut Vec<u8>, draft: &Draft<'_>) {
    bytes.clear();
    bytes.extend_from_slice(&[0; COVERED_FROM]);
    for word in draft.header.to_words() {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    if draft.header.is_large() {
        debug_assert_eq!(bytes.len(), APPEND_NUMBER_OFFSET);
        let number = if holds(Rule::LargeUnique) { draft.append_number } else { 0 };
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(draft.key);
        return;
    }
    bytes.extend_from_slice(draft.key);
    bytes.extend_from_slice(draft.value);
    // Whole words are stored faster than edges.
    bytes.resize(draft.header.padded_bytes(), 0);
}

impl Pending<'_> {
    /// Its size class.
    pub(super) fn class(&self) -> u8 {
        self.class
    }

    /// As [`Self::update`] and [`Self::relocate`], where clients may replace the old entry, too.
    /// `false`: one was faster, and nothing was changed.
    ///
    /// # Errors
    /// The device that changes such words failed; nothing was changed.
    pub(super) fn link(
        &self,
        shared: &Shared,
        old: LogAddr,
        slot: Spot<'_>,
        fingerprint: u16,
    ) -> Result<bool, RpcError> {
        let linked = swap_committed(shared, old, State::forwarded(self.class, self.addr))?;
        if linked {
            // Nobody replaces what is pending, so nobody else changes this word.
            self.commit();
            self.point(slot, fingerprint);
        }
        Ok(linked)
    }

    fn commit(&self) {
        self.at.plus(STATE_OFFSET).store(self.committed);
    }

    fn point(&self, slot: Spot<'_>, fingerprint: u16) {
        slot.store(Slot::new(fingerprint, self.class, self.addr).0);
    }

    fn forward(&self, old: Spot<'_>) {
        old.plus(STATE_OFFSET).store(State::forwarded(self.class, self.addr));
    }

    /// Makes it the entry of a key that has none, in an empty slot.
    pub(super) fn insert(&self, slot: Spot<'_>, fingerprint: u16) {
        if holds(Rule::InsertPointsFirst) {
            self.point(slot, fingerprint);
            self.commit();
        } else {
            self.commit();
            self.point(slot, fingerprint);
        }
    }

    /// Makes it the successor of the entry at `old`, to which `slot` points.
    pub(super) fn update(&self, old: Spot<'_>, slot: Spot<'_>, fingerprint: u16) {
        self.succeed(old, slot, fingerprint, true);
    }

    /// As [`Self::update`], for a copy of the same version.
    pub(super) fn relocate(&self, old: Spot<'_>, slot: Spot<'_>, fingerprint: u16) {
        self.succeed(old, slot, fingerprint, holds(Rule::CleanMarks));
    }

    /// It was written over its predecessor, to which `slot` points.
    pub(super) fn overwrite(&self, slot: Spot<'_>, fingerprint: u16) {
        self.commit();
        self.point(slot, fingerprint);
    }

    fn succeed(&self, old: Spot<'_>, slot: Spot<'_>, fingerprint: u16, mark: bool) {
        let forward = || {
            if mark {
                self.forward(old);
            }
        };
        if holds(Rule::MarkBeforePublish) {
            forward();
            self.commit();
            self.point(slot, fingerprint);
        } else {
            self.point(slot, fingerprint);
            self.commit();
            forward();
        }
    }
}

/// Removes the entry at `old`, to which `slot` points.
pub(super) fn remove(old: Spot<'_>, slot: Spot<'_>, reason: Death) {
    if holds(Rule::DeleteMarks) {
        kill(old, reason);
    }
    slot.store(Slot::EMPTY.0);
}

/// As [`remove`], where clients may replace the old entry. `false`: one was faster, and nothing was
/// changed.
///
/// # Errors
/// As of [`Pending::link`].
pub(super) fn remove_shared(
    shared: &Shared,
    old: LogAddr,
    slot: Spot<'_>,
    why: Death,
) -> Result<bool, RpcError> {
    let removed = swap_committed(shared, old, State::dead(why))?;
    if removed {
        slot.store(Slot::EMPTY.0);
    }
    Ok(removed)
}

/// Replaces the state word of a committed entry. `false`: it is another one by now.
fn swap_committed(shared: &Shared, entry: LogAddr, new: u64) -> Result<bool, RpcError> {
    let word = shared.pool.at(entry).plus(STATE_OFFSET).load();
    match State::decode(word) {
        State::Committed(_) => shared.swap(entry, word, new),
        // It could not be finished when it was found.
        State::Pending(sum) => finish(shared, entry, word, sum).map(|()| false),
        _ => Ok(false),
    }
}

/// Commits an entry that a client has linked, and whose state word says `pending`; unless that is
/// done already, and more.
///
/// # Errors
/// As of [`Pending::link`].
pub(super) fn finish(
    shared: &Shared,
    entry: LogAddr,
    pending: u64,
    checksum: u64,
) -> Result<(), RpcError> {
    if holds(Rule::FinishByCas) {
        return shared.swap(entry, pending, State::committed(checksum)).map(|_| ());
    }
    shared.pool.at(entry).plus(STATE_OFFSET).store(State::committed(checksum));
    Ok(())
}

const _: () = assert!(STATE_OFFSET == 0, "an entry's address is that of its state word");

/// As [`kill`], if its state word is still this one.
///
/// # Errors
/// As of [`Pending::link`].
pub(super) fn kill_if(
    shared: &Shared,
    entry: LogAddr,
    word: u64,
    reason: Death,
) -> Result<bool, RpcError> {
    shared.swap(entry, word, State::dead(reason))
}

/// Marks an entry dead whose slot proves nothing any more: its table is being dropped.
pub(super) fn kill(old: Spot<'_>, reason: Death) {
    old.plus(STATE_OFFSET).store(State::dead(reason));
}
