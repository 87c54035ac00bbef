//! Huge pages for shared memory, made by a process of its own.
//!
//! `MADV_COLLAPSE` gives a memfd huge pages without privilege or reservation. But while the kernel
//! waits in it for work of its own on all processors (`lru_add_drain_all`: hundreds of ms where
//! they are busy), it holds the lock on the memory map of who asked, and every thread of that
//! process whose heap grows waits. So somebody asks who has another map: a child that is made
//! before there is much memory, that is handed the memfd, maps 2 MiB of it, and asks. It makes
//! nothing but system calls: whatever locks its parent's threads held, nobody opens in it.

use std::io::{Error, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{HUGE_PAGE_BYTES, Memory, pages};

/// Long enough for a kernel on a busy machine; a child that was stopped is then ended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Who ends waits so much longer for the answer to what was asked before: others may use the child.
const GRACE: Duration = Duration::from_millis(300);
/// How often who waits looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longer than this nobody waits until the kernel lets go of a child that was killed.
const REAP_TIMEOUT: Duration = Duration::from_secs(3);
/// As `ps` shows it.
const NAME: &std::ffi::CStr = c"onesided-huge";

/// Of which memory a huge page is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Only {
    /// What nobody has used yet: nobody waits.
    Fresh,
    /// Whatever is there.
    Any,
}

/// Who makes huge pages for this process.
#[derive(Debug)]
pub struct HugePageMaker {
    /// `None`: it has ended, or did not answer.
    child: Mutex<Option<Child>>,
}

/// The process, until it is dropped.
#[derive(Debug)]
struct Child {
    pid: libc::pid_t,
    socket: OwnedFd,
}

/// The one there is.
static SHARED: Mutex<Weak<HugePageMaker>> = Mutex::new(Weak::new());

impl HugePageMaker {
    /// The one of this process; it ends when nobody has it any more. To be called before there is
    /// much memory: until it ends it keeps what the process held when it was made.
    ///
    /// # Errors
    /// When the system gives no process or no socket.
    pub fn shared() -> std::io::Result<Arc<Self>> {
        let mut shared = SHARED.lock();
        if let Some(maker) = shared.upgrade() {
            return Ok(maker);
        }
        let maker = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&maker);
        Ok(maker)
    }

    fn start() -> std::io::Result<Self> {
        let (here, there) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // No SIGCHLD at its end, and nobody else who waits for children sees it.
        let (no_signal, none) = (0_usize, 0_usize);
        // SAFETY: a child with a copy of this thread's stack; it goes into `serve`, which does not
        // return or unwind, and makes only system calls: no lock that another thread of the parent
        // held when it was copied (the allocator's, the C library's) is ever taken in it.
        let pid = unsafe { libc::syscall(libc::SYS_clone, no_signal, none, none, none, none) };
        match pid {
            0 => serve(there.as_raw_fd()),
            1.. => {
                let pid = libc::pid_t::try_from(pid).map_err(Error::other)?;
                Ok(Self { child: Mutex::new(Some(Child { pid, socket: here })) })
            }
            _ => Err(Error::last_os_error()),
        }
    }

    /// Puts one huge page in the place of the small ones of `memory` from `offset_bytes`, a
    /// multiple of [`HUGE_PAGE_BYTES`]: for all who map it at an aligned address, as every
    /// `Memory` of that length does. What it holds stays, also what others store meanwhile;
    /// accesses to it wait meanwhile: for milliseconds, on a busy machine for hundreds of them.
    /// All of it is resident afterwards. It takes 30 s at most, and a fraction of one from when
    /// `ends` is set; a process that has not answered by then is ended, for all who share it.
    ///
    /// # Errors
    /// `ResourceBusy` when it is [`Only::Fresh`] and somebody has used any of it. When it is not
    /// whole inside, read-only, not shared, or misaligned; when the kernel has no free huge page,
    /// knows no `MADV_COLLAPSE` (before 6.1), or has huge pages of another size; when the process
    /// that makes them has ended.
    pub fn make(
        &self,
        memory: &Memory,
        offset_bytes: usize,
        only: Only,
        ends: &AtomicBool,
    ) -> std::io::Result<()> {
        memory.check_huge(offset_bytes)?;
        let fd = memory.fd().ok_or_else(|| Error::other("the memory is not shared"))?;
        let mut child = self.lock(ends)?;
        let Some(asked) = child.as_ref() else { return Err(ended()) };
        // The lowest bit of an offset is free.
        let question = offset_bytes as u64 | u64::from(only == Only::Fresh);
        match asked.ask(fd.as_fd(), question, ends) {
            Some(0) => Ok(()),
            Some(code) => Err(Error::from_raw_os_error(code)),
            None => {
                *child = None;
                Err(ended())
            }
        }
    }

    /// Whether the process is there, as far as that is known without waiting. One that has ended
    /// by itself, or was killed, leaves nothing behind from then on.
    pub fn is_there(&self) -> bool {
        // Who has the lock asks it, and sees to it.
        let Some(mut child) = self.child.try_lock() else { return true };
        if child.as_ref().is_some_and(Child::has_ended) {
            *child = None;
        }
        child.is_some()
    }

    fn lock(&self, ends: &AtomicBool) -> std::io::Result<MutexGuard<'_, Option<Child>>> {
        loop {
            if let Some(child) = self.child.try_lock_for(LOOK_EVERY) {
                return Ok(child);
            }
            if ends.load(Ordering::Relaxed) {
                return Err(Error::other("nobody wants huge pages any more"));
            }
        }
    }
}

fn ended() -> Error {
    Error::other("the process that makes huge pages has ended, or did not answer and was ended")
}

impl Child {
    /// `None`: no answer.
    fn ask(&self, fd: BorrowedFd<'_>, question: u64, ends: &AtomicBool) -> Option<i32> {
        let socket = &self.socket;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        let _has_room = control.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = question.to_le_bytes();
        let iov = [IoSlice::new(&bytes)];
        // One question at a time, so that there is room for it.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let send = || rustix::net::sendmsg(socket, &iov, &mut control, flags);
        rustix::io::retry_on_intr(send).ok()?;
        if !self.answers(ends) {
            return None;
        }
        let mut answer = [0; 4];
        let recv = || rustix::net::recv(socket, &mut answer, RecvFlags::DONTWAIT);
        let (_, len_bytes) = rustix::io::retry_on_intr(recv).ok()?;
        (len_bytes == answer.len()).then(|| i32::from_le_bytes(answer))
    }

    /// Waits until there is an answer, or its end.
    fn answers(&self, ends: &AtomicBool) -> bool {
        let mut until = Instant::now() + ANSWER_TIMEOUT;
        let mut is_ending = false;
        loop {
            if self.says_something(LOOK_EVERY) {
                return true;
            }
            let now = Instant::now();
            if !is_ending && ends.load(Ordering::Relaxed) {
                (is_ending, until) = (true, until.min(now + GRACE));
            }
            if now >= until {
                return false;
            }
        }
    }

    fn says_something(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
        matches!(poll(&mut fds, Some(&timeout)), Ok(1..))
    }

    /// While nobody asks it says nothing, until it ends.
    fn has_ended(&self) -> bool {
        self.says_something(Duration::ZERO)
    }

    /// `false`: the kernel has not let go of it yet.
    fn is_reaped(&self) -> bool {
        // SAFETY: this child, which nobody else waits for; says nothing of how it ended.
        let waited =
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        let is_interrupted = || Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        waited != 0 && !(waited < 0 && is_interrupted())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: this child, which nobody else waits for, so that its number is still its own.
        // Also one that was stopped ends.
        let _gone = unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let until = Instant::now() + REAP_TIMEOUT;
        while !self.is_reaped() {
            if Instant::now() >= until {
                tracing::warn!(pid = self.pid, "the kernel holds the process that made huge pages");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The child: answers until its parent has ended. A panic cannot leave it.
extern "C" fn serve(socket: RawFd) -> ! {
    // Without room, or a way to be alone, it ends; its parent learns of it when it asks.
    if alone_with(socket).is_ok()
        && let Ok(room) = pages::aligned_room(HUGE_PAGE_BYTES)
    {
        answer_all(room);
    }
    // SAFETY: ends this process, without what its parent has to be done at exit.
    unsafe { libc::_exit(0) }
}

/// Lets go of all that the parent has open but the socket, which is 0 from now on.
fn alone_with(socket: RawFd) -> Result<(), Errno> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills room for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was just made. The parent's handlers are not to run here, and whoever stops
    // the parent stops this.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
    // SAFETY: a name that ends with 0.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    // SAFETY: a descriptor of this process, in which nobody else uses any.
    let moved = unsafe { libc::dup2(socket, 0) };
    let (first, last, flags) = (1_i64, i64::from(u32::MAX), 0_i64);
    // SAFETY: as above.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if (moved, closed) == (0, 0) { Ok(()) } else { Err(Errno::BADF) }
}

/// `room` is where a huge page can be mapped.
fn answer_all(room: *mut std::ffi::c_void) {
    // SAFETY: see `alone_with`.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    loop {
        let mut question = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut question)];
        match rustix::net::recvmsg(&socket, &mut iov, &mut control, RecvFlags::empty()) {
            Ok(received) if received.bytes == question.len() => {}
            _ => return,
        }
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let Some(fd) = fd else { return };
        let question = u64::from_le_bytes(question);
        let offset_bytes = question & !1;
        let made = match question & 1 == 1 && is_used(&fd, offset_bytes) {
            true => Err(Errno::BUSY),
            false => collapse(&fd, offset_bytes, room),
        };
        let code = made.map_or_else(Errno::raw_os_error, |()| 0).to_le_bytes();
        if rustix::net::send(&socket, &code, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// Whether any page of it is there. One that does not say so is taken for one that is not used.
fn is_used(fd: &OwnedFd, offset_bytes: u64) -> bool {
    let data = rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(offset_bytes));
    data.is_ok_and(|first_bytes| first_bytes < offset_bytes + HUGE_PAGE_BYTES as u64)
}

fn collapse(fd: &OwnedFd, offset_bytes: u64, room: *mut std::ffi::c_void) -> Result<(), Errno> {
    // The kernel refuses a range without any page.
    let page_bytes = pages::page_bytes() as u64;
    rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), offset_bytes, page_bytes)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: room that was reserved for this alone.
    unsafe {
        rustix::mm::mmap(room, HUGE_PAGE_BYTES, ProtFlags::READ, flags, fd, offset_bytes)?;
    }
    // SAFETY: the mapping that was just made; nothing of it is read.
    let made = match unsafe { libc::madvise(room, HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::INVAL)),
    };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as above: the memfd is not kept, the room is.
    unsafe { rustix::mm::mmap_anonymous(room, HUGE_PAGE_BYTES, ProtFlags::empty(), flags)? };
    made
}

#[cfg(test)]
pub(super) mod tests;
