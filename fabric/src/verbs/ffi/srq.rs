//! Shared receive queues: one set of receive buffers for all peers.

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::cq::Wc;
use super::device::check;
use super::error::VerbsError;
use super::pd::Pd;
use super::sys;
use crate::buffer::Buffer;

/// Receive buffers of all queue pairs that were made with it. It owns each buffer from its
/// posting until its completion, or until the queue is destroyed.
pub(crate) struct Srq {
    raw: NonNull<sys::ibv_srq>,
    pd: Arc<Pd>,
    state: Mutex<State>,
}

struct State {
    /// What the device may write, by `wr_id`.
    posted: Box<[Option<Buffer>]>,
    requests: Vec<sys::ibv_recv_wr>,
    elements: Vec<sys::ibv_sge>,
}

// SAFETY: libibverbs allows a receive queue to be used from any thread at once; the pointers in
// `requests` are only valid, and only used, within one call.
unsafe impl Send for Srq {}
// SAFETY: as above, and the rest is behind a lock.
unsafe impl Sync for Srq {}

/// Marks a `wr_id` as one of a receive.
const RECEIVE: u64 = 1 << 63;

impl Srq {
    /// An empty queue for `depth` buffers.
    ///
    /// # Errors
    /// When the depth is beyond what the device has, or a limit is reached.
    pub(crate) fn new(pd: &Arc<Pd>, depth: u32) -> Result<Arc<Self>, VerbsError> {
        let attr = sys::ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut init = sys::ibv_srq_init_attr { srq_context: std::ptr::null_mut(), attr };
        // SAFETY: the domain exists, `init` is valid.
        let raw = unsafe { pd.device().libs.ib.ibv_create_srq(pd.as_ptr(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_srq"))?;
        let posted = (0..depth).map(|_| None).collect();
        let state = State { posted, requests: Vec::new(), elements: Vec::new() };
        Ok(Arc::new(Self { raw, pd: Arc::clone(pd), state: Mutex::new(state) }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    /// A number that no other living receive queue of this process has: events name it by that.
    pub(crate) fn key(&self) -> usize {
        self.raw.addr().get()
    }

    /// Makes the device say, once, when fewer than `limit` buffers are left.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn arm(&self, limit: u32) -> Result<(), VerbsError> {
        let mut attr = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = sys::IBV_SRQ_LIMIT as i32;
        let ib = &self.pd.device().libs.ib;
        // SAFETY: the queue exists until drop, `attr` is valid.
        let code = unsafe { ib.ibv_modify_srq(self.as_ptr(), &raw mut attr, mask) };
        check("ibv_modify_srq", code)
    }

    /// Buffers that the device has, or has filled and nobody has polled.
    pub(crate) fn posted(&self) -> usize {
        self.state.lock().posted.iter().flatten().count()
    }

    /// Whether a completion is of a receive queue, whatever its status.
    pub(crate) fn is_of(wc: &Wc) -> bool {
        wc.wr_id() & RECEIVE != 0
    }

    /// Whether a place has no buffer.
    pub(crate) fn is_bare(&self, place: usize) -> bool {
        self.state.lock().posted.get(place).is_some_and(Option::is_none)
    }

    /// The place and the buffer that this completion is about, as long as what was received;
    /// empty if the receive failed.
    pub(crate) fn complete(&self, wc: &Wc) -> Option<(usize, Buffer)> {
        let place = (wc.wr_id() & !RECEIVE) as usize;
        let mut buffer = self.state.lock().posted.get_mut(place)?.take()?;
        let len_bytes = if wc.is_success() { wc.len_bytes() } else { 0 };
        buffer.set_len(len_bytes.min(buffer.capacity_bytes()));
        Some((place, buffer))
    }

    /// Gives buffers to the device, each at a place that is free, with one doorbell. With each its
    /// place, and the key that this domain knows it by.
    ///
    /// # Errors
    /// When the device refuses; what it did not take is dropped.
    pub(crate) fn post(
        &self,
        buffers: impl IntoIterator<Item = (usize, Buffer, u32)>,
    ) -> Result<(), VerbsError> {
        let mut state = self.state.lock();
        let State { posted, requests, elements } = &mut *state;
        requests.clear();
        elements.clear();
        for (place, buffer, lkey) in buffers {
            let Some(free) = posted.get_mut(place).filter(|place| place.is_none()) else {
                continue;
            };
            elements.push(sys::ibv_sge { addr: buffer.addr(), length: buffer.len() as u32, lkey });
            let wr_id = place as u64 | RECEIVE;
            let (next, sg_list) = (std::ptr::null_mut(), std::ptr::null_mut());
            requests.push(sys::ibv_recv_wr { wr_id, next, sg_list, num_sge: 1 });
            *free = Some(buffer);
        }
        let mut first = std::ptr::null_mut();
        for (request, element) in requests.iter_mut().zip(elements.iter_mut()).rev() {
            request.next = first;
            request.sg_list = element;
            first = request;
        }
        if first.is_null() {
            return Ok(());
        }
        let mut bad: *mut sys::ibv_recv_wr = std::ptr::null_mut();
        // SAFETY: the queue exists until drop; the list is linked through `requests` and
        // `elements`, which nobody touches before the call returns; the buffers stay in `posted`.
        let code = unsafe { sys::post_srq_recv(self.raw.as_ptr(), first, &raw mut bad) };
        if code == 0 {
            return Ok(());
        }
        while !bad.is_null() {
            // SAFETY: the first that was not taken, or a later one: elements of `requests`.
            let refused = unsafe { &*bad };
            posted[(refused.wr_id & !RECEIVE) as usize] = None;
            bad = refused.next;
        }
        Err(VerbsError::code("ibv_post_srq_recv", code))
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep what they were made with: none is left.
        let code = unsafe { self.pd.device().libs.ib.ibv_destroy_srq(self.as_ptr()) };
        if code != 0 {
            tracing::error!(
                code,
                "ibv_destroy_srq failed: its receive buffers are never used again"
            );
            for buffer in &mut self.state.get_mut().posted {
                std::mem::forget(buffer.take());
            }
        }
    }
}
