//! Protection domains, and memory registered in them.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::device::Device;
use super::error::VerbsError;
use super::sys;

static DOMAINS: AtomicU32 = AtomicU32::new(0);

/// A protection domain: queue pairs reach only memory that is registered in theirs.
pub(crate) struct Pd {
    raw: NonNull<sys::ibv_pd>,
    number: u32,
    device: Arc<Device>,
}

// SAFETY: libibverbs allows a protection domain to be used from any thread at once.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// A new one.
    ///
    /// # Errors
    /// At the device's limit.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { device.libs.ib.ibv_alloc_pd(device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_alloc_pd"))?;
        // From 1 on.
        let number = DOMAINS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Ok(Arc::new(Self { raw, number, device: Arc::clone(device) }))
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    /// A number that no other living domain of this process has; registrations keep theirs alive.
    pub(crate) fn key(&self) -> usize {
        self.raw.addr().get()
    }

    /// A number that no other domain of this process ever had.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Pd {
    /// Whether the device registers memory of other devices; `None` if the library cannot ask. It
    /// is tried with no memory at all: the refusal tells.
    pub(crate) fn can_register_dmabuf(&self) -> Option<bool> {
        const NO_FD: i32 = -1;
        let register = sys::reg_dmabuf()?;
        let flags = Access::RemoteRead.flags() as i32;
        // SAFETY: the domain exists; there is no descriptor -1, so nothing is registered.
        let none = unsafe { register(self.as_ptr(), 0, 4096, 0, NO_FD, flags) };
        let refused = std::io::Error::last_os_error().raw_os_error();
        let unsupported = [rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::NOSYS];
        let lacks = unsupported.iter().any(|errno| Some(errno.raw_os_error()) == refused);
        Some(none.is_null() && !lacks)
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made of it held it.
        let code = unsafe { self.device.libs.ib.ibv_dealloc_pd(self.as_ptr()) };
        if code != 0 {
            tracing::error!(code, device = self.device.name(), "ibv_dealloc_pd failed");
        }
    }
}

/// What a registration allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// This side's own requests: targets of READs, sources of WRITEs and SENDs, receive buffers.
    Local,
    /// As [`Self::Local`], and peers may READ.
    Lent,
    /// Peers may READ.
    RemoteRead,
    /// Peers may READ and WRITE: what is lent to the one peer of a connection.
    RemoteWrite,
    /// Peers may READ, WRITE, CAS and FAA.
    RemoteAll,
}

impl Access {
    const fn flags(self) -> u32 {
        // Never IBV_ACCESS_RELAXED_ORDERING: whoever sees a state word must see what it covers.
        let local = sys::IBV_ACCESS_LOCAL_WRITE;
        match self {
            Self::Local => local,
            Self::Lent => local | sys::IBV_ACCESS_REMOTE_READ,
            Self::RemoteRead => sys::IBV_ACCESS_REMOTE_READ,
            Self::RemoteWrite => local | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE,
            Self::RemoteAll => Self::RemoteWrite.flags() | sys::IBV_ACCESS_REMOTE_ATOMIC,
        }
    }

    /// What a queue pair must allow its peer for that.
    pub(crate) const fn of_peer(self) -> PeerRights {
        PeerRights(self.flags() & !sys::IBV_ACCESS_LOCAL_WRITE)
    }
}

/// What a queue pair allows its peer, whatever the memory allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerRights(pub(super) u32);

impl PeerRights {
    /// Nothing but messages.
    pub(crate) const NONE: Self = Self(0);

    /// What either allows.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

static REGISTERED_BYTES: AtomicU64 = AtomicU64::new(0);
static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

/// Bytes that this process has registered with devices now, counted once for each domain, and
/// registrations that it has made so far.
pub(crate) fn registered() -> (u64, u64) {
    (REGISTERED_BYTES.load(Ordering::Relaxed), REGISTRATIONS.load(Ordering::Relaxed))
}

/// Registered memory. `K` is what keeps the memory mapped: it is dropped after the registration.
pub(crate) struct Mr<K> {
    raw: NonNull<sys::ibv_mr>,
    pd: Arc<Pd>,
    /// Dropped last: the device may touch the memory until `ibv_dereg_mr` returns.
    _keep: K,
}

// SAFETY: a registration is only a handle; libibverbs allows its use from any thread at once.
unsafe impl<K: Send> Send for Mr<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for Mr<K> {}

impl<K> Mr<K> {
    /// Registers `len_bytes` at `addr` of this process.
    ///
    /// # Errors
    /// Most often the limit on locked memory: the error says so.
    ///
    /// # Safety
    /// The range must stay mapped as long as `keep` lives, and with [`Access::Local`],
    /// [`Access::Lent`] or a peer's right to write nobody may hold references to it while a request
    /// is posted on it.
    pub(crate) unsafe fn new(
        pd: &Arc<Pd>,
        addr: u64,
        len_bytes: usize,
        access: Access,
        keep: K,
    ) -> Result<Self, VerbsError> {
        let at = std::ptr::with_exposed_provenance_mut(addr as usize);
        let flags = access.flags() as i32;
        // SAFETY: the caller says that the range is mapped as long as `keep` lives.
        let raw = unsafe { pd.device.libs.ib.ibv_reg_mr(pd.as_ptr(), at, len_bytes, flags) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_reg_mr"))?;
        REGISTERED_BYTES.fetch_add(len_bytes as u64, Ordering::Relaxed);
        REGISTRATIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { raw, pd: Arc::clone(pd), _keep: keep })
    }

    /// Where it begins.
    pub(crate) fn addr(&self) -> u64 {
        // SAFETY: it is registered until drop.
        unsafe { self.raw.as_ref() }.addr.addr() as u64
    }

    /// What this side's requests name it by.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: it is registered until drop.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// What peers name it by.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl<K> Drop for Mr<K> {
    fn drop(&mut self) {
        // SAFETY: it is registered until the next line.
        let len_bytes = unsafe { self.raw.as_ref() }.length;
        REGISTERED_BYTES.fetch_sub(len_bytes as u64, Ordering::Relaxed);
        // SAFETY: registered once, deregistered once.
        let code = unsafe { self.pd.device.libs.ib.ibv_dereg_mr(self.raw.as_ptr()) };
        if code != 0 {
            tracing::error!(code, device = self.pd.device.name(), "ibv_dereg_mr failed");
        }
    }
}
