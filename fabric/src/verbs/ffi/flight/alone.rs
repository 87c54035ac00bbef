//! What a thread waits for itself, in as few steps as there can be: one READ that is posted alone,
//! and the end of that, or of a chain.

use super::{Entry, Kind, SendQueue, Target, rdma};
use crate::buffer::Buffer;
use crate::verbs::ffi::cq::Wc;
use crate::verbs::ffi::error::VerbsError;
use crate::verbs::ffi::sys;
use crate::work::RegionId;

/// A signalled READ, but for its number, its length and the two places. Kept, since making one is
/// half the work of posting it.
pub(super) fn template() -> sys::ibv_send_wr {
    // SAFETY: it is plain data, for which zero is a value.
    let zero: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
    let (opcode, send_flags) = (sys::IBV_WR_RDMA_READ, sys::IBV_SEND_SIGNALED);
    sys::ibv_send_wr { opcode, send_flags, ..zero }
}

impl SendQueue {
    /// Gives a READ of the whole length of `into` to the device, and takes the buffer for that
    /// long. What is staged must have been committed.
    ///
    /// # Errors
    /// As [`SendQueue::commit`]; the buffer is in flight all the same.
    #[inline]
    pub(crate) fn post_read(
        &mut self,
        id: u64,
        region: RegionId,
        into: &mut Buffer,
        lkey: u32,
        from: Target,
    ) -> Result<(), VerbsError> {
        debug_assert!(self.requests.is_empty(), "commit first");
        let (addr, length) = (into.addr(), into.len() as u32);
        let mut element = sys::ibv_sge { addr, length, lkey };
        self.read.wr_id = self.tag | u64::from(self.first.wrapping_add(self.ring.len() as u32));
        self.read.num_sge = i32::from(length > 0);
        self.read.sg_list = &raw mut element;
        self.read.wr.rdma = rdma(from);
        let buffer = Some(std::mem::take(into));
        self.ring.push_back(Entry { id, signaled: true, kind: Kind::Read(region), buffer });
        self.quiet = 0;
        // SAFETY: request and element live until the call returns; the ring owns the buffer.
        let given = unsafe { super::give(self.qp.as_ref(), &raw mut self.read) };
        self.broken |= given.is_err();
        given
    }

    /// The buffer of the request `id`, if that has completed well, nothing is behind it, and nobody
    /// hears of what was in flight before it; and how many requests that was, with it.
    #[inline]
    pub(crate) fn take_last(&mut self, wc: &Wc, id: u64) -> Option<(Buffer, usize)> {
        let count = (wc.wr_id() as u32).wrapping_sub(self.first) as usize + 1;
        let last = self.ring.back()?;
        let is_last = count == self.ring.len() && last.id == id;
        let is_good = wc.is_success() && !self.failed && self.owed.is_none();
        if !is_last || !is_good || !matches!(last.kind, Kind::Read(_) | Kind::Atomic(_)) {
            return None;
        }
        let is_heard_of = |entry: &Entry| {
            entry.signaled || !matches!(entry.kind, Kind::Write(_) | Kind::Atomic(_) | Kind::Send)
        };
        if count > 1 && self.ring.iter().take(count - 1).any(is_heard_of) {
            return None;
        }
        self.first = self.first.wrapping_add(count as u32);
        let buffer = self.ring.pop_back()?.buffer;
        if count > 1 {
            self.ring.clear();
        }
        Some((buffer.unwrap_or_default(), count))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Flight;
    use super::*;

    const FIRST: u64 = 0x1234 << 32;

    /// A READ of 64 bytes that no device has heard of.
    fn post(flight: &mut Flight, id: u64) {
        let mut into = flight.pool.get(64);
        let from = Target { addr: 0, rkey: 0 };
        let posted = flight.queue.post_read(id, RegionId(1), &mut into, 5, from);
        assert!(posted.is_err(), "there is no queue pair");
        assert_eq!((into.len(), flight.queue.read.num_sge), (0, 1), "it is the queue's");
    }

    #[test]
    fn a_read_alone_is_taken_once_and_only_by_its_own_completion() {
        let mut flight = Flight::new();
        post(&mut flight, 7);
        assert_eq!(flight.queue.read.wr_id, FIRST);
        let done = |number: u64| Wc::made_up(FIRST | number, sys::IBV_WC_SUCCESS);
        for (wc, id) in [
            (done(0), 8),
            (done(1), 7),
            (Wc::made_up(FIRST, sys::IBV_WC_REM_ACCESS_ERR), 7),
            (Wc::made_up(FIRST, sys::IBV_WC_WR_FLUSH_ERR), 7),
        ] {
            assert!(flight.queue.take_last(&wc, id).is_none());
        }
        let (buffer, count) = flight.queue.take_last(&done(0), 7).expect("its own");
        assert_eq!((buffer.len(), flight.queue.len(), flight.queue.first()), (64, 0, 1));
        assert_eq!(count, 1);
        assert!(flight.queue.take_last(&done(0), 7).is_none());
        post(&mut flight, 9);
        assert_eq!(flight.queue.read.wr_id, FIRST | 1);
    }

    #[test]
    fn a_read_with_others_is_left_to_who_sorts_them() {
        let mut flight = Flight::new();
        flight.stage(1, 1);
        post(&mut flight, 2);
        let wc = Wc::made_up(FIRST | 1, sys::IBV_WC_SUCCESS);
        assert!(flight.queue.take_last(&wc, 2).is_none(), "it stands for both");
        flight.complete(0, sys::IBV_WC_SUCCESS);
        flight.stage(3, 1);
        assert!(flight.queue.take_last(&wc, 2).is_none(), "one is behind it");
        flight.complete(1, sys::IBV_WC_SUCCESS);
        assert_eq!(flight.seen.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn the_end_of_a_chain_stands_for_what_nobody_hears_of() {
        let mut flight = Flight::new();
        let stage = |flight: &mut Flight, id, signaled, kind| {
            let buffer = Some(flight.pool.get(64));
            let verb = super::super::Verb::Write(Target { addr: 0, rkey: 0 });
            let entry = Entry { id, signaled, kind, buffer };
            flight.queue.stage(entry, 5, [(verb, 0..8)]).expect("inside");
            assert!(flight.queue.commit().is_err(), "there is no queue pair");
        };
        let done = |number: u64| Wc::made_up(FIRST | number, sys::IBV_WC_SUCCESS);
        stage(&mut flight, 0, false, Kind::Write(RegionId(1)));
        stage(&mut flight, 7, true, Kind::Atomic(RegionId(1)));
        assert!(flight.queue.take_last(&done(0), 7).is_none(), "that is the WRITE's");
        let (_, count) = flight.queue.take_last(&done(1), 7).expect("its own");
        assert_eq!((count, flight.queue.len(), flight.queue.first()), (2, 0, 2));
        for (signaled, kind) in [(true, Kind::Write(RegionId(1))), (false, Kind::Internal)] {
            stage(&mut flight, 3, signaled, kind);
            stage(&mut flight, 8, true, Kind::Atomic(RegionId(1)));
            let number = u64::from(flight.queue.first()) + 1;
            assert!(flight.queue.take_last(&done(number), 8).is_none(), "somebody hears of it");
            flight.complete(number as u32, sys::IBV_WC_SUCCESS);
            assert_eq!(flight.queue.len(), 0);
        }
    }
}
