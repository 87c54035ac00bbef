//! What several operations will look at, asked for together: their cache misses overlap.

use std::sync::atomic::Ordering;

use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::line::{LINE_WORDS, bucket_offset_bytes};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::{FINGERPRINT_SHIFT, Slot};

use super::table::Table;

/// Of each entry so much is asked for: of 16 of them about half of a processor's first cache.
const ENTRY_MAX_BYTES: usize = 1152;
/// What the memory asks for at a time.
const STEP_BYTES: usize = 512;

impl Table {
    /// These keys will be looked for in a moment. So few that their entries stay in the processor's
    /// first cache until then: 16 or so.
    pub fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) {
        let hashes = || keys.clone().map(|key| KeyHash::of(self.index.hash_seed, key));
        hashes().for_each(|hash| self.index.prefetch(&self.shared.pool, hash));
        hashes().for_each(|hash| self.prefetch_entry(hash));
    }

    fn prefetch_entry(&self, hash: KeyHash) {
        // As long as the lock is held, slots lead to entries.
        let (segment, _state) = self.index.lock(hash);
        if self.dropped.load(Ordering::Acquire) {
            return;
        }
        let pool = &self.shared.pool;
        let bucket = pool.at(segment.addr).plus(bucket_offset_bytes(hash.bucket())).bucket();
        let wanted = u64::from(hash.fingerprint());
        // The first word of each line is its header.
        for &word in bucket.chunks_exact(LINE_WORDS).flat_map(|line| &line[1..]) {
            let slot = Slot(word);
            if word >> FINGERPRINT_SHIFT == wanted
                && let Some(addr) = slot.addr()
            {
                let len_bytes = size_class::bytes(slot.class()).min(ENTRY_MAX_BYTES);
                for from in (0..len_bytes).step_by(STEP_BYTES) {
                    pool.at(addr).plus(from).prefetch(len_bytes - from);
                }
            }
        }
    }
}
