//! How long requests take to be served, and a log line for one that takes too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Dispatcher, Peer, Scratch};
use crate::metrics::rpc::VERBS;

/// What may change while a server runs.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    /// Somebody can look at the times.
    pub(crate) shown: bool,
    /// Requests that take longer are logged; 0 = none.
    slow_us: AtomicU64,
}

impl Timing {
    pub(crate) fn new(shown: bool, slow_ms: u64) -> Self {
        let timing = Self { shown, slow_us: AtomicU64::new(0) };
        timing.set_slow(slow_ms);
        timing
    }

    /// Requests that take longer than this are logged; 0 = none.
    pub(crate) fn set_slow(&self, ms: u64) {
        self.slow_us.store(ms.saturating_mul(1000), Ordering::Relaxed);
    }

    fn slow_us(&self) -> u64 {
        self.slow_us.load(Ordering::Relaxed)
    }
}

/// A request that was served. Its time ends with the next look at the clock, which a poller takes
/// when the answer has gone: none is taken while a client waits.
#[derive(Debug)]
pub(crate) struct Open {
    verb: usize,
    begun: Instant,
    session: u64,
    bytes: usize,
    answer_bytes: usize,
}

/// A request that took too long, to be logged.
#[derive(Debug)]
pub(crate) struct Slow {
    pub(crate) operation: &'static str,
    pub(crate) took_ms: f64,
    pub(crate) session: u64,
    pub(crate) bytes: usize,
    pub(crate) answer_bytes: usize,
}

impl Dispatcher {
    /// When a request's time begins: at the poller's last look at the clock, if that has just been,
    /// else now, where the time of the one before it ends. `None`: nobody wants to know.
    pub(super) fn begin(&self, scratch: &mut Scratch) -> Option<Instant> {
        if !self.timing.shown && self.timing.slow_us() == 0 {
            return None;
        }
        Some(scratch.looked.take().unwrap_or_else(|| {
            let now = Instant::now();
            self.close(scratch, now);
            now
        }))
    }

    /// A request was served.
    pub(super) fn end(&self, peer: &Peer, begun: Instant, scratch: &mut Scratch, bytes: usize) {
        let Some(verb) = scratch.verb.take() else { return };
        let (session, answer_bytes) = (peer.session.id, scratch.encoded.len());
        scratch.open = Some(Open { verb, begun, session, bytes, answer_bytes });
    }

    /// Ends the time of what was served last.
    #[inline]
    pub(crate) fn close(&self, scratch: &mut Scratch, now: Instant) {
        let Some(open) = scratch.open.take() else { return };
        let took = now.saturating_duration_since(open.begun);
        self.shard.time(open.verb, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let slow_us = self.timing.slow_us();
        if slow_us == 0 || took.as_micros() <= u128::from(slow_us) {
            return;
        }
        self.shard.slow();
        let Open { verb, session, bytes, answer_bytes, .. } = open;
        let (operation, took_ms) = (VERBS[verb], took.as_secs_f64() * 1e3);
        scratch.slow = Some(Slow { operation, took_ms, session, bytes, answer_bytes });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::stats::Stats;

    fn open(begun: Instant) -> Option<Open> {
        Some(Open { verb: 2, begun, session: 7, bytes: 10, answer_bytes: 5 })
    }

    #[test]
    fn a_request_ends_with_the_next_look_at_the_clock_and_may_be_slow() {
        let (stats, timing) = (Arc::<Stats>::default(), Arc::new(Timing::new(true, 100)));
        let dispatcher = Dispatcher::new(&stats, &timing, 1 << 20);
        let (mut scratch, start) = (Scratch::default(), Instant::now());
        for (took_ms, is_slow) in [(100, false), (101, true)] {
            scratch.open = open(start);
            dispatcher.close(&mut scratch, start + Duration::from_millis(took_ms));
            let slow = scratch.slow.take().map(|slow| (slow.operation, slow.session));
            assert_eq!(slow, is_slow.then_some(("put", 7)), "{took_ms}");
        }
        dispatcher.close(&mut scratch, start + Duration::from_secs(9));
        let counts = stats.rpc();
        assert_eq!((counts.slow, counts.times[2].sum_ns), (1, 201_000_000), "once each");
        // The next one begins when it was found, else where the time of the one before it ends.
        scratch.looked = Some(start);
        assert_eq!(dispatcher.begin(&mut scratch), Some(start));
        scratch.open = open(start);
        assert!(dispatcher.begin(&mut scratch) >= Some(start) && scratch.open.is_none());
        assert_eq!(stats.rpc().times[2].counts.iter().sum::<u64>(), 3);
    }

    #[test]
    fn no_clock_is_read_for_nobody() {
        let (stats, timing) = (Arc::<Stats>::default(), Arc::new(Timing::new(false, 0)));
        let dispatcher = Dispatcher::new(&stats, &timing, 1 << 20);
        assert_eq!(dispatcher.begin(&mut Scratch::default()), None);
    }
}
