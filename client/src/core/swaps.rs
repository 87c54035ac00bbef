//! WRITE and compare-and-swap, where they are work requests: posted together, waited for once.

use std::collections::VecDeque;

use onesided_fabric::{Buffer, Opcode, RemoteAddr, WorkRequest};

use super::call::{CallError, Waiter};
use super::connection::Connection;
use super::time::Deadline;

/// A compare-and-swap of a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swap {
    pub(crate) at: RemoteAddr,
    pub(crate) expected: u64,
    pub(crate) new: u64,
}

impl Swap {
    fn op(self) -> Opcode {
        let Self { at: remote, expected, new } = self;
        Opcode::CompareSwap { remote, expected, new }
    }
}

/// What of a WRITE and a compare-and-swap was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    Both,
    /// The send queue was full then: the compare-and-swap never happens.
    WriteOnly,
    Nothing,
}

/// A place for a compare-and-swap among what is pending.
pub(crate) struct SwapSlot<'a> {
    connection: &'a Connection,
    waiter: Waiter<'a>,
}

impl Connection {
    /// A place for a compare-and-swap, as soon as there is one.
    pub(crate) async fn swap_slot(&self, by: Deadline) -> Result<SwapSlot<'_>, CallError> {
        self.acquire(&self.slots, 1, by).await?;
        let waiter = self.register(1, false, None, by)?;
        Ok(SwapSlot { connection: self, waiter })
    }

    /// Posts a compare-and-swap that nobody waits for. `false`: it was not.
    pub(crate) fn swap_unheard(&self, swap: Swap) -> bool {
        // Id 0 is no request's. Should it fail, the connection is over, and everybody hears of
        // that.
        let request = WorkRequest { id: 0, signaled: false, op: swap.op() };
        matches!(self.post_now(request), Ok(None))
    }

    /// Posts a WRITE that nobody waits for. `false`: it was not.
    pub(crate) fn write_unheard(&self, remote: RemoteAddr, from: Buffer) -> bool {
        let op = Opcode::Write { remote, from };
        matches!(self.post_now(WorkRequest { id: 0, signaled: false, op }), Ok(None))
    }
}

impl SwapSlot<'_> {
    /// Posts both behind one doorbell; they take effect in this order. Does not wait.
    pub(crate) fn post(
        &mut self,
        to: RemoteAddr,
        from: Buffer,
        swap: Swap,
    ) -> Result<Posted, CallError> {
        let write = Opcode::Write { remote: to, from };
        let mut chain: VecDeque<_> = [(false, write), (true, swap.op())]
            .map(|(signaled, op)| WorkRequest { id: self.waiter.id, signaled, op })
            .into();
        self.connection.post(&mut chain)?;
        Ok(match chain.len() {
            0 => {
                self.waiter.unposted = 0;
                Posted::Both
            }
            1 => Posted::WriteOnly,
            _ => Posted::Nothing,
        })
    }

    /// The word that was there. `Lost { sent: true }`: it may have been swapped.
    pub(crate) async fn found(mut self, by: Deadline) -> Result<u64, CallError> {
        let collected = self.waiter.collected(by).await?;
        collected.word.ok_or(CallError::Lost { sent: true })
    }
}
