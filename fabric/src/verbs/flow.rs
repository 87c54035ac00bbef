//! How many messages a peer may have unanswered: fewer while the shared receive buffers run low.
//!
//! A peer that meets no buffer sends again, unseen by its user, after a pause of the device's
//! (RNR). That is the net; grants are what keeps peers out of it. The device says once that fewer
//! buffers than a limit are left; each time that it does the grant of all peers is halved, and it
//! doubles again for each look that finds it quiet. A grant travels with each message to a peer:
//! who sends hears of it at once, and who does not send does not matter.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ffi::srq::Srq;
use super::frames::GRANT_MAX;

/// What is on its way when grants shrink still comes: time for that before they shrink again.
const SETTLE: Duration = Duration::from_millis(5);

/// What a listener's queue grants its peers.
#[derive(Debug)]
pub(super) struct Flow {
    /// The grant while there are buffers enough; 0 = peers are not bounded.
    most: u32,
    /// The device is to say when fewer buffers are left.
    limit: u32,
    grant: AtomicU32,
    /// The device has said so, and was not asked to say it again.
    low: AtomicBool,
    /// When it said so.
    since: Mutex<Option<Instant>>,
    limit_events: AtomicU64,
}

impl Flow {
    pub(super) fn new(credits: usize, receive_depth: usize) -> Self {
        let most = u32::try_from(credits).unwrap_or(GRANT_MAX).min(GRANT_MAX);
        Self {
            most,
            limit: (receive_depth / 4) as u32,
            grant: AtomicU32::new(most),
            // Asked for the first time when all buffers are there.
            low: AtomicBool::new(most > 0),
            since: Mutex::new(None),
            limit_events: AtomicU64::new(0),
        }
    }

    /// What peers are told now; 0 = nothing.
    #[inline]
    pub(super) fn grant(&self) -> u32 {
        self.grant.load(Ordering::Relaxed)
    }

    pub(super) fn limit_events(&self) -> u64 {
        self.limit_events.load(Ordering::Relaxed)
    }

    /// Few receive buffers are left.
    pub(super) fn ran_low(&self) {
        if self.most == 0 || self.low.swap(true, Ordering::AcqRel) {
            return;
        }
        *self.since.lock() = Some(Instant::now());
        self.limit_events.fetch_add(1, Ordering::Relaxed);
        let halved = |grant: u32| Some((grant / 2).max(1));
        let _always = self.grant.fetch_update(Ordering::Relaxed, Ordering::Relaxed, halved);
    }

    /// Somebody has looked: `looks` times as long as between two looks nothing was said.
    pub(super) fn was_quiet(&self, looks: u32) {
        if self.low.load(Ordering::Acquire) {
            return;
        }
        let doubled = |grant: u32| {
            let more = grant.checked_mul(1 << looks.min(16)).unwrap_or(self.most);
            Some(more.min(self.most))
        };
        let _always = self.grant.fetch_update(Ordering::Relaxed, Ordering::Relaxed, doubled);
    }

    /// All buffers are there again: the device is asked to say when they run low.
    #[inline]
    pub(super) fn refilled(&self, srq: &Srq) {
        if !self.low.load(Ordering::Relaxed) || !self.settled() {
            return;
        }
        self.low.store(false, Ordering::Release);
        if let Err(error) = srq.arm(self.limit) {
            tracing::warn!(%error, "peers are not slowed down when receive buffers run low");
        }
    }

    fn settled(&self) -> bool {
        self.since.lock().is_none_or(|since| since.elapsed() >= SETTLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As [`Flow::refilled`], without a device.
    fn refill(flow: &Flow) {
        flow.low.store(false, Ordering::Release);
    }

    #[test]
    fn grants_shrink_to_one_and_grow_back() {
        let flow = Flow::new(64, 512);
        assert_eq!((flow.grant(), flow.limit), (64, 128));
        refill(&flow);
        for expected in [32, 16, 8, 4, 2, 1, 1] {
            flow.ran_low();
            assert_eq!(flow.grant(), expected);
            flow.ran_low();
            assert_eq!(flow.grant(), expected, "said twice of one time");
            flow.was_quiet(1);
            assert_eq!(flow.grant(), expected, "it is still low");
            refill(&flow);
        }
        assert_eq!(flow.limit_events(), 7);
        flow.was_quiet(1);
        assert_eq!(flow.grant(), 2);
        flow.was_quiet(2);
        assert_eq!(flow.grant(), 8);
        flow.was_quiet(u32::MAX);
        assert_eq!(flow.grant(), 64);
    }

    #[test]
    fn without_credits_nothing_is_said() {
        let flow = Flow::new(0, 512);
        flow.ran_low();
        flow.was_quiet(5);
        assert_eq!((flow.grant(), flow.limit_events()), (0, 0));
    }
}
