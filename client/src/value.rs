//! What a GET returns.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

/// The token of compare-and-set: never the same twice for a key.
pub type Version = u64;

/// A value and what the server knows about it.
#[derive(Clone)]
pub struct Value {
    bytes: Box<[u8]>,
    version: Version,
    user_flags: u32,
    expiry_s: u32,
}

impl Value {
    /// A value of its own, not read from anywhere.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, version: Version, user_flags: u32, expiry_s: u32) -> Self {
        Self { bytes: bytes.into_boxed_slice(), version, user_flags, expiry_s }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its bytes, owned.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes.into_vec()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The user's own flags.
    #[must_use]
    pub fn user_flags(&self) -> u32 {
        self.user_flags
    }

    /// When it expires on the server's clock; `None` = never.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        let after = Duration::from_secs(u64::from(self.expiry_s));
        (self.expiry_s != 0).then(|| SystemTime::UNIX_EPOCH + after)
    }

    /// Second of Unix time at which it expires; 0 = never.
    #[must_use]
    pub fn expiry_s(&self) -> u32 {
        self.expiry_s
    }
}

impl Deref for Value {
    type Target = [u8];
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
        self.bytes() == other.bytes()
            && (self.version, self.user_flags, self.expiry_s)
                == (other.version, other.user_flags, other.expiry_s)
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("len_bytes", &self.len())
            .field("version", &self.version)
            .field("user_flags", &self.user_flags)
            .field("expiry_s", &self.expiry_s)
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
}
