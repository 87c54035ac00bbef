//! Reads of the fast path: words by value, and whole lines to fresh room.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{AccessError, Line, Memory};

impl Memory {
    /// As [`Self::read_words`], `N` words, each given to `step` with its number as it is loaded.
    ///
    /// # Errors
    /// When the range is outside or misaligned.
    #[inline(always)]
    pub fn fold_words<const N: usize, T>(
        &self,
        at: usize,
        init: T,
        mut step: impl FnMut(T, usize, u64) -> T,
    ) -> Result<T, AccessError> {
        if !at.is_multiple_of(8) {
            return Err(AccessError::Misaligned(at as u64));
        }
        self.check(at, N * 8)?;
        let words = self.range(at, N).iter().enumerate();
        let folded =
            words.fold(init, |so_far, (i, word)| step(so_far, i, word.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        Ok(folded)
    }

    /// Up to `lines` whole lines from a place, for one access to each word: as many as the memory
    /// has from there, perhaps none.
    #[inline]
    fn lines(&self, at: usize, lines: usize) -> Result<&[[AtomicU64; 8]], AccessError> {
        if !at.is_multiple_of(8) {
            return Err(AccessError::Misaligned(at as u64));
        }
        self.check(at, 0)?;
        let lines = lines.min((self.len_bytes - at) / size_of::<Line>());
        Ok(self.range(at, lines * 8).as_chunks().0)
    }

    /// As [`Self::read_words`], up to `lines` lines, without making the room for them zero first:
    /// as many as the memory has from there, perhaps none.
    ///
    /// # Errors
    /// When the start is outside or misaligned.
    pub fn read_lines(&self, at: usize, lines: usize) -> Result<Vec<Line>, AccessError> {
        let read = self.lines(at, lines)?.iter().map(load_line).collect();
        fence(Ordering::Acquire);
        Ok(read)
    }

    /// As [`Self::read_lines`], in place of what `into` holds.
    ///
    /// # Errors
    /// As there; `into` is empty then.
    pub fn read_lines_into(
        &self,
        at: usize,
        lines: usize,
        into: &mut Vec<Line>,
    ) -> Result<(), AccessError> {
        into.clear();
        into.extend(self.lines(at, lines)?.iter().map(load_line));
        fence(Ordering::Acquire);
        Ok(())
    }
}

#[inline(always)]
fn load_line(words: &[AtomicU64; 8]) -> Line {
    std::array::from_fn(|i| words[i].load(Ordering::Relaxed).to_le_bytes())
}
