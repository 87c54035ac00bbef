//! Each number as often as any other.

use rand::Rng;
use rand::rngs::SmallRng;

/// Numbers of a range.
#[derive(Clone, Debug)]
pub struct Uniform {
    first: u64,
    count: u64,
}

impl Uniform {
    /// `count` numbers from `first` on; at least one.
    #[must_use]
    pub fn new(first: u64, count: u64) -> Self {
        Self { first, count: count.max(1) }
    }

    /// The next one.
    #[inline]
    pub fn next(&self, random: &mut SmallRng) -> u64 {
        // The bias of this multiplication is below count / 2^64.
        let number = (u128::from(random.random::<u64>()) * u128::from(self.count)) >> 64;
        self.first + number as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn each_is_as_frequent() {
        let uniform = Uniform::new(100, 10);
        let mut random = check::random();
        for number in [100, 105, 109] {
            check::frequency(0.1, || uniform.next(&mut random) == number);
        }
        check::frequency(1.0, || (100..110).contains(&uniform.next(&mut random)));
    }

    #[test]
    fn chi_squared_does_not_reject_it() {
        let uniform = Uniform::new(0, 101);
        let mut random = check::random();
        let mut counts = [0_u32; 101];
        (0..check::DRAWS).for_each(|_| counts[uniform.next(&mut random) as usize] += 1);
        let expected = check::DRAWS as f64 / 101.0;
        let sum: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        // 100 degrees of freedom: 0.001 beyond 149, 0.999 beyond 62.
        assert!((62.0..149.0).contains(&sum), "chi squared is {sum}");
    }
}
