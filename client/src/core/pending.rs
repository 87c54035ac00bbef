//! What was posted and has not completed: a bounded slab of waiters.
//!
//! An id is generation (32 bits), number within a group (16 bits), slot (16 bits). The generation
//! makes a late completion of an earlier use recognisable. A slot whose future was dropped stays
//! taken until its completion comes: the peer may still use what the slot keeps.

use std::task::Waker;
use std::time::Instant;

use onesided_fabric::{Buffer, WorkError};
use parking_lot::Mutex;

use super::staging::Keep;

/// Requests of one group.
pub(crate) const GROUP_MAX: usize = 1 << 16;

pub(crate) struct Pending {
    slots: Box<[Mutex<Slot>]>,
    free: Mutex<Vec<u16>>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    taken: bool,
    /// Completions that are still to come.
    remaining: u32,
    abandoned: bool,
    is_rpc: bool,
    /// Of an RPC: its credit comes back with the answer.
    has_credit: bool,
    deadline: Option<Instant>,
    waker: Option<Waker>,
    keep: Option<Keep>,
    /// The answer, or what the READ brought where there is only one.
    answer: Option<Buffer>,
    /// Of a group of several READs.
    reads: Vec<Option<Buffer>>,
    /// What a compare-and-swap found.
    word: Option<u64>,
    failure: Option<Failure>,
}

/// Why nothing came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The connection was lost.
    Lost,
    /// The fabric says.
    Work(WorkError),
}

/// What a slot held when its waiter came for it.
pub(crate) struct Collected {
    /// Of an RPC, or of a single READ.
    pub(crate) answer: Option<Buffer>,
    /// Of several READs.
    pub(crate) reads: Vec<Option<Buffer>>,
    /// Of a compare-and-swap.
    pub(crate) word: Option<u64>,
    pub(crate) keep: Option<Keep>,
    pub(crate) failure: Option<Failure>,
}

/// What the slab's owner has to give back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Freed {
    pub(crate) slot: bool,
    pub(crate) credit: bool,
}

impl Pending {
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.min(1 << 16);
        Self {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            free: Mutex::new((0..slots).rev().map(|slot| slot as u16).collect()),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// A slot for `count` completions, of an RPC (`has_credit`) or of READs. The caller holds a
    /// permit, so there is one.
    pub(crate) fn register(
        &self,
        count: u32,
        has_credit: bool,
        deadline: Instant,
        keep: Option<Keep>,
    ) -> Option<u64> {
        let index = self.free.lock().pop()?;
        let mut slot = self.slots[usize::from(index)].lock();
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.taken = true;
        slot.remaining = count;
        slot.abandoned = false;
        slot.is_rpc = has_credit;
        slot.has_credit = has_credit;
        slot.deadline = Some(deadline);
        slot.keep = keep;
        slot.failure = None;
        slot.word = None;
        slot.reads.clear();
        // A single READ needs no allocation.
        if !has_credit && count > 1 {
            slot.reads.resize_with(count as usize, || None);
        }
        Some(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// The waker that `id` has to wake when all of it is complete. `true` = it is already.
    pub(crate) fn watch(&self, id: u64, waker: &Waker) -> bool {
        let Some(mut slot) = self.slot(id) else { return true };
        if slot.remaining == 0 {
            return true;
        }
        if !slot.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
        false
    }

    pub(crate) fn is_done(&self, id: u64) -> bool {
        self.slot(id).is_none_or(|slot| slot.remaining == 0)
    }

    /// READs that have not completed, those that nobody waits for included.
    pub(crate) fn reads(&self) -> Vec<u64> {
        let of = |(index, slot): (usize, &Mutex<Slot>)| {
            let slot = slot.lock();
            let is_read = slot.taken && slot.remaining > 0 && !slot.is_rpc;
            is_read.then(|| u64::from(slot.generation) << 32 | index as u64)
        };
        self.slots.iter().enumerate().filter_map(of).collect()
    }

    /// What came of it; the slot is free afterwards.
    pub(crate) fn collect(&self, id: u64) -> Option<Collected> {
        let mut slot = self.slot(id).filter(|slot| slot.remaining == 0)?;
        let collected = Collected {
            answer: slot.answer.take(),
            reads: std::mem::take(&mut slot.reads),
            word: slot.word.take(),
            keep: slot.keep.take(),
            failure: slot.failure,
        };
        self.clear(&mut slot, id);
        Some(collected)
    }

    /// Nobody waits any more, and `unposted` requests of the group were never posted.
    pub(crate) fn abandon(&self, id: u64, unposted: u32) -> Freed {
        let Some(mut slot) = self.slot(id) else { return Freed::default() };
        slot.abandoned = true;
        slot.waker = None;
        slot.remaining = slot.remaining.saturating_sub(unposted);
        let credit = slot.remaining == 0 && std::mem::take(&mut slot.has_credit);
        Freed { slot: self.free_if_unwanted(&mut slot, id), credit }
    }

    /// An answer to `id` arrived.
    pub(crate) fn answered(&self, id: u64, answer: Buffer) -> Freed {
        let Some(mut slot) = self.slot(id).filter(|slot| slot.has_credit) else {
            tracing::debug!(id, "answer to a request that nobody made");
            return Freed::default();
        };
        slot.answer = Some(answer);
        let credit = std::mem::take(&mut slot.has_credit);
        Freed { slot: self.complete(slot, id), credit }
    }

    /// A READ of a group is done.
    pub(crate) fn read(&self, id: u64, buffer: Buffer) -> Freed {
        let Some(mut slot) = self.slot(id) else { return Freed::default() };
        let Slot { reads, answer, .. } = &mut *slot;
        let place = if reads.is_empty() { Some(answer) } else { reads.get_mut(sub_index(id)) };
        match place {
            Some(place) if place.is_none() => *place = Some(buffer),
            _ => return Freed::default(),
        }
        Freed { slot: self.complete(slot, id), credit: false }
    }

    /// A compare-and-swap is done.
    pub(crate) fn swapped(&self, id: u64, word: u64) -> Freed {
        let Some(mut slot) = self.slot(id) else { return Freed::default() };
        slot.word = Some(word);
        Freed { slot: self.complete(slot, id), credit: false }
    }

    /// A request failed.
    pub(crate) fn failed(&self, id: u64, error: WorkError) -> Freed {
        let Some(mut slot) = self.slot(id) else { return Freed::default() };
        // The first failure says most: the others are flushed because of it.
        slot.failure.get_or_insert(Failure::Work(error));
        let credit = std::mem::take(&mut slot.has_credit);
        Freed { slot: self.complete(slot, id), credit }
    }

    /// The connection is lost: everything that is waited for ends.
    pub(crate) fn fail_all(&self) {
        for (index, slot) in self.slots.iter().enumerate() {
            let mut slot = slot.lock();
            if !slot.taken || slot.remaining == 0 {
                continue;
            }
            slot.failure.get_or_insert(Failure::Lost);
            slot.remaining = 1;
            let id = u64::from(slot.generation) << 32 | index as u64;
            self.complete(slot, id);
        }
    }

    /// Wakes who waited until its deadline.
    pub(crate) fn wake_expired(&self, now: Instant) {
        for slot in &self.slots {
            let mut slot = slot.lock();
            if slot.taken && slot.deadline.is_some_and(|deadline| now >= deadline) {
                let waker = slot.waker.take();
                drop(slot);
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn slot(&self, id: u64) -> Option<parking_lot::MutexGuard<'_, Slot>> {
        let slot = self.slots.get(usize::from(id as u16))?.lock();
        (slot.taken && slot.generation == (id >> 32) as u32).then_some(slot)
    }

    /// One completion less to come; wakes after unlocking. `true` = the slot is free.
    fn complete(&self, mut slot: parking_lot::MutexGuard<'_, Slot>, id: u64) -> bool {
        slot.remaining = slot.remaining.saturating_sub(1);
        if slot.remaining > 0 {
            return false;
        }
        if self.free_if_unwanted(&mut slot, id) {
            return true;
        }
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
        false
    }

    fn free_if_unwanted(&self, slot: &mut Slot, id: u64) -> bool {
        let free = slot.abandoned && slot.remaining == 0;
        if free {
            self.clear(slot, id);
        }
        free
    }

    fn clear(&self, slot: &mut Slot, id: u64) {
        slot.taken = false;
        slot.waker = None;
        slot.keep = None;
        slot.answer = None;
        slot.word = None;
        slot.reads.clear();
        self.free.lock().push(id as u16);
    }
}

/// The id of request `number` in the group of `id`.
pub(crate) fn numbered(id: u64, number: usize) -> u64 {
    debug_assert!(number < GROUP_MAX);
    id | (number as u64) << 16
}

fn sub_index(id: u64) -> usize {
    usize::from((id >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_late_answer_to_an_earlier_use_is_ignored() {
        let pending = Pending::new(1);
        let first = pending.register(1, true, soon(), None).unwrap();
        assert!(pending.register(1, true, soon(), None).is_none(), "one slot");
        assert_eq!(pending.abandon(first, 0), Freed::default(), "the answer is still to come");
        let freed = pending.answered(first, Buffer::default());
        assert_eq!(freed, Freed { slot: true, credit: true });
        let second = pending.register(1, true, soon(), None).unwrap();
        assert_eq!(pending.answered(first, Buffer::default()), Freed::default());
        assert!(!pending.is_done(second));
        assert_eq!(
            pending.answered(second, Buffer::default()),
            Freed { slot: false, credit: true }
        );
        assert!(pending.collect(second).unwrap().answer.is_some());
        assert!(pending.collect(second).is_none());
    }

    #[test]
    fn a_group_is_done_with_its_last_read() {
        let pending = Pending::new(2);
        let id = pending.register(2, false, soon(), None).unwrap();
        pending.read(numbered(id, 1), Buffer::default());
        pending.read(numbered(id, 1), Buffer::default());
        assert!(!pending.is_done(id), "the same number twice does not count twice");
        pending.read(numbered(id, 0), Buffer::default());
        let collected = pending.collect(id).unwrap();
        assert!(collected.reads.iter().all(Option::is_some));
    }

    #[test]
    fn what_was_never_posted_frees_its_slot_at_once() {
        let pending = Pending::new(1);
        let id = pending.register(1, true, soon(), None).unwrap();
        assert_eq!(pending.abandon(id, 1), Freed { slot: true, credit: true });
    }

    #[test]
    fn a_loss_ends_everything() {
        let pending = Pending::new(3);
        let reads = pending.register(5, false, soon(), None).unwrap();
        let rpc = pending.register(1, true, soon(), None).unwrap();
        pending.fail_all();
        for id in [reads, rpc] {
            assert_eq!(pending.collect(id).unwrap().failure, Some(Failure::Lost));
        }
        assert_eq!(pending.free.lock().len(), 3);
    }
}
