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
//! does: the blocks behind a shorter one are free at once. In any other segment a *filler* comes
//! behind the entry, if it is shorter than the old one, by which who goes through the segment finds
//! the next entry. That is the cleaner, and it has no lock of a key whose hash it is about to
//! learn: it keeps everybody from overwriting entries there while it looks at them
//! ([`Overwriting`]). So it meets none that is half written, nor takes the key of one from where
//! another one's begins.

use onesided_fabric::Rights;
use onesided_protocol::layout::state::KIND_SHIFT;
use onesided_protocol::rpc::{ErrorCode, RpcError};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

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

/// Who overwrites entries in segments that they share, and who looks at entries of these segments
/// without the locks of their keys. Taken after the lock of an index segment, and none is taken
/// after it.
#[derive(Default)]
pub(super) struct Overwriting(RwLock<()>);

impl Overwriting {
    /// Of an entry whose key the caller has locked: the others wait until it is written.
    fn begin(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read()
    }

    /// Nobody overwrites entries until this is dropped.
    pub(super) fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }
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
        let _overwriting = match is_alone {
            // Whoever empties segments has pinned them.
            true => pool.pin(hit.addr).map(|_| None)?,
            false => Some(self.overwriting.begin()),
        };
        let append_number = self.append_number(&header);
        let draft = Draft { header, append_number, key, value: change.value() };
        let pending = publish::write(at, hit.addr, &self.sums, &draft);
        if !is_alone && new_bytes < old_bytes {
            fill(at.plus(new_bytes), old_bytes - new_bytes);
        }
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
            let new_bytes = old_bytes - less_bytes;
            self.account.give(pool.shorten_alone(hit.addr, old_bytes, new_bytes));
            self.account.give(pool.unpin(hit.addr));
        } else if less_bytes > 0 {
            let freed_bytes = pool.sub(hit.addr, less_bytes);
            debug_assert_eq!(freed_bytes, 0, "the entry itself is live");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread::{Scope, ScopedJoinHandle, scope, sleep};
    use std::time::Duration;

    use onesided_fabric::Memory;
    use onesided_protocol::control::TableOptions;
    use onesided_protocol::layout::entry::EntryHeader;
    use onesided_protocol::rpc::{Expect, Ttl};

    use super::*;
    use crate::clock::ServerClock;
    use crate::engine::change::Decision;
    use crate::engine::{Cleaning, Engine, EngineConfig, MakeMemory};

    /// Stores a value, and lets the engine be cleaned when it is about to be written.
    struct BesideCleaning<'scope, 'env> {
        value: Vec<u8>,
        asked: Cell<usize>,
        engine: &'env Engine,
        scope: &'scope Scope<'scope, 'env>,
        cleaner: Cell<Option<ScopedJoinHandle<'scope, bool>>>,
    }

    impl Change for BesideCleaning<'_, '_> {
        fn decide(
            &mut self,
            _: Option<EntryHeader>,
            _: Option<Spot<'_>>,
        ) -> Result<Option<Decision>, RpcError> {
            Ok(Some(Decision { ttl: Some(Ttl::Never), user_flags: None }))
        }

        fn value(&self) -> &[u8] {
            self.asked.set(self.asked.get() + 1);
            // First for the header.
            if self.asked.get() == 2 {
                let engine = self.engine;
                let cleaner = self.scope.spawn(move || engine.clean());
                // It may go as far as it gets; how far that is decides nothing.
                (0..20).take_while(|_| !cleaner.is_finished()).for_each(|_| {
                    sleep(Duration::from_millis(1));
                });
                self.cleaner.set(Some(cleaner));
            }
            &self.value
        }
    }

    /// A cleaner that went on past the entry would leave it, and its segment, where they are.
    #[test]
    fn an_entry_that_is_being_overwritten_is_moved_by_who_cleans_meanwhile() {
        let config = EngineConfig {
            memory_bytes: 4 << 20,
            segment_bytes: 64 << 10,
            cleaning: Cleaning::Aggressive,
            ..EngineConfig::default()
        };
        let memory: MakeMemory = Box::new(|_, len_bytes, _| Memory::private(len_bytes));
        let engine = Engine::new(config, memory, std::sync::Arc::new(ServerClock::default()))
            .expect("engine");
        let id = engine.create_table("t", TableOptions::default()).expect("table").id;
        let table = engine.table(id).expect("by id");
        for n in 0..9_u8 {
            table.put(&[n], &[n; 20_000], Expect::Any, Ttl::Never, 0).expect("room");
        }
        let place = |n| table.find(&[n]).expect("table").probe.hit.expect("it is there").addr;
        // Of both the segment is the oldest one; the second one is not large any more.
        for (n, len_bytes) in [(0, 18_000), (3, 9_000)] {
            let before = place(n);
            let written = scope(|scope| {
                let value = vec![n; len_bytes];
                let (asked, cleaner) = (Cell::default(), Cell::default());
                let engine = &engine;
                let mut change = BesideCleaning { value, asked, engine, scope, cleaner };
                let written = table.write_in_place(&[n], &mut change);
                let cleaner = change.cleaner.take().expect("it was about to be written");
                assert!(cleaner.join().expect("the cleaner"), "something was cleaned");
                written
            });
            written.expect("it is shorter").expect("written");
            assert_ne!(place(n), before, "key {n}");
            assert_eq!(engine.shared.pool.live_bytes(before), 0, "the segment of key {n}");
            let hit = table.find(&[n]).expect("table").probe.hit.expect("it is there");
            assert_eq!(hit.header.value_len as usize, len_bytes);
        }
    }
}
