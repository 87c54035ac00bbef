//! Replies become results.

use onesided_protocol::rpc::{Found, Payload, Reply};

use crate::core::{Answered, Keep};
use crate::error::Error;
use crate::value::{Value, Version};

const WRONG_REPLY: Error = Error::BadAnswer("the reply does not belong to the operation");

pub(crate) fn version(answered: &mut Answered) -> Result<Version, Error> {
    match answered.reply()? {
        Reply::Done { version } => Ok(version),
        _ => Err(WRONG_REPLY),
    }
}

/// `None`: there was nothing to change.
pub(crate) fn version_if_present(answered: &mut Answered) -> Result<Option<Version>, Error> {
    match answered.reply()? {
        Reply::Done { version } => Ok(Some(version)),
        Reply::Absent => Ok(None),
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
        (Payload::Staged { offset_bytes, len_bytes }, Some(Keep::Staging(turn))) => {
            turn.load(offset_bytes, len_bytes)?
        }
        (Payload::Staged { .. } | Payload::Lent { .. }, _) => return Err(WRONG_REPLY),
    };
    Ok(Some(Value::from_bytes(bytes, version, user_flags, expiry_s)))
}
