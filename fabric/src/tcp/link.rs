//! One endpoint: what waits to be written, and how it ends.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::frames::{self, Assembler, HEADER_BYTES};
use super::queue::Hub;
use crate::buffer::Buffer;
use crate::work::{Completion, Opcode, Outcome, PostError, WorkError, WorkRequest};

/// Requests outstanding on one endpoint, those whose completion was not polled yet included.
pub(super) const SEND_DEPTH: usize = 4096;
/// Writes in a row before others get a turn.
const FLUSH_ROUNDS: usize = 16;
/// An empty write buffer larger than this is given back.
const KEPT_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) token: u64,
    pub(super) context: u64,
    pub(super) stream: TcpStream,
    /// Both ends have the same address.
    pub(super) near: bool,
    pub(super) recv: Mutex<Assembler>,
    /// It is in the queue's list of endpoints to flush.
    pub(super) dirty: AtomicBool,
    /// Completions of its SENDs that nobody has polled yet.
    pub(super) unpolled: AtomicUsize,
    closed: AtomicBool,
    /// Nothing is read of it. Changed under the lock of `out`.
    deaf: AtomicBool,
    out: Mutex<Out>,
}

/// A SEND that has been taken and is not yet written.
#[derive(Debug)]
struct Queued {
    /// Where its frame ends, counted from the first byte of the connection.
    end: u64,
    id: u64,
    /// The buffer of a signalled one, for its completion.
    buffer: Option<Buffer>,
}

#[derive(Debug, Default)]
struct Out {
    /// Frames that wait.
    bytes: Vec<u8>,
    /// Frames being written, `flight_at` bytes of them done. Taken out during the write.
    flight: Vec<u8>,
    flight_at: usize,
    /// Somebody writes: who comes now only appends.
    busy: bool,
    /// Writing failed; the reading side will see the end, after what still arrived.
    broken: bool,
    closed: bool,
    /// EPOLLOUT is asked for.
    armed: bool,
    /// Frames taken and not written.
    queued: VecDeque<Queued>,
    taken_bytes: u64,
    written_bytes: u64,
}

impl Out {
    fn waiting_bytes(&self) -> usize {
        usize::try_from(self.taken_bytes - self.written_bytes).unwrap_or(usize::MAX)
    }

    fn begin(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.busy || self.broken || self.closed {
            return None;
        }
        if self.flight.is_empty() {
            std::mem::swap(&mut self.flight, &mut self.bytes);
            self.flight_at = 0;
        }
        if self.flight.is_empty() {
            return None;
        }
        self.busy = true;
        Some((std::mem::take(&mut self.flight), self.flight_at))
    }

    fn reset(&mut self, mut spare: Vec<u8>) {
        self.flight_at = 0;
        if spare.capacity() <= KEPT_BYTES {
            spare.clear();
            if self.bytes.capacity() == 0 {
                self.bytes = spare;
            } else {
                self.flight = spare;
            }
        }
    }
}

fn is_within_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip(),
        // It is gone already.
        _ => false,
    }
}

impl Link {
    pub(super) fn new(token: u64, context: u64, stream: TcpStream) -> Self {
        Self {
            token,
            context,
            near: is_within_host(&stream),
            stream,
            recv: Mutex::default(),
            dirty: AtomicBool::new(false),
            unpolled: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            out: Mutex::default(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether something waits until the socket takes bytes again.
    pub(super) fn is_stuck(&self) -> bool {
        self.out.lock().armed
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// Reads no more of it, or goes on: what the peer sends meanwhile waits on its side.
    pub(super) fn set_deaf(&self, hub: &Hub, deaf: bool) {
        let out = self.out.lock();
        self.deaf.store(deaf, Ordering::Relaxed);
        if !out.closed {
            hub.ask_for(self, out.armed);
        }
    }

    pub(super) fn post(
        self: &Arc<Self>,
        hub: &Hub,
        chain: &mut VecDeque<WorkRequest>,
    ) -> Result<(), PostError> {
        let before = chain.len();
        let result = self.take(hub, chain);
        if chain.len() < before {
            hub.posted(self);
        }
        result
    }

    fn take(&self, hub: &Hub, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let mut out = self.out.lock();
        loop {
            let Some(request) = chain.front() else { return Ok(()) };
            let Opcode::Send { message } = &request.op else {
                return Err(PostError::NotOneSided);
            };
            let end = self.append(hub, &mut out, message)?;
            if let Some(WorkRequest { id, signaled, op: Opcode::Send { message } }) =
                chain.pop_front()
            {
                out.queued.push_back(Queued { end, id, buffer: signaled.then_some(message) });
            }
        }
    }

    /// Appends a message to what waits to be written, if there is room. Returns where it ends.
    fn append(&self, hub: &Hub, out: &mut Out, message: &[u8]) -> Result<u64, PostError> {
        if out.closed || out.broken {
            return Err(PostError::Closed);
        }
        let max_bytes = hub.limits.max_message_bytes;
        if message.len() > max_bytes {
            return Err(PostError::TooLong { len_bytes: message.len(), max_bytes });
        }
        let (waiting, frame) = (out.waiting_bytes(), HEADER_BYTES + message.len());
        let depth = out.queued.len() + self.unpolled.load(Ordering::Relaxed);
        if depth >= SEND_DEPTH
            || (waiting > 0 && waiting.saturating_add(frame) > hub.limits.send_buffer_bytes)
        {
            return Err(PostError::Full);
        }
        frames::append(&mut out.bytes, message);
        out.taken_bytes += frame as u64;
        Ok(out.taken_bytes)
    }

    pub(super) fn send_copy(self: &Arc<Self>, hub: &Hub, id: u64, message: &[u8]) -> bool {
        let mut out = self.out.lock();
        let Ok(end) = self.append(hub, &mut out, message) else { return false };
        out.queued.push_back(Queued { end, id, buffer: None });
        drop(out);
        hub.posted(self);
        true
    }

    /// Writes what waits, as far as the socket takes it.
    pub(super) fn flush(self: &Arc<Self>, hub: &Hub) {
        for _ in 0..FLUSH_ROUNDS {
            let Some((flight, at)) = self.out.lock().begin() else { return };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let written = rustix::net::send(&self.stream, &flight[at..], flags);
            if !self.wrote(hub, flight, at, written) {
                return;
            }
        }
        hub.mark_dirty(self);
        hub.notify();
    }

    /// Accounts for a write; whether it is worth trying another.
    fn wrote(
        self: &Arc<Self>,
        hub: &Hub,
        flight: Vec<u8>,
        at: usize,
        written: rustix::io::Result<usize>,
    ) -> bool {
        let mut out = self.out.lock();
        out.busy = false;
        if out.closed {
            return false;
        }
        let n = match written {
            Ok(n) if n > 0 => n,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Ok(_) | Err(_) => {
                out.broken = true;
                return false;
            }
        };
        out.written_bytes += n as u64;
        self.complete(hub, &mut out);
        let whole = at + n == flight.len();
        if whole {
            out.reset(flight);
        } else {
            out.flight = flight;
            out.flight_at = at + n;
        }
        let stuck = !whole;
        if stuck != out.armed {
            out.armed = stuck;
            hub.ask_for(self, stuck);
        }
        if stuck && hub.solo {
            hub.mark_dirty(self);
        }
        whole && !out.bytes.is_empty()
    }

    /// Reports the SENDs that have left.
    fn complete(self: &Arc<Self>, hub: &Hub, out: &mut Out) {
        while let Some(first) = out.queued.front() {
            if first.end > out.written_bytes {
                return;
            }
            let Some(done) = out.queued.pop_front() else { return };
            if let Some(buffer) = done.buffer {
                self.unpolled.fetch_add(1, Ordering::Relaxed);
                let outcome = Outcome::Sent(buffer);
                let completion = Completion { context: self.context, id: done.id, outcome };
                hub.push(completion, Some(Arc::clone(self)));
            }
        }
    }

    /// Ends the connection: what waited is reported as flushed, then the end, once.
    pub(super) fn fail(&self, hub: &Hub, reason: &str) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        hub.forget(self);
        // A peer that is gone makes this fail; nothing is left to be done then.
        let _gone_already = self.stream.shutdown(Shutdown::Both);
        self.recv.lock().release(&hub.common.budget);
        let mut out = self.out.lock();
        out.closed = true;
        out.bytes = Vec::new();
        out.flight = Vec::new();
        let context = self.context;
        for queued in std::mem::take(&mut out.queued) {
            let outcome = Outcome::Failed(WorkError::Flushed, queued.buffer);
            hub.push(Completion { context, id: queued.id, outcome }, None);
        }
        let outcome = Outcome::Disconnected(reason.to_owned());
        hub.push(Completion { context, id: 0, outcome }, None);
    }
}
