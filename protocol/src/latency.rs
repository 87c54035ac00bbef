//! Buckets of latency histograms: powers of two, the same for what servers measure and for what
//! clients report.

/// Buckets; the last one has no upper bound.
pub const LATENCY_BUCKETS: usize = 18;
/// Upper bound of the first.
const FIRST_NS: u64 = 128;

/// The bucket that a duration belongs to.
#[inline]
#[must_use]
pub const fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
    let bucket = bits.saturating_sub(FIRST_NS.ilog2()) as usize;
    if bucket < LATENCY_BUCKETS { bucket } else { LATENCY_BUCKETS - 1 }
}

/// Upper bound of a bucket, in ns, which belongs to it; `None` for the last one, which has none.
#[must_use]
pub const fn bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < LATENCY_BUCKETS { Some(FIRST_NS << bucket) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_within_the_bounds_of_its_bucket() {
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for ns in edges.chain([u64::MAX]) {
            let bucket = bucket_of(ns);
            assert!(bound_ns(bucket).is_none_or(|bound| ns <= bound), "{ns} in {bucket}");
            let below = bucket.checked_sub(1).and_then(bound_ns);
            assert!(below.is_none_or(|below| ns > below), "{ns} in {bucket}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, LATENCY_BUCKETS - 1));
    }
}
