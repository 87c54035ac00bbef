//! The raw-memory accessor: the one place that touches memory which somebody else may write.
//! (Memory of work requests, which is one side's at a time, is in `block`.)
//!
//! Rules, cited by every unsafe block as R1 to R4:
//!
//! - **R1** The mapping `[base, base + len_bytes)` is valid from construction to drop: it is never
//!   unmapped, moved or truncated while a `Memory` exists; other pages may take the place of its
//!   own ([`Memory::discard`]), as if somebody had stored what they hold. (A memfd is sealed
//!   against shrinking before another process sees it, and a foreign one is refused unless it is.)
//! - **R2** No reference into the mapping is ever made, except to an atomic: others write
//!   concurrently. It lives for one access, or for one wait on a futex.
//! - **R3** Every access is checked against `len_bytes` and alignment first; `base` is page-aligned
//!   and the mapping is whole pages, so the word around any byte of it is inside.
//! - **R4** Stores happen only if this side mapped the memory writable.
//!
//! Words are 8 bytes, little-endian (asserted), relaxed, with fences where the protocol needs
//! them: reads end with an acquire fence, [`Memory::store`] releases what was written before.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, RwLock};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::registrations::{Registrations, Span};
use crate::work::Rights;

pub use fold::{Fold, carryless_fold};
pub use huge::{HugePageMaker, Only};
pub use lines::high_halves_match;
pub use pages::HUGE_PAGE_BYTES;

const _: () = assert!(cfg!(target_endian = "little"), "layouts are little-endian words");
const _: () = assert!(size_of::<usize>() == 8, "addresses are 64-bit");

/// Why an access was refused, before it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// It does not lie inside the region.
    #[error("{len_bytes} bytes at {offset_bytes} are outside a region of {region_bytes} bytes")]
    OutOfBounds {
        /// Start of the access.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
        /// Length of the region.
        region_bytes: u64,
    },
    /// A word access whose offset is not a multiple of 8.
    #[error("offset {0} is not a multiple of 8")]
    Misaligned(u64),
    /// A store or atomic into memory that is mapped read-only.
    #[error("the region is read-only to this side")]
    ReadOnly,
    /// The region was never attached.
    #[error("region {0} is not attached")]
    NotAttached(u32),
}

/// The bytes of eight words that were read together.
pub type Line = [[u8; 8]; 8];

/// Called before each word is stored: a simulation lets readers run in between.
pub trait StoreHook: Send + Sync {
    /// A store into some memory of this hook's world is about to happen.
    fn before_store(&self);
}

/// A piece of memory that this process and others may access at the same time.
pub struct Memory {
    base: NonNull<u8>,
    len_bytes: usize,
    rights: Rights,
    shared: bool,
    fd: Mutex<Option<Arc<OwnedFd>>>,
    hook: Option<Arc<dyn StoreHook>>,
    registrations: RwLock<Registrations>,
    /// Its own pages are given up.
    discarded: AtomicBool,
    /// See [`lines`].
    wide_loads: bool,
}

// SAFETY: R1 to R3: the mapping outlives the value and is only accessed by atomic operations.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`; every access through `&self` is atomic (R2).
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len_bytes", &self.len_bytes)
            .field("rights", &self.rights)
            .field("shared", &self.shared)
            .finish()
    }
}

impl Memory {
    /// Zeroed memory of this process alone.
    ///
    /// # Errors
    /// When the system has no such amount.
    pub fn private(len_bytes: usize) -> std::io::Result<Self> {
        Self::map_at(None, len_bytes, Rights::ReadWrite, None)
    }

    /// Zeroed memory of this process whose stores are announced to `hook` first.
    ///
    /// # Errors
    /// When the system has no such amount.
    pub fn hooked(len_bytes: usize, hook: Arc<dyn StoreHook>) -> std::io::Result<Self> {
        Self::map_at(None, len_bytes, Rights::ReadWrite, Some(hook))
    }

    /// Zeroed memory in a memfd that other processes can be given. It can never shrink or grow;
    /// with `peers` read-only nobody can map it writable any more, this mapping excepted.
    ///
    /// # Errors
    /// When the system has no memfd, seals or such an amount.
    pub fn shared(name: &str, len_bytes: usize, peers: Rights) -> std::io::Result<Self> {
        let fd = rustix::fs::memfd_create(
            name,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
        )
        // Kernels before 6.3 do not know NOEXEC_SEAL.
        .or_else(|_| {
            rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        })?;
        rustix::fs::ftruncate(&fd, len_bytes as u64)?;
        let memory = Self::map_at(Some(fd), len_bytes, Rights::ReadWrite, None)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if peers == Rights::ReadOnly {
            seals |= SealFlags::FUTURE_WRITE;
        }
        if let Some(fd) = memory.fd() {
            rustix::fs::fcntl_add_seals(fd, seals)?;
        }
        Ok(memory)
    }

    /// Maps a memfd that another process made.
    ///
    /// # Errors
    /// When it is shorter than `len_bytes`, could be truncated later (an access would then kill
    /// this process), or cannot be mapped with these rights.
    pub fn foreign(fd: OwnedFd, len_bytes: usize, rights: Rights) -> std::io::Result<Self> {
        let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("the peer's memory is not sealed against shrinking"));
        }
        if rustix::fs::fstat(&fd)?.st_size < i64::try_from(len_bytes).unwrap_or(i64::MAX) {
            return Err(invalid("the peer's memory is shorter than it says"));
        }
        Self::map_at(Some(fd), len_bytes, rights, None)
    }

    fn map_at(
        fd: Option<OwnedFd>,
        len_bytes: usize,
        rights: Rights,
        hook: Option<Arc<dyn StoreHook>>,
    ) -> std::io::Result<Self> {
        let prot = match rights {
            Rights::ReadOnly => ProtFlags::READ,
            Rights::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let at = match len_bytes >= HUGE_PAGE_BYTES {
            true => pages::aligned_room(len_bytes)?,
            false => std::ptr::null_mut(),
        };
        let flags = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        let mapped = match &fd {
            // SAFETY: a fresh mapping, at an address the kernel chooses or in room that was
            // reserved for it alone, aliases nothing of ours.
            Some(fd) => unsafe {
                rustix::mm::mmap(at, len_bytes, prot, flags | MapFlags::SHARED, fd, 0)
            },
            // SAFETY: as above.
            None => unsafe {
                let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
                rustix::mm::mmap_anonymous(at, len_bytes, prot, flags)
            },
        }?;
        let base = NonNull::new(mapped.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("mmap returned the null address"))?;
        Ok(Self {
            base,
            len_bytes,
            rights,
            shared: fd.is_some(),
            fd: Mutex::new(fd.map(Arc::new)),
            hook,
            registrations: RwLock::default(),
            discarded: AtomicBool::new(false),
            wide_loads: lines::has_wide_loads(),
        })
    }

    /// Its length.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// What `then` says of its registration with a protection domain, which is made at first use
    /// and dropped before the memory is unmapped or discarded: as [`crate::Buffer::registered`].
    /// The device then accesses the memory as a peer process does, by words, at any time.
    ///
    /// # Errors
    /// What `make` says; the next call tries again.
    pub fn registered<T: Any + Send + Sync, E, R>(
        &self,
        domain: usize,
        make: impl FnOnce(Span) -> Result<T, E>,
        then: impl FnOnce(&T) -> R,
    ) -> Result<R, E> {
        let registrations = self.registrations.read();
        let registration = registrations.get_or_make(domain, || {
            // Shared mappings are not copied on write.
            if !self.shared {
                block::keep_from_children(self.base, self.len_bytes);
            }
            let addr = self.base.as_ptr().expose_provenance() as u64;
            make(Span { addr, len_bytes: self.len_bytes })
        });
        registration.map(then)
    }

    /// The memfd behind it, to be passed to another process.
    #[must_use]
    pub fn fd(&self) -> Option<Arc<OwnedFd>> {
        self.fd.lock().clone()
    }

    /// Closes the memfd: the mapping stays, but it can be passed to nobody any more. For who holds
    /// thousands of mappings and may hold few descriptors.
    pub fn close_fd(&self) {
        *self.fd.lock() = None;
    }

    #[inline]
    fn check(&self, offset_bytes: usize, len_bytes: usize) -> Result<(), AccessError> {
        if offset_bytes <= self.len_bytes && len_bytes <= self.len_bytes - offset_bytes {
            return Ok(());
        }
        Err(AccessError::OutOfBounds {
            offset_bytes: offset_bytes as u64,
            len_bytes: len_bytes as u64,
            region_bytes: self.len_bytes as u64,
        })
    }

    #[inline]
    fn check_word(&self, offset_bytes: usize) -> Result<(), AccessError> {
        if !offset_bytes.is_multiple_of(8) {
            return Err(AccessError::Misaligned(offset_bytes as u64));
        }
        self.check(offset_bytes, 8)
    }

    fn check_writable(&self) -> Result<(), AccessError> {
        if self.rights == Rights::ReadOnly { Err(AccessError::ReadOnly) } else { Ok(()) }
    }

    #[inline]
    fn before_store(&self) {
        if let Some(hook) = &self.hook {
            hook.before_store();
        }
    }

    /// The word at a checked, aligned offset, for one access.
    #[inline]
    fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        debug_assert!(self.check_word(offset_bytes).is_ok());
        // SAFETY: R3: the caller checked that the offset is inside the mapping.
        let at = unsafe { self.base.add(offset_bytes) }.cast::<u64>().as_ptr();
        // SAFETY: R1 and R3: valid and aligned; R2: atomic, and used for one access.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Whole words of a checked, aligned range, for one access to each.
    #[inline]
    fn range(&self, offset_bytes: usize, words: usize) -> &[AtomicU64] {
        debug_assert!(self.check(offset_bytes, words * 8).is_ok());
        // SAFETY: R3: the caller checked that the range is inside the mapping.
        let at = unsafe { self.base.add(offset_bytes) }.cast::<AtomicU64>().as_ptr();
        // SAFETY: R1 and R3: valid and aligned; R2: atomics, used for one access to each.
        unsafe { std::slice::from_raw_parts(at, words) }
    }

    /// The byte at a checked offset, out of its word: edges of unaligned copies only. (Accesses
    /// of two sizes to one place would be a race even between atomics.)
    fn byte(&self, offset_bytes: usize) -> u8 {
        let word = self.word(offset_bytes & !7).load(Ordering::Relaxed);
        word.to_le_bytes()[offset_bytes % 8]
    }

    /// Stores one byte without losing what others store into the rest of its word.
    fn set_byte(&self, offset_bytes: usize, byte: u8) {
        self.before_store();
        let word = self.word(offset_bytes & !7);
        let merge = |old: u64| {
            let mut bytes = old.to_le_bytes();
            bytes[offset_bytes % 8] = byte;
            Some(u64::from_le_bytes(bytes))
        };
        // The closure always gives a value, so this cannot fail.
        let _always_ok = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
    }

    /// Loads one word, acquiring.
    ///
    /// # Errors
    /// When it is outside or misaligned.
    #[inline]
    pub fn load(&self, offset_bytes: usize) -> Result<u64, AccessError> {
        self.check_word(offset_bytes)?;
        Ok(self.word(offset_bytes).load(Ordering::Acquire))
    }

    /// Stores one word, releasing; and nothing that is written afterwards can be seen before it
    /// by who reads with [`Self::read_words`].
    ///
    /// # Errors
    /// When it is outside, misaligned or read-only.
    #[inline]
    pub fn store(&self, offset_bytes: usize, value: u64) -> Result<(), AccessError> {
        self.check_word(offset_bytes)?;
        self.check_writable()?;
        self.before_store();
        self.word(offset_bytes).store(value, Ordering::Release);
        // A dead mark must be seen before the bytes that reuse the place.
        fence(Ordering::Release);
        Ok(())
    }

    /// If the word is `expected`, makes it `new`. `Ok` holds what was there before: it took
    /// effect if that equals `expected`.
    ///
    /// # Errors
    /// When it is outside, misaligned or read-only.
    pub fn compare_swap(&self, at: usize, expected: u64, new: u64) -> Result<u64, AccessError> {
        self.check_word(at)?;
        self.check_writable()?;
        self.before_store();
        let word = self.word(at);
        let outcome = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(outcome.unwrap_or_else(|found| found))
    }

    /// Adds to the word, wrapping; returns what was there before.
    ///
    /// # Errors
    /// When it is outside, misaligned or read-only.
    pub fn fetch_add(&self, at: usize, add: u64) -> Result<u64, AccessError> {
        self.check_word(at)?;
        self.check_writable()?;
        self.before_store();
        Ok(self.word(at).fetch_add(add, Ordering::AcqRel))
    }

    /// ORs bits into the word; returns what was there before.
    ///
    /// # Errors
    /// When it is outside, misaligned or read-only.
    pub fn fetch_or(&self, at: usize, bits: u64) -> Result<u64, AccessError> {
        self.check_word(at)?;
        self.check_writable()?;
        self.before_store();
        Ok(self.word(at).fetch_or(bits, Ordering::AcqRel))
    }

    /// Replaces the word; returns what was there before.
    ///
    /// # Errors
    /// When it is outside, misaligned or read-only.
    pub fn swap(&self, at: usize, value: u64) -> Result<u64, AccessError> {
        self.check_word(at)?;
        self.check_writable()?;
        self.before_store();
        Ok(self.word(at).swap(value, Ordering::AcqRel))
    }

    /// The word itself, for orderings that the methods above do not have.
    ///
    /// # Errors
    /// When it is outside or misaligned.
    pub(crate) fn atomic(&self, offset_bytes: usize) -> Result<&AtomicU64, AccessError> {
        self.check_word(offset_bytes)?;
        Ok(self.word(offset_bytes))
    }

    /// A 4-byte word, for waiting on it with a futex. The rest of its 8-byte word must stay
    /// unused, and it must be accessed by nothing else: accesses of two sizes would be a race.
    /// Memory that is mapped read-only may only be loaded, relaxed.
    ///
    /// # Errors
    /// When it is outside or misaligned.
    pub(crate) fn futex_word(&self, offset_bytes: usize) -> Result<&AtomicU32, AccessError> {
        self.check_word(offset_bytes)?;
        // SAFETY: R3: just checked.
        let at = unsafe { self.base.add(offset_bytes) }.cast::<u32>().as_ptr();
        // SAFETY: R1 and R3: valid and aligned; R2: atomic, never accessed in another size.
        Ok(unsafe { AtomicU32::from_ptr(at) })
    }

    /// Copies whole words out. They may belong to different moments; later reads happen after
    /// these.
    ///
    /// # Errors
    /// When the range is outside or misaligned.
    #[inline]
    pub fn read_words(&self, offset_bytes: usize, into: &mut [u64]) -> Result<(), AccessError> {
        if !offset_bytes.is_multiple_of(8) {
            return Err(AccessError::Misaligned(offset_bytes as u64));
        }
        self.check(offset_bytes, into.len() * 8)?;
        let (lines, rest) = self.range(offset_bytes, into.len()).as_chunks::<8>();
        let (into_lines, into_rest) = into.as_chunks_mut::<8>();
        for (words, from) in into_lines.iter_mut().zip(lines) {
            *words = std::array::from_fn(|i| from[i].load(Ordering::Relaxed));
        }
        for (word, from) in into_rest.iter_mut().zip(rest) {
            *word = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies whole words in, in no order that a reader may rely on.
    ///
    /// # Errors
    /// When the range is outside, misaligned or read-only.
    #[inline]
    pub fn write_words(&self, offset_bytes: usize, from: &[u64]) -> Result<(), AccessError> {
        if !offset_bytes.is_multiple_of(8) {
            return Err(AccessError::Misaligned(offset_bytes as u64));
        }
        self.check(offset_bytes, from.len() * 8)?;
        self.check_writable()?;
        for (i, &word) in from.iter().enumerate() {
            self.before_store();
            self.word(offset_bytes + i * 8).store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes of a checked range out, aligned words as wholes.
    fn copy_out(&self, offset_bytes: usize, into: &mut [u8]) {
        let edge = (offset_bytes.next_multiple_of(8) - offset_bytes).min(into.len());
        let (head, rest) = into.split_at_mut(edge);
        let mut at = offset_bytes;
        for byte in head {
            *byte = self.byte(at);
            at += 1;
        }
        let (words, tail) = rest.as_chunks_mut::<8>();
        for word in words {
            *word = self.word(at).load(Ordering::Relaxed).to_le_bytes();
            at += 8;
        }
        for byte in tail {
            *byte = self.byte(at);
            at += 1;
        }
    }

    /// Copies bytes in, aligned words as wholes, in no order that a reader may rely on.
    ///
    /// # Errors
    /// When the range is outside or read-only.
    pub fn write_bytes(&self, offset_bytes: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check(offset_bytes, from.len())?;
        self.check_writable()?;
        let edge = (offset_bytes.next_multiple_of(8) - offset_bytes).min(from.len());
        let (head, rest) = from.split_at(edge);
        let mut at = offset_bytes;
        for &byte in head {
            self.set_byte(at, byte);
            at += 1;
        }
        let (words, tail) = rest.as_chunks::<8>();
        for &word in words {
            self.before_store();
            self.word(at).store(u64::from_le_bytes(word), Ordering::Relaxed);
            at += 8;
        }
        for &byte in tail {
            self.set_byte(at, byte);
            at += 1;
        }
        Ok(())
    }

    /// Makes a range zero.
    ///
    /// # Errors
    /// When the range is outside or read-only.
    pub fn zero(&self, offset_bytes: usize, len_bytes: usize) -> Result<(), AccessError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.check(offset_bytes, len_bytes)?;
        let end = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        while at < end {
            let n = (end - at).min(ZEROS.len());
            self.write_bytes(at, &ZEROS[..n])?;
            at += n;
        }
        Ok(())
    }

    /// Brings the cache lines of a range closer; outside ranges are ignored.
    #[inline]
    pub fn prefetch(&self, offset_bytes: usize, len_bytes: usize) {
        let len_bytes = len_bytes.min(512);
        if self.check(offset_bytes, len_bytes).is_err() {
            return;
        }
        let mut at = offset_bytes & !63;
        while at < offset_bytes + len_bytes {
            // SAFETY: R3: inside the mapping, as checked.
            let line = unsafe { self.base.add(at) };
            prefetch_line(line);
            at += 64;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line(line: NonNull<u8>) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch has no effect on memory and cannot fault; SSE is part of x86_64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_line(_line: NonNull<u8>) {}

impl Drop for Memory {
    fn drop(&mut self) {
        *self.registrations.get_mut() = Registrations::default();
        // SAFETY: R1 ends here: nobody holds a pointer into the mapping (R2).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

pub(crate) mod block;
pub(crate) mod fold;
mod huge;
mod lines;
mod pages;
#[cfg(test)]
mod tests;
