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
        let by = Deadline::after("read", self.options().operation_timeout);
        let mut buffers = Vec::with_capacity(wanted.len());
        for group in wanted.chunks(GROUP_MAX) {
            self.read_group(group, by, &mut buffers).await?;
        }
        Ok(buffers)
    }

    async fn read_group(
        &self,
        wanted: &[(RemoteAddr, usize)],
        by: Deadline,
        buffers: &mut Vec<Buffer>,
    ) -> Result<(), Error> {
        let failed = |error| match error {
            CallError::Lost { .. } => self.lost_error(),
            CallError::TimedOut { .. } => Error::TimedOut { what: by.what, after: by.after },
            CallError::Failed(error) => error,
        };
        self.acquire(&self.slots, 1, by).await.map_err(failed)?;
        let count = wanted.len() as u32;
        let mut waiter = self.register(count, false, None, by).map_err(failed)?;
        let request = |(number, &(remote, len_bytes)): (usize, &(RemoteAddr, usize))| WorkRequest {
            id: numbered(waiter.id, number),
            signaled: true,
            op: Opcode::Read { remote, into: self.shared.pool.get(len_bytes) },
        };
        let chain: VecDeque<_> = wanted.iter().enumerate().map(request).collect();
        let progress = |left| waiter.unposted = left as u32;
        self.post_all(chain, by, progress).await.map_err(failed)?;
        let collected = waiter.collected(by).await.map_err(failed)?;
        match collected.failure {
            None => {}
            Some(Failure::Work(WorkError::Access(error))) => return Err(Error::Access(error)),
            Some(_) => return Err(self.lost_error()),
        }
        for buffer in collected.reads {
            buffers.push(buffer.ok_or(Error::BadAnswer("a READ without its bytes"))?);
        }
        Ok(())
    }
}
