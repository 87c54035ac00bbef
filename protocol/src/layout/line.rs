//! Index lines, buckets and segments.

use super::slot::Slot;

/// Words of a line: header and slots.
pub const LINE_WORDS: usize = 8;
/// Bytes of a line.
pub const LINE_BYTES: usize = LINE_WORDS * 8;
/// Slots of a line.
pub const LINE_SLOTS: usize = LINE_WORDS - 1;
/// Buckets of a segment; a power of two.
pub const BUCKETS: usize = 512;
/// Bytes of a bucket: two adjacent lines, one READ.
pub const BUCKET_BYTES: usize = 2 * LINE_BYTES;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = 2 * LINE_WORDS;
/// Lines in the tail of a segment, numbered from 1.
pub const TAIL_LINES: usize = 64;
/// Where the tail begins.
pub const TAIL_OFFSET_BYTES: usize = BUCKETS * BUCKET_BYTES;
/// Bytes of an index segment.
pub const INDEX_SEGMENT_BYTES: usize = TAIL_OFFSET_BYTES + TAIL_LINES * LINE_BYTES;
/// Slots of the buckets of a segment, the tail not counted.
pub const SEGMENT_SLOTS: usize = BUCKETS * 2 * LINE_SLOTS;

const _: () = assert!(INDEX_SEGMENT_BYTES == 68 << 10);
const _: () = assert!(BUCKETS.is_power_of_two());

/// Offset of a bucket in its segment.
#[inline]
#[must_use]
pub const fn bucket_offset_bytes(bucket: usize) -> usize {
    bucket * BUCKET_BYTES
}

/// Offset of a tail line (1 to [`TAIL_LINES`]) in its segment; `None` for another number.
#[inline]
#[must_use]
pub const fn tail_offset_bytes(line: u8) -> Option<usize> {
    if line == 0 || line as usize > TAIL_LINES {
        return None;
    }
    Some(TAIL_OFFSET_BYTES + (line as usize - 1) * LINE_BYTES)
}

/// | bits | meaning |
/// |---|---|
/// | 15..0 | version: odd while a split touches the line; also odd for ever in a dropped table |
/// | 23..16 | local depth of the segment |
/// | 31..24 | number of the chained line in the segment's tail, 0 = none |
/// | 63..32 | the hash prefix that the segment serves (its top `depth` bits; the others 0) |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LineHeader(pub u64);

impl LineHeader {
    /// A header.
    #[must_use]
    pub fn new(version: u16, depth: u8, overflow: u8, prefix: u32) -> Self {
        Self(
            u64::from(version)
                | u64::from(depth) << 16
                | u64::from(overflow) << 24
                | u64::from(prefix) << 32,
        )
    }

    /// Bumped before and after a split touches the line.
    #[inline]
    #[must_use]
    pub fn version(self) -> u16 {
        self.0 as u16
    }

    /// Local depth.
    #[inline]
    #[must_use]
    pub fn depth(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// The chained tail line, 0 = none.
    #[inline]
    #[must_use]
    pub fn overflow(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// The prefix that the segment serves.
    #[inline]
    #[must_use]
    pub fn prefix(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether a split, or the end of the table, is in progress.
    #[inline]
    #[must_use]
    pub fn in_progress(self) -> bool {
        self.version() % 2 == 1
    }

    /// Whether the line's segment serves keys with this hash prefix.
    #[inline]
    #[must_use]
    pub fn covers(self, prefix: u32) -> bool {
        use crate::hash::top_bits;
        top_bits(prefix, self.depth()) == top_bits(self.prefix(), self.depth())
    }

    /// The same with another version.
    #[must_use]
    pub fn with_version(self, version: u16) -> Self {
        Self::new(version, self.depth(), self.overflow(), self.prefix())
    }

    /// The same with another chained line.
    #[must_use]
    pub fn with_overflow(self, overflow: u8) -> Self {
        Self::new(self.version(), self.depth(), overflow, self.prefix())
    }
}

/// The header of a line.
#[inline]
#[must_use]
pub fn header(line: &[u64; LINE_WORDS]) -> LineHeader {
    LineHeader(line[0])
}

/// The slots of a line.
#[inline]
pub fn slots(line: &[u64; LINE_WORDS]) -> impl Iterator<Item = Slot> + '_ {
    line[1..].iter().map(|&word| Slot(word))
}
