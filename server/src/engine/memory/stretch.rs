//! Stretches of a region: where many blocks in a row are free, or could be made so.

use std::ops::Range;

use onesided_fabric::Rights;
use onesided_protocol::LogAddr;

use super::{FreeBlocks, Pool, Region};
use crate::engine::block::Use;
use crate::engine::room::Wanted;

/// Blocks in a row that are free, or hold segments that can be emptied.
pub(in crate::engine) struct Stretch {
    /// Numbers of blocks.
    pub(in crate::engine) blocks: Range<u32>,
    pub(in crate::engine) segments: Vec<LogAddr>,
}

/// Keeps blocks from being taken, until this is dropped.
pub(in crate::engine) struct Held<'a> {
    pool: &'a Pool,
    what: Hold,
}

/// What blocks are held for; one stretch each at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// A row for a long entry.
    Row,
    /// A region that is to go.
    Region,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pool.set_held(self.what, 0..0);
    }
}

/// What lies in a region, from front to back.
#[derive(Clone, Copy)]
struct Piece {
    first: usize,
    blocks: usize,
    /// Live bytes to be moved, of which there are none in a free block; `None`: it stays.
    live_bytes: Option<usize>,
    is_free: bool,
}

/// Pieces in a row.
#[derive(Clone, Copy, Default)]
struct Sum {
    blocks: usize,
    free_blocks: usize,
    live_bytes: usize,
}

impl Sum {
    fn add(&mut self, piece: &Piece) {
        self.blocks += piece.blocks;
        self.free_blocks += usize::from(piece.is_free);
        self.live_bytes += piece.live_bytes.unwrap_or(0);
    }

    fn sub(&mut self, piece: &Piece) {
        self.blocks -= piece.blocks;
        self.free_blocks -= usize::from(piece.is_free);
        self.live_bytes -= piece.live_bytes.unwrap_or(0);
    }
}

impl Pool {
    /// The first of so many free blocks in a row, in one region; for long runs the last of them,
    /// so that they do not lie between short ones.
    pub(super) fn find_row(&self, free: &FreeBlocks, rights: Rights, blocks: usize) -> Option<u32> {
        let numbers = free.of(rights).numbers.iter().copied();
        let numbers = numbers.filter(|&number| !free.is_held(number));
        let segment_blocks = self.segment_bytes / self.block_bytes;
        if blocks <= segment_blocks {
            return self.row(numbers, blocks, |before| before + 1);
        }
        let last = self.row(numbers.rev(), blocks, |before| before.wrapping_sub(1))?;
        Some(last + 1 - blocks as u32)
    }

    /// The first of the longest row of free blocks in one region that is not longer than `most`; of
    /// several the one in front.
    pub(super) fn longest_row(
        &self,
        free: &FreeBlocks,
        rights: Rights,
        most: usize,
    ) -> Option<u32> {
        let numbers = free.of(rights).numbers.iter().copied();
        let mut best: Option<Range<u32>> = None;
        let mut row = 0..0;
        for number in numbers.filter(|&number| !free.is_held(number)) {
            let goes_on = row.end == number && !number.is_multiple_of(self.region_blocks as u32);
            row = if goes_on { row.start..number + 1 } else { number..number + 1 };
            if best.as_ref().is_none_or(|best| row.len() > best.len()) {
                best = Some(row.clone());
            }
            if row.len() == most {
                break;
            }
        }
        best.map(|row| row.start)
    }

    /// The first number of a row of which each `follows` the one before.
    fn row(
        &self,
        numbers: impl Iterator<Item = u32>,
        blocks: usize,
        follows: impl Fn(u32) -> u32,
    ) -> Option<u32> {
        let region = |number: u32| number / self.region_blocks as u32;
        let mut row: Option<(u32, u32, usize)> = None;
        for number in numbers {
            let (first, len) = match row {
                Some((first, last, len))
                    if number == follows(last) && region(number) == region(last) =>
                {
                    (first, len + 1)
                }
                _ => (number, 1),
            };
            if len == blocks {
                return Some(first);
            }
            row = Some((first, number, len));
        }
        None
    }

    /// Whether enough blocks for so many bytes are free, wherever they lie.
    pub(in crate::engine) fn has_enough(&self, wanted: Wanted) -> bool {
        self.leaves_enough(&self.free.lock(), self.blocks_for(wanted.len_bytes), wanted)
    }

    /// The stretch for so many bytes that has the fewest live bytes in it, of those whose live
    /// bytes find room elsewhere; entries that are longer than a segment stay where they are unless
    /// `runs`.
    pub(in crate::engine) fn cheapest_stretch(
        &self,
        wanted: Wanted,
        runs: bool,
    ) -> Option<Stretch> {
        let blocks = self.blocks_for(wanted.len_bytes);
        let free = self.free.lock();
        let fits = |sum: &Sum| {
            let elsewhere = free.of(wanted.rights).numbers.len() - sum.free_blocks;
            sum.live_bytes.div_ceil(self.block_bytes) <= elsewhere
        };
        let is_meant = |&(id, region): &(u32, &Region)| {
            region.rights == wanted.rights && !free.leaving.contains(&self.number(id, 0))
        };
        let all = self.live_regions().filter(is_meant).filter_map(|(id, region)| {
            let pieces = self.pieces(region, runs);
            let (sum, range) = cheapest(&pieces, blocks, fits)?;
            Some((sum.live_bytes, id, pieces[range].to_vec()))
        });
        let (_, id, pieces) = all.min_by_key(|&(live_bytes, ..)| live_bytes)?;
        let first = self.number(id, pieces.first()?.first);
        let len: usize = pieces.iter().map(|piece| piece.blocks).sum();
        let used = pieces.iter().filter(|piece| !piece.is_free);
        Some(Stretch {
            blocks: first..first + len as u32,
            segments: used.map(|piece| LogAddr::new(id, piece.first * self.block_bytes)).collect(),
        })
    }

    fn pieces(&self, region: &Region, runs: bool) -> Vec<Piece> {
        let longest = if runs { usize::MAX } else { self.segment_bytes / self.block_bytes };
        let mut pieces = Vec::new();
        let mut first = 0;
        while let Some(block) = region.blocks.get(first) {
            let sealed = block.sealed(region.rights).filter(|sealed| sealed.blocks <= longest);
            let is_free = block.used_for() == Use::Free;
            let blocks = if is_free { 1 } else { block.run().max(1) };
            let live_bytes = if is_free { Some(0) } else { sealed.map(|s| s.live_bytes) };
            pieces.push(Piece { first, blocks, live_bytes, is_free });
            first += blocks;
        }
        pieces
    }

    /// Keeps these blocks from being taken.
    pub(in crate::engine) fn hold(&self, blocks: Range<u32>) -> Held<'_> {
        self.set_held(Hold::Row, blocks);
        Held { pool: self, what: Hold::Row }
    }

    /// Keeps a region's blocks from being taken, and from being counted as free.
    pub(in crate::engine) fn hold_region(&self, blocks: Range<u32>) -> Held<'_> {
        self.set_held(Hold::Region, blocks);
        Held { pool: self, what: Hold::Region }
    }

    fn set_held(&self, what: Hold, blocks: Range<u32>) {
        let mut free = self.free.lock();
        match what {
            Hold::Row => free.held = blocks,
            Hold::Region => free.leaving = blocks,
        }
        self.note_levels(&free);
    }

    /// Whether all these blocks are free.
    pub(in crate::engine) fn is_free(&self, mut blocks: Range<u32>) -> bool {
        let free = self.free.lock();
        blocks.all(|number| free.has(number))
    }
}

/// The pieces in a row that have so many blocks and the fewest live bytes, of those that fit.
fn cheapest(
    pieces: &[Piece],
    blocks: usize,
    fits: impl Fn(&Sum) -> bool,
) -> Option<(Sum, Range<usize>)> {
    let mut best: Option<(Sum, Range<usize>)> = None;
    let (mut sum, mut first) = (Sum::default(), 0);
    for (n, piece) in pieces.iter().enumerate() {
        if piece.live_bytes.is_none() {
            (sum, first) = (Sum::default(), n + 1);
            continue;
        }
        sum.add(piece);
        while sum.blocks - pieces[first].blocks >= blocks {
            sum.sub(&pieces[first]);
            first += 1;
        }
        let better = best.as_ref().is_none_or(|(best, _)| sum.live_bytes < best.live_bytes);
        if sum.blocks >= blocks && better && fits(&sum) {
            best = Some((sum, first..n + 1));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(of: &[(usize, Option<usize>)]) -> Vec<Piece> {
        let mut first = 0;
        let piece = |&(blocks, live_bytes): &(usize, Option<usize>)| {
            first += blocks;
            let is_free = live_bytes == Some(0);
            Piece { first: first - blocks, blocks, live_bytes, is_free }
        };
        of.iter().map(piece).collect()
    }

    #[test]
    fn the_cheapest_row_without_what_stays() {
        let free = (1, Some(0));
        let row = [free, (2, Some(90)), free, (3, None), free, (1, Some(10)), (2, Some(20)), free];
        let range = |blocks| cheapest(&pieces(&row), blocks, |_| true).map(|(_, range)| range);
        assert_eq!(range(1), Some(0..1));
        assert_eq!(range(2), Some(4..6));
        assert_eq!(range(3), Some(6..8));
        assert_eq!(range(5), Some(4..8));
        assert_eq!(range(6), None);
        let dear = cheapest(&pieces(&row), 3, |sum| sum.live_bytes > 80);
        assert_eq!(dear.map(|(_, range)| range), Some(0..2), "only what fits");
    }
}
