//! Memory that several engines share: a server has one engine for each tenant, so that no address
//! of one leads into another's memory, and one budget for all.

use std::sync::Arc;

use parking_lot::Mutex;

/// What the engines of one server may take together.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: usize,
    taken_bytes: Mutex<usize>,
}

impl Budget {
    /// So many bytes, none of them taken.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, taken_bytes: Mutex::new(0) })
    }

    /// What may be taken in all.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// What is taken now.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        *self.taken_bytes.lock()
    }

    /// What is left.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.limit_bytes - self.taken_bytes()
    }

    /// Takes `most` bytes, or what is left of them in multiples of `unit`, but not less than
    /// `least`.
    pub(super) fn take(&self, most: usize, least: usize, unit: usize) -> Option<usize> {
        let mut taken_bytes = self.taken_bytes.lock();
        let bytes = most.min(self.limit_bytes - *taken_bytes) / unit * unit;
        let enough = bytes >= least && bytes > 0;
        if enough {
            *taken_bytes += bytes;
        }
        enough.then_some(bytes)
    }

    /// Gives back what was taken.
    pub(super) fn give(&self, bytes: usize) {
        *self.taken_bytes.lock() -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_is_and_no_less_than_is_needed() {
        let budget = Budget::new(100);
        assert_eq!(budget.take(64, 8, 8), Some(64));
        assert_eq!(budget.take(64, 40, 8), None, "36 are left");
        assert_eq!(budget.take(64, 8, 8), Some(32));
        assert_eq!(budget.take(64, 0, 8), None, "nothing is no answer");
        assert_eq!(budget.left_bytes(), 4);
        budget.give(64);
        assert_eq!(budget.take(8, 8, 8), Some(8));
        assert_eq!(budget.limit_bytes(), 100);
    }
}
