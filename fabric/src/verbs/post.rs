//! The data path of an endpoint: requests to the device, completions to the user.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::endpoint::{DOOMED, ENDED, Link, OPEN, Side, Tx};
use super::ffi::cq::Wc;
use super::ffi::error::status_cause;
use super::ffi::flight::{Entry, Fate, Kind, Target, Verb};
use super::ffi::sys;
use super::frames::pieces;
use super::queue::Sink;
use super::regions::Use;
use crate::buffer::Buffer;
use crate::mem::AccessError;
use crate::work::{Completion, Opcode, Outcome, PostError, WorkError, WorkRequest};

/// Why a request was not staged.
enum NotStaged {
    /// It goes back to its owner.
    Back(WorkRequest, PostError),
    /// It was taken, and fails in its turn.
    Refused(Entry),
}

impl Link {
    pub(super) fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let mut tx = self.tx.lock();
        let mut outcome = Ok(());
        while let Some(request) = chain.pop_front() {
            match self.stage(&mut tx, request) {
                Ok(()) => {}
                Err(NotStaged::Back(request, error)) => {
                    chain.push_front(request);
                    outcome = Err(error);
                    break;
                }
                Err(NotStaged::Refused(entry)) => self.doom(&mut tx, entry),
            }
        }
        if let Err(error) = tx.queue.commit() {
            self.end_locked(&mut tx, error.to_string(), true);
        }
        outcome
    }

    fn stage(&self, tx: &mut Tx, request: WorkRequest) -> Result<(), NotStaged> {
        let depth = self.core.limits.send_depth;
        if self.state.load(Ordering::Acquire) != OPEN {
            return Err(NotStaged::Back(request, PostError::Closed));
        }
        if tx.queue.len() >= depth {
            return Err(NotStaged::Back(request, PostError::Full));
        }
        let scratch = match &request.op {
            Opcode::CompareSwap { .. } | Opcode::FetchAdd { .. } => Some(self.core.pool.get(8)),
            _ => None,
        };
        let buffer = buffer_of(&request.op).or(scratch.as_ref());
        let lkey = match buffer.map_or(Ok(0), |buffer| self.core.lkey(buffer)) {
            Ok(lkey) => lkey,
            Err(error) => {
                self.end_locked(tx, error.to_string(), true);
                return Err(NotStaged::Back(request, PostError::Closed));
            }
        };
        let WorkRequest { id, signaled, op } = request;
        let back = |op, error| Err(NotStaged::Back(WorkRequest { id, signaled, op }, error));
        match op {
            Opcode::Send { message } => {
                let (len_bytes, max_bytes) = (message.len(), self.core.limits.max_message_bytes);
                if len_bytes > max_bytes {
                    let error = PostError::TooLong { len_bytes, max_bytes };
                    return back(Opcode::Send { message }, error);
                }
                let piece_bytes = self.core.limits.receive_bytes;
                let count = len_bytes.div_ceil(piece_bytes).max(1);
                if !self.room(tx, count) {
                    return back(Opcode::Send { message }, PostError::Full);
                }
                let entry = Entry { id, signaled, kind: Kind::Send, buffer: Some(message) };
                let sends = pieces(len_bytes, piece_bytes);
                let sends = sends.map(|(immediate, range)| (Verb::Send { immediate }, range));
                self.give(tx, entry, lkey, sends);
                Ok(())
            }
            Opcode::Read { remote, into } => {
                let count = self.transfers(into.len());
                if !self.room(tx, count) {
                    return back(Opcode::Read { remote, into }, PostError::Full);
                }
                let target = tx.regions.target(remote, into.len(), Use::Read);
                let (len_bytes, buffer) = (into.len(), Some(into));
                let entry = Entry { id, signaled, kind: Kind::Read(remote.region), buffer };
                let verb = |target| Verb::Read(target);
                self.transfer(tx, entry, lkey, target, len_bytes, verb)
            }
            Opcode::Write { remote, from } => {
                let count = self.transfers(from.len());
                if !self.room(tx, count) {
                    return back(Opcode::Write { remote, from }, PostError::Full);
                }
                let target = tx.regions.target(remote, from.len(), Use::Write);
                let (len_bytes, buffer) = (from.len(), Some(from));
                let entry = Entry { id, signaled, kind: Kind::Write(remote.region), buffer };
                let verb = |target| Verb::Write(target);
                self.transfer(tx, entry, lkey, target, len_bytes, verb)
            }
            Opcode::CompareSwap { remote, expected, new } => {
                if !self.room(tx, 1) {
                    let op = Opcode::CompareSwap { remote, expected, new };
                    return back(op, PostError::Full);
                }
                let target = tx.regions.target(remote, 8, Use::Atomic);
                let entry =
                    Entry { id, signaled, kind: Kind::Atomic(remote.region), buffer: scratch };
                self.transfer(tx, entry, lkey, target, 8, |at| Verb::CompareSwap {
                    at,
                    expected,
                    new,
                })
            }
            Opcode::FetchAdd { remote, add } => {
                if !self.room(tx, 1) {
                    return back(Opcode::FetchAdd { remote, add }, PostError::Full);
                }
                let target = tx.regions.target(remote, 8, Use::Atomic);
                let entry =
                    Entry { id, signaled, kind: Kind::Atomic(remote.region), buffer: scratch };
                self.transfer(tx, entry, lkey, target, 8, |at| Verb::FetchAdd { at, add })
            }
        }
    }

    /// Requests that a READ or WRITE of so many bytes is made of.
    fn transfers(&self, len_bytes: usize) -> usize {
        len_bytes.div_ceil(self.core.transfer_bytes).max(1)
    }

    /// Takes room for `count` requests, if there is any; a request of more than all of the queue
    /// gets it when the queue is empty.
    fn room(&self, tx: &Tx, count: usize) -> bool {
        let len = tx.queue.len();
        let fits = len + count <= self.core.limits.send_depth;
        fits && self.core.take(count)
    }

    fn transfer(
        &self,
        tx: &mut Tx,
        mut entry: Entry,
        lkey: u32,
        target: Result<Target, AccessError>,
        len_bytes: usize,
        verb: impl Fn(Target) -> Verb,
    ) -> Result<(), NotStaged> {
        let most = self.core.transfer_bytes;
        let count = self.transfers(len_bytes);
        match target {
            Ok(Target { addr, rkey }) => {
                let pieces = (0..count).map(|number| {
                    let start = number * most;
                    let target = Target { addr: addr + start as u64, rkey };
                    (verb(target), start..len_bytes.min(start + most))
                });
                self.give(tx, entry, lkey, pieces);
                Ok(())
            }
            Err(error) => {
                self.core.freed(count - 1);
                if matches!(entry.kind, Kind::Atomic(_)) {
                    entry.buffer = None;
                }
                entry.kind = Kind::Refused(error);
                Err(NotStaged::Refused(entry))
            }
        }
    }

    /// Stages an entry for which there is room.
    fn give(
        &self,
        tx: &mut Tx,
        entry: Entry,
        lkey: u32,
        pieces: impl Iterator<Item = (Verb, Range<usize>)>,
    ) {
        let staged = tx.queue.stage(entry, lkey, pieces);
        debug_assert!(staged.is_ok(), "pieces are cut to fit their buffer");
    }

    /// Takes a request that must not be posted: what is before it is done, it fails, and the
    /// endpoint ends.
    fn doom(&self, tx: &mut Tx, entry: Entry) {
        self.state.store(DOOMED, Ordering::Release);
        if let Err(error) = tx.queue.commit() {
            self.end_locked(tx, error.to_string(), true);
        }
        let reason = match entry.kind {
            Kind::Refused(error) => WorkError::Access(error).to_string(),
            _ => "a request was refused".to_owned(),
        };
        tx.queue.refuse(entry);
        let _first_reason_stays = self.reason.set(reason.clone());
        if tx.queue.is_refused_next() {
            self.end_locked(tx, reason, true);
        }
    }

    /// Takes a completion of this endpoint's. Returns whether it was the last.
    pub(super) fn complete(&self, wc: &Wc, sink: &mut Sink<'_>) -> bool {
        let mut tx = self.tx.lock();
        let before = tx.queue.len();
        let mut seen = Seen::default();
        tx.queue.complete(wc, |entry, fate| self.deliver(entry, fate, sink, &mut seen));
        self.core.freed(before - tx.queue.len());
        if seen.marker {
            return self.finish(&mut tx, sink);
        }
        if let Some(status) = seen.failure {
            self.end_locked(&mut tx, status_cause(status).to_owned(), true);
        } else if tx.queue.is_refused_next() {
            let reason = "an access outside of what was granted".to_owned();
            self.end_locked(&mut tx, reason, true);
        }
        false
    }

    /// Destroys the queue pair without waiting any longer, and delivers everything as flushed.
    pub(super) fn force(&self, tx: &mut Tx, sink: &mut Sink<'_>) {
        let before = tx.queue.len();
        let mut seen = Seen::default();
        tx.queue.destroy(|entry, fate| self.deliver(entry, fate, sink, &mut seen));
        self.core.freed(before);
        self.finish(tx, sink);
    }

    fn finish(&self, tx: &mut Tx, sink: &mut Sink<'_>) -> bool {
        if self.state.swap(ENDED, Ordering::AcqRel) == ENDED {
            return false;
        }
        if let Some(qp) = tx.queue.take_idle_qp() {
            super::worker::run(move || drop(qp));
        }
        if self.announced.load(Ordering::Acquire) {
            let reason = self.reason.get().cloned().unwrap_or_default();
            let outcome = Outcome::Disconnected(reason);
            sink.push(Completion { context: self.context, id: 0, outcome });
        }
        true
    }

    fn deliver(&self, entry: Entry, fate: Fate, sink: &mut Sink<'_>, seen: &mut Seen) {
        let Entry { id, signaled, kind, buffer } = entry;
        if let Fate::Failed(status) = fate {
            seen.failure = Some(status);
        }
        match kind {
            Kind::Marker => {
                seen.marker = true;
                return;
            }
            Kind::Internal => {
                if let Side::Server(_) = self.side {
                    self.asked.fetch_sub(1, Ordering::AcqRel);
                }
                return;
            }
            _ => {}
        }
        let outcome = match fate {
            Fate::Done if !signaled => return,
            Fate::Done => done(kind, buffer.unwrap_or_default()),
            Fate::Failed(status) => failed(work_error(status, kind), kind, buffer),
            Fate::Refused(error) => failed(WorkError::Access(error), kind, buffer),
            Fate::Flushed => failed(WorkError::Flushed, kind, buffer),
        };
        sink.push(Completion { context: self.context, id, outcome });
    }
}

/// What else was seen among completed requests.
#[derive(Default)]
struct Seen {
    failure: Option<u32>,
    marker: bool,
}

/// What the caller lends for it.
fn buffer_of(op: &Opcode) -> Option<&Buffer> {
    match op {
        Opcode::Read { into: buffer, .. }
        | Opcode::Write { from: buffer, .. }
        | Opcode::Send { message: buffer } => Some(buffer),
        Opcode::CompareSwap { .. } | Opcode::FetchAdd { .. } => None,
    }
}

fn done(kind: Kind, buffer: Buffer) -> Outcome {
    match kind {
        Kind::Read(_) => Outcome::Read(buffer),
        Kind::Write(_) => Outcome::Written(buffer),
        Kind::Atomic(_) => Outcome::Atomic(buffer.words().first().copied().unwrap_or_default()),
        _ => Outcome::Sent(buffer),
    }
}

fn failed(error: WorkError, kind: Kind, buffer: Option<Buffer>) -> Outcome {
    // The caller has never seen the buffer that an atomic's answer goes to.
    let buffer = if let Kind::Atomic(_) = kind { None } else { buffer };
    Outcome::Failed(error, buffer)
}

/// What a device's status means to the poster.
fn work_error(status: u32, kind: Kind) -> WorkError {
    match (status, kind) {
        // The owner has taken it back, or the address was never one of it.
        (
            sys::IBV_WC_REM_ACCESS_ERR,
            Kind::Read(region) | Kind::Write(region) | Kind::Atomic(region),
        ) => WorkError::Access(AccessError::NotAttached(region.0)),
        (
            sys::IBV_WC_RETRY_EXC_ERR
            | sys::IBV_WC_RNR_RETRY_EXC_ERR
            | sys::IBV_WC_RESP_TIMEOUT_ERR
            | sys::IBV_WC_REM_ABORT_ERR,
            _,
        ) => WorkError::PeerGone,
        _ => WorkError::Flushed,
    }
}
