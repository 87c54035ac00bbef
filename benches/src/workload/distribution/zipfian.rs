//! Zipf's distribution, drawn as YCSB draws it: Gray et al., "Quickly generating billion-record
//! synthetic databases", SIGMOD 1994. The two most frequent ranks are exact, the others close.

use rand::Rng;
use rand::rngs::SmallRng;

/// YCSB's exponent.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// Terms of a zeta that are added one by one.
const EXACT_TERMS: u64 = 10_000;

/// The sum of `rank^-theta` over the ranks 1 to `count`. Beyond the first 10,000 terms by the
/// formula of Euler and Maclaurin, whose error is less than a double tells.
#[must_use]
pub fn zeta(count: u64, theta: f64) -> f64 {
    let exact = count.min(EXACT_TERMS);
    let sum: f64 = (1..=exact).rev().map(|rank| (rank as f64).powf(-theta)).sum();
    if exact == count {
        return sum;
    }
    let (from, to) = (exact as f64, count as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (to.powf(-theta) - from.powf(-theta)) / 2.0;
    let slopes = theta / 12.0 * (from.powf(-theta - 1.0) - to.powf(-theta - 1.0));
    sum + integral + ends + slopes
}

/// Ranks from 0, the most frequent.
#[derive(Clone, Debug)]
pub struct Zipfian {
    theta: f64,
    alpha: f64,
    /// Of 2: what is below is rank 1 or 0.
    zeta_2: f64,
    items: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// Over so many ranks, with an exponent below 1.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    /// The same, where zeta is known.
    #[must_use]
    pub fn with_zeta(items: u64, theta: f64, zeta: f64) -> Self {
        let zeta_2 = 1.0 + 0.5f64.powf(theta);
        let alpha = 1.0 / (1.0 - theta);
        let mut zipfian = Self { theta, alpha, zeta_2, items: 0.0, zeta, eta: 0.0 };
        zipfian.resize(items, zeta);
        zipfian
    }

    /// Makes it one over more or fewer ranks.
    pub(super) fn resize(&mut self, items: u64, zeta: f64) {
        self.items = items as f64;
        self.zeta = zeta;
        let tail = 1.0 - (2.0 / self.items).powf(1.0 - self.theta);
        self.eta = tail / (1.0 - self.zeta_2 / zeta);
    }

    /// The exponent.
    pub(super) fn theta(&self) -> f64 {
        self.theta
    }

    /// The next rank.
    #[inline]
    pub fn next(&self, random: &mut SmallRng) -> u64 {
        let uniform: f64 = random.random();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_2 {
            return 1;
        }
        let rank = self.items * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        // By rounding it may be the first rank beyond the last.
        rank.min(self.items - 1.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn zeta_is_what_ycsb_has_summed_up() {
        // Its constant for 10^10 items; the additions of ten billion terms lose the last digits.
        let known = 26.469_028_201_783_02;
        assert!((zeta(10_000_000_000, ZIPFIAN_CONSTANT) - known).abs() < 1e-7);
        let direct: f64 = (1..=1_000_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        assert!((zeta(1_000_000, 0.99) - direct).abs() < 1e-9);
        assert!((zeta(3, 0.5) - (1.0 + 0.5f64.sqrt() + (1.0f64 / 3.0).sqrt())).abs() < 1e-12);
    }

    #[test]
    fn the_first_two_ranks_are_exact() {
        for items in [2, 1000, 1_000_000] {
            let zipfian = Zipfian::new(items, ZIPFIAN_CONSTANT);
            let mut random = check::random();
            let zeta = zeta(items, ZIPFIAN_CONSTANT);
            check::frequency(1.0 / zeta, || zipfian.next(&mut random) == 0);
            let second = 0.5f64.powf(ZIPFIAN_CONSTANT) / zeta;
            check::frequency(second, || zipfian.next(&mut random) == 1);
            check::frequency(1.0, || zipfian.next(&mut random) < items);
        }
    }

    #[test]
    fn heads_have_their_mass() {
        let items = 1_000_000;
        let zipfian = Zipfian::new(items, ZIPFIAN_CONSTANT);
        let mut random = check::random();
        let mut ranks: Vec<u64> = (0..check::DRAWS).map(|_| zipfian.next(&mut random)).collect();
        ranks.sort_unstable();
        for head in [10, 100, 1000, 10_000, 100_000] {
            let found = ranks.partition_point(|rank| *rank < head) as f64 / check::DRAWS as f64;
            let expected = zeta(head, ZIPFIAN_CONSTANT) / zeta(items, ZIPFIAN_CONSTANT);
            // Gray's approximation errs by about a hundredth at small ranks.
            assert!((found - expected).abs() < 0.015, "{head}: {found} for {expected}");
        }
    }
}
