//! Devices, what they can do, their ports and their addresses.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use super::cm::Id;
use super::error::VerbsError;
use super::sys::{self, Libs, libs};

/// An open device. It is kept open by everything that was made of it.
pub(crate) struct Device {
    context: NonNull<sys::ibv_context>,
    name: String,
    /// The connection manager opened it, and keeps it open as long as this id is bound to it.
    anchor: Option<Id>,
    pub(super) libs: &'static Libs,
}

// SAFETY: libibverbs allows a context to be used from any thread at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RDMA device {}", self.name)
    }
}

/// What kind of GID: how packets with it travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE v1: Ethernet, not routable.
    RoceV1,
    /// RoCE v2: UDP, routable.
    RoceV2,
}

/// One address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Port.
    pub port: u8,
    /// Number in the port's table.
    pub index: u32,
    /// The address; an IPv4 address is mapped into IPv6.
    pub bytes: [u8; 16],
    /// How it travels.
    pub kind: GidKind,
}

impl Gid {
    /// As an IPv6 address; IPv4 ones are `::ffff:a.b.c.d`.
    #[must_use]
    pub fn ip(&self) -> std::net::Ipv6Addr {
        std::net::Ipv6Addr::from(self.bytes)
    }
}

impl Device {
    /// Opens all devices that can be opened; names and reasons of those that cannot.
    ///
    /// # Errors
    /// When the library or the kernel's support is missing, or there is no device.
    pub(crate) fn open_all() -> Result<(Vec<Arc<Self>>, Vec<VerbsError>), VerbsError> {
        let libs = libs()?;
        let mut count = 0;
        // SAFETY: `count` is valid for a write.
        let list = unsafe { libs.ib.ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(VerbsError::Kernel(io::Error::last_os_error()));
        }
        let (mut opened, mut failed) = (Vec::new(), Vec::new());
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let entry = unsafe { list.add(i) };
            // SAFETY: as above.
            let device = unsafe { entry.read() };
            match Self::open(libs, device) {
                Ok(device) => opened.push(Arc::new(device)),
                Err(error) => failed.push(error),
            }
        }
        // SAFETY: it came from ibv_get_device_list and is not used any more.
        unsafe { libs.ib.ibv_free_device_list(list) };
        if opened.is_empty() && failed.is_empty() {
            return Err(VerbsError::NoDevice);
        }
        Ok((opened, failed))
    }

    fn open(libs: &'static Libs, device: *mut sys::ibv_device) -> Result<Self, VerbsError> {
        let name = device_name(libs, device);
        // SAFETY: the device is of a list that was not freed yet.
        let context = unsafe { libs.ib.ibv_open_device(device) };
        match NonNull::new(context) {
            Some(context) => Ok(Self { context, name, anchor: None, libs }),
            None => Err(VerbsError::Open { device: name, source: io::Error::last_os_error() }),
        }
    }

    /// The device of a connection manager's id.
    ///
    /// # Safety
    /// `context` must be one that the connection manager opened, and `anchor` bound to it.
    pub(super) unsafe fn of_cm(
        libs: &'static Libs,
        context: NonNull<sys::ibv_context>,
        anchor: Id,
    ) -> Self {
        // SAFETY: an open context names its device.
        let name = device_name(libs, unsafe { context.as_ref() }.device);
        Self { context, name, anchor: Some(anchor), libs }
    }

    /// Token of the connection manager's id whose events are about the device itself.
    pub(crate) fn anchor_token(&self) -> Option<u64> {
        self.anchor.as_ref().map(Id::token)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether its queue pairs travel over TCP.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: the context is open.
        let device = unsafe { self.context.as_ref() }.device;
        // SAFETY: an open context keeps its device.
        unsafe { (*device).transport_type == sys::IBV_TRANSPORT_IWARP }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }

    /// The descriptor on which asynchronous events arrive.
    pub(super) fn async_fd(&self) -> i32 {
        // SAFETY: the context is open.
        unsafe { self.context.as_ref() }.async_fd
    }

    /// Its limits.
    ///
    /// # Errors
    /// When the device does not answer.
    pub(crate) fn attr(&self) -> Result<sys::ibv_device_attr, VerbsError> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: the context is open, `attr` valid for a write.
        let code = unsafe { self.libs.ib.ibv_query_device(self.as_ptr(), attr.as_mut_ptr()) };
        check("ibv_query_device", code)?;
        // SAFETY: zero is a value of it, and the call succeeded.
        Ok(unsafe { attr.assume_init() })
    }

    /// What newer interfaces say of it; `None` where the provider has none.
    pub(crate) fn attr_ex(&self) -> Option<sys::ibv_device_attr_ex> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: the context is open, `attr` valid for a write.
        let code = unsafe { sys::query_device_ex(self.as_ptr(), attr.as_mut_ptr()) };
        // SAFETY: zero is a value of it, and the call succeeded.
        (code == 0).then(|| unsafe { attr.assume_init() })
    }

    /// State of a port; they are numbered from 1.
    ///
    /// # Errors
    /// When there is no such port, or the device is gone.
    pub(crate) fn port(&self, port: u8) -> Result<sys::ibv_port_attr, VerbsError> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: the context is open, `attr` valid for a write.
        let code = unsafe { sys::query_port(self.as_ptr(), port, attr.as_mut_ptr()) };
        check("ibv_query_port", code)?;
        // SAFETY: zero is a value of it, and the call succeeded.
        Ok(unsafe { attr.assume_init() })
    }

    /// All addresses of all ports; empty in a network namespace that has no interface of it.
    ///
    /// # Errors
    /// When the device does not answer.
    pub(crate) fn gids(&self) -> Result<Vec<Gid>, VerbsError> {
        const ROOM: usize = 1024;
        // SAFETY: it is plain data, for which zero is a value.
        let zero: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
        let mut table = vec![zero; ROOM];
        let size = size_of::<sys::ibv_gid_entry>();
        // SAFETY: the table has room for `ROOM` entries of this size.
        let count = unsafe {
            self.libs.ib._ibv_query_gid_table(self.as_ptr(), table.as_mut_ptr(), ROOM, 0, size)
        };
        if count < 0 {
            return Err(VerbsError::code("ibv_query_gid_table", count as i32));
        }
        let known = table.iter().take(count as usize).filter_map(gid);
        Ok(known.collect())
    }
}

fn gid(entry: &sys::ibv_gid_entry) -> Option<Gid> {
    let kind = match entry.gid_type {
        sys::IBV_GID_TYPE_IB => GidKind::Ib,
        sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => return None,
    };
    // SAFETY: both members are 16 plain bytes.
    let bytes = unsafe { entry.gid.raw };
    Some(Gid { port: entry.port_num as u8, index: entry.gid_index, bytes, kind })
}

/// A return code that is the reason.
pub(super) fn check(verb: &'static str, code: i32) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::code(verb, code)) }
}

fn device_name(libs: &Libs, device: *mut sys::ibv_device) -> String {
    // SAFETY: the caller's device is of a list that was not freed, or of an open context.
    let name = unsafe { libs.ib.ibv_get_device_name(device) };
    if name.is_null() {
        return "?".to_owned();
    }
    // SAFETY: a C string that lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.anchor.is_none() {
            // SAFETY: everything made of it held it, so nothing is left that uses it.
            unsafe { self.libs.ib.ibv_close_device(self.as_ptr()) };
        }
    }
}
