//! Operations by RPC: retried over connections, applied once.

use onesided_protocol::limits::{KEY_MAX_BYTES, MESSAGE_OVERHEAD_BYTES};
use onesided_protocol::rpc::{ErrorCode, Expect, Found, Landing, Op, Payload, Reply, Ttl};

use crate::core::{
    Answered, CallError, Connection, Deadline, Keep, Outgoing, SequenceTicket, TimedOut,
};
use crate::error::Error;
use crate::link::Link;
use crate::stats::Counter;
use crate::table::{OpenTable, TableHandle};
use crate::value::{Value, Version};
use std::sync::Arc;

/// Calls of one put_many or get_many that are on their way together.
const PIPELINE: usize = 32;

pub(crate) fn plain_put<'a>(key: &'a impl AsRef<[u8]>, value: &'a impl AsRef<[u8]>) -> Op<'a> {
    Op::Put {
        key: key.as_ref(),
        value: Payload::Inline(value.as_ref()),
        expect: Expect::Any,
        ttl: Ttl::TableDefault,
        user_flags: 0,
    }
}

const WRONG_REPLY: Error = Error::BadAnswer("the reply does not belong to the operation");

pub(crate) fn version(answered: &mut Answered) -> Result<Version, Error> {
    match answered.reply()? {
        Reply::Done { version } => Ok(version),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn deleted(answered: &mut Answered) -> Result<bool, Error> {
    match answered.reply()? {
        Reply::Deleted => Ok(true),
        Reply::Absent => Ok(false),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn touched(answered: &mut Answered) -> Result<bool, Error> {
    match answered.reply()? {
        Reply::Done { .. } => Ok(true),
        Reply::Absent => Ok(false),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn number(answered: &mut Answered) -> Result<i64, Error> {
    match answered.reply()? {
        Reply::Number { value, .. } => Ok(value),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn pong(answered: &mut Answered) -> Result<(), Error> {
    match answered.reply()? {
        Reply::Pong => Ok(()),
        _ => Err(WRONG_REPLY),
    }
}

/// A value, inline or from the staging memory.
pub(crate) fn found(answered: &mut Answered) -> Result<Option<Value>, Error> {
    let Answered { keep, .. } = answered;
    let mut keep = keep.take();
    let found = match answered.reply()? {
        Reply::Found(found) => found,
        Reply::Absent => return Ok(None),
        _ => return Err(WRONG_REPLY),
    };
    let Found { version, expiry_s, user_flags, value } = found;
    let bytes = match (value, &mut keep) {
        (Payload::Inline(bytes), _) => bytes.to_vec(),
        (Payload::Staged { offset_bytes, len_bytes }, Some(keep)) => {
            keep.load(offset_bytes, len_bytes)?
        }
        (Payload::Staged { .. }, None) => return Err(WRONG_REPLY),
    };
    Ok(Some(Value::from_bytes(bytes, version, user_flags, expiry_s)))
}

/// GET by the server's CPU: where nothing else is possible, and when reading alone cannot decide.
pub(crate) async fn get(table: &TableHandle, key: &[u8]) -> Result<Option<Value>, Error> {
    table.count(Counter::RpcGets, 1);
    let op = Op::Get { key, landing: None };
    call(table, "get", &op, found).await
}

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

/// What is known about an operation while connections come and go.
#[derive(Default)]
struct Progress {
    ticket: Option<SequenceTicket>,
    /// It left, and no answer came.
    in_doubt: bool,
    /// The table was opened anew because the server did not know it.
    reopened: bool,
    /// Answers too long for a message are to land in staging memory.
    lands: bool,
}

/// Performs an operation on a table: on another connection if the first is lost, and once.
pub(crate) async fn call<T>(
    table: &TableHandle,
    what: &'static str,
    op: &Op<'_>,
    take: impl Fn(&mut Answered) -> Result<T, Error>,
) -> Result<T, Error> {
    let by = table.deadline(what);
    go_on(table, by, op, Progress::default(), &take).await
}

async fn go_on<T>(
    table: &TableHandle,
    by: Deadline,
    op: &Op<'_>,
    mut progress: Progress,
    take: &impl Fn(&mut Answered) -> Result<T, Error>,
) -> Result<T, Error> {
    loop {
        let open = table.open(by).await.map_err(|error| progress.judge(by, error))?;
        match attempt(table.link(), &open, by, op, &mut progress).await {
            Ok(mut answered) => match take(&mut answered) {
                Err(Error::NoSuchTable(_)) if !progress.reopened => {
                    // Dropped and made anew, perhaps. Nothing was applied: another number.
                    open.mark_stale();
                    progress = Progress { reopened: true, ..Progress::default() };
                }
                Err(Error::Refused(refused)) if progress.must_land(&open, refused.code) => {}
                Err(Error::OutcomeUnknown { reason, .. }) => {
                    return Err(Error::OutcomeUnknown { what: by.what, reason });
                }
                taken => return taken,
            },
            Err(error) => progress.lost(table.link(), &open.connection, by, error, op)?,
        }
    }
}

impl Progress {
    /// The error of an operation that cannot go on: in doubt if it left before.
    fn judge(&self, by: Deadline, error: Error) -> Error {
        if self.in_doubt {
            return Error::OutcomeUnknown { what: by.what, reason: error.to_string() };
        }
        error
    }

    fn must_land(&mut self, open: &OpenTable, code: ErrorCode) -> bool {
        let can = code == ErrorCode::NeedsLanding && open.connection.staging().is_some();
        can && !std::mem::replace(&mut self.lands, true)
    }

    /// `Ok`: try again on the next connection.
    fn lost(
        &mut self,
        link: &Link,
        connection: &Connection,
        by: Deadline,
        error: CallError,
        op: &Op<'_>,
    ) -> Result<(), Error> {
        match error {
            CallError::Failed(error) => Err(self.judge(by, error)),
            CallError::TimedOut { sent } => {
                self.in_doubt |= sent && op.is_mutation();
                Err(self.judge(by, Error::TimedOut { what: by.what, after: by.after }))
            }
            CallError::Lost { sent } => {
                self.in_doubt |= sent && op.is_mutation();
                // Reached by a fault of the fabric, too: never post into it again.
                connection.mark_lost("a request failed");
                if !link.reconnects() {
                    return Err(self.judge(by, connection.lost_error()));
                }
                link.shared().stats.add(Counter::RpcRetries, 1);
                Ok(())
            }
        }
    }

    /// The number under which the session knows the operation; 0 if it changes nothing.
    async fn sequence(
        &mut self,
        connection: &Connection,
        by: Deadline,
        op: &Op<'_>,
    ) -> Result<u64, CallError> {
        if !op.is_mutation() {
            return Ok(0);
        }
        let session = connection.session();
        if let Some(ticket) = &self.ticket {
            if Arc::ptr_eq(&ticket.session, session) {
                return Ok(ticket.number);
            }
            if self.in_doubt {
                let reason = "the server was restarted, or the session ended".to_owned();
                let unknown = Error::OutcomeUnknown { what: by.what, reason };
                self.in_doubt = false;
                return Err(CallError::Failed(unknown));
            }
        }
        let ticker = &connection.shared().ticker;
        let ticket = session.sequence(ticker, by).await;
        let ticket = ticket.map_err(|TimedOut| CallError::TimedOut { sent: false })?;
        let number = ticket.number;
        self.ticket = Some(ticket);
        Ok(number)
    }
}

/// One attempt, on one connection.
async fn attempt(
    link: &Link,
    open: &OpenTable,
    by: Deadline,
    op: &Op<'_>,
    progress: &mut Progress,
) -> Result<Answered, CallError> {
    let connection = &*open.connection;
    check_limits(connection, op).map_err(CallError::Failed)?;
    let sequence = progress.sequence(connection, by, op).await?;
    let table = open.info.id;
    let (staged, keep) = stage(link, connection, by, op, progress.lands).await?;
    let op = staged.as_ref().unwrap_or(op);
    connection.call(Outgoing { sequence, table, op }, keep, by).await
}

fn check_limits(connection: &Connection, op: &Op<'_>) -> Result<(), Error> {
    let (key, value_len) = key_and_value(op);
    if key.len() > KEY_MAX_BYTES {
        let len = key.len();
        return Err(Error::TooLarge(format!("a key of {len} bytes; the limit is {KEY_MAX_BYTES}")));
    }
    let max = connection.welcome().value_max_bytes as usize;
    if value_len > max {
        return Err(Error::TooLarge(format!(
            "a value of {value_len} bytes; the server's limit is {max} (--value-max)"
        )));
    }
    Ok(())
}

fn key_and_value<'a>(op: &Op<'a>) -> (&'a [u8], usize) {
    match op {
        Op::Put { key, value, .. } | Op::Append { key, value } => (key, value.len_bytes()),
        Op::Get { key, .. }
        | Op::Delete { key, .. }
        | Op::Increment { key, .. }
        | Op::Touch { key, .. } => (key, 0),
        Op::Ping | Op::Batch(_) => (&[], 0),
    }
}

/// Whether it travels inside a message of this connection.
fn fits(connection: &Connection, op: &Op<'_>) -> bool {
    let (key, value_len) = key_and_value(op);
    // The headers of a message are far below the overhead.
    key.len() + value_len + MESSAGE_OVERHEAD_BYTES <= connection.caps().max_message_bytes
}

/// The operation with its value in staging memory, if it must be there, or with room for one.
async fn stage<'a>(
    link: &Link,
    connection: &Connection,
    by: Deadline,
    op: &Op<'a>,
    lands: bool,
) -> Result<(Option<Op<'a>>, Option<Keep>), CallError> {
    let is_get = matches!(op, Op::Get { .. });
    let Some(staging) = connection.staging().filter(|_| lands && is_get || !fits(connection, op))
    else {
        return Ok((None, None));
    };
    let ticker = &link.shared().ticker;
    let keep = staging.take(ticker, by).await;
    let mut keep = keep.map_err(|TimedOut| CallError::TimedOut { sent: false })?;
    let mut staged = op.clone();
    match &mut staged {
        Op::Put { value, .. } | Op::Append { value, .. } => {
            if let Payload::Inline(bytes) = *value {
                *value = keep.store(bytes).map_err(CallError::Failed)?;
            }
        }
        Op::Get { landing, .. } => {
            let room: Landing = keep.landing();
            *landing = Some(room);
        }
        _ => return Ok((None, None)),
    }
    link.shared().stats.add(Counter::Staged, 1);
    Ok((Some(staged), Some(keep)))
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

/// Measures the way to the server and back on the data path.
pub(crate) async fn ping(link: &Link, by: Deadline) -> Result<(), Error> {
    loop {
        let connection = link.connection(by).await?;
        let outgoing = Outgoing { sequence: 0, table: 0, op: &Op::Ping };
        match connection.call(outgoing, None, by).await {
            Ok(mut answered) => return pong(&mut answered),
            Err(error) => Progress::default().lost(link, &connection, by, error, &Op::Ping)?,
        }
    }
}
