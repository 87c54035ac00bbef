//! Several operations in one request: one after the other, a result for each.

use std::collections::VecDeque;
use std::fmt::Write;

use onesided_fabric::WorkRequest;
use onesided_protocol::rpc::{
    Answer, BatchAnswer, ErrorCode, FOUND_HEAD_BYTES, Op, Reply, RpcError,
};

use super::{Call, Done, Scratch};
use crate::engine::rewritten_bytes;
use crate::session::ANSWER_KEPT_MAX_BYTES;

/// Bytes of an answer that are no result: id, kind and count.
const HEAD_BYTES: usize = 8 + 1 + 4;
/// Room that every result has: a code and a short text, or any reply but a value.
const RESULT_BYTES: usize = 64;
/// Of a longer answer the values that can be asked for again are left out of what is kept for a
/// retry: they would drive what is used out of the processor's caches.
const ANSWER_KEPT_WHOLE_BYTES: usize = 1 << 10;
const _: () = assert!(ANSWER_KEPT_WHOLE_BYTES <= ANSWER_KEPT_MAX_BYTES);
/// In a longer batch nobody looks whose key is written later: any value may be one of those.
const COMPARED_MAX: usize = 64;
/// Operations whose keys are looked up together.
const AHEAD: usize = 16;
/// Once its operations have rewritten, or copied from shared memory, so many bytes of values, the
/// rest of a batch is not performed: what is short to ask for is not to keep a poller from others.
const MOVED_MAX_BYTES: u64 = 64 << 20;
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

impl Call<'_> {
    /// Executes a batch and encodes its answer, and the one to keep for a retry, when that is not
    /// the whole one.
    pub(super) fn answer_batch(
        &self,
        id: u64,
        batch: &Op<'_>,
        ops: &[Op<'_>],
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) {
        let most = self.peer.caps.max_message_bytes.saturating_sub(HEAD_BYTES) / RESULT_BYTES;
        if ops.len() > most {
            let count = ops.len();
            let text = format!(
                "the answer to a batch of {count} does not fit one message; send at most {most}"
            );
            let error = RpcError::new(ErrorCode::TooLarge, text);
            self.dispatcher.shard.count(batch, Err(&error));
            return Answer { id, result: Err(error) }.encode(&mut scratch.encoded);
        }
        BatchAnswer::begin(id, ops.len() as u32, &mut scratch.encoded);
        let results = self.perform_all(ops, batch.is_mutation(), scratch, out);
        self.dispatcher.shard.ok(batch);
        let len_bytes = scratch.encoded.len();
        let is_value = |done: &Done| matches!(done, Done::Value(_));
        if results.iter().any(is_staged)
            || len_bytes > ANSWER_KEPT_WHOLE_BYTES && results.iter().any(is_value)
            || len_bytes > ANSWER_KEPT_MAX_BYTES && !results.is_empty()
        {
            lean(id, ops, &results, &scratch.encoded, &mut scratch.lean);
        }
    }

    fn look_ahead(&self, ops: &[Op<'_>]) {
        // Without a table each of them says so.
        if let Ok(table) = self.table() {
            table.look_ahead(ops.iter().filter_map(key));
        }
    }

    /// Does nothing, and says that it has to be asked for alone.
    fn leave(&self, op: &Op<'_>) -> Done {
        let text = "not done, its batch moves too much: send it alone";
        let result = Err(RpcError::new(ErrorCode::NeedsLanding, text));
        self.dispatcher.shard.count(op, result.as_ref());
        Done::Result(result)
    }

    /// Performs them one after the other, each behind the result of the one before it. Returns the
    /// results, if they may have to be kept.
    fn perform_all(
        &self,
        ops: &[Op<'_>],
        keeps: bool,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Vec<Done> {
        let max_bytes = self.peer.caps.max_message_bytes;
        // What the results take beyond the room that each has anyway.
        let mut spare = max_bytes.saturating_sub(HEAD_BYTES + ops.len() * RESULT_BYTES);
        let mut results = Vec::with_capacity(if keeps { ops.len() } else { 0 });
        let rewritten_before = rewritten_bytes();
        for (number, op) in ops.iter().enumerate() {
            if number % AHEAD == 0 {
                self.look_ahead(&ops[number..ops.len().min(number + AHEAD)]);
            }
            let room = spare + RESULT_BYTES - FOUND_HEAD_BYTES;
            let moved_bytes = self.copied_bytes.get() + rewritten_bytes() - rewritten_before;
            // All that come after the first one that is not performed: they may build on it.
            let done = match moved_bytes > MOVED_MAX_BYTES {
                true => self.leave(op),
                false => self.perform(op, room, scratch, out),
            };
            let done = match done {
                Done::Value(range) => {
                    spare -= range.len().saturating_sub(RESULT_BYTES);
                    Done::Value(range)
                }
                Done::Result(result) => {
                    let result = result.map_err(|error| fit(error, &mut spare));
                    BatchAnswer::push(&result, &mut scratch.encoded);
                    Done::Result(result)
                }
            };
            if keeps {
                results.push(done);
            }
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

/// The answer as it is kept. Where a retry's GETs find no value, they say that it must be asked for
/// again: it may have changed since, but not by this batch, so that it was current at some time
/// while the batch was under way. What the batch itself writes later is another matter: values
/// from before that are kept, as far as they are short.
fn lean(id: u64, ops: &[Op<'_>], results: &[Done], encoded: &[u8], into: &mut Vec<u8>) {
    let is_short = encoded.len() <= ANSWER_KEPT_MAX_BYTES;
    let mut text = String::new();
    let mut again = |len_bytes: usize, into: &mut Vec<u8>| {
        text.clear();
        // Writing to a string does not fail.
        let _written = write!(text, "{len_bytes}");
        BatchAnswer::push_error(ErrorCode::NeedsLanding, &text, into);
    };
    BatchAnswer::begin(id, results.len() as u32, into);
    for (number, done) in results.iter().enumerate() {
        match done {
            Done::Value(range)
                if into.len() + range.len() <= ANSWER_KEPT_MAX_BYTES
                    && is_written_later(ops, number) =>
            {
                into.extend_from_slice(&encoded[range.clone()]);
            }
            Done::Value(range) => again(range.len() - FOUND_HEAD_BYTES, into),
            Done::Result(Ok(Reply::Found(found))) => again(found.value.len_bytes(), into),
            Done::Result(Err(error)) if !is_short => BatchAnswer::push(&Err(short(error)), into),
            Done::Result(reply) => BatchAnswer::push(reply, into),
        }
    }
}

fn is_written_later(ops: &[Op<'_>], number: usize) -> bool {
    let get = key(&ops[number]);
    ops.len() > COMPARED_MAX
        || ops[number..].iter().any(|later| later.is_mutation() && key(later) == get)
}

fn is_staged(done: &Done) -> bool {
    matches!(done, Done::Result(Ok(Reply::Found(_))))
}
