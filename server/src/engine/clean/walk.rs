//! Emptying one segment.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::{EntryHeader, STATE_OFFSET};
use onesided_protocol::layout::state::{Death, State};
use onesided_protocol::rpc::RpcError;
use onesided_protocol::rules::{Rule, holds};

use super::{Cleaning, count};
use crate::engine::block::Sealed;
use crate::engine::bucket::{header_at, slot_of};
use crate::engine::cas::Stretch;
use crate::engine::evict::{Part, Thinning};
use crate::engine::in_place::filler_bytes;
use crate::engine::room::Need;
use crate::engine::table::{Fresh, Table, read_value};
use crate::engine::{Shared, publish};

/// Entries that are looked at together, so that their buckets arrive at the same time.
const BATCH: usize = 16;
/// Bytes of them after which no other one is: others wait for what is being copied.
const BATCH_BYTES: usize = 16 << 10;

/// A segment that is being emptied. It is pinned.
pub(super) struct Walk {
    /// Nothing of it is live when it is gone.
    pub(super) table: Weak<Table>,
    pub(super) segment: LogAddr,
    /// Where the entries end, from the segment's start.
    pub(super) used_bytes: usize,
    pub(super) next_bytes: usize,
    /// Which live entries go.
    pub(super) evicts: Option<Thinning>,
    /// Its one entry stays where it is.
    stays: bool,
}

/// Entries that are looked at together.
#[derive(Default)]
pub(super) struct Batch {
    entries: Vec<(LogAddr, KeyHash)>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Walk {
    /// Pins a segment to empty it, if it still is what is wanted.
    pub(super) fn pin(
        shared: &Shared,
        segment: LogAddr,
        evicts: Option<Thinning>,
        is_wanted: impl Fn(&Sealed) -> bool,
    ) -> Option<Self> {
        let sealed = shared.pool.pin(segment)?;
        let table = shared.cleaner.table(sealed.owner);
        let used_bytes = sealed.used_bytes;
        let walk = Self { table, segment, used_bytes, next_bytes: 0, evicts, stays: false };
        if walk.table.strong_count() > 0 && is_wanted(&sealed) {
            return Some(walk);
        }
        walk.end(shared);
        None
    }

    /// Looks at the next entries.
    pub(super) fn batch(&mut self, shared: &Shared, batch: &mut Batch) -> Result<(), RpcError> {
        let pool = &shared.pool;
        let Some(table) = self.table.upgrade() else {
            self.next_bytes = self.used_bytes;
            return Ok(());
        };
        if table.is_cas() {
            let stretch = Stretch { start: self.segment, bytes: 0..self.used_bytes };
            let buffers = (&mut batch.key, &mut batch.value);
            let next_bytes = table.empty(&stretch, self.next_bytes, BATCH, buffers)?;
            self.next_bytes = next_bytes.unwrap_or(self.used_bytes);
            if self.next_bytes < self.used_bytes || !pool.has_live(self.segment) {
                return Ok(());
            }
            if !holds(Rule::RepairBeforeReuse) {
                pool.forget_live(self.segment);
                return Ok(());
            }
            // It would be emptied in vain again and again.
            return table.empty_by_slots(&stretch, (&mut batch.key, &mut batch.value));
        }
        batch.entries.clear();
        let mut next_bytes = self.next_bytes;
        let end_bytes = self.used_bytes.min(next_bytes + BATCH_BYTES);
        let still = table.overwriting.stop();
        while batch.entries.len() < BATCH && next_bytes < end_bytes {
            let offset = self.segment.offset_bytes() + next_bytes;
            let addr = LogAddr::new(self.segment.region(), offset);
            let at = pool.at(addr);
            if let Some(len_bytes) = filler_bytes(at) {
                next_bytes += len_bytes;
                continue;
            }
            let header = header_at(at);
            next_bytes += header.padded_bytes();
            // Whoever marks an entry has put another one in its place, or none. Here a pending one
            // is just being patched.
            let state = State::decode(at.plus(STATE_OFFSET).load());
            if matches!(state, State::Committed(_) | State::Pending(_)) {
                batch.key.resize(usize::from(header.key_len), 0);
                at.plus(header.key_offset()).read(&mut batch.key);
                let hash = KeyHash::of(table.index.hash_seed, &batch.key);
                table.index.prefetch(pool, hash);
                batch.entries.push((addr, hash));
            }
        }
        drop(still);
        for &(addr, hash) in &batch.entries {
            let buffers = (&mut batch.key, &mut batch.value);
            self.stays |= table.evacuate(addr, hash, self.evicts, buffers)? == Moved::No;
        }
        self.next_bytes = next_bytes;
        Ok(())
    }

    /// Unpins the segment, and says how many bytes became free.
    pub(super) fn end(self, shared: &Shared) -> usize {
        if self.stays {
            shared.pool.reseal(self.segment, Part::Kept, self.used_bytes);
        }
        let freed_bytes = shared.pool.unpin(self.segment);
        if let Some(table) = self.table.upgrade() {
            table.account.give(freed_bytes);
        }
        freed_bytes
    }
}

/// What came of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// It is elsewhere, or nowhere.
    Yes,
    No,
}

impl Table {
    /// Lets the entry at `addr` be elsewhere or nowhere, if its slot still points at it.
    fn evacuate(
        &self,
        addr: LogAddr,
        hash: KeyHash,
        evicts: Option<Thinning>,
        buffers: (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<Moved, RpcError> {
        let at = self.shared.pool.at(addr);
        let (segment, mut state) = self.index.lock(hash);
        if self.dropped.load(Ordering::Acquire) {
            return Ok(Moved::Yes);
        }
        let base = self.shared.pool.at(segment.addr);
        let Some(slot_bytes) = slot_of(base, hash, addr) else {
            return Ok(Moved::Yes);
        };
        let slot = base.plus(slot_bytes);
        let header = header_at(at);
        let counts = &self.shared.cleaner.counts;
        let stays = self.stays((addr, hash), &header, evicts);
        if stays && evicts.is_some_and(|thinning| thinning.is_alone) {
            return Ok(Moved::No);
        }
        if stays && let Some(fresh) = self.copy(addr, buffers)? {
            fresh.pending.relocate(at, slot, hash.fingerprint());
            self.settle(&fresh);
            count(&counts.moved_entries, 1);
            count(&counts.moved_bytes, header.padded_bytes() as u64);
        } else {
            let for_quota = evicts.is_some_and(|thinning| thinning.for_quota);
            let (reason, of_table, of_engine) = match (self.is_expired(&header), for_quota) {
                (true, _) => (Death::Expired, &self.expired, &counts.expired),
                (_, false) => {
                    (Death::Evicted, &self.evicted_for_memory, &counts.evicted_for_memory)
                }
                (_, true) => (Death::Evicted, &self.evicted_for_quota, &counts.evicted_for_quota),
            };
            publish::remove(at, slot, reason);
            state.count -= 1;
            state.contents.sub(&header);
            self.forget(at, &header);
            count(of_table, 1);
            count(of_engine, 1);
        }
        self.release(addr, &header);
        Ok(Moved::Yes)
    }

    /// Whether the time of the entry at `addr` is not over and it is not to go.
    fn stays(
        &self,
        (addr, hash): (LogAddr, KeyHash),
        header: &EntryHeader,
        evicts: Option<Thinning>,
    ) -> bool {
        // Of a counter its cell would stay.
        let may_go = self.evicts() && !header.is_counter();
        let goes = |thinning| may_go && !self.keeps(thinning, hash, addr);
        !self.is_expired(header) && !evicts.is_some_and(goes)
    }

    /// The entry at `addr` again elsewhere, pending; none if it goes for want of room.
    fn copy(
        &self,
        addr: LogAddr,
        (key, value): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<Option<Fresh<'_>>, RpcError> {
        let at = self.shared.pool.at(addr);
        let header = header_at(at);
        key.resize(usize::from(header.key_len), 0);
        at.plus(header.key_offset()).read(key);
        read_value(at, &header, value);
        match self.append_entry(&self.kept, Need::Clean, header, key, value) {
            // What may go and stays for want of room for a copy would keep all others out.
            Err(_) if self.loses_for_room() && !header.is_counter() => Ok(None),
            copied => copied.map(Some),
        }
    }

    /// Whether an entry that cannot be copied goes. Not where cleaning is not for room.
    fn loses_for_room(&self) -> bool {
        self.may_lose(1, 0) && self.shared.cleaner.mode != Cleaning::Aggressive
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onesided_fabric::Memory;
    use onesided_protocol::control::TableOptions;
    use onesided_protocol::rpc::{Expect, Ttl};

    use super::*;
    use crate::clock::ServerClock;
    use crate::engine::{Engine, EngineConfig, MakeMemory};

    fn engine() -> Arc<Engine> {
        let config = EngineConfig {
            memory_bytes: 4 << 20,
            segment_bytes: 64 << 10,
            ..EngineConfig::default()
        };
        let memory: MakeMemory = Box::new(|_, len_bytes, _| Memory::private(len_bytes));
        Engine::new(config, memory, Arc::new(ServerClock::default())).expect("engine")
    }

    #[test]
    fn an_entry_that_is_looked_for_by_another_keys_hash_keeps_its_slot() {
        let engine = engine();
        let id = engine.create_table("t", TableOptions::default()).expect("table").id;
        let table = engine.table(id).expect("by id");
        let hash = |n: u32| KeyHash::of(table.index.hash_seed, &n.to_le_bytes());
        let other = |n: &u32| {
            let (own, other) = (hash(0), hash(*n));
            own.bucket() == other.bucket() && own.fingerprint() != other.fingerprint()
        };
        let other = (1..).find(other).expect("one of a few hundred keys");
        table.put(&0_u32.to_le_bytes(), b"value", Expect::Any, Ttl::Never, 0).expect("room");
        let hit = || table.find(&0_u32.to_le_bytes()).expect("table").probe.hit;
        let addr = hit().expect("it is there").addr;
        let mut batch = Batch::default();
        for (n, moves) in [(other, false), (0, true)] {
            let buffers = (&mut batch.key, &mut batch.value);
            let moved = table.evacuate(addr, hash(n), None, buffers).expect("room");
            assert!(moved == Moved::Yes, "it is not kept");
            assert_eq!(hit().expect("it is there").addr != addr, moves);
        }
    }

    #[test]
    fn a_segment_that_was_seen_where_now_another_one_lies_across_is_not_emptied() {
        let engine = engine();
        let id = engine.create_table("t", TableOptions::default()).expect("table").id;
        let table = engine.table(id).expect("by id");
        let blocks = 2 + engine.shared.pool.segment_bytes() / engine.shared.pool.block_bytes();
        let value = vec![1; blocks * engine.shared.pool.block_bytes()];
        table.put(b"long", &value, Expect::Any, Ttl::Never, 0).expect("room");
        let addr = table.find(b"long").expect("table").probe.hit.expect("it is there").addr;
        let pin = |n: usize| {
            let offset = addr.offset_bytes() + n * engine.shared.pool.block_bytes();
            Walk::pin(&engine.shared, LogAddr::new(addr.region(), offset), None, |_| true)
        };
        assert!((1..=blocks).all(|n| pin(n).is_none()), "there is no entry to begin with");
        let walk = pin(0).expect("it begins here");
        assert_eq!(walk.end(&engine.shared), 0, "its entry is live");
    }
}
