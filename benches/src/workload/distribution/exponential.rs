//! The newer a record, the more often: its age is exponentially distributed.

use rand::Rng;
use rand::rngs::SmallRng;

/// Numbers counted back from the end.
#[derive(Clone, Debug)]
pub struct Exponential {
    mean: f64,
}

impl Exponential {
    /// `percentile` of 100 draws are of the newest `range` records.
    #[must_use]
    pub fn new(percentile: f64, range: f64) -> Self {
        Self { mean: -range / (1.0 - percentile / 100.0).ln() }
    }

    /// The next number below `end`; `None` if it would be older than the first record.
    #[inline]
    pub fn next(&self, random: &mut SmallRng, end: u64) -> Option<u64> {
        // In (0, 1], which has a logarithm.
        let uniform = 1.0 - random.random::<f64>();
        let age = (-uniform.ln() * self.mean) as u64;
        end.checked_sub(1)?.checked_sub(age)
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
        let mut age = || end - 1 - exponential.next(&mut random, end).expect("far from the first");
        check::frequency(0.95, || age() < 1000);
        // Memoryless: twice the range leaves the square.
        check::frequency(1.0 - 0.05 * 0.05, || age() < 2000);
        let mean = range / 20.0f64.ln();
        check::frequency(1.0 - (-1.0 / mean).exp(), || age() == 0);
    }

    #[test]
    fn nothing_is_older_than_the_first() {
        let exponential = Exponential::new(50.0, 100.0);
        let mut random = check::random();
        check::frequency(1.0, || exponential.next(&mut random, 10).is_none_or(|n| n < 10));
        assert_eq!(exponential.next(&mut random, 0), None);
    }
}
