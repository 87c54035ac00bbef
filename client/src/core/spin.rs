//! When polling for an answer is of no use: a thread that waits had better sleep then.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often spinning was in vain of late. It is tried seldom then: where more threads wait for
/// answers than there are cores, who spins takes the time of those who would answer.
#[derive(Debug, Default)]
pub(super) struct Vain {
    times: AtomicU32,
    /// Waits without it that are left.
    skips: AtomicU32,
}

/// Spinning is left out at most so many times in a row: 2 to the power of it.
const VAIN_MAX: u32 = 8;

impl Vain {
    pub(super) fn may_spin(&self) -> bool {
        let skips = self.skips.load(Ordering::Relaxed);
        if skips > 0 {
            // Others count at the same time: about as many will do.
            self.skips.store(skips - 1, Ordering::Relaxed);
        }
        skips == 0
    }

    /// What came of it. It pays if it brings the answer in two of three cases.
    pub(super) fn note(&self, brought_it: bool) {
        let times = self.times.load(Ordering::Relaxed);
        let now = if brought_it { times.saturating_sub(1) } else { (times + 2).min(VAIN_MAX) };
        self.times.store(now, Ordering::Relaxed);
        if !brought_it {
            self.skips.store(1 << now, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_in_vain_becomes_rare_and_comes_back() {
        let vain = Vain::default();
        let spins = |waits: usize, brings: bool| {
            let spins = (0..waits).filter(|_| vain.may_spin()).inspect(|_| vain.note(brings));
            spins.count()
        };
        assert_eq!(spins(1000, true), 1000);
        assert!((4..=10).contains(&spins(1000, false)));
        // At most 256 waits until it is tried again, and then at once as before.
        assert!(spins(1000, true) >= 744);
        // One in vain now and then changes little.
        vain.note(false);
        assert!(spins(100, true) >= 94);
    }
}
