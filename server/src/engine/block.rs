//! What the server knows of a block, beside its bytes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use onesided_fabric::Rights;

use super::evict::Part;

/// Bit of [`Block::holds`]: the log still appends to it.
const ACTIVE: u64 = 1 << 63;
/// Somebody is at work in the run that begins here.
const PIN: u64 = 1 << 32;
/// Bits of live bytes.
const LIVE: u64 = PIN - 1;

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Use {
    Free = 0,
    /// A segment of a log, or the first of a run of them.
    Log = 1,
    /// Index segments and directories.
    Meta = 2,
    /// Belongs to the run that begins before it.
    RunTail = 3,
    /// Cells of counters ([`super::cells`]).
    Cells = 5,
    /// Not used: it stands for as much memory elsewhere ([`super::order`]).
    Held = 4,
}

/// Server-private state of a block. Of a run all but `used_for` and `run` is in the first one's.
#[derive(Default)]
pub(super) struct Block {
    /// What keeps the run from being free: bytes of live entries; above them pins, one for each
    /// entry that is being written, and one of the cleaner; [`ACTIVE`]. It becomes free exactly
    /// when this becomes 0.
    holds: AtomicU64,
    /// By how much entries count as longer than they are ([`super::cas`]), if that is positive.
    /// Only figures, and the choice of what is cleaned, go by it.
    over_bytes: AtomicU32,
    /// A [`Use`].
    used_for: AtomicU32,
    /// Blocks of the run that begins here; in its other blocks, how far back it begins.
    run: AtomicU32,
    /// Id of the table whose log it is.
    owner: AtomicU32,
    /// Bytes that entries were put into, live or dead: set when nothing is appended any more.
    used_bytes: AtomicU32,
    /// The order in which segments were sealed.
    sealed_as: AtomicU64,
    /// [`Part::Kept`].
    is_kept: AtomicBool,
}

/// A log segment that nothing is appended to, pinned or at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sealed {
    pub(super) owner: u32,
    pub(super) blocks: usize,
    pub(super) used_bytes: usize,
    pub(super) live_bytes: usize,
    /// The smaller, the older.
    pub(super) sealed_as: u64,
    pub(super) part: Part,
    /// Of the region that it is in.
    pub(super) rights: Rights,
}

impl Block {
    pub(super) fn used_for(&self) -> Use {
        match self.used_for.load(Ordering::Relaxed) {
            used if used == Use::Free as u32 => Use::Free,
            used if used == Use::Meta as u32 => Use::Meta,
            used if used == Use::RunTail as u32 => Use::RunTail,
            used if used == Use::Held as u32 => Use::Held,
            used if used == Use::Cells as u32 => Use::Cells,
            _ => Use::Log,
        }
    }

    /// Blocks of the run that begins here.
    pub(super) fn run(&self) -> usize {
        self.run.load(Ordering::Relaxed) as usize
    }

    /// How many blocks before this one its run begins.
    #[inline]
    pub(super) fn back(&self) -> usize {
        match self.used_for.load(Ordering::Relaxed) == Use::RunTail as u32 {
            true => self.run.load(Ordering::Relaxed) as usize,
            false => 0,
        }
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// What live entries take.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_of(self.holds.load(Ordering::Relaxed))
    }

    fn live_of(&self, holds: u64) -> u64 {
        let over_bytes = self.over_bytes.load(Ordering::Relaxed).cast_signed();
        (holds & LIVE).saturating_sub(u64::try_from(over_bytes).unwrap_or(0))
    }

    /// Whether anything counts as live.
    pub(super) fn has_live(&self) -> bool {
        self.holds.load(Ordering::Relaxed) & LIVE != 0
    }

    /// What counts as live says so many bytes more than it takes, or less.
    pub(super) fn note_over(&self, bytes: i32) {
        self.over_bytes.fetch_add(bytes.cast_unsigned(), Ordering::Relaxed);
    }

    /// It is block `at` of a run, from now on.
    pub(super) fn occupy(&self, at: usize, use_: Use, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
        self.holds.store(0, Ordering::Relaxed);
        self.over_bytes.store(0, Ordering::Relaxed);
        let use_ = if at == 0 || use_ == Use::Meta { use_ } else { Use::RunTail };
        self.used_for.store(use_ as u32, Ordering::Relaxed);
        if at > 0 {
            self.run.store(at as u32, Ordering::Relaxed);
        }
    }

    /// The run that begins here has so many blocks.
    pub(super) fn set_run(&self, blocks: usize) {
        self.run.store(blocks as u32, Ordering::Relaxed);
    }

    pub(super) fn free(&self) {
        self.used_for.store(Use::Free as u32, Ordering::Relaxed);
    }

    /// The log appends to it.
    pub(super) fn activate(&self) {
        self.holds.fetch_or(ACTIVE, Ordering::Relaxed);
    }

    /// An entry of so many bytes is being written: live, and pinned until [`Self::unpin`].
    #[inline]
    pub(super) fn add(&self, bytes: usize) {
        self.holds.fetch_add(PIN + bytes as u64, Ordering::Relaxed);
    }

    /// All that is live in it is counted no more, so that it becomes free with its last pin.
    pub(super) fn forget_live(&self) {
        self.holds.fetch_and(!LIVE, Ordering::AcqRel);
    }

    /// Counts more bytes as live, unless it is free, or already full of what cannot be. From then
    /// on it is not free until they are taken off.
    #[must_use]
    pub(super) fn count(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let more = |holds: u64| {
            let room = (holds & LIVE) + bytes <= LIVE / 2;
            (holds != 0 && room).then_some(holds + bytes)
        };
        self.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Whether it is active and nothing in it is live or being written.
    pub(super) fn is_all_dead(&self) -> bool {
        self.holds.load(Ordering::Acquire) == ACTIVE
    }

    /// So many bytes are dead. `true`: now it is free.
    #[inline]
    #[must_use]
    pub(super) fn sub(&self, bytes: usize) -> bool {
        self.take_off(bytes as u64)
    }

    /// Who pinned it is done. `true`: now it is free.
    #[inline]
    #[must_use]
    pub(super) fn unpin(&self) -> bool {
        self.take_off(PIN)
    }

    #[inline]
    fn take_off(&self, what: u64) -> bool {
        self.holds.fetch_sub(what, Ordering::AcqRel) == what
    }

    /// Says whose and how many its entries are, and when that was settled.
    pub(super) fn close(&self, part: Part, used_bytes: usize, sealed_as: u64) {
        self.is_kept.store(part == Part::Kept, Ordering::Relaxed);
        self.used_bytes.store(used_bytes as u32, Ordering::Relaxed);
        self.sealed_as.store(sealed_as, Ordering::Relaxed);
    }

    /// Its one entry ends there.
    pub(super) fn set_used(&self, used_bytes: usize) {
        self.used_bytes.store(used_bytes as u32, Ordering::Relaxed);
    }

    /// Nothing is appended any more. `true`: now it is free.
    #[must_use]
    pub(super) fn seal(&self) -> bool {
        self.take_off(ACTIVE)
    }

    /// What there is to clean, if it is sealed, holds live entries and nobody is at work in it.
    pub(super) fn sealed(&self, rights: Rights) -> Option<Sealed> {
        let holds = self.holds.load(Ordering::Acquire);
        let settled = (1..PIN).contains(&holds) && self.used_for() == Use::Log;
        settled.then(|| self.describe(holds, rights))
    }

    fn describe(&self, holds: u64, rights: Rights) -> Sealed {
        Sealed {
            owner: self.owner(),
            blocks: self.run(),
            used_bytes: self.used_bytes.load(Ordering::Relaxed) as usize,
            live_bytes: self.live_of(holds) as usize,
            sealed_as: self.sealed_as.load(Ordering::Relaxed),
            part: match self.is_kept.load(Ordering::Relaxed) {
                true => Part::Kept,
                false => Part::Fresh,
            },
            rights,
        }
    }

    /// Pins it for the cleaner: until [`Self::unpin`] it is not free, whatever dies, and what
    /// [`Sealed`] says stays, the live bytes apart. `None`: as for [`Self::sealed`].
    pub(super) fn pin(&self, rights: Rights) -> Option<Sealed> {
        let (set, fail) = (Ordering::AcqRel, Ordering::Acquire);
        let mut holds = self.holds.load(fail);
        while (1..PIN).contains(&holds) {
            match self.holds.compare_exchange_weak(holds, holds + PIN, set, fail) {
                Ok(_) => return Some(self.describe(holds, rights)),
                Err(now) => holds = now,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHTS: Rights = Rights::ReadOnly;

    /// A segment with one entry of 64 bytes, which is still being written when the log seals it.
    fn sealed_in_mid_write() -> Block {
        let block = Block::default();
        block.occupy(0, Use::Log, 7);
        block.set_run(1);
        block.activate();
        block.add(64);
        assert_eq!(block.sealed(RIGHTS), None, "appended to");
        block.close(Part::Fresh, 64, 1);
        assert!(!block.seal());
        block
    }

    #[test]
    fn the_cleaner_waits_for_writers() {
        let block = sealed_in_mid_write();
        assert_eq!((block.sealed(RIGHTS), block.pin(RIGHTS)), (None, None), "not written yet");
        assert!(!block.unpin());
        let sealed = block.sealed(RIGHTS).expect("nobody is at work in it");
        assert_eq!((sealed.owner, sealed.used_bytes, sealed.live_bytes), (7, 64, 64));
        assert_eq!(block.pin(RIGHTS), Some(sealed));
        assert_eq!(block.pin(RIGHTS), None, "one cleaner at a time");
    }

    #[test]
    fn it_is_free_when_the_last_hold_is_gone_whichever_that_is() {
        let block = sealed_in_mid_write();
        assert!(!block.sub(64), "an entry that is replaced before its writer is done");
        assert!(block.unpin());
        let block = sealed_in_mid_write();
        assert!(!block.unpin());
        assert!(block.pin(RIGHTS).is_some());
        assert!(!block.sub(64), "not while the cleaner walks");
        assert!(block.unpin());
    }

    #[test]
    fn live_bytes_do_not_reach_the_pins() {
        let block = Block::default();
        block.occupy(0, Use::Log, 1);
        block.add(64 << 20);
        assert_eq!(block.live_bytes(), 64 << 20);
        assert!(!block.unpin());
        assert!(block.sub(64 << 20));
    }
}
