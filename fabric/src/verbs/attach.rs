//! How one side learns where the other's regions are: it asks over the queue pair.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::endpoint::{Link, OPEN, Side};
use super::ffi::error::VerbsError;
use super::ffi::flight::{Entry, Kind, Verb};
use super::ffi::keys::lent;
use super::ffi::pd::Access;
use super::figures::count;
use super::frames::{ASK, Malformed, NOT_OFFERED, NOTE, Note, READ_ONLY, READ_WRITE};
use super::limits::INTERNAL_DEPTH;
use super::worker;
use crate::buffer::Buffer;
use crate::endpoint::{AttachError, LENT_MAX};
use crate::loads::MAX_REGIONS;
use crate::mem::Memory;
use crate::work::RegionId;

/// How long an answer about a region may take: the owner may have to register it first.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Looks without a pause between them, and the pause between later ones.
const SPINS: usize = 200;
const PAUSE: Duration = Duration::from_micros(50);
/// Looks for room for an answer, with such a pause between them.
const ANSWER_TRIES: usize = 1_000;

fn no_answer(region: RegionId) -> AttachError {
    let text = format!("the server did not answer within {ATTACH_TIMEOUT:?}");
    let source = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
    AttachError::Map { region, source }
}

impl Link {
    /// Asks the peer where a region is, and waits for the answer.
    pub(super) fn attach(self: &Arc<Self>, region: RegionId) -> Result<(), AttachError> {
        if self.tx.lock().regions.has(region) {
            return Ok(());
        }
        if region.0 as usize >= MAX_REGIONS {
            return Err(AttachError::TooMany(region, MAX_REGIONS));
        }
        if let Side::Server(_) = self.side {
            // A client tells of its only region before it sends anything else.
            return Err(AttachError::NotOffered(region));
        }
        let deadline = Instant::now() + ATTACH_TIMEOUT;
        let Some(_one_at_a_time) = self.asking.try_lock_until(deadline) else {
            return Err(no_answer(region));
        };
        // Who had the lock before may have asked for the same one.
        if self.tx.lock().regions.has(region) {
            return Ok(());
        }
        *self.refused.lock() = None;
        if !self.tell(&Note::short(ASK, region.0)) {
            return Err(AttachError::Closed);
        }
        for look in 0.. {
            self.core.poll_for_itself();
            if self.tx.lock().regions.has(region) {
                return Ok(());
            }
            if *self.refused.lock() == Some(region) {
                return Err(AttachError::NotOffered(region));
            }
            if self.is_closed() {
                return Err(AttachError::Closed);
            }
            if Instant::now() > deadline {
                break;
            }
            if look < SPINS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Err(no_answer(region))
    }

    /// Describes memory of the client to the server, as region 0.
    pub(super) fn lend(self: &Arc<Self>, memory: &Memory) -> Result<(), AttachError> {
        let region = RegionId(0);
        let note = self.grant(region, memory, Access::RemoteWrite);
        let note = note.map_err(|error| AttachError::Map { region, source: error.into() })?;
        if self.tell(&note) { Ok(()) } else { Err(AttachError::Closed) }
    }

    /// Lets the peer reach memory, and describes it.
    fn grant(&self, region: RegionId, memory: &Memory, access: Access) -> Result<Note, VerbsError> {
        let note = self.core.describe(region, memory, access)?;
        self.allow(access)?;
        Ok(note)
    }

    /// Describes a buffer to the server, unless that was the last it heard of this number.
    pub(super) fn lend_buffer(
        self: &Arc<Self>,
        number: RegionId,
        buffer: &Buffer,
    ) -> Result<(), AttachError> {
        let place = (number.0 as usize).checked_sub(1).filter(|&place| place < LENT_MAX);
        let place = place.ok_or(AttachError::TooMany(number, LENT_MAX))?;
        let failed = |source| AttachError::Map { region: number, source };
        let target = lent(&self.core.pd, buffer).map_err(|error| failed(error.into()))?;
        let target = target.ok_or(AttachError::NotOffered(number))?;
        self.allow(Access::Lent).map_err(|error| failed(error.into()))?;
        let mut note = Note::short(READ_ONLY, number.0);
        note.addr.set(target.addr);
        note.len_bytes.set(buffer.capacity_bytes() as u64);
        note.rkey.set(target.rkey);
        let mut lent = self.lent.lock();
        if lent[place] == Some(note) {
            return Ok(());
        }
        if self.tell(&note) {
            lent[place] = Some(note);
            return Ok(());
        }
        Err(match self.is_closed() {
            true => AttachError::Closed,
            false => failed(std::io::ErrorKind::WouldBlock.into()),
        })
    }

    /// Sends a note, unless the connection has ended.
    fn tell(&self, note: &Note) -> bool {
        let message = self.core.pool.copy_of(note.as_bytes());
        let len_bytes = message.len();
        let Ok(lkey) = self.core.lkey(&message) else { return false };
        let entry = Entry { id: 0, signaled: false, kind: Kind::Internal, buffer: Some(message) };
        let depth = self.core.limits.send_depth + INTERNAL_DEPTH;
        let mut tx = self.tx.lock();
        if self.state.load(Ordering::Acquire) != OPEN
            || tx.queue.len() >= depth
            || !self.core.take_for_note()
        {
            return false;
        }
        let piece = (Verb::Send { immediate: NOTE }, 0..len_bytes);
        let staged = tx.queue.stage(entry, lkey, [piece]).is_ok();
        let posted = tx.queue.commit();
        if let Err(error) = posted {
            self.end_locked(&mut tx, error.to_string(), true);
            return false;
        }
        staged
    }

    /// The peer's note has arrived.
    pub(super) fn noted(self: &Arc<Self>, note: &Note) -> Result<(), Malformed> {
        let region = RegionId(note.region.get());
        match (note.kind.get(), &self.side) {
            (ASK, Side::Server(_)) => {
                if self.asked.fetch_add(1, Ordering::AcqRel) >= INTERNAL_DEPTH / 2 {
                    return Err(Malformed("too many questions at once"));
                }
                let link = Arc::clone(self);
                worker::run(move || link.answer(region));
                Ok(())
            }
            (READ_ONLY | READ_WRITE, Side::Client) => self.tx.lock().regions.put(note),
            (READ_ONLY | READ_WRITE, Side::Server(_)) if region.0 as usize <= LENT_MAX => {
                self.tx.lock().regions.put(note)
            }
            (NOT_OFFERED, Side::Client) => {
                *self.refused.lock() = Some(region);
                Ok(())
            }
            _ => Err(Malformed("a note that this side does not expect")),
        }
    }

    fn answer(self: &Arc<Self>, region: RegionId) {
        let Side::Server(admission) = &self.side else { return };
        let refusal = Note::short(NOT_OFFERED, region.0);
        let granted = match self.is_closed() {
            true => None,
            false => admission.region(self.context, region),
        };
        let note = match granted {
            None => refusal,
            Some((memory, rights)) => {
                let access = self.core.access_of(rights);
                self.grant(region, &memory, access).unwrap_or_else(|error| {
                    tracing::error!(%error, ?region, "a region cannot be offered over RDMA");
                    refusal
                })
            }
        };
        if note.kind.get() == NOT_OFFERED {
            count(&self.core.counts.regions_refused);
        }
        // From then on it is counted as long as it is in flight.
        for _ in 0..ANSWER_TRIES {
            if self.tell(&note) || self.is_closed() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        self.end("there was no room for an answer about a region".to_owned(), true);
    }
}
