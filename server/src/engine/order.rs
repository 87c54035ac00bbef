//! The keys of an ordered table in the order of their bytes: a skip list beside the hash index,
//! which only the server knows.
//!
//! A key comes in before its entry can be read and goes after its entry is dead, both under the
//! lock of its index segment. So whoever saw a key that is still there meets it in a scan that
//! begins then; what a scan meets is looked up under that lock, so that it gives no others.
//!
//! Its memory is the heap's. For every block that it takes, a block of the regions is held back,
//! so that what the configuration and the table's quota allow holds for all together; eviction
//! and cleaning make room for it as for anything else.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_skiplist::SkipSet;
use onesided_protocol::LogAddr;
use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::Mutex;

use super::Shared;
use super::account::Account;
use super::block::Use;
use super::room::{Need, Wanted};
use super::spot::Spot;
use super::table::{Refused, Table};

/// What a key takes beside its bytes: a node with two links on average, and what the allocator
/// keeps with node and key.
const KEY_OVERHEAD_BYTES: u64 = 80;

/// The keys, and what they take.
pub(super) struct Order {
    keys: SkipSet<Box<[u8]>>,
    /// The table's id.
    owner: u32,
    /// Bytes of the keys, and of those whose entry is being written.
    used_bytes: AtomicU64,
    /// Bytes of the blocks that are held.
    held_bytes: AtomicU64,
    held: Mutex<Vec<LogAddr>>,
}

/// Room for one key, which it comes into or not.
pub(super) struct Reserved<'a> {
    order: &'a Order,
    shared: &'a Shared,
    account: &'a Account,
    key: &'a [u8],
    is_in: bool,
}

fn bytes_of(key: &[u8]) -> u64 {
    key.len() as u64 + KEY_OVERHEAD_BYTES
}

impl Order {
    pub(super) fn new(owner: u32) -> Self {
        Self {
            keys: SkipSet::new(),
            owner,
            used_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            held: Mutex::default(),
        }
    }

    /// Bytes of the keys, about.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Room for a key that is not in it.
    pub(super) fn reserve<'a>(
        &'a self,
        shared: &'a Shared,
        account: &'a Account,
        key: &'a [u8],
    ) -> Result<Reserved<'a>, Refused> {
        let used = self.used_bytes.fetch_add(bytes_of(key), Ordering::Relaxed) + bytes_of(key);
        // From here on given back if it does not come in.
        let reserved = Reserved { order: self, shared, account, key, is_in: false };
        if used > self.held_bytes.load(Ordering::Relaxed) {
            let wanted = Wanted::to_read(self.owner, shared.pool.block_bytes(), Need::Grow);
            self.hold(shared, account).map_err(|error| Refused { error, wanted })?;
        }
        Ok(reserved)
    }

    /// Holds as many blocks as are needed now.
    fn hold(&self, shared: &Shared, account: &Account) -> Result<(), RpcError> {
        let block_bytes = shared.pool.block_bytes();
        let mut held = self.held.lock();
        while self.used_bytes() > self.held_bytes.load(Ordering::Relaxed) {
            account.take(block_bytes, Need::Grow, 0)?;
            let wanted = Wanted::to_read(self.owner, block_bytes, Need::Grow);
            let block = shared.pool.take(wanted, Use::Held, self.owner);
            held.push(block.inspect_err(|_| account.give(block_bytes))?);
            account.note_index(block_bytes);
            self.held_bytes.fetch_add(block_bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The key is gone, or did not come in.
    fn give(&self, shared: &Shared, account: &Account, key: &[u8]) {
        self.used_bytes.fetch_sub(bytes_of(key), Ordering::Relaxed);
        let block_bytes = shared.pool.block_bytes();
        // One more than needed stays, so that keys that come and go do not take it every time.
        let spare = |used_bytes| used_bytes + 2 * block_bytes as u64;
        if spare(self.used_bytes()) <= self.held_bytes.load(Ordering::Relaxed) {
            let mut held = self.held.lock();
            while spare(self.used_bytes()) <= self.held_bytes.load(Ordering::Relaxed) {
                let Some(block) = held.pop() else { break };
                self.let_go(shared, account, block);
            }
        }
    }

    fn let_go(&self, shared: &Shared, account: &Account, block: LogAddr) {
        let bytes = shared.pool.give(block);
        account.give(bytes);
        account.unnote_index(bytes);
        self.held_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// The table was dropped: no operation begins any more.
    pub(super) fn end(&self, shared: &Shared, account: &Account) {
        self.keys.clear();
        self.used_bytes.store(0, Ordering::Relaxed);
        for block in self.held.lock().drain(..) {
            self.let_go(shared, account, block);
        }
    }
}

impl Reserved<'_> {
    /// The key comes in.
    pub(super) fn insert(mut self) {
        self.order.keys.insert(self.key.into());
        self.is_in = true;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_in {
            self.order.give(self.shared, self.account, self.key);
        }
    }
}

/// Which keys a scan is for: those from `from` on, or behind it, that begin with so many bytes as
/// it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanRange<'a> {
    /// Where to begin.
    pub from: &'a [u8],
    /// Whether behind it.
    pub after: bool,
    /// At most the length of `from`.
    pub prefix_len: usize,
}

impl Table {
    /// The entry at `at` is dead, and its key to be found no more. The caller holds the lock of
    /// its index segment.
    pub(super) fn forget(&self, at: Spot<'_>, header: &EntryHeader) {
        let Some(order) = &self.order else { return };
        let mut key = vec![0; usize::from(header.key_len)];
        at.plus(header.key_offset()).read(&mut key);
        if order.keys.remove(&key[..]).is_some() {
            order.give(&self.shared, &self.account, &key);
        }
    }

    /// Gives `visit` the keys of a range, in the order of their bytes, each with the slot that
    /// points at its entry, until it answers `false`. Keys whose time is over may be among them. A
    /// key that is there all the time is given; one that comes or goes meanwhile may be.
    ///
    /// Gives whether the end of the range was reached.
    ///
    /// # Errors
    /// `BadOption` if the table is not ordered, `NoSuchTable`.
    pub fn scan(
        &self,
        range: ScanRange<'_>,
        mut visit: impl FnMut(&[u8], Slot) -> bool,
    ) -> Result<bool, RpcError> {
        let Some(order) = &self.order else {
            let text = format!(
                "table {:?} is not ordered, so it cannot be scanned: make one with the option \
                 `ordered`",
                self.name()
            );
            return Err(RpcError::new(ErrorCode::BadOption, text));
        };
        let ScanRange { from, after, prefix_len } = range;
        let prefix = from.get(..prefix_len).unwrap_or(from);
        let start = if after { Bound::Excluded(from) } else { Bound::Included(from) };
        for entry in order.keys.range::<[u8], _>((start, Bound::Unbounded)) {
            let key: &[u8] = entry.value();
            if !key.starts_with(prefix) {
                break;
            }
            let found = self.find(key)?;
            // It went after it was met: its entry is dead already.
            let Some(hit) = found.probe.hit else { continue };
            let slot = Slot(found.base.plus(hit.slot_bytes).load());
            drop(found);
            if !visit(key, slot) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
