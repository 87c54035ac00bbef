//! The pages under a memory: given back, or made huge. Rules R1 to R4 as in [`super`].

use std::sync::atomic::Ordering;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{AccessError, Memory};
use crate::work::Rights;

/// What [`crate::HugePageMaker::make`] puts in one piece: a huge page of x86_64, and of aarch64
/// with pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Memory {
    /// Gives back the physical pages that lie wholly inside the range; they read as zero
    /// afterwards. For shared memory, for all who map it. Where the pages cannot be given back
    /// (the kernel refuses it for memory that peers may only read, and a device has pinned those of
    /// memory that it knows) they are made zero.
    ///
    /// # Errors
    /// When the range is outside or read-only, or the system refuses.
    pub fn release(&self, offset_bytes: usize, len_bytes: usize) -> std::io::Result<()> {
        self.check(offset_bytes, len_bytes).map_err(std::io::Error::other)?;
        self.check_writable().map_err(std::io::Error::other)?;
        let page = page_bytes();
        let start = offset_bytes.next_multiple_of(page);
        let end = (offset_bytes + len_bytes) / page * page;
        if start >= end {
            return Ok(());
        }
        if self.shared {
            // Not of memory that a device knows: it would go on with the pages that were taken
            // out, while this side sees new ones.
            match self.registrations.read().if_none(|| self.remove_pages(start, end - start)) {
                None | Some(Err(rustix::io::Errno::PERM)) => {}
                Some(outcome) => return Ok(outcome?),
            }
        }
        self.zero(start, end - start).map_err(std::io::Error::other)
    }

    /// Gives up what it holds: devices do not know it any more, it can be passed to nobody, and it
    /// reads as zero. The system has the pages back when all who map shared memory have done so.
    /// For memory that nobody uses any more and whose mapping cannot go, since somebody may hold a
    /// reference to it. A device's READ of it fails from now on, and with it its queue pair.
    ///
    /// # Errors
    /// When the system refuses; then only the pages stay.
    pub fn discard(&self) -> std::io::Result<()> {
        self.discarded.store(true, Ordering::Release);
        // Dropped after the lock is free: deregistering takes a while.
        let registrations = std::mem::take(&mut *self.registrations.write());
        drop(registrations);
        self.close_fd();
        let prot = match self.rights {
            Rights::ReadOnly => ProtFlags::READ,
            Rights::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let at = self.base.as_ptr().cast();
        // SAFETY: R1: the whole of this mapping, which stays valid: what holds other bytes from now
        // on is as if somebody had stored them (R2).
        let mapped = unsafe { rustix::mm::mmap_anonymous(at, self.len_bytes, prot, flags) }?;
        debug_assert_eq!(mapped, at, "a fixed mapping is where it was asked for");
        Ok(())
    }

    /// Whether it was given up: nothing that it holds counts any more.
    #[must_use]
    pub fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::Acquire)
    }

    fn remove_pages(&self, start: usize, len_bytes: usize) -> rustix::io::Result<()> {
        // SAFETY: R3: the caller checked that the range is inside the mapping.
        let at = unsafe { self.base.add(start) }.as_ptr();
        // SAFETY: R1: the range stays mapped, its pages become holes that read as zero; R2:
        // nobody holds references that promise unchanging contents.
        unsafe { rustix::mm::madvise(at.cast(), len_bytes, Advice::LinuxRemove) }
    }

    /// Whether a huge page may lie at `offset_bytes`.
    pub(super) fn check_huge(&self, offset_bytes: usize) -> std::io::Result<()> {
        if !offset_bytes.is_multiple_of(HUGE_PAGE_BYTES) {
            return Err(std::io::Error::other(AccessError::Misaligned(offset_bytes as u64)));
        }
        self.check(offset_bytes, HUGE_PAGE_BYTES).map_err(std::io::Error::other)?;
        self.check_writable().map_err(std::io::Error::other)?;
        if self.is_discarded() {
            return Err(std::io::Error::other("the memory was given up"));
        }
        Ok(())
    }
}

pub(super) fn page_bytes() -> usize {
    // SAFETY: asks for a number that every system has.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(4096)
}

/// Address space at a multiple of [`HUGE_PAGE_BYTES`], reserved for one mapping: else no huge page
/// can be mapped as one.
pub(super) fn aligned_room(len_bytes: usize) -> rustix::io::Result<*mut std::ffi::c_void> {
    let page = page_bytes();
    let len_bytes = len_bytes.checked_next_multiple_of(page).ok_or(rustix::io::Errno::NOMEM)?;
    let all_bytes = len_bytes.checked_add(HUGE_PAGE_BYTES).ok_or(rustix::io::Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing of ours.
    let start = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), all_bytes, ProtFlags::empty(), flags)
    }?;
    let before_bytes = start.align_offset(HUGE_PAGE_BYTES);
    let room = start.wrapping_byte_add(before_bytes);
    let after_bytes = HUGE_PAGE_BYTES - before_bytes;
    for (at, len_bytes) in [(start, before_bytes), (room.wrapping_byte_add(len_bytes), after_bytes)]
    {
        if len_bytes > 0 {
            // SAFETY: a part of what was just reserved, which nobody else knows.
            unsafe { rustix::mm::munmap(at, len_bytes) }?;
        }
    }
    Ok(room)
}
