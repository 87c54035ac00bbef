//! Overwriting a long entry where it lies, when memory is full.
//!
//! An update takes room for the new entry before the old one goes. At the limit there is room for
//! entries as long as those they replace, but not for any length: an entry that is longer than a
//! log segment, and so has a run of blocks to itself, is then written over. To readers that is an
//! update all the same: the state word, pending from the first store to the last, tells them to
//! look again, and an append number or checksum of its own tells the new entry from the old one.
//! Readers wait as long as the copy takes; that is why it is not done while there is room.

use onesided_fabric::Rights;
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::change::Change;
use super::clean::count;
use super::publish::{self, Draft};
use super::room::{Need, Wanted};
use super::table::{Refused, Table};

impl From<RpcError> for Refused {
    fn from(error: RpcError) -> Self {
        Self { error, wanted: Wanted::to_read(0, 0, Need::Grow) }
    }
}

impl Refused {
    /// Whether an entry that has a run to itself was to be replaced.
    fn is_of_long_successor(&self, segment_bytes: usize) -> bool {
        let Wanted { need, len_bytes, rights, .. } = self.wanted;
        // Clients may change the state words of others.
        let is_full = self.error.code == ErrorCode::OutOfMemory;
        is_full && need == Need::Replace && len_bytes > segment_bytes && rights == Rights::ReadOnly
    }
}

impl Table {
    /// Once; where there is no room for a long entry, in the place of the one before.
    pub(super) fn try_write_somewhere(
        &self,
        key: &[u8],
        change: &mut impl Change,
    ) -> Result<Option<u64>, Refused> {
        match self.try_write(key, change) {
            Err(refused) if refused.is_of_long_successor(self.shared.pool.segment_bytes()) => {
                match self.write_in_place(key, change) {
                    Some(written) => Ok(Some(written?)),
                    None => Err(refused),
                }
            }
            done => done,
        }
    }

    /// As [`Table::write`], in the place of the entry that there is. `None`: it must be of a run to
    /// itself, as long as the new one at least, and not being moved.
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
        if new_bytes > old_bytes || !pool.is_alone(hit.addr) {
            return None;
        }
        // Whoever empties segments reads entries without the lock.
        pool.pin(hit.addr)?;
        let append_number = self.append_number(&header);
        let draft = Draft { header, append_number, key, value: change.value() };
        let pending = publish::write(at, hit.addr, &self.sums, &draft);
        pending.overwrite(found.base.plus(hit.slot_bytes), found.hash.fingerprint());
        found.state.contents.sub(&hit.header);
        found.state.contents.add(&header);
        pool.shorten_alone(hit.addr, old_bytes, new_bytes);
        self.account.give(pool.unpin(hit.addr));
        self.log.note_appended(new_bytes);
        self.heat.note(found.hash);
        count(&self.shared.cleaner.counts.in_place, 1);
        Some(Ok(header.version))
    }
}
