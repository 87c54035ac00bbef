//! Reading: one `recv` brings as many messages as it holds.

use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::link::Link;
use super::queue::{Cursor, Hub, Poller};
use crate::work::{Completion, Outcome};

/// How long a `recv` that waits lasts at most.
pub(super) const NAP: Duration = Duration::from_millis(50);
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
        self.read(poller, link, RecvFlags::DONTWAIT);
    }

    /// Reads what has arrived; without `DONTWAIT`, what arrives within [`NAP`].
    fn read(&self, poller: &mut Poller, link: Arc<Link>, flags: RecvFlags) {
        match rustix::net::recv(&link.stream, poller.scratch.as_mut_slice(), flags) {
            Ok((0, _)) => link.fail(self, "closed by the peer"),
            Ok((end, _)) => poller.cursor = Some(Cursor { link, at: 0, end }),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => link.fail(self, &format!("connection lost: {}", Error::from(e))),
        }
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
            match recv.next(&mut rest, max_bytes, &self.budget, &self.pool) {
                Ok(Some(message)) => {
                    let outcome = Outcome::Received(message);
                    out.push(Completion { context: link.context, id: 0, outcome });
                }
                Ok(None) => {
                    poller.cursor = None;
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
