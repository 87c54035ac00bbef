//! Buffers of the caller's that a device writes into.

use std::fmt;
use std::ops::{Deref, DerefMut};

use onesided_fabric::Buffer;

/// Room for values that a device can write into without a copy: [`crate::Table::buffer`] makes
/// one, [`crate::Table::get_into_registered`] fills it, again and again.
///
/// It is part of a mapping that is registered with the device once, at first use, and kept by the
/// client for later buffers: so have few and use them often. Up to 64 MiB are pooled; a longer
/// buffer is registered for itself and given back to the system when dropped. It may be used with
/// any table of any client.
#[derive(Default)]
pub struct RegisteredBuffer {
    pub(crate) buffer: Buffer,
}

impl RegisteredBuffer {
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
