//! The endpoint of either side: posting, draining, direct reads.
//!
//! Order of locks: `rx`, `tx`, `local`. None is held across a wait; the only system calls made
//! under one are the wake-ups that end a session.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::bell::{Bell, ClientBell, Doorbell, ring_client};
use super::ring::{Consumer, FENCED, Geometry, Producer};
use crate::buffer::BufferPool;
use crate::endpoint::{Caps, FabricKind};
use crate::loads::Loads;
use crate::mem::{AccessError, Memory};
use crate::work::{
    Completion, Opcode, Outcome, PostError, RegionId, RemoteAddr, WorkError, WorkRequest,
};

const OPEN: u8 = 0;
/// The peer is gone: what it sent before is still delivered.
const PEER_GONE: u8 = 1;
/// Closed by this side, or the peer broke the rules: nothing more is taken from the ring.
const BROKEN: u8 = 2;

/// Whose end it is, and how it makes itself and its peer look.
pub(super) enum Side {
    Server { bell: Arc<Bell>, slot: usize },
    Client { doorbell: Doorbell, bell: ClientBell },
}

/// What one-sided operations of this end address.
pub(super) enum Remote {
    /// The server's regions, as attached.
    Regions(Arc<Loads>),
    /// The session's staging memory, as region 0.
    Staging(Option<Arc<Memory>>),
}

struct Rx {
    ring: Consumer,
    /// Messages still taken after the peer went: it may not be as dead as its socket says.
    after_end: usize,
    ended: bool,
}

/// How a [`Link::drain`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drained {
    Empty,
    /// There may be more.
    More,
    /// `Disconnected` was delivered: never drain again.
    Finished,
}

/// One end of a session.
pub(super) struct Link {
    context: u64,
    pub(super) session: Memory,
    pub(super) side: Side,
    pub(super) remote: Remote,
    pub(super) socket: OwnedFd,
    geometry: Geometry,
    loads_allowed: bool,
    pool: BufferPool,
    tx: Mutex<Producer>,
    rx: Mutex<Rx>,
    local: Mutex<VecDeque<Completion>>,
    local_len: AtomicUsize,
    state: AtomicU8,
    reason: OnceLock<String>,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) context: u64,
    pub(super) session: Memory,
    pub(super) side: Side,
    pub(super) remote: Remote,
    pub(super) socket: OwnedFd,
    pub(super) geometry: Geometry,
    /// READs may be done at once, without a completion.
    pub(super) loads_allowed: bool,
    pub(super) pool: BufferPool,
}

impl Link {
    pub(super) fn new(parts: Parts) -> Self {
        let (tx, ring) = match parts.side {
            Side::Server { .. } => parts.geometry.server_ends(),
            Side::Client { .. } => parts.geometry.client_ends(),
        };
        Self {
            context: parts.context,
            session: parts.session,
            side: parts.side,
            remote: parts.remote,
            socket: parts.socket,
            geometry: parts.geometry,
            loads_allowed: parts.loads_allowed,
            pool: parts.pool,
            tx: Mutex::new(tx),
            rx: Mutex::new(Rx { ring, after_end: parts.geometry.credits, ended: false }),
            local: Mutex::new(VecDeque::new()),
            local_len: AtomicUsize::new(0),
            state: AtomicU8::new(OPEN),
            reason: OnceLock::new(),
        }
    }

    pub(super) fn context(&self) -> u64 {
        self.context
    }

    pub(super) fn caps(&self) -> Caps {
        let one_sided = !matches!(self.remote, Remote::Staging(None));
        Caps {
            kind: FabricKind::Shm,
            one_sided,
            reads_now: one_sided && self.loads_allowed,
            max_message_bytes: self.geometry.max_message_bytes,
            send_depth: self.geometry.credits,
        }
    }

    /// The memory behind a region; none once the session has ended, since its owner may have
    /// ended too and what is still mapped may be outdated.
    #[inline]
    pub(super) fn memory(&self, region: RegionId) -> Result<&Memory, AccessError> {
        match &self.remote {
            Remote::Regions(table) => table.get(region),
            Remote::Staging(Some(memory)) if region.0 == 0 => Ok(memory),
            Remote::Staging(_) => Err(AccessError::NotAttached(region.0)),
        }
    }

    #[inline]
    pub(super) fn read_words(&self, from: RemoteAddr, into: &mut [u64]) -> Result<(), AccessError> {
        self.memory(from.region)?.read_words(from.offset_bytes as usize, into)?;
        self.still_open(from.region)
    }

    #[inline]
    pub(super) fn read_bytes(&self, from: RemoteAddr, into: &mut [u8]) -> Result<(), AccessError> {
        self.memory(from.region)?.read_bytes(from.offset_bytes as usize, into)?;
        self.still_open(from.region)
    }

    /// After a read: what was read counts only if the session had not ended.
    #[inline]
    fn still_open(&self, region: RegionId) -> Result<(), AccessError> {
        if self.is_closed() { Err(AccessError::NotAttached(region.0)) } else { Ok(()) }
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// The peer's socket is closed.
    pub(super) fn peer_gone(&self) {
        self.end(PEER_GONE, "the peer is gone: its process ended or closed the session".to_owned());
    }

    /// Ends the session for a reason that lies on this side, or in what the peer wrote.
    pub(super) fn fail(&self, reason: String) {
        self.end(BROKEN, reason);
    }

    /// Whether the server has ended the session, as the memory shared with it says: at once, and
    /// before the server uses again what the session may look at. Looked at after a read, `false`
    /// says that the read was before that. (Who writes there but the server deceives itself.)
    pub(super) fn is_fenced(&self) -> bool {
        // The word is inside every session's memory.
        self.is_closed() || self.session.load(FENCED) != Ok(0)
    }

    fn end(&self, state: u8, reason: String) {
        if let Side::Server { .. } = self.side {
            // Before the caller goes on, and before the socket says so: the client may be stopped
            // in the middle of a read.
            let _inside = self.session.store(FENCED, 1);
        }
        // The reason is set, and loads end, before anybody can see the state.
        let _first_reason_stays = self.reason.set(reason);
        if let Remote::Regions(loads) = &self.remote {
            loads.end();
        }
        if self.state.compare_exchange(OPEN, state, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // The peer's watcher sees the end of the socket; an error means it is gone already.
            let _gone = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            self.ring_self();
        }
    }

    /// Makes this side's completion queue look at this link.
    fn ring_self(&self) {
        match &self.side {
            Side::Server { bell, slot } => bell.ring(*slot),
            Side::Client { .. } => ring_client(&self.session),
        }
    }

    fn ring_peer(&self) {
        match &self.side {
            Side::Server { .. } => ring_client(&self.session),
            Side::Client { doorbell, .. } => {
                // Its bit was checked to be inside when the session was made.
                let _inside = doorbell.ring();
            }
        }
    }

    pub(super) fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let mut tx = self.tx.lock();
        let (mut sent, mut completed) = (false, false);
        let mut outcome = Ok(());
        while let Some(request) = chain.pop_front() {
            match self.post_one(&mut tx, request) {
                Ok(done) => {
                    sent |= done.sent;
                    completed |= done.completed;
                }
                Err((request, error)) => {
                    chain.push_front(request);
                    outcome = Err(error);
                    break;
                }
            }
        }
        drop(tx);
        if sent {
            self.ring_peer();
        }
        if completed {
            self.ring_self();
        }
        outcome
    }

    #[allow(clippy::result_large_err, reason = "the request goes back to its owner")]
    fn post_one(
        &self,
        tx: &mut Producer,
        request: WorkRequest,
    ) -> Result<Posted, (WorkRequest, PostError)> {
        if self.is_closed() {
            return Err((request, PostError::Closed));
        }
        if self.local_len.load(Ordering::Relaxed) >= self.max_local() {
            return Err((request, PostError::Full));
        }
        let WorkRequest { id, signaled, op } = request;
        let (sent, outcome) = match op {
            Opcode::Send { message } => match self.send(tx, &message) {
                Ok(()) => (true, Outcome::Sent(message)),
                Err(error) => {
                    let op = Opcode::Send { message };
                    return Err((WorkRequest { id, signaled, op }, error));
                }
            },
            op if matches!(self.remote, Remote::Staging(None)) => {
                return Err((WorkRequest { id, signaled, op }, PostError::NotOneSided));
            }
            op => (false, self.execute(op)),
        };
        let failure = match &outcome {
            Outcome::Failed(error, _) => Some(error.to_string()),
            _ => None,
        };
        let completed = signaled || failure.is_some();
        if completed {
            let mut local = self.local.lock();
            local.push_back(Completion { context: self.context, id, outcome });
            self.local_len.store(local.len(), Ordering::Release);
        }
        if let Some(reason) = failure {
            self.fail(reason);
        }
        Ok(Posted { sent, completed })
    }

    fn max_local(&self) -> usize {
        (self.geometry.credits * 4).max(256)
    }

    fn send(&self, tx: &mut Producer, message: &crate::Buffer) -> Result<(), PostError> {
        let max_bytes = self.geometry.max_message_bytes;
        if message.len() > max_bytes {
            return Err(PostError::TooLong { len_bytes: message.len(), max_bytes });
        }
        match tx.push(&self.session, message) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PostError::Full),
            Err(error) => {
                self.fail(error.to_string());
                Err(PostError::Closed)
            }
        }
    }

    /// Does a one-sided operation, now.
    fn execute(&self, op: Opcode) -> Outcome {
        let failed = |error: AccessError, buffer| Outcome::Failed(WorkError::Access(error), buffer);
        let memory = |at: &RemoteAddr| self.memory(at.region);
        match op {
            Opcode::Read { remote, mut into } => {
                let at = remote.offset_bytes as usize;
                match memory(&remote).and_then(|memory| memory.read_bytes(at, &mut into)) {
                    Ok(()) if self.is_closed() => Outcome::Failed(WorkError::Flushed, Some(into)),
                    Ok(()) => Outcome::Read(into),
                    Err(error) => failed(error, Some(into)),
                }
            }
            Opcode::Write { remote, from } => {
                let at = remote.offset_bytes as usize;
                match memory(&remote).and_then(|memory| memory.write_bytes(at, &from)) {
                    Ok(()) => Outcome::Written(from),
                    Err(error) => failed(error, Some(from)),
                }
            }
            Opcode::CompareSwap { remote, expected, new } => {
                let at = remote.offset_bytes as usize;
                let found = memory(&remote).and_then(|m| m.compare_swap(at, expected, new));
                found.map_or_else(|error| failed(error, None), Outcome::Atomic)
            }
            Opcode::FetchAdd { remote, add } => {
                let at = remote.offset_bytes as usize;
                let found = memory(&remote).and_then(|m| m.fetch_add(at, add));
                found.map_or_else(|error| failed(error, None), Outcome::Atomic)
            }
            // Sends do not come here; as a peer that takes no messages it would be an error.
            Opcode::Send { message } => Outcome::Failed(WorkError::PeerGone, Some(message)),
        }
    }

    /// Whether a poll would find something.
    pub(super) fn has_input(&self) -> bool {
        let rx = self.rx.lock();
        !rx.ended
            && (self.local_len.load(Ordering::SeqCst) != 0
                || self.state.load(Ordering::SeqCst) != OPEN
                || rx.ring.has_input(&self.session))
    }

    /// Appends at most `max` completions of this link.
    pub(super) fn drain(&self, out: &mut Vec<Completion>, max: usize) -> Drained {
        let mut rx = self.rx.lock();
        if rx.ended {
            return Drained::Finished;
        }
        // Before the rings are looked at: what the peer sent before it went is there by now.
        let state = self.state.load(Ordering::Acquire);
        let mut room = max;
        room -= self.drain_local(out, room);
        if state != BROKEN {
            room -= self.drain_ring(&mut rx, state, out, room);
        }
        if room == 0 {
            return Drained::More;
        }
        if state == OPEN {
            // A failure found just now has rung, so that the next poll comes back.
            return Drained::Empty;
        }
        self.finish(&mut rx, out, room)
    }

    /// The last completions of an ended link.
    fn finish(&self, rx: &mut Rx, out: &mut Vec<Completion>, room: usize) -> Drained {
        // Posts that began before the end are over when the lock is had; later ones see it.
        let _no_post = self.tx.lock();
        if self.drain_local(out, room) == room {
            return Drained::More;
        }
        rx.ended = true;
        let reason = self.reason.get().cloned().unwrap_or_default();
        let outcome = Outcome::Disconnected(reason);
        out.push(Completion { context: self.context, id: 0, outcome });
        Drained::Finished
    }

    fn drain_local(&self, out: &mut Vec<Completion>, room: usize) -> usize {
        if self.local_len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut local = self.local.lock();
        let n = local.len().min(room);
        out.extend(local.drain(..n));
        self.local_len.store(local.len(), Ordering::Release);
        n
    }

    fn drain_ring(&self, rx: &mut Rx, state: u8, out: &mut Vec<Completion>, room: usize) -> usize {
        let limit = if state == OPEN { room } else { room.min(rx.after_end) };
        let mut n = 0;
        let mut outcome = Ok(());
        while n < limit {
            match rx.ring.pop(&self.session, &self.pool) {
                Ok(Some(message)) => {
                    let outcome = Outcome::Received(message);
                    out.push(Completion { context: self.context, id: 0, outcome });
                    n += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if n > 0 {
            outcome = outcome.and(rx.ring.publish(&self.session));
        }
        if state != OPEN {
            rx.after_end -= n;
        }
        if let Err(error) = outcome {
            self.fail(error.to_string());
        }
        n
    }
}

struct Posted {
    sent: bool,
    completed: bool,
}
