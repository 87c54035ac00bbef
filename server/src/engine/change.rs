//! What the mutations store, given what is there.

use std::cell::Cell;

use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::limits::APPEND_MAX_BYTES;
use onesided_protocol::rpc::{CounterAction, ErrorCode, Expect, RpcError, Ttl};

use super::counter::{Counted, is_a_counter};
use super::spot::Spot;
use super::table::{Table, check, read_value};

/// Stores something: with what expiry and flags.
#[derive(Clone, Copy)]
pub(super) struct Decision {
    /// `None`: as before; never for a key that was absent.
    pub(super) ttl: Option<Ttl>,
    /// `None`: as before; 0 for a key that was absent.
    pub(super) user_flags: Option<u32>,
}

/// A mutation that stores.
pub(super) trait Change {
    /// What to store, given the header and place of the key's live entry; `None` for nothing. May
    /// be asked several times before something is stored.
    fn decide(
        &mut self,
        header: Option<EntryHeader>,
        at: Option<Spot<'_>>,
    ) -> Result<Option<Decision>, RpcError>;

    /// The value to store, by the last decision.
    fn value(&self) -> &[u8];
}

/// As before, or the table's default for a new key.
fn keep(header: Option<EntryHeader>) -> Decision {
    let ttl = if header.is_some() { None } else { Some(Ttl::TableDefault) };
    Decision { ttl, user_flags: None }
}

thread_local! {
    static REWRITTEN_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Bytes of values that this thread has read so far to write them anew. A short request can make it
/// do that with long values: who serves several goes by the difference.
pub(crate) fn rewritten_bytes() -> u64 {
    REWRITTEN_BYTES.get()
}

/// The value that is there now, nothing for an absent key.
fn current(header: Option<EntryHeader>, at: Option<Spot<'_>>, into: &mut Vec<u8>) {
    into.clear();
    if let (Some(header), Some(at)) = (header, at) {
        REWRITTEN_BYTES.set(REWRITTEN_BYTES.get() + u64::from(header.value_len));
        read_value(at, &header, into);
    }
}

/// Stores a value.
pub(super) struct Put<'a> {
    pub(super) value: &'a [u8],
    pub(super) expect: Expect,
    pub(super) ttl: Ttl,
    pub(super) user_flags: u32,
}

impl Change for Put<'_> {
    fn decide(
        &mut self,
        header: Option<EntryHeader>,
        _at: Option<Spot<'_>>,
    ) -> Result<Option<Decision>, RpcError> {
        check(self.expect, header.map(|header| header.version))?;
        Ok(Some(Decision { ttl: Some(self.ttl), user_flags: Some(self.user_flags) }))
    }

    fn value(&self) -> &[u8] {
        self.value
    }
}

struct Append<'a> {
    more: &'a [u8],
    value: Vec<u8>,
}

impl Change for Append<'_> {
    fn decide(
        &mut self,
        header: Option<EntryHeader>,
        at: Option<Spot<'_>>,
    ) -> Result<Option<Decision>, RpcError> {
        if header.is_some_and(|header| header.is_counter()) {
            return Err(is_a_counter("append"));
        }
        let len_bytes = header.map_or(0, |header| header.value_len as usize) + self.more.len();
        if len_bytes > APPEND_MAX_BYTES {
            let text = format!("{len_bytes} bytes after append: the limit is {APPEND_MAX_BYTES}");
            return Err(RpcError::new(ErrorCode::TooLarge, text));
        }
        current(header, at, &mut self.value);
        self.value.extend_from_slice(self.more);
        Ok(Some(keep(header)))
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

struct WriteAt<'a> {
    offset_bytes: u64,
    bytes: &'a [u8],
    /// Longest value.
    max_bytes: usize,
    value: Vec<u8>,
}

impl Change for WriteAt<'_> {
    fn decide(
        &mut self,
        header: Option<EntryHeader>,
        at: Option<Spot<'_>>,
    ) -> Result<Option<Decision>, RpcError> {
        if header.is_none() {
            return Ok(None);
        }
        if header.is_some_and(|header| header.is_counter()) {
            return Err(is_a_counter("write at an offset"));
        }
        // What may not be is refused before it takes memory.
        let offset = usize::try_from(self.offset_bytes).ok();
        let end = offset.and_then(|offset| offset.checked_add(self.bytes.len()));
        let Some(end) = end.filter(|&end| end <= self.max_bytes) else {
            let text = format!(
                "{} bytes at {} are beyond the longest value: the limit is {}",
                self.bytes.len(),
                self.offset_bytes,
                self.max_bytes
            );
            return Err(RpcError::new(ErrorCode::TooLarge, text));
        };
        current(header, at, &mut self.value);
        if !self.bytes.is_empty() {
            self.value.resize(self.value.len().max(end), 0);
            self.value[end - self.bytes.len()..end].copy_from_slice(self.bytes);
        }
        Ok(Some(keep(header)))
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

struct Increment {
    by: i64,
    /// The key is a counter: nothing is stored.
    is_counter: bool,
    number: i64,
    text: Vec<u8>,
}

/// Longest decimal number of 64 bits, with its sign.
const NUMBER_MAX_BYTES: u32 = 20;

impl Change for Increment {
    fn decide(
        &mut self,
        header: Option<EntryHeader>,
        at: Option<Spot<'_>>,
    ) -> Result<Option<Decision>, RpcError> {
        self.is_counter = header.is_some_and(|header| header.is_counter());
        if self.is_counter {
            return Ok(None);
        }
        let wrong = |what| Err(RpcError::new(ErrorCode::WrongType, what));
        if header.is_some_and(|header| header.value_len > NUMBER_MAX_BYTES) {
            return wrong("the value is not a decimal number of 64 bits");
        }
        current(header, at, &mut self.text);
        let number = match header {
            None => Some(0),
            Some(_) => std::str::from_utf8(&self.text).ok().and_then(|text| text.parse().ok()),
        };
        let Some(number) = number else {
            return wrong("the value is not a decimal number of 64 bits");
        };
        let Some(sum) = i64::checked_add(number, self.by) else {
            return wrong("the sum does not fit into 64 bits");
        };
        self.number = sum;
        self.text = sum.to_string().into_bytes();
        Ok(Some(keep(header)))
    }

    fn value(&self) -> &[u8] {
        &self.text
    }
}

struct Touch {
    ttl: Ttl,
    value: Vec<u8>,
}

impl Change for Touch {
    fn decide(
        &mut self,
        header: Option<EntryHeader>,
        at: Option<Spot<'_>>,
    ) -> Result<Option<Decision>, RpcError> {
        if header.is_none() {
            return Ok(None);
        }
        if header.is_some_and(|header| header.is_counter()) {
            return Err(is_a_counter("time to live"));
        }
        current(header, at, &mut self.value);
        Ok(Some(Decision { ttl: Some(self.ttl), user_flags: None }))
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

fn stored(version: Option<u64>) -> Result<u64, RpcError> {
    version.ok_or_else(|| RpcError::new(ErrorCode::Internal, "a mutation stored nothing"))
}

impl Table {
    /// Adds bytes to the end of a value, an absent one being empty. Expiry and flags stay. Gives
    /// the version.
    ///
    /// # Errors
    /// As for [`Self::put`].
    pub fn append(&self, key: &[u8], value: &[u8]) -> Result<u64, RpcError> {
        stored(self.write(key, &mut Append { more: value, value: Vec::new() })?)
    }

    /// Replaces bytes of a value from `offset_bytes` on. A shorter value grows, a gap is zeros; no
    /// bytes change nothing but the version. Expiry and flags stay. Gives the version; `None`:
    /// there is no such key.
    ///
    /// # Errors
    /// As for [`Self::put`].
    pub fn write_at(
        &self,
        key: &[u8],
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<Option<u64>, RpcError> {
        if let Some(version) = self.patch(key, offset_bytes, bytes) {
            return Ok(Some(version));
        }
        let max_bytes = self.shared.value_max_bytes;
        let mut change = WriteAt { offset_bytes, bytes, max_bytes, value: Vec::new() };
        self.write(key, &mut change)
    }

    /// Adds to a counter, or to a value that is a decimal number, an absent one being 0. Expiry and
    /// flags stay. Gives the sum and the version.
    ///
    /// # Errors
    /// `WrongType` if the value is no number of 64 bits or the sum is none; and as for
    /// [`Self::put`].
    pub fn increment(&self, key: &[u8], by: i64) -> Result<(i64, u64), RpcError> {
        let mut change = Increment { by, is_counter: false, number: 0, text: Vec::new() };
        let version = self.write(key, &mut change)?;
        if !change.is_counter {
            return Ok((change.number, stored(version)?));
        }
        match self.counter(key, CounterAction::Add { by })? {
            Counted::Changed { old, version } => Ok((old.wrapping_add(by), version)),
            _ => Err(RpcError::new(ErrorCode::Internal, "an addition changed nothing")),
        }
    }

    /// Gives a key another time to live, by a new entry with a new version. `None`: there is no
    /// such key.
    ///
    /// # Errors
    /// As for [`Self::put`].
    pub fn touch(&self, key: &[u8], ttl: Ttl) -> Result<Option<u64>, RpcError> {
        self.write(key, &mut Touch { ttl, value: Vec::new() })
    }
}
