//! READs behind one doorbell, for fabrics where a READ is a round trip.

use std::collections::VecDeque;

use onesided_fabric::{Buffer, Opcode, RemoteAddr, WorkRequest};

use super::call::CallError;
use super::connection::Connection;
use super::pending::{Failure, GROUP_MAX, numbered};
use super::time::Deadline;
use crate::error::Error;
use onesided_fabric::WorkError;

impl Connection {
    /// READs all of `wanted` (places and lengths in bytes) behind one doorbell and waits for the
    /// last of them. The buffers come in the order of `wanted`; the READs do not.
    ///
    /// # Errors
    /// When the connection is lost, the operation's time is over, or a place is outside what the
    /// server offers; that ends the connection.
    pub async fn read_many(&self, wanted: &[(RemoteAddr, usize)]) -> Result<Vec<Buffer>, Error> {
        self.read_many_until(wanted, self.read_deadline()).await
    }

    /// When a READ must have ended that is all of an operation.
    pub(crate) fn read_deadline(&self) -> Deadline {
        Deadline::after("read", self.options().operation_timeout)
    }

    /// As [`Self::read_many`], until then.
    pub(crate) async fn read_many_until(
        &self,
        wanted: &[(RemoteAddr, usize)],
        by: Deadline,
    ) -> Result<Vec<Buffer>, Error> {
        let mut buffers = Vec::with_capacity(wanted.len());
        let pool = &self.shared.pool;
        if let &[(remote, len_bytes)] = wanted {
            buffers.push(self.read_one(remote, len_bytes, by).await?);
            return Ok(buffers);
        }
        for group in wanted.chunks(GROUP_MAX) {
            let group = group.iter().map(|&(remote, len_bytes)| (remote, pool.get(len_bytes)));
            self.read_group(group, by, &mut buffers).await?;
        }
        Ok(buffers)
    }

    /// READs the whole length of `into` and gives it back. If this future is dropped, or ends with
    /// an error, the buffer belongs to the READ until that has completed, and to its pool then.
    ///
    /// # Errors
    /// As [`Self::read_many`].
    pub async fn read_into(&self, remote: RemoteAddr, into: Buffer) -> Result<Buffer, Error> {
        self.read_until(remote, into, self.read_deadline()).await
    }

    /// As [`Self::read_into`], until then.
    pub(crate) async fn read_until(
        &self,
        remote: RemoteAddr,
        into: Buffer,
        by: Deadline,
    ) -> Result<Buffer, Error> {
        let failed = |error| self.read_error(error, by);
        let slot = self.acquire(&self.slots.permits, 1, by).await.map_err(failed)?;
        let mut waiter = self.register(1, Some(slot), None, None, by).map_err(failed)?;
        let request =
            WorkRequest { id: waiter.id, signaled: true, op: Opcode::Read { remote, into } };
        self.post_one(request, by).await.map_err(failed)?;
        waiter.unposted = 0;
        let collected = waiter.collected(by).await.map_err(failed)?;
        self.check(collected.failure)?;
        collected.answer.ok_or(Error::BadAnswer("a READ without its bytes"))
    }

    /// As [`Self::read_until`], of so many bytes into a buffer of the client's.
    pub(crate) async fn read_one(
        &self,
        remote: RemoteAddr,
        len_bytes: usize,
        by: Deadline,
    ) -> Result<Buffer, Error> {
        self.read_until(remote, self.shared.pool.get(len_bytes), by).await
    }

    /// READs a word that nobody wants: see [`Self::reads_under_way`]. `false`: there is no room for
    /// it just now.
    pub(super) fn read_unheard(&self, remote: RemoteAddr) -> bool {
        let Ok(slot) = self.slots.permits.try_acquire() else { return false };
        let by = self.read_deadline();
        // Dropped, it leaves its slot to the completion.
        let registered = self.register(1, Some(slot), None, None, by);
        let Ok(mut waiter) = registered else { return false };
        let op = Opcode::Read { remote, into: self.shared.pool.get(size_of::<u64>()) };
        let request = WorkRequest { id: waiter.id, signaled: true, op };
        let posted = matches!(self.post_now(request), Ok(None));
        waiter.unposted = u32::from(!posted);
        posted
    }

    fn read_error(&self, error: CallError, by: Deadline) -> Error {
        match error {
            CallError::Lost { .. } => self.lost_error(),
            CallError::TimedOut { .. } => Error::TimedOut { what: by.what, after: by.after },
            CallError::Failed(error) => error,
        }
    }

    fn check(&self, failure: Option<Failure>) -> Result<(), Error> {
        match failure {
            None => Ok(()),
            Some(Failure::Work(WorkError::Access(error))) => Err(Error::Access(error)),
            Some(_) => Err(self.lost_error()),
        }
    }

    async fn read_group(
        &self,
        wanted: impl ExactSizeIterator<Item = (RemoteAddr, Buffer)>,
        by: Deadline,
        buffers: &mut Vec<Buffer>,
    ) -> Result<(), Error> {
        let failed = |error| self.read_error(error, by);
        let slot = self.acquire(&self.slots.permits, 1, by).await.map_err(failed)?;
        let count = wanted.len() as u32;
        let mut waiter = self.register(count, Some(slot), None, None, by).map_err(failed)?;
        let request = |(number, (remote, into))| WorkRequest {
            id: numbered(waiter.id, number),
            signaled: true,
            op: Opcode::Read { remote, into },
        };
        let chain: VecDeque<_> = wanted.enumerate().map(request).collect();
        let progress = |left| waiter.unposted = left as u32;
        self.post_all(chain, by, progress).await.map_err(failed)?;
        let collected = waiter.collected(by).await.map_err(failed)?;
        self.check(collected.failure)?;
        // The last group of many may be a single one.
        for buffer in collected.answer.map(Some).into_iter().chain(collected.reads) {
            buffers.push(buffer.ok_or(Error::BadAnswer("a READ without its bytes"))?);
        }
        Ok(())
    }
}
