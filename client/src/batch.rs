//! Operations of several kinds in one call.

use onesided_protocol::rpc::{Expect, Op, Payload, Reply};

use crate::core::Keep;
use crate::error::Error;
use crate::options::PutOptions;
use crate::read;
use crate::rpc;
use crate::stats::Counter;
use crate::table::TableHandle;
use crate::value::{Value, Version};

/// Operations that are looked at together, so that finding two on one key stays cheap.
const RUN_MAX: usize = 64;

/// One operation of [`crate::Table::batch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchOp<'a> {
    /// As [`crate::Table::get`].
    Get {
        /// Of which key.
        key: &'a [u8],
    },
    /// As [`crate::Table::put_with`].
    Put {
        /// Of which key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
        /// Time to live, flags, condition.
        options: PutOptions,
    },
    /// As [`crate::Table::write_at`].
    WriteAt {
        /// Of which key.
        key: &'a [u8],
        /// Where the bytes begin in the value, in bytes from its start.
        offset: u64,
        /// They take the place of as many.
        bytes: &'a [u8],
    },
    /// As [`crate::Table::delete`].
    Delete {
        /// Of which key.
        key: &'a [u8],
    },
}

/// What came of an operation of [`crate::Table::batch`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BatchReply {
    /// To a GET: the value, or that there is none.
    Value(Option<Value>),
    /// To a PUT: its version.
    Stored(Version),
    /// To a `WriteAt`: the version, or that there is no value.
    Written(Option<Version>),
    /// To a DELETE: whether the key was there.
    Deleted(bool),
}

impl<'a> BatchOp<'a> {
    fn key(&self) -> &'a [u8] {
        match *self {
            Self::Get { key } | Self::Put { key, .. } | Self::Delete { key } => key,
            Self::WriteAt { key, .. } => key,
        }
    }

    fn is_get(&self) -> bool {
        matches!(self, Self::Get { .. })
    }

    fn request(&self) -> Op<'a> {
        match *self {
            Self::Get { key } => Op::Get { key, landing: None },
            Self::Put { key, value, options } => {
                let PutOptions { ttl, user_flags, expect } = options;
                Op::Put { key, value: Payload::Inline(value), expect, ttl, user_flags }
            }
            Self::WriteAt { key, offset, bytes } => {
                Op::WriteAt { key, offset_bytes: offset, value: Payload::Inline(bytes) }
            }
            Self::Delete { key } => Op::Delete { key, expect: Expect::Any },
        }
    }

    /// The reply to it.
    fn concludes(&self, taken: Taken) -> BatchReply {
        match (taken, self) {
            (Taken::Value(value), _) => BatchReply::Value(Some(value)),
            (Taken::Absent, Self::Get { .. }) => BatchReply::Value(None),
            (Taken::Absent, Self::WriteAt { .. }) => BatchReply::Written(None),
            (Taken::Absent, _) => BatchReply::Deleted(false),
            (Taken::Done(version), Self::WriteAt { .. }) => BatchReply::Written(Some(version)),
            (Taken::Done(version), _) => BatchReply::Stored(version),
            (Taken::Deleted, _) => BatchReply::Deleted(true),
        }
    }
}

/// A reply of any kind.
enum Taken {
    Value(Value),
    Absent,
    Done(Version),
    Deleted,
}

fn take(reply: Reply<'_>, keep: &mut Option<Keep>) -> Result<Taken, Error> {
    match reply {
        Reply::Found(_) => rpc::found(reply, keep)?.map(Taken::Value).ok_or(WRONG_REPLY),
        Reply::Absent => Ok(Taken::Absent),
        Reply::Done { version } => Ok(Taken::Done(version)),
        Reply::Deleted => Ok(Taken::Deleted),
        _ => Err(WRONG_REPLY),
    }
}

const WRONG_REPLY: Error = Error::BadAnswer("the reply does not belong to the operation");

/// Performs all of them; those on one key in their order.
pub(crate) async fn batch(
    table: &TableHandle,
    ops: &[BatchOp<'_>],
) -> Vec<Result<BatchReply, Error>> {
    let one_sided = match table.with_now(|open, _| Some(open.connection.caps().one_sided)) {
        Some(one_sided) => one_sided,
        None => {
            let open = table.open(table.deadline("batch")).await;
            open.is_ok_and(|open| open.connection.caps().one_sided)
        }
    };
    if !one_sided {
        let gets = ops.iter().filter(|op| op.is_get()).count();
        table.count(Counter::Gets, gets);
        table.count(Counter::RpcGets, gets);
        return call(table, ops.iter()).await;
    }
    let mut results = Vec::with_capacity(ops.len());
    let mut rest = ops;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(run_len(rest));
        run_one_sided(table, run, &mut results).await;
        rest = after;
    }
    results
}

/// How many of them can go together if GETs go first: none is of a key that one before it writes.
fn run_len(ops: &[BatchOp<'_>]) -> usize {
    let most = &ops[..ops.len().min(RUN_MAX)];
    let is_late = |(index, op): (usize, &BatchOp<'_>)| {
        let before = most[..index].iter().filter(|before| !before.is_get());
        op.is_get() && before.into_iter().any(|before| before.key() == op.key())
    };
    most.iter().enumerate().position(is_late).unwrap_or(most.len())
}

/// GETs by reading, then the others by RPC.
async fn run_one_sided(
    table: &TableHandle,
    ops: &[BatchOp<'_>],
    results: &mut Vec<Result<BatchReply, Error>>,
) {
    let keys: Vec<&[u8]> = ops.iter().filter(|op| op.is_get()).map(BatchOp::key).collect();
    // All of them before anything is written.
    let mut values = each(table, &keys).await.into_iter();
    let mut written = call(table, ops.iter().filter(|op| !op.is_get())).await.into_iter();
    for op in ops {
        results.push(match op {
            BatchOp::Get { .. } => values.next().unwrap_or(Err(WRONG_REPLY)).map(BatchReply::Value),
            _ => written.next().unwrap_or(Err(WRONG_REPLY)),
        });
    }
}

/// GETs, each with its own failure: one fails all of a `get_many`.
async fn each(table: &TableHandle, keys: &[&[u8]]) -> Vec<Result<Option<Value>, Error>> {
    if let Ok(values) = read::get_many(table, keys).await {
        return values.into_iter().map(Ok).collect();
    }
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        values.push(read::get(table, key).await);
    }
    values
}

/// All of them by RPC, in their order.
async fn call<'o, 'a: 'o>(
    table: &TableHandle,
    ops: impl Iterator<Item = &'o BatchOp<'a>> + Clone,
) -> Vec<Result<BatchReply, Error>> {
    let of = |is_it: fn(&BatchOp<'_>) -> bool| ops.clone().filter(|op| is_it(op)).count();
    table.count(Counter::RpcPuts, of(|op| matches!(op, BatchOp::Put { .. })));
    table.count(Counter::RpcWritesAt, of(|op| matches!(op, BatchOp::WriteAt { .. })));
    table.count(Counter::RpcDeletes, of(|op| matches!(op, BatchOp::Delete { .. })));
    let requests: Vec<Op<'a>> = ops.clone().map(BatchOp::request).collect();
    let taken = rpc::call_many(table, "batch", requests, take).await;
    ops.zip(taken).map(|(op, taken)| taken.map(|taken| op.concludes(taken))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_before_a_get_of_what_it_writes() {
        let get = |key| BatchOp::Get { key };
        let put = |key| BatchOp::Put { key, value: b"", options: PutOptions::default() };
        assert_eq!(run_len(&[get(b"a"), put(b"a"), put(b"a"), get(b"b")]), 4);
        assert_eq!(run_len(&[put(b"a"), get(b"b"), get(b"a"), get(b"c")]), 2);
        assert_eq!(run_len(&[BatchOp::Delete { key: b"a" }, get(b"a")]), 1);
        assert_eq!(run_len(&vec![get(b"a"); 1000]), RUN_MAX);
    }
}
