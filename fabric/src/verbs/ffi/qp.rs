//! Queue pairs: what they are made with, and their end.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use super::cq::Cq;
use super::device::check;
use super::error::VerbsError;
use super::pd::{Pd, PeerRights};
use super::srq::Srq;
use super::sys;

/// What to make a queue pair with, for `rdma_create_qp`. It keeps what its pointers lead to.
pub(crate) struct QpInit {
    raw: sys::ibv_qp_init_attr,
    pd: Arc<Pd>,
    /// What the pointers lead to.
    _keep: (Arc<Cq>, Arc<Srq>),
}

// SAFETY: the pointers lead to what the fields keep, from any thread.
unsafe impl Send for QpInit {}
// SAFETY: as above; `&QpInit` gives no access to them.
unsafe impl Sync for QpInit {}

impl QpInit {
    /// An RC queue pair whose completions go to `cq` and whose messages come from `srq`.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        srq: &Arc<Srq>,
        send_depth: u32,
        inline_bytes: u32,
    ) -> Self {
        let cap = sys::ibv_qp_cap {
            max_send_wr: send_depth,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: inline_bytes,
        };
        let raw = sys::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: srq.as_ptr(),
            cap,
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        Self { raw, pd: Arc::clone(pd), _keep: (Arc::clone(cq), Arc::clone(srq)) }
    }

    /// The protection domain to make it in.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// For the call that makes it, which stores there what the device really gave.
    pub(super) fn as_mut_ptr(&mut self) -> *mut sys::ibv_qp_init_attr {
        &raw mut self.raw
    }
}

/// Who made a queue pair: its connection. Dropping it destroys the queue pair (and then the
/// connection manager's id), and returns only when the device does not touch its buffers any more.
pub(crate) trait QpOwner: Send + Sync {
    /// Tells the peer that the connection ends. It must neither block on the network nor call
    /// back into the endpoint. Called at most once, and not when the peer ended it.
    fn disconnect(&self);
}

/// A queue pair.
pub(crate) struct Qp {
    raw: NonNull<sys::ibv_qp>,
    /// Destroys it.
    owner: Box<dyn QpOwner>,
    /// Dropped after it is destroyed.
    init: QpInit,
}

// SAFETY: libibverbs allows a queue pair to be used from any thread at once.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// Takes over what `owner` has made with `init`.
    ///
    /// # Safety
    /// `raw` must be valid until `owner` is dropped, have been made with `init`, and be used by
    /// nobody else but to change its state.
    pub(super) unsafe fn new(
        raw: NonNull<sys::ibv_qp>,
        init: QpInit,
        owner: Box<dyn QpOwner>,
    ) -> Self {
        Self { raw, owner, init }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Its number on the device.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: valid until the owner is dropped.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Longest message that may be posted inline.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.init.raw.cap.max_inline_data as usize
    }

    pub(crate) fn owner(&self) -> &dyn QpOwner {
        &*self.owner
    }

    /// After this nothing is sent or received any more, and what is posted is flushed.
    ///
    /// # Errors
    /// When the device is gone.
    pub(crate) fn to_error(&self) -> Result<(), VerbsError> {
        self.modify(sys::IBV_QP_STATE, |attr| attr.qp_state = sys::IBV_QPS_ERR)
    }

    /// Replaces what the connection manager chose: how long a peer waits before it sends again what
    /// met no receive buffer, as the code of the specification (1 is 10 us, 12 is 640 us, 0 is
    /// 655 ms and the connection manager's choice), and what the peer may do.
    ///
    /// # Errors
    /// When the device refuses.
    pub(crate) fn set_up(&self, rnr_timer: u8, peer: PeerRights) -> Result<(), VerbsError> {
        self.modify(sys::IBV_QP_MIN_RNR_TIMER | sys::IBV_QP_ACCESS_FLAGS, |attr| {
            attr.min_rnr_timer = rnr_timer;
            attr.qp_access_flags = peer.0;
        })
    }

    /// What the peer may do from now on.
    ///
    /// # Errors
    /// When the device refuses.
    pub(crate) fn allow(&self, peer: PeerRights) -> Result<(), VerbsError> {
        self.modify(sys::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = peer.0)
    }

    /// Its path MTU, as devices number them.
    ///
    /// # Errors
    /// When the device does not say.
    pub(crate) fn path_mtu(&self) -> Result<u32, VerbsError> {
        // SAFETY: both are plain data, for which zero is a value.
        let mut attr: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: as above.
        let mut init: sys::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let (ib, mask) = (&self.init.pd.device().libs.ib, sys::IBV_QP_PATH_MTU as i32);
        // SAFETY: the queue pair is valid until the owner is dropped, and both are written to.
        let code = unsafe { ib.ibv_query_qp(self.as_ptr(), &raw mut attr, mask, &raw mut init) };
        check("ibv_query_qp", code)?;
        Ok(attr.path_mtu)
    }

    fn modify(&self, mask: u32, set: impl FnOnce(&mut sys::ibv_qp_attr)) -> Result<(), VerbsError> {
        // SAFETY: it is plain data, for which zero is a value.
        let mut attr: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        set(&mut attr);
        let ib = &self.init.pd.device().libs.ib;
        // SAFETY: the queue pair is valid until the owner is dropped.
        let code = unsafe { ib.ibv_modify_qp(self.as_ptr(), &raw mut attr, mask as i32) };
        check("ibv_modify_qp", code)
    }
}
