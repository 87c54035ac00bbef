//! WRITE and compare-and-swap, where they are work requests: posted together, waited for once.

use std::sync::Arc;

use onesided_fabric::{Buffer, Opcode, RemoteAddr, WorkRequest};

use super::call::CallError;
use super::commits::Swaps;
use super::connection::Connection;
use super::driver::block_on;
use super::pending::Failure;
use super::polled::Word;
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

    /// Id 0 is no request's. Should it fail, the connection is over, and everybody hears of that.
    fn unheard(self) -> WorkRequest {
        WorkRequest { id: 0, signaled: false, op: self.op() }
    }
}

/// What was posted of a WRITE and a compare-and-swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    Both,
    /// The send queue was full then: the compare-and-swap never happens.
    WriteOnly,
    Nothing,
}

/// Why it is not known what a CAS or FAA found.
#[derive(Debug)]
pub(crate) enum NoWord<E> {
    /// There was no place for it in time: nothing was posted.
    NoSlot(CallError),
    /// Who should post it did not.
    NotPosted(E),
    /// It failed: whether it was done may be known from why.
    Failed(Failure),
    /// It was posted, and no answer came in time, or the connection was lost.
    NoAnswer(CallError),
}

impl Word<'_> {
    pub(super) async fn get<E>(self, by: Deadline) -> Result<u64, NoWord<E>> {
        let mut waiter = match self {
            Self::Found(word) => return Ok(word),
            Self::Lost => return Err(NoWord::NoAnswer(CallError::Lost { sent: true })),
            Self::Comes(waiter) => waiter,
        };
        let collected = waiter.collected(by).await.map_err(NoWord::NoAnswer)?;
        match (collected.failure, collected.word) {
            (None, Some(word)) => Ok(word),
            (failure, _) => Err(NoWord::Failed(failure.unwrap_or(Failure::Lost))),
        }
    }
}

impl Connection {
    /// Lets `post` post a chain whose last request is a signalled CAS or FAA of the id that it is
    /// given, and waits for what that finds. If `post` fails, its last request was not posted.
    pub(crate) async fn word<T, E>(
        &self,
        by: Deadline,
        post: impl FnOnce(u64) -> Result<T, E>,
    ) -> Result<(T, u64), NoWord<E>> {
        let (posted, word) = match self.polled_word(|| by, post) {
            Ok(polled) => polled.map_err(NoWord::NotPosted)?,
            Err(post) => {
                let slot = self.acquire(&self.slots.permits, 1, by).await;
                let slot = slot.map_err(NoWord::NoSlot)?;
                let waiter = self.register(1, Some(slot), None, None, by);
                let mut waiter = waiter.map_err(NoWord::NoSlot)?;
                let posted = post(waiter.id).map_err(NoWord::NotPosted)?;
                waiter.unposted = 0;
                (posted, Word::Comes(waiter))
            }
        };
        Ok((posted, word.get(by).await?))
    }

    /// As [`Self::word`], by a thread that waits itself, in few instructions. `None`: it does not,
    /// or others dispatch just now; nothing was posted.
    pub(crate) fn word_blocking<T, E>(
        self: &Arc<Self>,
        by: Deadline,
        post: impl FnOnce(u64) -> Result<T, E>,
    ) -> Option<Result<(T, u64), NoWord<E>>> {
        let (posted, word) = match self.polled_word(|| by, post).ok()? {
            Ok(posted) => posted,
            Err(error) => return Some(Err(NoWord::NotPosted(error))),
        };
        let word = match word {
            Word::Found(word) => Ok(word),
            word => block_on(|| Some(Arc::clone(self)), word.get(by)),
        };
        Some(word.map(|word| (posted, word)))
    }

    /// Posts both behind one doorbell, and before them some that nobody waits for; they take effect
    /// in this order. Does not wait.
    pub(crate) fn post_swap(
        &self,
        id: u64,
        unheard: Swaps,
        (to, from): (RemoteAddr, Buffer),
        swap: Swap,
    ) -> Result<Posted, CallError> {
        let write = Opcode::Write { remote: to, from };
        let write = WorkRequest { id: 0, signaled: false, op: write };
        let swap = WorkRequest { id, signaled: true, op: swap.op() };
        let unheard = unheard.iter().map(Swap::unheard);
        Ok(match self.post_chain(unheard.chain([write, swap]))? {
            0 => Posted::Both,
            1 => Posted::WriteOnly,
            _ => Posted::Nothing,
        })
    }

    /// Posts a compare-and-swap that nobody waits for. `false`: it was not.
    pub(crate) fn swap_unheard(&self, swap: Swap) -> bool {
        matches!(self.post_now(swap.unheard()), Ok(None))
    }

    /// As [`Self::swap_unheard`], of some. What is not posted the server does.
    pub(crate) fn swap_all_unheard(&self, swaps: Swaps) {
        let mut swaps = swaps.iter().peekable();
        if swaps.peek().is_some() {
            let _left = self.post_chain(swaps.map(Swap::unheard));
        }
    }

    /// Posts a WRITE that nobody waits for. `false`: it was not.
    pub(crate) fn write_unheard(&self, remote: RemoteAddr, from: Buffer) -> bool {
        let op = Opcode::Write { remote, from };
        matches!(self.post_now(WorkRequest { id: 0, signaled: false, op }), Ok(None))
    }
}
