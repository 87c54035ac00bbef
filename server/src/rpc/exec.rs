//! One operation against its table.

use std::sync::Arc;

use onesided_fabric::BufferPool;
use onesided_protocol::rpc::{ErrorCode, Found, Op, Payload, Reply, RpcError};

use super::Call;
use crate::engine::{Counted, Stored, Table};

/// What an operation gave.
pub(super) enum Outcome {
    /// All of it.
    Reply(Reply<'static>),
    /// A value, which lies in the caller's buffer.
    Value(Stored),
}

/// A value on its way.
pub(super) fn found(stored: Stored, value: Payload<'_>) -> Found<'_> {
    let Stored { version, expiry_s, user_flags } = stored;
    Found { version, expiry_s, user_flags, value }
}

impl Call<'_> {
    pub(super) fn table(&self) -> Result<Arc<Table>, RpcError> {
        self.peer.session.tenant.engine.table(self.table).ok_or_else(|| {
            let text =
                format!("there is no table with id {}: it was dropped; open it again", self.table);
            RpcError::new(ErrorCode::NoSuchTable, text)
        })
    }

    /// Executes anything but a batch. `value` receives the value of a GET.
    pub(super) fn execute(
        &self,
        op: &Op<'_>,
        value: &mut Vec<u8>,
        pool: &BufferPool,
    ) -> Result<Outcome, RpcError> {
        let reply = match op {
            Op::Ping => Reply::Pong,
            Op::Get { key, .. } => {
                value.clear();
                match self.table()?.get(key, value) {
                    Some(stored) => return Ok(Outcome::Value(stored)),
                    None => Reply::Absent,
                }
            }
            Op::Put { key, value, expect, ttl, user_flags } => {
                let table = self.table()?;
                let put = |bytes: &[u8]| table.put(key, bytes, *expect, *ttl, *user_flags);
                Reply::Done { version: self.with_value(*value, pool, put)? }
            }
            Op::Append { key, value } => {
                let table = self.table()?;
                let append = |bytes: &[u8]| table.append(key, bytes);
                Reply::Done { version: self.with_value(*value, pool, append)? }
            }
            Op::WriteAt { key, offset_bytes, value } => {
                let table = self.table()?;
                let write = |bytes: &[u8]| table.write_at(key, *offset_bytes, bytes);
                match self.with_value(*value, pool, write)? {
                    Some(version) => Reply::Done { version },
                    None => Reply::Absent,
                }
            }
            Op::Delete { key, expect } => match self.table()?.delete(key, *expect)? {
                true => Reply::Deleted,
                false => Reply::Absent,
            },
            Op::Increment { key, by } => {
                let (value, version) = self.table()?.increment(key, *by)?;
                Reply::Number { value, version }
            }
            Op::Counter { key, action } => match self.table()?.counter(key, *action)? {
                Counted::Absent => Reply::Absent,
                Counted::Changed { old, version } => Reply::Number { value: old, version },
                Counted::There { cell, number, version } => {
                    Reply::Counter { cell: cell.get(), number, version }
                }
            },
            Op::Touch { key, ttl } => match self.table()?.touch(key, *ttl)? {
                Some(version) => Reply::Done { version },
                None => Reply::Absent,
            },
            Op::Lease { .. } | Op::Seal { .. } | Op::Linked { .. } => self.lease(op)?,
            Op::Batch(_) | Op::Scan { .. } => {
                let text = "a batch or a scan inside a batch: send them one after the other";
                return Err(RpcError::new(ErrorCode::Malformed, text));
            }
        };
        Ok(Outcome::Reply(reply))
    }
}
