//! Splits: the index grows while it is read.
//!
//! The steps, in the order that the model checks (design.md 12): (0) all headers of the old
//! segment get an odd version, the new depth and prefix: from here on it proves no miss; (1) the
//! new segment is filled, out of reach; (2) directory words; (3) the old segment loses what
//! moved; (4) its versions are even again. Both segments are locked all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use onesided_protocol::LogAddr;
use onesided_protocol::hash::{KeyHash, top_bits};
use onesided_protocol::layout::catalog::DirectoryWord;
use onesided_protocol::layout::line::{
    BUCKET_WORDS, BUCKETS, INDEX_SEGMENT_BYTES, LINE_WORDS, LineHeader, TAIL_LINES,
    tail_offset_bytes,
};
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::limits::DEPTH_MAX;
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::Shared;
use super::account::Account;
use super::bucket::header_at;
use super::index::{Contents, Directory, Index, Segment, SegmentState, give, header_places, take};
use super::memory::Pool;
use super::spot::Spot;

const SEGMENT_WORDS: usize = INDEX_SEGMENT_BYTES / 8;

impl Index {
    /// Splits a segment, whose state is locked, in two by the next bit of the hash.
    ///
    /// # Errors
    /// `IndexFull` at the depth limit, `OutOfMemory`; nothing was changed then.
    pub(super) fn split(
        &self,
        shared: &Shared,
        account: &Account,
        segment: &Segment,
        state: &mut SegmentState,
    ) -> Result<(), RpcError> {
        if state.depth >= DEPTH_MAX {
            let text = format!(
                "the index cannot be deeper than {DEPTH_MAX} bits and a part of it is full; \
                 nothing was changed: delete keys or use another table"
            );
            return Err(RpcError::new(ErrorCode::IndexFull, text));
        }
        let addr = take(shared, account, INDEX_SEGMENT_BYTES)?;
        self.deepen(shared, account, state.depth + 1)
            .inspect_err(|_| give(shared, account, addr, INDEX_SEGMENT_BYTES))?;
        let base = shared.pool.at(segment.addr);
        let halves = Halves::of(&shared.pool, self.hash_seed, base, state.depth);

        state.depth += 1;
        begin(base, state.depth);
        let prefix = state.prefix | 1 << (32 - u32::from(state.depth));
        let (image, tail) = halves.moved_image(state.depth, prefix);
        shared.pool.at(addr).write(image.as_bytes());
        let moved = SegmentState {
            depth: state.depth,
            prefix,
            count: halves.moved_count,
            split_at: self.split_at(prefix, state.depth),
            tail,
            contents: halves.moved,
        };
        let number = self.push_locked(Segment { addr, state: Mutex::new(moved) });
        let _moved_is_locked_too = self.segment(number).state.lock();
        self.name_halves(shared, segment.addr, state, (number, addr));
        state.count -= halves.moved_count;
        state.contents = state.contents.without(halves.moved);
        state.split_at = self.split_at(state.prefix, state.depth);
        halves.tidy(base, &mut state.tail);
        end(base);
        self.splits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn push_locked(&self, segment: Segment) -> u32 {
        let _directory = self.outgrown.lock();
        self.push(segment)
    }

    /// Doubles the directory until it is at least `depth` deep.
    fn deepen(&self, shared: &Shared, account: &Account, depth: u8) -> Result<(), RpcError> {
        let mut outgrown = self.outgrown.lock();
        let old = self.directory.load_full();
        if old.depth >= depth {
            return Ok(());
        }
        let old_bytes = old.segments.len() * 8;
        let addr = take(shared, account, 2 * old_bytes)?;
        let mut words = vec![0; old.segments.len()];
        shared.pool.at(old.addr).read_words(&mut words);
        let doubled: Vec<u64> = words.iter().flat_map(|&word| [word, word]).collect();
        shared.pool.at(addr).write(doubled.as_bytes());
        let numbers = old.segments.iter().flat_map(|number| {
            let number = number.load(Ordering::Relaxed);
            [AtomicU32::new(number), AtomicU32::new(number)]
        });
        let new = Directory { depth: old.depth + 1, addr, segments: numbers.collect() };
        shared.catalog.set_directory(self.record, DirectoryWord::new(new.depth, addr));
        self.directory.store(Arc::new(new));
        outgrown.push((old.addr, old_bytes));
        Ok(())
    }

    /// Lets the directory's words name the new segment for the upper half of what the old one
    /// served; `state` has the new depth already.
    fn name_halves(
        &self,
        shared: &Shared,
        old: LogAddr,
        state: &SegmentState,
        (number, new): (u32, LogAddr),
    ) {
        let _directory_stays = self.outgrown.lock();
        let directory = self.directory.load();
        let words = shared.pool.at(directory.addr);
        let span = 1 << (directory.depth - state.depth);
        let low = top_bits(state.prefix, directory.depth) as usize;
        let high = low + span;
        for i in high..high + span {
            words.plus(i * 8).store(DirectoryWord::new(state.depth, new).0);
            directory.segments[i].store(number, Ordering::Release);
        }
        for i in low..high {
            words.plus(i * 8).store(DirectoryWord::new(state.depth, old).0);
        }
    }
}

/// All headers of the segment at `base`: odd version, new depth. The lower half keeps the prefix.
fn begin(base: Spot<'_>, depth: u8) {
    for at in header_places(base) {
        let old = LineHeader(at.load());
        let version = old.version().wrapping_add(1);
        at.store(LineHeader::new(version, depth, old.overflow(), old.prefix()).0);
    }
}

/// All headers: even again.
fn end(base: Spot<'_>) {
    for at in header_places(base) {
        let odd = LineHeader(at.load());
        at.store(odd.with_version(odd.version().wrapping_add(1)).0);
    }
}

/// A segment's words, and which of them are slots that move.
struct Halves {
    words: Vec<u64>,
    moves: Vec<bool>,
    moved_count: u32,
    moved: Contents,
}

/// First words of the lines of a bucket, in chain order, in a segment's words.
fn lines_of(words: &[u64], bucket: usize) -> Vec<usize> {
    let start = bucket * BUCKET_WORDS;
    let mut lines = vec![start, start + LINE_WORDS];
    let mut next = LineHeader(words[start]).overflow();
    while lines.len() < 2 + TAIL_LINES {
        let Some(offset) = tail_offset_bytes(next) else { break };
        lines.push(offset / 8);
        next = LineHeader(words[offset / 8]).overflow();
    }
    lines
}

fn slots_of(line: usize) -> std::ops::Range<usize> {
    line + 1..line + LINE_WORDS
}

/// All slots in a segment's words.
pub(super) fn slots(words: &[u64]) -> impl Iterator<Item = Slot> {
    words.chunks_exact(LINE_WORDS).flat_map(|line| &line[1..]).map(|&word| Slot(word))
}

/// Number of the tail line that begins at this word.
fn tail_number(line: usize) -> u8 {
    ((line - BUCKETS * BUCKET_WORDS) / LINE_WORDS) as u8 + 1
}

impl Halves {
    /// Reads the segment at `base` and asks each key for bit `depth` of its hash.
    fn of(pool: &Pool, hash_seed: u64, base: Spot<'_>, depth: u8) -> Self {
        let mut words = vec![0; SEGMENT_WORDS];
        base.read_words(&mut words);
        let moves = vec![false; SEGMENT_WORDS];
        let mut halves = Self { moves, words, moved_count: 0, moved: Contents::default() };
        let mut key = Vec::new();
        halves.prefetch(pool, 0);
        for line in (0..SEGMENT_WORDS).step_by(LINE_WORDS) {
            // The entries of the next line come while those of this one are looked at.
            halves.prefetch(pool, line + LINE_WORDS);
            for i in slots_of(line) {
                let Some(addr) = Slot(halves.words[i]).addr() else { continue };
                let at = pool.at(addr);
                let header = header_at(at);
                key.resize(usize::from(header.key_len), 0);
                // Where clients can write entries they may say anything.
                let _inside = at.plus(header.key_offset()).try_read(&mut key);
                let prefix = KeyHash::of(hash_seed, &key).prefix();
                halves.moves[i] = top_bits(prefix, depth + 1) & 1 == 1;
                if halves.moves[i] {
                    halves.moved_count += 1;
                    halves.moved.add(&header);
                }
            }
        }
        halves
    }

    /// The entries that the slots of the line lead to will be looked at soon.
    fn prefetch(&self, pool: &Pool, line: usize) {
        let slots = self.words.get(slots_of(line)).unwrap_or_default();
        slots.iter().filter_map(|&slot| Slot(slot).addr()).for_each(|addr| {
            pool.at(addr).prefetch(64);
        });
    }

    /// The words of a segment that holds what moves, and its tail lines in use.
    fn moved_image(&self, depth: u8, prefix: u32) -> (Vec<u64>, u64) {
        let mut image = vec![0; SEGMENT_WORDS];
        for line in image.chunks_exact_mut(LINE_WORDS) {
            line[0] = LineHeader::new(0, depth, 0, prefix).0;
        }
        let mut tail_lines = 0;
        for bucket in 0..BUCKETS {
            let lines = lines_of(&self.words, bucket);
            let moving = lines.into_iter().flat_map(slots_of).filter(|&i| self.moves[i]);
            let slots: Vec<u64> = moving.map(|i| self.words[i]).collect();
            let first = bucket * BUCKET_WORDS;
            let mut chain_end = first;
            for (n, slots) in slots.chunks(LINE_WORDS - 1).enumerate() {
                let line = match n {
                    0 | 1 => first + n * LINE_WORDS,
                    _ => {
                        // No more than the old segment had: every bucket holds fewer.
                        let line = BUCKETS * BUCKET_WORDS + tail_lines * LINE_WORDS;
                        tail_lines += 1;
                        let end = LineHeader(image[chain_end]);
                        image[chain_end] = end.with_overflow(tail_number(line)).0;
                        chain_end = line;
                        line
                    }
                };
                image[line + 1..line + 1 + slots.len()].copy_from_slice(slots);
            }
        }
        let tail = if tail_lines == TAIL_LINES { u64::MAX } else { (1 << tail_lines) - 1 };
        (image, tail)
    }

    /// Takes what moved out of the segment at `base`, and frees tail lines that are no longer
    /// needed: what stays there moves up into free slots.
    fn tidy(mut self, base: Spot<'_>, tail: &mut u64) {
        for i in (0..SEGMENT_WORDS).filter(|&i| self.moves[i]) {
            self.words[i] = 0;
            base.plus(i * 8).store(0);
        }
        for bucket in 0..BUCKETS {
            let lines = lines_of(&self.words, bucket);
            if lines.len() > 2 {
                self.move_up(base, &lines);
                self.shorten(base, &lines, tail);
            }
        }
    }

    /// Fills free slots from the end of the chain. A slot is at its new place before it leaves
    /// the old one.
    fn move_up(&mut self, base: Spot<'_>, lines: &[usize]) {
        let slots: Vec<usize> = lines.iter().copied().flat_map(slots_of).collect();
        let mut from = slots.len();
        for (n, &free) in slots.iter().enumerate() {
            if self.words[free] != 0 {
                continue;
            }
            let last = (n + 1..from).rev().find(|&m| self.words[slots[m]] != 0);
            let Some(last) = last else { break };
            from = last;
            let full = slots[last];
            self.words[free] = self.words[full];
            base.plus(free * 8).store(self.words[free]);
            self.words[full] = 0;
            base.plus(full * 8).store(0);
        }
    }

    /// Cuts the empty lines off the end of a chain.
    fn shorten(&mut self, base: Spot<'_>, lines: &[usize], tail: &mut u64) {
        let chain: Vec<usize> = [lines[0]].into_iter().chain(lines[2..].iter().copied()).collect();
        for pair in chain.windows(2).rev() {
            let (before, line) = (pair[0], pair[1]);
            if slots_of(line).any(|i| self.words[i] != 0) {
                break;
            }
            *tail &= !(1 << (tail_number(line) - 1));
            let at = base.plus(before * 8);
            at.store(LineHeader(at.load()).with_overflow(0).0);
        }
    }
}
