//! A place in the server's own regions, for reading and writing it.

use onesided_fabric::{AccessError, Memory};
use onesided_protocol::layout::line::{BUCKET_WORDS, LINE_WORDS};

/// Bytes compared at a time.
const COMPARE_BYTES: usize = 64;

/// A memory and an offset in it.
///
/// Only addresses that the server made itself get here: an access that the memory refuses is a
/// fault of the engine and panics. Nothing that a peer sends becomes an address.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    memory: &'a Memory,
    offset_bytes: usize,
}

fn own<T>(access: Result<T, AccessError>) -> T {
    match access {
        Ok(value) => value,
        Err(error) => panic!("the engine's own address is wrong: {error}"),
    }
}

impl<'a> Spot<'a> {
    pub(super) fn new(memory: &'a Memory, offset_bytes: usize) -> Self {
        Self { memory, offset_bytes }
    }

    /// The place this many bytes further on.
    #[inline]
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self { memory: self.memory, offset_bytes: self.offset_bytes + bytes }
    }

    #[inline]
    pub(super) fn load(self) -> u64 {
        own(self.memory.load(self.offset_bytes))
    }

    /// Stores a word; everything before is seen before it, everything after after it.
    #[inline]
    pub(super) fn store(self, word: u64) {
        own(self.memory.store(self.offset_bytes, word));
    }

    /// Makes so many bytes zeros.
    pub(super) fn zero(self, len_bytes: usize) {
        own(self.memory.zero(self.offset_bytes, len_bytes));
    }

    pub(super) fn add(self, value: u64) {
        own(self.memory.fetch_add(self.offset_bytes, value));
    }

    #[inline]
    pub(super) fn words<const N: usize>(self) -> [u64; N] {
        let mut words = [0; N];
        own(self.memory.read_words(self.offset_bytes, &mut words));
        words
    }

    #[inline]
    pub(super) fn bucket(self) -> [u64; BUCKET_WORDS] {
        self.words()
    }

    #[inline]
    pub(super) fn line(self) -> [u64; LINE_WORDS] {
        self.words()
    }

    pub(super) fn read_words(self, into: &mut [u64]) {
        own(self.memory.read_words(self.offset_bytes, into));
    }

    pub(super) fn read(self, into: &mut [u8]) {
        own(self.memory.read_bytes(self.offset_bytes, into));
    }

    /// Reads so many bytes to behind what `into` holds.
    pub(super) fn append_to(self, len_bytes: usize, into: &mut Vec<u8>) {
        own(self.memory.append_bytes(self.offset_bytes, len_bytes, into));
    }

    pub(super) fn write(self, from: &[u8]) {
        own(self.memory.write_bytes(self.offset_bytes, from));
    }

    /// Reads bytes at a place that was told by what clients can write. `false`: it is none.
    pub(super) fn try_read(self, into: &mut [u8]) -> bool {
        self.memory.read_bytes(self.offset_bytes, into).is_ok()
    }

    /// Whether these bytes are there; not beyond the end of the memory.
    #[inline]
    pub(super) fn holds(self, wanted: &[u8]) -> bool {
        let mut found = [0; COMPARE_BYTES];
        wanted.chunks(COMPARE_BYTES).enumerate().all(|(i, wanted)| {
            let found = &mut found[..wanted.len()];
            self.plus(i * COMPARE_BYTES).try_read(found) && found == wanted
        })
    }

    #[inline]
    pub(super) fn prefetch(self, len_bytes: usize) {
        self.memory.prefetch(self.offset_bytes, len_bytes);
    }
}
