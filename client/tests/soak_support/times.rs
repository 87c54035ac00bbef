//! How long operations took, beside how late a thread was that only sleeps, second by second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Put,
    Get,
    /// How much longer than asked for the control slept.
    Control,
}

const KINDS: usize = 3;
/// What a stall is, from this on.
const STALL_US: u64 = 100_000;
/// Seconds that are told of.
const WORST: usize = 8;

pub(crate) struct Times {
    start: Instant,
    /// The longest of each kind that ended in each second, us.
    longest_us: Vec<[AtomicU64; KINDS]>,
    stalls: [AtomicU64; KINDS],
}

impl Times {
    pub(crate) fn new(most_s: u64) -> Self {
        let seconds = 0..most_s;
        Self {
            start: Instant::now(),
            longest_us: seconds.map(|_| Default::default()).collect(),
            stalls: Default::default(),
        }
    }

    pub(crate) fn note(&self, kind: Kind, took: Duration) {
        let us = took.as_micros() as u64;
        let second = (self.start.elapsed().as_secs() as usize).min(self.longest_us.len() - 1);
        self.longest_us[second][kind as usize].fetch_max(us, Ordering::Relaxed);
        if us > STALL_US {
            self.stalls[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn timed<T>(&self, kind: Kind, body: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = body();
        self.note(kind, began.elapsed());
        result
    }

    fn of(&self, second: usize, kind: Kind) -> u64 {
        self.longest_us[second][kind as usize].load(Ordering::Relaxed)
    }

    fn longest_us(&self, kind: Kind) -> u64 {
        (0..self.longest_us.len()).map(|second| self.of(second, kind)).max().unwrap_or(0)
    }

    /// By how much the worst operation of a kind exceeds what the control saw meanwhile, ms.
    pub(crate) fn beyond_ms(&self, kind: Kind) -> u64 {
        (0..self.longest_us.len()).map(|second| self.beyond_in(second, kind)).max().unwrap_or(0)
    }

    /// In this second.
    fn beyond_in(&self, second: usize, kind: Kind) -> u64 {
        let took_us = self.of(second, kind);
        // The control's look may end a little later.
        let from = second.saturating_sub((took_us / 1_000_000) as usize + 1);
        let to = (second + 2).min(self.longest_us.len());
        let control_us = (from..to).map(|second| self.of(second, Kind::Control)).max();
        took_us.saturating_sub(control_us.unwrap_or(0)) / 1_000
    }

    /// The worst seconds of a kind: when, and by how much beyond the control, ms.
    pub(crate) fn worst(&self, kind: Kind) -> Vec<(usize, u64)> {
        let mut all: Vec<_> =
            (0..self.longest_us.len()).map(|s| (s, self.beyond_in(s, kind))).collect();
        all.sort_by_key(|&(_, beyond_ms)| std::cmp::Reverse(beyond_ms));
        all.truncate(WORST);
        all
    }

    /// All of it in a line.
    pub(crate) fn line(&self) -> String {
        let ms = |kind| self.longest_us(kind) as f64 / 1e3;
        let stalls = self.stalls.each_ref().map(|count| count.load(Ordering::Relaxed));
        let beyond = [Kind::Put, Kind::Get].map(|kind| self.beyond_ms(kind));
        format!(
            "longest put {:.1} ms, get {:.1} ms, control {:.1} ms; beyond the control of the same \
             seconds: put {} ms, get {} ms; over 100 ms: {} puts, {} gets, {} of the control",
            ms(Kind::Put),
            ms(Kind::Get),
            ms(Kind::Control),
            beyond[0],
            beyond[1],
            stalls[0],
            stalls[1],
            stalls[2]
        )
    }
}
