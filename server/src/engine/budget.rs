//! Memory that several engines share: a server has one engine for each tenant, so that no address
//! of one leads into another's memory, and one budget for all.

use std::sync::Arc;

use parking_lot::Mutex;

/// What the engines of one server may take together.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: usize,
    shares: Mutex<Vec<Share>>,
}

/// An engine's part of it.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    taken_bytes: usize,
    /// What no other engine can take, taken or not.
    promised_bytes: usize,
}

/// Whose share it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareId(usize);

impl Budget {
    /// So many bytes, none of them taken.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, shares: Mutex::default() })
    }

    /// What may be taken in all.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// What is taken now.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        self.shares.lock().iter().map(|share| share.taken_bytes).sum()
    }

    /// What is left, promised or not.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.limit_bytes - self.taken_bytes()
    }

    /// One more engine.
    pub(super) fn join(&self) -> ShareId {
        let mut shares = self.shares.lock();
        shares.push(Share::default());
        ShareId(shares.len() - 1)
    }

    /// What is left for an engine: without what was promised to others.
    pub(super) fn left_for(&self, share: ShareId) -> usize {
        self.left(&self.shares.lock(), share)
    }

    fn left(&self, shares: &[Share], of: ShareId) -> usize {
        let kept = |(number, share): (usize, &Share)| match number == of.0 {
            true => share.taken_bytes,
            false => share.taken_bytes.max(share.promised_bytes),
        };
        let kept_bytes = shares.iter().enumerate().map(kept).sum();
        self.limit_bytes.saturating_sub(kept_bytes)
    }

    /// From now on so many bytes are an engine's alone. `false`: others were promised too much for
    /// that, and nothing was changed.
    pub(super) fn promise(&self, share: ShareId, bytes: usize) -> bool {
        let mut shares = self.shares.lock();
        let all_bytes: usize = shares.iter().map(|share| share.promised_bytes).sum();
        let others_bytes = all_bytes - shares[share.0].promised_bytes;
        let holds = others_bytes + bytes <= self.limit_bytes;
        if holds {
            shares[share.0].promised_bytes = bytes;
        }
        holds
    }

    /// Takes `most` bytes, or what is left of them in multiples of `unit`, but not less than
    /// `least`.
    pub(super) fn take(
        &self,
        share: ShareId,
        most: usize,
        least: usize,
        unit: usize,
    ) -> Option<usize> {
        let mut shares = self.shares.lock();
        let bytes = most.min(self.left(&shares, share)) / unit * unit;
        let enough = bytes >= least && bytes > 0;
        if enough {
            shares[share.0].taken_bytes += bytes;
        }
        enough.then_some(bytes)
    }

    /// Gives back what was taken.
    pub(super) fn give(&self, share: ShareId, bytes: usize) {
        self.shares.lock()[share.0].taken_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_is_and_no_less_than_is_needed() {
        let budget = Budget::new(100);
        let share = budget.join();
        assert_eq!(budget.take(share, 64, 8, 8), Some(64));
        assert_eq!(budget.take(share, 64, 40, 8), None, "36 are left");
        assert_eq!(budget.take(share, 64, 8, 8), Some(32));
        assert_eq!(budget.take(share, 64, 0, 8), None, "nothing is no answer");
        assert_eq!(budget.left_bytes(), 4);
        budget.give(share, 64);
        assert_eq!(budget.take(share, 8, 8, 8), Some(8));
        assert_eq!(budget.limit_bytes(), 100);
    }

    #[test]
    fn what_is_promised_is_left_for_one_only() {
        let budget = Budget::new(100);
        let [a, b] = [(); 2].map(|()| budget.join());
        assert!(budget.promise(a, 60));
        assert!(!budget.promise(b, 41), "40 are left to promise");
        assert_eq!((budget.left_for(a), budget.left_for(b), budget.left_bytes()), (100, 40, 100));
        assert_eq!(budget.take(b, 64, 8, 8), Some(40));
        assert_eq!(budget.take(a, 64, 8, 8), Some(56));
        assert_eq!((budget.left_for(a), budget.left_for(b)), (4, 0));
        budget.give(a, 56);
        assert_eq!(budget.take(b, 8, 8, 8), None);
        assert!(budget.promise(a, 0) && budget.promise(b, 100));
        assert_eq!(budget.take(b, 64, 8, 8), Some(56));
        assert_eq!(budget.left_for(a), 0);
    }

    #[test]
    fn a_promise_that_others_have_taken_is_kept_as_soon_as_they_give_back() {
        let budget = Budget::new(100);
        let [a, b] = [(); 2].map(|()| budget.join());
        assert_eq!(budget.take(b, 96, 8, 8), Some(96));
        assert!(budget.promise(a, 64));
        assert_eq!((budget.left_for(a), budget.left_for(b)), (4, 0));
        budget.give(b, 32);
        assert_eq!((budget.left_for(a), budget.left_for(b)), (36, 0));
    }
}
