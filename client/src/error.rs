//! Why a call failed. What a program decides by is a variant; the text is for people.

use std::time::Duration;

use onesided_fabric::{AccessError, AttachError};
use onesided_protocol::DecodeError;
use onesided_protocol::rpc::{ErrorCode, RpcError};

/// Why a call failed.
///
/// After most errors nothing was changed; [`Error::may_have_been_applied`] tells the others, of
/// which [`Error::OutcomeUnknown`] is the one that happens without a fault of either side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be used.
    #[error(
        "bad URL `{url}`: {reason}; expected \
         onesided://HOST[:PORT][?fabric=shm|verbs|tcp&rdma=require|prefer|never]"
    )]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server cannot be reached.
    #[error("cannot connect to {addr}: {source}{hint}", hint = hint_for(.source))]
    Connect {
        /// Host and port.
        addr: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The fabric that was asked for cannot be had.
    #[error("fabric {fabric} cannot be used: {reason}; choose another one, or `auto`")]
    Fabric {
        /// Which one.
        fabric: &'static str,
        /// Why not.
        reason: String,
    },
    /// Client and server have no version in common.
    #[error("versions do not fit: {0}; upgrade the older side")]
    VersionMismatch(String),
    /// Token missing or wrong, or something that the server does not allow this client.
    #[error("not authorized: {0}")]
    Unauthorized(String),
    /// There is no such table, or it was dropped.
    #[error("no such table: {0}; create it, or list the tables")]
    NoSuchTable(String),
    /// A table of this name exists.
    #[error("table exists: {0}; alter it, or drop it first")]
    TableExists(String),
    /// `expect` was not met.
    #[error("expectation not met: {0}; read the key again and decide anew")]
    Unexpected(String),
    /// The server's memory, or the table's quota, is full.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The index is at its depth limit.
    #[error("index full: {0}; spread the keys over several tables")]
    IndexFull(String),
    /// Key, value, name or batch is over a limit.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The value has no room in the caller's buffer, which was given back.
    #[error(
        "buffer too small: the value has {needed_bytes} bytes, and the buffer takes \
         {capacity_bytes}; give a longer one"
    )]
    BufferTooSmall {
        /// Length of the value. A later one may be longer.
        needed_bytes: usize,
        /// What the buffer takes.
        capacity_bytes: usize,
    },
    /// The value is not what the operation needs.
    #[error("wrong type: {0}")]
    WrongType(String),
    /// A table option that does not exist or cannot be had.
    #[error("bad option: {0}")]
    BadOption(String),
    /// The server refused for another reason.
    #[error("the server refused ({code:?}): {text}", code = .0.code, text = .0.text)]
    Refused(RpcError),
    /// The connection is down and did not come back in time. Nothing was applied.
    #[error("connection lost: {0}; nothing was applied, try again when the server is back")]
    ConnectionLost(String),
    /// There was no answer in time. Nothing was applied.
    #[error(
        "`{what}` took longer than {after:?}; nothing was applied, try again or allow more time"
    )]
    TimedOut {
        /// Which operation.
        what: &'static str,
        /// The time it was given.
        after: Duration,
    },
    /// A mutation was sent, and whether it was applied cannot be known.
    #[error("whether `{what}` was applied is unknown: {reason}; read the key to find out")]
    OutcomeUnknown {
        /// Which operation.
        what: &'static str,
        /// What happened.
        reason: String,
    },
    /// The server sent what is no message.
    #[error("protocol violation: {0}; client and server may be of different versions")]
    Protocol(#[from] DecodeError),
    /// The server's answer does not belong to the question.
    #[error("protocol violation: {0}; this is a fault of client or server, please report it")]
    BadAnswer(&'static str),
    /// The client contradicts itself. Nothing was sent.
    #[error("a fault of this client: {0}; nothing was applied, please report it")]
    Internal(&'static str),
    /// A READ was refused: the address is stale, or the region was never attached.
    #[error("one-sided access refused: {0}; the client connects again by itself")]
    Access(#[from] AccessError),
    /// A region of the server cannot be reached.
    #[error("cannot attach: {0}")]
    Attach(#[from] AttachError),
    /// Threads or descriptors could not be made.
    #[error("the system refused {what}: {source}; raise the limits of this process")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The client was closed.
    #[error("the client was closed: make a new one")]
    Closed,
}

impl Error {
    /// Whether a mutation that ended so may have been applied.
    #[must_use]
    pub fn may_have_been_applied(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. } | Self::BadAnswer(_) | Self::Protocol(_))
    }
}

/// Not where something answers: its text tells what that may be.
fn hint_for(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::InvalidData => "",
        _ => "; is onesided-server running there?",
    }
}

impl Error {
    /// What happened, for an error that says itself what that means for an operation.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::ConnectionLost(reason) => format!("connection lost: {reason}"),
            Self::TimedOut { after, .. } => format!("there was no answer within {after:?}"),
            Self::OutcomeUnknown { reason, .. } => reason.clone(),
            Self::Internal(what) => format!("a fault of this client: {what}"),
            error => error.to_string(),
        }
    }

    /// What the server answered to the call `what`.
    pub(crate) fn of_call(what: &'static str, error: RpcError) -> Self {
        match error.into() {
            Self::OutcomeUnknown { reason, .. } => Self::OutcomeUnknown { what, reason },
            error => error,
        }
    }
}

impl From<RpcError> for Error {
    fn from(error: RpcError) -> Self {
        let text = error.text;
        match error.code {
            ErrorCode::Version => Self::VersionMismatch(text),
            ErrorCode::Unauthorized => Self::Unauthorized(text),
            ErrorCode::NoSuchTable => Self::NoSuchTable(text),
            ErrorCode::TableExists => Self::TableExists(text),
            ErrorCode::TooLarge => Self::TooLarge(text),
            ErrorCode::OutOfMemory => Self::OutOfMemory(text),
            ErrorCode::IndexFull => Self::IndexFull(text),
            ErrorCode::Unexpected => Self::Unexpected(text),
            ErrorCode::WrongType => Self::WrongType(text),
            ErrorCode::BadOption => Self::BadOption(text),
            ErrorCode::SequenceTooOld | ErrorCode::OutcomeUnknown => {
                Self::OutcomeUnknown { what: "mutation", reason: text }
            }
            code => Self::Refused(RpcError { code, text }),
        }
    }
}
