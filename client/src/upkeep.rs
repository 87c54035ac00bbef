//! When a connection that nobody uses is closed, and when a better fabric is tried again. Decisions
//! only; the control thread acts.

use std::time::{Duration, Instant};

/// A connection that is not used: it costs the server a queue pair, or a socket.
#[derive(Debug)]
pub(crate) struct Idle {
    timeout: Option<Duration>,
    activity: u64,
    since: Instant,
}

impl Idle {
    /// `None`: it is never closed.
    pub(crate) fn new(timeout: Option<Duration>, now: Instant) -> Self {
        Self { timeout, activity: 0, since: now }
    }

    /// Whether it is to be closed. `activity` is any number that is another one after an operation.
    pub(crate) fn is_over(&mut self, activity: u64, in_flight: bool, now: Instant) -> bool {
        if in_flight || activity != self.activity {
            self.activity = activity;
            self.since = now;
            return false;
        }
        self.due().is_some_and(|due| now >= due)
    }

    /// When it is to be looked at again, if it is used no more.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timeout.map(|timeout| self.since + timeout)
    }
}

/// Pauses grow to so many times the first one.
const GROWTH_MAX: u32 = 32;

/// Attempts at a better fabric, with growing pauses.
#[derive(Debug)]
pub(crate) struct Retry {
    first: Option<Duration>,
    pause: Duration,
    next: Option<Instant>,
}

impl Retry {
    /// `None`: there are none.
    pub(crate) fn new(first: Option<Duration>) -> Self {
        Self { first, pause: first.unwrap_or_default(), next: None }
    }

    /// Whether to try now, while the fabric is not the best one.
    pub(crate) fn is_due(&mut self, is_fallback: bool, now: Instant) -> bool {
        let Some(first) = self.first.filter(|_| is_fallback) else {
            self.next = None;
            return false;
        };
        let Some(next) = self.next else {
            self.pause = first;
            self.next = Some(now + first);
            return false;
        };
        if now < next {
            return false;
        }
        self.pause = (self.pause * 2).min(first * GROWTH_MAX);
        self.next = Some(now + self.pause);
        true
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn idle_is_who_does_nothing_for_long_enough() {
        let start = Instant::now();
        let mut idle = Idle::new(Some(SECOND * 10), start);
        assert!(!idle.is_over(0, false, start + SECOND * 9));
        assert!(!idle.is_over(1, false, start + SECOND * 11), "it did something");
        assert_eq!(idle.due(), Some(start + SECOND * 21));
        assert!(!idle.is_over(1, true, start + SECOND * 30), "something is in flight");
        assert!(!idle.is_over(1, false, start + SECOND * 39));
        assert!(idle.is_over(1, false, start + SECOND * 40));
        let mut never = Idle::new(None, start);
        assert!(!never.is_over(0, false, start + SECOND * 1_000_000));
    }

    #[test]
    fn attempts_become_rarer_and_end_with_the_fallback() {
        let start = Instant::now();
        let mut retry = Retry::new(Some(SECOND));
        let mut at = Vec::new();
        for second in 0..200 {
            if retry.is_due(true, start + SECOND * second) {
                at.push(second);
            }
        }
        assert_eq!(at, [1, 3, 7, 15, 31, 63, 95, 127, 159, 191]);
        assert!(!retry.is_due(false, start + SECOND * 300));
        assert_eq!(retry.due(), None);
        assert!(!retry.is_due(true, start + SECOND * 301), "a new one begins with the first pause");
        assert!(retry.is_due(true, start + SECOND * 302));
        let mut none = Retry::new(None);
        assert!((0..9).all(|second| !none.is_due(true, start + SECOND * second)));
    }
}
