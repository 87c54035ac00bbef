//! Log addresses: where an entry is.

use crate::limits::{REGION_BYTES, REGIONS_MAX};

/// Addresses count these.
pub const UNIT_BYTES: usize = 16;
/// Bits of an address.
pub const ADDR_BITS: u32 = 42;
/// Bits of an address that count units inside a region.
pub const OFFSET_BITS: u32 = 22;
/// All bits of an address.
pub const ADDR_MASK: u64 = (1 << ADDR_BITS) - 1;

const _: () = assert!(REGION_BYTES == UNIT_BYTES << OFFSET_BITS);
const _: () = assert!(REGIONS_MAX <= 1 << (ADDR_BITS - OFFSET_BITS));

/// Position of 16-byte units in the server's regions: region id (20 bits), then offset in units
/// (22 bits). Never 0: region 0 is the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LogAddr(u64);

impl LogAddr {
    /// From region and offset; the offset must be a multiple of 16 inside a region.
    #[inline]
    #[must_use]
    pub fn new(region: u32, offset_bytes: usize) -> Self {
        debug_assert!(offset_bytes.is_multiple_of(UNIT_BYTES) && offset_bytes < REGION_BYTES);
        let units = (offset_bytes / UNIT_BYTES) as u64;
        Self((u64::from(region) << OFFSET_BITS | units) & ADDR_MASK)
    }

    /// From the low 42 bits of a word; `None` for 0, which is no address.
    #[inline]
    #[must_use]
    pub fn from_bits(word: u64) -> Option<Self> {
        match word & ADDR_MASK {
            0 => None,
            bits => Some(Self(bits)),
        }
    }

    /// The 42 bits.
    #[inline]
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Region id.
    #[inline]
    #[must_use]
    pub fn region(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32
    }

    /// Bytes from the region's start.
    #[inline]
    #[must_use]
    pub fn offset_bytes(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize * UNIT_BYTES
    }
}
