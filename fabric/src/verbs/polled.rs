//! One READ by a thread that waits for it: the thread posts it, polls the device's queue, and meets
//! its own completion there. Whatever else it meets is left to whoever polls next, and so is the
//! READ if it takes longer.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::endpoint::{Link, OPEN};
use super::ffi::flight::{Entry, Kind, Verb};
use super::poll::{Poller, Sink, tag_of};
use super::post::Seen;
use super::regions::Use;
use crate::buffer::Buffer;
use crate::endpoint::Polled;
use crate::work::RemoteAddr;

/// Fruitless looks between two at the clock.
const LOOKS_PER_TIME: u32 = 16;

impl Link {
    pub(super) fn read_polled(
        &self,
        id: u64,
        at: RemoteAddr,
        into: Buffer,
        spin: Duration,
    ) -> Polled {
        // Who polls, or has left something for who polls next, must not have to wait for this.
        let Some(mut poller) = self.core.poller.try_lock() else { return Polled::NotPosted(into) };
        if !poller.ready.is_empty() {
            return Polled::NotPosted(into);
        }
        if let Err(into) = self.post_read(id, at, into) {
            return Polled::NotPosted(into);
        }
        let read = self.poll_for(id, spin, &mut poller);
        let left = !poller.ready.is_empty();
        drop(poller);
        if left {
            self.core.look();
        }
        read.map_or(Polled::Posted, Polled::Read)
    }

    /// Posts a READ, unless anything is in its way.
    fn post_read(&self, id: u64, at: RemoteAddr, into: Buffer) -> Result<(), Buffer> {
        let core = &self.core;
        let len_bytes = into.len();
        let lkey = match core.lkey(&into) {
            Ok(lkey) if len_bytes <= core.transfer_bytes => lkey,
            _ => return Err(into),
        };
        let mut tx = self.tx.lock();
        let is_open = self.state.load(Ordering::Acquire) == OPEN;
        let Ok(target) = tx.regions.target(at, len_bytes, Use::Read) else { return Err(into) };
        if !is_open || tx.queue.len() >= core.limits.send_depth || !core.take(tx.queue.len(), 1) {
            return Err(into);
        }
        let entry = Entry { id, signaled: true, kind: Kind::Read(at.region), buffer: Some(into) };
        if let Err(error) = tx.queue.post_alone(entry, lkey, Verb::Read(target)) {
            self.end_locked(&mut tx, error.to_string(), true);
        }
        Ok(())
    }

    /// Polls until that READ is done, something else is, or the time is over.
    fn poll_for(&self, id: u64, spin: Duration, poller: &mut Poller) -> Option<Buffer> {
        let core = &*self.core;
        let (mut looks, mut since) = (0_u32, None);
        loop {
            let mut taken = None;
            // An error is found again, and told, by who polls next.
            core.cq.poll(1, |wc| taken = Some(wc)).ok()?;
            match taken {
                Some(wc) if tag_of(&wc) == self.tag => {
                    let mut seen = Seen::wanting(id);
                    let none = &mut Vec::new();
                    if self.complete_seeing(&wc, &mut Sink::later(none, poller), &mut seen) {
                        poller.ended.push(self.tag);
                        core.forget(&mut poller.ended);
                    }
                    return seen.buffer;
                }
                Some(wc) => {
                    core.take_one(poller, wc);
                    return None;
                }
                None => {}
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_TIME) {
                let now = Instant::now();
                if now - *since.get_or_insert(now) >= spin {
                    return None;
                }
            }
            std::hint::spin_loop();
        }
    }
}
