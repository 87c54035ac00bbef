//! RC queue pairs over libibverbs and librdmacm: InfiniBand, RoCE and iWARP.
//!
//! The libraries are opened at run time: without them, without the kernel's support or without a
//! device [`VerbsError`] says which of the three is missing and what to install.

// Its users are being built.
#[allow(dead_code)]
mod ffi;

pub use ffi::device::{Gid, GidKind};
pub use ffi::error::VerbsError;
