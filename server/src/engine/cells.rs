//! Cells of a table's counters: words that stay where they are as long as the table lives, in
//! regions that clients may write.
//!
//! None is used twice: a client that keeps the address of a deleted counter's cell and adds to it
//! harms nobody. They come back with the table, when no session can hold an address of one
//! ([`super::epoch`]).

use onesided_fabric::Rights;
use onesided_protocol::LogAddr;
use onesided_protocol::layout::addr::UNIT_BYTES;
use onesided_protocol::rpc::RpcError;
use parking_lot::Mutex;

use super::Shared;
use super::account::Account;
use super::block::Use;
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
}

/// What another slab is wanted for.
pub(super) fn wanted(pool: &Pool, owner: u32) -> Wanted {
    Wanted { owner, len_bytes: pool.block_bytes(), need: Need::Grow, rights: Rights::ReadWrite }
}

impl Cells {
    /// A cell that was never used in this table's life. It is 0.
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

    /// Takes back what was taken last and nobody knows.
    pub(super) fn give_last(&self, cell: LogAddr) {
        let mut state = self.state.lock();
        let last = state.slabs.last().is_some_and(|slab| {
            let end_bytes = slab.offset_bytes() + state.used_bytes;
            slab.region() == cell.region() && cell.offset_bytes() + UNIT_BYTES == end_bytes
        });
        if last {
            state.used_bytes -= UNIT_BYTES;
        }
    }

    /// All slabs, of a table that was dropped.
    pub(super) fn slabs(&self) -> Vec<LogAddr> {
        self.state.lock().slabs.clone()
    }
}
