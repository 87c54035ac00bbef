//! Reading: one `recv` brings as many messages as it holds.

use std::io::{Error, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};

use super::frames::HEADER_BYTES;
use super::link::Link;
use super::phase;
use super::queue::{Cursor, Hub, Poller};
use crate::buffer::Buffer;
use crate::work::{Completion, Outcome};

/// How long a `recv` that waits lasts at most.
pub(super) const NAP: Duration = Duration::from_millis(50);
/// Messages of such lengths are read to where they are to lie; others are copied, short ones
/// because that is cheap, and long ones because they come in pieces.
const LANDING_MIN_BYTES: usize = 4 << 10;
const LANDING_MAX_BYTES: usize = 64 << 10;
const ENDS: EventFlags = EventFlags::IN.union(EventFlags::HUP).union(EventFlags::ERR);

impl Hub {
    pub(super) fn serve(&self, poller: &mut Poller, token: u64, flags: EventFlags) {
        // The bell is nobody's token: only sleepers care for it.
        let Some(link) = self.link(token) else { return };
        if flags.contains(EventFlags::OUT) {
            link.flush(self);
        }
        if !flags.intersects(ENDS) {
            return;
        }
        if link.is_deaf() {
            if flags.intersects(ENDS.difference(EventFlags::IN)) {
                link.fail(self, "closed by the peer");
            }
            return;
        }
        self.read(poller, link, RecvFlags::DONTWAIT);
    }

    /// Reads what has arrived; without `DONTWAIT`, what arrives within [`NAP`].
    fn read(&self, poller: &mut Poller, link: Arc<Link>, flags: RecvFlags) {
        let foreseen = link.recv.lock().foreseen_bytes();
        let lands = |bytes: &usize| {
            let is_long = (LANDING_MIN_BYTES..=LANDING_MAX_BYTES).contains(bytes);
            // Buffers of such lengths begin with a page, and the frame would before it.
            is_long && phase::is_fast(phase::before_page(HEADER_BYTES), HEADER_BYTES + bytes)
        };
        let read = match foreseen.filter(lands) {
            Some(bytes) => self.read_landing(poller, &link, bytes, flags),
            None => {
                let frame_bytes = foreseen.map_or(0, |bytes| HEADER_BYTES + bytes);
                let start = phase::start(&poller.scratch, frame_bytes);
                let into = &mut poller.scratch[start..];
                let read = rustix::net::recv(&link.stream, into, flags);
                read.map(|(n, _)| (n, None, start..start + n))
            }
        };
        match read {
            Ok((0, ..)) => link.fail(self, "closed by the peer"),
            Ok((_, first, Range { start: at, end })) => {
                poller.cursor = Some(Cursor { link, first, at, end });
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => link.fail(self, &format!("connection lost: {}", Error::from(e))),
        }
    }

    /// Reads a message that is likely as long as the one before it to where it is to lie, so that
    /// it need not be copied there. Returns how many bytes were read, the message if it is there
    /// and nearly fills its buffer, and where in `scratch` all else lies.
    fn read_landing(
        &self,
        poller: &mut Poller,
        link: &Link,
        foreseen_bytes: usize,
        flags: RecvFlags,
    ) -> rustix::io::Result<(usize, Option<Buffer>, Range<usize>)> {
        let Poller { scratch, landing, .. } = poller;
        // One that is too long for it would be of no use: see below.
        let fit = foreseen_bytes..2 * foreseen_bytes;
        let kept = landing.take().filter(|kept| fit.contains(&kept.capacity_bytes()));
        let mut into = kept.unwrap_or_else(|| self.pool.get(foreseen_bytes));
        let room = into.capacity_bytes().min(LANDING_MAX_BYTES);
        into.set_len(room);
        let mut header = [0; HEADER_BYTES];
        let (before, behind) = scratch.split_at_mut(HEADER_BYTES + room);
        let mut parts = [&mut header[..], &mut into[..], behind].map(IoSliceMut::new);
        let received = rustix::net::recvmsg(
            &link.stream,
            &mut parts,
            &mut RecvAncillaryBuffer::default(),
            flags,
        );
        let n = match received {
            Ok(received) => received.bytes,
            Err(error) => {
                *landing = Some(into);
                return Err(error);
            }
        };
        let landed = n.saturating_sub(HEADER_BYTES).min(room);
        let len = u32::from_le_bytes(header) as usize;
        let fits = n >= HEADER_BYTES && len <= landed.min(self.limits.max_message_bytes);
        if fits && len > room / 2 {
            // What lies behind it goes before what went to `scratch`.
            let start = before.len() - (landed - len);
            before[start..].copy_from_slice(&into[len..landed]);
            into.set_len(len);
            return Ok((n, Some(into), start..n + before.len() - HEADER_BYTES - landed));
        }
        before[..HEADER_BYTES].copy_from_slice(&header);
        before[HEADER_BYTES..HEADER_BYTES + landed].copy_from_slice(&into[..landed]);
        *landing = Some(into);
        Ok((n, None, 0..n))
    }

    /// Takes messages out of what was read, up to a length of `end`.
    pub(super) fn parse(&self, poller: &mut Poller, out: &mut Vec<Completion>, end: usize) {
        let Some(cursor) = &mut poller.cursor else { return };
        let link = Arc::clone(&cursor.link);
        let mut recv = link.recv.lock();
        let max_bytes = self.limits.max_message_bytes;
        let mut rest = &poller.scratch[cursor.at..cursor.end];
        while out.len() < end {
            if link.is_closed() {
                poller.cursor = None;
                return;
            }
            let next = match cursor.first.take() {
                Some(first) => Ok(Some(first)),
                None => recv.next(&mut rest, max_bytes, &self.common.budget, &self.pool),
            };
            match next {
                Ok(Some(message)) => {
                    let outcome = Outcome::Received(message);
                    out.push(Completion { context: link.context, id: 0, outcome });
                }
                Ok(None) => {
                    poller.cursor = None;
                    let needs_room = recv.needs_room();
                    drop(recv);
                    if needs_room {
                        self.keep_or_wait(&mut poller.full, link);
                    }
                    return;
                }
                Err(bad) => {
                    poller.cursor = None;
                    drop(recv);
                    link.fail(self, &bad.to_string());
                    return;
                }
            }
        }
        cursor.at = cursor.end - rest.len();
    }

    /// Waits in `recv` itself, where there is one endpoint: to ask epoll first, and to look before
    /// that, would be two more system calls for each answer. `None`: there is something else to
    /// do, or another thread waits.
    pub(super) fn receive(&self, out: &mut Vec<Completion>, max: usize) -> Option<usize> {
        if !self.solo || self.waiting.swap(true, Ordering::SeqCst) {
            return None;
        }
        self.flush_dirty();
        let received = self.receive_alone(out, max);
        self.waiting.store(false, Ordering::SeqCst);
        received
    }

    fn receive_alone(&self, out: &mut Vec<Completion>, max: usize) -> Option<usize> {
        let mut poller = self.poller.try_lock()?;
        let link = self.link(0)?;
        // What waits to be written leaves when the socket has room, which only epoll tells.
        if poller.has_work() || self.is_woken() || link.is_stuck() {
            return None;
        }
        self.read(&mut poller, link, RecvFlags::empty());
        let start = out.len();
        self.parse(&mut poller, out, start.saturating_add(max));
        Some(out.len() - start)
    }
}
