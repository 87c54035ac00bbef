//! CAS and FAA where they are round trips: posted alone, and waited for.

use onesided_fabric::{Opcode, WorkError, WorkRequest};

use super::call::CallError;
use super::connection::Connection;
use super::pending::Failure;
use super::time::Deadline;
use crate::error::Error;

impl Connection {
    /// Does a CAS or an FAA, and gives what was there before.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if it was posted and what came of it is not known; all others mean
    /// that nothing was done.
    pub(crate) async fn atomic(&self, op: Opcode, by: Deadline) -> Result<u64, Error> {
        let not_posted = |error| match error {
            CallError::Lost { .. } => self.lost_error(),
            CallError::TimedOut { .. } => Error::TimedOut { what: by.what, after: by.after },
            CallError::Failed(error) => error,
        };
        self.acquire(&self.slots, 1, by).await.map_err(not_posted)?;
        let mut waiter = self.register(1, false, None, by).map_err(not_posted)?;
        let request = WorkRequest { id: waiter.id, signaled: true, op };
        self.post_one(request, by).await.map_err(not_posted)?;
        waiter.unposted = 0;
        let unknown = |reason: String| Error::OutcomeUnknown { what: by.what, reason };
        let collected = waiter.collected(by).await.map_err(|error| match error {
            CallError::TimedOut { .. } => unknown(format!("no answer within {:?}", by.after)),
            _ => unknown(self.lost_reason().to_owned()),
        })?;
        match (collected.failure, collected.word) {
            (None, Some(word)) => Ok(word),
            // The device refused it, and ended the connection.
            (Some(Failure::Work(WorkError::Access(error))), _) => Err(Error::Access(error)),
            _ => Err(unknown(self.lost_reason().to_owned())),
        }
    }
}
