//! Where the value of a GET is wanted.

use onesided_fabric::{Buffer, RemoteAddr};
use onesided_protocol::limits::LARGE_VALUE_BYTES;

use super::current::Current;
use super::io::Io;
use crate::core::Shared;
use crate::error::Error;
use crate::value::{Meta, Value};

/// Takes the bytes of a value; what it held before is replaced. A lookup may fill it several
/// times before it knows that the bytes are whole.
pub(crate) enum Target<'t, 'p> {
    /// A vector, which grows.
    Vec(&'t mut Vec<u8>),
    /// A buffer that a device writes into.
    Lent(&'t mut Lent<'p>),
    /// Nowhere: it is to be replaced, and where its entry is matters. Of a large one nothing is
    /// noted.
    Place(&'t mut Option<Current>),
}

/// A caller's buffer while a GET has it.
pub(crate) struct Lent<'p> {
    /// `None` while a READ owns it, and for good if that READ failed or was given up: then the
    /// device may still write into it, and the pool takes it when the READ has completed.
    buffer: Option<Buffer>,
    capacity_bytes: usize,
    shared: &'p Shared,
}

impl<'p> Lent<'p> {
    pub(crate) fn new(buffer: Buffer, shared: &'p Shared) -> Self {
        Self { capacity_bytes: buffer.capacity_bytes(), buffer: Some(buffer), shared }
    }

    /// The buffer, or another one of its length where a READ has it.
    pub(crate) fn take(&mut self) -> Buffer {
        self.buffer.take().unwrap_or_else(|| self.shared.lendable(self.capacity_bytes))
    }

    /// Makes it hold what `fill` writes into `len_bytes`, which it must have room for.
    fn fill(&mut self, len_bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let mut buffer = self.take();
        buffer.set_len(len_bytes);
        fill(&mut buffer);
        self.buffer = Some(buffer);
    }
}

impl Target<'_, '_> {
    /// Leaves it empty.
    #[inline]
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Vec(vec) => vec.clear(),
            Self::Lent(lent) => lent.fill(0, |_| {}),
            Self::Place(place) => **place = None,
        }
    }

    /// The value's entry is this one.
    #[inline]
    pub(crate) fn note(&mut self, current: Current) {
        if let Self::Place(place) = self {
            **place = Some(current);
        }
    }

    /// Whether it can take so many bytes.
    #[inline]
    pub(crate) fn has_room(&self, len_bytes: usize) -> bool {
        match self {
            Self::Vec(_) => true,
            // No room for a large one.
            Self::Place(_) => len_bytes <= LARGE_VALUE_BYTES,
            Self::Lent(lent) => len_bytes <= lent.capacity_bytes,
        }
    }

    /// Why it cannot take so many.
    pub(crate) fn too_small(&self, needed_bytes: usize) -> Error {
        let capacity_bytes = match self {
            Self::Vec(vec) => vec.capacity(),
            Self::Lent(lent) => lent.capacity_bytes,
            Self::Place(_) => 0,
        };
        Error::BufferTooSmall { needed_bytes, capacity_bytes }
    }

    /// Makes it hold a copy of `bytes`. `false`: they have no room.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> bool {
        if !self.has_room(bytes.len()) {
            return false;
        }
        match self {
            Self::Vec(vec) => {
                vec.clear();
                vec.extend_from_slice(bytes);
            }
            Self::Lent(lent) => lent.fill(bytes.len(), |into| into.copy_from_slice(bytes)),
            Self::Place(_) => {}
        }
        true
    }

    /// Makes it hold a value that came by RPC.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`].
    pub(crate) fn take_value(&mut self, value: Value) -> Result<Meta, Error> {
        let meta = value.meta();
        match self {
            Self::Vec(vec) if vec.capacity() < value.len() => **vec = value.into_vec(),
            _ if !self.has_room(value.len()) => return Err(self.too_small(value.len())),
            _ => _ = self.copy(&value),
        }
        Ok(meta)
    }

    /// READs `len_bytes`, which it must have room for, straight into it.
    pub(crate) async fn read(
        &mut self,
        io: &Io<'_>,
        remote: RemoteAddr,
        len_bytes: usize,
    ) -> Result<(), Error> {
        match self {
            Self::Vec(vec) if vec.capacity() < len_bytes => {
                **vec = vec![0; len_bytes];
                io.read_bytes(remote, vec).await
            }
            Self::Vec(vec) => {
                vec.resize(len_bytes, 0);
                io.read_bytes(remote, vec).await
            }
            Self::Lent(lent) => {
                let mut buffer = lent.take();
                buffer.set_len(len_bytes);
                lent.buffer = Some(io.read_buffer(remote, buffer).await?);
                Ok(())
            }
            Self::Place(_) => Ok(()),
        }
    }
}
