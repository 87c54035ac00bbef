//! The index: extendible hashing over segments that peers read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use onesided_protocol::LogAddr;
use onesided_protocol::hash::{KeyHash, top_bits};
use onesided_protocol::layout::catalog::DirectoryWord;
use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::layout::line::{
    BUCKET_BYTES, INDEX_SEGMENT_BYTES, LINE_BYTES, LineHeader, SEGMENT_SLOTS, TAIL_LINES,
    bucket_offset_bytes,
};
use onesided_protocol::limits::DEPTH_MAX;
use onesided_protocol::rpc::RpcError;
use parking_lot::{Mutex, MutexGuard};

use super::Shared;
use super::account::Account;
use super::bucket::Probe;
use super::memory::Pool;
use super::meta::piece_bytes;
use super::room::Need;
use super::spot::Spot;

const _: () = assert!(TAIL_LINES == 64, "the lines of a tail are one word of bits");

/// After a split that memory did not allow, this many keys are put into the segment's free slots
/// before another one is tried.
const SPLIT_AGAIN_KEYS: u32 = 64;

/// An index segment's place and private state.
pub(super) struct Segment {
    pub(super) addr: LogAddr,
    pub(super) state: Mutex<SegmentState>,
}

/// What only the server knows of a segment. Whoever changes its slots, or the state words of the
/// entries they point at, holds the lock on it.
pub(super) struct SegmentState {
    pub(super) depth: u8,
    pub(super) prefix: u32,
    /// Slots in use.
    pub(super) count: u32,
    /// It splits before it holds more keys than this.
    pub(super) split_at: u32,
    /// Bit n: line n + 1 of the tail is chained to a bucket.
    pub(super) tail: u64,
    pub(super) contents: Contents,
}

/// What is in the entries of a segment, beside their headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Contents {
    /// Keys and values.
    payload_bytes: u64,
    padding_bytes: u64,
}

impl Contents {
    pub(super) fn add(&mut self, header: &EntryHeader) {
        self.payload_bytes += payload_bytes(header);
        self.padding_bytes += padding_bytes(header);
    }

    pub(super) fn sub(&mut self, header: &EntryHeader) {
        // Where clients write entries they may have any length.
        self.payload_bytes = self.payload_bytes.saturating_sub(payload_bytes(header));
        self.padding_bytes = self.padding_bytes.saturating_sub(padding_bytes(header));
    }

    /// Without what another segment has now.
    pub(super) fn without(self, moved: Self) -> Self {
        Self {
            payload_bytes: self.payload_bytes.saturating_sub(moved.payload_bytes),
            padding_bytes: self.padding_bytes.saturating_sub(moved.padding_bytes),
        }
    }
}

fn payload_bytes(header: &EntryHeader) -> u64 {
    u64::from(header.key_len) + u64::from(header.value_len)
}

fn padding_bytes(header: &EntryHeader) -> u64 {
    (header.padded_bytes() - header.len_bytes()) as u64
}

impl SegmentState {
    /// The number of a tail line that was unused.
    pub(super) fn take_tail_line(&mut self) -> Option<u8> {
        let bit = self.tail.trailing_ones();
        if bit == u64::BITS {
            return None;
        }
        self.tail |= 1 << bit;
        Some(bit as u8 + 1)
    }

    fn covers(&self, hash: KeyHash) -> bool {
        top_bits(hash.prefix(), self.depth) == top_bits(self.prefix, self.depth)
    }
}

/// The directory and, as private numbers, the segments that its words name.
pub(super) struct Directory {
    pub(super) depth: u8,
    pub(super) addr: LogAddr,
    pub(super) segments: Box<[AtomicU32]>,
}

/// All segments of an index by number, which never changes. Chunk n holds 2^n of them.
struct SegmentList {
    chunks: [OnceLock<Box<[OnceLock<Segment>]>>; DEPTH_MAX as usize + 1],
    len: AtomicU32,
}

impl SegmentList {
    fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; DEPTH_MAX as usize + 1], len: AtomicU32::new(0) }
    }

    #[inline]
    fn get(&self, number: u32) -> Option<&Segment> {
        let chunk = (number + 1).ilog2();
        let index = number + 1 - (1 << chunk);
        self.chunks.get(chunk as usize)?.get()?.get(index as usize)?.get()
    }

    /// Adds a segment; one caller at a time.
    fn push(&self, segment: Segment) -> u32 {
        let number = self.len.load(Ordering::Relaxed);
        let chunk = (number + 1).ilog2();
        let slots = self.chunks[chunk as usize]
            .get_or_init(|| (0..1 << chunk).map(|_| OnceLock::new()).collect());
        let added = slots[(number + 1 - (1 << chunk)) as usize].set(segment);
        debug_assert!(added.is_ok(), "segment {number} was added twice");
        self.len.store(number + 1, Ordering::Release);
        number
    }
}

/// How full an index is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexStatus {
    /// Segments.
    pub segments: u64,
    /// Slots of their buckets, those of overflow lines not counted.
    pub slots: u64,
    /// Slots in use, in buckets and overflow lines.
    pub keys: u64,
    /// Overflow lines in use; their keys cost a READ more.
    pub overflow_lines: u64,
    /// Bytes of the keys and values.
    pub payload_bytes: u64,
    /// Bytes that fill their entries up to multiples of 16.
    pub padding_bytes: u64,
}

/// A table's index.
pub(super) struct Index {
    /// Number of the table's record in the catalog.
    pub(super) record: u32,
    pub(super) hash_seed: u64,
    pub(super) directory: ArcSwap<Directory>,
    /// Held while the directory changes; after a segment's lock, never before it. Holds the
    /// directories that were outgrown, with their lengths: a client may still read them.
    pub(super) outgrown: Mutex<Vec<(LogAddr, usize)>>,
    segments: SegmentList,
    pub(super) splits: AtomicU64,
    /// A segment splits before it holds more keys than this, and some earlier: [`split_at`].
    split_keys: u32,
}

/// Segments split when they hold between this part of what they may hold at most, and all of it.
/// If all did at the same load, those of a large table would do so at the same time: hashes spread
/// keys so evenly that inserting became half as fast for a tenth of the way, again and again.
const SPLIT_FROM: f64 = 0.74;

/// When a segment of this prefix and depth splits. Neighbours differ much: multiples of the golden
/// ratio leave no gaps.
fn split_at(split_keys: u32, prefix: u32, depth: u8) -> u32 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let number = u64::from(top_bits(prefix, depth)) + 1;
    let turn = number.wrapping_mul(GOLDEN) as f64 / u64::MAX as f64;
    let part = SPLIT_FROM + (1.0 - SPLIT_FROM) * turn;
    ((f64::from(split_keys) * part) as u32).max(1)
}

impl Index {
    /// An empty index of one segment.
    pub(super) fn new(
        shared: &Shared,
        account: &Account,
        record: u32,
        hash_seed: u64,
    ) -> Result<Self, RpcError> {
        let load_percent = u32::from(shared.split_load_percent);
        let split_keys = (SEGMENT_SLOTS as u32 * load_percent / 100).max(1);
        let addr = take(shared, account, INDEX_SEGMENT_BYTES)?;
        let directory_addr = take(shared, account, 8).inspect_err(|_| {
            shared.meta.give(&shared.pool, addr, INDEX_SEGMENT_BYTES);
        })?;
        let empty = vec![0; INDEX_SEGMENT_BYTES];
        shared.pool.at(addr).write(&empty);
        shared.pool.at(directory_addr).store(DirectoryWord::new(0, addr).0);
        let segments = SegmentList::new();
        let split_at = split_at(split_keys, 0, 0);
        let contents = Contents::default();
        let state = SegmentState { depth: 0, prefix: 0, count: 0, split_at, tail: 0, contents };
        let number = segments.push(Segment { addr, state: Mutex::new(state) });
        let directory = Directory {
            depth: 0,
            addr: directory_addr,
            segments: Box::new([AtomicU32::new(number)]),
        };
        Ok(Self {
            record,
            hash_seed,
            directory: ArcSwap::from_pointee(directory),
            outgrown: Mutex::default(),
            segments,
            splits: AtomicU64::new(0),
            split_keys,
        })
    }

    /// When a segment of this prefix and depth splits.
    pub(super) fn split_at(&self, prefix: u32, depth: u8) -> u32 {
        split_at(self.split_keys, prefix, depth)
    }

    /// The word that names the directory.
    pub(super) fn directory_word(&self) -> DirectoryWord {
        let directory = self.directory.load();
        DirectoryWord::new(directory.depth, directory.addr)
    }

    /// The segment that serves a hash, locked.
    #[inline]
    pub(super) fn lock(&self, hash: KeyHash) -> (&Segment, MutexGuard<'_, SegmentState>) {
        loop {
            let directory = self.directory.load();
            let word = &directory.segments[hash.directory_index(directory.depth)];
            let segment = self.segment(word.load(Ordering::Acquire));
            let state = segment.state.lock();
            if state.covers(hash) {
                return (segment, state);
            }
            // It split while this waited, at most DEPTH_MAX times in all.
        }
    }

    /// The bucket of a hash will be looked at soon.
    pub(super) fn prefetch(&self, pool: &Pool, hash: KeyHash) {
        let directory = self.directory.load();
        let word = &directory.segments[hash.directory_index(directory.depth)];
        let segment = self.segment(word.load(Ordering::Acquire));
        pool.at(segment.addr).plus(bucket_offset_bytes(hash.bucket())).prefetch(BUCKET_BYTES);
    }

    pub(super) fn segment(&self, number: u32) -> &Segment {
        match self.segments.get(number) {
            Some(segment) => segment,
            None => panic!("the directory names segment {number}, which does not exist"),
        }
    }

    /// Number of segments; at least one, and never fewer than before.
    pub(super) fn segment_count(&self) -> usize {
        self.segments.len.load(Ordering::Acquire) as usize
    }

    /// Adds a segment; the caller holds the lock on the directory.
    pub(super) fn push(&self, segment: Segment) -> u32 {
        self.segments.push(segment)
    }

    /// All segments, those that are added meanwhile included.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        (0..).map_while(|number| self.segments.get(number))
    }

    /// How full it is, at about one moment.
    pub(super) fn status(&self) -> IndexStatus {
        let mut status = IndexStatus::default();
        for segment in self.segments() {
            let state = segment.state.lock();
            status.segments += 1;
            status.slots += SEGMENT_SLOTS as u64;
            status.keys += u64::from(state.count);
            status.overflow_lines += u64::from(state.tail.count_ones());
            status.payload_bytes += state.contents.payload_bytes;
            status.padding_bytes += state.contents.padding_bytes;
        }
        status
    }

    /// Bytes of private state.
    pub(super) fn private_bytes(&self) -> usize {
        let segments = self.segments.len.load(Ordering::Acquire) as usize;
        let slots = (segments + 1).next_power_of_two();
        slots * size_of::<OnceLock<Segment>>() + self.directory.load().segments.len() * 4
    }

    /// An empty slot for a key that `probe` did not find in `segment`. `None`: the segment was
    /// split, so look again.
    pub(super) fn make_room(
        &self,
        shared: &Shared,
        account: &Account,
        segment: &Segment,
        state: &mut SegmentState,
        probe: &Probe,
    ) -> Result<Option<usize>, RpcError> {
        if state.count >= state.split_at {
            match self.split(shared, account, segment, state) {
                Ok(()) => return Ok(None),
                Err(_) => state.split_at = state.count + SPLIT_AGAIN_KEYS,
            }
        }
        if let Some(offset) = probe.make_vacant(shared.pool.at(segment.addr), state) {
            return Ok(Some(offset));
        }
        self.split(shared, account, segment, state).map(|()| None)
    }

    /// The pieces that it consists of, with their lengths.
    pub(super) fn pieces(&self) -> Vec<(LogAddr, usize)> {
        let directory = self.directory.load();
        let mut pieces = self.outgrown.lock().clone();
        pieces.push((directory.addr, directory.segments.len() * 8));
        pieces.extend(self.segments().map(|segment| (segment.addr, INDEX_SEGMENT_BYTES)));
        pieces
    }
}

/// What a table takes for its index before there is any key in it.
pub(crate) const TABLE_MIN_BYTES: u64 = (piece_bytes(INDEX_SEGMENT_BYTES) + piece_bytes(8)) as u64;

/// Takes a piece for the index, on the table's account.
pub(super) fn take(
    shared: &Shared,
    account: &Account,
    len_bytes: usize,
) -> Result<LogAddr, RpcError> {
    let bytes = piece_bytes(len_bytes);
    account.take(bytes, Need::Grow, 0)?;
    let addr = shared.meta.take(&shared.pool, bytes, account.owner);
    let addr = addr.inspect_err(|_| account.give(bytes))?;
    account.note_index(bytes);
    Ok(addr)
}

/// Gives back a piece that [`take`] gave and nobody has seen.
pub(super) fn give(shared: &Shared, account: &Account, addr: LogAddr, len_bytes: usize) {
    let bytes = piece_bytes(len_bytes);
    shared.meta.give(&shared.pool, addr, bytes);
    account.give(bytes);
    account.unnote_index(bytes);
}

/// Places of the headers of all lines of the segment at `base`, the tail included.
pub(super) fn header_places(base: Spot<'_>) -> impl Iterator<Item = Spot<'_>> {
    (0..INDEX_SEGMENT_BYTES).step_by(LINE_BYTES).map(move |offset| base.plus(offset))
}

/// No miss can be proven by this segment any more.
pub(super) fn invalidate(base: Spot<'_>) {
    for at in header_places(base) {
        let header = LineHeader(at.load());
        at.store(header.with_version(header.version() | 1).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_split_one_after_the_other() {
        const DEPTH: u8 = 10;
        let split_keys = 10_000;
        let mut quarters = [0; 4];
        for number in 0..1u32 << DEPTH {
            let at = split_at(split_keys, number << (32 - u32::from(DEPTH)), DEPTH);
            let part = (f64::from(at) / f64::from(split_keys) - SPLIT_FROM) / (1.0 - SPLIT_FROM);
            assert!((-0.001..=1.0).contains(&part), "segment {number} at {at}");
            quarters[((part.max(0.0) * 4.0) as usize).min(3)] += 1;
        }
        assert!(quarters.iter().all(|&count| (250..=262).contains(&count)), "{quarters:?}");
        assert_eq!(split_at(1, 0, 0), 1, "never before there is a key");
    }
}
