//! RC queue pairs over libibverbs and librdmacm: InfiniBand, RoCE and iWARP.
//!
//! The libraries are opened at run time: without them, without the kernel's support or without a
//! device [`VerbsError`] says which of the three is missing and what to install.

#[allow(dead_code)]
mod blob;
#[allow(dead_code)]
pub mod choose;
// Their users are being built.
#[allow(dead_code)]
mod ffi;
#[allow(dead_code)]
mod hello;
#[allow(dead_code)]
mod survey;
#[allow(dead_code)]
mod watch;

pub use choose::Options;

pub use ffi::device::{Gid, GidKind};
pub use ffi::error::VerbsError;
