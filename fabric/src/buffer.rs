//! Buffers that work requests own: pooled, aligned to 64 bytes, and cut out of big chunks that a
//! device can be told of once, so that the data path neither copies nor registers.
//!
//! Size classes are powers of two, 64 bytes to 64 MiB. Smaller ones than 1 MiB share chunks of
//! 1 MiB with others of their class; a longer buffer is a chunk of its own. What a pool keeps when
//! nothing is in use: of each class at most 256 buffers or 1 MiB ready, and up to 8 MiB in chunks
//! behind them (of 16 MiB and more, one buffer); pages that were never touched or registered are
//! no memory. While much is in use, a chunk stays mapped as long as any buffer of it is out or
//! ready. Longer buffers than 64 MiB are mapped and unmapped each time.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use zerocopy::IntoBytes;

use crate::mem::block::{BLOCK_ALIGN_BYTES, Block, Chunk};
use crate::registrations::Span;

mod class;
mod parking;
#[cfg(test)]
mod tests;

use class::Class;
pub use parking::{Parking, ParkingUsage};

/// Size classes are powers of two from 64 bytes to 64 MiB.
const CLASSES: usize = 21;
const SMALLEST_BYTES: usize = BLOCK_ALIGN_BYTES;

/// A pool of [`Buffer`]s. Cloning shares it.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    classes: [Class; CLASSES],
    counters: Counters,
}

/// How much memory a pool has, and how often it asked the system for some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolUsage {
    /// Bytes mapped now, in use or kept. Untouched pages take no memory until they are registered.
    pub mapped_bytes: usize,
    /// Chunks mapped so far: each costs a registration when a device uses it. What did not need
    /// one was a hit.
    pub chunks_made: u64,
    /// Buffers given out so far.
    pub taken: u64,
}

impl PoolUsage {
    /// How many in a thousand buffers needed no new chunk.
    #[must_use]
    pub fn hits_per_mille(&self) -> u64 {
        match self.taken {
            0 => 1000,
            taken => taken.saturating_sub(self.chunks_made) * 1000 / taken,
        }
    }
}

#[derive(Default)]
struct Counters {
    mapped_bytes: AtomicUsize,
    chunks_made: AtomicU64,
    taken: AtomicU64,
}

impl Counters {
    fn mapped(&self, len_bytes: usize) {
        self.mapped_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        self.chunks_made.fetch_add(1, Ordering::Relaxed);
    }

    fn unmapped(&self, len_bytes: usize) {
        self.mapped_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
    }
}

impl Default for BufferPool {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl BufferPool {
    /// An empty pool: buffers are made on demand and kept when dropped, a bounded number each.
    #[must_use]
    pub fn new() -> Self {
        let classes = std::array::from_fn(|class| Class::new(SMALLEST_BYTES << class));
        Self { shared: Arc::new(Shared { classes, counters: Counters::default() }) }
    }

    /// A buffer of `len_bytes`; its contents are whatever was there before. Ends the process where
    /// the system has no more memory, as any allocation.
    #[must_use]
    #[inline]
    pub fn get(&self, len_bytes: usize) -> Buffer {
        let Shared { classes, counters } = &*self.shared;
        counters.taken.fetch_add(1, Ordering::Relaxed);
        let block = match classes.get(class_of(len_bytes)) {
            Some(class) => class.take(counters),
            None => map_alone(len_bytes, counters),
        };
        let block = block.unwrap_or_else(|_| out_of_memory(len_bytes));
        Buffer { len_bytes, home: Some((block, Home::Pool(self.clone()))) }
    }

    /// A buffer holding a copy of `bytes`.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.get(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// What it has mapped.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let Counters { mapped_bytes, chunks_made, taken } = &self.shared.counters;
        PoolUsage {
            taken: taken.load(Ordering::Relaxed),
            mapped_bytes: mapped_bytes.load(Ordering::Relaxed),
            chunks_made: chunks_made.load(Ordering::Relaxed),
        }
    }

    #[inline]
    fn put_back(&self, block: Block) {
        let Shared { classes, counters } = &*self.shared;
        match classes.get(class_of(block.len_bytes())) {
            Some(class) => class.put(block, counters),
            None => counters.unmapped(block.chunk().len_bytes()),
        }
    }
}

#[inline]
fn class_of(len_bytes: usize) -> usize {
    // The bits above those of the smallest class: 0 for up to 64 bytes, 1 for up to 128 ...
    let above = len_bytes.saturating_sub(1) / SMALLEST_BYTES;
    (usize::BITS - above.leading_zeros()) as usize
}

#[cold]
fn map_alone(len_bytes: usize, counters: &Counters) -> std::io::Result<Block> {
    let chunk = Chunk::map(len_bytes)?;
    let block = chunk.carve(len_bytes).ok_or(std::io::ErrorKind::OutOfMemory)?;
    counters.mapped(chunk.len_bytes());
    Ok(block)
}

#[cold]
fn out_of_memory(len_bytes: usize) -> ! {
    let layout = std::alloc::Layout::from_size_align(len_bytes, SMALLEST_BYTES);
    std::alloc::handle_alloc_error(layout.unwrap_or(std::alloc::Layout::new::<u64>()))
}

/// Bytes that belong to whoever holds this; returned to the pool when dropped.
///
/// A device reads or writes them only while a [`crate::WorkRequest`] owns the buffer, so a
/// reference into it is one into memory that nobody else touches.
#[derive(Default)]
pub struct Buffer {
    len_bytes: usize,
    /// `None` = a default buffer, of no bytes.
    home: Option<(Block, Home)>,
}

/// Where a buffer's memory goes when it is dropped.
enum Home {
    Pool(BufferPool),
    Parking(Parking),
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len_bytes", &self.len_bytes)
            .field("capacity_bytes", &self.capacity_bytes())
            .finish_non_exhaustive()
    }
}

impl Buffer {
    /// Shortens or lengthens it within what it can hold, `capacity_bytes` at most.
    ///
    /// # Panics
    /// If `len_bytes` is beyond the capacity.
    #[inline]
    pub fn set_len(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.capacity_bytes(), "a buffer does not grow");
        self.len_bytes = len_bytes;
    }

    /// How long it can be made.
    #[must_use]
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.home.as_ref().map_or(0, |(block, _)| block.len_bytes())
    }

    #[inline]
    fn all(&self) -> &[u64] {
        self.home.as_ref().map_or(&[], |(block, _)| block.words())
    }

    #[inline]
    fn all_mut(&mut self) -> &mut [u64] {
        self.home.as_mut().map_or(&mut [], |(block, _)| block.words_mut())
    }

    /// Its 8-byte words, the last one possibly beyond `len()`.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.all()[..self.len_bytes.div_ceil(8)]
    }

    /// Its 8-byte words, the last one possibly beyond `len()`.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64] {
        let words = self.len_bytes.div_ceil(8);
        &mut self.all_mut()[..words]
    }

    /// Address of its first byte, for a device; 0 for a default buffer. It stays the same as long
    /// as the buffer lives, wherever that is moved to.
    #[must_use]
    #[inline]
    pub fn addr(&self) -> u64 {
        self.home.as_ref().map_or(0, |(block, _)| block.addr())
    }

    /// Whether it is alone in its chunk, so that a peer may be shown it: one of [`Parking`].
    #[must_use]
    pub fn is_lendable(&self) -> bool {
        self.home.as_ref().is_some_and(|(block, _)| block.chunk().is_lendable())
    }

    /// The chunk that it lies in: what a device registers. `None` for a default buffer.
    #[must_use]
    pub fn chunk(&self) -> Option<Span> {
        self.home.as_ref().map(|(block, _)| block.chunk().span())
    }

    /// The registration of its chunk with a protection domain: found without a lock, or made by
    /// `make` from the chunk's place, once for all buffers of the chunk. `domain` is a number that
    /// no other living domain has. `None` for a default buffer, which has no bytes.
    ///
    /// The registration is dropped before the chunk is unmapped, so that a device never knows
    /// memory that is something else by now. It must keep its domain alive. It stays as long as
    /// the chunk, also when its domain is not used any more: a process that goes through many
    /// domains gives each its own pool.
    ///
    /// # Errors
    /// What `make` says; the next call tries again.
    pub fn registered<T: Any + Send + Sync, E>(
        &self,
        domain: usize,
        make: impl FnOnce(Span) -> Result<T, E>,
    ) -> Result<Option<&T>, E> {
        match &self.home {
            Some((block, _)) => block.chunk().registered(domain, make).map(Some),
            None => Ok(None),
        }
    }

    /// What the domain of this number knows its chunk as, if that was the last to ask.
    #[inline]
    pub(crate) fn known_key(&self, domain: u32) -> Option<u32> {
        self.home.as_ref()?.0.known_key(domain)
    }

    /// Keeps the key of its chunk's registration for the next time.
    pub(crate) fn keep_key(&self, domain: u32, key: u32) {
        if let Some((block, _)) = &self.home {
            block.keep_key(domain, key);
        }
    }

    /// Puts it where there is none: `into` is a default one, of which nothing has to be dropped.
    #[inline]
    pub(crate) fn put_into(self, into: &mut Self) {
        debug_assert!(into.home.is_none(), "it would be lost");
        std::mem::forget(std::mem::replace(into, self));
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.all().as_bytes()[..self.len_bytes]
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let len_bytes = self.len_bytes;
        &mut self.all_mut().as_mut_bytes()[..len_bytes]
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        match self.home.take() {
            Some((block, Home::Pool(pool))) => pool.put_back(block),
            Some((block, Home::Parking(parking))) => parking.park(block),
            None => {}
        }
    }
}
