//! CAS and FAA where they are round trips: posted alone, and waited for.

use std::sync::Arc;

use onesided_fabric::{Opcode, WorkError, WorkRequest};

use super::call::CallError;
use super::connection::Connection;
use super::driver::block_on;
use super::pending::Failure;
use super::polled::Word;
use super::swaps::NoWord;
use super::time::Deadline;
use crate::error::Error;

/// Why it was not posted.
enum NotPosted {
    /// The send queue is full.
    Full(Opcode),
    Never(CallError),
}

impl Connection {
    /// Does a CAS or an FAA, and gives what was there before.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if it was posted and what came of it is not known; all others mean
    /// that nothing was done.
    pub(crate) async fn atomic(&self, op: Opcode, by: Deadline) -> Result<u64, Error> {
        let post = |id| match self.post_now(WorkRequest { id, signaled: true, op }) {
            Ok(None) => Ok(()),
            Ok(Some(request)) => Err(NotPosted::Full(request.op)),
            Err(error) => Err(NotPosted::Never(error)),
        };
        let found = match self.word(by, post).await {
            Ok(((), word)) => Ok(word),
            Err(NoWord::NotPosted(NotPosted::Full(op))) => self.atomic_with_room(op, by).await,
            Err(NoWord::NotPosted(NotPosted::Never(error))) => Err(NoWord::NotPosted(error)),
            Err(NoWord::NoSlot(error)) => Err(NoWord::NoSlot(error)),
            Err(NoWord::Failed(failure)) => Err(NoWord::Failed(failure)),
            Err(NoWord::NoAnswer(error)) => Err(NoWord::NoAnswer(error)),
        };
        found.map_err(|error| self.atomic_error(error, by))
    }

    /// As [`Self::atomic`], by a thread that waits itself, in few instructions. `None`: it does
    /// not, or nothing was posted.
    pub(crate) fn atomic_blocking(
        self: &Arc<Self>,
        what: &'static str,
        op: Opcode,
    ) -> Option<Result<u64, Error>> {
        let by = || Deadline::after(what, self.options().operation_timeout);
        let post = |id| match self.post_now(WorkRequest { id, signaled: true, op }) {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(()),
        };
        match self.polled_word(by, post).ok()?.ok()? {
            ((), Word::Found(word)) => Some(Ok(word)),
            ((), word) => {
                let by = by();
                let found = block_on(|| Some(Arc::clone(self)), word.get(by));
                Some(found.map_err(|error| self.atomic_error(error, by)))
            }
        }
    }

    /// As [`Self::atomic`], when there is room.
    async fn atomic_with_room(&self, op: Opcode, by: Deadline) -> Result<u64, NoWord<CallError>> {
        let slot = self.acquire(&self.slots.permits, 1, by).await.map_err(NoWord::NoSlot)?;
        let waiter = self.register(1, Some(slot), None, None, by);
        let mut waiter = waiter.map_err(NoWord::NoSlot)?;
        let posted = self.post_one(WorkRequest { id: waiter.id, signaled: true, op }, by).await;
        posted.map_err(NoWord::NotPosted)?;
        waiter.unposted = 0;
        Word::Comes(waiter).get(by).await
    }

    fn atomic_error(&self, error: NoWord<CallError>, by: Deadline) -> Error {
        let unknown = |reason: String| Error::OutcomeUnknown { what: by.what, reason };
        match error {
            // The device refused it, and ended the connection.
            NoWord::Failed(Failure::Work(WorkError::Access(error))) => Error::Access(error),
            NoWord::NoAnswer(CallError::TimedOut { .. }) => {
                unknown(format!("no answer within {:?}", by.after))
            }
            NoWord::Failed(_) | NoWord::NoAnswer(_) => unknown(self.lost_reason().to_owned()),
            NoWord::NoSlot(error) | NoWord::NotPosted(error) => match error {
                CallError::Lost { .. } => self.lost_error(),
                CallError::TimedOut { .. } => Error::TimedOut { what: by.what, after: by.after },
                CallError::Failed(error) => error,
            },
        }
    }
}
