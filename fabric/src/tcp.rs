//! SEND and RECV over a byte stream, for peers that share neither memory nor an RDMA network.
//!
//! A frame is its length (4 bytes, little-endian) and the message. The stream is made outside of
//! this module: the server's control port accepts the socket, reads a preamble and the ticket,
//! asks its admission, and only then gives it to [`Acceptor::adopt`]; the client writes preamble
//! and ticket before it calls [`connect`].
//!
//! | file | what is in it |
//! |---|---|
//! | `setup` | sockets become endpoints |
//! | `link` | one endpoint: what waits to be written |
//! | `queue` | the completion queue: epoll, waking |
//! | `receive` | reading |
//! | `phase` | where in a page it is read to: some places are slow |
//! | `frames` | bytes become messages, bounded |
//! | `full` | who waits for room for an unfinished message |
//!
//! Lock order: a link's `out` or `recv`, then the queue's `ready`. None is held across a read or
//! write.

use std::time::Duration;

mod frames;
mod full;
mod link;
mod phase;
mod queue;
mod receive;
mod setup;

pub use setup::{Acceptor, connect};

/// Bounds of one acceptor or one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest message, sent or received; a longer announced one closes the connection.
    pub max_message_bytes: usize,
    /// Bytes that may wait to be written on one endpoint; beyond it, posting returns
    /// [`crate::PostError::Full`]. One message of any allowed length fits when nothing waits.
    pub send_buffer_bytes: usize,
    /// Endpoints that may be open at once.
    pub max_endpoints: usize,
    /// Bytes that long unfinished messages of all endpoints together may occupy; no more is read
    /// of one that has no room, until it has. Short ones, and beginnings, of some 64 KiB on each
    /// endpoint are not counted.
    pub total_receive_bytes: usize,
    /// A connection is closed whose unfinished message takes room that others wait for, and that
    /// sends hardly anything in this time.
    pub stalled_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message_bytes: 33 << 20,
            send_buffer_bytes: 4 << 20,
            max_endpoints: 4096,
            total_receive_bytes: 256 << 20,
            stalled_max: Duration::from_secs(10),
        }
    }
}

impl Limits {
    fn check(&self) -> std::io::Result<()> {
        let invalid = |what: &str| Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
        if u32::try_from(self.max_message_bytes).is_err() {
            return invalid("max_message_bytes must fit in 32 bits");
        }
        if self.total_receive_bytes < self.max_message_bytes.saturating_add(frames::HEADER_BYTES) {
            return invalid("total_receive_bytes must hold one message of max_message_bytes");
        }
        Ok(())
    }
}
