//! Operations by RPC: retried over connections, applied once.

use std::sync::Arc;

use onesided_fabric::Buffer;
use onesided_protocol::rpc::{ErrorCode, Expect, Op, Payload, Reply, RpcError, Ttl};

use crate::core::{
    Answered, CallError, Connection, Deadline, Keep, Outgoing, SequenceTicket, Session, TimedOut,
};
use crate::error::Error;
use crate::link::Link;
use crate::stats::Counter;
use crate::table::{OpenTable, TableHandle};
use crate::value::Value;

mod lend;
mod many;
mod reply;
mod stage;

pub(crate) use lend::put_from;
pub(crate) use many::{call_many, get_many};
use reply::pong;
pub(crate) use reply::{
    counter, deleted, found, leased, linked, number, page, sealed, touched, version,
    version_if_present,
};
use stage::{check_limits, stage};

pub(crate) fn plain_put<'a>(key: &'a impl AsRef<[u8]>, value: &'a impl AsRef<[u8]>) -> Op<'a> {
    Op::Put {
        key: key.as_ref(),
        value: Payload::Inline(value.as_ref()),
        expect: Expect::Any,
        ttl: Ttl::TableDefault,
        user_flags: 0,
    }
}

/// GET by the server's CPU: where nothing else is possible, and when reading alone cannot decide.
pub(crate) async fn get(
    table: &TableHandle,
    by: Deadline,
    key: &[u8],
) -> Result<Option<Value>, Error> {
    table.count(Counter::RpcGets, 1);
    let op = Op::Get { key, landing: None };
    call_until(table, by, None, &op, found).await.map(|(value, _)| value)
}

/// What is known about an operation while connections come and go.
#[derive(Default)]
struct Progress {
    ticket: Option<SequenceTicket>,
    /// It left, and no answer came.
    in_doubt: bool,
    /// The table was opened anew because the server did not know it.
    reopened: bool,
    /// The answer is too long for a message: so much staging memory is for it to land in.
    landing_bytes: Option<usize>,
    /// The value, if the server may READ it from where it is.
    lent: Option<Arc<Buffer>>,
    /// To any other session it means something else.
    only_in: Option<Arc<Session>>,
}

/// Performs an operation on a table: on another connection if the first is lost, and once.
pub(crate) async fn call<T>(
    table: &TableHandle,
    what: &'static str,
    op: &Op<'_>,
    take: impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<T, Error> {
    call_where(table, what, op, take).await.map(|(taken, _)| taken)
}

/// As [`call`]; also gives what the table was on the connection that brought the answer.
pub(crate) async fn call_where<T>(
    table: &TableHandle,
    what: &'static str,
    op: &Op<'_>,
    take: impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<(T, Arc<OpenTable>), Error> {
    let by = table.deadline(what);
    go_on_where(table, by, op, Progress::default(), &take).await
}

/// As [`call_where`], until then; in this session only, if it is one's.
pub(crate) async fn call_until<T>(
    table: &TableHandle,
    by: Deadline,
    only_in: Option<&Arc<Session>>,
    op: &Op<'_>,
    take: impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<(T, Arc<OpenTable>), Error> {
    let progress = Progress { only_in: only_in.cloned(), ..Progress::default() };
    go_on_where(table, by, op, progress, &take).await
}

async fn go_on<T>(
    table: &TableHandle,
    by: Deadline,
    op: &Op<'_>,
    progress: Progress,
    take: &impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<T, Error> {
    go_on_where(table, by, op, progress, take).await.map(|(taken, _)| taken)
}

async fn go_on_where<T>(
    table: &TableHandle,
    by: Deadline,
    op: &Op<'_>,
    mut progress: Progress,
    take: &impl Fn(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
) -> Result<(T, Arc<OpenTable>), Error> {
    loop {
        let open = table.open(by).await.map_err(|error| progress.judge(by, error))?;
        match attempt(table.link(), &open, by, op, &mut progress).await {
            Ok(mut answered) => match answered.take(take) {
                Err(Error::NoSuchTable(_)) if !progress.reopened => {
                    // Dropped and made anew, perhaps. Nothing was applied: another number.
                    open.mark_stale();
                    let Progress { lent, only_in, .. } = progress;
                    progress = Progress { reopened: true, lent, only_in, ..Progress::default() };
                }
                Err(Error::Refused(refused)) if progress.must_land(&open, &refused) => {}
                Err(Error::OutcomeUnknown { reason, .. }) => {
                    return Err(Error::OutcomeUnknown { what: by.what, reason });
                }
                taken => return taken.map(|taken| (taken, open)),
            },
            Err(error) => progress.lost(table.link(), &open.connection, by, error, op)?,
        }
    }
}

impl Progress {
    /// The error of an operation that cannot go on: in doubt if it left before.
    fn judge(&self, by: Deadline, error: Error) -> Error {
        if self.in_doubt {
            return Error::OutcomeUnknown { what: by.what, reason: error.reason() };
        }
        error
    }

    fn must_land(&mut self, open: &OpenTable, refused: &RpcError) -> bool {
        let staging = open.connection.staging();
        let Some(staging) = staging.filter(|_| refused.code == ErrorCode::NeedsLanding) else {
            return false;
        };
        let all_bytes = staging.len_bytes();
        let first_bytes =
            || refused.text.parse().map_or(all_bytes, |len: usize| len.min(all_bytes));
        // The value may have become longer meanwhile: then as much as there is.
        let next_bytes = self.landing_bytes.map_or_else(first_bytes, |_| all_bytes);
        let before = self.landing_bytes.replace(next_bytes);
        before.is_none_or(|before| before < all_bytes)
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
        if self.only_in.as_ref().is_some_and(|only| !Arc::ptr_eq(only, session)) {
            let ended = Error::ConnectionLost("the session had ended".to_owned());
            return Err(CallError::Failed(ended));
        }
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
    let (staged, keep) =
        stage(link, connection, by, op, progress.landing_bytes, progress.lent.as_ref()).await?;
    let op = staged.as_ref().unwrap_or(op);
    connection.call(Outgoing { sequence, table, op }, keep, by).await
}

/// Measures the way to the server and back on the data path.
pub(crate) async fn ping(link: &Link, by: Deadline) -> Result<(), Error> {
    loop {
        let connection = link.connection(by).await?;
        let outgoing = Outgoing { sequence: 0, table: 0, op: &Op::Ping };
        match connection.call(outgoing, None, by).await {
            Ok(mut answered) => return answered.take(pong),
            Err(error) => Progress::default().lost(link, &connection, by, error, &Op::Ping)?,
        }
    }
}
