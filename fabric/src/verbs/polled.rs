//! One READ by a thread that waits for it: the thread posts it, polls the device's queue, and meets
//! its own completion there. Whatever else it meets is left to whoever polls next, and so is the
//! READ if it takes longer.
//!
//! Beside a fast network every instruction here counts: the buffer is moved into the queue and
//! back, nothing else, and where the READ is all that is in flight nothing is sorted.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::endpoint::{Link, OPEN};
use super::ffi::cq::Wc;
use super::poll::{Poller, Sink, tag_of};
use super::post::Seen;
use super::regions::Use;
use crate::buffer::Buffer;
use crate::endpoint::Polled;
use crate::work::RemoteAddr;

/// Fruitless looks between two at the clock.
const LOOKS_PER_TIME: u32 = 16;

impl Link {
    #[inline]
    pub(super) fn read_polled(
        &self,
        id: u64,
        at: RemoteAddr,
        into: &mut Buffer,
        spin: Duration,
    ) -> Polled {
        // Who polls, or has left something for who polls next, must not have to wait for this.
        let Some(mut poller) = self.core.poller.try_lock() else { return Polled::NotPosted };
        if !poller.ready.is_empty() || !self.post_read(id, at, into) {
            return Polled::NotPosted;
        }
        let mut wc = Wc::none();
        if !self.poll_for_one(spin, &mut wc) {
            return Polled::Posted;
        }
        if tag_of(&wc) == self.tag {
            let mut tx = self.tx.lock();
            if let Some(buffer) = tx.queue.take_alone(&wc, id) {
                drop(tx);
                self.core.freed(1);
                buffer.put_into(into);
                return Polled::Read;
            }
        }
        let read = self.met(&wc, id, &mut poller);
        let left = !poller.ready.is_empty();
        drop(poller);
        if left {
            self.core.look();
        }
        match read {
            Some(buffer) => {
                buffer.put_into(into);
                Polled::Read
            }
            None => Polled::Posted,
        }
    }

    /// Posts a READ, unless anything is in its way; whether it did.
    #[inline]
    fn post_read(&self, id: u64, at: RemoteAddr, into: &mut Buffer) -> bool {
        let core = &self.core;
        let len_bytes = into.len();
        let Ok(lkey) = core.lkey(into) else { return false };
        let mut tx = self.tx.lock();
        let Ok(target) = tx.regions.target(at, len_bytes, Use::Read) else { return false };
        let in_flight = tx.queue.len();
        if len_bytes > core.transfer_bytes
            || self.state.load(Ordering::Acquire) != OPEN
            || in_flight >= core.limits.send_depth
            || !core.take(in_flight, 1)
        {
            return false;
        }
        if let Err(error) = tx.queue.post_read(id, at.region, into, lkey, target) {
            self.end_locked(&mut tx, error.to_string(), true);
        }
        true
    }

    /// Takes the next completion, whosever it is; whether one came in time.
    #[inline]
    fn poll_for_one(&self, spin: Duration, wc: &mut Wc) -> bool {
        let (mut looks, mut since) = (0_u32, None);
        loop {
            match self.core.cq.poll_one(wc) {
                Ok(true) => return true,
                Ok(false) => {}
                // It is found again, and told, by who polls next.
                Err(_) => return false,
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_TIME) {
                let now = Instant::now();
                if now - *since.get_or_insert(now) >= spin {
                    return false;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Does what a completion asks for that is not simply that of the READ `id`; the READ's buffer
    /// if it stands for that too.
    #[cold]
    fn met(&self, wc: &Wc, id: u64, poller: &mut Poller) -> Option<Buffer> {
        if tag_of(wc) != self.tag {
            self.core.take_one(poller, wc);
            return None;
        }
        let mut seen = Seen::wanting(id);
        let none = &mut Vec::new();
        if self.complete_seeing(wc, &mut Sink::later(none, poller), &mut seen) {
            poller.ended.push(self.tag);
            self.core.forget(&mut poller.ended);
        }
        seen.buffer
    }
}
