//! What fits into a message, and staging memory for what does not.

use std::sync::Arc;

use onesided_fabric::Buffer;
use onesided_protocol::limits::{KEY_MAX_BYTES, MESSAGE_OVERHEAD_BYTES};
use onesided_protocol::rpc::{Landing, Op, Payload};

use crate::core::{CallError, Connection, Deadline, Keep, NoPlace};
use crate::error::Error;
use crate::link::Link;
use crate::stats::Counter;

pub(super) fn check_limits(connection: &Connection, op: &Op<'_>) -> Result<(), Error> {
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

pub(super) fn key_and_value<'a>(op: &Op<'a>) -> (&'a [u8], usize) {
    match op {
        Op::Put { key, value, .. } | Op::Append { key, value } | Op::WriteAt { key, value, .. } => {
            (key, value.len_bytes())
        }
        Op::Get { key, .. }
        | Op::Delete { key, .. }
        | Op::Increment { key, .. }
        | Op::Counter { key, .. }
        | Op::Touch { key, .. } => (key, 0),
        Op::Scan { from, .. } => (from, 0),
        Op::Linked { key, .. } => (key, 0),
        Op::Ping | Op::Batch(_) | Op::Lease { .. } | Op::Seal { .. } => (&[], 0),
    }
}

/// Bytes that it takes in a batch, at most, without a landing.
pub(super) fn len_in_batch(op: &Op<'_>) -> usize {
    const FIELDS_BYTES: usize = 40;
    let (key, value_len) = key_and_value(op);
    FIELDS_BYTES + key.len() + value_len
}

/// Whether it travels inside a message of this connection.
pub(super) fn fits(connection: &Connection, op: &Op<'_>) -> bool {
    let len_bytes = match op {
        Op::Batch(ops) => ops.iter().map(len_in_batch).sum(),
        op => {
            let (key, value_len) = key_and_value(op);
            key.len() + value_len
        }
    };
    // The headers of a message are far below the overhead.
    len_bytes + MESSAGE_OVERHEAD_BYTES <= connection.caps().max_message_bytes
}

/// The operation with its value in staging memory, if it must be there, or with room for one.
pub(super) async fn stage<'a>(
    link: &Link,
    connection: &Connection,
    by: Deadline,
    op: &Op<'a>,
    landing_bytes: Option<usize>,
    lent: Option<&Arc<Buffer>>,
) -> Result<(Option<Op<'a>>, Option<Keep>), CallError> {
    if let Some(lent) = lent.and_then(|buffer| connection.lend(buffer)) {
        let mut op = op.clone();
        if let Op::Put { value, .. } = &mut op {
            *value = Payload::Lent { number: lent.number(), len_bytes: lent.len_bytes() as u32 };
        }
        link.shared().stats.add(Counter::Lent, 1);
        return Ok((Some(op), Some(Keep::Lent { _lent: lent })));
    }
    let staged_bytes = match op {
        Op::Get { .. } => landing_bytes,
        op => (!fits(connection, op)).then(|| key_and_value(op).1),
    };
    let (Some(staging), Some(len_bytes)) = (connection.staging(), staged_bytes) else {
        return Ok((None, None));
    };
    let ticker = &link.shared().ticker;
    let turn = staging.take(len_bytes, ticker, by).await;
    let mut turn = turn.map_err(|why| match why {
        NoPlace::TimedOut => CallError::TimedOut { sent: false },
        NoPlace::Ended => CallError::Lost { sent: false },
    })?;
    let lent = staging.lend(connection.endpoint());
    lent.map_err(|error| CallError::Failed(connection.attach_error(error)))?;
    let mut staged = op.clone();
    match &mut staged {
        Op::Put { value, .. } | Op::Append { value, .. } | Op::WriteAt { value, .. } => {
            if let Payload::Inline(bytes) = *value {
                *value = turn.store(bytes).map_err(CallError::Failed)?;
            }
        }
        Op::Get { landing, .. } => {
            let room: Landing = turn.landing();
            *landing = Some(room);
        }
        _ => return Ok((None, None)),
    }
    link.shared().stats.add(Counter::Staged, 1);
    Ok((Some(staged), Some(Keep::Staging(turn))))
}
