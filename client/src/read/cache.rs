//! The bucket cache: a bounded mirror of a table's index, by bucket, not by key.
//!
//! It has room for one image per (directory word, bucket) as long as its budget allows; beyond
//! that, several share a place and the last one read wins. Every word is a hint: an image may be
//! old, or mixed from two refreshes by different threads; the entry that a slot points at
//! decides, and a cached image never proves a miss. So plain relaxed words do, without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use onesided_protocol::LogAddr;
use onesided_protocol::layout::line::{BUCKET_BYTES, BUCKET_WORDS, BUCKETS, LINE_WORDS};

/// Bytes that all caches of a client may take together.
#[derive(Debug)]
pub(crate) struct CacheBudget {
    left_bytes: AtomicUsize,
}

impl CacheBudget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left_bytes: AtomicUsize::new(bytes) })
    }

    /// Takes the largest power of two up to `wanted` that is left, or 0.
    fn take(&self, wanted: usize) -> usize {
        let mut granted = 0;
        let take = |left: usize| {
            granted = match left.min(wanted) {
                0 => 0,
                most => 1 << most.ilog2(),
            };
            Some(left - granted)
        };
        // The closure always gives a value, so this cannot fail.
        let _always_ok = self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        granted
    }

    fn give_back(&self, bytes: usize) {
        self.left_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Images of buckets. In an image the header of the second line, which a reader of a cached
/// bucket does not need, is replaced by the bucket's address: the tag.
pub(crate) struct BucketCache {
    words: Box<[AtomicU64]>,
    mask: usize,
    budget: Arc<CacheBudget>,
}

/// Where the tag is.
const TAG: usize = LINE_WORDS;

impl BucketCache {
    /// A cache for a directory of 2^depth words, as far as the budget goes.
    pub(crate) fn new(depth: u8, budget: &Arc<CacheBudget>) -> Self {
        let wanted = (BUCKETS << depth) * BUCKET_BYTES;
        let granted = budget.take(wanted);
        // Less than a segment's worth is not worth looking into.
        let images = if granted < BUCKETS * BUCKET_BYTES { 0 } else { granted / BUCKET_BYTES };
        if images == 0 {
            budget.give_back(granted);
        }
        let words = std::iter::repeat_with(|| AtomicU64::new(0)).take(images * BUCKET_WORDS);
        Self { words: words.collect(), mask: images.wrapping_sub(1), budget: budget.clone() }
    }

    #[inline]
    fn image(&self, directory_index: usize, bucket: usize) -> Option<&[AtomicU64]> {
        let place = (directory_index * BUCKETS + bucket) & self.mask;
        self.words.get(place * BUCKET_WORDS..(place + 1) * BUCKET_WORDS)
    }

    /// The image of the bucket at `addr`, if it is here.
    #[inline]
    pub(crate) fn get(
        &self,
        directory_index: usize,
        bucket: usize,
        addr: LogAddr,
    ) -> Option<[u64; BUCKET_WORDS]> {
        let image = self.image(directory_index, bucket)?;
        if image[TAG].load(Ordering::Relaxed) != addr.get() {
            return None;
        }
        let mut words = [0; BUCKET_WORDS];
        for (word, cached) in words.iter_mut().zip(image) {
            *word = cached.load(Ordering::Relaxed);
        }
        Some(words)
    }

    /// Keeps an image that was READ at `addr`.
    pub(crate) fn put(
        &self,
        directory_index: usize,
        bucket: usize,
        addr: LogAddr,
        words: &[u64; BUCKET_WORDS],
    ) {
        let Some(image) = self.image(directory_index, bucket) else { return };
        for (i, (cached, &word)) in image.iter().zip(words).enumerate() {
            cached.store(if i == TAG { addr.get() } else { word }, Ordering::Relaxed);
        }
    }

    /// Takes over what another cache of half or the same directory size has: the keys of an old
    /// image are where they were, even if a split has moved their slots.
    pub(crate) fn take_over(&self, depth: u8, old: &Self, old_depth: u8) {
        let Some(more) = depth.checked_sub(old_depth) else { return };
        for directory_index in 0..1usize << depth {
            for bucket in 0..BUCKETS {
                let from = old.image(directory_index >> more, bucket);
                let Some((from, to)) = from.zip(self.image(directory_index, bucket)) else {
                    return;
                };
                for (to, from) in to.iter().zip(from) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
    }

    /// Bytes that it takes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.words.len() * 8
    }
}

impl Drop for BucketCache {
    fn drop(&mut self) {
        self.budget.give_back(self.len_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(seed: u64) -> [u64; BUCKET_WORDS] {
        std::array::from_fn(|i| seed * 100 + i as u64)
    }

    #[test]
    fn finds_what_was_put_only_at_its_address() {
        let cache = BucketCache::new(1, &CacheBudget::new(1 << 20));
        let (here, there) = (LogAddr::new(1, 0), LogAddr::new(1, 1024));
        assert_eq!(cache.get(1, 7, here), None);
        cache.put(1, 7, here, &image(3));
        let found = cache.get(1, 7, here).expect("it was put");
        assert_eq!(found[..TAG], image(3)[..TAG]);
        assert_eq!(found[TAG + 1..], image(3)[TAG + 1..]);
        assert_eq!(cache.get(1, 7, there), None, "another segment serves the bucket now");
        assert_eq!(cache.get(0, 7, here), None);
    }

    #[test]
    fn stays_within_the_budget_and_gives_it_back() {
        let segment = BUCKETS * BUCKET_BYTES;
        let budget = CacheBudget::new(3 * segment);
        let first = BucketCache::new(4, &budget);
        assert_eq!(first.len_bytes(), 2 * segment, "the largest power of two that fits");
        let second = BucketCache::new(4, &budget);
        assert_eq!(second.len_bytes(), segment);
        let third = BucketCache::new(4, &budget);
        assert_eq!(third.len_bytes(), 0);
        third.put(0, 0, LogAddr::new(1, 0), &image(1));
        assert_eq!(third.get(0, 0, LogAddr::new(1, 0)), None);
        drop((first, second, third));
        assert_eq!(budget.left_bytes.load(Ordering::Relaxed), 3 * segment);
    }

    #[test]
    fn a_small_cache_shares_places() {
        let cache = BucketCache::new(3, &CacheBudget::new(BUCKETS * BUCKET_BYTES));
        let addr = LogAddr::new(2, 64);
        cache.put(0, 5, addr, &image(1));
        let other = LogAddr::new(3, 64);
        cache.put(4, 5, other, &image(2));
        assert_eq!(cache.get(0, 5, addr), None, "the last one read wins");
        assert!(cache.get(4, 5, other).is_some());
    }

    #[test]
    fn a_doubled_directory_starts_with_what_was_known() {
        let budget = CacheBudget::new(1 << 20);
        let old = BucketCache::new(0, &budget);
        let addr = LogAddr::new(1, 0);
        old.put(0, 9, addr, &image(1));
        let new = BucketCache::new(1, &budget);
        new.take_over(1, &old, 0);
        assert!(new.get(0, 9, addr).is_some() && new.get(1, 9, addr).is_some());
    }
}
