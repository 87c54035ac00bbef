//! Leases: room in a table's log that one session writes entries into.
//!
//! A lease is a run of blocks as a segment of the log is, which holds itself as long as it is
//! appended to. When it ends, by [`Engine::seal`] or because nobody can write there any more
//! ([`Engine::take_back`]), its entries are walked through; then it is an ordinary sealed segment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onesided_protocol::LogAddr;
use onesided_protocol::layout::state::State;
use onesided_protocol::limits::LEASES_MAX;
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::Mutex;

use super::Cas;
use super::walk::Stretch;
use crate::engine::Engine;
use crate::engine::block::Use;
use crate::engine::evict::Part;
use crate::engine::room::{Level, Need};
use crate::engine::table::Table;

/// All leases of an engine, by where they begin.
#[derive(Default)]
pub(super) struct Leases {
    held: Mutex<BTreeMap<LogAddr, Lease>>,
}

struct Lease {
    session: u64,
    /// It may have been dropped.
    table: Arc<Table>,
    len_bytes: usize,
}

/// Leases, and what happened to entries that clients update.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CasStatus {
    /// Leases that sessions have.
    pub leases: u64,
    /// Bytes of them.
    pub lease_bytes: u64,
    /// Slots that were pointed at a newer entry.
    pub repaired_slots: u64,
    /// Entries that a client had linked and the server committed.
    pub finished_entries: u64,
    /// Compare-and-swaps of the server's that a client was faster than.
    pub lost_swaps: u64,
    /// Keys that were removed because what clients wrote did not prove itself.
    pub broken_keys: u64,
}

impl CasStatus {
    /// Both together.
    pub(in crate::engine) fn and(self, other: &Self) -> Self {
        Self {
            leases: self.leases + other.leases,
            lease_bytes: self.lease_bytes + other.lease_bytes,
            repaired_slots: self.repaired_slots + other.repaired_slots,
            finished_entries: self.finished_entries + other.finished_entries,
            lost_swaps: self.lost_swaps + other.lost_swaps,
            broken_keys: self.broken_keys + other.broken_keys,
        }
    }
}

fn refused(code: ErrorCode, text: impl Into<String>) -> RpcError {
    RpcError::new(code, text)
}

impl Leases {
    fn count(&self, session: u64, table: u32) -> usize {
        let held = self.held.lock();
        held.values().filter(|held| held.session == session && held.table.id() == table).count()
    }

    /// What a session holds that begins at `addr`; it holds it no more.
    fn take(&self, session: u64, addr: LogAddr) -> Option<Lease> {
        let mut held = self.held.lock();
        held.get(&addr).filter(|held| held.session == session)?;
        held.remove(&addr)
    }

    fn take_all(&self, session: u64) -> Vec<(LogAddr, Lease)> {
        let mut held = self.held.lock();
        let own: Vec<_> = held.iter().filter(|(_, held)| held.session == session).collect();
        let own: Vec<_> = own.into_iter().map(|(addr, _)| *addr).collect();
        own.into_iter().filter_map(|addr| Some((addr, held.remove(&addr)?))).collect()
    }

    /// Whether a session may have written at `addr`.
    fn covers(&self, session: u64, addr: LogAddr) -> bool {
        let held = self.held.lock();
        held.range(..=addr).next_back().is_some_and(|(start, held)| {
            let end = start.offset_bytes() + held.len_bytes;
            held.session == session && start.region() == addr.region() && addr.offset_bytes() < end
        })
    }
}

impl Engine {
    /// Room of about `wanted_bytes`, all zeros, in the log of a table of mode `cas`, which a
    /// session may write entries into until it says [`Self::seal`]. One call of a session at a
    /// time.
    ///
    /// # Errors
    /// `NoSuchTable`, `BadOption` for a table of another mode, `TooLarge` if the session has as
    /// many as it may, `OutOfMemory`.
    pub fn lease(
        &self,
        session: u64,
        table: u32,
        wanted_bytes: usize,
    ) -> Result<(LogAddr, usize), RpcError> {
        let Some(table) = self.table(table) else {
            let text = format!("there is no table with id {table}: it was dropped; open it again");
            return Err(refused(ErrorCode::NoSuchTable, text));
        };
        if !table.is_cas() {
            let text = format!("clients cannot update entries of table {:?}", table.name());
            return Err(refused(ErrorCode::BadOption, text));
        }
        if self.shared.cas.leases.count(session, table.id()) >= LEASES_MAX {
            let text = format!("the session has {LEASES_MAX} leases of the table: seal one first");
            return Err(refused(ErrorCode::TooLarge, text));
        }
        let (addr, len_bytes) = table.take_lease(wanted_bytes)?;
        let lease = Lease { session, table, len_bytes };
        self.shared.cas.leases.held.lock().insert(addr, lease);
        Ok((addr, len_bytes))
    }

    /// A session writes no more into the lease that begins at `addr`. `false`: it had none there.
    pub fn seal(&self, session: u64, addr: LogAddr) -> bool {
        let lease = self.shared.cas.leases.take(session, addr);
        lease.map(|lease| lease.end(addr)).is_some()
    }

    /// Nobody can write any more into what a session had leased: its queue pairs are destroyed, its
    /// process has ended, or it said so. Gives how many leases that ends.
    pub fn take_back(&self, session: u64) -> usize {
        let all = self.shared.cas.leases.take_all(session);
        all.iter().for_each(|(addr, lease)| lease.end(*addr));
        all.len()
    }

    /// What there is of this just now, and has been.
    #[must_use]
    pub fn cas_status(&self) -> CasStatus {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Cas { leases, counts } = &self.shared.cas;
        let held = leases.held.lock();
        CasStatus {
            leases: held.len() as u64,
            lease_bytes: held.values().map(|lease| lease.len_bytes as u64).sum(),
            repaired_slots: of(&counts.repaired),
            finished_entries: of(&counts.finished),
            lost_swaps: of(&counts.lost),
            broken_keys: of(&counts.broken),
        }
    }

    /// Whether a session has leases.
    #[must_use]
    pub fn has_leases(&self, session: u64) -> bool {
        self.shared.cas.leases.held.lock().values().any(|lease| lease.session == session)
    }

    /// Whether the entry that a session wrote at `addr`, in a lease that it still has, has replaced
    /// another one. What it says stays so, as the session links that entry no more.
    ///
    /// # Errors
    /// `NoSuchTable`; `BadOption` if it has no such lease.
    pub fn linked(
        &self,
        session: u64,
        table: u32,
        key: &[u8],
        addr: LogAddr,
    ) -> Result<bool, RpcError> {
        let Some(table) = self.table(table) else {
            let text = format!("there is no table with id {table}: it was dropped; open it again");
            return Err(refused(ErrorCode::NoSuchTable, text));
        };
        if !self.shared.cas.leases.covers(session, addr) {
            return Err(refused(ErrorCode::BadOption, "the session has no lease there"));
        }
        // Finishes it, if something forwards to it and nothing has replaced it.
        let _held = table.find(key)?;
        let word = self.shared.pool.at(addr).load();
        Ok(!matches!(State::decode(word), State::Pending(_)))
    }
}

impl Table {
    fn take_lease(&self, wanted_bytes: usize) -> Result<(LogAddr, usize), RpcError> {
        let pool = &self.shared.pool;
        if pool.level(self.log.rights()) == Level::Full {
            return Err(pool.refusal(pool.block_bytes(), self.log.rights()));
        }
        let most = wanted_bytes.clamp(pool.block_bytes(), pool.segment_bytes());
        let most = most.next_multiple_of(pool.block_bytes()).min(pool.segment_bytes());
        let take = |len_bytes: usize| {
            self.account.take(len_bytes, Need::Grow, 0)?;
            let wanted = self.log.wanted(self.id(), len_bytes, Need::Grow);
            let taken = pool.take(wanted, Use::Log, self.id());
            taken.inspect_err(|_| self.account.give(len_bytes)).map(|addr| (addr, len_bytes))
        };
        let (addr, len_bytes) = take(most).or_else(|_| take(pool.block_bytes()))?;
        pool.activate(addr);
        pool.at(addr).zero(len_bytes);
        self.leased_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        Ok((addr, len_bytes))
    }
}

impl Lease {
    fn end(&self, addr: LogAddr) {
        let table = &self.table;
        if !table.dropped.load(Ordering::Acquire) {
            table.repair(&Stretch { start: addr, bytes: 0..self.len_bytes });
        }
        table.leased_bytes.fetch_sub(self.len_bytes, Ordering::Relaxed);
        // Of its full length: what nothing was written into is as good as dead.
        let freed_bytes = table.shared.pool.seal(addr, Part::Fresh, self.len_bytes);
        table.account.give(freed_bytes);
    }
}
