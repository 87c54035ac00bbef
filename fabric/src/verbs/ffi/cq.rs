//! Completion queues, and the channels that wake who sleeps on them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Device, check};
use super::error::VerbsError;
use super::sys;

/// A completion, as the device wrote it: there is one of each, and who was given it uses it up.
pub(crate) struct Wc(sys::ibv_wc);

impl Wc {
    /// Room for one.
    pub(crate) fn none() -> Self {
        // SAFETY: it is plain data, for which zero is a value.
        Self(unsafe { std::mem::zeroed() })
    }

    #[cfg(test)]
    pub(super) fn made_up(wr_id: u64, status: u32) -> Self {
        Self(sys::ibv_wc { wr_id, status, ..Self::none().0 })
    }

    /// What the poster chose.
    pub(crate) fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    pub(crate) fn status(&self) -> u32 {
        self.0.status
    }

    pub(crate) fn is_success(&self) -> bool {
        self.0.status == sys::IBV_WC_SUCCESS
    }

    /// Length of a received message.
    pub(crate) fn len_bytes(&self) -> usize {
        self.0.byte_len as usize
    }

    /// Whether what was received is a SEND. A WRITE with immediate data takes a receive buffer too,
    /// and puts nothing into it.
    pub(crate) fn is_of_send(&self) -> bool {
        self.0.opcode == sys::IBV_WC_RECV
    }

    /// The queue pair on this side.
    pub(crate) fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// The immediate data, if there is any.
    pub(crate) fn immediate(&self) -> Option<u32> {
        let with = self.0.wc_flags & sys::IBV_WC_WITH_IMM != 0;
        // SAFETY: both members are a plain u32; the flag says which one it is.
        with.then(|| u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data }))
    }
}

/// Where completions are polled.
pub(crate) struct Cq {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs allows a completion queue to be used from any thread at once.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// Completions that one call takes out.
pub(crate) const AT_ONCE: usize = 32;

impl Cq {
    /// A queue with room for `depth` completions, and its channel.
    ///
    /// # Errors
    /// When the depth is beyond what the device has, or a limit is reached.
    pub(crate) fn new(device: &Arc<Device>, depth: u32) -> Result<Arc<Self>, VerbsError> {
        let ib = &device.libs.ib;
        // SAFETY: the context is open.
        let channel = unsafe { ib.ibv_create_comp_channel(device.as_ptr()) };
        let channel = NonNull::new(channel);
        let channel = channel.ok_or_else(|| VerbsError::last("ibv_create_comp_channel"))?;
        let depth = i32::try_from(depth).unwrap_or(i32::MAX);
        let (context, none) = (device.as_ptr(), std::ptr::null_mut());
        // SAFETY: context and channel are open.
        let raw = unsafe { ib.ibv_create_cq(context, depth, none, channel.as_ptr(), 0) };
        let Some(raw) = NonNull::new(raw) else {
            let error = VerbsError::last("ibv_create_cq");
            // SAFETY: nothing uses it.
            unsafe { ib.ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let cq = Self { raw, channel, device: Arc::clone(device) };
        // Events are taken after `poll` said so; another thread may have been quicker.
        let flags = rustix::fs::fcntl_getfl(cq.as_fd()).map_err(nonblocking)?;
        let flags = flags | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(cq.as_fd(), flags).map_err(nonblocking)?;
        Ok(Arc::new(cq))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    /// Takes out at most [`AT_ONCE`] completions and gives each to `each`.
    ///
    /// # Errors
    /// When the queue is broken: it overran, or the device is gone.
    pub(crate) fn poll(&self, max: usize, mut each: impl FnMut(Wc)) -> Result<usize, VerbsError> {
        let mut wcs: [MaybeUninit<sys::ibv_wc>; AT_ONCE] = [MaybeUninit::uninit(); AT_ONCE];
        let max = max.min(AT_ONCE) as i32;
        let into = wcs.as_mut_ptr().cast();
        // SAFETY: the queue exists until drop, and there is room for `max`.
        let count = unsafe { sys::poll_cq(self.as_ptr(), max, into) };
        let count = usize::try_from(count).map_err(|_| VerbsError::code("ibv_poll_cq", count))?;
        for wc in wcs.iter().take(count) {
            // SAFETY: the first `count` were written.
            each(Wc(unsafe { wc.assume_init() }));
        }
        Ok(count)
    }

    /// Takes out one completion, if there is one; whether there was.
    ///
    /// # Errors
    /// As [`Self::poll`].
    #[inline]
    pub(crate) fn poll_one(&self, into: &mut Wc) -> Result<bool, VerbsError> {
        // SAFETY: the queue exists until drop, and there is room for one.
        match unsafe { sys::poll_cq(self.as_ptr(), 1, &raw mut into.0) } {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(VerbsError::code("ibv_poll_cq", code)),
        }
    }

    /// Makes the next completion ring the channel. What came before does not: poll once more
    /// after it.
    ///
    /// # Errors
    /// When the device refuses.
    pub(crate) fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue exists until drop.
        check("ibv_req_notify_cq", unsafe { sys::req_notify_cq(self.as_ptr()) })
    }

    /// Takes what rang the channel. Never blocks.
    pub(crate) fn silence(&self) {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let ib = &self.device.libs.ib;
        // SAFETY: the channel exists until drop, both places are valid for writes.
        let taken = || unsafe {
            ib.ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut context) == 0
        };
        let count = std::iter::repeat_with(taken).take(64).take_while(|taken| *taken).count();
        if count > 0 {
            // SAFETY: the channel has only this queue, and so many of its events were taken.
            unsafe { ib.ibv_ack_cq_events(self.as_ptr(), count as u32) };
        }
    }
}

fn nonblocking(errno: rustix::io::Errno) -> VerbsError {
    VerbsError::code("fcntl of a completion channel", errno.raw_os_error())
}

impl AsFd for Cq {
    /// The channel: readable when an armed queue has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open until drop.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: as above.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let ib = &self.device.libs.ib;
        // SAFETY: queue pairs and receive queues hold what they use: nothing uses it any more, and
        // every event that was taken was acknowledged.
        let code = unsafe { ib.ibv_destroy_cq(self.as_ptr()) };
        // SAFETY: its only queue is destroyed.
        let channel = unsafe { ib.ibv_destroy_comp_channel(self.channel.as_ptr()) };
        if code != 0 || channel != 0 {
            tracing::error!(code, channel, device = self.device.name(), "ibv_destroy_cq failed");
        }
    }
}
