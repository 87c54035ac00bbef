//! A sum of carry-less products, on processors that have an instruction for them. It is arithmetic
//! on memory of the caller's own; it is here because such instructions take unsafe code.

/// Blocks of 16 bytes that are summed at most.
const BLOCKS: usize = 16;

/// The sum over all blocks of (first word + key) * (second word + key), in the field of 2^64
/// elements modulo x^64 + x^4 + x^3 + x + 1. The words are little-endian; the number stands for the
/// first word of all. Blocks beyond the last key are left out.
pub type Fold = fn(&[[u64; 2]; BLOCKS], u64, &[[u8; 16]]) -> u64;

/// How this processor does it, if it has what that takes.
#[must_use]
pub fn carryless_fold() -> Option<Fold> {
    carryless_folds()[0]
}

/// Two products at a time, and one.
fn carryless_folds() -> [Option<Fold>; 2] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let one: Option<Fold> =
            (has!("pclmulqdq") && has!("avx2")).then_some(|key, first, blocks| {
                // SAFETY: this processor has both.
                unsafe { wide::fold(key, first, blocks) }
            });
        let two: Option<Fold> =
            one.filter(|_| has!("vpclmulqdq")).and(Some(|key, first, blocks| {
                // SAFETY: this processor has all three.
                unsafe { wide::fold_by_two(key, first, blocks) }
            }));
        [two.or(one), one]
    }
    #[cfg(not(target_arch = "x86_64"))]
    [None, None]
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
        _mm_loadu_si128, _mm_set_epi64x, _mm_xor_si128, _mm256_blend_epi32, _mm256_castsi128_si256,
        _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_extracti128_si256,
        _mm256_loadu_si256, _mm256_xor_si256,
    };

    use super::BLOCKS;

    /// See [`super::Fold`].
    #[target_feature(enable = "pclmulqdq,avx2")]
    pub(super) fn fold(key: &[[u64; 2]; BLOCKS], first: u64, blocks: &[[u8; 16]]) -> u64 {
        let Some((block, blocks)) = blocks.split_first() else { return 0 };
        let [key, keys @ ..] = key;
        let second = u64::from_le_bytes(block.as_chunks().0[1]);
        let block = _mm_set_epi64x(second.cast_signed(), first.cast_signed());
        let mut sum = product(block, key);
        for (block, key) in blocks.iter().zip(keys) {
            sum = _mm_xor_si128(sum, product(load(block), key));
        }
        reduce(sum)
    }

    /// The same, of two blocks at a time.
    #[target_feature(enable = "pclmulqdq,avx2,vpclmulqdq")]
    pub(super) fn fold_by_two(key: &[[u64; 2]; BLOCKS], first: u64, blocks: &[[u8; 16]]) -> u64 {
        let (pairs, rest) = blocks.as_chunks::<2>();
        let Some((pair, pairs)) = pairs.split_first() else { return fold(key, first, blocks) };
        let first = _mm256_castsi128_si256(_mm_cvtsi64_si128(first.cast_signed()));
        let pair = _mm256_blend_epi32::<0b11>(load_two(pair), first);
        let [first_key, second_key, ..] = *key;
        let mut keys = &key[2..];
        let mut sums = products(pair, &[first_key, second_key]);
        for pair in pairs {
            let Some((key_pair, more)) = keys.split_first_chunk::<2>() else { break };
            sums = _mm256_xor_si256(sums, products(load_two(pair), key_pair));
            keys = more;
        }
        let (low, high) = (_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let mut sum = _mm_xor_si128(low, high);
        if let ([block], [key, ..]) = (rest, keys) {
            sum = _mm_xor_si128(sum, product(load(block), key));
        }
        reduce(sum)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(block: &[u8; 16]) -> __m128i {
        // SAFETY: 16 bytes, at any alignment.
        unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load_two(pair: &[[u8; 16]; 2]) -> __m256i {
        // SAFETY: 32 bytes, at any alignment.
        unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) }
    }

    /// Of the two words of a block, each with its key added.
    #[target_feature(enable = "pclmulqdq,avx2")]
    #[inline]
    fn product(block: __m128i, key: &[u64; 2]) -> __m128i {
        // SAFETY: 16 bytes, at any alignment.
        let key = unsafe { _mm_loadu_si128(key.as_ptr().cast()) };
        let keyed = _mm_xor_si128(block, key);
        _mm_clmulepi64_si128::<0x10>(keyed, keyed)
    }

    /// As [`product`], of two blocks.
    #[target_feature(enable = "avx2,vpclmulqdq")]
    #[inline]
    fn products(pair: __m256i, key: &[[u64; 2]; 2]) -> __m256i {
        // SAFETY: 32 bytes, at any alignment.
        let key = unsafe { _mm256_loadu_si256(key.as_ptr().cast()) };
        let keyed = _mm256_xor_si256(pair, key);
        _mm256_clmulepi64_epi128::<0x10>(keyed, keyed)
    }

    /// The remainder of the division by the modulus.
    #[target_feature(enable = "pclmulqdq,avx2")]
    #[inline]
    fn reduce(sum: __m128i) -> u64 {
        let modulus = _mm_set_epi64x(0, 0x1B);
        // x^64 = x^4 + x^3 + x + 1. The second time at most 4 bits are left.
        let once = _mm_clmulepi64_si128::<0x01>(sum, modulus);
        let twice = _mm_clmulepi64_si128::<0x01>(once, modulus);
        let reduced = _mm_xor_si128(_mm_xor_si128(sum, once), twice);
        _mm_cvtsi128_si64(reduced).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One bit at a time.
    fn slowly(key: &[[u64; 2]; BLOCKS], first: u64, blocks: &[[u8; 16]]) -> u64 {
        let mut sum = 0;
        for (i, (block, key)) in blocks.iter().zip(key).enumerate() {
            let words = block.as_chunks().0;
            let a = if i == 0 { first } else { u64::from_le_bytes(words[0]) };
            let (mut a, b) = (a ^ key[0], u64::from_le_bytes(words[1]) ^ key[1]);
            for bit in 0..64 {
                if b >> bit & 1 == 1 {
                    sum ^= a;
                }
                a = (a << 1) ^ ((a >> 63) * 0x1B);
            }
        }
        sum
    }

    #[test]
    fn it_is_the_sum_of_products() {
        let mut state = 1_u64;
        let mut draw = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            state ^ state >> 29
        };
        for round in 0..2000 {
            let key = std::array::from_fn(|_| [draw(), draw()]);
            let first = if round % 7 == 0 { u64::MAX } else { draw() };
            let blocks: Vec<[u8; 16]> = (0..round % (BLOCKS + 2))
                .map(|_| (u128::from(draw()) << 64 | u128::from(draw())).to_le_bytes())
                .collect();
            for fold in carryless_folds().into_iter().flatten() {
                let sum = slowly(&key, first, &blocks);
                assert_eq!(fold(&key, first, &blocks), sum, "{} blocks", blocks.len());
            }
        }
    }
}
