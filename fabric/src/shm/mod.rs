//! Peers on one host: one-sided operations are loads and stores in the owner's mapped memory.
//!
//! | file | what |
//! |---|---|
//! | `blob` | the opaque descriptor that the hello carries |
//! | `wire` | set-up messages over a Unix socket, with descriptors |
//! | `listener` | server: the thread that lets peers in, gives out regions and notices deaths |
//! | `client` | [`connect`], the client's completion queue, its watcher thread |
//! | `ring` | data path: message rings in a session's memory |
//! | `bell` | data path: who has sent something, and is the receiver asleep? |
//! | `link` | data path: the endpoint of either side |
//! | `hub` | data path: the server's completion queue |
//!
//! All memory is made and sealed by the server, because whoever makes a memfd could truncate it
//! under the other's feet. Everything in it is hostile to both sides: lengths are bounded before
//! use, messages are copied out before anybody looks at them, and a slot that cannot be right
//! ends the session.
//!
//! Who may connect: whoever shows a ticket. Abstract sockets have no file permissions, and the
//! peer's user is not looked at.
//!
//! What a hostile session can do to others: the doorbell's ready bits and futex word are writable
//! by all of them. Erasing somebody's bit delays its message until the server's queue is polled
//! once per session (each poll looks at one more session than rang), or its wait times out.
//! Nothing can be lost, read or changed that way.
//!
//! **Staging memory** of a session is for values longer than a message. The client decides what
//! lies where in it, writes what the server will READ, loads what the server has WRITten, and
//! gives the pages back with [`Memory::release`] when the call is over. The server never does:
//! its share of the bound is [`Limits::staging_bytes`] per session.

mod bell;
mod blob;
mod client;
mod hub;
mod link;
mod listener;
mod ring;
mod wire;

use std::sync::Arc;

pub use crate::loads::MAX_REGIONS;
pub use blob::reachable;
pub use client::connect;
pub use listener::Listener;

use crate::endpoint::{CompletionQueue, Endpoint};
use crate::mem::Memory;

/// Bounds of a listener. Values outside what the format can carry are brought into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Sessions at once; more are refused. 1 to 65,536.
    pub max_endpoints: usize,
    /// Messages in flight per session and direction. 1 to 4,096.
    pub credits: usize,
    /// Staging memory per session; 0 for none. Pages are taken when touched. At most 1 TiB.
    pub staging_bytes: usize,
    /// Longest message. 8 bytes to 1 MiB.
    pub max_message_bytes: usize,
    /// Connections that have not shown a ticket yet; more are closed at once. At least 1.
    pub pending_handshakes: usize,
    /// After this time without a ticket a connection is closed. At least 1.
    pub handshake_timeout_ms: u64,
    /// Whether the server may load from staging memory at once. `false` makes its endpoints behave
    /// as those of a network card, where a READ is a request with a completion: for tests.
    pub loads_allowed: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_endpoints: 1024,
            credits: 64,
            staging_bytes: 0,
            max_message_bytes: 4096 + 256,
            pending_handshakes: 64,
            handshake_timeout_ms: 2_000,
            loads_allowed: true,
        }
    }
}

impl Limits {
    fn in_range(self) -> Self {
        Self {
            max_endpoints: self.max_endpoints.clamp(1, 65_536),
            credits: self.credits.clamp(1, 4_096),
            staging_bytes: self.staging_bytes.min(1 << 40),
            max_message_bytes: self.max_message_bytes.clamp(8, 1 << 20),
            pending_handshakes: self.pending_handshakes.max(1),
            handshake_timeout_ms: self.handshake_timeout_ms.clamp(1, 3_600_000),
            loads_allowed: self.loads_allowed,
        }
    }
}

/// A session with a server of this host. Dropping `endpoint` and `cq` ends it.
#[derive(Clone)]
pub struct Connected {
    /// Sends requests, and addresses the server's regions.
    pub endpoint: Arc<dyn Endpoint>,
    /// Where answers and completions arrive.
    pub cq: Arc<dyn CompletionQueue>,
    /// Memory that the server addresses as region 0 of this session.
    pub staging: Option<Arc<Memory>>,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The descriptor is not one of this fabric or version.
    #[error("malformed shm descriptor: {0}; client and server versions may be too far apart")]
    Malformed(&'static str),
    /// The server runs under another kernel.
    #[error("the server runs on another host: use verbs or tcp")]
    OtherHost,
    /// Nobody listens there.
    #[error(
        "no socket @{0} on this host: the server has ended, or it is in another network \
         namespace (run both in one, or use tcp)"
    )]
    NoSuchSocket(String),
    /// The server said no.
    #[error("the server refused: {0}")]
    Refused(String),
    /// No answer in time.
    #[error("the server did not answer within {0:?}: it may be overloaded; try again")]
    TimedOut(std::time::Duration),
    /// The server's answer makes no sense.
    #[error("the server's answer is malformed: {0}; versions may be too far apart")]
    Answer(&'static str),
    /// The system refused something.
    #[error("cannot set up the session: {0}; check limits on descriptors and memory")]
    System(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for ConnectError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}
