//! What a GET returns.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use onesided_protocol::layout::entry::{EntryHeader, HEADER_BYTES};

use crate::room::Room;

/// The token of compare-and-set: never the same twice for a key.
pub type Version = u64;

/// What the server knows about a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// Its version.
    pub version: Version,
    /// The user's own flags.
    pub user_flags: u32,
    /// Second of Unix time, on the server's clock, at which it expires; 0 = never.
    pub expiry_s: u32,
}

impl Meta {
    #[inline]
    pub(crate) fn of(header: &EntryHeader) -> Self {
        let EntryHeader { version, user_flags, expiry_s, .. } = *header;
        Self { version, user_flags, expiry_s }
    }

    /// When it expires on the server's clock; `None` = never.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        let after = Duration::from_secs(u64::from(self.expiry_s));
        (self.expiry_s != 0).then(|| SystemTime::UNIX_EPOCH + after)
    }
}

/// A value and what the server knows about it.
pub struct Value {
    /// Where header and bytes are; ends with the value.
    room: Room,
}

impl Value {
    /// A value of its own, not read from anywhere.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, version: Version, user_flags: u32, expiry_s: u32) -> Self {
        Self::new(bytes, Meta { version, user_flags, expiry_s })
    }

    /// A value whose bytes lie elsewhere.
    pub(crate) fn copied(bytes: &[u8], meta: Meta) -> Self {
        let mut value = Self { room: Room::take_long() };
        value.describe(0, meta);
        if let Some(body) = value.room.body_mut() {
            body.long.extend_from_slice(bytes);
        }
        value
    }

    pub(crate) fn new(bytes: Vec<u8>, meta: Meta) -> Self {
        Self::long(bytes, 0, meta)
    }

    /// The value in the image of a whole entry, which was judged to be one. It is not copied again:
    /// header and key stay before it.
    pub(crate) fn in_entry(mut image: Vec<u8>, header: &EntryHeader) -> Self {
        image.truncate(header.len_bytes());
        Self::long(image, header.value_offset(), Meta::of(header))
    }

    /// As [`Self::in_entry`], of a short one without flags, which the lines of the room hold.
    #[inline(always)]
    pub(crate) fn in_room(room: Room) -> Self {
        Self { room }
    }

    /// The rest of `image` from `start`.
    fn long(image: Vec<u8>, start: usize, meta: Meta) -> Self {
        let mut value = Self { room: Room::take() };
        value.describe(start, meta);
        if let Some(body) = value.room.body_mut() {
            body.long = image;
        }
        value
    }

    /// Where in its image a long value begins, and what the server knows about it.
    fn describe(&mut self, start: usize, meta: Meta) {
        let Meta { version, user_flags, expiry_s } = meta;
        // Key and value of no length: without an image it is an empty entry.
        let header = EntryHeader { version, user_flags, expiry_s, ..Default::default() };
        let [version, lens, times] = header.to_words();
        if let Some(body) = self.room.body_mut() {
            let words = [start as u64, version, lens, times].map(u64::to_le_bytes);
            body.lines[0][..4].copy_from_slice(&words);
        }
    }

    /// A word of the header; word 0 is where a long value begins in its image.
    #[inline(always)]
    fn word(&self, word: usize) -> u64 {
        self.room.body().map_or(0, |body| u64::from_le_bytes(body.lines[0][word]))
    }

    #[inline(always)]
    fn header(&self) -> EntryHeader {
        EntryHeader::from_words([self.word(1), self.word(2), self.word(3)])
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let Some(body) = self.room.body() else { return &[] };
        let bytes = if body.long.is_empty() {
            let header = self.header();
            let start = HEADER_BYTES + usize::from(header.key_len);
            let lines = body.lines.as_flattened().as_flattened();
            lines.get(start..start + header.value_len as usize)
        } else {
            body.long.get(self.word(0) as usize..)
        };
        bytes.unwrap_or_default()
    }

    /// Its bytes, owned.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        let start = self.word(0) as usize;
        match self.room.body_mut() {
            Some(body) if !body.long.is_empty() => {
                let mut long = std::mem::take(&mut body.long);
                long.drain(..start.min(long.len()));
                long
            }
            _ => self.bytes().to_vec(),
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.header().version
    }

    /// The user's own flags.
    #[must_use]
    pub fn user_flags(&self) -> u32 {
        self.header().user_flags
    }

    /// When it expires on the server's clock; `None` = never.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.meta().expires_at()
    }

    /// All that the server knows about it.
    #[must_use]
    pub fn meta(&self) -> Meta {
        Meta::of(&self.header())
    }

    /// Second of Unix time at which it expires; 0 = never.
    #[must_use]
    pub fn expiry_s(&self) -> u32 {
        self.header().expiry_s
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self::new(self.bytes().to_vec(), self.meta())
    }
}

impl Deref for Value {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        self.bytes() == other
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes() && self.meta() == other.meta()
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("len_bytes", &self.len())
            .field("version", &self.version())
            .field("user_flags", &self.user_flags())
            .field("expiry_s", &self.expiry_s())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_its_bytes_and_what_is_known_of_it() {
        let value = Value::from_bytes(b"ghijk".to_vec(), 7, 8, 0);
        assert_eq!(&value[..], b"ghijk");
        assert_eq!((value.version(), value.user_flags(), value.expires_at()), (7, 8, None));
        assert_eq!(value.clone().into_vec(), b"ghijk");
        assert_eq!(value, *b"ghijk".as_slice());
    }

    #[test]
    fn a_copy_is_the_value() {
        let meta = Meta { version: 7, user_flags: 8, expiry_s: 9 };
        for bytes in [&b"some bytes"[..], &[7; 1000], b"k", &[8; 5000], b"few"] {
            let value = Value::copied(bytes, meta);
            assert_eq!((value.bytes(), value.meta()), (bytes, meta));
            assert_eq!(value.clone().into_vec(), bytes);
            assert_eq!(value.into_vec(), bytes);
        }
    }

    #[test]
    fn an_empty_value_is_empty() {
        let meta = Meta { version: 7, user_flags: 8, expiry_s: 9 };
        // In memory that another one has left.
        drop(Value::copied(b"before", Meta::default()));
        for value in [Value::from_bytes(Vec::new(), 7, 8, 9), Value::copied(b"", meta)] {
            assert_eq!((value.bytes(), value.meta().version), (b"".as_slice(), 7));
            assert_eq!((value.user_flags(), value.expiry_s()), (8, 9));
            assert_eq!(value.into_vec(), b"");
        }
    }

    #[test]
    fn a_value_in_an_entry_is_only_the_value() {
        let header = EntryHeader { version: 3, value_len: 2, key_len: 1, ..Default::default() };
        let [version, lens, times] = header.to_words();
        let words = [0, version, lens, times].map(u64::to_le_bytes);
        let image = [words.as_flattened(), b"kvw", &[7; 29]].concat();
        let mut room = Room::take();
        room.body_mut().expect("there").lines[0] =
            *image.as_chunks().0.first_chunk().expect("a line");
        for value in [Value::in_entry(image, &header), Value::in_room(room)] {
            assert_eq!((value.bytes(), value.version()), (b"vw".as_slice(), 3));
            assert_eq!(value.clone(), value);
            assert_eq!(value.into_vec(), b"vw");
        }
    }
}
