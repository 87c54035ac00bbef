//! Error codes that travel.

use crate::codec::{DecodeError, Reader, Write};
use crate::limits::ERROR_TEXT_MAX_BYTES;

/// What kind of failure: what a program decides by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum ErrorCode {
    /// The message could not be decoded.
    Malformed = 1,
    /// No version in common.
    Version = 2,
    /// Token missing or wrong.
    Unauthorized = 3,
    /// Sessions, connections or queue pairs are at their limit.
    ServerFull = 4,
    /// No such table, or dropped.
    NoSuchTable = 5,
    /// A table of this name exists.
    TableExists = 6,
    /// A limit of the protocol or the configuration: key, value, name, batch.
    TooLarge = 7,
    /// Memory is full; nothing was changed.
    OutOfMemory = 8,
    /// The directory is at its depth limit; nothing was changed.
    IndexFull = 9,
    /// `expect` was not met; nothing was changed.
    Unexpected = 10,
    /// The value is not what the operation needs (increment of a non-number, overflow).
    WrongType = 11,
    /// The sequence number is older than the answers kept: whether it was applied is unknown.
    SequenceTooOld = 12,
    /// The answer does not fit; ask again with a landing of the length given in the text. Of an
    /// operation in a batch that was broken off: nothing was done, ask for it alone.
    NeedsLanding = 13,
    /// An option that does not exist or cannot be had.
    BadOption = 14,
    /// The server is shutting down.
    ShuttingDown = 15,
    /// A descriptor points outside the session's own memory, or cannot be read.
    BadDescriptor = 16,
    /// A fault of the server; its log says more.
    Internal = 17,
    /// The server failed in the middle of it: whether it was applied is unknown.
    OutcomeUnknown = 18,
    /// Others change the same all the time; nothing was changed.
    Contended = 19,
}

impl ErrorCode {
    /// All codes, in order.
    pub const ALL: [Self; 19] = [
        Self::Malformed,
        Self::Version,
        Self::Unauthorized,
        Self::ServerFull,
        Self::NoSuchTable,
        Self::TableExists,
        Self::TooLarge,
        Self::OutOfMemory,
        Self::IndexFull,
        Self::Unexpected,
        Self::WrongType,
        Self::SequenceTooOld,
        Self::NeedsLanding,
        Self::BadOption,
        Self::ShuttingDown,
        Self::BadDescriptor,
        Self::Internal,
        Self::OutcomeUnknown,
        Self::Contended,
    ];

    pub(crate) fn decode(value: u16) -> Result<Self, DecodeError> {
        let unknown = DecodeError::Unknown { field: "error code", value: u64::from(value) };
        Self::ALL.get(usize::from(value).wrapping_sub(1)).copied().ok_or(unknown)
    }
}

/// A failure as it travels: the code for programs, the text for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text}")]
pub struct RpcError {
    /// The kind.
    pub code: ErrorCode,
    /// What happened, where, and what to do. At most [`ERROR_TEXT_MAX_BYTES`].
    pub text: String,
}

impl RpcError {
    /// An error; a longer text is cut.
    #[must_use]
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(ERROR_TEXT_MAX_BYTES));
        Self { code, text }
    }

    /// Appends it; a longer text is cut, so that the peer can read it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_error(self.code, &self.text, out);
    }

    /// Reads it.
    ///
    /// # Errors
    /// When the bytes are not one.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let code = ErrorCode::decode(reader.u16("error code")?)?;
        let text = reader.text("error text", ERROR_TEXT_MAX_BYTES)?.to_owned();
        Ok(Self { code, text })
    }
}

pub(super) fn encode_error(code: ErrorCode, text: &str, out: &mut Vec<u8>) {
    out.u16(code as u16);
    let end = text.floor_char_boundary(ERROR_TEXT_MAX_BYTES);
    out.bytes(&text.as_bytes()[..end]);
}
