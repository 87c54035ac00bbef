//! Cleaning: segments in which much is dead are emptied, so that they become free.
//!
//! The emptiest sealed segment is walked from its start, entry by entry. What its slot still
//! points at is copied, exactly like an update (design.md 5, [`super::publish`]), or removed if its
//! time is over; then the segment is free at once, because what readers find there proves itself
//! or does not. Nobody but the cleaner looks at entries without coming from a slot, and it only
//! looks where all are written: a segment that is appended to is never a candidate, and neither is
//! one with a pin ([`super::block`]); its own pin keeps the segment from being reused under it.
//!
//! One segment is in work at a time, and whoever holds [`Cleaner::work`] goes on with it: the
//! cleaner's thread ([`CleanerThread`]) ahead of need; every writer a little when room is short;
//! and a writer that found none until there is some. How short it is says [`super::room`].

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::STATE_OFFSET;
use onesided_protocol::layout::state::{Death, State};
use onesided_protocol::rpc::RpcError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::block::Sealed;
use super::bucket::{header_at, slot_of};
use super::evict::{Coldest, Plan};
use super::room::{Level, Need};
use super::table::{Table, read_value};
use super::{Engine, Shared, publish};

mod counts;
mod oldest;
mod row;
mod thread;

pub use counts::CleaningStatus;

pub(super) use counts::count;
pub(super) use thread::CleanerThread;

use counts::Counts;
use oldest::Oldest;

/// When entries are moved together, so that segments become free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cleaning {
    /// When memory runs short and something is to gain.
    #[default]
    Auto,
    /// All the time, the oldest segments first, whether or not it gains anything. For tests.
    Aggressive,
    /// Never: a segment is free when all in it are dead.
    Off,
}

/// Entries that are looked at together, so that their buckets arrive at the same time.
const BATCH: usize = 16;
/// Candidates that one look at all segments finds, at least; and which part of all segments.
const CANDIDATES_MIN: usize = 64;
const CANDIDATES_PART: usize = 64;
/// As [`Choice::dead_part`], where entries may go.
const EVICTING_DEAD_PART: usize = 4;
/// How much a writer that helps walks through, for each byte it has written: more than has to be
/// walked through for a byte of room, as long as [`Cleaner::choice`] finds a segment.
const HELP_FACTOR: usize = 12;
const HELP_FACTOR_FULL: usize = 80;
/// And at most, so that no write takes much longer than others.
const HELP_MAX_BYTES: usize = 128 << 10;
/// Segments that a writer without room empties before it tries again.
const SEGMENTS_FOR_ROOM: usize = 64;
/// How often it looks, meanwhile, for a stretch of a region to empty.
const ROWS_FOR_ROOM: usize = 4;

/// What cleans.
pub(super) struct Cleaner {
    pub(super) mode: Cleaning,
    /// By id.
    tables: Mutex<BTreeMap<u32, Weak<Table>>>,
    work: Mutex<Work>,
    pub(super) counts: Counts,
    waker: thread::Waker,
}

/// The segment in work, and what comes next.
#[derive(Default)]
struct Work {
    walk: Option<Walk>,
    /// The best one last. Only hints: they have changed since.
    candidates: Vec<LogAddr>,
    /// What comes when there is none, of tables that may lose entries.
    oldest: Oldest,
    batch: Batch,
}

/// Which segments may be emptied.
#[derive(Clone, Copy)]
struct Choice {
    /// Those of one table only.
    owner: Option<u32>,
    /// At least this part of the entries, one of so many bytes, is dead; 0: any.
    dead_part: usize,
    /// If there is none: the oldest of a table that may lose entries.
    may_evict: bool,
    /// Then all in it go, not only the cold ones.
    spares_none: bool,
}

impl Choice {
    fn is_of_owner(&self, sealed: &Sealed) -> bool {
        self.owner.is_none_or(|owner| owner == sealed.owner)
    }

    fn admits(&self, sealed: &Sealed) -> bool {
        let dead_bytes = sealed.used_bytes.saturating_sub(sealed.live_bytes);
        let worth_it = self.dead_part == 0 || dead_bytes * self.dead_part >= sealed.used_bytes;
        worth_it && self.is_of_owner(sealed)
    }
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The segment is not done yet.
    Goes,
    /// It is, and so many bytes became free.
    Emptied(usize),
    /// There is none worth it.
    Nothing,
}

/// A segment that is being emptied. It is pinned.
struct Walk {
    /// Nothing of it is live when it is gone.
    table: Weak<Table>,
    segment: LogAddr,
    /// Where the entries end, from the segment's start.
    used_bytes: usize,
    next_bytes: usize,
    /// Which live entries go.
    evicts: Option<(Plan, Coldest)>,
}

/// Entries that are looked at together.
#[derive(Default)]
struct Batch {
    entries: Vec<(LogAddr, KeyHash)>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Cleaner {
    pub(super) fn new(mode: Cleaning) -> Self {
        Self {
            mode,
            tables: Mutex::default(),
            work: Mutex::default(),
            counts: Counts::default(),
            waker: thread::Waker::default(),
        }
    }

    /// These are the tables.
    pub(super) fn know(&self, tables: &[Arc<Table>]) {
        let known = tables.iter().map(|table| (table.id(), Arc::downgrade(table))).collect();
        *self.tables.lock() = known;
    }

    /// The table of an id; a dropped one is none.
    fn table(&self, id: u32) -> Weak<Table> {
        self.tables.lock().get(&id).cloned().unwrap_or_default()
    }

    /// What is worth it, when there is so much room.
    fn choice(&self, level: Level) -> Choice {
        let dead_part = match (self.mode, level) {
            (Cleaning::Aggressive, _) => 0,
            (_, Level::Ample | Level::Low) => 16,
            (_, Level::Short) => 32,
            (_, Level::Full) => 64,
        };
        Choice { owner: None, dead_part, may_evict: level >= Level::Short, spares_none: false }
    }
}

impl Work {
    /// Goes on with the segment in work, or begins the next, for about so many bytes of entries.
    fn go_on(&mut self, shared: &Shared, choice: Choice, budget_bytes: usize) -> Step {
        if self.walk.is_none() {
            self.walk = self.begin(shared, choice);
        }
        let Some(walk) = &mut self.walk else { return Step::Nothing };
        let until = walk.next_bytes.saturating_add(budget_bytes);
        while walk.next_bytes < walk.used_bytes.min(until) {
            if walk.batch(shared, &mut self.batch).is_err() {
                // No room for a copy. What is left stays where it is.
                count(&shared.cleaner.counts.given_up, 1);
                walk.next_bytes = walk.used_bytes;
            }
        }
        if walk.next_bytes < walk.used_bytes {
            return Step::Goes;
        }
        let freed_bytes = self.walk.take().map_or(0, |walk| walk.end(shared));
        count(&shared.cleaner.counts.segments, 1);
        count(&shared.cleaner.counts.freed_bytes, freed_bytes as u64);
        Step::Emptied(freed_bytes)
    }

    /// Empties a segment, with none in work.
    fn empty(&mut self, shared: &Shared, walk: Walk) {
        debug_assert!(self.walk.is_none(), "a segment in work would stay pinned");
        self.walk = Some(walk);
        let choice = Choice { owner: None, dead_part: 1, may_evict: false, spares_none: false };
        self.go_on(shared, choice, usize::MAX);
    }

    /// Pins the best segment.
    fn begin(&mut self, shared: &Shared, choice: Choice) -> Option<Walk> {
        if let Some(walk) = self.next(shared, choice) {
            return Some(walk);
        }
        if shared.cleaner.mode == Cleaning::Aggressive || shared.pool.has_changed() {
            self.look(shared, choice);
            if let Some(walk) = self.next(shared, choice) {
                return Some(walk);
            }
            if choice.owner.is_none() {
                shared.pool.nothing_to_gain();
            }
        }
        if !choice.may_evict {
            return None;
        }
        let mut walk = self.oldest.next(shared, choice.owner)?;
        if choice.spares_none {
            walk.evicts = Some((Plan::Thin, Coldest::ALL));
        }
        Some(walk)
    }

    fn next(&mut self, shared: &Shared, choice: Choice) -> Option<Walk> {
        while let Some(segment) = self.candidates.pop() {
            let walk = Walk::pin(shared, segment, None, |sealed| {
                choice.admits(sealed) && is_worth_it(shared, sealed)
            });
            if walk.is_some() {
                return walk;
            }
        }
        None
    }

    /// Looks at all segments for the best ones.
    fn look(&mut self, shared: &Shared, choice: Choice) {
        let pool = &shared.pool;
        let segment_bytes = pool.segment_bytes();
        let aggressive = shared.cleaner.mode == Cleaning::Aggressive;
        let fits = |sealed: &Sealed| aggressive || sealed.used_bytes <= segment_bytes;
        // Live bytes of a thousand, or the age.
        let rank = |sealed: &Sealed| match aggressive {
            true => sealed.sealed_as,
            false => (sealed.live_bytes * 1_000 / sealed.used_bytes.max(1)) as u64,
        };
        let wanted = |sealed: &Sealed| fits(sealed) && choice.admits(sealed);
        best(shared, &mut self.candidates, wanted, rank);
    }
}

/// Whether what is dead in a segment makes enough room: where entries may go, the cold ones make
/// more.
fn is_worth_it(shared: &Shared, sealed: &Sealed) -> bool {
    let dead_bytes = sealed.used_bytes.saturating_sub(sealed.live_bytes);
    dead_bytes * EVICTING_DEAD_PART >= sealed.used_bytes
        || !shared.cleaner.table(sealed.owner).upgrade().is_some_and(|table| table.evicts())
}

/// The sealed segments of the lowest rank, the lowest one last.
fn best(
    shared: &Shared,
    into: &mut Vec<LogAddr>,
    wanted: impl Fn(&Sealed) -> bool,
    rank: impl Fn(&Sealed) -> u64,
) {
    let all = shared.pool.sealed().filter(|(_, sealed)| wanted(sealed));
    let mut all: Vec<_> = all.map(|(addr, sealed)| (rank(&sealed), addr)).collect();
    let most = CANDIDATES_MIN.max(all.len() / CANDIDATES_PART);
    if all.len() > most {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    into.clear();
    into.extend(all.into_iter().map(|(_, addr)| addr));
}

impl Walk {
    /// Pins a segment to empty it, if it still is what is wanted.
    fn pin(
        shared: &Shared,
        segment: LogAddr,
        evicts: Option<(Plan, Coldest)>,
        is_wanted: impl Fn(&Sealed) -> bool,
    ) -> Option<Self> {
        let sealed = shared.pool.pin(segment)?;
        let table = shared.cleaner.table(sealed.owner);
        let used_bytes = sealed.used_bytes;
        let walk = Self { table, segment, used_bytes, next_bytes: 0, evicts };
        if walk.table.strong_count() > 0 && is_wanted(&sealed) {
            return Some(walk);
        }
        walk.end(shared);
        None
    }

    /// Looks at the next entries.
    fn batch(&mut self, shared: &Shared, batch: &mut Batch) -> Result<(), RpcError> {
        let pool = &shared.pool;
        let Some(table) = self.table.upgrade() else {
            self.next_bytes = self.used_bytes;
            return Ok(());
        };
        batch.entries.clear();
        let mut next_bytes = self.next_bytes;
        while batch.entries.len() < BATCH && next_bytes < self.used_bytes {
            let offset = self.segment.offset_bytes() + next_bytes;
            let addr = LogAddr::new(self.segment.region(), offset);
            let at = pool.at(addr);
            let header = header_at(at);
            next_bytes += header.padded_bytes();
            // Whoever marks an entry has put another one in its place, or none.
            if let State::Committed(_) = State::decode(at.plus(STATE_OFFSET).load()) {
                batch.key.resize(usize::from(header.key_len), 0);
                at.plus(header.key_offset()).read(&mut batch.key);
                let hash = KeyHash::of(table.index.hash_seed, &batch.key);
                table.index.prefetch(pool, hash);
                batch.entries.push((addr, hash));
            }
        }
        for &(addr, hash) in &batch.entries {
            let buffers = (&mut batch.key, &mut batch.value);
            table.evacuate(addr, hash, self.evicts, buffers)?;
        }
        self.next_bytes = next_bytes;
        Ok(())
    }

    /// Unpins the segment, and says how many bytes became free.
    fn end(self, shared: &Shared) -> usize {
        let freed_bytes = shared.pool.unpin(self.segment);
        if let Some(table) = self.table.upgrade() {
            table.account.give(freed_bytes);
        }
        freed_bytes
    }
}

impl Table {
    /// Lets the entry at `addr` be elsewhere or nowhere, if its slot still points at it.
    fn evacuate(
        &self,
        addr: LogAddr,
        hash: KeyHash,
        evicts: Option<(Plan, Coldest)>,
        (key, value): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), RpcError> {
        let counts = &self.shared.cleaner.counts;
        let at = self.shared.pool.at(addr);
        let (segment, mut state) = self.index.lock(hash);
        if self.dropped.load(Ordering::Acquire) {
            return Ok(());
        }
        let base = self.shared.pool.at(segment.addr);
        let Some(slot_bytes) = slot_of(base, hash, addr) else { return Ok(()) };
        let slot = base.plus(slot_bytes);
        let header = header_at(at);
        let mut over = if self.is_expired(&header) {
            Some((Death::Expired, &self.expired, &counts.expired))
        } else if evicts.is_some_and(|evicts| self.evicts() && !self.keeps(evicts, hash, addr)) {
            Some((Death::Evicted, &self.evicted, &counts.evicted))
        } else {
            None
        };
        let mut copied = None;
        if over.is_none() {
            key.resize(usize::from(header.key_len), 0);
            at.plus(header.key_offset()).read(key);
            read_value(at, &header, value);
            match self.append_entry(&self.kept, Need::Clean, header, key, value) {
                Ok(fresh) => copied = Some(fresh),
                // What may go and stays for want of room for a copy would keep all others out.
                Err(_) if self.loses_for_room() => {
                    over = Some((Death::Evicted, &self.evicted, &counts.evicted));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some((reason, of_table, of_engine)) = over {
            publish::remove(at, slot, reason);
            state.count -= 1;
            count(of_table, 1);
            count(of_engine, 1);
        } else if let Some(fresh) = copied {
            fresh.pending.relocate(at, slot, hash.fingerprint());
            self.settle(&fresh);
            count(&counts.moved_entries, 1);
            count(&counts.moved_bytes, header.padded_bytes() as u64);
        }
        self.release(addr, &header);
        Ok(())
    }

    /// Whether an entry that cannot be copied goes. Not where cleaning is not for room.
    fn loses_for_room(&self) -> bool {
        self.evicts() && self.shared.cleaner.mode != Cleaning::Aggressive
    }

    /// Something was written. When room is short, whoever writes cleans a little, in proportion;
    /// the caller holds no lock of the engine.
    #[inline]
    pub(super) fn help_to_clean(&self, written_bytes: usize) {
        let level = self.shared.pool.level();
        if level != Level::Ample {
            self.shared.help_to_clean(level, written_bytes);
        }
    }

    /// Seals the segment that is appended to, if it is worth emptying. `false`: there is none.
    fn close_log(&self) -> bool {
        let pool = &self.shared.pool;
        let closed = self.log.close_to_clean(pool, &self.account, self.evicts());
        if closed {
            pool.look_again();
        }
        closed
    }

    /// Tries to make room for so many bytes in a row. `false`: there is none to be had.
    pub(super) fn make_room(&self, (len_bytes, need): (usize, Need)) -> bool {
        let began = Instant::now();
        let made = self.expire_for_room() || self.shared.make_room(self, len_bytes, need);
        let counts = &self.shared.cleaner.counts;
        count(&counts.waits, 1);
        let waited_us = began.elapsed().as_micros() as u64;
        counts.longest_wait_us.fetch_max(waited_us, Ordering::Relaxed);
        made
    }
}

impl Shared {
    #[cold]
    fn help_to_clean(&self, level: Level, written_bytes: usize) {
        if self.cleaner.mode == Cleaning::Off {
            return;
        }
        if self.pool.has_changed() {
            self.cleaner.waker.wake();
        }
        if level == Level::Low {
            return;
        }
        if let Some(mut work) = self.cleaner.work.try_lock() {
            let choice = self.cleaner.choice(level);
            let factor = if level == Level::Full { HELP_FACTOR_FULL } else { HELP_FACTOR };
            let budget_bytes = (written_bytes * factor).min(HELP_MAX_BYTES);
            work.go_on(self, choice, budget_bytes);
        }
    }

    fn make_room(&self, table: &Table, len_bytes: usize, need: Need) -> bool {
        let taken_bytes = len_bytes.next_multiple_of(self.pool.block_bytes());
        let spare_bytes = self.pool.segment_bytes();
        // Nothing is to go for what cannot fit at all.
        let could = self.pool.could_hold(len_bytes, need)
            && table.account.could_hold(taken_bytes, need, spare_bytes);
        if self.cleaner.mode == Cleaning::Off || !could {
            return false;
        }
        self.cleaner.waker.wake();
        let mut work = self.cleaner.work.lock();
        let is_over = || table.account.is_over(taken_bytes, need, spare_bytes);
        let (mut closed, mut rows) = (false, 0);
        for n in 0..SEGMENTS_FOR_ROOM {
            let owner = is_over().then(|| table.id());
            if owner.is_none() {
                if self.pool.has_room(len_bytes, need) {
                    return true;
                }
                // What is in work goes to its end first: nothing else is emptied meanwhile.
                let enough = work.walk.is_none() && self.pool.has_enough(len_bytes, need);
                if enough && rows < ROWS_FOR_ROOM {
                    rows += 1;
                    if row::make(self, &mut work, len_bytes, need) {
                        return true;
                    }
                }
            }
            // The coldest may all be where nothing is emptied, or make too little room.
            let spares_none = n >= SEGMENTS_FOR_ROOM / 2;
            let choice = Choice { owner, spares_none, ..self.cleaner.choice(Level::Full) };
            if work.go_on(self, choice, usize::MAX) != Step::Nothing {
                continue;
            }
            // What can be cleaned may all be in the segment that is appended to.
            if std::mem::replace(&mut closed, true) || !table.close_log() {
                return false;
            }
        }
        true
    }
}

impl Engine {
    /// Cleans a segment, if one is worth it, or goes on with the one in work. `false`: there was
    /// none. For engines without a cleaner's thread.
    pub fn clean(&self) -> bool {
        let shared = &*self.shared;
        let mut choice = shared.cleaner.choice(Level::Short);
        choice.may_evict = shared.pool.level() >= Level::Short;
        shared.cleaner.work.lock().go_on(shared, choice, usize::MAX) != Step::Nothing
    }
}
