//! libibverbs and librdmacm, opened at run time, and what their headers define inline.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
#[rustfmt::skip]
mod bindings;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    dead_code,
    unreachable_pub,
    unused_imports,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
#[rustfmt::skip]
mod cm_bindings;
#[cfg(all(test, feature = "bindings-check"))]
mod check;

use core::ffi::c_int;
use std::sync::OnceLock;

pub(crate) use bindings::*;
pub(crate) use cm_bindings::Rdmacm;

use super::error::VerbsError;

/// The C library's size of it: 40 bytes on x86-64, 48 on ARM64. Only places after it matter.
#[cfg(target_arch = "x86_64")]
#[allow(non_camel_case_types)]
type pthread_mutex_t = [u64; 5];
#[cfg(not(target_arch = "x86_64"))]
#[allow(non_camel_case_types)]
type pthread_mutex_t = [u64; 6];
#[allow(non_camel_case_types)]
type pthread_cond_t = [u64; 6];

/// `abi_compat` of a context that is embedded in a [`verbs_context`]: all ones, as wide as a
/// pointer.
const ABI_IS_EXTENDED: usize = usize::MAX;

/// Both libraries, with every function that is used.
pub(crate) struct Libs {
    pub(crate) ib: Ibverbs,
    pub(crate) cm: Rdmacm,
}

/// The libraries of this process, opened at the first call.
///
/// # Errors
/// [`VerbsError::Library`] when one is missing or too old; the answer never changes afterwards.
pub(crate) fn libs() -> Result<&'static Libs, VerbsError> {
    static LIBS: OnceLock<Result<Libs, (String, String)>> = OnceLock::new();
    let opened = LIBS.get_or_init(open);
    opened.as_ref().map_err(|(library, reason)| VerbsError::Library {
        library: library.clone(),
        reason: reason.clone(),
    })
}

fn open() -> Result<Libs, (String, String)> {
    let failed = |name: &str, error: &dyn ToString| (name.to_owned(), error.to_string());
    let (ib_name, cm_name) = ("libibverbs.so.1", "librdmacm.so.1");
    // SAFETY: the library's initialisers have no preconditions; its functions are declared as the
    // headers of the same major version declare them.
    let ib = unsafe { Ibverbs::new(ib_name) }.map_err(|error| failed(ib_name, &error))?;
    // SAFETY: as above.
    let cm = unsafe { Rdmacm::new(cm_name) }.map_err(|error| failed(cm_name, &error))?;
    if let Some(missing) = missing_ib(&ib) {
        return Err(failed(ib_name, &format!("it has no function {missing}: it is too old")));
    }
    if let Some(missing) = missing_cm(&cm) {
        return Err(failed(cm_name, &format!("it has no function {missing}: it is too old")));
    }
    Ok(Libs { ib, cm })
}

/// The first function of a list that a library lacks.
macro_rules! first_missing {
    ($lib:expr, $($name:ident)*) => {
        [$((stringify!($name), $lib.$name.is_ok())),*]
            .into_iter()
            .find(|(_, there)| !there)
            .map(|(name, _)| name)
    };
}

fn missing_ib(ib: &Ibverbs) -> Option<&'static str> {
    first_missing!(ib,
        ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid
        ibv_open_device ibv_close_device ibv_query_device ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr
        ibv_dereg_mr ibv_create_comp_channel ibv_destroy_comp_channel ibv_create_cq ibv_destroy_cq
        ibv_get_cq_event ibv_ack_cq_events ibv_create_srq ibv_modify_srq ibv_query_srq
        ibv_destroy_srq ibv_query_qp ibv_modify_qp ibv_get_async_event ibv_ack_async_event
        ibv_fork_init ibv_wc_status_str ibv_event_type_str _ibv_query_gid_table)
}

fn missing_cm(cm: &Rdmacm) -> Option<&'static str> {
    first_missing!(cm,
        rdma_create_event_channel rdma_destroy_event_channel rdma_create_id rdma_destroy_id
        rdma_bind_addr rdma_resolve_addr rdma_resolve_route rdma_create_qp rdma_destroy_qp
        rdma_connect rdma_listen rdma_accept rdma_reject rdma_disconnect rdma_get_cm_event
        rdma_ack_cm_event rdma_event_str rdma_set_option rdma_migrate_id rdma_get_src_port)
}

/// # Safety
/// As `ibv_reg_mr`: the domain must exist, and the memory stay as long as the registration.
type RegDmabuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// `ibv_reg_dmabuf_mr`, which libraries before version 34 do not have.
pub(crate) fn reg_dmabuf() -> Option<RegDmabuf> {
    static FOUND: OnceLock<Option<(libloading::Library, RegDmabuf)>> = OnceLock::new();
    let find = || {
        // SAFETY: it is open already: its initialisers have run.
        let library = unsafe { libloading::Library::new("libibverbs.so.1") }.ok()?;
        // SAFETY: the header declares it so.
        let function = *unsafe { library.get::<RegDmabuf>(b"ibv_reg_dmabuf_mr\0") }.ok()?;
        Some((library, function))
    };
    FOUND.get_or_init(find).as_ref().map(|(_open, function)| *function)
}

/// The extended context around a context, if it has one.
///
/// # Safety
/// `context` must be an open context.
pub(crate) unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller says that it is valid.
    let compat = unsafe { (*context).abi_compat };
    let offset = core::mem::offset_of!(verbs_context, context);
    (compat.addr() == ABI_IS_EXTENDED).then(|| context.wrapping_byte_sub(offset).cast())
}

/// `ibv_query_port` with the length of this build's structure.
///
/// # Safety
/// `context` must be an open context, `attr` valid for writes.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the caller says.
    let Some(extended) = (unsafe { extended(context) }) else { return libc_enosys() };
    // SAFETY: it is embedded in this structure.
    match unsafe { (*extended).query_port } {
        // SAFETY: as the caller says.
        Some(query) => unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) },
        None => libc_enosys(),
    }
}

/// `ibv_query_device_ex`, where the provider has it.
///
/// # Safety
/// `context` must be an open context, `attr` valid for writes.
pub(crate) unsafe fn query_device_ex(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: as the caller says.
    let Some(extended) = (unsafe { extended(context) }) else { return libc_enosys() };
    let none = core::ptr::null();
    // SAFETY: it is embedded in this structure.
    match unsafe { (*extended).query_device_ex } {
        // SAFETY: as the caller says.
        Some(query) => unsafe { query(context, none, attr, size_of::<ibv_device_attr_ex>()) },
        None => libc_enosys(),
    }
}

fn libc_enosys() -> c_int {
    rustix::io::Errno::NOSYS.raw_os_error()
}

/// The data path's operations of a context.
///
/// # Safety
/// `context` must be an open context; the reference is used before it is closed.
unsafe fn ops<'c>(context: *mut ibv_context) -> &'c ibv_context_ops {
    // SAFETY: an open context keeps its operations unchanged.
    unsafe { &(*context).ops }
}

/// `ibv_poll_cq`: the number of completions, negative when the queue is broken.
///
/// # Safety
/// `cq` must be valid, and `into` have room for `count`.
pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, count: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller says.
    let context = unsafe { (*cq).context };
    // SAFETY: it is open as long as what was made of it.
    match unsafe { ops(context) }.poll_cq {
        // SAFETY: as the caller says.
        Some(poll) => unsafe { poll(cq, count, into) },
        None => -1,
    }
}

/// `ibv_req_notify_cq` for all completions.
///
/// # Safety
/// `cq` must be valid.
pub(crate) unsafe fn req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as the caller says.
    let context = unsafe { (*cq).context };
    // SAFETY: it is open as long as what was made of it.
    match unsafe { ops(context) }.req_notify_cq {
        // SAFETY: as the caller says.
        Some(notify) => unsafe { notify(cq, 0) },
        None => libc_enosys(),
    }
}

/// `ibv_post_send`.
///
/// # Safety
/// `qp` must be valid, `chain` a list of valid requests whose memory stays until they complete.
pub(crate) unsafe fn post_send(
    qp: *mut ibv_qp,
    chain: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as the caller says.
    let context = unsafe { (*qp).context };
    // SAFETY: it is open as long as what was made of it.
    match unsafe { ops(context) }.post_send {
        // SAFETY: as the caller says.
        Some(post) => unsafe { post(qp, chain, bad) },
        None => libc_enosys(),
    }
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// `srq` must be valid, `chain` a list of valid requests whose memory stays until they complete.
pub(crate) unsafe fn post_srq_recv(
    srq: *mut ibv_srq,
    chain: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller says.
    let context = unsafe { (*srq).context };
    // SAFETY: it is open as long as what was made of it.
    match unsafe { ops(context) }.post_srq_recv {
        // SAFETY: as the caller says.
        Some(post) => unsafe { post(srq, chain, bad) },
        None => libc_enosys(),
    }
}
