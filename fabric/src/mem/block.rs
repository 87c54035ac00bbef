//! Memory of work requests: chunks, which are mapped and registered as wholes, and the blocks that
//! they are cut into.
//!
//! Rules, cited by every unsafe block as B1 to B4:
//!
//! - **B1** A chunk's mapping `[base, base + len_bytes)` is valid, readable and writable from
//!   construction to drop, and initialised (pages begin as zeros). Each block keeps its chunk.
//! - **B2** No byte belongs to two blocks: [`Chunk::carve`] gives each place out once, and a block
//!   is neither cloned nor divided. The mapping is private to this process, and nothing but blocks
//!   refers into it.
//! - **B3** A block lies inside its chunk; start and length are multiples of 64 bytes.
//! - **B4** A device writes into a block only while a work request owns it, and then nobody holds
//!   a reference into it: references are borrowed from the block.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::registrations::{Registrations, Span};

/// Blocks begin and end at multiples of this.
pub(crate) const BLOCK_ALIGN_BYTES: usize = 64;

/// A private anonymous mapping: the unit of registration.
#[derive(Debug)]
pub(crate) struct Chunk {
    base: NonNull<u8>,
    len_bytes: usize,
    /// Where the next block is cut.
    carved_bytes: AtomicUsize,
    is_lendable: bool,
    registrations: Registrations,
}

// SAFETY: B1: the mapping belongs to the value, whichever thread has it.
unsafe impl Send for Chunk {}
// SAFETY: `&Chunk` gives no access to the mapping (B2), only blocks do.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Maps at least `len_bytes`, in whole pages.
    ///
    /// # Errors
    /// When the system has no such amount.
    pub(crate) fn map(len_bytes: usize) -> std::io::Result<Arc<Self>> {
        Self::map_for(len_bytes, false)
    }

    /// As [`Self::map`]; peers may be shown all of it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn map_to_lend(len_bytes: usize) -> std::io::Result<Arc<Self>> {
        Self::map_for(len_bytes, true)
    }

    fn map_for(len_bytes: usize, is_lendable: bool) -> std::io::Result<Arc<Self>> {
        let len_bytes = len_bytes
            .max(1)
            .checked_next_multiple_of(rustix::param::page_size())
            .ok_or(std::io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing of ours.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(mapped.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let (carved_bytes, registrations) = (AtomicUsize::new(0), Registrations::default());
        Ok(Arc::new(Self { base, len_bytes, carved_bytes, is_lendable, registrations }))
    }

    /// Cuts the next block off, or `None` where there is no room for one.
    pub(crate) fn carve(self: &Arc<Self>, len_bytes: usize) -> Option<Block> {
        let len_bytes = len_bytes.checked_next_multiple_of(BLOCK_ALIGN_BYTES)?;
        let end = |at: usize| at.checked_add(len_bytes).filter(|&end| end <= self.len_bytes);
        let at = self.carved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok()?;
        // SAFETY: B3: `at + len_bytes` is inside the mapping, as `end` checked.
        let start = unsafe { self.base.add(at) }.cast();
        let (words, chunk, key) = (len_bytes / 8, Arc::clone(self), AtomicU64::new(0));
        let place = Place { start, words, chunk, key };
        Some(Block { place: Box::new(place) })
    }

    /// How much of it has been cut into blocks.
    pub(crate) fn carved_bytes(&self) -> usize {
        self.carved_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn is_lendable(&self) -> bool {
        self.is_lendable
    }

    /// Where it is.
    pub(crate) fn span(&self) -> Span {
        Span { addr: self.base.as_ptr().expose_provenance() as u64, len_bytes: self.len_bytes }
    }

    /// Its registration with a protection domain, made at first use: see
    /// [`crate::Buffer::registered`].
    #[inline]
    pub(crate) fn registered<T: std::any::Any + Send + Sync, E>(
        &self,
        domain: usize,
        make: impl FnOnce(Span) -> Result<T, E>,
    ) -> Result<&T, E> {
        self.registrations.get_or_make(domain, || {
            keep_from_children(self.base, self.len_bytes);
            make(self.span())
        })
    }
}

/// A child made by `fork` does not get the mapping. Otherwise its pages would become
/// copy-on-write, and after this process's next store the device would go on with the old page,
/// which is the child's. The range must be a mapping of the caller's, in whole pages.
pub(super) fn keep_from_children(base: NonNull<u8>, len_bytes: usize) {
    // SAFETY: it changes no memory of this process, only what a child inherits.
    let advised =
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), len_bytes, Advice::LinuxDontFork) };
    if let Err(error) = advised {
        tracing::warn!(%error, "registered memory is not kept from forked children");
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.registrations = Registrations::default();
        // SAFETY: B1 ends here: no block is left, and nothing else refers into it (B2).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A piece of a chunk that belongs to whoever holds this. One word to move, since it goes through
/// queues, requests and completions.
pub(crate) struct Block {
    place: Box<Place>,
}

struct Place {
    start: NonNull<u64>,
    words: usize,
    chunk: Arc<Chunk>,
    /// The domain that asked last, and what it knows the chunk as: the chunk's registrations say
    /// the same, in more steps, and live as long. 0 = nobody has asked.
    key: AtomicU64,
}

// SAFETY: B1 and B2: its block owns the bytes, as a `Box<[u64]>` would, and keeps the mapping.
unsafe impl Send for Place {}
// SAFETY: as for `Send`; `&Place` only reads.
unsafe impl Sync for Place {}

impl Block {
    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: B1, B3: inside an initialised mapping, aligned; B2, B4: nobody writes while
        // `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.place.start.as_ptr(), self.place.words) }
    }

    #[inline]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: B1, B3: inside an initialised mapping, aligned; B2, B4: nobody else reads or
        // writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.place.start.as_ptr(), self.place.words) }
    }

    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.place.words * 8
    }

    /// Address of its first byte, for a device.
    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.place.start.as_ptr().expose_provenance() as u64
    }

    /// What the domain of this number, which is not 0, knows it as, if that asked last.
    #[inline]
    pub(crate) fn known_key(&self, domain: u32) -> Option<u32> {
        let known = self.place.key.load(Ordering::Relaxed);
        (known >> 32 == u64::from(domain)).then_some(known as u32)
    }

    /// Keeps what a domain knows it as: a key of the chunk's registration.
    pub(crate) fn keep_key(&self, domain: u32, key: u32) {
        self.place.key.store(u64::from(domain) << 32 | u64::from(key), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn chunk(&self) -> &Arc<Chunk> {
        &self.place.chunk
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}
