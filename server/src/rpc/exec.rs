//! One operation against its table.

use onesided_fabric::BufferPool;
use onesided_protocol::rpc::{ErrorCode, Op, Reply, RpcError};

use super::Call;
use crate::engine::{Counted, Table};

impl Call<'_> {
    pub(super) fn table(&self) -> Result<&Table, RpcError> {
        if let Some(table) = self.found.get() {
            return Ok(table);
        }
        let table = self.peer.session.tenant.engine.table(self.table).ok_or_else(|| {
            let text =
                format!("there is no table with id {}: it was dropped; open it again", self.table);
            RpcError::new(ErrorCode::NoSuchTable, text)
        })?;
        Ok(self.found.get_or_init(|| table))
    }

    /// Executes anything but a GET, whose value goes its own way, a batch and a scan.
    pub(super) fn execute(
        &self,
        op: &Op<'_>,
        pool: &BufferPool,
    ) -> Result<Reply<'static>, RpcError> {
        Ok(match op {
            Op::Ping => Reply::Pong,
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
            Op::Counter { key, action } => match self.counter(key, *action)? {
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
            Op::Get { .. } | Op::Batch(_) | Op::Scan { .. } => {
                let text = "a batch or a scan inside a batch: send them one after the other";
                return Err(RpcError::new(ErrorCode::Malformed, text));
            }
        })
    }
}
