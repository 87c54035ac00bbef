//! Many operations at once: short ones share messages, and messages share a doorbell.
//!
//! Operations reach the server in the order in which they are given, and it applies them in that
//! order.

use std::collections::VecDeque;
use std::sync::Arc;

use onesided_protocol::limits::MESSAGE_OVERHEAD_BYTES;
use onesided_protocol::rpc::{ErrorCode, Op, Reply, RpcError};

use super::stage::{check_limits, fits, key_and_value, len_in_batch};
use super::{Progress, found, go_on};
use crate::core::{Answered, CallError, Connection, Deadline, Keep, Outgoing};
use crate::error::Error;
use crate::stats::Counter;
use crate::table::{OpenTable, TableHandle};
use crate::value::Value;

/// Operations that are on their way together.
const PIPELINE: usize = 32;
/// Operations share a message up to this length, and values an answer, as far as their lengths can
/// be foreseen: longer ones cost more by being copied than messages do.
const SHARED_BYTES: usize = 64 << 10;

/// As [`super::get`] for many keys, pipelined.
pub(crate) async fn get_many<K: AsRef<[u8]>>(
    table: &TableHandle,
    keys: &[K],
) -> Result<Vec<Option<Value>>, Error> {
    table.count(Counter::RpcGets, keys.len());
    let ops: Vec<Op<'_>> = keys.iter().map(plain_get).collect();
    call_many(table, "get_many", ops, found).await.into_iter().collect()
}

fn plain_get(key: &impl AsRef<[u8]>) -> Op<'_> {
    Op::Get { key: key.as_ref(), landing: None }
}

/// Performs many operations, a pipeline's length of them at once. What cannot be pipelined, or has
/// to be tried again, goes one by one.
pub(crate) async fn call_many<T>(
    table: &TableHandle,
    what: &'static str,
    mut ops: Vec<Op<'_>>,
    take: impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Vec<Result<T, Error>> {
    let mut results = Vec::with_capacity(ops.len());
    while !ops.is_empty() {
        let mut after = ops.split_off(ops.len().min(PIPELINE));
        let by = table.deadline(what);
        match pipeline(table, by, ops).await {
            Ok((mut attempts, mut rest)) => {
                rest.append(&mut after);
                after = rest;
                while let Some(attempt) = attempts.pop_front() {
                    conclude(table, by, attempt, &attempts, &take, &mut results).await;
                }
            }
            Err(ops) => {
                for op in &ops {
                    let by = table.deadline(what);
                    results.push(go_on(table, by, op, Progress::default(), &take).await);
                }
            }
        }
        ops = after;
    }
    results
}

/// A message of a pipeline, and what came of it.
struct Attempt<'a> {
    open: Arc<OpenTable>,
    /// One operation, or a batch of several.
    op: Op<'a>,
    progress: Progress,
    answer: Result<Answered, CallError>,
}

async fn conclude<T>(
    table: &TableHandle,
    by: Deadline,
    attempt: Attempt<'_>,
    behind: &VecDeque<Attempt<'_>>,
    take: &impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
    results: &mut Vec<Result<T, Error>>,
) {
    let Attempt { open, op, progress, answer } = attempt;
    // Nobody remembers what a GET gave: it is asked again behind all that came after it.
    let is_lost = matches!(answer, Err(CallError::Lost { .. })) && !op.is_mutation();
    let Op::Batch(ops) = &op else {
        if is_lost && is_overtaken(&op, &[], behind) {
            return results.push(Err(overtaken(by)));
        }
        return results.push(conclude_one(table, by, &open, &op, progress, answer, take).await);
    };
    let take_all = |reply: Reply<'_>, _: &mut Option<Keep>| take_batch(reply, ops.len(), take);
    let all = conclude_one(table, by, &open, &op, progress, answer, &take_all).await;
    let known = all.is_ok();
    // Where the server broke off: it has done nothing from there on.
    let left = all.as_ref().ok().and_then(|all| {
        ops.iter().zip(all).position(|(op, result)| op.is_mutation() && needs_room(result))
    });
    let done = &ops[..left.unwrap_or(ops.len())];
    let mut all = all.map(Vec::into_iter);
    for (number, op) in ops.iter().enumerate() {
        let result = match &mut all {
            Ok(all) => all.next().unwrap_or(Err(WRONG_COUNT)),
            Err(error) => Err(repeated(error)),
        };
        let needs_room = needs_room(&result);
        let again = match &result {
            Err(Error::Refused(_)) => needs_room,
            Err(Error::NoSuchTable(_)) => {
                open.mark_stale();
                true
            }
            // Nothing came of the batch as a whole, and nothing was applied.
            Err(Error::ConnectionLost(_) | Error::TimedOut { .. }) => false,
            Err(Error::OutcomeUnknown { .. }) => !op.is_mutation(),
            Err(_) => !known,
            Ok(_) => false,
        };
        let in_doubt = matches!(result, Err(Error::OutcomeUnknown { .. }));
        let is_late = needs_room || in_doubt || is_lost && (again || result.is_ok());
        results.push(match again {
            _ if is_late && is_overtaken(op, &done[number.min(done.len())..], behind) => {
                Err(overtaken(by))
            }
            true => go_on(table, by, op, Progress::default(), take).await,
            false => result,
        });
    }
}

/// Whether its value has no room beside the others, or the answer is one to a retry, or the batch
/// moves so much that the server did not go on: it has to be asked for alone.
fn needs_room<T>(result: &Result<T, Error>) -> bool {
    let is_so = |refused: &RpcError| refused.code == ErrorCode::NeedsLanding;
    matches!(result, Err(Error::Refused(refused)) if is_so(refused))
}

/// Whether it makes the server write a value anew that is there.
fn rewrites(op: &Op<'_>) -> bool {
    match op {
        Op::Append { .. } | Op::WriteAt { .. } | Op::Touch { .. } => true,
        Op::Batch(ops) => ops.iter().any(rewrites),
        _ => false,
    }
}

/// Whether an operation behind this GET, in its batch or later, may have written its key.
fn is_overtaken(get: &Op<'_>, ops: &[Op<'_>], behind: &VecDeque<Attempt<'_>>) -> bool {
    let Op::Get { key, .. } = get else { return false };
    let later = behind.iter().flat_map(|attempt| match &attempt.op {
        Op::Batch(ops) => ops,
        op => std::slice::from_ref(op),
    });
    ops.iter().chain(later).any(|op| op.is_mutation() && key_and_value(op).0 == *key)
}

fn overtaken(by: Deadline) -> Error {
    let reason = "a GET's answer was lost, and a later operation of the call has written its key";
    Error::OutcomeUnknown { what: by.what, reason: reason.to_owned() }
}

const WRONG_COUNT: Error = Error::BadAnswer("the answer to a batch is of another length");

fn take_batch<T>(
    reply: Reply<'_>,
    count: usize,
    take: impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<Vec<Result<T, Error>>, Error> {
    match reply {
        Reply::Batch(replies) if replies.len() == count => {
            let one = |reply: Result<Reply<'_>, _>| take(reply?, &mut None);
            Ok(replies.into_iter().map(one).collect())
        }
        _ => Err(WRONG_COUNT),
    }
}

/// The error of all of a batch, for each operation in it.
fn repeated(error: &Error) -> Error {
    match error {
        Error::OutcomeUnknown { what, reason } => {
            Error::OutcomeUnknown { what, reason: reason.clone() }
        }
        Error::TimedOut { what, after } => Error::TimedOut { what, after: *after },
        Error::ConnectionLost(reason) => Error::ConnectionLost(reason.clone()),
        Error::NoSuchTable(name) => Error::NoSuchTable(name.clone()),
        _ => WRONG_COUNT,
    }
}

async fn conclude_one<T>(
    table: &TableHandle,
    by: Deadline,
    open: &OpenTable,
    op: &Op<'_>,
    mut progress: Progress,
    answer: Result<Answered, CallError>,
    take: &impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<T, Error> {
    match answer {
        Ok(mut answered) => match answered.take(take) {
            Err(Error::NoSuchTable(_)) => {
                open.mark_stale();
                progress = Progress { reopened: true, ..Progress::default() };
            }
            Err(Error::Refused(refused)) if progress.must_land(open, &refused) => {}
            taken => return taken,
        },
        Err(error) => progress.lost(table.link(), &open.connection, by, error, op)?,
    }
    go_on(table, by, op, progress, take).await
}

/// One attempt for all of them, but for those that have to wait for an answer to others. If they
/// have to go one by one, they come back.
async fn pipeline<'a>(
    table: &TableHandle,
    by: Deadline,
    ops: Vec<Op<'a>>,
) -> Result<(VecDeque<Attempt<'a>>, Vec<Op<'a>>), Vec<Op<'a>>> {
    let Ok(open) = table.open(by).await else { return Err(ops) };
    let connection = &*open.connection;
    if !ops.iter().all(|op| fits(connection, op) && check_limits(connection, op).is_ok()) {
        return Err(ops);
    }
    let mut messages = share(connection, ops, open.foreseen_value_bytes());
    // Of a batch that rewrites values some may have to be sent again: nothing may overtake them.
    let breaks_off = |op: &Op<'_>| matches!(op, Op::Batch(_)) && rewrites(op);
    let last = messages.iter().position(breaks_off).map_or(messages.len(), |number| number + 1);
    let rest = apart(messages.split_off(last));
    let mut progress: Vec<Progress> = Vec::with_capacity(messages.len());
    let mut outgoing = Vec::with_capacity(messages.len());
    for op in &messages {
        let mut one = Progress::default();
        if op.is_mutation() {
            // Not waiting while holding some: two pipelines could wait for each other.
            let Some(ticket) = connection.session().try_sequence() else {
                return Err(apart(messages).into_iter().chain(rest).collect());
            };
            one.ticket = Some(ticket);
        }
        let sequence = one.ticket.as_ref().map_or(0, |ticket| ticket.number);
        outgoing.push(Outgoing { sequence, table: open.info.id, op });
        progress.push(one);
    }
    let answers = connection.call_many(&outgoing, by).await;
    let parts = messages.into_iter().zip(progress).zip(answers);
    let attempt = |((op, progress), answer)| {
        let answer: Result<Answered, CallError> = answer;
        if let (Op::Batch(ops), Ok(answered)) = (&op, &answer) {
            open.foresee_value_bytes(answered.len_bytes() / ops.len().max(1));
        }
        Attempt { open: Arc::clone(&open), op, progress, answer }
    };
    Ok((parts.map(attempt).collect(), rest))
}

/// The operations that share messages, one by one again.
fn apart(messages: Vec<Op<'_>>) -> Vec<Op<'_>> {
    let mut ops = Vec::new();
    for message in messages {
        match message {
            Op::Batch(more) => ops.extend(more),
            op => ops.push(op),
        }
    }
    ops
}

/// The operations as messages: batches of neighbours, as many as share one well.
fn share<'a>(connection: &Connection, mut ops: Vec<Op<'a>>, value_bytes: usize) -> Vec<Op<'a>> {
    let most = connection.caps().max_message_bytes.saturating_sub(MESSAGE_OVERHEAD_BYTES);
    let most = most.min(SHARED_BYTES);
    let mut messages = Vec::new();
    while !ops.is_empty() {
        let (mut request, mut answer) = (0, 0);
        let beyond = ops.iter().position(|op| {
            request += len_in_batch(op);
            answer += if matches!(op, Op::Get { .. }) { value_bytes } else { 0 };
            request > most || answer > SHARED_BYTES
        });
        let after = ops.split_off(beyond.unwrap_or(ops.len()).max(1));
        messages.push(match ops.len() {
            1 => ops.swap_remove(0),
            _ => Op::Batch(ops),
        });
        ops = after;
    }
    messages
}
