//! Asynchronous events: what a device says about its ports, queues and itself.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::cm::set_nonblocking;
use super::device::Device;
use super::error::VerbsError;
use super::sys::{self, Libs};

/// Something that happened to a device or to what was made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceEvent {
    pub(crate) what: Affair,
    /// The library's name for it.
    pub(crate) name: String,
}

/// What is concerned, and how badly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Affair {
    /// A port came up.
    PortUp(u8),
    /// A port went down: nothing goes through it until it comes up again.
    PortDown(u8),
    /// Addresses or keys of a port have changed.
    PortChanged(u8),
    /// The device does nothing any more.
    DeviceFatal,
    /// A queue pair, by its number, is in error.
    QpFatal(u32),
    /// A queue pair, by its number, is in error: its peer has reached for what is not its own.
    QpAccess(u32),
    /// A queue pair, by its number, got a packet before the connection manager's last message.
    QpEstablished(u32),
    /// A shared receive queue, by its key, has fewer buffers than its limit.
    SrqLow(usize),
    /// A shared receive queue, by its key, is broken.
    SrqFatal(usize),
    /// A completion queue overran: no completion comes through it any more.
    CqFatal,
    /// Nothing to do about it.
    Harmless,
}

impl Device {
    /// Makes [`Self::next_event`] not block.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn watch_events(&self) -> Result<(), VerbsError> {
        set_nonblocking(self.events_fd(), "ibv_get_async_event")
    }

    /// Readable when [`Self::next_event`] has something.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context, and with it the descriptor, is open until drop.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }

    /// The next event, acknowledged; `None` when there is none now. One thread takes them.
    ///
    /// # Errors
    /// When the device is gone: no later call will do better.
    pub(crate) fn next_event(&self) -> Result<Option<DeviceEvent>, VerbsError> {
        let mut event = MaybeUninit::zeroed();
        let ib = &self.libs.ib;
        // SAFETY: the context is open, `event` valid for a write.
        let code = unsafe { ib.ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) };
        if code != 0 {
            let error = std::io::Error::last_os_error();
            return match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => Ok(None),
                _ => Err(VerbsError::last("ibv_get_async_event")),
            };
        }
        // SAFETY: the call has filled it.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: not acknowledged yet: what it names still exists.
        let what = unsafe { affair(&event) };
        let name = name(self.libs, event.event_type);
        // SAFETY: taken once, acknowledged once.
        unsafe { ib.ibv_ack_async_event(&raw mut event) };
        Ok(Some(DeviceEvent { what, name }))
    }
}

/// # Safety
/// The event must not have been acknowledged.
unsafe fn affair(event: &sys::ibv_async_event) -> Affair {
    // SAFETY: any value of the union's bytes is a number.
    let port = || unsafe { event.element.port_num } as u8;
    let qp_num = || {
        // SAFETY: the event is of a queue pair, by its type.
        let qp = unsafe { event.element.qp };
        // SAFETY: `ibv_destroy_qp` waits for the acknowledgement of its events.
        unsafe { (*qp).qp_num }
    };
    // SAFETY: the event is of a receive queue, by its type; the pointer is only compared.
    let srq = || unsafe { event.element.srq }.addr();
    match event.event_type {
        sys::IBV_EVENT_PORT_ACTIVE => Affair::PortUp(port()),
        sys::IBV_EVENT_PORT_ERR => Affair::PortDown(port()),
        sys::IBV_EVENT_LID_CHANGE
        | sys::IBV_EVENT_PKEY_CHANGE
        | sys::IBV_EVENT_GID_CHANGE
        | sys::IBV_EVENT_SM_CHANGE
        | sys::IBV_EVENT_CLIENT_REREGISTER => Affair::PortChanged(port()),
        sys::IBV_EVENT_DEVICE_FATAL => Affair::DeviceFatal,
        sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_PATH_MIG_ERR => {
            Affair::QpFatal(qp_num())
        }
        sys::IBV_EVENT_QP_ACCESS_ERR => Affair::QpAccess(qp_num()),
        sys::IBV_EVENT_COMM_EST => Affair::QpEstablished(qp_num()),
        sys::IBV_EVENT_SRQ_LIMIT_REACHED => Affair::SrqLow(srq()),
        sys::IBV_EVENT_SRQ_ERR => Affair::SrqFatal(srq()),
        sys::IBV_EVENT_CQ_ERR => Affair::CqFatal,
        _ => Affair::Harmless,
    }
}

fn name(libs: &Libs, kind: sys::ibv_event_type) -> String {
    // SAFETY: any number may be asked for.
    let text = unsafe { libs.ib.ibv_event_type_str(kind) };
    if text.is_null() {
        return format!("event {kind}");
    }
    // SAFETY: a C string that is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
