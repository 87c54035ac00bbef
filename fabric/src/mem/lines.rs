//! Reads by whole lines, in as few instructions as they can be had: those of the fast path, and of
//! values.
//!
//! Where a load of 16 aligned bytes is atomic, it stands for two of 8: a reader may see any
//! mixture of words, so it makes no difference but in speed. Rules R1 to R4 as in [`super`].

use std::sync::atomic::{Ordering, fence};

use super::{AccessError, Line, Memory};

/// Alignment of the lines read here.
const ALIGN_BYTES: usize = 16;

impl Memory {
    /// Of the sixteen words of two lines, of which bit i of `among` (the lowest: the first word)
    /// allows word i, the first one whose high half, shifted right by `SHIFT`, is `wanted`. It is
    /// looked for without a branch for each word, and then read again, alone: the answer may be any
    /// word that stood there meanwhile. Later reads happen after these. `None` also when the lines
    /// are not whole inside, or `at` is not a multiple of 16.
    #[inline(always)]
    pub fn find_word<const SHIFT: u32>(&self, at: usize, wanted: u32, among: u16) -> Option<u64> {
        self.check_lines(at, 2)?;
        let found = self.matches::<SHIFT>(at, wanted) & u32::from(among);
        if found == 0 {
            return None;
        }
        // One of sixteen words: of the lines that were just checked.
        let word = self.word(at + found.trailing_zeros() as usize * 8).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        Some(word)
    }

    /// A bit for each word of two checked lines, as [`high_halves_match`].
    #[inline(always)]
    fn matches<const SHIFT: u32>(&self, at: usize, wanted: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.wide_loads {
            // SAFETY: R3: the caller checked that both lines are inside the mapping.
            let from = unsafe { self.base.add(at) };
            // SAFETY: R3: the second line.
            let second = unsafe { from.add(size_of::<Line>()) };
            // SAFETY: R1 and R3: valid and aligned for the whole line.
            let first = unsafe { wide::vectors(from) };
            // SAFETY: R1 and R3: as the first.
            let second = unsafe { wide::vectors(second) };
            // SAFETY: SSE2 is part of x86_64.
            return unsafe { wide::match_vectors::<SHIFT>(first, second, wanted) };
        }
        let [first, second] = [self.line(at), self.line(at + size_of::<Line>())];
        let word = |i: usize| if i < 8 { first[i] } else { second[i - 8] };
        high_halves_match::<SHIFT>(&std::array::from_fn(word), wanted)
    }

    /// Lines as words, as many as `into` has. They may belong to different moments; later reads
    /// happen after these. `None` when they are not whole inside, or `at` is not a multiple of 16.
    #[inline(always)]
    pub fn lines_to(&self, at: usize, into: &mut [Line]) -> Option<()> {
        self.check_lines(at, into.len())?;
        #[cfg(target_arch = "x86_64")]
        if self.wide_loads {
            // SAFETY: R3: just checked.
            let from = unsafe { self.base.add(at) };
            // SAFETY: R1 and R3: valid and aligned for all lines.
            unsafe { wide::copy_lines(from, into) };
            fence(Ordering::Acquire);
            return Some(());
        }
        for (i, line) in into.iter_mut().enumerate() {
            *line = self.line(at + i * size_of::<Line>()).map(u64::to_le_bytes);
        }
        fence(Ordering::Acquire);
        Some(())
    }

    /// Copies bytes out, aligned words as wholes. Later reads happen after these.
    ///
    /// # Errors
    /// When the range is outside.
    pub fn read_bytes(&self, offset_bytes: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset_bytes, into.len())?;
        let edge = (offset_bytes.next_multiple_of(ALIGN_BYTES) - offset_bytes).min(into.len());
        let (head, rest) = into.split_at_mut(edge);
        self.copy_out(offset_bytes, head);
        let mut at = offset_bytes + edge;
        let (lines, tail) = rest.as_chunks_mut::<{ size_of::<Line>() }>();
        for line in lines {
            let words = self.line(at).map(u64::to_le_bytes);
            line.copy_from_slice(words.as_flattened());
            at += size_of::<Line>();
        }
        self.copy_out(at, tail);
        fence(Ordering::Acquire);
        Ok(())
    }

    /// As [`Self::read_bytes`], so many to behind what `into` holds: to room that is not made zero
    /// first.
    ///
    /// # Errors
    /// When the range is outside; nothing was appended.
    pub fn append_bytes(
        &self,
        offset_bytes: usize,
        len_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), AccessError> {
        self.check(offset_bytes, len_bytes)?;
        into.reserve(len_bytes);
        let end = offset_bytes + len_bytes;
        let mut part = [0; size_of::<Line>()];
        let edge = (offset_bytes.next_multiple_of(ALIGN_BYTES) - offset_bytes).min(len_bytes);
        self.copy_out(offset_bytes, &mut part[..edge]);
        into.extend_from_slice(&part[..edge]);
        let mut at = offset_bytes + edge;
        while end - at >= size_of::<Line>() {
            let words = self.line(at).map(u64::to_le_bytes);
            into.extend_from_slice(words.as_flattened());
            at += size_of::<Line>();
        }
        self.copy_out(at, &mut part[..end - at]);
        into.extend_from_slice(&part[..end - at]);
        fence(Ordering::Acquire);
        Ok(())
    }

    /// As [`Self::lines_to`], so many to fresh room, which is not made zero first.
    pub fn lines_vec(&self, at: usize, lines: usize) -> Option<Vec<Line>> {
        self.check_lines(at, lines)?;
        let line = |i| self.line(at + i * size_of::<Line>()).map(u64::to_le_bytes);
        let read = (0..lines).map(line).collect();
        fence(Ordering::Acquire);
        Some(read)
    }

    #[inline(always)]
    fn check_lines(&self, at: usize, lines: usize) -> Option<()> {
        let inside = self.check(at, lines.checked_mul(size_of::<Line>())?).is_ok();
        (inside && at.is_multiple_of(ALIGN_BYTES)).then_some(())
    }

    /// A checked, aligned line.
    #[inline(always)]
    fn line(&self, at: usize) -> [u64; 8] {
        debug_assert!(self.check_lines(at, 1).is_some());
        #[cfg(target_arch = "x86_64")]
        if self.wide_loads {
            // SAFETY: R3: the caller checked that the line is inside the mapping.
            let from = unsafe { self.base.add(at) };
            // SAFETY: R1 and R3: valid and aligned for the whole line.
            return unsafe { wide::line(from) };
        }
        let words: &[_; 8] = match self.range(at, 8).first_chunk() {
            Some(words) => words,
            None => unreachable!("8 words were asked for"),
        };
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }
}

/// A bit for each of sixteen words, the lowest one for the first: whether its high half, shifted
/// right by `SHIFT`, is `wanted`. Without a branch, and on x86_64 in two dozen instructions.
#[inline(always)]
#[must_use]
pub fn high_halves_match<const SHIFT: u32>(words: &[u64; 16], wanted: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86_64.
    return unsafe { wide::high_halves_match::<SHIFT>(words, wanted) };
    #[cfg(not(target_arch = "x86_64"))]
    each_high_half_matches::<SHIFT>(words, wanted)
}

/// The same, word by word.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn each_high_half_matches<const SHIFT: u32>(words: &[u64; 16], wanted: u32) -> u32 {
    let matches = |word: u64| u32::from((word >> 32) as u32 >> SHIFT == wanted);
    words.iter().enumerate().fold(0, |bits, (i, &word)| bits | matches(word) << i)
}

/// Whether this processor promises that a load of 16 aligned bytes is atomic: Intel and AMD do for
/// all that have AVX.
pub(super) fn has_wide_loads() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_cvtsi32_si128,
        _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set_epi64x, _mm_set1_epi32,
        _mm_shuffle_ps, _mm_srl_epi32,
    };
    use std::ptr::NonNull;

    /// See [`super::high_halves_match`].
    #[target_feature(enable = "sse2")]
    #[inline]
    pub(super) fn high_halves_match<const SHIFT: u32>(words: &[u64; 16], wanted: u32) -> u32 {
        let two = |i: usize| _mm_set_epi64x(words[i + 1].cast_signed(), words[i].cast_signed());
        let eight = |i: usize| [two(i), two(i + 2), two(i + 4), two(i + 6)];
        match_vectors::<SHIFT>(eight(0), eight(8), wanted)
    }

    /// The same of two lines as they were loaded.
    #[target_feature(enable = "sse2")]
    #[inline]
    pub(super) fn match_vectors<const SHIFT: u32>(
        first: [__m128i; 4],
        second: [__m128i; 4],
        wanted: u32,
    ) -> u32 {
        const HIGH_HALVES: i32 = 0b11_01_11_01;
        let wanted = _mm_set1_epi32(wanted.cast_signed());
        let four = |a: __m128i, b: __m128i| {
            let (a, b) = (_mm_castsi128_ps(a), _mm_castsi128_ps(b));
            let halves = _mm_castps_si128(_mm_shuffle_ps::<HIGH_HALVES>(a, b));
            let shifted = _mm_srl_epi32(halves, _mm_cvtsi32_si128(SHIFT.cast_signed()));
            _mm_cmpeq_epi32(shifted, wanted)
        };
        let eight = |[a, b, c, d]: [__m128i; 4]| _mm_packs_epi32(four(a, b), four(c, d));
        _mm_movemask_epi8(_mm_packs_epi16(eight(first), eight(second))).cast_unsigned()
    }

    /// Eight words by four loads.
    ///
    /// # Safety
    /// The 64 bytes must be mapped, and aligned to 16. Others may write them.
    #[inline(always)]
    pub(super) unsafe fn line(from: NonNull<u8>) -> [u64; 8] {
        // SAFETY: the caller's, handed on.
        let vectors = unsafe { vectors(from) };
        // SAFETY: plain bytes of the same length.
        unsafe { std::mem::transmute::<[__m128i; 4], [u64; 8]>(vectors) }
    }

    /// Copies lines, each by four loads and two stores, from which whoever reads 32 bytes of the
    /// copy has them at once: from more stores than one they could not be forwarded.
    ///
    /// # Safety
    /// As [`line`], for as many lines as `to` has; the processor has AVX.
    #[inline(always)]
    pub(super) unsafe fn copy_lines(from: NonNull<u8>, to: &mut [super::Line]) {
        let end = size_of_val(to);
        let mut at = 0_usize;
        while at != end {
            // SAFETY: loads as in [`vectors`], and stores to exactly what is borrowed: `at` goes
            // from line to line.
            unsafe {
                asm!(
                    "vmovdqa {a:x}, [{from} + {at}]",
                    "vmovdqa {b:x}, [{from} + {at} + 32]",
                    "vinsertf128 {a:y}, {a:y}, [{from} + {at} + 16], 1",
                    "vinsertf128 {b:y}, {b:y}, [{from} + {at} + 48], 1",
                    "vmovdqu [{to} + {at}], {a:y}",
                    "vmovdqu [{to} + {at} + 32], {b:y}",
                    from = in(reg) from.as_ptr(),
                    to = in(reg) to.as_mut_ptr(),
                    at = in(reg) at,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
            at += size_of::<super::Line>();
        }
    }

    /// The four loads.
    ///
    /// # Safety
    /// As [`line`].
    #[inline(always)]
    pub(super) unsafe fn vectors(from: NonNull<u8>) -> [__m128i; 4] {
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: loads of mapped memory, and no other effect. To the compiler they are no
        // accesses of its own: each stands for two relaxed atomic loads (R2), and makes no
        // assumption that the bytes stay.
        unsafe {
            asm!(
                "movdqa {a}, [{from}]",
                "movdqa {b}, [{from} + 16]",
                "movdqa {c}, [{from} + 32]",
                "movdqa {d}, [{from} + 48]",
                from = in(reg) from.as_ptr(),
                a = out(xmm_reg) a,
                b = out(xmm_reg) b,
                c = out(xmm_reg) c,
                d = out(xmm_reg) d,
                options(nostack, preserves_flags, readonly),
            );
        }
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Rights;

    #[test]
    fn high_halves_are_compared_alone() {
        for places in 0..1_u32 << 16 {
            let words = std::array::from_fn(|i| match places >> i & 1 {
                0 => 0x8001_5678_0000_0000 ^ 1 << (50 + i % 14) | 0xFFFF_0000_0000 >> i,
                _ => 0x8001_5678_9ABC_DEF0 ^ 0x3_FFFF_FFFF_FFFF >> i,
            });
            let found = high_halves_match::<18>(&words, 0x8001_5678 >> 18);
            assert_eq!(found, places);
            assert_eq!(each_high_half_matches::<18>(&words, 0x8001_5678 >> 18), found);
        }
        let words = std::array::from_fn(|i| (i as u64) << 32 | 7);
        assert_eq!(high_halves_match::<0>(&words, 3), 1 << 3);
    }

    #[test]
    fn lines_are_the_words_there_with_wide_loads_and_without() {
        let mut memory = Memory::private(4096).expect("memory");
        let bytes: Vec<u8> = (0..4096_u32).map(|i| (i * 7 % 251) as u8).collect();
        memory.write_bytes(0, &bytes).expect("inside");
        for wide_loads in [false, has_wide_loads()] {
            memory.wide_loads = wide_loads;
            for at in (0..=4096 - 128).step_by(16) {
                let mut into = [Line::default(); 2];
                memory.lines_to(at, &mut into).expect("inside");
                assert_eq!(into.as_flattened().as_flattened(), &bytes[at..at + 128]);
                for (i, &word) in into.as_flattened().iter().enumerate() {
                    let word = u64::from_le_bytes(word);
                    let find = |among| memory.find_word::<7>(at, (word >> 39) as u32, among);
                    assert_eq!(find(1 << i), Some(word), "{i}");
                    assert_eq!(find(!(1 << i)), None, "{i}");
                }
                assert_eq!(memory.lines_vec(at, 2).expect("inside"), into);
            }
            for outside in [8, 4096 - 112, 4096, usize::MAX - 15] {
                assert!(memory.find_word::<0>(outside, 0, u16::MAX).is_none(), "{outside}");
                assert!(memory.lines_to(outside, &mut [Line::default(); 2]).is_none());
                assert!(memory.lines_vec(outside, 2).is_none());
            }
            assert!(memory.lines_vec(0, usize::MAX / 2).is_none());
        }
        let empty = Memory::shared("t", 4096, Rights::ReadOnly).expect("memory");
        assert_eq!(empty.find_word::<0>(4096 - 128, 0, u16::MAX), Some(0));
    }
}
