//! GETs: a value is copied once, from the log into the answer, unless it has to go another way.

use std::collections::VecDeque;
use std::ops::Range;

use onesided_fabric::WorkRequest;
use onesided_protocol::rpc::{FOUND_HEAD_BYTES, Found, Op, Payload, Reply, RpcError};

use super::value::{Way, land};
use super::{Call, Scratch};
use crate::engine::Stored;

/// What came of an operation.
pub(super) enum Done {
    /// A value: its result stands here in the answer, the value at the end.
    Value(Range<usize>),
    /// All else: to be encoded.
    Result(Result<Reply<'static>, RpcError>),
}

impl Call<'_> {
    /// Performs anything but a batch and a scan, and counts it. A value of up to `room_bytes` is
    /// in the answer then.
    pub(super) fn perform(
        &self,
        op: &Op<'_>,
        room_bytes: usize,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Done {
        let shard = &self.dispatcher.shard;
        let done = match op {
            Op::Get { key, .. } => self.get(op, key, room_bytes, scratch, out),
            op => Done::Result(self.execute(op, &scratch.pool)),
        };
        match &done {
            Done::Value(_) => shard.ok(op),
            Done::Result(result) => shard.count(op, result.as_ref()),
        }
        done
    }

    fn get(
        &self,
        op: &Op<'_>,
        key: &[u8],
        room_bytes: usize,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Done {
        let Scratch { encoded, pool, landed_bytes, .. } = scratch;
        let start = encoded.len();
        let result = self.table().and_then(|table| {
            encoded.extend_from_slice(&[0; FOUND_HEAD_BYTES]);
            let mut way = Ok(Way::Inline);
            let stored = table.get_if(key, encoded, |len_bytes| {
                way = self.way(op, len_bytes, room_bytes, *landed_bytes);
                way.is_ok()
            });
            let Some(stored) = stored else { return Ok(Reply::Absent) };
            let (_, value) = encoded[start..].split_at(FOUND_HEAD_BYTES);
            let value = match way? {
                Way::Inline => Payload::Inline(value),
                Way::To(remote) => {
                    *landed_bytes += value.len();
                    land(remote, value, pool, out)
                }
            };
            let Stored { version, expiry_s, user_flags } = stored;
            Ok(Reply::Found(Found { version, expiry_s, user_flags, value }))
        });
        let result = match result {
            Ok(Reply::Found(found)) => match found.value {
                Payload::Inline(_) => {
                    let head = found.head();
                    encoded[start..start + FOUND_HEAD_BYTES].copy_from_slice(&head);
                    return Done::Value(start..encoded.len());
                }
                Payload::Staged { offset_bytes, len_bytes } => {
                    let value = Payload::Staged { offset_bytes, len_bytes };
                    Ok(Reply::Found(Found { value, ..found }))
                }
                Payload::Lent { .. } => unreachable!("no answer is in a lent buffer"),
            },
            Ok(_) => Ok(Reply::Absent),
            Err(error) => Err(error),
        };
        encoded.truncate(start);
        Done::Result(result)
    }
}
