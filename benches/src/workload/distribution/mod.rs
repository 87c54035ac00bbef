//! Which record comes next: YCSB's request distributions. Each thread has its own, with its own
//! random numbers.

mod exponential;
mod hotspot;
mod latest;
mod lengths;
mod scrambled;
mod sequential;
mod uniform;
mod zipfian;

use rand::rngs::SmallRng;

pub use exponential::Exponential;
pub use hotspot::Hotspot;
pub use latest::Latest;
pub use lengths::{Histogram, Lengths};
pub use scrambled::Scrambled;
pub use sequential::Sequential;
pub use uniform::Uniform;
pub use zipfian::{ZIPFIAN_CONSTANT, Zipfian, zeta};

/// One of the distributions.
#[derive(Clone, Debug)]
pub enum Chooser {
    /// Each record as often as any other.
    Uniform(Uniform),
    /// Few records much more often, spread over the key space.
    Scrambled(Scrambled),
    /// The newer, the more often.
    Latest(Latest),
    /// Most operations to a part of the records.
    Hotspot(Hotspot),
    /// One after the other, by all threads together.
    Sequential(Sequential),
    /// The newer, the more often, exponentially.
    Exponential(Exponential),
}

impl Chooser {
    /// A number below `end`, that of the first record that is not there yet.
    #[inline]
    pub fn next(&mut self, random: &mut SmallRng, end: u64) -> u64 {
        // A distribution over records that will be inserted draws again until it meets one that is
        // there, so that inserts do not change which records are popular.
        loop {
            let number = match self {
                Self::Uniform(uniform) => uniform.next(random),
                Self::Scrambled(scrambled) => scrambled.next(random),
                Self::Latest(latest) => latest.next(random, end),
                Self::Hotspot(hotspot) => hotspot.next(random),
                Self::Sequential(sequential) => sequential.next(),
                Self::Exponential(exponential) => exponential.next(random, end),
            };
            if number < end {
                return number;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod check {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    /// Draws of a test; enough for a standard error of a thousandth.
    pub(crate) const DRAWS: u64 = 400_000;

    pub(crate) fn random() -> SmallRng {
        SmallRng::seed_from_u64(7)
    }

    /// How often `draw` is true must differ from `expected` by at most five standard errors.
    #[track_caller]
    pub(crate) fn frequency(expected: f64, mut draw: impl FnMut() -> bool) {
        let hits = (0..DRAWS).filter(|_| draw()).count() as f64;
        let found = hits / DRAWS as f64;
        let error = (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        let differs = (found - expected).abs();
        assert!(differs <= 5.0 * error + 1e-9, "{found} in place of {expected}, error {error}");
    }
}
