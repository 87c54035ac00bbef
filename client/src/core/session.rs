//! Sequence numbers: the server keeps the last answers, so the numbers in flight must lie within
//! that window, oldest to newest, however long the oldest takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onesided_protocol::limits::MUTATIONS_IN_FLIGHT_MAX;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::time::{Deadline, Ticker, TimedOut};

const WINDOW: u64 = MUTATIONS_IN_FLIGHT_MAX as u64;
const _: () = assert!(WINDOW <= 64, "the window's numbers are bits of one word");

/// A session on the server. It may outlive a connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) resume_key: u64,
    /// What was retired up to this epoch is looked at no more.
    acknowledged: AtomicU64,
    window: Mutex<Window>,
    moved: Notify,
}

#[derive(Debug)]
struct Window {
    /// Lowest number in flight, or `next`.
    base: u64,
    next: u64,
    /// Bit i: number `base + i` is done with.
    done: u64,
}

impl Session {
    pub(crate) fn new(id: u64, resume_key: u64, applied_sequence: u64) -> Arc<Self> {
        let next = applied_sequence + 1;
        let window = Mutex::new(Window { base: next, next, done: 0 });
        let acknowledged = AtomicU64::new(0);
        Arc::new(Self { id, resume_key, acknowledged, window, moved: Notify::new() })
    }

    /// The newest epoch that it has acknowledged; 0 before it was told of any.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Nothing can look any more at what was retired up to this epoch.
    pub(crate) fn acknowledge(&self, epoch: u64) {
        self.acknowledged.fetch_max(epoch, Ordering::AcqRel);
    }

    /// The next number, when the window has room for it.
    pub(crate) async fn sequence(
        self: &Arc<Self>,
        ticker: &Ticker,
        deadline: Deadline,
    ) -> Result<SequenceTicket, TimedOut> {
        if let Some(ticket) = self.try_sequence() {
            return Ok(ticket);
        }
        ticker.timed(deadline, self.wait_for_sequence()).await
    }

    async fn wait_for_sequence(self: &Arc<Self>) -> SequenceTicket {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // From here on no notification is missed.
            moved.as_mut().enable();
            if let Some(ticket) = self.try_sequence() {
                return ticket;
            }
            moved.await;
        }
    }

    pub(crate) fn try_sequence(self: &Arc<Self>) -> Option<SequenceTicket> {
        let mut window = self.window.lock();
        if window.next - window.base >= WINDOW {
            return None;
        }
        let number = window.next;
        window.next += 1;
        Some(SequenceTicket { session: Arc::clone(self), number })
    }

    fn release(&self, number: u64) {
        let mut window = self.window.lock();
        window.done |= 1 << (number - window.base);
        let moved = u64::from(window.done.trailing_ones());
        if moved > 0 {
            window.base += moved;
            window.done = window.done.checked_shr(moved as u32).unwrap_or(0);
            drop(window);
            self.moved.notify_waiters();
        }
    }
}

/// A mutation's number, until its outcome is known or nobody wants to know it.
#[derive(Debug)]
pub(crate) struct SequenceTicket {
    pub(crate) session: Arc<Session>,
    pub(crate) number: u64,
}

impl Drop for SequenceTicket {
    fn drop(&mut self) {
        self.session.release(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_number_in_flight_holds_the_window() {
        let session = Session::new(1, 2, 7);
        let mut tickets: Vec<_> = (0..64).filter_map(|_| session.try_sequence()).collect();
        assert_eq!(tickets.first().map(|t| t.number), Some(8));
        assert_eq!(tickets.len(), 64);
        assert!(session.try_sequence().is_none());
        tickets.truncate(1);
        assert!(session.try_sequence().is_none(), "8 is still in flight: 72 must wait");
        tickets.clear();
        assert_eq!(session.try_sequence().map(|t| t.number), Some(72));
        assert_eq!((0..1000).filter_map(|_| session.try_sequence()).count(), 1000);
    }
}
