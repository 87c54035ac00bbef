//! One record after the other, by all threads together, and again from the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of a range; clones go through it together.
#[derive(Clone, Debug)]
pub struct Sequential {
    first: u64,
    count: u64,
    drawn: Arc<AtomicU64>,
}

impl Sequential {
    /// `count` numbers from `first` on; at least one.
    #[must_use]
    pub fn new(first: u64, count: u64) -> Self {
        Self { first, count: count.max(1), drawn: Arc::default() }
    }

    /// The next one.
    #[inline]
    pub fn next(&self) -> u64 {
        self.first + self.drawn.fetch_add(1, Ordering::Relaxed) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_take_turns() {
        let sequential = Sequential::new(3, 3);
        let clone = sequential.clone();
        let drawn: Vec<u64> = (0..3).flat_map(|_| [sequential.next(), clone.next()]).collect();
        assert_eq!(drawn, [3, 4, 5, 3, 4, 5]);
    }
}
