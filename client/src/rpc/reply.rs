//! Replies become results.

use onesided_protocol::LogAddr;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::rpc::{Found, Payload, Reply};

use crate::core::Keep;
use crate::error::Error;
use crate::read::Page;
use crate::value::{Meta, Value, Version};

const WRONG_REPLY: Error = Error::BadAnswer("the reply does not belong to the operation");

pub(crate) fn version(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<Version, Error> {
    match reply {
        Reply::Done { version } => Ok(version),
        _ => Err(WRONG_REPLY),
    }
}

/// `None`: there was nothing to change.
pub(crate) fn version_if_present(
    reply: Reply<'_>,
    _: &mut Option<Keep>,
) -> Result<Option<Version>, Error> {
    match reply {
        Reply::Done { version } => Ok(Some(version)),
        Reply::Absent => Ok(None),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn deleted(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<bool, Error> {
    match reply {
        Reply::Deleted => Ok(true),
        Reply::Absent => Ok(false),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn touched(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<bool, Error> {
    match reply {
        Reply::Done { .. } => Ok(true),
        Reply::Absent => Ok(false),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn number(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<i64, Error> {
    match reply {
        Reply::Number { value, .. } => Ok(value),
        _ => Err(WRONG_REPLY),
    }
}

/// Where a counter's cell is, and its number; `None`: there is none.
pub(crate) fn counter(
    reply: Reply<'_>,
    _: &mut Option<Keep>,
) -> Result<Option<(LogAddr, i64)>, Error> {
    match reply {
        Reply::Counter { cell, number, .. } => {
            let cell = LogAddr::from_bits(cell).filter(|addr| addr.get() == cell);
            cell.map(|cell| Some((cell, number))).ok_or(WRONG_REPLY)
        }
        Reply::Absent => Ok(None),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn page(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<Page, Error> {
    match reply {
        Reply::Keys { keys, more } => Ok(Page {
            keys: keys.iter().map(|at| at.key.to_vec()).collect(),
            slots: keys.iter().map(|at| Slot(at.slot)).collect(),
            more,
        }),
        _ => Err(WRONG_REPLY),
    }
}

/// A lease: where it begins, and its length in bytes.
pub(crate) fn leased(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<(LogAddr, usize), Error> {
    match reply {
        Reply::Leased { addr, len_bytes } => {
            let addr = LogAddr::from_bits(addr).ok_or(WRONG_REPLY)?;
            Ok((addr, len_bytes as usize))
        }
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn sealed(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<(), Error> {
    match reply {
        Reply::Sealed => Ok(()),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn linked(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<bool, Error> {
    match reply {
        Reply::Linked { linked } => Ok(linked),
        _ => Err(WRONG_REPLY),
    }
}

pub(crate) fn pong(reply: Reply<'_>, _: &mut Option<Keep>) -> Result<(), Error> {
    match reply {
        Reply::Pong => Ok(()),
        _ => Err(WRONG_REPLY),
    }
}

/// A value, inline or from the staging memory.
pub(crate) fn found(reply: Reply<'_>, keep: &mut Option<Keep>) -> Result<Option<Value>, Error> {
    let found = match reply {
        Reply::Found(found) => found,
        Reply::Absent => return Ok(None),
        _ => return Err(WRONG_REPLY),
    };
    let Found { version, expiry_s, user_flags, value } = found;
    let meta = Meta { version, user_flags, expiry_s };
    match (value, keep) {
        (Payload::Inline(bytes), _) => Ok(Some(Value::copied(bytes, meta))),
        (Payload::Staged { offset_bytes, len_bytes }, Some(Keep::Staging(turn))) => {
            Ok(Some(Value::new(turn.load(offset_bytes, len_bytes)?, meta)))
        }
        (Payload::Staged { .. } | Payload::Lent { .. }, _) => Err(WRONG_REPLY),
    }
}
