//! The connection manager: event channels, ids, and the events of a connection's life.
//!
//! librdmacm moves the queue pair of an id through its states while an event is taken
//! (`rdma_get_cm_event`), without a lock. So one lock per [`Channel`] keeps taking events apart
//! from destroying ids and queue pairs. An event is copied and acknowledged at once, under that
//! lock: `rdma_destroy_id` waits for acknowledgements, and never finds one missing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::addr::{CAddr, from_storage};
use super::device::Device;
use super::error::VerbsError;
use super::farewell::{self, Leaving, can_tell};
use super::qp::{Qp, QpInit, QpOwner};
use super::sys::{self, Libs, libs};

/// Longest private data of any message of any transport.
const PRIVATE_MAX_BYTES: usize = 255;

/// Where events of any number of ids arrive. Nothing of it blocks.
pub(crate) struct Channel {
    raw: NonNull<sys::rdma_event_channel>,
    libs: &'static Libs,
    /// Taking an event and destroying an id or its queue pair exclude each other.
    turn: Mutex<()>,
}

// SAFETY: librdmacm allows a channel to be used from any thread at once.
unsafe impl Send for Channel {}
// SAFETY: as above; what it does not lock itself is locked by `turn`.
unsafe impl Sync for Channel {}

impl Channel {
    /// A new one.
    ///
    /// # Errors
    /// Without the libraries, the kernel's module, or its device node.
    pub(crate) fn new() -> Result<Arc<Self>, VerbsError> {
        let libs = libs()?;
        // SAFETY: it has no preconditions.
        let raw = unsafe { libs.cm.rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = VerbsError::last("rdma_create_event_channel");
            // Without any device that is the reason, and this its consequence.
            Device::open_all().err().unwrap_or(error)
        })?;
        let channel = Self { raw, libs, turn: Mutex::new(()) };
        set_nonblocking(channel.fd(), "rdma_create_event_channel")?;
        Ok(Arc::new(channel))
    }

    pub(super) fn cm(&self) -> &sys::Rdmacm {
        &self.libs.cm
    }

    /// Keeps events from being taken.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Readable when [`Self::next`] has something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is valid until drop.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor is open until drop.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The next event, or `None` when there is none now.
    ///
    /// # Errors
    /// When the kernel does not answer; no later call will do better.
    pub(crate) fn next(self: &Arc<Self>) -> Result<Option<Event>, VerbsError> {
        let _turn = self.turn.lock();
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is valid, and `event` valid for a write.
        let code = unsafe { self.libs.cm.rdma_get_cm_event(self.raw.as_ptr(), &raw mut event) };
        if code != 0 {
            let errno = std::io::Error::last_os_error();
            return match Errno::from_io_error(&errno) {
                Some(Errno::AGAIN | Errno::INTR) => Ok(None),
                _ => Err(VerbsError::last("rdma_get_cm_event")),
            };
        }
        let Some(at) = NonNull::new(event) else { return Ok(None) };
        // SAFETY: it was just given to us, and is acknowledged only below.
        let given = unsafe { at.as_ref() };
        // SAFETY: as above.
        let copied = unsafe { self.copy(given) };
        // SAFETY: taken once, acknowledged once; nothing of it is used afterwards.
        unsafe { self.libs.cm.rdma_ack_cm_event(event) };
        Ok(Some(copied))
    }

    /// # Safety
    /// `event` must not have been acknowledged yet.
    unsafe fn copy(self: &Arc<Self>, event: &sys::rdma_cm_event) -> Event {
        let mut private = Vec::new();
        // SAFETY: our ids are connected ones, never of datagrams: the kernel fills `conn`, and
        // the library had zeroed all.
        let conn = unsafe { event.param.conn };
        if !conn.private_data.is_null() {
            let at = conn.private_data.cast::<u8>();
            // SAFETY: the library says that so many bytes are there until the acknowledgement.
            private =
                unsafe { std::slice::from_raw_parts(at, conn.private_data_len.into()) }.into();
        }
        let of = if event.event == sys::RDMA_CM_EVENT_CONNECT_REQUEST {
            event.listen_id
        } else {
            event.id
        };
        // SAFETY: an id is valid until all its events are acknowledged.
        let token = unsafe { (*of).context }.addr() as u64;
        let happened = match event.event {
            sys::RDMA_CM_EVENT_ADDR_RESOLVED => Happened::AddressResolved,
            sys::RDMA_CM_EVENT_ADDR_ERROR => Happened::AddressError,
            sys::RDMA_CM_EVENT_ROUTE_RESOLVED => Happened::RouteResolved,
            sys::RDMA_CM_EVENT_ROUTE_ERROR => Happened::RouteError,
            sys::RDMA_CM_EVENT_CONNECT_REQUEST => match NonNull::new(event.id) {
                Some(id) => Happened::Request {
                    id: Id::adopt(self, id),
                    reads_in: conn.responder_resources,
                    reads_out: conn.initiator_depth,
                },
                None => Happened::Useless,
            },
            sys::RDMA_CM_EVENT_CONNECT_ERROR => Happened::ConnectError,
            sys::RDMA_CM_EVENT_UNREACHABLE => Happened::Unreachable,
            sys::RDMA_CM_EVENT_REJECTED => Happened::Rejected,
            sys::RDMA_CM_EVENT_ESTABLISHED => Happened::Established,
            sys::RDMA_CM_EVENT_DISCONNECTED => Happened::Disconnected,
            sys::RDMA_CM_EVENT_DEVICE_REMOVAL => Happened::DeviceRemoved,
            sys::RDMA_CM_EVENT_ADDR_CHANGE => Happened::AddressChanged,
            sys::RDMA_CM_EVENT_TIMEWAIT_EXIT => Happened::TimeWaitOver,
            _ => Happened::Useless,
        };
        Event { token, happened, status: event.status, private }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its ids held it, so none is left.
        unsafe { self.libs.cm.rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// Makes a descriptor of a library non-blocking.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>, verb: &'static str) -> Result<(), VerbsError> {
    let failed = |errno: Errno| VerbsError::code(verb, errno.raw_os_error());
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

/// Something that happened to an id.
#[derive(Debug)]
pub(crate) struct Event {
    /// [`Id::token`] of the id; for a request that of the listening one.
    pub(crate) token: u64,
    pub(crate) happened: Happened,
    /// 0, a negative errno, or for a rejection the transport's reason.
    pub(crate) status: i32,
    /// What the peer sent along; InfiniBand pads it with zeros.
    pub(crate) private: Vec<u8>,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Happened {
    AddressResolved,
    AddressError,
    RouteResolved,
    RouteError,
    /// A peer wants to connect; dropping its id without an answer rejects it.
    Request {
        id: Id,
        /// READs and atomics that the peer will have outstanding towards us.
        reads_in: u8,
        /// What the peer takes at once from us.
        reads_out: u8,
    },
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoved,
    AddressChanged,
    TimeWaitOver,
    Useless,
}

/// How a connection is to be; what both sides state at set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Params<'a> {
    /// At most 56 bytes with a request over InfiniBand and RoCE, 196 with an answer.
    pub(crate) private: &'a [u8],
    /// READs and atomics of the peer that this side serves at once.
    pub(crate) responder_resources: u8,
    /// READs and atomics of this side that the peer is to serve at once.
    pub(crate) initiator_depth: u8,
    /// Retries without an acknowledgement, 0 to 7.
    pub(crate) retry_count: u8,
}

impl Params<'_> {
    fn to_c(self) -> sys::rdma_conn_param {
        debug_assert!(self.private.len() <= PRIVATE_MAX_BYTES);
        sys::rdma_conn_param {
            private_data: self.private.as_ptr().cast(),
            private_data_len: self.private.len().min(PRIVATE_MAX_BYTES) as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count.min(7),
            // For ever: receive buffers come back, and the peer's death is noticed otherwise.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// One end of a connection, or a place to listen at.
pub(crate) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<Channel>,
    token: u64,
    /// The peer has heard, or may have, of a connection: it is to hear of its end.
    is_known: AtomicBool,
}

// SAFETY: librdmacm allows an id to be used from any thread; `turn` keeps the rest apart.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection id {}", self.token)
    }
}

fn next_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Id {
    /// A new id whose events arrive on `channel`.
    ///
    /// # Errors
    /// When the kernel has no more.
    pub(crate) fn new(channel: &Arc<Channel>) -> Result<Self, VerbsError> {
        farewell::release_some();
        let token = next_token();
        let context = std::ptr::without_provenance_mut(token as usize);
        let mut raw = std::ptr::null_mut();
        let cm = &channel.libs.cm;
        let at = channel.raw.as_ptr();
        // SAFETY: the channel is valid, and `raw` valid for a write.
        let code = unsafe { cm.rdma_create_id(at, &raw mut raw, context, sys::RDMA_PS_TCP) };
        check("rdma_create_id", code)?;
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("rdma_create_id"))?;
        let is_known = AtomicBool::new(false);
        Ok(Self { raw, channel: Arc::clone(channel), token, is_known })
    }

    /// Takes over the id that a request brought.
    fn adopt(channel: &Arc<Channel>, raw: NonNull<sys::rdma_cm_id>) -> Self {
        let token = next_token();
        let is_known = AtomicBool::new(true);
        let id = Self { raw, channel: Arc::clone(channel), token, is_known };
        let context = std::ptr::without_provenance_mut(token as usize);
        // SAFETY: nobody else knows this id yet; `context` is for its user to set.
        unsafe { (*raw.as_ptr()).context = context };
        id
    }

    /// A number that no other id of this process ever has.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(super) fn cm(&self) -> &sys::Rdmacm {
        self.channel.cm()
    }

    /// Gives it a local address, and with it a device unless the address is the unspecified one.
    ///
    /// # Errors
    /// When no device has the address, or the port is taken.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), VerbsError> {
        let mut addr = CAddr::new(addr);
        // SAFETY: id and address are valid.
        let code = unsafe { self.cm().rdma_bind_addr(self.as_ptr(), addr.as_mut_ptr()) };
        check("rdma_bind_addr", code)
    }

    /// Requests arrive from now on; up to `backlog` wait in the kernel.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        // SAFETY: the id is valid.
        check("rdma_listen", unsafe { self.cm().rdma_listen(self.as_ptr(), backlog) })
    }

    /// Finds the device and the way to `to`; ends in an event.
    ///
    /// # Errors
    /// When no device reaches it.
    pub(crate) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout_ms: i32,
    ) -> Result<(), VerbsError> {
        let mut from = from.map(CAddr::new);
        let from = from.as_mut().map_or(std::ptr::null_mut(), CAddr::as_mut_ptr);
        let mut to = CAddr::new(to);
        let to = to.as_mut_ptr();
        // SAFETY: id and addresses are valid, or null where that is allowed.
        let code = unsafe { self.cm().rdma_resolve_addr(self.as_ptr(), from, to, timeout_ms) };
        check("rdma_resolve_addr", code)
    }

    /// The next step; ends in an event.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn resolve_route(&self, timeout_ms: i32) -> Result<(), VerbsError> {
        // SAFETY: the id is valid.
        let code = unsafe { self.cm().rdma_resolve_route(self.as_ptr(), timeout_ms) };
        check("rdma_resolve_route", code)
    }

    /// The time after which a packet is sent again: `4.096 us * 2^exponent`. Kernels before 5.2
    /// and some transports do not know it; the connection then keeps their default.
    pub(crate) fn set_ack_timeout(&self, exponent: u8) {
        let mut value = exponent.min(31);
        let (level, name) = (sys::RDMA_OPTION_ID, sys::RDMA_OPTION_ID_ACK_TIMEOUT);
        let at = (&raw mut value).cast();
        let (level, name) = (level as i32, name as i32);
        // SAFETY: the id is valid, and the option's value one byte.
        let code = unsafe { self.cm().rdma_set_option(self.as_ptr(), level, name, at, 1) };
        if let Err(error) = check("rdma_set_option", code) {
            tracing::debug!(%error, "the acknowledgement timeout stays at its default");
        }
    }

    /// Asks the peer for a connection; ends in an event. The id must have a queue pair.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn connect(&self, params: Params<'_>) -> Result<(), VerbsError> {
        let mut c = params.to_c();
        self.is_known.store(true, Ordering::Release);
        // SAFETY: id and parameters are valid; the private data is copied by the call.
        check("rdma_connect", unsafe { self.cm().rdma_connect(self.as_ptr(), &raw mut c) })
    }

    /// Says yes to a request. The id must have a queue pair.
    ///
    /// # Errors
    /// When the peer has given up meanwhile, or the queue pair cannot be made ready.
    pub(crate) fn accept(&self, params: Params<'_>) -> Result<(), VerbsError> {
        let mut c = params.to_c();
        // SAFETY: as for `connect`.
        check("rdma_accept", unsafe { self.cm().rdma_accept(self.as_ptr(), &raw mut c) })
    }

    /// Says no to a request, with at most 148 bytes for the peer.
    ///
    /// # Errors
    /// When the peer has given up meanwhile.
    pub(crate) fn reject(&self, private: &[u8]) -> Result<(), VerbsError> {
        let len = private.len().min(PRIVATE_MAX_BYTES) as u8;
        let at = private.as_ptr().cast();
        // SAFETY: the id is valid; the private data is copied by the call.
        check("rdma_reject", unsafe { self.cm().rdma_reject(self.as_ptr(), at, len) })
    }

    /// Ends the connection: the queue pair goes to error, and the peer is told, if it can be.
    ///
    /// # Errors
    /// When there is no connection (any more).
    pub(crate) fn disconnect(&self) -> Result<(), VerbsError> {
        // SAFETY: the id is valid.
        if !unsafe { can_tell(self.raw) } {
            return Ok(());
        }
        // SAFETY: the id is valid.
        check("rdma_disconnect", unsafe { self.cm().rdma_disconnect(self.as_ptr()) })
    }

    /// Makes its queue pair, which is to be its only one, in the state INIT.
    ///
    /// # Errors
    /// At a limit of the device, or when it has one already.
    pub(crate) fn make_qp(id: &Arc<Self>, mut init: QpInit) -> Result<Qp, VerbsError> {
        let (pd, attr) = (init.pd().as_ptr(), init.as_mut_ptr());
        // SAFETY: the id is valid; `init` keeps what it points to.
        check("rdma_create_qp", unsafe { id.cm().rdma_create_qp(id.as_ptr(), pd, attr) })?;
        let owner = Box::new(Owner(Arc::clone(id)));
        // SAFETY: the id is valid.
        let raw = unsafe { id.raw.as_ref() }.qp;
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("rdma_create_qp"))?;
        // SAFETY: it was made with `init`; only its owner destroys it; librdmacm changes its
        // state and does nothing else with it.
        Ok(unsafe { Qp::new(raw, init, owner) })
    }

    /// Port of its device; 0 while it has none.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: the id is valid.
        unsafe { self.raw.as_ref() }.port_num
    }

    /// This side's address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is valid.
        let id = unsafe { self.raw.as_ref() };
        // SAFETY: the library keeps the whole storage initialised.
        from_storage(unsafe { &id.route.addr.__bindgen_anon_1.src_storage })
    }

    /// The peer's address.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is valid.
        let id = unsafe { self.raw.as_ref() };
        // SAFETY: the library keeps the whole storage initialised.
        from_storage(unsafe { &id.route.addr.__bindgen_anon_2.dst_storage })
    }

    /// Its device, one value per device and process; `None` while it has none.
    ///
    /// # Errors
    /// When the device is just going away.
    pub(crate) fn device(&self) -> Result<Option<Arc<Device>>, VerbsError> {
        // SAFETY: the id is valid.
        let verbs = unsafe { self.raw.as_ref() }.verbs;
        NonNull::new(verbs).map(|context| self.device_of(context)).transpose()
    }

    fn device_of(&self, context: NonNull<sys::ibv_context>) -> Result<Arc<Device>, VerbsError> {
        static KNOWN: Mutex<Option<HashMap<usize, Weak<Device>>>> = Mutex::new(None);
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_with(HashMap::new);
        let key = context.addr().get();
        if let Some(device) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(device);
        }
        // An id bound to the device keeps the library from closing its context, also when the
        // device is removed.
        let anchor = Self::new(&self.channel)?;
        let mut addr = self
            .local_addr()
            .ok_or_else(|| VerbsError::Connect(format!("{self:?} has a device and no address")))?;
        addr.set_port(0);
        anchor.bind(addr)?;
        // SAFETY: the id is valid.
        if unsafe { anchor.raw.as_ref() }.verbs != context.as_ptr() {
            let text = format!("the device of {addr} has changed meanwhile; try again");
            return Err(VerbsError::Connect(text));
        }
        // SAFETY: the anchor, kept in the device, keeps its context open.
        let device = Arc::new(unsafe { Device::of_cm(self.channel.libs, context, anchor) });
        known.retain(|_, device| device.strong_count() > 0);
        known.insert(key, Arc::downgrade(&device));
        Ok(device)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: what uses the id, such as its queue pair, holds it: nobody does any more.
        let leaving = unsafe { Leaving::new(self.raw, Arc::clone(&self.channel)) };
        if *self.is_known.get_mut() {
            leaving.leave();
        }
    }
}

/// Destroys an id's queue pair, and then lets go of the id.
struct Owner(Arc<Id>);

impl QpOwner for Owner {
    fn disconnect(&self) {
        // There may be no connection (any more).
        if let Err(error) = self.0.disconnect() {
            tracing::debug!(%error, "nobody to say goodbye to");
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _turn = self.0.channel.turn.lock();
        // SAFETY: it has one, made by `make_qp`, whose users are gone when its owner is dropped.
        unsafe { self.0.cm().rdma_destroy_qp(self.0.as_ptr()) };
    }
}

/// A return code of librdmacm, whose reason is in `errno`.
pub(super) fn check(verb: &'static str, code: i32) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::last(verb)) }
}
