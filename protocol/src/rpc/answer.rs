//! Answers.

use super::error::{ErrorCode, RpcError, encode_error};
use super::request::{Payload, batch_room};
use crate::codec::{DecodeError, Reader, Write};
use crate::limits::{BATCH_MAX, KEY_MAX_BYTES, SCAN_KEYS_MAX};

/// An answer; a value points into the received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer<'a> {
    /// The request's id.
    pub id: u64,
    /// What came of it.
    pub result: Result<Reply<'a>, RpcError>,
}

/// What came of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// To a ping.
    Pong,
    /// To a get: a value.
    Found(Found<'a>),
    /// To a get, delete, touch or write at an offset: there is none.
    Absent,
    /// To a put, append, write at an offset or touch: done; the key has this version now.
    Done {
        /// Version.
        version: u64,
    },
    /// To a delete: it was there and is gone.
    Deleted,
    /// To an increment; to what changes a counter.
    Number {
        /// What it is now; of a counter, what it was before.
        value: i64,
        /// Version.
        version: u64,
    },
    /// To finding a counter.
    Counter {
        /// Log address of its cell.
        cell: u64,
        /// Its number at that moment.
        number: i64,
        /// Version of its entry.
        version: u64,
    },
    /// To a scan: keys in order.
    Keys {
        /// The keys.
        keys: Vec<KeyAt<'a>>,
        /// Whether others may follow. If not, the last key of the range was reached.
        more: bool,
    },
    /// To a lease: room that is all zeros.
    Leased {
        /// Where it begins (see [`crate::LogAddr`]).
        addr: u64,
        /// How long it is.
        len_bytes: u32,
    },
    /// To a seal.
    Sealed,
    /// To the question whether an entry was linked.
    Linked {
        /// Whether it has replaced another one.
        linked: bool,
    },
    /// To a batch: one for each operation, in order.
    Batch(Vec<Result<Reply<'a>, RpcError>>),
}

/// A key that a scan found, and where its value was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyAt<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The slot that pointed at its entry (see [`crate::layout::slot::Slot`]).
    pub slot: u64,
}

/// A value that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found<'a> {
    /// Version.
    pub version: u64,
    /// Seconds of the server's clock, 0 = never.
    pub expiry_s: u32,
    /// The user's own.
    pub user_flags: u32,
    /// The value: inline, or in the landing.
    pub value: Payload<'a>,
}

const FAILED: u8 = 0;
const PONG: u8 = 1;
const FOUND: u8 = 2;
const ABSENT: u8 = 3;
const DONE: u8 = 4;
const DELETED: u8 = 5;
const NUMBER: u8 = 6;
const BATCH: u8 = 7;
const KEYS: u8 = 8;
const COUNTER: u8 = 9;
const LEASED: u8 = 12;
const SEALED: u8 = 13;
const LINKED: u8 = 14;

impl<'a> Answer<'a> {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.id);
        encode_result(&self.result, out);
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When the bytes are not exactly one answer within the limits.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let id = reader.u64("id")?;
        let result = decode_result(&mut reader, true)?;
        reader.end()?;
        Ok(Self { id, result })
    }
}

/// The answer to a batch, written piece by piece: the same bytes as of [`Answer::encode`], without
/// all its values beside it.
pub struct BatchAnswer;

/// Bytes of a [`Found`] whose value travels inline, without the value.
pub const FOUND_HEAD_BYTES: usize = 1 + 8 + 4 + 4 + 1 + 4;

impl BatchAnswer {
    /// Begins it: so many results have to follow.
    pub fn begin(id: u64, count: u32, out: &mut Vec<u8>) {
        out.u64(id);
        out.u8(BATCH);
        out.u32(count);
    }

    /// Appends a result.
    pub fn push(result: &Result<Reply<'_>, RpcError>, out: &mut Vec<u8>) {
        encode_result(result, out);
    }

    /// Appends an error.
    pub fn push_error(code: ErrorCode, text: &str, out: &mut Vec<u8>) {
        out.u8(FAILED);
        encode_error(code, text, out);
    }
}

impl Found<'_> {
    /// What stands before a value that travels inline: with the value a whole result.
    #[must_use]
    pub fn head(&self) -> [u8; FOUND_HEAD_BYTES] {
        let mut head = [0; FOUND_HEAD_BYTES];
        head[0] = FOUND;
        head[1..9].copy_from_slice(&self.version.to_le_bytes());
        head[9..13].copy_from_slice(&self.expiry_s.to_le_bytes());
        head[13..17].copy_from_slice(&self.user_flags.to_le_bytes());
        // Byte 17: inline.
        head[18..22].copy_from_slice(&(self.value.len_bytes() as u32).to_le_bytes());
        head
    }
}

fn encode_result(result: &Result<Reply<'_>, RpcError>, out: &mut Vec<u8>) {
    match result {
        Err(error) => {
            out.u8(FAILED);
            error.encode(out);
        }
        Ok(reply) => reply.encode(out),
    }
}

fn decode_result<'a>(
    reader: &mut Reader<'a>,
    batch_allowed: bool,
) -> Result<Result<Reply<'a>, RpcError>, DecodeError> {
    Ok(match reader.u8("reply")? {
        FAILED => Err(RpcError::decode(reader)?),
        PONG => Ok(Reply::Pong),
        FOUND => Ok(Reply::Found(Found {
            version: reader.u64("version")?,
            expiry_s: reader.u32("expiry")?,
            user_flags: reader.u32("user flags")?,
            value: Payload::decode(reader)?,
        })),
        ABSENT => Ok(Reply::Absent),
        DONE => Ok(Reply::Done { version: reader.u64("version")? }),
        DELETED => Ok(Reply::Deleted),
        NUMBER => {
            Ok(Reply::Number { value: reader.i64("number")?, version: reader.u64("version")? })
        }
        COUNTER => Ok(Reply::Counter {
            cell: reader.u64("cell")?,
            number: reader.i64("number")?,
            version: reader.u64("version")?,
        }),
        KEYS if batch_allowed => Ok(decode_keys(reader)?),
        LEASED if batch_allowed => {
            let addr = reader.u64("lease")?;
            Ok(Reply::Leased { addr, len_bytes: reader.u32("lease length")? })
        }
        SEALED if batch_allowed => Ok(Reply::Sealed),
        LINKED if batch_allowed => Ok(Reply::Linked { linked: reader.bool("linked")? }),
        BATCH if batch_allowed => {
            let count = reader.u32("batch count")?;
            if count as usize > BATCH_MAX {
                return Err(DecodeError::TooLong {
                    field: "batch",
                    len_bytes: u64::from(count),
                    max_bytes: BATCH_MAX,
                });
            }
            let mut replies = Vec::with_capacity(batch_room(count, reader));
            for _ in 0..count {
                replies.push(decode_result(reader, false)?);
            }
            Ok(Reply::Batch(replies))
        }
        kind => return Err(DecodeError::Unknown { field: "reply", value: u64::from(kind) }),
    })
}

fn decode_keys<'a>(reader: &mut Reader<'a>) -> Result<Reply<'a>, DecodeError> {
    let more = reader.bool("more keys")?;
    let count = reader.u32("key count")?;
    if count as usize > SCAN_KEYS_MAX {
        let len_bytes = u64::from(count);
        return Err(DecodeError::TooLong { field: "keys", len_bytes, max_bytes: SCAN_KEYS_MAX });
    }
    let mut key_at = || {
        let key = reader.bytes("key", KEY_MAX_BYTES)?;
        Ok(KeyAt { key, slot: reader.u64("slot")? })
    };
    let keys = (0..count).map(|_| key_at()).collect::<Result<_, _>>()?;
    Ok(Reply::Keys { keys, more })
}

impl Reply<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Pong => out.u8(PONG),
            Self::Found(found) => {
                out.u8(FOUND);
                out.u64(found.version);
                out.u32(found.expiry_s);
                out.u32(found.user_flags);
                found.value.encode(out);
            }
            Self::Absent => out.u8(ABSENT),
            Self::Done { version } => {
                out.u8(DONE);
                out.u64(*version);
            }
            Self::Deleted => out.u8(DELETED),
            Self::Number { value, version } => {
                out.u8(NUMBER);
                out.i64(*value);
                out.u64(*version);
            }
            Self::Counter { cell, number, version } => {
                out.u8(COUNTER);
                out.u64(*cell);
                out.i64(*number);
                out.u64(*version);
            }
            Self::Keys { keys, more } => {
                out.u8(KEYS);
                out.u8((*more).into());
                out.u32(keys.len() as u32);
                for KeyAt { key, slot } in keys {
                    out.bytes(key);
                    out.u64(*slot);
                }
            }
            Self::Leased { addr, len_bytes } => {
                out.u8(LEASED);
                out.u64(*addr);
                out.u32(*len_bytes);
            }
            Self::Sealed => out.u8(SEALED),
            Self::Linked { linked } => {
                out.u8(LINKED);
                out.u8((*linked).into());
            }
            Self::Batch(replies) => {
                out.u8(BATCH);
                out.u32(replies.len() as u32);
                replies.iter().for_each(|reply| encode_result(reply, out));
            }
        }
    }
}
