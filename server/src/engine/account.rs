//! What a table has taken of the memory.

use std::sync::atomic::{AtomicU64, Ordering};

use onesided_fabric::Rights;
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::memory::Pool;
use super::room::Need;

/// What a table may take and has taken.
#[derive(Debug)]
pub(super) struct Account {
    /// The table's id.
    pub(super) owner: u32,
    /// Of the regions that its logs are in.
    pub(super) rights: Rights,
    /// Bytes, 0 = no limit of its own.
    pub(super) quota_bytes: AtomicU64,
    /// Bytes that no other table can take from it.
    pub(super) floor_bytes: AtomicU64,
    /// Bytes of log segments, index segments and directories.
    taken_bytes: AtomicU64,
    /// Bytes of index segments and directories among them.
    index_bytes: AtomicU64,
}

impl Account {
    pub(super) fn new(owner: u32, rights: Rights) -> Self {
        Self {
            owner,
            rights,
            quota_bytes: AtomicU64::new(0),
            floor_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            index_bytes: AtomicU64::new(0),
        }
    }

    /// Quota and floor.
    pub(super) fn set_bounds(&self, options: &TableOptions) {
        self.quota_bytes.store(options.quota_bytes, Ordering::Relaxed);
        self.floor_bytes.store(options.floor_bytes, Ordering::Relaxed);
    }

    /// Counts `more` bytes as taken, unless that would exceed the quota: what replaces an entry
    /// may exceed it by `spare_bytes`, what the cleaner copies by any number.
    pub(super) fn take(&self, more: usize, need: Need, spare_bytes: usize) -> Result<(), RpcError> {
        let more = more as u64;
        let before = self.taken_bytes.fetch_add(more, Ordering::Relaxed);
        let quota = self.quota_bytes.load(Ordering::Relaxed);
        let limit = match need {
            _ if quota == 0 => u64::MAX,
            Need::Grow => quota,
            Need::Replace => quota.saturating_add(spare_bytes as u64),
            Need::Clean => u64::MAX,
        };
        if before + more <= limit {
            return Ok(());
        }
        self.taken_bytes.fetch_sub(more, Ordering::Relaxed);
        Err(refusal(quota, before, more))
    }

    /// What it may still take that no other table may.
    pub(super) fn owed_bytes(&self) -> u64 {
        self.floor_bytes.load(Ordering::Relaxed).saturating_sub(self.taken())
    }

    /// What it has taken beyond its floor.
    pub(super) fn above_floor_bytes(&self) -> u64 {
        self.taken().saturating_sub(self.floor_bytes.load(Ordering::Relaxed))
    }

    fn taken(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Whether so many bytes are within the quota if all logs of the table were empty.
    pub(super) fn could_hold(&self, len_bytes: usize, need: Need, spare_bytes: usize) -> bool {
        let quota = match (self.quota_bytes.load(Ordering::Relaxed), need) {
            (0, _) | (_, Need::Clean) => return true,
            (quota, Need::Grow) => quota,
            (quota, Need::Replace) => quota.saturating_add(spare_bytes as u64),
        };
        self.index_bytes().saturating_add(len_bytes as u64) <= quota
    }

    /// Refuses an entry that would not be within the quota if nothing else were in the table.
    pub(super) fn check_ever(&self, bytes: usize, need: Need, pool: &Pool) -> Result<(), RpcError> {
        let taken_bytes = bytes.next_multiple_of(pool.block_bytes());
        if self.could_hold(taken_bytes, need, pool.segment_bytes()) {
            return Ok(());
        }
        let text = format!(
            "an entry of {bytes} bytes can never fit: the table's quota is {} bytes, of which its \
             index takes {}; raise the quota or store shorter values",
            self.quota_bytes.load(Ordering::Relaxed),
            self.index_bytes()
        );
        Err(RpcError::new(ErrorCode::TooLarge, text))
    }

    /// Whether `more` bytes would be refused.
    pub(super) fn is_over(&self, more: usize, need: Need, spare_bytes: usize) -> bool {
        let taken = self.take(more, need, spare_bytes).map(|()| self.give(more));
        taken.is_err() || need == Need::Grow && self.may_grow(0).is_err()
    }

    /// Refuses to put more into what is taken, if that exceeds the quota already.
    pub(super) fn may_grow(&self, more: usize) -> Result<(), RpcError> {
        let quota = self.quota_bytes.load(Ordering::Relaxed);
        let taken = self.taken();
        if quota == 0 || taken <= quota {
            return Ok(());
        }
        Err(refusal(quota, taken, more as u64))
    }

    /// Counts bytes as given back.
    pub(super) fn give(&self, bytes: usize) {
        if bytes > 0 {
            self.taken_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Says that bytes taken are the index's.
    pub(super) fn note_index(&self, bytes: usize) {
        self.index_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Says that bytes given back were the index's.
    pub(super) fn unnote_index(&self, bytes: usize) {
        self.index_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn index_bytes(&self) -> u64 {
        self.index_bytes.load(Ordering::Relaxed)
    }
}

fn refusal(quota: u64, taken: u64, more: u64) -> RpcError {
    let text = format!(
        "the table's quota of {quota} bytes is used up ({taken} bytes in use, {more} more needed); \
         nothing was changed: raise the quota or delete keys"
    );
    RpcError::new(ErrorCode::OutOfMemory, text)
}
