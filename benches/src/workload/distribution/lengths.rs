//! Lengths of fields and of scans.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rand::Rng;
use rand::rngs::SmallRng;

use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian};

/// How long the next one is.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// Always the same.
    Constant(u64),
    /// All of a range alike.
    Uniform {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
    },
    /// Short ones more often.
    Zipfian {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
        /// What is added to the shortest.
        more: Zipfian,
    },
    /// From a file.
    Histogram(Histogram),
}

impl Lengths {
    /// All from `min` to `max`, short ones more often.
    #[must_use]
    pub fn zipfian(min: u64, max: u64) -> Self {
        let more = Zipfian::new(max - min + 1, ZIPFIAN_CONSTANT);
        Self::Zipfian { min, max, more }
    }

    /// The next one.
    #[inline]
    pub fn next(&self, random: &mut SmallRng) -> u64 {
        match self {
            Self::Constant(length) => *length,
            Self::Uniform { min, max } => random.random_range(*min..=*max),
            Self::Zipfian { min, max, more } if min < max => min + more.next(random),
            Self::Zipfian { min, .. } => *min,
            Self::Histogram(histogram) => histogram.next(random),
        }
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> u64 {
        match self {
            Self::Constant(length) => *length,
            Self::Uniform { max, .. } | Self::Zipfian { max, .. } => *max,
            Self::Histogram(histogram) => histogram.max(),
        }
    }

    /// The one length, if all are alike.
    #[must_use]
    pub fn constant(&self) -> Option<u64> {
        match self {
            Self::Constant(length) => Some(*length),
            _ => None,
        }
    }
}

/// YCSB's `fieldlengthhistogram`: a line `BlockSize`, tab, length; then lines of number and count,
/// separated by tabs. What falls into bucket `number` has `(number + 1) * BlockSize` bytes.
#[derive(Clone, Debug)]
pub struct Histogram {
    block: u64,
    /// Up to and with each bucket.
    sums: Vec<u64>,
}

impl Histogram {
    /// From a file.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        Self::parse(&text).with_context(|| format!("in {name}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let first = lines.next().and_then(|line| line.strip_prefix("BlockSize\t"));
        let Some(Ok(block)) = first.map(str::parse::<u64>) else {
            bail!("the first line is not `BlockSize`, a tab and a length in bytes");
        };
        let (mut sums, mut sum) = (vec![], 0_u64);
        for (number, line) in lines.enumerate() {
            let expected = format!("line {}: not `{number}`, a tab and a count", number + 2);
            let count = line.split_once('\t').filter(|(place, _)| **place == number.to_string());
            let count = count.and_then(|(_, count)| count.parse::<u64>().ok());
            sum = sum.checked_add(count.context(expected)?).context("too many lengths")?;
            sums.push(sum);
        }
        ensure!(block > 0 && sum > 0, "there is no length in it");
        Ok(Self { block, sums })
    }

    fn next(&self, random: &mut SmallRng) -> u64 {
        let all = self.sums.last().copied().unwrap_or(1);
        let drawn = random.random_range(0..all);
        (self.sums.partition_point(|sum| *sum <= drawn) as u64 + 1) * self.block
    }

    fn max(&self) -> u64 {
        self.sums.len() as u64 * self.block
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn lengths_have_their_frequencies() {
        let mut random = check::random();
        let uniform = Lengths::Uniform { min: 1, max: 4 };
        check::frequency(0.25, || uniform.next(&mut random) == 4);
        let zipfian = Lengths::zipfian(10, 109);
        let first = 1.0 / super::super::zipfian::zeta(100, ZIPFIAN_CONSTANT);
        check::frequency(first, || zipfian.next(&mut random) == 10);
        check::frequency(1.0, || (10..=109).contains(&zipfian.next(&mut random)));
        assert_eq!(Lengths::zipfian(5, 5).next(&mut random), 5);
        assert_eq!((zipfian.max(), uniform.constant()), (109, None));
    }

    #[test]
    fn a_histogram_has_its_buckets() {
        let text = "BlockSize\t16\n0\t1\n1\t0\n2\t3\n";
        let lengths = Lengths::Histogram(Histogram::parse(text).expect("it parses"));
        let mut random = check::random();
        check::frequency(0.25, || lengths.next(&mut random) == 16);
        check::frequency(0.75, || lengths.next(&mut random) == 48);
        assert_eq!(lengths.max(), 48);
        for wrong in
            ["", "Size\t1\n", "BlockSize\t1\n", "BlockSize\t1\n1\t1\n", "BlockSize\t1\n0 1"]
        {
            assert!(Histogram::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
