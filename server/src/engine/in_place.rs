//! Overwriting entries where they lie: any when memory is full, a part of a short one always.
//!
//! **A part of a short one** ([`Table::patch`]): the value's other bytes, its length, and the
//! entry's place stay, so that the update costs neither memory nor cleaning, and readers who know
//! where the entry is need not follow a forward. Few words are stored while it is pending.
//!
//! **When memory is full.** An update takes room for the new entry before the old one goes. At the
//! limit there may be none: what is left to replacing is used up where segments that begin between
//! others end in rests that no entry fits into, and it is not enough for any length. Then an entry
//! that is no longer than the old one is written over that, so that a full store takes all that
//! makes it no fuller. To readers that is an update all the same: the state word, pending from the
//! first store to the last, tells them to look again, and an append number or checksum of its own
//! tells the new entry from the old one. Readers wait as long as the copy takes; that is why it is
//! not done while there is room.
//!
//! An entry that is longer than a log segment has a run of blocks to itself, which ends where it
//! does. Behind any other one comes a *filler*, if it is shorter than the old one: who goes through
//! a segment by the lengths of what lies there (the cleaner, without the key's lock) finds either
//! the old length, or the new one and the filler.

use std::sync::atomic::{Ordering, fence};

use onesided_fabric::Rights;
use onesided_protocol::layout::entry::STATE_OFFSET;
use onesided_protocol::layout::state::{KIND_SHIFT, State};
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::bucket::Hit;
use super::change::Change;
use super::clean::count;
use super::publish::{self, Draft};
use super::room::{Need, Wanted};
use super::spot::Spot;
use super::table::{Refused, Table};

/// First word of a filler; the second one says how many bytes it fills. To readers it is a dead
/// entry.
const FILLER: u64 = 3 << KIND_SHIFT | 0xFF;

/// Longer parts of a value are not replaced where they lie: readers wait meanwhile.
const PATCH_MAX_BYTES: usize = 1 << 10;

/// Bytes of the filler that lies here, if it is one.
pub(super) fn filler_bytes(at: Spot<'_>) -> Option<usize> {
    (at.load() == FILLER).then(|| at.plus(8).load() as usize)
}

fn fill(at: Spot<'_>, len_bytes: usize) {
    at.plus(8).store(len_bytes as u64);
    at.store(FILLER);
}

impl From<RpcError> for Refused {
    fn from(error: RpcError) -> Self {
        Self { error, wanted: Wanted::to_read(0, 0, Need::Grow) }
    }
}

impl Refused {
    /// Whether there was no room for what replaces an entry that clients only read: of others they
    /// may change the state word.
    fn is_of_successor(&self) -> bool {
        let Wanted { need, rights, .. } = self.wanted;
        let is_full = self.error.code == ErrorCode::OutOfMemory;
        is_full && need == Need::Replace && rights == Rights::ReadOnly
    }
}

impl Table {
    /// Replaces bytes within the value of a short entry, and gives the version. `None`: nothing was
    /// changed, and it has to be written anew, if at all.
    pub(super) fn patch(&self, key: &[u8], offset_bytes: u64, bytes: &[u8]) -> Option<u64> {
        // Where clients change state words an update is a compare-and-swap.
        if self.is_cas() || bytes.is_empty() || bytes.len() > PATCH_MAX_BYTES {
            return None;
        }
        let found = self.find(key).ok()?;
        let hit = found.probe.hit.filter(|hit| !self.is_expired(&hit.header))?;
        let mut header = hit.header;
        let end_bytes = offset_bytes.checked_add(bytes.len() as u64)?;
        let is_inside = end_bytes <= u64::from(header.value_len);
        if !is_inside || header.is_large() || header.is_counter() {
            return None;
        }
        header.version = header.version.saturating_add(1);
        self.note_version(header.version);
        let at = self.shared.pool.at(hit.addr);
        publish::patch(at, hit.addr, &self.sums, &header, offset_bytes as usize, bytes);
        self.log.note_appended(bytes.len());
        self.heat.note(found.hash);
        Some(header.version)
    }

    /// Once; where there is no room for an entry, in the place of the one before.
    pub(super) fn try_write_somewhere(
        &self,
        key: &[u8],
        change: &mut impl Change,
    ) -> Result<Option<u64>, Refused> {
        match self.try_write(key, change) {
            Err(refused) if refused.is_of_successor() => match self.write_in_place(key, change) {
                Some(written) => Ok(Some(written?)),
                None => Err(refused),
            },
            done => done,
        }
    }

    /// As [`Table::write`], in the place of the entry that there is. `None`: it must be as long as
    /// the new one at least, no counter, and if it has a run to itself, not being moved.
    fn write_in_place(
        &self,
        key: &[u8],
        change: &mut impl Change,
    ) -> Option<Result<u64, RpcError>> {
        let pool = &self.shared.pool;
        let mut found = self.find(key).ok()?;
        let hit = found.probe.hit.filter(|hit| !self.is_expired(&hit.header))?;
        let at = pool.at(hit.addr);
        let decision = match change.decide(Some(hit.header), Some(at)) {
            Ok(decision) => decision?,
            Err(error) => return Some(Err(error)),
        };
        let mut header = self.header(key, change.value(), decision, Some(hit)).ok()?;
        header.version = hit.header.version.saturating_add(1);
        self.note_version(header.version);
        let (old_bytes, new_bytes) = (hit.header.padded_bytes(), header.padded_bytes());
        if new_bytes > old_bytes || hit.header.is_counter() {
            return None;
        }
        let is_alone = pool.is_alone(hit.addr);
        if is_alone {
            // Whoever empties segments knows where they end, without the lock.
            pool.pin(hit.addr)?;
        } else if new_bytes < old_bytes {
            at.plus(STATE_OFFSET).store(State::pending(0));
            fill(at.plus(new_bytes), old_bytes - new_bytes);
            // Before the new length.
            fence(Ordering::Release);
        }
        let append_number = self.append_number(&header);
        let draft = Draft { header, append_number, key, value: change.value() };
        let pending = publish::write(at, hit.addr, &self.sums, &draft);
        pending.overwrite(found.base.plus(hit.slot_bytes), found.hash.fingerprint());
        found.state.contents.sub(&hit.header);
        found.state.contents.add(&header);
        self.shorten(&hit, old_bytes - new_bytes, is_alone);
        self.log.note_appended(new_bytes);
        self.heat.note(found.hash);
        count(&self.shared.cleaner.counts.in_place, 1);
        Some(Ok(header.version))
    }

    /// The entry that was written over another one is so much shorter.
    fn shorten(&self, hit: &Hit, less_bytes: usize, is_alone: bool) {
        let pool = &self.shared.pool;
        if is_alone {
            let old_bytes = hit.header.padded_bytes();
            pool.shorten_alone(hit.addr, old_bytes, old_bytes - less_bytes);
            self.account.give(pool.unpin(hit.addr));
        } else if less_bytes > 0 {
            let freed_bytes = pool.sub(hit.addr, less_bytes);
            debug_assert_eq!(freed_bytes, 0, "the entry itself is live");
        }
    }
}
