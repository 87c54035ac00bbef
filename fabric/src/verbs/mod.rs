//! RC queue pairs over libibverbs and librdmacm: InfiniBand, RoCE and iWARP.
//!
//! The libraries are opened at run time: without them, without the kernel's support or without a
//! device [`VerbsError`] says which of the three is missing and what to install.
//!
//! | file | what |
//! |---|---|
//! | `ffi` | the libraries made safe, one file per object; all unsafe code is there |
//! | `mtu` | how long packets are |
//! | `choose`, `survey` | which device, port and address: pure functions, and what the host has |
//! | `blob`, `hello` | the descriptor that the hello carries; what the connection manager carries |
//! | `listener`, `connect`, `watch` | set-up, and news of connections and devices |
//! | `queue`, `table`, `poll` | data path: one completion queue for all endpoints of a domain |
//! | `endpoint`, `post` | data path: posting, completing, ending |
//! | `figures` | what is counted |
//! | `flow` | how many messages of peers may be unanswered, while receive buffers run low |
//! | `polled` | data path: one READ by a thread that waits for it |
//! | `frames` | messages in pieces of a receive buffer, and the fabric's own notes |
//! | `attach`, `regions`, `rights` | who may reach which memory: asked over the queue pair |
//! | `loopback` | atomics on this side's own memory, by the device |
//! | `worker` | what may block: registering memory, destroying queue pairs |
//! | `doctor` | what this host has and lacks |

mod attach;
mod blob;
pub mod choose;
mod connect;
pub mod doctor;
mod endpoint;
mod ffi;
mod figures;
mod flow;
mod frames;
mod hello;
mod limits;
mod listener;
mod loopback;
mod mtu;
mod poll;
mod polled;
mod post;
mod queue;
mod regions;
mod rights;
mod setup;
mod survey;
mod table;
mod watch;
mod worker;

pub use blob::none_now;
pub use choose::Options;
pub use connect::{ConnectError, ConnectOptions, Connected, check_choice, connect};
pub use ffi::device::{Gid, GidKind};
pub use ffi::error::VerbsError;
pub use listener::{Listener, registration_max_bytes};
pub use loopback::{Atomicity, LoopbackAtomics};
pub use mtu::PathMtu;
pub use setup::Limits;
