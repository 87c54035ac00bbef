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
use super::poll::Sink;
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
        let limits = &self.core.limits;
        if self.state.load(Ordering::Acquire) != OPEN {
            return Err(NotStaged::Back(request, PostError::Closed));
        }
        let (count, scratch) = match &request.op {
            Opcode::Send { message } if message.len() > limits.max_message_bytes => {
                let (len_bytes, max_bytes) = (message.len(), limits.max_message_bytes);
                let error = PostError::TooLong { len_bytes, max_bytes };
                return Err(NotStaged::Back(request, error));
            }
            Opcode::Send { .. } if !self.may_send() => {
                return Err(NotStaged::Back(request, PostError::Full));
            }
            Opcode::Send { message } => (message.len().div_ceil(limits.receive_bytes), None),
            Opcode::Read { into: buffer, .. } | Opcode::Write { from: buffer, .. } => {
                (buffer.len().div_ceil(self.core.transfer_bytes), None)
            }
            Opcode::CompareSwap { .. } | Opcode::FetchAdd { .. } => {
                (1, Some(tx.spare.take().unwrap_or_else(|| self.core.pool.get(8))))
            }
        };
        let count = count.max(1);
        let fits = tx.queue.len() + count <= limits.send_depth;
        if !fits || !self.core.take(tx.queue.len(), count) {
            return Err(NotStaged::Back(request, PostError::Full));
        }
        let buffer = buffer_of(&request.op).or(scratch.as_ref());
        match buffer.map_or(Ok(0), |buffer| self.core.lkey(buffer)) {
            Ok(lkey) => self.give(tx, request, scratch, lkey, count),
            Err(error) => {
                self.core.freed(count);
                self.end_locked(tx, error.to_string(), true);
                Err(NotStaged::Back(request, PostError::Closed))
            }
        }
    }

    /// Stages a request for which there is room.
    fn give(
        &self,
        tx: &mut Tx,
        request: WorkRequest,
        scratch: Option<Buffer>,
        lkey: u32,
        count: usize,
    ) -> Result<(), NotStaged> {
        let WorkRequest { id, signaled, op } = request;
        let entry = |kind, buffer| Entry { id, signaled, kind, buffer };
        let (at, usage, entry, verb) = match op {
            Opcode::Send { message } => {
                let grant = self.core.flow.grant();
                let pieces = pieces(message.len(), self.core.limits.receive_bytes, grant)
                    .map(|(immediate, range)| (Verb::Send { immediate }, range));
                stage(tx, entry(Kind::Send, Some(message)), lkey, pieces);
                if let Side::Client = self.side {
                    self.unanswered.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(());
            }
            Opcode::Read { remote, into } => {
                let entry = entry(Kind::Read(remote.region), Some(into));
                (remote, Use::Read, entry, Transfer::Read)
            }
            Opcode::Write { remote, from } => {
                let entry = entry(Kind::Write(remote.region), Some(from));
                (remote, Use::Write, entry, Transfer::Write)
            }
            Opcode::CompareSwap { remote, expected, new } => {
                let entry = entry(Kind::Atomic(remote.region), scratch);
                (remote, Use::Atomic, entry, Transfer::CompareSwap { expected, new })
            }
            Opcode::FetchAdd { remote, add } => {
                let entry = entry(Kind::Atomic(remote.region), scratch);
                (remote, Use::Atomic, entry, Transfer::FetchAdd { add })
            }
        };
        let len_bytes = entry.buffer.as_ref().map_or(0, |buffer| buffer.len());
        match tx.regions.target(at, len_bytes, usage) {
            Ok(target) => {
                let most = self.core.transfer_bytes;
                stage(tx, entry, lkey, transfers(verb, target, len_bytes, most));
                Ok(())
            }
            Err(error) => {
                // It takes one place, however many requests it would have been.
                self.core.freed(count - 1);
                Err(NotStaged::Refused(refused(entry, error)))
            }
        }
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
        let mut seen = Seen::default();
        self.complete_seeing(wc, sink, &mut seen)
    }

    /// As [`Self::complete`]; what is wanted goes to `seen` and not to the sink.
    #[inline]
    pub(super) fn complete_seeing(&self, wc: &Wc, sink: &mut Sink<'_>, seen: &mut Seen) -> bool {
        let mut tx = self.tx.lock();
        let before = tx.queue.len();
        tx.queue.complete(wc, |entry, fate| match fate {
            Fate::Done if seen.wanted == Some(entry.id) => seen.buffer = entry.buffer,
            _ => self.deliver(entry, fate, sink, seen),
        });
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
        // What is flushed before this side ends the queue pair was ended by the device.
        let failure = match fate {
            Fate::Failed(status) => Some(status),
            Fate::Flushed => Some(sys::IBV_WC_WR_FLUSH_ERR),
            Fate::Done | Fate::Refused(_) => None,
        };
        seen.failure = seen.failure.or(failure);
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
pub(super) struct Seen {
    /// The id of a request whose buffer is wanted here.
    wanted: Option<u64>,
    pub(super) buffer: Option<Buffer>,
    failure: Option<u32>,
    marker: bool,
}

impl Seen {
    pub(super) fn wanting(id: u64) -> Self {
        Self { wanted: Some(id), ..Self::default() }
    }
}

/// A one-sided operation, without its place.
#[derive(Clone, Copy)]
enum Transfer {
    Read,
    Write,
    CompareSwap { expected: u64, new: u64 },
    FetchAdd { add: u64 },
}

/// One request for each `most` bytes: devices have a longest transfer.
fn transfers(
    transfer: Transfer,
    target: Target,
    len_bytes: usize,
    most: usize,
) -> impl Iterator<Item = (Verb, Range<usize>)> {
    (0..len_bytes.div_ceil(most).max(1)).map(move |number| {
        let start = number * most;
        let at = Target { addr: target.addr + start as u64, rkey: target.rkey };
        let verb = match transfer {
            Transfer::Read => Verb::Read(at),
            Transfer::Write => Verb::Write(at),
            Transfer::CompareSwap { expected, new } => Verb::CompareSwap { at, expected, new },
            Transfer::FetchAdd { add } => Verb::FetchAdd { at, add },
        };
        (verb, start..len_bytes.min(start + most))
    })
}

fn stage(tx: &mut Tx, entry: Entry, lkey: u32, pieces: impl Iterator<Item = (Verb, Range<usize>)>) {
    let staged = tx.queue.stage(entry, lkey, pieces);
    debug_assert!(staged.is_ok(), "pieces are cut to fit their buffer");
}

/// A request that fails in its turn. The caller has never seen the buffer of an atomic.
fn refused(mut entry: Entry, error: AccessError) -> Entry {
    if let Kind::Atomic(_) = entry.kind {
        entry.buffer = None;
    }
    entry.kind = Kind::Refused(error);
    entry
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
