//! Blocks of one size: a lock-free queue of a few, and behind it the chunks with free blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

use super::Counters;
use crate::mem::block::{Block, Chunk};

/// Blocks smaller than this share chunks of this size.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// The queue holds as much as this, but at least one block and at most [`QUEUE_BLOCKS`].
const QUEUE_BYTES: usize = 1 << 20;
const QUEUE_BLOCKS: usize = 256;
/// Chunks with no block in use that are kept beside the queue, in bytes.
const KEPT_BYTES: usize = 8 << 20;

/// Gives out blocks of one size and takes them back.
pub(super) struct Class {
    block_bytes: usize,
    /// The way of the data path. Empty or full, the lock below is taken.
    ready: ArrayQueue<Block>,
    depot: Mutex<Depot>,
}

/// Chunks that have free blocks, by address: low ones are used first, so that high ones empty.
#[derive(Default)]
struct Depot {
    chunks: BTreeMap<u64, Shelf>,
    /// How many of them have no block outside.
    whole: usize,
}

struct Shelf {
    chunk: Arc<Chunk>,
    blocks: Vec<Block>,
}

impl Shelf {
    /// Whether none of its blocks is outside.
    fn is_whole(&self, block_bytes: usize) -> bool {
        self.blocks.len() * block_bytes == self.chunk.carved_bytes()
    }

    /// Whether there is nothing left to take.
    fn is_exhausted(&self, block_bytes: usize) -> bool {
        let room = self.chunk.len_bytes() - self.chunk.carved_bytes();
        self.blocks.is_empty() && room < block_bytes
    }
}

impl Class {
    pub(super) fn new(block_bytes: usize) -> Self {
        let ready = ArrayQueue::new((QUEUE_BYTES / block_bytes).clamp(1, QUEUE_BLOCKS));
        Self { block_bytes, ready, depot: Mutex::default() }
    }

    /// A block of this class, out of a new chunk if need be.
    #[inline]
    pub(super) fn take(&self, counters: &Counters) -> std::io::Result<Block> {
        match self.ready.pop() {
            Some(block) => Ok(block),
            None => self.take_from_depot(counters),
        }
    }

    #[cold]
    fn take_from_depot(&self, counters: &Counters) -> std::io::Result<Block> {
        let mut depot = self.depot.lock();
        if let Some(block) = depot.take(self.block_bytes) {
            return Ok(block);
        }
        let chunk = Chunk::map(self.block_bytes.max(CHUNK_BYTES))?;
        counters.mapped(chunk.len_bytes());
        depot.chunks.insert(chunk.span().addr, Shelf { chunk, blocks: Vec::new() });
        depot.whole += 1;
        // A chunk has room for one block at least.
        depot.take(self.block_bytes).ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// Takes back a block that this class gave.
    #[inline]
    pub(super) fn put(&self, block: Block, counters: &Counters) {
        if let Err(block) = self.ready.push(block) {
            self.put_into_depot(block, counters);
        }
    }

    #[cold]
    fn put_into_depot(&self, block: Block, counters: &Counters) {
        let kept = KEPT_BYTES / self.block_bytes.max(CHUNK_BYTES);
        let unneeded = self.depot.lock().put(block, self.block_bytes, kept);
        // Unregistered and unmapped after the lock was given back.
        if let Some(shelf) = unneeded {
            counters.unmapped(shelf.chunk.len_bytes());
        }
    }
}

impl Depot {
    fn take(&mut self, block_bytes: usize) -> Option<Block> {
        let mut first = self.chunks.first_entry()?;
        let shelf = first.get_mut();
        let was_whole = shelf.is_whole(block_bytes);
        let block = shelf.blocks.pop().or_else(|| shelf.chunk.carve(block_bytes))?;
        if shelf.is_exhausted(block_bytes) {
            first.remove();
        }
        self.whole -= usize::from(was_whole);
        Some(block)
    }

    /// Puts it with its like; returns its chunk if that is now whole and one too many.
    fn put(&mut self, block: Block, block_bytes: usize, kept: usize) -> Option<Shelf> {
        let chunk = block.chunk();
        let addr = chunk.span().addr;
        let new = || Shelf { chunk: Arc::clone(chunk), blocks: Vec::new() };
        let shelf = self.chunks.entry(addr).or_insert_with(new);
        shelf.blocks.push(block);
        if !shelf.is_whole(block_bytes) {
            return None;
        }
        if self.whole >= kept {
            return self.chunks.remove(&addr);
        }
        self.whole += 1;
        None
    }
}
