//! RC queue pairs over libibverbs and librdmacm: InfiniBand, RoCE and iWARP.
//!
//! The libraries are opened at run time: without them, without the kernel's support or without a
//! device [`VerbsError`] says which of the three is missing and what to install.

// Their users are being built.
#![allow(dead_code)]

mod attach;
mod blob;
pub mod choose;
mod connect;
pub mod doctor;
mod endpoint;
mod ffi;
mod frames;
mod hello;
mod limits;
mod listener;
mod poll;
mod post;
mod queue;
mod regions;
mod setup;
mod survey;
mod table;
mod watch;
mod worker;

pub use choose::Options;
pub use connect::{ConnectError, ConnectOptions, Connected, connect};
pub use ffi::device::{Gid, GidKind};
pub use ffi::error::VerbsError;
pub use listener::Listener;
pub use setup::Limits;
