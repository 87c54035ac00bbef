//! Cells of a table's counters: words that stay where they are as long as their counter lives, in
//! regions that clients may write.
//!
//! One whose counter has ended is another one's only when no session can hold its address any more
//! ([`super::epoch`]): until then who adds to it finds that it has ended. So that clients need not
//! look for their counters again after each that is deleted, they are retired many together. Slabs
//! come back with the table.

use onesided_fabric::Rights;
use onesided_protocol::LogAddr;
use onesided_protocol::layout::addr::UNIT_BYTES;
use onesided_protocol::rpc::RpcError;
use parking_lot::Mutex;

use super::Shared;
use super::account::Account;
use super::block::Use;
use super::epoch::Memory;
use super::memory::Pool;
use super::room::{Need, Wanted};

/// Where the cells of one table are. A cell takes as much as an address can tell apart.
#[derive(Default)]
pub(super) struct Cells {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Each a block; the last one is being used up.
    slabs: Vec<LogAddr>,
    used_bytes: usize,
    /// Those that nobody knows.
    free: Vec<LogAddr>,
    /// Those whose counters have ended, and that nothing leads to.
    ended: Vec<LogAddr>,
}

/// Those that have ended are retired when they are this part of a slab: each time all clients look
/// for the table's counters again.
const RETIRED_PART: usize = 2;

/// What another slab is wanted for.
pub(super) fn wanted(pool: &Pool, owner: u32) -> Wanted {
    Wanted { owner, len_bytes: pool.block_bytes(), need: Need::Grow, rights: Rights::ReadWrite }
}

impl Cells {
    /// A cell that nobody knows. It is 0.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn take(
        &self,
        shared: &Shared,
        account: &Account,
        owner: u32,
    ) -> Result<LogAddr, RpcError> {
        let slab_bytes = shared.pool.block_bytes();
        let mut state = self.state.lock();
        if let Some(cell) = state.free.pop() {
            // No addition can be under way to it.
            shared.pool.at(cell).store(0);
            return Ok(cell);
        }
        if state.slabs.is_empty() || state.used_bytes + UNIT_BYTES > slab_bytes {
            account.take(slab_bytes, Need::Grow, 0)?;
            let slab = shared.pool.take(wanted(&shared.pool, owner), Use::Cells, owner);
            let slab = slab.inspect_err(|_| account.give(slab_bytes))?;
            account.note_index(slab_bytes);
            state.slabs.push(slab);
            state.used_bytes = 0;
        }
        let none = || shared.pool.refusal(slab_bytes, Rights::ReadWrite);
        let slab = *state.slabs.last().ok_or_else(none)?;
        let cell = LogAddr::new(slab.region(), slab.offset_bytes() + state.used_bytes);
        state.used_bytes += UNIT_BYTES;
        // Nobody else knows it.
        shared.pool.at(cell).store(0);
        Ok(cell)
    }

    /// Takes back what nobody knows.
    pub(super) fn give(&self, cells: &[LogAddr]) {
        self.state.lock().free.extend(cells);
    }

    /// The counter of a cell has ended, and its entry is gone.
    pub(super) fn has_ended(&self, cell: LogAddr, shared: &Shared, owner: u32) {
        let mut state = self.state.lock();
        state.ended.push(cell);
        if state.ended.len() * UNIT_BYTES >= shared.pool.block_bytes() / RETIRED_PART {
            retire(&mut state, shared, owner);
        }
    }

    /// Those that have ended are free again when no session knows them any more.
    pub(super) fn retire(&self, shared: &Shared, owner: u32) {
        retire(&mut self.state.lock(), shared, owner);
    }

    /// All slabs, of a table that was dropped.
    pub(super) fn slabs(&self) -> Vec<LogAddr> {
        self.state.lock().slabs.clone()
    }
}

fn retire(state: &mut State, shared: &Shared, table: u32) {
    if !state.ended.is_empty() {
        let cells = std::mem::take(&mut state.ended);
        shared.epochs.retire(Memory::Cells { table, cells }, None, shared.clock.unix_ns());
    }
}
