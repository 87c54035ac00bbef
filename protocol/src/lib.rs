//! What peers of `onesided` agree on: the layout of everything that is read without asking, the
//! messages, the limits, the error codes. No I/O, no clock, no randomness, no unsafe code.
//!
//! docs/PROTOCOL.md has the same as tables; a test holds it to the constants here.
//!
//! | module | what |
//! |---|---|
//! | [`limits`] | every bound, in one place |
//! | [`hash`] | key hash and its parts: specified by value |
//! | [`checksum`] | the checksum of entries, likewise |
//! | [`layout`] | catalog, directory, line header, slot, entry, state word |
//! | [`control`] | the control connection: hello, heartbeat, table administration |
//! | [`rpc`] | requests and answers on the data path |
//! | [`rules`] | the protocol's rules by name, so that a test can switch one off |
//! | [`size`] | sizes as people write them |

#![forbid(unsafe_code)]

pub mod checksum;
pub mod codec;
pub mod control;
pub mod hash;
pub mod latency;
pub mod layout;
pub mod limits;
pub mod rpc;
pub mod rules;
pub mod size;

pub use codec::DecodeError;
pub use layout::addr::LogAddr;
