//! The client's attached regions: append-only, two levels, read without a lock.

use std::sync::OnceLock;

use crate::mem::{AccessError, Memory};
use crate::work::RegionId;

/// Region numbers from here on cannot be attached.
pub const MAX_REGIONS: usize = 16_384;
const PER_LEVEL: usize = 128;
const _: () = assert!(PER_LEVEL * PER_LEVEL == MAX_REGIONS);

type Leaf = Box<[OnceLock<Memory>]>;

/// Region number to mapping. Entries are never replaced: numbers are used once.
pub(super) struct RegionTable {
    leaves: Box<[OnceLock<Leaf>]>,
}

impl RegionTable {
    pub(super) fn new() -> Self {
        Self { leaves: (0..PER_LEVEL).map(|_| OnceLock::new()).collect() }
    }

    /// The mapping of a region.
    #[inline]
    pub(super) fn get(&self, region: RegionId) -> Result<&Memory, AccessError> {
        let id = region.0 as usize;
        self.leaves
            .get(id / PER_LEVEL)
            .and_then(OnceLock::get)
            .and_then(|leaf| leaf.get(id % PER_LEVEL))
            .and_then(OnceLock::get)
            .ok_or(AccessError::NotAttached(region.0))
    }

    /// Adds a mapping, unless the region has one. False when the number is beyond the table.
    pub(super) fn insert(&self, region: RegionId, memory: Memory) -> bool {
        let id = region.0 as usize;
        let Some(leaf) = self.leaves.get(id / PER_LEVEL) else { return false };
        let leaf = leaf.get_or_init(|| (0..PER_LEVEL).map(|_| OnceLock::new()).collect());
        // Whoever came first mapped the same region.
        let _unused_duplicate = leaf[id % PER_LEVEL].set(memory);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_first_wins() {
        let table = RegionTable::new();
        let region = |id: usize| RegionId(u32::try_from(id).expect("small"));
        let private = |bytes| Memory::private(bytes).expect("memory");
        for id in [0, 127, 128, MAX_REGIONS - 1] {
            assert!(matches!(table.get(region(id)), Err(AccessError::NotAttached(_))));
            assert!(table.insert(region(id), private(4096)));
            assert_eq!(table.get(region(id)).expect("attached").len_bytes(), 4096);
        }
        assert!(table.insert(region(0), private(8192)));
        assert_eq!(table.get(region(0)).expect("attached").len_bytes(), 4096);
        for id in [MAX_REGIONS, u32::MAX as usize] {
            assert!(!table.insert(region(id), private(4096)));
            assert!(table.get(region(id)).is_err());
        }
    }
}
