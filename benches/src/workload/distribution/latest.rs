//! The newer a record, the more often, by Zipf's distribution over all that are there.

use rand::rngs::SmallRng;

use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian, zeta};

/// Numbers counted back from the end.
#[derive(Clone, Debug)]
pub struct Latest {
    ages: Zipfian,
    /// Records that `ages` is over, and their zeta.
    count: u64,
    zeta: f64,
}

impl Latest {
    /// With so many records at first.
    #[must_use]
    pub fn new(count: u64) -> Self {
        let count = count.max(1);
        let zeta = zeta(count, ZIPFIAN_CONSTANT);
        Self { ages: Zipfian::with_zeta(count, ZIPFIAN_CONSTANT, zeta), count, zeta }
    }

    /// The next number below `end`; `end` only grows.
    #[inline]
    pub fn next(&mut self, random: &mut SmallRng, end: u64) -> u64 {
        if end > self.count {
            self.grow(end);
        }
        end.saturating_sub(1 + self.ages.next(random))
    }

    #[cold]
    fn grow(&mut self, end: u64) {
        let theta = self.ages.theta();
        if end - self.count > 1000 {
            self.zeta = zeta(end, theta);
        } else {
            let more = self.count + 1..=end;
            self.zeta += more.map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        }
        self.count = end;
        self.ages.resize(end, self.zeta);
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn the_newest_is_the_most_frequent_also_when_there_are_more() {
        let mut latest = Latest::new(10);
        let mut random = check::random();
        for end in [10, 1000, 1010, 50_000] {
            let zeta = zeta(end, ZIPFIAN_CONSTANT);
            check::frequency(1.0 / zeta, || latest.next(&mut random, end) == end - 1);
            let second = 0.5f64.powf(ZIPFIAN_CONSTANT) / zeta;
            check::frequency(second, || latest.next(&mut random, end) == end - 2);
            check::frequency(1.0, || latest.next(&mut random, end) < end);
        }
    }
}
