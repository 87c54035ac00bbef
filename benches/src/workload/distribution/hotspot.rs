//! Most operations to a part of the records: the first ones are the hot set.

use rand::Rng;
use rand::rngs::SmallRng;

use super::uniform::Uniform;

/// Numbers of a range, in two parts.
#[derive(Clone, Debug)]
pub struct Hotspot {
    hot: Uniform,
    cold: Uniform,
    hot_share: f64,
}

impl Hotspot {
    /// `count` numbers from `first` on. `data` of them are hot, and `operations` of all draws are
    /// hot ones; both from 0 to 1. A part without numbers gets no draws.
    #[must_use]
    pub fn new(first: u64, count: u64, data: f64, operations: f64) -> Self {
        let hot = (count as f64 * data) as u64;
        let hot_share = match hot {
            0 => 0.0,
            all if all == count => 1.0,
            _ => operations,
        };
        let cold = Uniform::new(first + hot, count - hot);
        Self { hot: Uniform::new(first, hot), cold, hot_share }
    }

    /// The next one.
    #[inline]
    pub fn next(&self, random: &mut SmallRng) -> u64 {
        let part = if random.random::<f64>() < self.hot_share { &self.hot } else { &self.cold };
        part.next(random)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn both_parts_have_their_share() {
        let hotspot = Hotspot::new(50, 1000, 0.2, 0.8);
        let mut random = check::random();
        check::frequency(0.8, || (50..250).contains(&hotspot.next(&mut random)));
        check::frequency(0.2, || (250..1050).contains(&hotspot.next(&mut random)));
        check::frequency(0.8 / 200.0, || hotspot.next(&mut random) == 50);
        check::frequency(0.2 / 800.0, || hotspot.next(&mut random) == 1049);
    }

    #[test]
    fn an_empty_part_gets_nothing() {
        let mut random = check::random();
        for data in [0.0, 1.0] {
            let hotspot = Hotspot::new(0, 10, data, 0.5);
            check::frequency(0.1, || hotspot.next(&mut random) == 9);
            check::frequency(1.0, || hotspot.next(&mut random) < 10);
        }
    }
}
