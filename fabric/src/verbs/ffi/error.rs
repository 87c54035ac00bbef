//! What can go wrong with verbs: the call, the system's reason, and what it is likely to mean.

use std::io;

use rustix::io::Errno;

/// A verbs or connection manager call failed, or there is nothing to call it on.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// A library could not be opened.
    #[error(
        "no RDMA library: {library}: {reason}; install libibverbs1, librdmacm1 and \
         ibverbs-providers (Debian, Ubuntu) or rdma-core (others)"
    )]
    Library {
        /// Its file name.
        library: String,
        /// The loader's words.
        reason: String,
    },
    /// The kernel has no RDMA subsystem, or its modules are not loaded.
    #[error(
        "no RDMA in this kernel ({0}): load ib_uverbs and rdma_ucm (`modprobe -a ib_uverbs \
         rdma_ucm`); Debian's cloud kernel has no RDMA at all, the generic one has"
    )]
    Kernel(io::Error),
    /// There is no device.
    #[error(
        "no RDMA device: `rdma link` shows what there is; in a container pass /dev/infiniband in; \
         without a card, soft-RoCE makes one of a network interface (`rdma link add rxe0 type rxe \
         netdev eth0`)"
    )]
    NoDevice,
    /// The device that was asked for is not there.
    #[error("no RDMA device `{wanted}`; there are: {there}")]
    NoSuchDevice {
        /// What was asked for.
        wanted: String,
        /// What there is.
        there: String,
    },
    /// A device is there and cannot be opened.
    #[error(
        "the RDMA device {device} cannot be opened: {source}; in a container, \
         /dev/infiniband/uverbs* and rdma_cm must be passed in and readable"
    )]
    Open {
        /// Its name.
        device: String,
        /// The system's reason.
        source: io::Error,
    },
    /// No port or address that could be used.
    #[error("{0}")]
    Choice(String),
    /// A call failed.
    #[error("{verb} failed: {source}{}{hint}", if hint.is_empty() { "" } else { "; " })]
    Call {
        /// Which.
        verb: &'static str,
        /// The system's reason.
        source: io::Error,
        /// The likely cause and what to do, or nothing.
        hint: String,
    },
    /// The peer refused, cannot be reached, or does not answer.
    #[error("cannot connect: {0}")]
    Connect(String),
}

impl VerbsError {
    /// A call that left its reason in `errno`.
    pub(crate) fn last(verb: &'static str) -> Self {
        Self::of(verb, io::Error::last_os_error())
    }

    /// A call that returned its reason.
    pub(crate) fn code(verb: &'static str, errno: i32) -> Self {
        Self::of(verb, io::Error::from_raw_os_error(errno.abs()))
    }

    fn of(verb: &'static str, source: io::Error) -> Self {
        let hint =
            source.raw_os_error().map_or("", |raw| hint(verb, Errno::from_raw_os_error(raw)));
        Self::Call { verb, source, hint: hint.to_owned() }
    }
}

impl From<VerbsError> for io::Error {
    fn from(error: VerbsError) -> Self {
        Self::other(error)
    }
}

/// The likely cause of a failed call.
fn hint(verb: &'static str, errno: Errno) -> &'static str {
    match (verb, errno) {
        ("ibv_reg_mr", Errno::NOMEM | Errno::AGAIN | Errno::PERM) => {
            "the limit on locked memory (ulimit -l, LimitMEMLOCK= of a service) is below what is \
             to be registered, or the device's limit is reached"
        }
        ("ibv_create_cq" | "ibv_create_srq" | "rdma_create_qp", Errno::NOMEM) => {
            "the device's limit (`rdma resource`) or the limit on locked memory (ulimit -l) is \
             reached"
        }
        ("ibv_create_cq" | "ibv_create_srq" | "rdma_create_qp", Errno::INVAL) => {
            "a depth is beyond what the device has: `onesided doctor` shows its limits"
        }
        ("rdma_create_event_channel", Errno::NODEV | Errno::NOENT | Errno::NOSYS) => {
            "the module rdma_ucm is not loaded, or /dev/infiniband/rdma_cm was not passed into \
             this container"
        }
        ("rdma_bind_addr" | "rdma_resolve_addr", Errno::NODEV | Errno::ADDRNOTAVAIL) => {
            "no RDMA device has this address: `rdma link` and `ip address` must show a device on \
             the interface that has it"
        }
        ("rdma_bind_addr", Errno::ADDRINUSE) => "another listener has this port",
        ("rdma_resolve_addr", Errno::NETUNREACH | Errno::HOSTUNREACH) => {
            "no route to that address from an interface with an RDMA device"
        }
        _ => "",
    }
}

/// Why a work request failed, by its status, and what that usually means.
pub(crate) fn status_cause(status: u32) -> &'static str {
    use super::sys as s;
    match status {
        s::IBV_WC_SUCCESS => "it succeeded",
        s::IBV_WC_LOC_LEN_ERR => "a message is longer than the receive buffer posted for it",
        s::IBV_WC_LOC_QP_OP_ERR => "the queue pair cannot do this operation",
        s::IBV_WC_LOC_PROT_ERR => "the local buffer is not registered for it",
        s::IBV_WC_WR_FLUSH_ERR => {
            "the device has put the queue pair into error by itself: the peer did what it must \
             not, or the device has a fault"
        }
        s::IBV_WC_REM_INV_REQ_ERR => {
            "the peer's device takes no such request: it is too long, or this side does not have \
             the right"
        }
        s::IBV_WC_REM_ACCESS_ERR => {
            "the peer's memory may not be accessed there: rkey or address are not valid (any \
             more), or the right is missing"
        }
        s::IBV_WC_REM_OP_ERR => "the peer could not complete it",
        s::IBV_WC_RETRY_EXC_ERR => {
            "no acknowledgement after all retries: the peer has died, the link is down, or the \
             path's MTU differs"
        }
        s::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive buffer for too long",
        s::IBV_WC_REM_ABORT_ERR => "the peer aborted it",
        s::IBV_WC_FATAL_ERR => "the device had a fatal error: see the kernel's log",
        s::IBV_WC_RESP_TIMEOUT_ERR => "the peer did not answer in time",
        _ => "a device error: see the vendor's documentation",
    }
}
