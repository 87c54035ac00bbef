//! Deadlines. No runtime's timers: one thread per client (the reactor) ticks while somebody
//! waits, and whoever waits looks at the time when woken. So a deadline is kept to a tick.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::driver;

/// How exactly deadlines are kept.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// When an operation must have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) after: Duration,
    pub(crate) what: &'static str,
}

/// The time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimedOut;

impl Deadline {
    pub(crate) fn after(what: &'static str, after: Duration) -> Self {
        Self { at: Instant::now() + after, after, what }
    }

    /// So many times as late.
    pub(crate) fn times(self, n: u32) -> Self {
        Self { at: self.at + self.after * (n - 1), after: self.after * n, ..self }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }
}

/// Wakes who waits for something that has no slot: credits, a sequence number, a connection.
#[derive(Default)]
pub(crate) struct Ticker {
    waiting: Mutex<Waiting>,
    thread: OnceLock<Thread>,
}

#[derive(Default)]
struct Waiting {
    epoch: u64,
    wakers: Vec<Waker>,
}

impl Ticker {
    /// The thread that calls [`Self::tick`] from now on.
    pub(crate) fn set_thread(&self, thread: Thread) {
        // Set once, by the reactor, when it starts.
        let _already = self.thread.set(thread);
    }

    /// Whether there is such a thread.
    pub(crate) fn has_thread(&self) -> bool {
        self.thread.get().is_some()
    }

    /// Ends the reactor's sleep.
    pub(crate) fn kick(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    pub(crate) fn is_needed(&self) -> bool {
        !self.waiting.lock().wakers.is_empty()
    }

    /// Wakes all who registered since the last tick.
    pub(crate) fn tick(&self) {
        let mut waiting = self.waiting.lock();
        waiting.epoch += 1;
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn register(&self, waker: &Waker, last: &mut Option<(u64, Waker)>) {
        // A driver looks at the time itself.
        if driver::is_driver() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if last.as_ref().is_some_and(|(at, old)| *at == waiting.epoch && old.will_wake(waker)) {
            return;
        }
        *last = Some((waiting.epoch, waker.clone()));
        let first = waiting.wakers.is_empty();
        waiting.wakers.push(waker.clone());
        drop(waiting);
        if first {
            self.kick();
        }
    }

    /// `future`, but no longer than until `deadline`.
    pub(crate) async fn timed<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, TimedOut> {
        let mut future = pin!(future);
        let mut last = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if deadline.is_over() {
                return Poll::Ready(Err(TimedOut));
            }
            self.register(cx.waker(), &mut last);
            Poll::Pending
        })
        .await
    }
}
