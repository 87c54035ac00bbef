//! What the server does to entries of a table that clients update too.

use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::Death;
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::count;
use crate::engine::bucket::Hit;
use crate::engine::publish;
use crate::engine::table::{Found, Fresh, Table};

/// Compare-and-swaps that one operation may lose: each time a client has won.
pub(in crate::engine) const LOST_MAX: usize = 4_096;

impl Table {
    /// Makes a fresh entry the successor of the key's newest one, and the slot point at it.
    /// `false`: a client was faster. If it is not made so, the fresh one is given back.
    ///
    /// # Errors
    /// `Internal`: the device that changes such words failed; nothing was changed.
    pub(in crate::engine) fn link(
        &self,
        found: &Found<'_>,
        hit: Hit,
        fresh: &Fresh<'_>,
    ) -> Result<bool, RpcError> {
        let at = found.base.plus(hit.slot_bytes);
        let old = Slot(at.load());
        let linked = fresh.pending.link(&self.shared, hit.addr, at, found.fingerprint());
        if let Ok(true) = linked {
            self.recount(fresh);
            self.release_slot(old);
        } else {
            count(&self.shared.cas.counts.lost);
            self.account.give(self.shared.pool.sub(fresh.addr, fresh.len_bytes));
        }
        self.settle(fresh);
        linked
    }

    /// A slot points at a fresh entry now: it counts as its class says, from here on.
    pub(in crate::engine) fn recount(&self, fresh: &Fresh<'_>) {
        let more = size_class::bytes(fresh.pending.class()).saturating_sub(fresh.len_bytes);
        // It is pinned, so its segment is not free.
        if more > 0 && self.shared.pool.count(fresh.addr, more) {
            self.shared.pool.note_over(fresh.addr, more as i32);
        }
    }

    /// The table is being dropped: what a slot points at is dead.
    pub(in crate::engine) fn kill_shared(&self, slot: Slot) {
        let Some(addr) = slot.addr() else { return };
        let at = self.shared.pool.at(addr);
        let room = self.shared.pool.log_room(addr, self.id());
        if let Some(header) = room.and_then(|room_bytes| self.shape_at(addr, room_bytes)) {
            self.end_counter_of_dropped(addr, header);
        }
        for _ in 0..LOST_MAX {
            // A device that failed, and with it all who could read what it does not kill.
            if publish::kill_if(&self.shared, addr, at.load(), Death::Relocated).unwrap_or(true) {
                break;
            }
        }
        self.release_slot(slot);
    }

    /// Removes the key's newest entry. `false`: a client was faster.
    ///
    /// # Errors
    /// As of [`Self::link`].
    pub(in crate::engine) fn unlink(
        &self,
        found: &mut Found<'_>,
        hit: Hit,
        why: Death,
    ) -> Result<bool, RpcError> {
        let slot = found.base.plus(hit.slot_bytes);
        let old = Slot(slot.load());
        if !publish::remove_shared(&self.shared, hit.addr, slot, why)? {
            count(&self.shared.cas.counts.lost);
            return Ok(false);
        }
        // Clients give versions, too; one that comes back must have a greater one.
        self.note_version(hit.header.version);
        found.gone(hit);
        self.release_slot(old);
        Ok(true)
    }
}

/// Why a change did not come through.
pub(in crate::engine) fn contended() -> RpcError {
    let text = format!(
        "clients have replaced the key's entry {LOST_MAX} times while the server tried to; nothing \
         was changed: try again"
    );
    RpcError::new(ErrorCode::Contended, text)
}
