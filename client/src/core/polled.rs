//! A READ by a thread that waits itself, in few instructions: it posts the READ and polls for it
//! while it holds the dispatcher's lock, so that nobody needs to know of it. Only when it takes
//! long does it become one of those that are pending.

use std::sync::Arc;
use std::time::Duration;

use onesided_fabric::{Buffer, Completion, Polled, RemoteAddr};
use parking_lot::MutexGuard;

use super::connection::Connection;
use super::driver::block_on;
use super::time::Deadline;

/// A READ within a rack takes 2 to 5 us. After longer than this, others may dispatch again, and
/// the thread may sleep.
const SPIN_MAX: Duration = Duration::from_micros(10);

/// What who dispatches has.
pub(super) struct Dispatch {
    pub(super) completions: Vec<Completion>,
    pub(super) polled: PolledReads,
}

impl Dispatch {
    pub(super) fn with_room(completions: usize) -> Self {
        let completions = Vec::with_capacity(completions);
        Self { completions, polled: PolledReads::default() }
    }
}

/// READs that their threads posted without a slot: their ids are below 2^32, and those of slots
/// are not.
#[derive(Default)]
pub(super) struct PolledReads {
    last: u32,
    /// Those that took long, each with the slot that it has got. At most as many as slots.
    late: Vec<(u64, u64)>,
}

impl PolledReads {
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

impl Connection {
    /// READs the whole length of `into`, waiting. Whether it did; if not, the ordinary way says
    /// why, and `into` may be a default buffer.
    #[inline]
    pub(crate) fn read_blocking(self: &Arc<Self>, remote: RemoteAddr, into: &mut Buffer) -> bool {
        let Some(mut dispatch) = self.queue.try_lock() else {
            return self.read_waiting(remote, into);
        };
        let id = dispatch.polled.next();
        let spin = self.shared.options.spin.min(SPIN_MAX);
        match self.endpoint().read_polled(id, remote, into, spin) {
            Polled::Read => true,
            Polled::Posted => self.read_late(id, into, dispatch),
            Polled::NotPosted => {
                drop(dispatch);
                self.read_waiting(remote, into)
            }
        }
    }

    /// Waits for a READ that takes long. Still under the lock: whoever takes its completion finds
    /// the slot.
    #[cold]
    fn read_late(
        self: &Arc<Self>,
        id: u64,
        into: &mut Buffer,
        mut dispatch: MutexGuard<'_, Dispatch>,
    ) -> bool {
        let by = Deadline::after("read", self.options().operation_timeout);
        let Ok(permit) = self.slots.try_acquire() else { return false };
        permit.forget();
        let Ok(mut waiter) = self.register(1, false, None, by) else { return false };
        waiter.unposted = 0;
        dispatch.polled.late.push((id, waiter.id));
        drop(dispatch);
        let collected = block_on(|| Some(Arc::clone(self)), waiter.collected(by));
        let read = collected.ok().filter(|collected| collected.failure.is_none());
        put(into, read.and_then(|collected| collected.answer))
    }

    #[cold]
    fn read_waiting(self: &Arc<Self>, remote: RemoteAddr, into: &mut Buffer) -> bool {
        let read = self.read_into(remote, std::mem::take(into));
        put(into, block_on(|| Some(Arc::clone(self)), read).ok())
    }
}

fn put(into: &mut Buffer, read: Option<Buffer>) -> bool {
    read.map(|buffer| *into = buffer).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_read_finds_its_slot_once_and_others_are_left_alone() {
        let mut reads = PolledReads::default();
        let (first, second) = (reads.next(), reads.next());
        assert!(first != second && first < 1 << 32 && second < 1 << 32);
        let slot = 7 << 32 | 3;
        reads.late.push((second, slot));
        assert_eq!(reads.slot_of(first), None, "nobody waits for it");
        assert_eq!(reads.slot_of(second), Some(slot));
        assert_eq!(reads.slot_of(second), None, "once");
        for of_a_slot_or_of_no_request in [slot, 0, u64::MAX] {
            assert_eq!(reads.slot_of(of_a_slot_or_of_no_request), Some(of_a_slot_or_of_no_request));
        }
        reads.last = u32::MAX;
        assert_eq!(reads.next(), 1, "0 is no id");
    }
}
