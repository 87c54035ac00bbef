//! Unix time that never steps back.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::engine::Clock;

/// The system's time when it was made, plus what the monotonic clock has counted since: a step of
/// the system's time, forward or back, does not reach tables and sessions of a running server.
#[derive(Debug)]
pub struct ServerClock {
    start: Instant,
    start_unix_ns: u64,
}

impl Default for ServerClock {
    fn default() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_unix_ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX / 2);
        Self { start: Instant::now(), start_unix_ns }
    }
}

impl ServerClock {
    /// Milliseconds since it was made.
    #[must_use]
    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Unix time at which it was made, in seconds.
    #[must_use]
    pub fn start_unix_s(&self) -> f64 {
        self.start_unix_ns as f64 / 1e9
    }
}

impl Clock for ServerClock {
    fn unix_ns(&self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.start_unix_ns.saturating_add(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_back() {
        let clock = ServerClock::default();
        let mut before = clock.unix_ns();
        for _ in 0..10_000 {
            let now = clock.unix_ns();
            assert!(now >= before);
            before = now;
        }
    }
}
