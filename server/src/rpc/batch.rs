//! Several operations in one request: one after the other, a result for each.

use std::collections::VecDeque;
use std::ops::Range;

use onesided_fabric::WorkRequest;
use onesided_protocol::rpc::{Answer, ErrorCode, Op, Payload, Reply, RpcError};

use super::exec::{Outcome, found};
use super::value::FOUND_OVERHEAD_BYTES;
use super::{Call, Scratch};
use crate::engine::Stored;
use crate::session::ANSWER_KEPT_MAX_BYTES;

/// Bytes of an answer that are no result: id, kind and count.
const HEAD_BYTES: usize = 8 + 1 + 4;
/// Room that every result has: a code and a short text, or any reply but a value.
const RESULT_BYTES: usize = 64;
/// Operations whose keys are looked up together.
const AHEAD: usize = 16;
/// What of it a text may take.
const TEXT_BYTES: usize = RESULT_BYTES - 8;

fn key<'o>(op: &'o Op<'_>) -> Option<&'o [u8]> {
    match op {
        Op::Get { key, .. }
        | Op::Put { key, .. }
        | Op::WriteAt { key, .. }
        | Op::Append { key, .. }
        | Op::Delete { key, .. }
        | Op::Increment { key, .. }
        | Op::Counter { key, .. }
        | Op::Touch { key, .. } => Some(key),
        Op::Ping | Op::Scan { .. } | Op::Batch(_) => None,
        Op::Lease { .. } | Op::Seal { .. } | Op::Linked { .. } => None,
    }
}

enum Result1 {
    Fixed(Result<Reply<'static>, RpcError>),
    /// A value in the arena.
    Inline(Stored, Range<usize>),
}

impl Call<'_> {
    /// Executes a batch and encodes its answer. Returns the answer to keep for a retry, when
    /// that is not the whole one.
    pub(super) fn answer_batch(
        &self,
        id: u64,
        batch: &Op<'_>,
        ops: &[Op<'_>],
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Option<Vec<u8>> {
        let most = self.peer.caps.max_message_bytes.saturating_sub(HEAD_BYTES) / RESULT_BYTES;
        if ops.len() > most {
            let count = ops.len();
            let text = format!(
                "the answer to a batch of {count} does not fit one message; send at most {most}"
            );
            let error = RpcError::new(ErrorCode::TooLarge, text);
            self.dispatcher.shard.count(batch, Err(&error));
            Answer { id, result: Err(error) }.encode(&mut scratch.encoded);
            return None;
        }
        let results = self.execute_all(ops, scratch, out);
        let Scratch { arena, encoded, .. } = scratch;
        let reply = Reply::Batch(results.iter().map(|result| result.borrow(arena)).collect());
        self.dispatcher.shard.count(batch, Ok(&reply));
        Answer { id, result: Ok(reply) }.encode(encoded);
        let staged = results.iter().any(Result1::is_staged);
        (staged || encoded.len() > ANSWER_KEPT_MAX_BYTES).then(|| lean(id, &results))
    }

    fn look_ahead(&self, ops: &[Op<'_>]) {
        // Without a table each of them says so.
        if let Ok(table) = self.table() {
            table.look_ahead(ops.iter().filter_map(key));
        }
    }

    fn execute_all(
        &self,
        ops: &[Op<'_>],
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Vec<Result1> {
        let max_bytes = self.peer.caps.max_message_bytes;
        let Scratch { value, arena, pool, landed_bytes, .. } = scratch;
        arena.clear();
        // What the results take beyond the room that each has anyway.
        let mut spare = max_bytes.saturating_sub(HEAD_BYTES + ops.len() * RESULT_BYTES);
        let mut results = Vec::with_capacity(ops.len());
        for (number, op) in ops.iter().enumerate() {
            if number % AHEAD == 0 {
                self.look_ahead(&ops[number..ops.len().min(number + AHEAD)]);
            }
            let result = match self.execute(op, value, pool) {
                Ok(Outcome::Reply(reply)) => Result1::Fixed(Ok(reply)),
                Err(error) => Result1::Fixed(Err(fit(error, &mut spare))),
                Ok(Outcome::Value(stored)) => {
                    let room = spare + RESULT_BYTES - FOUND_OVERHEAD_BYTES;
                    match self.place(op, value, room, landed_bytes, pool, out) {
                        Ok(Payload::Inline(bytes)) => {
                            let taken = FOUND_OVERHEAD_BYTES + bytes.len();
                            spare -= taken.saturating_sub(RESULT_BYTES);
                            let start = arena.len();
                            arena.extend_from_slice(bytes);
                            Result1::Inline(stored, start..arena.len())
                        }
                        Ok(Payload::Staged { offset_bytes, len_bytes }) => {
                            let payload = Payload::Staged { offset_bytes, len_bytes };
                            Result1::Fixed(Ok(Reply::Found(found(stored, payload))))
                        }
                        Ok(Payload::Lent { .. }) => unreachable!("no answer is in a lent buffer"),
                        Err(error) => Result1::Fixed(Err(fit(error, &mut spare))),
                    }
                }
            };
            let reply = result.borrow(arena);
            self.dispatcher.shard.count(op, reply.as_ref());
            results.push(result);
        }
        results
    }
}

/// Cuts an error's text to the room that is left.
fn fit(error: RpcError, spare: &mut usize) -> RpcError {
    let wanted = error.text.len().saturating_sub(TEXT_BYTES);
    if wanted <= *spare {
        *spare -= wanted;
        return error;
    }
    short(&error)
}

fn short(error: &RpcError) -> RpcError {
    let end = error.text.floor_char_boundary(TEXT_BYTES);
    RpcError::new(error.code, &error.text[..end])
}

/// The answer without values and long texts. A retry's GETs say that the value must be asked for
/// again: it may have changed since, and values are too long to be kept.
fn lean(id: u64, results: &[Result1]) -> Vec<u8> {
    let again = |len: usize| Err(RpcError::new(ErrorCode::NeedsLanding, len.to_string()));
    let replies = results.iter().map(|result| match result {
        Result1::Inline(_, range) => again(range.len()),
        Result1::Fixed(Ok(Reply::Found(found))) => again(found.value.len_bytes()),
        Result1::Fixed(Ok(reply)) => Ok(reply.clone()),
        Result1::Fixed(Err(error)) => Err(short(error)),
    });
    let mut encoded = Vec::new();
    Answer { id, result: Ok(Reply::Batch(replies.collect())) }.encode(&mut encoded);
    encoded
}

impl Result1 {
    fn is_staged(&self) -> bool {
        matches!(self, Self::Fixed(Ok(Reply::Found(_))))
    }

    fn borrow<'r>(&'r self, arena: &'r [u8]) -> Result<Reply<'r>, RpcError> {
        match self {
            Self::Fixed(result) => result.clone(),
            Self::Inline(stored, range) => {
                let bytes = arena.get(range.clone()).unwrap_or_default();
                Ok(Reply::Found(found(*stored, Payload::Inline(bytes))))
            }
        }
    }
}
