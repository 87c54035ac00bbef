//! Zipf's distribution spread over the key space by a hash, so that popular records are no
//! neighbours. As in YCSB the ranks are those of ten billion items whatever the number of records,
//! so that more records do not make it another distribution.

use rand::rngs::SmallRng;

use super::super::keys::fnv_hash;
use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian};

/// Items that ranks are drawn from.
const RANKS: u64 = 10_000_000_000;
/// YCSB's zeta of them.
const ZETA: f64 = 26.469_028_201_783_02;

/// Numbers of a range.
#[derive(Clone, Debug)]
pub struct Scrambled {
    ranks: Zipfian,
    first: u64,
    count: u64,
}

impl Scrambled {
    /// `count` numbers from `first` on; at least one.
    #[must_use]
    pub fn new(first: u64, count: u64) -> Self {
        let ranks = Zipfian::with_zeta(RANKS + 1, ZIPFIAN_CONSTANT, ZETA);
        Self { ranks, first, count: count.max(1) }
    }

    /// The next one.
    #[inline]
    pub fn next(&self, random: &mut SmallRng) -> u64 {
        self.first + fnv_hash(self.ranks.next(random)) % self.count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::zipfian::zeta;
    use super::super::{Chooser, check};
    use super::*;

    /// What a number below `count` has of all draws: its own rank's part, and its share of the
    /// ranks too far back to be popular.
    fn expected(rank: u64, count: u64) -> f64 {
        let own = ((rank + 1) as f64).powf(-ZIPFIAN_CONSTANT) / ZETA;
        let tail = 1.0 - zeta(1000, ZIPFIAN_CONSTANT) / zeta(RANKS, ZIPFIAN_CONSTANT);
        own + tail / count as f64
    }

    #[test]
    fn the_hottest_have_their_share_whatever_the_number_of_records() {
        let mut random = check::random();
        for count in [1_000_000, 10_000_000, 1_000_000_000] {
            let scrambled = Scrambled::new(5, count);
            for rank in [0, 1] {
                let hot = 5 + fnv_hash(rank) % count;
                check::frequency(expected(rank, count), || scrambled.next(&mut random) == hot);
            }
            check::frequency(1.0, || (5..5 + count).contains(&scrambled.next(&mut random)));
        }
    }

    #[test]
    fn inserts_do_not_change_who_is_popular() {
        // 1000 records are there, room is made for as many inserts as 5 % of operations make.
        let mut chooser = Chooser::Scrambled(Scrambled::new(0, 2001));
        let mut random = check::random();
        let mut counts = |end: u64| {
            let mut counts: HashMap<u64, u64> = HashMap::new();
            for _ in 0..check::DRAWS {
                let number = chooser.next(&mut random, end);
                assert!(number < end);
                *counts.entry(number).or_default() += 1;
            }
            counts
        };
        let (before, after) = (counts(1000), counts(2000));
        let order = |counts: &HashMap<u64, u64>| {
            let mut old: Vec<u64> = (0..1000).collect();
            old.sort_by_key(|number| std::cmp::Reverse(counts.get(number).copied().unwrap_or(0)));
            old.truncate(3);
            old
        };
        assert_eq!(order(&before), order(&after), "the most popular of the old records");
        // Of each other they keep their ratios.
        let [first, second] = [order(&before)[0], order(&before)[1]];
        let ratio = |counts: &HashMap<u64, u64>| counts[&first] as f64 / counts[&second] as f64;
        assert!((ratio(&before) / ratio(&after) - 1.0).abs() < 0.1);
    }
}
