//! Floors: memory that a table can count on. Others cannot take it, whether the table uses it yet
//! or not, and eviction leaves it what it has.
//!
//! A table below its floor is *owed* the rest: as much stays free, or unmade, for it alone. What
//! counts is what it has taken ([`Account`]): blocks of its log, dead entries included, and its
//! index. Above its floor a table is as all others are. What others had taken before a floor was
//! set is not taken from them, but by eviction.

use std::sync::Arc;

use arc_swap::ArcSwap;
use onesided_fabric::Rights;
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::Engine;
use super::account::Account;
use super::memory::Pool;
use super::table::Table;

/// The accounts of the tables that have a floor.
#[derive(Default)]
pub(super) struct Floors(ArcSwap<Vec<Arc<Account>>>);

impl Floors {
    /// What tables are owed whose logs lie in regions of this right, but for `owner`.
    pub(super) fn owed_bytes(&self, owner: u32, rights: Rights) -> usize {
        self.sum(owner, |account| if account.rights == rights { account.owed_bytes() } else { 0 })
    }

    /// The floors of all tables but `owner`.
    pub(super) fn floor_bytes(&self, owner: u32) -> usize {
        self.sum(owner, |account| account.floor_bytes.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn sum(&self, but: u32, of: impl Fn(&Account) -> u64) -> usize {
        let accounts = self.0.load();
        let others = accounts.iter().filter(|account| account.owner != but);
        others.map(|account| of(account)).sum::<u64>() as usize
    }

    pub(super) fn set(&self, accounts: Vec<Arc<Account>>) {
        self.0.store(Arc::new(accounts));
    }
}

impl Engine {
    /// Promises floors that are so much in all, if there is so much memory. The caller holds the
    /// names of tables.
    pub(super) fn promise_floors(&self, sum_bytes: u64) -> Result<(), RpcError> {
        let refuse = |text: String| Err(RpcError::new(ErrorCode::BadOption, text));
        let pool = &self.shared.pool;
        let limit_bytes = pool.limit_bytes();
        let needed = usize::try_from(sum_bytes).ok().and_then(|sum| pool.with_room(sum));
        let Some(needed_bytes) = needed else {
            return refuse(format!(
                "the floors of all tables would be {sum_bytes} bytes, and with what cleaning and \
                 replacing need more than the memory of {limit_bytes}; nothing was changed: take \
                 a lower floor or raise --memory"
            ));
        };
        if !pool.promise(needed_bytes) {
            return refuse(format!(
                "the floors of all tables would need {needed_bytes} bytes, and other tenants' \
                 floors leave less; nothing was changed: take a lower floor or raise --memory"
            ));
        }
        Ok(())
    }
}

impl Pool {
    /// Bytes of memory with which entries and indexes may take so many. `None`: there are not so
    /// many.
    fn with_room(&self, bytes: usize) -> Option<usize> {
        if bytes == 0 {
            return Some(0);
        }
        let blocks = bytes.div_ceil(self.block_bytes());
        let limit_blocks = self.most_to_read_bytes() / self.block_bytes();
        // What is kept free grows more slowly than what there is.
        let mut all = blocks;
        while all <= limit_blocks {
            let with_kept = blocks + self.kept_blocks(all);
            if with_kept <= all {
                return Some((all * self.block_bytes()).next_multiple_of(self.segment_bytes()));
            }
            all = with_kept;
        }
        None
    }
}

impl Table {
    /// Whether entries may go for others, or for `wanted_by` itself, so that so many bytes become
    /// free.
    pub(super) fn may_lose(&self, bytes: usize, wanted_by: u32) -> bool {
        let is_above = self.account.above_floor_bytes() >= bytes as u64;
        self.evicts() && (is_above || self.id() == wanted_by)
    }
}
