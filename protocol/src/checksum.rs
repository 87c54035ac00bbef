//! The checksum of entries, specified in docs/PROTOCOL.md with vectors.
//!
//! Short ones are hashed by products in the field of 2^64 elements (NH of Black et al. with
//! carry-less products, as in CLHASH of Lemire and Kaser): two entries that do not depend on the
//! key collide with a probability of at most 2^-62. On the read path what counts is how much waits
//! for the entry's cache miss: while it does, it takes places in the processor's queues from the
//! next GET, whose own miss then comes later. This waits with a third of the instructions of XXH3,
//! and in the vector unit, whose queues nothing else fills. Long ones, where bytes count and not
//! misses, are hashed by XXH3.

use twox_hash::XxHash3_64;

use crate::layout::addr::LogAddr;

/// Spreads numbers over 64 bits: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// The low 62 bits: what a state word has room for.
pub const CHECKSUM_MASK: u64 = (1 << 62) - 1;
/// Blocks of 16 bytes of which a short checksum is made at most.
pub const FOLD_BLOCKS: usize = 16;
/// Bytes of an entry, up to the end of the covered ones, whose checksum is a short one.
pub const SHORT_MAX_BYTES: usize = FOLD_BLOCKS * 16;

/// The key of a short checksum, two words for each block.
pub type FoldKey = [[u64; 2]; FOLD_BLOCKS];

/// The sum over all blocks of (first word + key) * (second word + key), in the field of 2^64
/// elements modulo x^64 + x^4 + x^3 + x + 1. The words are little-endian; the number stands for the
/// first word of all. There are at most [`FOLD_BLOCKS`] blocks.
pub type Fold = fn(key: &FoldKey, first: u64, blocks: &[[u8; 16]]) -> u64;

/// What the entries of one table are checked with.
#[derive(Clone)]
pub struct ChecksumKey {
    secret: u64,
    words: FoldKey,
    fold: Fold,
}

impl std::fmt::Debug for ChecksumKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChecksumKey").finish_non_exhaustive()
    }
}

impl ChecksumKey {
    /// From the table's secret. `fold` is what this processor has for it; `None` takes
    /// [`fold_portable`], of the same value.
    #[must_use]
    pub fn new(secret: u64, fold: Option<Fold>) -> Self {
        let word = |i: usize| mix(secret.wrapping_add(GOLDEN.wrapping_mul(i as u64 + 1)));
        let words = std::array::from_fn(|i| [word(2 * i), word(2 * i + 1)]);
        Self { secret, words, fold: fold.unwrap_or(fold_portable) }
    }

    /// The 62-bit checksum of the entry at `addr` that begins with `bytes` and whose covered bytes
    /// end with them: with the padding, or with the key of a large entry. The state word in front
    /// is not covered.
    #[inline(always)]
    #[must_use]
    pub fn checksum(&self, addr: LogAddr, bytes: &[u8]) -> u64 {
        let (blocks, rest) = bytes.as_chunks::<16>();
        if rest.is_empty() { self.of_blocks(addr, blocks) } else { self.apart(addr, bytes) }
    }

    /// As [`Self::checksum`], of whole blocks.
    #[inline(always)]
    #[must_use]
    pub fn of_blocks(&self, addr: LogAddr, blocks: &[[u8; 16]]) -> u64 {
        if blocks.len() <= FOLD_BLOCKS {
            return (self.fold)(&self.words, addr.get(), blocks) & CHECKSUM_MASK;
        }
        self.apart(addr, blocks.as_flattened())
    }

    /// Of any other length: zeros follow, or it is a long one.
    #[inline(never)]
    fn apart(&self, addr: LogAddr, bytes: &[u8]) -> u64 {
        if bytes.len() <= SHORT_MAX_BYTES {
            let mut padded = [0; SHORT_MAX_BYTES];
            padded[..bytes.len()].copy_from_slice(bytes);
            let blocks = &padded.as_chunks::<16>().0[..bytes.len().div_ceil(16)];
            return (self.fold)(&self.words, addr.get(), blocks) & CHECKSUM_MASK;
        }
        let seed = self.secret ^ addr.get().wrapping_mul(GOLDEN);
        XxHash3_64::oneshot_with_seed(seed, &bytes[8..]) & CHECKSUM_MASK
    }
}

/// The checksum of an entry whose covered bytes are `covered`: as [`ChecksumKey::checksum`], for
/// who needs one.
#[must_use]
pub fn entry_checksum(secret: u64, addr: LogAddr, covered: &[u8]) -> u64 {
    ChecksumKey::new(secret, None).checksum(addr, &[&[0; 8], covered].concat())
}

/// As [`Fold`] says, on any processor.
#[must_use]
pub fn fold_portable(key: &FoldKey, first: u64, blocks: &[[u8; 16]]) -> u64 {
    let word = |block: &[u8; 16], at: usize| u64::from_le_bytes(block.as_chunks().0[at]);
    let mut sum = 0;
    for (i, (block, key)) in blocks.iter().zip(key).enumerate() {
        let a = if i == 0 { first } else { word(block, 0) };
        sum ^= carryless(a ^ key[0], word(block, 1) ^ key[1]);
    }
    // x^64 = x^4 + x^3 + x + 1. The second time at most 4 bits are left.
    let once = carryless((sum >> 64) as u64, 0x1B);
    let twice = carryless((once >> 64) as u64, 0x1B);
    (sum ^ once ^ twice) as u64
}

/// The product of two polynomials over the field of two elements, four bits at a time.
fn carryless(a: u64, b: u64) -> u128 {
    let mut multiples = [0_u128; 16];
    for i in 1..16 {
        multiples[i] = (multiples[i / 2] << 1) ^ (u128::from(a) * (i as u128 & 1));
    }
    (0..16).rev().fold(0, |sum, i| (sum << 4) ^ multiples[(b >> (4 * i)) as usize & 15])
}

/// Spreads a number over 64 bits, one to one (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
