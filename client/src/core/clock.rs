//! The server's clock as this side knows it.

use std::time::{Duration, Instant};

use parking_lot::RwLock;

/// How far two clocks may run apart, in parts per million.
const DRIFT_PPM: u64 = 200;

/// Estimate of the server's Unix time, with a bound of its error.
#[derive(Debug)]
pub struct ServerClock {
    state: RwLock<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// At `at`, the server's clock was within `error_ns` of `server_ns`.
    Synced { at: Instant, server_ns: u64, error_ns: u64 },
    /// A simulation says what time it is.
    Manual { now_ns: u64, error_ns: u64 },
}

impl ServerClock {
    /// From an answer that says `server_ns`, to a question asked at `sent` and answered at
    /// `received`.
    #[must_use]
    pub fn new(server_ns: u64, sent: Instant, received: Instant) -> Self {
        Self { state: RwLock::new(synced(server_ns, sent, received)) }
    }

    /// Takes another answer into account: it replaces what is known if its error is smaller.
    pub fn sync(&self, server_ns: u64, sent: Instant, received: Instant) {
        let new = synced(server_ns, sent, received);
        let mut state = self.state.write();
        if new.now(received).1 <= state.now(received).1 {
            *state = new;
        }
    }

    /// Another one that knows as much.
    pub(crate) fn again(&self) -> Self {
        Self { state: RwLock::new(*self.state.read()) }
    }

    /// Sets the time by hand, for simulations.
    pub fn set_manual(&self, now_ns: u64, error_ns: u64) {
        *self.state.write() = State::Manual { now_ns, error_ns };
    }

    /// The server's Unix time in ns, and how wrong that may be, in ns either way.
    #[must_use]
    pub fn now_ns(&self) -> (u64, u64) {
        let state = *self.state.read();
        match state {
            State::Manual { now_ns, error_ns } => (now_ns, error_ns),
            State::Synced { .. } => state.now(Instant::now()),
        }
    }
}

fn synced(server_ns: u64, sent: Instant, received: Instant) -> State {
    // The server looked at its clock somewhere between; halfway, give or take the half.
    let half = ns(received.saturating_duration_since(sent)).div_ceil(2);
    State::Synced { at: received, server_ns: server_ns.saturating_add(half), error_ns: half + 1 }
}

impl State {
    fn now(self, now: Instant) -> (u64, u64) {
        match self {
            Self::Manual { now_ns, error_ns } => (now_ns, error_ns),
            Self::Synced { at, server_ns, error_ns } => {
                let elapsed = ns(now.saturating_duration_since(at));
                let drift = elapsed / 1_000_000 * DRIFT_PPM + DRIFT_PPM;
                (server_ns.saturating_add(elapsed), error_ns.saturating_add(drift))
            }
        }
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_covers_round_trip_and_drift() {
        let sent = Instant::now();
        let received = sent + Duration::from_millis(10);
        let state = synced(1_000_000_000, sent, received);
        let (now, error) = state.now(received);
        // The truth is between 1.000 s and 1.010 s.
        assert!(now - error <= 1_000_000_000 && now + error >= 1_010_000_000);
        let (later, wider) = state.now(received + Duration::from_secs(100));
        assert_eq!(later - now, 100_000_000_000);
        assert!(wider - error >= 20_000_000, "100 s at 200 ppm are 20 ms, not {}", wider - error);
    }

    #[test]
    fn a_worse_answer_changes_nothing_and_a_better_one_does() {
        let start = Instant::now();
        let clock = ServerClock::new(5_000, start, start + Duration::from_micros(10));
        clock.sync(999_999_999, start, start + Duration::from_secs(1));
        assert!(clock.now_ns().0 < 999_999_999 + 500_000_000);
        clock.set_manual(7, 1);
        assert_eq!(clock.now_ns(), (7, 1));
    }
}
