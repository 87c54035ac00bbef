//! The three roles: an endpoint (queue pair), a completion queue, and who lets peers in.

use std::fmt;
use std::time::Duration;

use crate::buffer::Buffer;
use crate::mem::AccessError;
use crate::work::{Completion, PostError, RegionId, RemoteAddr, WorkRequest};

/// Which backend an endpoint belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FabricKind {
    /// Shared memory of one host.
    Shm,
    /// RC queue pairs.
    Verbs,
    /// A byte stream: SEND and RECV only.
    Tcp,
    /// The seeded simulation.
    Sim,
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
            Self::Sim => "sim",
        })
    }
}

/// Buffers that an endpoint may lend at once: [`Endpoint::lend_buffer`].
pub const LENT_MAX: usize = 16;

/// What an endpoint can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Which backend.
    pub kind: FabricKind,
    /// READ, WRITE, CAS and FAA exist.
    pub one_sided: bool,
    /// [`Endpoint::read_now`] answers: a READ is a load, not a round trip.
    pub reads_now: bool,
    /// Longest message of a SEND.
    pub max_message_bytes: usize,
    /// Requests that may be outstanding at once.
    pub send_depth: usize,
}

/// One end of a connection: a queue pair. All methods may be called by several threads; none
/// blocks on I/O.
///
/// Orderings (design.md 8): a WRITE, then a CAS or SEND posted later on the same endpoint, take
/// effect in that order. READ and READ do not: wait for the first completion where it matters.
pub trait Endpoint: Send + Sync + fmt::Debug {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Takes requests from the front of `chain` and rings one doorbell for all of them. What
    /// could not be taken stays in `chain`.
    ///
    /// # Errors
    /// [`PostError::Full`] when some were left; the others when none can ever be taken, and the
    /// offending request is at the front of `chain`.
    fn post(&self, chain: &mut std::collections::VecDeque<WorkRequest>) -> Result<(), PostError>;

    /// A SEND of a copy, where the fabric copies what is posted anyway. It goes unsignaled; `id`
    /// is for its failure. `false`: nothing was sent, [`Self::post`] may, or says why it cannot be.
    fn send_copy(&self, _id: u64, _message: &[u8]) -> bool {
        false
    }

    /// Makes a region of the peer's reachable, as its owner described it. May block briefly: it
    /// is set-up, not data path. Attaching twice is the same as once.
    ///
    /// # Errors
    /// When the owner does not offer the region, or the descriptor is not one of this fabric's.
    fn attach(&self, region: RegionId, descriptor: &[u8]) -> Result<(), AttachError>;

    /// Forgets an attached region: its owner takes it away. Requests that address it are refused
    /// from now on, or READ zeros. The caller has seen to it that none is under way.
    fn detach(&self, _region: RegionId) {}

    /// Lets the peer address memory of this side as its region 0, before the first request that
    /// makes it do so. May block briefly. Twice is the same as once.
    ///
    /// # Errors
    /// When the memory cannot be registered: most often the limit on locked memory.
    fn lend(&self, _memory: &std::sync::Arc<crate::mem::Memory>) -> Result<(), AttachError> {
        // Where a session's memory is shared from the start there is nothing to do.
        Ok(())
    }

    /// Makes a buffer known to the device, if there is one, ahead of its first use.
    ///
    /// # Errors
    /// When it cannot be registered: most often the limit on locked memory.
    fn register(&self, _buffer: &Buffer) -> Result<(), AttachError> {
        Ok(())
    }

    /// Lets the peer READ a buffer of [`crate::Parking`] as its region `number`, 1 to [`LENT_MAX`],
    /// until another one is lent under that number. What is posted afterwards may say so. The
    /// buffer must not change before the peer is known to have read it, or this endpoint has ended.
    ///
    /// # Errors
    /// When it cannot be registered, or there is no room to say so just now.
    fn lend_buffer(&self, _number: RegionId, _buffer: &Buffer) -> Result<(), AttachError> {
        Err(AttachError::NotOneSided)
    }

    /// A READ done at once, where the peer's memory can be loaded ([`Caps::reads_now`]): the
    /// fast path, without a completion. `None` where it cannot. `into` is filled whole;
    /// `remote.offset_bytes` must be a multiple of 8.
    fn read_now(&self, remote: RemoteAddr, into: &mut [u64]) -> Option<Result<(), AccessError>>;

    /// As [`Self::read_now`], for any alignment and length: large values, straight to where the
    /// caller wants them.
    fn read_bytes_now(
        &self,
        remote: RemoteAddr,
        into: &mut [u8],
    ) -> Option<Result<(), AccessError>>;

    /// Polls for what this thread waits for itself, `spin` long at most, without the detour through
    /// the completion queue's users. `id` is that of no other request in flight: if it does not
    /// complete in that time, or something else comes before it, its completion arrives as any
    /// other's.
    ///
    /// The caller sees to it that nobody polls the completion queue meanwhile who would not know
    /// that id.
    fn polled(&self, _id: u64, awaited: Awaited<'_>, _spin: Duration) -> Polled {
        match awaited {
            Awaited::Read(..) => Polled::NotPosted,
            Awaited::Atomic(_) => Polled::Posted,
        }
    }

    /// The regions attached so far, now or later, where they can be loaded: [`Self::read_now`]
    /// without a virtual call. `None` where they cannot.
    fn loads(&self) -> Option<&std::sync::Arc<crate::loads::Loads>> {
        None
    }

    /// A hint that `len_bytes` at `remote` will be read soon.
    fn prefetch(&self, _remote: RemoteAddr, _len_bytes: usize) {}

    /// Whether the peer is on this host, so that its answer tends to come sooner than a thread can
    /// fall asleep and be woken: who waits for it should poll for a while first.
    fn is_near(&self) -> bool {
        false
    }

    /// Whether the peer has ended the connection, as far as this side can know without waiting.
    /// `false` after a READ: the peer had not begun to use again what it had promised this side to
    /// leave as it is. Where a READ fails once the connection has ended, nothing need be looked at.
    fn is_fenced(&self) -> bool {
        false
    }

    /// The process that may write what it has mapped of this side's memory even after the
    /// connection has ended, if there is such a one.
    ///
    /// # Errors
    /// There may be one, and it cannot be watched.
    fn peer_process(&self) -> std::io::Result<Option<crate::process::PeerProcess>> {
        Ok(None)
    }

    /// Longest packets of the connection, where the device cuts it into packets and says how long
    /// they are. It asks the device.
    fn path_mtu_bytes(&self) -> Option<u32> {
        None
    }

    /// Ends the connection. What is outstanding is flushed, then `Disconnected` is delivered.
    fn close(&self);

    /// Whether it is known to be dead.
    fn is_closed(&self) -> bool;
}

/// What [`Endpoint::polled`] polls for.
#[derive(Debug)]
pub enum Awaited<'a> {
    /// A READ of the whole length of the buffer, which it posts first. The buffer comes back when
    /// it is done: until then it belongs to the READ, and in its place is a default one.
    Read(RemoteAddr, &'a mut Buffer),
    /// A signalled CAS or FAA that the caller has posted with the id since it keeps others from
    /// polling, the last of a chain; what it found goes to the word.
    Atomic(&'a mut u64),
}

/// What came of [`Endpoint::polled`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// It is done; what it brought is where it was to go.
    Done,
    /// It was posted, and has the buffer; its completion is still to be polled.
    Posted,
    /// It was not posted: [`Endpoint::post`] may, or says why it cannot be.
    NotPosted,
}

/// Where completions of any number of endpoints arrive; polling costs the same however many
/// there are.
pub trait CompletionQueue: Send + Sync {
    /// Appends up to `max` completions to `out` and returns how many. Never blocks. Also makes
    /// what was posted before go out, where the fabric gathers (tcp).
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize;

    /// Sleeps until something may be there to poll, [`Self::wake`] is called, or the time is
    /// over. The caller has spun before, if it wants to. One thread waits at a time; others
    /// return [`Wait::Busy`] at once.
    fn wait(&self, timeout: Duration) -> Wait;

    /// Ends the current or the next wait.
    fn wake(&self);

    /// [`Self::wait`] and [`Self::poll`] in one, for a thread that nothing can help but what the
    /// peer sends: it lasts until something comes, the endpoint ends, or some ten milliseconds are
    /// over; [`Self::wake`] does not end it. `None`: nothing was done, wait and poll instead.
    fn receive(&self, _out: &mut Vec<Completion>, _max: usize) -> Option<usize> {
        None
    }
}

/// How a [`CompletionQueue::wait`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Poll now.
    Ready,
    /// The time is over.
    TimedOut,
    /// Another thread waits already.
    Busy,
}

/// Who decides about peers that connect to a listener, and which regions they may see.
pub trait Admission: Send + Sync {
    /// A peer shows its ticket. Returns the context of its endpoint: the number that every
    /// completion of it carries.
    ///
    /// # Errors
    /// [`Refused`] closes the connection; nothing of the server was shown to the peer.
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused>;

    /// Which protection domain the endpoint of `context` is to live in, where the fabric has them:
    /// a peer reaches, whatever it knows, only memory that was shown to somebody of its domain.
    /// They are numbered from 0. `None`: it is no longer let in.
    fn domain(&self, _context: u64) -> Option<u32> {
        Some(0)
    }

    /// The memory behind a region that the peer of `context` asks for, or `None` when it must
    /// not see it.
    fn region(
        &self,
        context: u64,
        region: RegionId,
    ) -> Option<(std::sync::Arc<crate::mem::Memory>, crate::work::Rights)>;
}

/// A peer was not let in; the text is for the log and may be sent to the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not admitted: {0}")]
pub struct Refused(pub String);

/// Why a region could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The owner does not offer it (any more) to this session.
    #[error("region {0:?} is not offered: it may be gone; read the catalog again")]
    NotOffered(RegionId),
    /// The region number is beyond what this side keeps.
    #[error("region {0:?} is beyond the limit of {1} regions")]
    TooMany(RegionId, usize),
    /// The connection ended.
    #[error("the connection is closed: reconnect")]
    Closed,
    /// The system refused to map or register it.
    #[error("cannot map or register region {region:?}: {source}")]
    Map {
        /// Which region.
        region: RegionId,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system refused to register a buffer of this side.
    #[error("cannot register a buffer: {0}")]
    Register(#[source] std::io::Error),
    /// The fabric has no one-sided operations.
    #[error("this fabric has no one-sided operations")]
    NotOneSided,
}
