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

impl Dispatcher {
    /// When a request's time begins: when the one before it ended, if that has just been, so that
    /// a busy poller reads the clock once for each. `None`: nobody wants to know.
    pub(super) fn begin(&self, scratch: &mut Scratch) -> Option<Instant> {
        if !self.timing.shown && self.timing.slow_us() == 0 {
            return None;
        }
        Some(scratch.ended.take().unwrap_or_else(Instant::now))
    }

    /// A request was served.
    pub(super) fn end(&self, peer: &Peer, begun: Instant, scratch: &mut Scratch, bytes: usize) {
        let now = Instant::now();
        scratch.ended = Some(now);
        let Some(verb) = scratch.verb.take() else { return };
        let took = now.duration_since(begun);
        self.shard.time(verb, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let slow_us = self.timing.slow_us();
        if slow_us == 0 || took.as_micros() <= u128::from(slow_us) {
            return;
        }
        self.shard.slow();
        if let Some(suppressed) = self.stats.slow_log.allow() {
            let (session, tenant) = (peer.session.id, peer.session.tenant.name());
            let took_ms = took.as_secs_f64() * 1e3;
            let (operation, answer_bytes) = (VERBS[verb], scratch.encoded.len());
            tracing::warn!(
                session,
                tenant,
                operation,
                took_ms,
                bytes,
                answer_bytes,
                suppressed,
                "slow request"
            );
        }
    }
}
