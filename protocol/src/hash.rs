//! Key hash: XXH3 with 64 bits of output and a seed, as its authors specify it; docs/PROTOCOL.md
//! has vectors, so that nothing depends on the crate used here. (The checksum:
//! [`crate::checksum`].)

use twox_hash::XxHash3_64;

use crate::layout::line::BUCKETS;

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
    #[inline(always)]
    #[must_use]
    pub fn of(seed: u64, key: &[u8]) -> Self {
        match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
            (Some(first), Some(last)) if key.len() > 8 && key.len() <= 16 => {
                Self(xxh3_9_to_16(seed, *first, *last, key.len()))
            }
            _ => Self(xxh3(seed, key)),
        }
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

#[inline(never)]
fn xxh3(seed: u64, key: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, key)
}

/// XXH3 of 9 to 16 bytes, of which these are the first and the last 8, in few instructions: on the
/// read path they stand between two cache misses.
#[inline(always)]
fn xxh3_9_to_16(seed: u64, first: [u8; 8], last: [u8; 8], len: usize) -> u64 {
    /// Words 3 to 6 of the default secret, by pairs, byte by byte.
    const FIRST_SECRET: u64 = 0x7240_A4A4_B7B3_671F ^ 0xCB79_E64E_CCC0_E578;
    const LAST_SECRET: u64 = 0x825A_D07D_CCFF_7221 ^ 0xB808_4674_F743_248E;
    let first = u64::from_le_bytes(first) ^ FIRST_SECRET.swap_bytes().wrapping_add(seed);
    let last = u64::from_le_bytes(last) ^ LAST_SECRET.swap_bytes().wrapping_sub(seed);
    let product = u128::from(first) * u128::from(last);
    let folded = product as u64 ^ (product >> 64) as u64;
    let sum = (len as u64).wrapping_add(first.swap_bytes()).wrapping_add(last).wrapping_add(folded);
    let mixed = (sum ^ (sum >> 37)).wrapping_mul(0x1656_6791_9E37_79F9);
    mixed ^ (mixed >> 32)
}
