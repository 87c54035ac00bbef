//! A bounded cursor over bytes that a peer sent, and its counterpart. All integers are
//! little-endian; a byte string is its length, then its bytes. A message has one encoding: what
//! decodes, encodes to the same bytes again, so that no bit is free for two peers to read
//! differently.

use std::str;

/// Why bytes are not a message. Nothing was changed; the peer should be told and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The message ends in the middle of a field.
    #[error("message ends inside `{0}`")]
    Short(&'static str),
    /// A number that means nothing here.
    #[error("`{field}` is {value}, which means nothing in this version")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// Longer than the limit.
    #[error("`{field}` has {len_bytes} bytes; the limit is {max_bytes}")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// What it claimed.
        len_bytes: u64,
        /// The limit.
        max_bytes: usize,
    },
    /// A text that is not UTF-8.
    #[error("`{0}` is not UTF-8")]
    NotText(&'static str),
    /// Bytes after the end.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
}

/// Reads fields off the front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

macro_rules! read_int {
    ($name:ident, $int:ty) => {
        #[doc = concat!("Reads a `", stringify!($int), "`.")]
        ///
        /// # Errors
        /// When the bytes end.
        pub fn $name(&mut self, field: &'static str) -> Result<$int, DecodeError> {
            let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Short(field))?;
            self.rest = rest;
            Ok(<$int>::from_le_bytes(*bytes))
        }
    };
}

impl<'a> Reader<'a> {
    /// A cursor at the start.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    read_int!(u8, u8);
    read_int!(u16, u16);
    read_int!(u32, u32);
    read_int!(u64, u64);
    read_int!(i64, i64);

    /// Reads one byte that is 0 or 1.
    ///
    /// # Errors
    /// When the bytes end, or it is neither.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Unknown { field, value: u64::from(value) }),
        }
    }

    /// Reads a fixed number of bytes.
    ///
    /// # Errors
    /// When the bytes end.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Short(field))?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads a 4-byte length of at most `max_bytes`, then that many bytes.
    ///
    /// # Errors
    /// When the length is over the limit, or the bytes end.
    pub fn bytes(&mut self, f: &'static str, max_bytes: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.u32(f)? as usize;
        if len > max_bytes {
            return Err(DecodeError::TooLong { field: f, len_bytes: len as u64, max_bytes });
        }
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short(f))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a byte string that must be UTF-8.
    ///
    /// # Errors
    /// As [`Self::bytes`], or when it is not UTF-8.
    pub fn text(&mut self, field: &'static str, max_bytes: usize) -> Result<&'a str, DecodeError> {
        let bytes = self.bytes(field, max_bytes)?;
        str::from_utf8(bytes).map_err(|_| DecodeError::NotText(field))
    }

    /// How much is left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Ends the message.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }
}

/// Appends fields.
pub trait Write {
    /// Appends bytes as they are.
    fn raw(&mut self, bytes: &[u8]);
    /// Appends one byte.
    fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }
    /// Appends two bytes.
    fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }
    /// Appends four bytes.
    fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }
    /// Appends eight bytes.
    fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }
    /// Appends eight bytes.
    fn i64(&mut self, value: i64) {
        self.raw(&value.to_le_bytes());
    }
    /// Appends a 4-byte length, then the bytes. Longer than 4 GiB cannot happen: every field has
    /// a limit far below.
    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }
}

impl Write for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
