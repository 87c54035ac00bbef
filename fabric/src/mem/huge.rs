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
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{HUGE_PAGE_BYTES, Memory, pages};

/// Long enough for a kernel on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
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
    pid: libc::pid_t,
    /// `None`: it has ended, or does not answer.
    socket: Mutex<Option<OwnedFd>>,
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
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&here, timeout, Some(ANSWER_TIMEOUT))?;
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
                Ok(Self { pid, socket: Mutex::new(Some(here)) })
            }
            _ => Err(Error::last_os_error()),
        }
    }

    /// Puts one huge page in the place of the small ones of `memory` from `offset_bytes`, a
    /// multiple of [`HUGE_PAGE_BYTES`]: for all who map it at an aligned address, as every
    /// `Memory` of that length does. What it holds stays, also what others store meanwhile;
    /// accesses to it wait meanwhile: for milliseconds, on a busy machine for hundreds of them.
    /// All of it is resident afterwards.
    ///
    /// # Errors
    /// `ResourceBusy` when it is [`Only::Fresh`] and somebody has used any of it. When it is not
    /// whole inside, read-only, not shared, or misaligned; when the kernel has no free huge page,
    /// knows no `MADV_COLLAPSE` (before 6.1), or has huge pages of another size; when the process
    /// that makes them was killed.
    pub fn make(&self, memory: &Memory, offset_bytes: usize, only: Only) -> std::io::Result<()> {
        memory.check_huge(offset_bytes)?;
        let fd = memory.fd().ok_or_else(|| Error::other("the memory is not shared"))?;
        let mut socket = self.socket.lock();
        let Some(open) = socket.as_ref() else { return Err(ended()) };
        // The lowest bit of an offset is free.
        match ask(open, fd.as_fd(), offset_bytes as u64 | u64::from(only == Only::Fresh)) {
            Some(0) => Ok(()),
            Some(code) => Err(Error::from_raw_os_error(code)),
            None => {
                *socket = None;
                Err(ended())
            }
        }
    }
}

fn ended() -> Error {
    Error::other("the process that makes huge pages has ended")
}

/// `None`: no answer.
fn ask(socket: &OwnedFd, fd: BorrowedFd<'_>, question: u64) -> Option<i32> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let _has_room = control.push(SendAncillaryMessage::ScmRights(&fds));
    let bytes = question.to_le_bytes();
    let iov = [IoSlice::new(&bytes)];
    let send = || rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(send).ok()?;
    let mut answer = [0; 4];
    let recv = || rustix::net::recv(socket, &mut answer, RecvFlags::empty());
    let (_, len_bytes) = rustix::io::retry_on_intr(recv).ok()?;
    (len_bytes == answer.len()).then(|| i32::from_le_bytes(answer))
}

impl Drop for HugePageMaker {
    fn drop(&mut self) {
        // SAFETY: this child, which nobody else waits for, so that its number is still its own.
        let _gone = unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: as above; says nothing of how it ended.
        while unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) } < 0
            && Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
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
mod tests {
    use super::*;
    use crate::Rights;

    #[test]
    fn there_is_one_for_all_and_it_ends_with_its_last_user() {
        let maker = HugePageMaker::shared().expect("a process");
        assert_eq!(maker.pid, HugePageMaker::shared().expect("the same").pid);
        // One that no other test has.
        let maker = HugePageMaker::start().expect("a process");
        let folder = std::path::PathBuf::from(format!("/proc/{}", maker.pid));
        assert!(folder.exists());
        drop(maker);
        assert!(!folder.exists());
    }

    #[test]
    fn one_that_was_killed_says_so_and_its_memory_stays() {
        let maker = HugePageMaker::start().expect("a process");
        let memory = Memory::shared("t", HUGE_PAGE_BYTES, Rights::ReadOnly).expect("memory");
        memory.store(64, 7).expect("inside");
        // SAFETY: a child of this test's own.
        assert_eq!(unsafe { libc::kill(maker.pid, libc::SIGKILL) }, 0);
        for _ in 0..2 {
            let error = maker.make(&memory, 0, Only::Any).expect_err("nobody is there");
            assert!(error.to_string().contains("has ended"), "{error}");
        }
        assert_eq!(memory.load(64), Ok(7));
    }
}
