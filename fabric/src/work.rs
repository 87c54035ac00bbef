//! What is posted and what comes back: work requests and completions.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::endpoint::Endpoint;
use crate::mem::AccessError;

/// Number of a region of a peer's memory. Never used twice in one life of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u32);

/// What a peer may do to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// READ only.
    ReadOnly,
    /// READ, WRITE, CAS and FAA.
    ReadWrite,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddr {
    /// Which region.
    pub region: RegionId,
    /// Bytes from the region's start.
    pub offset_bytes: u64,
}

/// One element of a chain given to [`Endpoint::post`].
///
/// A request owns its buffer until the completion gives it back: a caller that goes away
/// meanwhile cannot free memory that a device still writes.
#[derive(Debug)]
pub struct WorkRequest {
    /// Chosen by the poster, returned in the [`Completion`].
    pub id: u64,
    /// Whether success is reported. Failures always are. An unsignalled request's buffer goes
    /// back to its pool when a later signalled one of the same endpoint completes.
    pub signaled: bool,
    /// What to do.
    pub op: Opcode,
}

/// The operations of a queue pair.
#[derive(Debug)]
pub enum Opcode {
    /// Fill `into` (its whole length) from `remote`. Only 8-byte words are whole; words of one
    /// READ may be sampled in any order.
    Read {
        /// Where from. Any alignment; 8-byte alignment makes words whole.
        remote: RemoteAddr,
        /// Where to.
        into: Buffer,
    },
    /// Store `from` (its whole length) at `remote`.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// What.
        from: Buffer,
    },
    /// If the 8-byte word at `remote` is `expected`, make it `new`. The completion's `value` is
    /// what was there before.
    CompareSwap {
        /// Where; 8-byte aligned.
        remote: RemoteAddr,
        /// What it must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// Add to the 8-byte word at `remote`, wrapping. The completion's `value` is what was there.
    FetchAdd {
        /// Where; 8-byte aligned.
        remote: RemoteAddr,
        /// How much.
        add: u64,
    },
    /// Deliver `message` to the peer's completion queue as [`Outcome::Received`].
    Send {
        /// The message, at most [`crate::Caps::max_message_bytes`].
        message: Buffer,
    },
}

/// What [`crate::CompletionQueue::poll`] returns, one per signalled or failed request, received
/// message, connection or disconnection.
#[derive(Debug)]
pub struct Completion {
    /// The context that [`crate::Admission::admit`] or the connecting call gave the endpoint.
    pub context: u64,
    /// The request's id; 0 for what was not requested.
    pub id: u64,
    /// What happened.
    pub outcome: Outcome,
}

/// What happened to a request, or to an endpoint.
#[derive(Debug)]
pub enum Outcome {
    /// A READ is done; its bytes are in the buffer.
    Read(Buffer),
    /// A WRITE is done.
    Written(Buffer),
    /// A CAS or FAA is done; the value is what was there before.
    Atomic(u64),
    /// A SEND has left.
    Sent(Buffer),
    /// The peer sent this.
    Received(Buffer),
    /// A new peer, admitted by its ticket (listening side only).
    Connected(Arc<dyn Endpoint>),
    /// The endpoint is dead; nothing more will come for it. Delivered exactly once, after the
    /// failures of all that was outstanding.
    Disconnected(String),
    /// The request failed. Except for [`WorkError::Flushed`] it is the first failure, and the
    /// endpoint is dead afterwards, as a queue pair in error.
    Failed(WorkError, Option<Buffer>),
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkError {
    /// The address is outside a region that was attached, or the right is missing.
    #[error("remote access refused: {0}; the address is stale or the region was never attached")]
    Access(#[from] AccessError),
    /// The endpoint died before this request was done; whether it took effect is unknown.
    #[error("flushed: the connection ended before this request was done")]
    Flushed,
    /// The peer no longer answers.
    #[error("the peer is gone: it no longer takes messages")]
    PeerGone,
}

/// Why [`Endpoint::post`] took nothing of the chain, or not all.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue or the peer's ring is full. Poll completions, then post the rest.
    #[error("send queue full: poll completions, then post the rest again")]
    Full,
    /// The endpoint is dead.
    #[error("the connection is closed: reconnect")]
    Closed,
    /// The message is longer than the fabric carries.
    #[error("message of {len_bytes} bytes, but this fabric carries at most {max_bytes}")]
    TooLong {
        /// Its length.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The fabric has SEND and RECV only.
    #[error("this fabric has no one-sided operations: ask by RPC")]
    NotOneSided,
}
