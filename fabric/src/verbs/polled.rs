//! What a thread waits for itself, a READ, or a chain that ends with a CAS or FAA: it polls the
//! device's queue and meets its own completion there. Whatever else it meets is left to whoever
//! polls next, and so is its own if it takes longer.
//!
//! Beside a fast network every instruction here counts: a buffer is moved into the queue and back,
//! nothing else, and where nothing else is in flight that anybody hears of nothing is sorted.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::endpoint::{Link, OPEN};
use super::ffi::cq::Wc;
use super::poll::{Poller, Sink, tag_of};
use super::post::Seen;
use super::regions::Use;
use crate::buffer::Buffer;
use crate::endpoint::{Awaited, Polled};
use crate::work::RemoteAddr;

/// Fruitless looks between two at the clock.
const LOOKS_PER_TIME: u32 = 16;
/// Completions of before, that nobody has to hear of, which are taken on the way.
const OTHERS_MAX: u32 = 16;

impl Link {
    #[inline]
    pub(super) fn polled(&self, id: u64, mut awaited: Awaited<'_>, spin: Duration) -> Polled {
        // Who polls, or has left something for who polls next, must not have to wait for this.
        let poller = self.core.poller.try_lock().filter(|poller| poller.ready.is_empty());
        let mut poller = match (poller, &awaited) {
            (Some(poller), _) => poller,
            (None, Awaited::Read(..)) => return Polled::NotPosted,
            (None, Awaited::Atomic(_)) => return Polled::Posted,
        };
        if let Awaited::Read(at, into) = &mut awaited
            && !self.post_read(id, *at, into)
        {
            return Polled::NotPosted;
        }
        let is_done = self.poll_for(id, spin, &mut poller, awaited);
        self.leave(poller);
        if is_done { Polled::Done } else { Polled::Posted }
    }

    /// Tells whoever sleeps if there is something for who polls next.
    fn leave(&self, poller: MutexGuard<'_, Poller>) {
        let is_left = !poller.ready.is_empty();
        drop(poller);
        if is_left {
            self.core.look();
        }
    }

    /// Polls until `id` completes, and puts where it is awaited what it brought; whether it did. If
    /// not, that takes longer, or others have to hear of something first.
    #[inline]
    fn poll_for(&self, id: u64, spin: Duration, poller: &mut Poller, awaited: Awaited<'_>) -> bool {
        let mut wc = Wc::none();
        for _ in 0..OTHERS_MAX {
            if !self.poll_for_one(spin, &mut wc) {
                return false;
            }
            if tag_of(&wc) == self.tag {
                let mut tx = self.tx.lock();
                if let Some((buffer, count)) = tx.queue.take_last(&wc, id) {
                    tx.spare = land(buffer, awaited).or(tx.spare.take());
                    drop(tx);
                    self.core.freed(count);
                    return true;
                }
            }
            if let Some(buffer) = self.met(&wc, id, poller) {
                land(buffer, awaited);
                return true;
            }
            if !poller.ready.is_empty() {
                return false;
            }
        }
        false
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

    /// Does what a completion asks for that is not simply that of the request `id`; that one's
    /// buffer if it stands for it too.
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

/// Puts what a buffer brought where it is awaited; gives the buffer, if that is for the next CAS or
/// FAA to use.
#[inline]
fn land(buffer: Buffer, awaited: Awaited<'_>) -> Option<Buffer> {
    match awaited {
        Awaited::Read(_, into) => {
            buffer.put_into(into);
            None
        }
        Awaited::Atomic(found) => {
            *found = buffer.words().first().copied().unwrap_or_default();
            Some(buffer)
        }
    }
}
