//! Requests.

use crate::codec::{DecodeError, Reader, Write};
use crate::limits::{BATCH_MAX, KEY_MAX_BYTES, LENT_BUFFERS_MAX, SCAN_KEYS_MAX, VALUE_MAX_BYTES};

/// A request; key and value point into the received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The client's number for it; comes back in the answer.
    pub id: u64,
    /// Number of the mutation in the session, from 1; 0 for what changes nothing.
    pub sequence: u64,
    /// Id of the table.
    pub table: u32,
    /// What to do.
    pub op: Op<'a>,
}

/// The operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// Nothing: measures the way.
    Ping,
    /// Look a key up, by the server's CPU.
    Get {
        /// The key.
        key: &'a [u8],
        /// Where a value that does not travel inline may be written.
        landing: Option<Landing>,
    },
    /// Store a value, if `expect` is met.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: Payload<'a>,
        /// Condition.
        expect: Expect,
        /// How long it lives.
        ttl: Ttl,
        /// The user's own.
        user_flags: u32,
    },
    /// Remove a key, if `expect` is met.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Condition.
        expect: Expect,
    },
    /// Add bytes to the end of a value; an absent one is empty.
    Append {
        /// The key.
        key: &'a [u8],
        /// What to add.
        value: Payload<'a>,
    },
    /// Replace bytes of a value from an offset on; it grows where it is too short, a gap is zeros.
    /// An absent one stays absent.
    WriteAt {
        /// The key.
        key: &'a [u8],
        /// Bytes from the start of the value.
        offset_bytes: u64,
        /// What to write there.
        value: Payload<'a>,
    },
    /// Add to a value that is a decimal number; an absent one is 0.
    Increment {
        /// The key.
        key: &'a [u8],
        /// How much.
        by: i64,
    },
    /// Do something to a counter ([`crate::layout::cell`]).
    Counter {
        /// The key.
        key: &'a [u8],
        /// What to do.
        action: CounterAction,
    },
    /// Give a key another time to live.
    Touch {
        /// The key.
        key: &'a [u8],
        /// How long from now.
        ttl: Ttl,
    },
    /// The next keys of an ordered table, in the order of their bytes.
    Scan {
        /// Where to begin.
        from: &'a [u8],
        /// Whether behind `from`, not with it.
        after: bool,
        /// The keys begin with so many bytes as `from` does; at most its length.
        prefix_len: u16,
        /// At most so many, 1 to [`SCAN_KEYS_MAX`].
        limit: u16,
    },
    /// Of a table of mode `cas`: room in its log that this session may write entries into.
    Lease {
        /// How much is wanted.
        len_bytes: u32,
    },
    /// Nothing more is written into a lease: its entries are the server's from now on.
    Seal {
        /// Where it begins (see [`crate::LogAddr`]).
        addr: u64,
    },
    /// Whether an entry that this session wrote into a lease has replaced another one: asked when
    /// the connection was lost before the compare-and-swap that links it was answered.
    Linked {
        /// Its key.
        key: &'a [u8],
        /// Where it is.
        addr: u64,
    },
    /// Several of the others (neither a batch, a scan nor what concerns leases inside), one after
    /// the other, not atomic together.
    Batch(Vec<Op<'a>>),
}

/// A value: in the message, or in the client's own memory, from where the server READs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In the session's staging memory.
    Staged {
        /// Bytes from its start.
        offset_bytes: u64,
        /// Length of the value.
        len_bytes: u32,
    },
    /// In a buffer that the client lends, from its start: only in a request.
    Lent {
        /// Which one, 1 to [`LENT_BUFFERS_MAX`], as the fabric numbers them.
        number: u16,
        /// Length of the value.
        len_bytes: u32,
    },
}

impl Payload<'_> {
    /// Length of the value.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Staged { len_bytes, .. } | Self::Lent { len_bytes, .. } => *len_bytes as usize,
        }
    }
}

/// Room in the session's staging memory for an answer's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landing {
    /// Bytes from its start.
    pub offset_bytes: u64,
    /// Room, above 0.
    pub len_bytes: u32,
}

impl Landing {
    fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        let offset_bytes = reader.u64("landing offset")?;
        let len_bytes = reader.u32("landing length")?;
        if len_bytes == 0 && offset_bytes != 0 {
            return Err(DecodeError::Unknown { field: "landing offset", value: offset_bytes });
        }
        Ok((len_bytes > 0).then_some(Self { offset_bytes, len_bytes }))
    }
}

/// What to do to a counter. An absent one counts as 0; whatever changes it makes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CounterAction {
    /// Say where its cell is.
    Find,
    /// Add to its number.
    Add {
        /// How much.
        by: i64,
    },
    /// If its number is `expected`, make it `new`.
    CompareSwap {
        /// What it must be.
        expected: i64,
        /// What it becomes.
        new: i64,
    },
    /// Make it this number.
    Set {
        /// Which.
        to: i64,
    },
}

impl CounterAction {
    fn encode(self, out: &mut Vec<u8>) {
        let (kind, a, b) = match self {
            Self::Find => (0, 0, 0),
            Self::Add { by } => (1, by, 0),
            Self::CompareSwap { expected, new } => (2, expected, new),
            Self::Set { to } => (3, to, 0),
        };
        out.u8(kind);
        out.i64(a);
        out.i64(b);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = reader.u8("counter action")?;
        let (a, b) = (reader.i64("counter number")?, reader.i64("counter number")?);
        match (kind, a, b) {
            (0, 0, 0) => Ok(Self::Find),
            (1, by, 0) => Ok(Self::Add { by }),
            (2, expected, new) => Ok(Self::CompareSwap { expected, new }),
            (3, to, 0) => Ok(Self::Set { to }),
            _ => Err(DecodeError::Unknown { field: "counter action", value: u64::from(kind) }),
        }
    }
}

/// Condition of a mutation. An expired value counts as absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Expect {
    /// Always.
    #[default]
    Any,
    /// Only if there is no value.
    Absent,
    /// Only if there is one.
    Present,
    /// Only if the version is this one.
    Version(u64),
}

/// How long a value lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ttl {
    /// As the table says.
    #[default]
    TableDefault,
    /// For ever.
    Never,
    /// This many seconds from when the server applies it; 0 is expired at once.
    Seconds(u32),
}

/// Parts of a batch that there is room for before they are seen, at most.
const BATCH_ROOM_MAX: usize = 32;

/// For how many parts of a batch room is made at first: a number that is only announced takes none.
pub(super) fn batch_room(count: u32, reader: &Reader<'_>) -> usize {
    BATCH_ROOM_MAX.min(count as usize).min(reader.remaining())
}

const PING: u8 = 0;
const GET: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;
const APPEND: u8 = 4;
const INCREMENT: u8 = 5;
const TOUCH: u8 = 6;
const BATCH: u8 = 7;
const WRITE_AT: u8 = 8;
const SCAN: u8 = 9;
const COUNTER: u8 = 10;
const LEASE: u8 = 12;
const SEAL: u8 = 13;
const LINKED: u8 = 14;

impl<'a> Request<'a> {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.id);
        out.u64(self.sequence);
        out.u32(self.table);
        out.u32(0);
        self.op.encode(out);
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When the bytes are not exactly one request within the limits.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let id = reader.u64("id")?;
        let sequence = reader.u64("sequence")?;
        let table = reader.u32("table")?;
        match reader.u32("reserved")? {
            0 => {}
            value => {
                return Err(DecodeError::Unknown { field: "reserved", value: u64::from(value) });
            }
        }
        let op = Op::decode(&mut reader, true)?;
        reader.end()?;
        Ok(Self { id, sequence, table, op })
    }

    /// The id of a message that cannot be decoded as a whole, for the answer that says so.
    #[must_use]
    pub fn peek_id(bytes: &[u8]) -> u64 {
        Reader::new(bytes).u64("id").unwrap_or(0)
    }
}

impl<'a> Op<'a> {
    /// Whether it may change something, and so needs a sequence number.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        match self {
            Self::Ping | Self::Get { .. } | Self::Scan { .. } | Self::Linked { .. } => false,
            Self::Counter { action, .. } => *action != CounterAction::Find,
            Self::Batch(ops) => ops.iter().any(Self::is_mutation),
            _ => true,
        }
    }

    /// Appends kind and body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ping => out.u8(PING),
            Self::Get { key, landing } => {
                out.u8(GET);
                out.bytes(key);
                let landing = landing.unwrap_or(Landing { offset_bytes: 0, len_bytes: 0 });
                out.u64(landing.offset_bytes);
                out.u32(landing.len_bytes);
            }
            Self::Put { key, value, expect, ttl, user_flags } => {
                out.u8(PUT);
                out.bytes(key);
                expect.encode(out);
                ttl.encode(out);
                out.u32(*user_flags);
                value.encode(out);
            }
            Self::Delete { key, expect } => {
                out.u8(DELETE);
                out.bytes(key);
                expect.encode(out);
            }
            Self::Append { key, value } => {
                out.u8(APPEND);
                out.bytes(key);
                value.encode(out);
            }
            Self::WriteAt { key, offset_bytes, value } => {
                out.u8(WRITE_AT);
                out.bytes(key);
                out.u64(*offset_bytes);
                value.encode(out);
            }
            Self::Increment { key, by } => {
                out.u8(INCREMENT);
                out.bytes(key);
                out.i64(*by);
            }
            Self::Touch { key, ttl } => {
                out.u8(TOUCH);
                out.bytes(key);
                ttl.encode(out);
            }
            Self::Counter { key, action } => {
                out.u8(COUNTER);
                out.bytes(key);
                action.encode(out);
            }
            Self::Scan { from, after, prefix_len, limit } => {
                out.u8(SCAN);
                out.bytes(from);
                out.u8((*after).into());
                out.u16(*prefix_len);
                out.u16(*limit);
            }
            Self::Lease { .. } | Self::Seal { .. } | Self::Linked { .. } => self.encode_lease(out),
            Self::Batch(ops) => {
                out.u8(BATCH);
                out.u32(ops.len() as u32);
                ops.iter().for_each(|op| op.encode(out));
            }
        }
    }

    fn encode_lease(&self, out: &mut Vec<u8>) {
        match self {
            Self::Lease { len_bytes } => {
                out.u8(LEASE);
                out.u32(*len_bytes);
            }
            Self::Seal { addr } => {
                out.u8(SEAL);
                out.u64(*addr);
            }
            Self::Linked { key, addr } => {
                out.u8(LINKED);
                out.bytes(key);
                out.u64(*addr);
            }
            _ => {}
        }
    }

    fn decode(reader: &mut Reader<'a>, batch_allowed: bool) -> Result<Self, DecodeError> {
        let kind = reader.u8("operation")?;
        if kind == PING {
            return Ok(Self::Ping);
        }
        if kind == BATCH && batch_allowed {
            return Self::decode_batch(reader);
        }
        if kind == SCAN && batch_allowed {
            return Self::decode_scan(reader);
        }
        if matches!(kind, LEASE..=LINKED) && batch_allowed {
            return Self::decode_lease(kind, reader);
        }
        if !matches!(kind, GET..=TOUCH | WRITE_AT | COUNTER) {
            return Err(DecodeError::Unknown { field: "operation", value: u64::from(kind) });
        }
        let key = reader.bytes("key", KEY_MAX_BYTES)?;
        Ok(match kind {
            GET => Self::Get { key, landing: Landing::decode(reader)? },
            PUT => Self::Put {
                key,
                expect: Expect::decode(reader)?,
                ttl: Ttl::decode(reader)?,
                user_flags: reader.u32("user flags")?,
                value: Payload::decode(reader)?,
            },
            DELETE => Self::Delete { key, expect: Expect::decode(reader)? },
            APPEND => Self::Append { key, value: Payload::decode(reader)? },
            WRITE_AT => Self::WriteAt {
                key,
                offset_bytes: reader.u64("write offset")?,
                value: Payload::decode(reader)?,
            },
            INCREMENT => Self::Increment { key, by: reader.i64("by")? },
            COUNTER => Self::Counter { key, action: CounterAction::decode(reader)? },
            _ => Self::Touch { key, ttl: Ttl::decode(reader)? },
        })
    }

    fn decode_scan(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let from = reader.bytes("scan from", KEY_MAX_BYTES)?;
        let after = reader.bool("scan after")?;
        let prefix_len = reader.u16("scan prefix")?;
        let limit = reader.u16("scan limit")?;
        let wrong = |field, value: u16| DecodeError::Unknown { field, value: value.into() };
        if usize::from(prefix_len) > from.len() {
            return Err(wrong("scan prefix", prefix_len));
        }
        if !(1..=SCAN_KEYS_MAX).contains(&usize::from(limit)) {
            return Err(wrong("scan limit", limit));
        }
        Ok(Self::Scan { from, after, prefix_len, limit })
    }

    fn decode_lease(kind: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match kind {
            LEASE => Self::Lease { len_bytes: reader.u32("lease length")? },
            SEAL => Self::Seal { addr: reader.u64("lease")? },
            _ => {
                let key = reader.bytes("key", KEY_MAX_BYTES)?;
                Self::Linked { key, addr: reader.u64("entry")? }
            }
        })
    }

    fn decode_batch(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u32("batch count")?;
        if count as usize > BATCH_MAX {
            let len_bytes = u64::from(count);
            return Err(DecodeError::TooLong { field: "batch", len_bytes, max_bytes: BATCH_MAX });
        }
        let mut ops = Vec::with_capacity(batch_room(count, reader));
        for _ in 0..count {
            ops.push(Self::decode(reader, false)?);
        }
        Ok(Self::Batch(ops))
    }
}

impl<'a> Payload<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => {
                out.u8(0);
                out.bytes(bytes);
            }
            Self::Staged { offset_bytes, len_bytes } => {
                out.u8(1);
                out.u64(*offset_bytes);
                out.u32(*len_bytes);
            }
            Self::Lent { number, len_bytes } => {
                out.u8(2);
                out.u16(*number);
                out.u32(*len_bytes);
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8("payload kind")? {
            0 => Ok(Self::Inline(reader.bytes("value", VALUE_MAX_BYTES)?)),
            1 => {
                let offset_bytes = reader.u64("staging offset")?;
                Ok(Self::Staged { offset_bytes, len_bytes: reader.u32("staging length")? })
            }
            2 => {
                let number = reader.u16("lent buffer")?;
                if !(1..=LENT_BUFFERS_MAX).contains(&usize::from(number)) {
                    let value = u64::from(number);
                    return Err(DecodeError::Unknown { field: "lent buffer", value });
                }
                Ok(Self::Lent { number, len_bytes: reader.u32("lent length")? })
            }
            kind => Err(DecodeError::Unknown { field: "payload kind", value: u64::from(kind) }),
        }
    }
}

impl Expect {
    fn encode(self, out: &mut Vec<u8>) {
        let (kind, version) = match self {
            Self::Any => (0, 0),
            Self::Absent => (1, 0),
            Self::Present => (2, 0),
            Self::Version(version) => (3, version),
        };
        out.u8(kind);
        out.u64(version);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = reader.u8("expect")?;
        let version = reader.u64("expected version")?;
        match kind {
            0..=2 if version != 0 => {
                Err(DecodeError::Unknown { field: "expected version", value: version })
            }
            0 => Ok(Self::Any),
            1 => Ok(Self::Absent),
            2 => Ok(Self::Present),
            3 => Ok(Self::Version(version)),
            _ => Err(DecodeError::Unknown { field: "expect", value: u64::from(kind) }),
        }
    }
}

impl Ttl {
    fn encode(self, out: &mut Vec<u8>) {
        let (kind, seconds) = match self {
            Self::TableDefault => (0, 0),
            Self::Never => (1, 0),
            Self::Seconds(seconds) => (2, seconds),
        };
        out.u8(kind);
        out.u32(seconds);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = reader.u8("ttl kind")?;
        let seconds = reader.u32("ttl")?;
        match kind {
            0 | 1 if seconds != 0 => {
                Err(DecodeError::Unknown { field: "ttl", value: u64::from(seconds) })
            }
            0 => Ok(Self::TableDefault),
            1 => Ok(Self::Never),
            2 => Ok(Self::Seconds(seconds)),
            _ => Err(DecodeError::Unknown { field: "ttl kind", value: u64::from(kind) }),
        }
    }
}
