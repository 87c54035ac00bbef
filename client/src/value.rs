//! What a GET returns.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use onesided_protocol::layout::entry::EntryHeader;

use crate::short::Short;

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
    image: Image,
    /// Where in the image its bytes begin. What was READ is not copied again: header and key may
    /// come first.
    start: u32,
    meta: Meta,
}

/// Ends with the value.
enum Image {
    /// And its length.
    Short(Short, u32),
    Long(Vec<u8>),
}

impl Value {
    /// A value of its own, not read from anywhere.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, version: Version, user_flags: u32, expiry_s: u32) -> Self {
        Self::new(bytes, Meta { version, user_flags, expiry_s })
    }

    pub(crate) fn new(bytes: Vec<u8>, meta: Meta) -> Self {
        Self { image: Image::Long(bytes), start: 0, meta }
    }

    /// The value in the image of a whole entry, which was judged to be one.
    #[inline]
    pub(crate) fn in_entry(mut image: Vec<u8>, header: &EntryHeader) -> Self {
        image.truncate(header.len_bytes());
        Self::within(Image::Long(image), header)
    }

    /// As [`Self::in_entry`], of a short one.
    #[inline(always)]
    pub(crate) fn in_short(image: Short, header: &EntryHeader) -> Self {
        // A short one's length.
        let end = header.len_bytes() as u32;
        Self::within(Image::Short(image, end), header)
    }

    #[inline(always)]
    fn within(image: Image, header: &EntryHeader) -> Self {
        // At most a header and a key, of 64 KiB.
        Self { image, start: header.value_offset() as u32, meta: Meta::of(header) }
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = match &self.image {
            Image::Short(short, end) => short.bytes().get(self.start as usize..*end as usize),
            Image::Long(long) => long.get(self.start as usize..),
        };
        bytes.unwrap_or_default()
    }

    /// Its bytes, owned.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.image {
            Image::Short(..) => self.bytes().to_vec(),
            Image::Long(mut long) => {
                long.drain(..self.start as usize);
                long
            }
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.meta.version
    }

    /// The user's own flags.
    #[must_use]
    pub fn user_flags(&self) -> u32 {
        self.meta.user_flags
    }

    /// When it expires on the server's clock; `None` = never.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.meta.expires_at()
    }

    /// All that the server knows about it.
    #[must_use]
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Second of Unix time at which it expires; 0 = never.
    #[must_use]
    pub fn expiry_s(&self) -> u32 {
        self.meta.expiry_s
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self::new(self.bytes().to_vec(), self.meta)
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
        self.bytes() == other.bytes() && self.meta == other.meta
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("len_bytes", &self.len())
            .field("version", &self.meta.version)
            .field("user_flags", &self.meta.user_flags)
            .field("expiry_s", &self.meta.expiry_s)
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
    fn a_value_in_an_entry_is_only_the_value() {
        let header = EntryHeader { version: 3, value_len: 2, key_len: 1, ..Default::default() };
        let image = [[9; 32].as_slice(), b"kvw", &[7; 29]].concat();
        let mut short = Short::take();
        short.lines_mut()[0] = *image.as_chunks().0.first_chunk().expect("a line");
        for value in [Value::in_entry(image, &header), Value::in_short(short, &header)] {
            assert_eq!((value.bytes(), value.version()), (b"vw".as_slice(), 3));
            assert_eq!(value.clone(), value);
            assert_eq!(value.into_vec(), b"vw");
        }
    }
}
