//! When operations begin: at once (closed loop), or at times that were fixed before (open loop).

use std::time::{Duration, Instant};

/// Below this a thread does not sleep: it would wake too late.
const SPIN: Duration = Duration::from_micros(150);

/// The times of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// When the first operation of this thread should begin, after the start of all.
    first_ns: u64,
    /// From one to the next, in ns; 0 = closed loop.
    step_ns: f64,
    /// Operations whose time has been given out.
    given: u64,
}

impl Pace {
    /// As soon as the one before is over.
    #[must_use]
    pub fn closed() -> Self {
        Self { first_ns: 0, step_ns: 0.0, given: 0 }
    }

    /// All threads together begin so many operations in a second, taking turns.
    #[must_use]
    pub fn open(ops_per_s: f64, thread: usize, threads: usize) -> Self {
        let of_all = 1e9 / ops_per_s;
        let first_ns = (of_all * thread as f64) as u64;
        Self { first_ns, step_ns: of_all * threads as f64, given: 0 }
    }

    /// Whether times are fixed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.step_ns > 0.0
    }

    /// When the next operation should begin, in ns after the start.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.first_ns + (self.given as f64 * self.step_ns) as u64
    }

    /// The next operation has got its time.
    pub fn advance(&mut self) {
        self.given += 1;
    }
}

/// Waits until so many ns after `start`, at most until the end; false if that came first.
pub fn wait_until(start: Instant, due_ns: u64, end_ns: u64) -> bool {
    let until = start + Duration::from_nanos(due_ns.min(end_ns));
    loop {
        let now = Instant::now();
        if now >= until {
            return due_ns <= end_ns;
        }
        match until - now {
            left if left > SPIN => std::thread::sleep(left - SPIN),
            _ => std::thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let mut paces = [0, 1].map(|thread| Pace::open(1e6, thread, 2));
        let mut times = vec![];
        for _ in 0..3 {
            for pace in &mut paces {
                times.push(pace.due_ns());
                pace.advance();
            }
        }
        assert_eq!(times, [0, 1000, 2000, 3000, 4000, 5000]);
        assert!(paces[0].is_open() && !Pace::closed().is_open());
    }

    #[test]
    fn late_operations_keep_their_time() {
        let mut pace = Pace::open(3.0, 0, 1);
        (0..3_000_000).for_each(|_| pace.advance());
        assert_eq!(pace.due_ns(), 1_000_000_000_000_000, "no error adds up");
    }

    #[test]
    fn waiting_ends_at_the_end() {
        let start = Instant::now();
        assert!(wait_until(start, 1000, u64::MAX));
        assert!(!wait_until(start, u64::MAX / 4, 1_000_000));
        assert!(wait_until(start, 0, 1_000_000));
    }
}
