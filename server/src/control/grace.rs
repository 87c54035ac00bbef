//! A server that stood still itself, with its machine or for want of a processor, knows nothing of
//! its clients: what they said meanwhile is still to be read.

use std::time::{Duration, Instant};

/// Whether it is fair to end sessions now.
pub(super) struct Grace {
    /// Between two looks, as a rule.
    period: Duration,
    /// Of a session. A client that is there is heard within one.
    lease: Duration,
    /// So much later is standing still.
    most: Duration,
    rested: Instant,
    until: Instant,
    /// No other one before: a server that is always late ends sessions nevertheless.
    next: Instant,
}

impl Grace {
    /// From `now` on there is a look each `period`, and one that comes `most` later is too late.
    pub(super) fn new(now: Instant, period: Duration, most: Duration, lease: Duration) -> Self {
        Self { period, lease, most, rested: now, until: now, next: now }
    }

    /// Nothing was done since the last [`Self::rests`] but waiting for this look. For as long as
    /// it was late, at most a lease, clients have time to be heard; how late, if it was too late.
    pub(super) fn looks(&mut self, now: Instant) -> Option<Duration> {
        let late = now.saturating_duration_since(self.rested).saturating_sub(self.period);
        let stood = late >= self.most && now >= self.next;
        if stood {
            self.until = now + late.min(self.lease);
            self.next = self.until + self.lease;
        }
        stood.then_some(late)
    }

    /// Whether clients have had that time.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// The work of a look is done.
    pub(super) fn rests(&mut self, now: Instant) {
        self.rested = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_time_for_which_the_server_stood_still() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let [period, most, lease] = [100, 50, 5_000].map(Duration::from_millis);
        let mut grace = Grace::new(start, period, most, lease);
        assert_eq!((grace.looks(at(149)), grace.is_over(at(149))), (None, true));
        // Its own work is no standing still.
        grace.rests(at(5_000));
        assert_eq!(grace.looks(at(5_100)), None);
        grace.rests(at(5_100));
        assert_eq!(grace.looks(at(9_200)), Some(Duration::from_millis(4_000)));
        assert!(!grace.is_over(at(9_200)) && !grace.is_over(at(13_199)));
        grace.rests(at(9_200));
        // Late again, and again: what was promised holds, and sessions end in between.
        for (looks, rests, stood_ms) in
            [(9_400, 13_100, None), (13_399, 13_399, None), (18_400, 18_400, Some(4_901))]
        {
            assert_eq!(grace.looks(at(looks)), stood_ms.map(Duration::from_millis), "{looks}");
            assert_eq!(grace.is_over(at(looks)), looks == 13_399, "{looks}");
            grace.rests(at(rests));
        }
        assert_eq!(grace.looks(at(1_000_000)), Some(Duration::from_millis(981_500)));
        assert!(!grace.is_over(at(1_004_999)) && grace.is_over(at(1_005_000)), "a lease, no more");
    }
}
