//! What a thread waits for itself, in few instructions: it posts a READ, or a chain that ends with
//! a CAS or FAA, and polls for it while it holds the dispatcher's lock, so that nobody needs to
//! know of it. Only when it takes long does it become one of those that are pending.

use std::sync::Arc;
use std::time::Duration;

use onesided_fabric::{Awaited, Buffer, Completion, Polled, RemoteAddr};
use parking_lot::MutexGuard;

use super::call::{CallError, Waiter};
use super::connection::Connection;
use super::driver::{block_on, is_driver};
use super::time::Deadline;

/// A READ within a rack takes 2 to 5 us. After longer than this, others may dispatch again, and
/// the thread may sleep.
const SPIN_MAX: Duration = Duration::from_micros(10);

/// What who dispatches has.
pub(super) struct Dispatch {
    pub(super) completions: Vec<Completion>,
    pub(super) polled: PolledIds,
}

impl Dispatch {
    pub(super) fn with_room(completions: usize) -> Self {
        let completions = Vec::with_capacity(completions);
        Self { completions, polled: PolledIds::default() }
    }
}

/// What threads posted without a slot: their ids are below 2^32, and those of slots are not.
#[derive(Default)]
pub(super) struct PolledIds {
    last: u32,
    /// Those that took long, each with the slot that it has got: [`Slots`] bounds them.
    ///
    /// [`Slots`]: super::slots::Slots
    late: Vec<(u64, u64)>,
}

impl PolledIds {
    /// The id of the next one.
    fn next(&mut self) -> u64 {
        self.last = self.last.checked_add(1).unwrap_or(1);
        u64::from(self.last)
    }

    /// Whose completion it is: that of a slot, of nobody (`None`), or none of a request (0).
    #[inline]
    pub(super) fn slot_of(&mut self, id: u64) -> Option<u64> {
        if id == 0 || id >> 32 != 0 {
            return Some(id);
        }
        let place = self.late.iter().position(|&(late, _)| late == id)?;
        Some(self.late.swap_remove(place).1)
    }
}

/// Where the word that a CAS or FAA found is to be had.
pub(super) enum Word<'a> {
    Found(u64),
    Comes(Waiter<'a>),
    /// The connection was lost: whether anything was done is not known.
    Lost,
}

impl Connection {
    /// READs the whole length of `into`, waiting. Whether it did; if not, the ordinary way says
    /// why, and `into` may be a default buffer. `by` is when the operation must have ended: the
    /// first of its READs that takes long says so, and nobody looks at the time before.
    #[inline]
    pub(crate) fn read_blocking(
        self: &Arc<Self>,
        remote: RemoteAddr,
        into: &mut Buffer,
        by: &mut Option<Deadline>,
    ) -> bool {
        let Some(mut dispatch) = self.polling() else {
            return self.read_waiting(remote, into, by);
        };
        let id = dispatch.polled.next();
        match self.endpoint().polled(id, Awaited::Read(remote, into), self.polls_for()) {
            Polled::Done => true,
            Polled::Posted => self.read_late(id, into, dispatch, by),
            Polled::NotPosted => {
                drop(dispatch);
                self.read_waiting(remote, into, by)
            }
        }
    }

    /// Lets `post` post a chain whose last request is a CAS or FAA of this id, and polls for that.
    /// If `post` fails, its last request was not posted. `Err(post)`: the thread does not wait
    /// itself, others dispatch just now, or too many already took long.
    pub(super) fn polled_word<T, E, P: FnOnce(u64) -> Result<T, E>>(
        &self,
        by: impl FnOnce() -> Deadline,
        post: P,
    ) -> Result<Result<(T, Word<'_>), E>, P> {
        if !is_driver() {
            return Err(post);
        }
        let Some(mut dispatch) = self.polling() else { return Err(post) };
        let id = dispatch.polled.next();
        let posted = match post(id) {
            Ok(posted) => posted,
            Err(error) => return Ok(Err(error)),
        };
        let mut found = 0;
        let polled = self.endpoint().polled(id, Awaited::Atomic(&mut found), self.polls_for());
        let word = match polled {
            Polled::Done => Word::Found(found),
            _ => self.late(id, by(), dispatch).map_or(Word::Lost, Word::Comes),
        };
        Ok(Ok((posted, word)))
    }

    /// The dispatcher's lock, unless somebody has it or what is posted under it might find no
    /// slot when it takes long.
    #[inline]
    fn polling(&self) -> Option<MutexGuard<'_, Dispatch>> {
        self.queue.try_lock().filter(|_| self.slots.may_be_late())
    }

    fn polls_for(&self) -> Duration {
        self.shared.options.spin.min(SPIN_MAX)
    }

    /// A slot for what takes long. Still under the lock: whoever takes its completion finds it.
    fn late(
        &self,
        id: u64,
        by: Deadline,
        mut dispatch: MutexGuard<'_, Dispatch>,
    ) -> Result<Waiter<'_>, CallError> {
        if !self.slots.take_late() {
            return Err(CallError::Lost { sent: true });
        }
        let mut waiter = self.register(1, None, None, None, by)?;
        waiter.unposted = 0;
        dispatch.polled.late.push((id, waiter.id));
        Ok(waiter)
    }

    /// Waits for a READ that takes long.
    #[cold]
    fn read_late(
        self: &Arc<Self>,
        id: u64,
        into: &mut Buffer,
        dispatch: MutexGuard<'_, Dispatch>,
        by: &mut Option<Deadline>,
    ) -> bool {
        let by = *by.get_or_insert_with(|| self.read_deadline());
        let Ok(mut waiter) = self.late(id, by, dispatch) else { return false };
        let collected = block_on(|| Some(Arc::clone(self)), waiter.collected(by));
        let read = collected.ok().filter(|collected| collected.failure.is_none());
        put(into, read.and_then(|collected| collected.answer))
    }

    #[cold]
    fn read_waiting(
        self: &Arc<Self>,
        remote: RemoteAddr,
        into: &mut Buffer,
        by: &mut Option<Deadline>,
    ) -> bool {
        let by = *by.get_or_insert_with(|| self.read_deadline());
        let read = self.read_until(remote, std::mem::take(into), by);
        put(into, block_on(|| Some(Arc::clone(self)), read).ok())
    }
}

fn put(into: &mut Buffer, read: Option<Buffer>) -> bool {
    read.map(|buffer| *into = buffer).is_some()
}

#[cfg(test)]
pub(super) mod tests;
