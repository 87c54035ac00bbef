//! Attached regions that can be read by loads, for the fast path: no virtual call for each READ,
//! no lock, no count. Append-only.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mem::{AccessError, Memory};
use crate::work::RegionId;

/// Region numbers from here on cannot be attached.
pub const MAX_REGIONS: usize = 16_384;

/// Region number to mapping, as long as the session lives. Entries are never replaced: numbers
/// are used once.
pub struct Loads {
    regions: Box<[OnceLock<Box<Memory>>]>,
    ended: AtomicBool,
}

impl std::fmt::Debug for Loads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loads").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Loads {
    pub(crate) fn new() -> Self {
        let regions = (0..MAX_REGIONS).map(|_| OnceLock::new()).collect();
        Self { regions, ended: AtomicBool::new(false) }
    }

    /// The session ends: what is read from now on does not count.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// What was read before this call counts only if it says true.
    #[inline(always)]
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// The mapping of a region, if it was attached. What is read in it counts only if
    /// [`Self::is_open`] afterwards.
    #[inline(always)]
    #[must_use]
    pub fn region(&self, region: RegionId) -> Option<&Memory> {
        self.regions.get(region.0 as usize)?.get().map(|memory| &**memory)
    }

    pub(crate) fn get(&self, region: RegionId) -> Result<&Memory, AccessError> {
        self.region(region).ok_or(AccessError::NotAttached(region.0))
    }

    /// Adds a mapping, unless the region has one. False when the number is beyond the table.
    pub(crate) fn insert(&self, region: RegionId, memory: Memory) -> bool {
        let Some(place) = self.regions.get(region.0 as usize) else { return false };
        // Whoever came first mapped the same region.
        let _unused_duplicate = place.set(Box::new(memory));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_first_wins() {
        let table = Loads::new();
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
