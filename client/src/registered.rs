//! Buffers of the caller's that devices write into and the server reads from.

use std::fmt;
use std::ops::{Deref, DerefMut};

use onesided_fabric::Buffer;

/// Room for values that devices can reach without a copy: [`crate::Table::buffer`] makes one,
/// [`crate::Table::get_into_registered`] fills it, [`crate::Table::put_from`] stores what it holds,
/// again and again.
///
/// It is a mapping of its own, registered with the device once: at its first use, or at once by
/// [`crate::Client::register`]. When it is dropped, the client keeps it, registered, for the next
/// one of about that length, within bounds ([`crate::ClientBuilder::registered_kept`]). It may be
/// used with any table of any client. A server that it was lent to could read it as long as it is
/// registered: what other servers must not see belongs into another one.
#[derive(Default)]
pub struct RegisteredBuffer {
    pub(crate) buffer: Buffer,
}

impl RegisteredBuffer {
    /// Makes it so long, to be written to; what is new holds whatever was there before.
    ///
    /// # Panics
    /// If `len_bytes` is beyond the capacity.
    pub fn set_len(&mut self, len_bytes: usize) {
        self.buffer.set_len(len_bytes);
    }

    /// How long a value it takes.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.capacity_bytes()
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for RegisteredBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl AsRef<[u8]> for RegisteredBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("len_bytes", &self.len())
            .field("capacity_bytes", &self.capacity_bytes())
            .finish()
    }
}
