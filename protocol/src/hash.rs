//! Key hash and entry checksum. Both are XXH3 with 64 bits of output and a seed, as its authors
//! specify it; docs/PROTOCOL.md has vectors, so that nothing depends on the crate used here.
//!
//! Why XXH3 and not a CRC: on the read path what counts is how many instructions stand between
//! two cache misses. Beside CRC-64 and CRC32-C it was the cheapest of what has a public
//! specification (docs/BENCHMARKS.md).

use twox_hash::XxHash3_64;

use crate::layout::addr::LogAddr;
use crate::layout::line::BUCKETS;

/// Spreads an address over the seed: 2^64 divided by the golden ratio.
const ADDRESS_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// The low 62 bits: what a state word has room for.
pub const CHECKSUM_MASK: u64 = (1 << 62) - 1;

/// Hash of a key in one table.
///
/// | bits | use |
/// |---|---|
/// | 63..32 | prefix: the top `depth` bits choose the directory word |
/// | 31..23 | bucket in the segment |
/// | 22..14 | unused |
/// | 13..0 | fingerprint |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The hash of `key` in the table whose hash seed is `seed`.
    #[inline]
    #[must_use]
    pub fn of(seed: u64, key: &[u8]) -> Self {
        Self(XxHash3_64::oneshot_with_seed(seed, key))
    }

    /// The 32 bits from which the directory takes its index.
    #[inline]
    #[must_use]
    pub fn prefix(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Index into a directory of 2^depth words.
    #[inline]
    #[must_use]
    pub fn directory_index(self, depth: u8) -> usize {
        top_bits(self.prefix(), depth) as usize
    }

    /// Number of the bucket in the segment.
    #[inline]
    #[must_use]
    pub fn bucket(self) -> usize {
        (self.0 >> 23) as usize & (BUCKETS - 1)
    }

    /// 14 bits that neither directory nor bucket use.
    #[inline]
    #[must_use]
    pub fn fingerprint(self) -> u16 {
        (self.0 & 0x3FFF) as u16
    }
}

/// The top `depth` bits of a prefix, as a number; 0 for depth 0.
#[inline]
#[must_use]
pub fn top_bits(prefix: u32, depth: u8) -> u32 {
    if depth == 0 { 0 } else { prefix >> (32 - u32::from(depth.min(32))) }
}

/// The 62-bit checksum of an entry at `addr`: XXH3 over `covered` (bytes 8 to the end of the
/// entry, or to the end of the key for a large one), seeded with the table's secret and the
/// address; its low 62 bits.
#[inline]
#[must_use]
pub fn entry_checksum(secret: u64, addr: LogAddr, covered: &[u8]) -> u64 {
    let seed = secret ^ addr.get().wrapping_mul(ADDRESS_FACTOR);
    XxHash3_64::oneshot_with_seed(seed, covered) & CHECKSUM_MASK
}
