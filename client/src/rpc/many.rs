//! Many operations behind one doorbell.

use std::sync::Arc;

use onesided_protocol::rpc::Op;

use super::stage::{check_limits, fits};
use super::{Progress, found, go_on};
use crate::core::{Answered, CallError, Deadline, Outgoing};
use crate::error::Error;
use crate::stats::Counter;
use crate::table::{OpenTable, TableHandle};
use crate::value::Value;

/// Calls of one put_many or get_many that are on their way together.
const PIPELINE: usize = 32;

/// As [`get`] for many keys, pipelined.
pub(crate) async fn get_many<K: AsRef<[u8]>>(
    table: &TableHandle,
    keys: &[K],
) -> Result<Vec<Option<Value>>, Error> {
    table.count(Counter::RpcGets, keys.len());
    let ops: Vec<Op<'_>> = keys.iter().map(plain_get).collect();
    call_many(table, "get_many", &ops, found).await.into_iter().collect()
}

fn plain_get(key: &impl AsRef<[u8]>) -> Op<'_> {
    Op::Get { key: key.as_ref(), landing: None }
}

/// Performs many operations, a pipeline's length of them behind one doorbell. What cannot be
/// pipelined, or has to be tried again, goes one by one.
pub(crate) async fn call_many<T>(
    table: &TableHandle,
    what: &'static str,
    ops: &[Op<'_>],
    take: impl Fn(&mut Answered) -> Result<T, Error>,
) -> Vec<Result<T, Error>> {
    let mut results = Vec::with_capacity(ops.len());
    for ops in ops.chunks(PIPELINE) {
        let by = table.deadline(what);
        match pipeline(table, by, ops).await {
            Some(attempts) => {
                for (op, attempt) in ops.iter().zip(attempts) {
                    results.push(conclude(table, by, op, attempt, &take).await);
                }
            }
            None => {
                for op in ops {
                    let by = table.deadline(what);
                    results.push(go_on(table, by, op, Progress::default(), &take).await);
                }
            }
        }
    }
    results
}

/// What came of one operation of a pipeline.
struct Attempt {
    open: Arc<OpenTable>,
    progress: Progress,
    answer: Result<Answered, CallError>,
}

async fn conclude<T>(
    table: &TableHandle,
    by: Deadline,
    op: &Op<'_>,
    attempt: Attempt,
    take: &impl Fn(&mut Answered) -> Result<T, Error>,
) -> Result<T, Error> {
    let Attempt { open, mut progress, answer } = attempt;
    match answer {
        Ok(mut answered) => match take(&mut answered) {
            Err(Error::NoSuchTable(_)) => {
                open.mark_stale();
                progress = Progress { reopened: true, ..Progress::default() };
            }
            Err(Error::Refused(refused)) if progress.must_land(&open, refused.code) => {}
            taken => return taken,
        },
        Err(error) => progress.lost(table.link(), &open.connection, by, error, op)?,
    }
    go_on(table, by, op, progress, take).await
}

/// One attempt for all of them. `None`: they have to go one by one.
async fn pipeline(table: &TableHandle, by: Deadline, ops: &[Op<'_>]) -> Option<Vec<Attempt>> {
    let open = table.open(by).await.ok()?;
    let connection = &*open.connection;
    if !ops.iter().all(|op| fits(connection, op) && check_limits(connection, op).is_ok()) {
        return None;
    }
    let mut progress: Vec<Progress> = Vec::with_capacity(ops.len());
    let mut outgoing = Vec::with_capacity(ops.len());
    for op in ops {
        let mut one = Progress::default();
        if op.is_mutation() {
            // Not waiting while holding some: two pipelines could wait for each other.
            one.ticket = Some(connection.session().try_sequence()?);
        }
        let sequence = one.ticket.as_ref().map_or(0, |ticket| ticket.number);
        outgoing.push(Outgoing { sequence, table: open.info.id, op });
        progress.push(one);
    }
    let answers = connection.call_many(&outgoing, by).await;
    let attempt = |(progress, answer)| Attempt { open: Arc::clone(&open), progress, answer };
    Some(progress.into_iter().zip(answers).map(attempt).collect())
}
