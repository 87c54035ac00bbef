//! Whether spinning is of any use just now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whoever gives up the core while it spins, and has it back only after so long, shares it with a
/// program that does not sleep. Then sleeping is better: who is woken goes before who was running.
const LONG_YIELD: Duration = Duration::from_micros(500);
/// A program that wants the core now and then costs less than spinning saves. One that takes so
/// much of [`WINDOW`] away costs more.
const LOST_MAX: Duration = Duration::from_millis(20);
/// Within which time lost is added up.
const WINDOW: Duration = Duration::from_millis(100);
/// How long nobody spins after that.
const REST: Duration = Duration::from_millis(100);

/// Adds up what spinning threads lose to others on their cores. All methods may be called by
/// several threads: figures that they overwrite one another cost a little speed at most.
#[derive(Debug)]
pub struct Crowded {
    /// What the times below are ns after.
    since: Instant,
    window_from_ns: AtomicU64,
    lost_ns: AtomicU64,
    /// 0: never.
    until_ns: AtomicU64,
}

impl Crowded {
    /// Not crowded.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            window_from_ns: AtomicU64::new(0),
            lost_ns: AtomicU64::new(0),
            until_ns: AtomicU64::new(0),
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.since).as_nanos() as u64
    }

    /// Whether it is better to sleep at once than to spin.
    #[inline]
    #[must_use]
    pub fn is_at(&self, now: Instant) -> bool {
        let until_ns = self.until_ns.load(Ordering::Relaxed);
        until_ns != 0 && self.ns(now) < until_ns
    }

    /// A thread that meant to spin until `meant` got its core back at `now`.
    #[inline]
    pub fn note(&self, meant: Instant, now: Instant) {
        let lost = now.saturating_duration_since(meant);
        if lost > LONG_YIELD {
            self.add(lost, now);
        }
    }

    #[cold]
    fn add(&self, lost: Duration, now: Instant) {
        let (lost_ns, now_ns) = (lost.as_nanos() as u64, self.ns(now));
        let window_from_ns = self.window_from_ns.load(Ordering::Relaxed);
        let in_window = now_ns.saturating_sub(window_from_ns) < WINDOW.as_nanos() as u64;
        let before_ns = if in_window { self.lost_ns.load(Ordering::Relaxed) } else { 0 };
        if !in_window {
            self.window_from_ns.store(now_ns.saturating_sub(lost_ns), Ordering::Relaxed);
        }
        let sum_ns = before_ns.saturating_add(lost_ns);
        if sum_ns < LOST_MAX.as_nanos() as u64 {
            self.lost_ns.store(sum_ns, Ordering::Relaxed);
        } else {
            self.lost_ns.store(0, Ordering::Relaxed);
            self.until_ns.store(self.ns(now + REST), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_long_wait_for_the_core_is_no_crowd() {
        let start = Instant::now();
        let crowded = Crowded::new(start);
        for second in 1..10 {
            let meant = start + second * WINDOW;
            crowded.note(meant, meant + 10 * MS);
            assert!(!crowded.is_at(meant + 10 * MS), "10 of 100 ms");
        }
    }

    #[test]
    fn who_loses_much_of_the_time_does_not_spin_for_a_while() {
        let start = Instant::now();
        let crowded = Crowded::new(start);
        for turn in 0..7 {
            let meant = start + turn * 4 * MS;
            assert!(!crowded.is_at(meant), "turn {turn}");
            crowded.note(meant, meant + 3 * MS);
        }
        let noticed = start + 27 * MS;
        assert!(crowded.is_at(noticed) && crowded.is_at(noticed + REST - MS));
        assert!(!crowded.is_at(noticed + REST));
    }

    #[test]
    fn short_waits_are_not_counted() {
        let start = Instant::now();
        let crowded = Crowded::new(start);
        for turn in 0..1_000 {
            let meant = start + turn * MS / 2;
            crowded.note(meant, meant + LONG_YIELD);
        }
        assert!(!crowded.is_at(start + 500 * MS));
    }
}
