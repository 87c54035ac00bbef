//! Looking into a bucket, with its segment locked.

use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::layout::line::{
    LINE_BYTES, LINE_WORDS, LineHeader, TAIL_LINES, bucket_offset_bytes, tail_offset_bytes,
};
use onesided_protocol::layout::slot::{FINGERPRINT_SHIFT, Slot};

use super::index::SegmentState;
use super::memory::Pool;
use super::spot::Spot;

/// A key's entry and the slot that points at it.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    /// Of the slot, from the segment's start.
    pub(super) slot_bytes: usize,
    pub(super) addr: LogAddr,
    pub(super) header: EntryHeader,
}

/// What a look into a key's bucket found.
pub(super) struct Probe {
    pub(super) hit: Option<Hit>,
    /// An empty slot, from the segment's start.
    pub(super) vacant_bytes: Option<usize>,
    /// The line to chain another one to. Chains begin at the bucket's first line.
    chain_end_bytes: usize,
}

/// What an entry says about itself.
#[inline]
pub(super) fn header_at(at: Spot<'_>) -> EntryHeader {
    let [_, words @ ..] = at.words::<4>();
    EntryHeader::from_words(words)
}

/// The slot of a key of this hash that points at `addr`, from the start of the segment at `base`.
pub(super) fn slot_of(base: Spot<'_>, hash: KeyHash, addr: LogAddr) -> Option<usize> {
    let start = bucket_offset_bytes(hash.bucket());
    let is_it = |slot: Slot| slot.addr() == Some(addr) && slot.fingerprint() == hash.fingerprint();
    let find = |line: &[u64]| line.iter().skip(1).position(|&word| is_it(Slot(word)));
    let words = base.plus(start).bucket();
    for (n, line) in words.chunks_exact(LINE_WORDS).enumerate() {
        if let Some(i) = find(line) {
            return Some(start + n * LINE_BYTES + (i + 1) * 8);
        }
    }
    let mut next = LineHeader(words[0]).overflow();
    for _ in 0..TAIL_LINES {
        let offset = tail_offset_bytes(next)?;
        let line = base.plus(offset).line();
        if let Some(i) = find(&line) {
            return Some(offset + (i + 1) * 8);
        }
        next = LineHeader(line[0]).overflow();
    }
    None
}

impl Probe {
    /// Looks for `key` in its bucket of the segment at `base`.
    pub(super) fn of(pool: &Pool, base: Spot<'_>, hash: KeyHash, key: &[u8]) -> Self {
        let start = bucket_offset_bytes(hash.bucket());
        let mut probe = Self { hit: None, vacant_bytes: None, chain_end_bytes: start };
        let words = base.plus(start).bucket();
        let (first, second) = words.split_at(LINE_WORDS);
        probe.line(pool, first, start, hash, key);
        if probe.hit.is_none() {
            probe.line(pool, second, start + LINE_BYTES, hash, key);
        }
        let mut next = LineHeader(first[0]).overflow();
        for _ in 0..TAIL_LINES {
            if probe.hit.is_some() {
                break;
            }
            let Some(offset) = tail_offset_bytes(next) else { break };
            let line = base.plus(offset).line();
            probe.line(pool, &line, offset, hash, key);
            probe.chain_end_bytes = offset;
            next = LineHeader(line[0]).overflow();
        }
        probe
    }

    #[inline]
    fn line(&mut self, pool: &Pool, line: &[u64], offset: usize, hash: KeyHash, key: &[u8]) {
        let wanted = u64::from(hash.fingerprint());
        for (i, &word) in line.iter().enumerate().skip(1) {
            let slot_bytes = offset + i * 8;
            let Some(addr) = Slot(word).addr() else {
                self.vacant_bytes.get_or_insert(slot_bytes);
                continue;
            };
            if word >> FINGERPRINT_SHIFT != wanted {
                continue;
            }
            let at = pool.at(addr);
            let header = header_at(at);
            if usize::from(header.key_len) == key.len() && at.plus(header.key_offset()).holds(key) {
                self.hit = Some(Hit { slot_bytes, addr, header });
                return;
            }
        }
    }

    /// An empty slot for a key that was not found; a line of the tail is chained if need be.
    /// `None`: the tail is used up.
    pub(super) fn make_vacant(&self, base: Spot<'_>, state: &mut SegmentState) -> Option<usize> {
        if self.vacant_bytes.is_some() {
            return self.vacant_bytes;
        }
        let number = state.take_tail_line()?;
        // Empty, its header up to date, and no line chained to it: as every unused line is.
        let offset = tail_offset_bytes(number)?;
        let end = base.plus(self.chain_end_bytes);
        end.store(LineHeader(end.load()).with_overflow(number).0);
        Some(offset + 8)
    }
}
