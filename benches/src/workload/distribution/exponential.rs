//! The newer a record, the more often: its age is exponentially distributed.

use rand::Rng;
use rand::rngs::SmallRng;

/// Longest mean age.
const MEAN_MAX: f64 = 1e15;

/// Numbers counted back from the end.
#[derive(Clone, Debug)]
pub struct Exponential {
    mean: f64,
}

impl Exponential {
    /// `percentile` of 100 draws are of the newest `range` records.
    #[must_use]
    pub fn new(percentile: f64, range: f64) -> Self {
        let mean = -range / (1.0 - percentile / 100.0).ln();
        // Far beyond any number of records it is uniform.
        Self { mean: mean.min(MEAN_MAX) }
    }

    /// The next number below `end`, if that is not 0. What would be older than the first record
    /// is not drawn at all, as if it were drawn again until it is not: that may take for ever.
    #[inline]
    pub fn next(&self, random: &mut SmallRng, end: u64) -> u64 {
        // Of an age that is below `end`, the part of all ages.
        let young = -(-(end as f64) / self.mean).exp_m1();
        let age = -(-young * random.random::<f64>()).ln_1p() * self.mean;
        end.saturating_sub(1).saturating_sub(age as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn the_percentile_is_in_its_range() {
        let (end, range) = (10_000_000, 1000.0);
        let exponential = Exponential::new(95.0, range);
        let mut random = check::random();
        let mut age = || end - 1 - exponential.next(&mut random, end);
        check::frequency(0.95, || age() < 1000);
        // Memoryless: twice the range leaves the square.
        check::frequency(1.0 - 0.05 * 0.05, || age() < 2000);
        let mean = range / 20.0f64.ln();
        check::frequency(1.0 - (-1.0 / mean).exp(), || age() == 0);
    }

    #[test]
    fn nothing_is_older_than_the_first() {
        let exponential = Exponential::new(50.0, 10.0);
        let mut random = check::random();
        check::frequency(1.0, || exponential.next(&mut random, 20) < 20);
        // Half of all ages are below 10, a quarter is not below 20 and is not drawn.
        check::frequency(0.5 / 0.75, || exponential.next(&mut random, 20) >= 10);
        assert_eq!(exponential.next(&mut random, 1), 0);
    }

    #[test]
    fn with_a_huge_range_it_is_uniform_and_does_not_hang() {
        let mut random = check::random();
        for range in [1e12, 1e30, f64::MAX, f64::INFINITY] {
            let exponential = Exponential::new(95.0, range);
            check::frequency(0.3, || exponential.next(&mut random, 1000) < 300);
        }
    }
}
