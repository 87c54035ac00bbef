//! A table: operations on keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use onesided_fabric::{Rights, carryless_fold};
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::control::{TableInfo, TableOptions, UpdateMode};
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::layout::line::{INDEX_SEGMENT_BYTES, SEGMENT_SLOTS};
use onesided_protocol::layout::state::Death;
use onesided_protocol::limits::{DEPTH_MAX, KEY_MAX_BYTES};
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use parking_lot::MutexGuard;

use super::Shared;
use super::account::Account;
use super::bucket::{Hit, Probe};
use super::cas::{LOST_MAX, contended};
use super::cells::Cells;
use super::change::{Change, Put};
use super::clean::Effort;
use super::evict::Part;
use super::expire::ExpiryRound;
use super::heat::TableHeat;
use super::in_place::Overwriting;
use super::index::{Index, Segment, SegmentState};
use super::log::{Log, Putter};
use super::order::Order;
use super::publish::{self, Draft, Pending};
use super::room::{Need, Wanted};
use super::spot::Spot;

/// How often a write without room makes room before it is refused: others may take it.
const ROOM_ATTEMPTS: usize = 8;

/// What is stored under a key, its value apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Token of compare-and-set; never the same twice for a key.
    pub version: u64,
    /// Seconds on the server's clock, 0 = never.
    pub expiry_s: u32,
    /// The user's own.
    pub user_flags: u32,
}

impl From<EntryHeader> for Stored {
    fn from(header: EntryHeader) -> Self {
        let EntryHeader { version, expiry_s, user_flags, .. } = header;
        Self { version, expiry_s, user_flags }
    }
}

/// A key space with options of its own. Its operations may be called from any thread; those on
/// one key take effect one after the other.
pub struct Table {
    id: u32,
    name: String,
    secret: u64,
    pub(super) update: UpdateMode,
    /// What entries are written with, from the secret.
    pub(super) sums: ChecksumKey,
    pub(super) shared: Arc<Shared>,
    pub(super) account: Arc<Account>,
    pub(super) index: Index,
    /// Its keys in order, if it is an ordered table.
    pub(super) order: Option<Order>,
    /// What is written.
    pub(super) log: Log,
    pub(super) overwriting: Overwriting,
    /// What the cleaner copies: it has lived long, and will longer than what is written now.
    pub(super) kept: Log,
    /// Cells of its counters.
    pub(super) cells: Cells,
    /// Which keys were used of late, if it evicts.
    pub(super) heat: TableHeat,
    pub(super) default_ttl_s: AtomicU32,
    /// Entries may go when memory is full.
    evict: AtomicBool,
    /// The greatest version given so far.
    pub(super) greatest_version: AtomicU64,
    pub(super) dropped: AtomicBool,
    /// Bytes of leases, until all of their entries were walked through.
    pub(super) leased_bytes: AtomicUsize,
    /// An entry with an expiry was stored at some time.
    pub(super) expiring: AtomicBool,
    /// Goes through the index for entries whose time is over.
    pub(super) expiry_round: ExpiryRound,
    /// Entries that were removed because their time was over, and because memory or quota was full.
    pub(super) expired: AtomicU64,
    pub(super) evicted_for_memory: AtomicU64,
    pub(super) evicted_for_quota: AtomicU64,
    /// When a part of it was last gone through because memory was full.
    pub(super) full_part_ns: AtomicU64,
}

/// An entry that was written where nobody cleans until [`Table::settle`].
pub(super) struct Fresh<'a> {
    pub(super) pending: Pending<'a>,
    pub(super) addr: LogAddr,
    pub(super) len_bytes: usize,
}

/// Why nothing was written.
pub(super) struct Refused {
    pub(super) error: RpcError,
    /// If memory was short, which.
    pub(super) wanted: Wanted,
}

/// A locked segment and what a look for a key in it found.
pub(super) struct Found<'a> {
    pub(super) hash: KeyHash,
    segment: &'a Segment,
    pub(super) state: MutexGuard<'a, SegmentState>,
    pub(super) base: Spot<'a>,
    pub(super) probe: Probe,
}

impl Found<'_> {
    pub(super) fn hash(&self) -> KeyHash {
        self.hash
    }

    pub(super) fn fingerprint(&self) -> u16 {
        self.hash.fingerprint()
    }

    /// The key has no entry any more.
    pub(super) fn gone(&mut self, hit: Hit) {
        self.probe.hit = None;
        self.probe.vacant_bytes = Some(hit.slot_bytes);
        self.state.count -= 1;
        self.state.contents.sub(&hit.header);
    }
}

impl Table {
    pub(super) fn new(
        id: u32,
        record: u32,
        name: &str,
        options: TableOptions,
        (hash_seed, secret): (u64, u64),
        shared: Arc<Shared>,
    ) -> Result<Self, RpcError> {
        let rights = match options.update {
            UpdateMode::Rpc => Rights::ReadOnly,
            UpdateMode::Cas => Rights::ReadWrite,
        };
        let account = Arc::new(Account::new(id, rights));
        account.set_bounds(&options);
        let heat = TableHeat::default();
        heat.set(options.evict);
        let index = Index::new(&shared, &account, record, hash_seed)?;
        Ok(Self {
            id,
            name: name.to_owned(),
            secret,
            update: options.update,
            sums: ChecksumKey::new(secret, carryless_fold()),
            shared,
            account,
            index,
            order: options.ordered.then(|| Order::new(id)),
            log: Log::of(Part::Fresh, rights),
            overwriting: Overwriting::default(),
            kept: Log::of(Part::Kept, rights),
            cells: Cells::default(),
            heat,
            default_ttl_s: AtomicU32::new(options.default_ttl_s),
            evict: AtomicBool::new(options.evict),
            greatest_version: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
            leased_bytes: AtomicUsize::new(0),
            expiring: AtomicBool::new(false),
            expiry_round: ExpiryRound::default(),
            expired: AtomicU64::new(0),
            evicted_for_memory: AtomicU64::new(0),
            evicted_for_quota: AtomicU64::new(0),
            full_part_ns: AtomicU64::new(0),
        })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its options now.
    #[must_use]
    pub fn options(&self) -> TableOptions {
        TableOptions {
            default_ttl_s: self.default_ttl_s.load(Ordering::Relaxed),
            quota_bytes: self.account.quota_bytes.load(Ordering::Relaxed),
            floor_bytes: self.account.floor_bytes.load(Ordering::Relaxed),
            evict: self.evicts(),
            ordered: self.order.is_some(),
            update: self.update,
        }
    }

    /// What a client needs to read it.
    #[must_use]
    pub fn info(&self) -> TableInfo {
        TableInfo {
            id: self.id,
            slot: self.index.record,
            hash_seed: self.index.hash_seed,
            secret: self.secret,
            directory: self.index.directory_word(),
            options: self.options(),
            updates_over: None,
        }
    }

    /// Whether entries may go when memory is full.
    pub(super) fn evicts(&self) -> bool {
        self.evict.load(Ordering::Relaxed)
    }

    pub(super) fn set_options(&self, options: TableOptions) {
        self.evict.store(options.evict, Ordering::Relaxed);
        self.default_ttl_s.store(options.default_ttl_s, Ordering::Relaxed);
        self.account.set_bounds(&options);
        self.heat.set(options.evict);
    }

    /// Lets the heat of its keys grow old, and have room for as many as its index before it splits.
    /// The caller holds no lock of the index.
    pub(super) fn tend_heat(&self) {
        self.heat.tend(self.index.segment_count() * SEGMENT_SLOTS * 3 / 4);
    }

    /// Stores a value if `expect` is met, and gives its version.
    ///
    /// # Errors
    /// `Unexpected`, `TooLarge`, `OutOfMemory`, `IndexFull`, `NoSuchTable`; nothing was changed.
    pub fn put(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        ttl: Ttl,
        user_flags: u32,
    ) -> Result<u64, RpcError> {
        let version = self.write(key, &mut Put { value, expect, ttl, user_flags })?;
        version.ok_or_else(|| RpcError::new(ErrorCode::Internal, "a put decided to store nothing"))
    }

    /// Removes a key. `false`: there was none.
    ///
    /// # Errors
    /// `Unexpected` when `expect` is not met, `NoSuchTable`; nothing was changed.
    pub fn delete(&self, key: &[u8], expect: Expect) -> Result<bool, RpcError> {
        for _ in 0..LOST_MAX {
            let mut found = self.find(key)?;
            let live = self.drop_expired(&mut found, key)?;
            check(expect, live.map(|hit| hit.header.version))?;
            let Some(hit) = live else { return Ok(false) };
            let cell = self.end_counter_if(&hit)?;
            if self.remove(&mut found, hit, Death::Deleted)? {
                self.counter_has_gone(cell)?;
                return Ok(true);
            }
        }
        Err(contended())
    }

    /// Copies the key's entry elsewhere, with the same version. `false`: there was none.
    ///
    /// # Errors
    /// `OutOfMemory`, `NoSuchTable`; nothing was changed.
    pub fn relocate(&self, key: &[u8]) -> Result<bool, RpcError> {
        let mut found = self.find(key)?;
        let Some(hit) = self.drop_expired(&mut found, key)? else { return Ok(false) };
        let mut value = Vec::new();
        let at = self.shared.pool.at(hit.addr);
        read_value(at, &hit.header, &mut value);
        let fresh = self.append_entry(&self.log, Need::Replace, hit.header, key, &value)?;
        if self.is_cas() {
            return self.link(&found, hit, &fresh);
        }
        let slot = found.base.plus(hit.slot_bytes);
        fresh.pending.relocate(at, slot, found.hash.fingerprint());
        self.release(hit.addr, &hit.header);
        self.settle(&fresh);
        Ok(true)
    }

    /// Applies a change to what is stored under a key. Gives the new version, if it stored.
    pub(super) fn write(
        &self,
        key: &[u8],
        change: &mut impl Change,
    ) -> Result<Option<u64>, RpcError> {
        let version = self.with_room(|| self.try_write_somewhere(key, change))?;
        self.help_to_clean(key.len() + change.value().len());
        Ok(version)
    }

    /// Tries something that may need room, and makes some if there is none.
    pub(super) fn with_room<T>(
        &self,
        attempt: impl FnMut() -> Result<T, Refused>,
    ) -> Result<T, RpcError> {
        with_room(attempt, |wanted, effort| self.make_room(wanted, effort))
    }

    pub(super) fn try_write(
        &self,
        key: &[u8],
        change: &mut impl Change,
    ) -> Result<Option<u64>, Refused> {
        if key.len() > KEY_MAX_BYTES {
            let text = format!("a key of {} bytes: the limit is {KEY_MAX_BYTES}", key.len());
            return Err(RpcError::new(ErrorCode::TooLarge, text).into());
        }
        // Every look but the last ends in a split, or a client was faster.
        let (mut splits, mut lost) = (0, 0);
        while splits <= 2 * u32::from(DEPTH_MAX) {
            let mut found = self.find(key)?;
            let live = self.drop_expired(&mut found, key)?;
            let at = live.map(|hit| self.shared.pool.at(hit.addr));
            let Some(decision) = change.decide(live.map(|hit| hit.header), at)? else {
                return Ok(None);
            };
            let header = self.header(key, change.value(), decision, live)?;
            match live {
                Some(hit) => match self.replace(&mut found, hit, header, key, change.value())? {
                    None if lost == LOST_MAX => return Err(contended().into()),
                    None => lost += 1,
                    version => return Ok(version),
                },
                None => match self.insert(&mut found, header, key, change.value())? {
                    None => {
                        splits += 1;
                        drop(found);
                        // Before the counters of those there are run over.
                        self.tend_heat();
                    }
                    version => return Ok(version),
                },
            }
        }
        Err(Self::index_full().into())
    }

    pub(super) fn index_full() -> RpcError {
        let text = "one bucket of the index stays full however often it is split; \
                    nothing was changed: delete keys or use another table";
        RpcError::new(ErrorCode::IndexFull, text)
    }

    /// `None`: a client was faster, so look again.
    fn replace(
        &self,
        found: &mut Found<'_>,
        hit: Hit,
        mut header: EntryHeader,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<u64>, Refused> {
        // Where clients write versions, they may be any.
        header.version = hit.header.version.saturating_add(1);
        let longer = header.padded_bytes() > hit.header.padded_bytes();
        let need = if longer { Need::Grow } else { Need::Replace };
        let wanted = self.log.wanted(self.id, header.padded_bytes(), need);
        let fresh = self
            .append_entry(&self.log, need, header, key, value)
            .map_err(|error| Refused { error, wanted })?;
        self.note_version(header.version);
        let cell = match self.end_counter_if(&hit) {
            Ok(cell) => cell,
            Err(error) => {
                self.give_up(&fresh, &header);
                return Err(error.into());
            }
        };
        if self.is_cas() {
            let linked = self.link(found, hit, &fresh)?;
            if linked {
                found.state.contents.sub(&hit.header);
                found.state.contents.add(&header);
            }
            self.counter_has_gone(cell)?;
            return Ok(linked.then_some(header.version));
        }
        let slot = found.base.plus(hit.slot_bytes);
        fresh.pending.update(self.shared.pool.at(hit.addr), slot, found.hash.fingerprint());
        found.state.contents.sub(&hit.header);
        found.state.contents.add(&header);
        self.counter_has_gone(cell)?;
        self.heat.note(found.hash);
        self.release(hit.addr, &hit.header);
        self.settle(&fresh);
        Ok(Some(header.version))
    }

    /// What was written is dead: nothing ever pointed at it.
    fn give_up(&self, fresh: &Fresh<'_>, header: &EntryHeader) {
        publish::kill(self.shared.pool.at(fresh.addr), Death::Relocated);
        self.release(fresh.addr, header);
        self.settle(fresh);
    }

    /// `None`: the segment was split to make room, so look again.
    pub(super) fn insert(
        &self,
        found: &mut Found<'_>,
        mut header: EntryHeader,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<u64>, Refused> {
        let Found { hash, segment, state, base, probe } = found;
        let wanted = Wanted::to_read(self.id, INDEX_SEGMENT_BYTES, Need::Grow);
        let of_index = |error| Refused { error, wanted };
        let room = self
            .index
            .make_room(&self.shared, &self.account, segment, state, probe)
            .map_err(of_index)?;
        let Some(slot_bytes) = room else { return Ok(None) };
        let place = match &self.order {
            Some(order) => Some(order.reserve(&self.shared, &self.account, key)?),
            None => None,
        };
        header.version = self.new_version();
        let wanted = self.log.wanted(self.id, header.padded_bytes(), Need::Grow);
        let fresh = self
            .append_entry(&self.log, Need::Grow, header, key, value)
            .map_err(|error| Refused { error, wanted })?;
        // Before anybody can read it: a scan that begins then must meet it.
        if let Some(place) = place {
            place.insert();
        }
        fresh.pending.insert(base.plus(slot_bytes), hash.fingerprint());
        if self.is_cas() {
            self.recount(&fresh);
        }
        state.count += 1;
        state.contents.add(&header);
        self.heat.note(*hash);
        self.settle(&fresh);
        Ok(Some(header.version))
    }

    /// Step 1: an entry, pending, that nothing points at, in one of the table's logs.
    pub(super) fn append_entry(
        &self,
        log: &Log,
        need: Need,
        header: EntryHeader,
        key: &[u8],
        value: &[u8],
    ) -> Result<Fresh<'_>, RpcError> {
        let pool = &self.shared.pool;
        let putter = Putter { pool, account: &self.account, owner: self.id, need };
        let addr = log.reserve(putter, header.padded_bytes())?;
        let append_number = self.append_number(&header);
        let draft = Draft { header, append_number, key, value };
        let pending = publish::write(pool.at(addr), addr, &self.sums, &draft);
        Ok(Fresh { pending, addr, len_bytes: header.padded_bytes() })
    }

    /// The entry is where it belongs: from now on the cleaner may look at it.
    pub(super) fn settle(&self, fresh: &Fresh<'_>) {
        self.account.give(self.shared.pool.unpin(fresh.addr));
    }

    pub(super) fn find(&self, key: &[u8]) -> Result<Found<'_>, RpcError> {
        let hash = KeyHash::of(self.index.hash_seed, key);
        let (segment, state) = self.index.lock(hash);
        // Set before the drop takes the locks one by one: whoever sees it false here is waited
        // for.
        if self.dropped.load(Ordering::Acquire) {
            let text = format!("table {:?} was dropped: open it again", self.name);
            return Err(RpcError::new(ErrorCode::NoSuchTable, text));
        }
        let base = self.shared.pool.at(segment.addr);
        let probe = Probe::of(&self.shared.pool, base, hash, key);
        let mut found = Found { hash, segment, state, base, probe };
        if self.is_cas() {
            self.follow(&mut found, key);
        }
        Ok(found)
    }

    /// The key's entry, unless it has expired: then it is removed.
    pub(super) fn drop_expired(
        &self,
        found: &mut Found<'_>,
        key: &[u8],
    ) -> Result<Option<Hit>, RpcError> {
        for _ in 0..LOST_MAX {
            let Some(hit) = found.probe.hit else { return Ok(None) };
            if !self.is_expired(&hit.header) {
                return Ok(Some(hit));
            }
            if self.remove(found, hit, Death::Expired)? {
                self.expired.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            self.follow(found, key);
        }
        // Somebody updates it all the time.
        Ok(found.probe.hit)
    }

    /// `false`: a client has replaced its entry meanwhile.
    fn remove(&self, found: &mut Found<'_>, hit: Hit, reason: Death) -> Result<bool, RpcError> {
        if self.is_cas() {
            return self.unlink(found, hit, reason);
        }
        let slot = found.base.plus(hit.slot_bytes);
        let at = self.shared.pool.at(hit.addr);
        publish::remove(at, slot, reason);
        self.forget(at, &hit.header);
        found.gone(hit);
        self.release(hit.addr, &hit.header);
        Ok(true)
    }

    pub(super) fn release(&self, addr: LogAddr, header: &EntryHeader) {
        Log::release(&self.shared.pool, &self.account, addr, header.padded_bytes());
    }
}

/// Tries something that may need room; if there is none, again when some was made.
pub(super) fn with_room<T>(
    mut attempt: impl FnMut() -> Result<T, Refused>,
    mut make_room: impl FnMut(Wanted, &mut Effort) -> bool,
) -> Result<T, RpcError> {
    let mut effort = Effort::default();
    for _ in 0..ROOM_ATTEMPTS {
        match attempt() {
            Err(refused) if refused.error.code == ErrorCode::OutOfMemory => {
                if !make_room(refused.wanted, &mut effort) {
                    return Err(refused.error);
                }
            }
            done => return done.map_err(|refused| refused.error),
        }
    }
    attempt().map_err(|refused| refused.error)
}

/// Whether `expect` is met by what is there now.
pub(super) fn check(expect: Expect, version: Option<u64>) -> Result<(), RpcError> {
    let met = match expect {
        Expect::Any => true,
        Expect::Absent => version.is_none(),
        Expect::Present => version.is_some(),
        Expect::Version(wanted) => version == Some(wanted),
    };
    if met {
        return Ok(());
    }
    let found = match version {
        Some(version) => format!("the key has version {version}"),
        None => "the key is absent".to_owned(),
    };
    Err(RpcError::new(ErrorCode::Unexpected, format!("expected {expect:?}, but {found}")))
}

/// Copies the value of the entry at `at` out.
pub(super) fn read_value(at: Spot<'_>, header: &EntryHeader, into: &mut Vec<u8>) {
    into.clear();
    at.plus(header.value_offset()).append_to(header.value_len as usize, into);
}
