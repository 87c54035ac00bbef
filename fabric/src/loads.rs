//! Attached regions that can be read by loads, for the fast path: no virtual call for each READ,
//! no lock, no count. Append-only, two levels.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mem::{AccessError, Line, Memory};
use crate::work::{RegionId, RemoteAddr};

/// Region numbers from here on cannot be attached.
pub const MAX_REGIONS: usize = 16_384;
const PER_LEVEL: usize = 128;
const _: () = assert!(PER_LEVEL * PER_LEVEL == MAX_REGIONS);

type Leaf = Box<[OnceLock<Memory>]>;

/// Region number to mapping, as long as the session lives. Entries are never replaced: numbers
/// are used once.
pub struct Loads {
    leaves: Box<[OnceLock<Leaf>]>,
    ended: AtomicBool,
}

impl std::fmt::Debug for Loads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loads").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Loads {
    pub(crate) fn new() -> Self {
        let leaves = (0..PER_LEVEL).map(|_| OnceLock::new()).collect();
        Self { leaves, ended: AtomicBool::new(false) }
    }

    /// The session ends: what is read from now on does not count.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// After a read: what was read counts only if the session had not ended.
    #[inline]
    fn still_open(&self, region: RegionId) -> Result<(), AccessError> {
        if self.ended.load(Ordering::Acquire) {
            return Err(AccessError::NotAttached(region.0));
        }
        Ok(())
    }

    /// Reads `N` words, as [`crate::Endpoint::read_now`] does; each is given to `step` with its
    /// number.
    ///
    /// # Errors
    /// When the region is not attached or the session ended, or the range is outside or
    /// misaligned.
    #[inline(always)]
    pub fn fold_words<const N: usize, T>(
        &self,
        from: RemoteAddr,
        init: T,
        step: impl FnMut(T, usize, u64) -> T,
    ) -> Result<T, AccessError> {
        let memory = self.get(from.region)?;
        let folded = memory.fold_words::<N, T>(from.offset_bytes as usize, init, step)?;
        self.still_open(from.region)?;
        Ok(folded)
    }

    /// Reads up to `lines` lines of 64 bytes: as many as the region has from there, perhaps none.
    ///
    /// # Errors
    /// As [`Self::fold_words`].
    #[inline]
    pub fn read_lines(&self, from: RemoteAddr, lines: usize) -> Result<Vec<Line>, AccessError> {
        let read = self.get(from.region)?.read_lines(from.offset_bytes as usize, lines)?;
        self.still_open(from.region)?;
        Ok(read)
    }

    /// As [`Self::read_lines`], in place of what `into` holds.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read_lines_into(
        &self,
        from: RemoteAddr,
        lines: usize,
        into: &mut Vec<Line>,
    ) -> Result<(), AccessError> {
        self.get(from.region)?.read_lines_into(from.offset_bytes as usize, lines, into)?;
        self.still_open(from.region)
    }

    /// A hint that `len_bytes` at `from` will be read soon.
    #[inline]
    pub fn prefetch(&self, from: RemoteAddr, len_bytes: usize) {
        if let Ok(memory) = self.get(from.region) {
            memory.prefetch(from.offset_bytes as usize, len_bytes);
        }
    }

    /// The mapping of a region.
    #[inline]
    pub(crate) fn get(&self, region: RegionId) -> Result<&Memory, AccessError> {
        let id = region.0 as usize;
        self.leaves
            .get(id / PER_LEVEL)
            .and_then(OnceLock::get)
            .and_then(|leaf| leaf.get(id % PER_LEVEL))
            .and_then(OnceLock::get)
            .ok_or(AccessError::NotAttached(region.0))
    }

    /// Adds a mapping, unless the region has one. False when the number is beyond the table.
    pub(crate) fn insert(&self, region: RegionId, memory: Memory) -> bool {
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
