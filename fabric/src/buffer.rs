//! Buffers that work requests own: pooled, 8-byte aligned, recycled on drop.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use zerocopy::IntoBytes;

/// Size classes are powers of two from 64 bytes to 64 MiB.
const CLASSES: usize = 21;
const SMALLEST_BYTES: usize = 64;
/// Bytes that one class keeps for reuse at most.
const KEPT_BYTES: usize = 8 << 20;

/// A pool of [`Buffer`]s. Cloning shares it.
#[derive(Clone, Debug)]
pub struct BufferPool {
    classes: Arc<[ArrayQueue<Vec<u64>>; CLASSES]>,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self::new()
    }
}

impl BufferPool {
    /// An empty pool: buffers are made on demand and kept when dropped, a bounded number each.
    #[must_use]
    pub fn new() -> Self {
        let class = |c: usize| ArrayQueue::new((KEPT_BYTES / (SMALLEST_BYTES << c)).clamp(1, 1024));
        Self { classes: Arc::new(std::array::from_fn(class)) }
    }

    /// A buffer of `len_bytes`; its contents are whatever was there before.
    #[must_use]
    pub fn get(&self, len_bytes: usize) -> Buffer {
        let class = class_of(len_bytes);
        let words = len_bytes.div_ceil(8);
        let mut store = match self.classes.get(class) {
            Some(queue) => queue.pop().unwrap_or_default(),
            None => Vec::new(),
        };
        if store.len() < words {
            store.resize(words.max(SMALLEST_BYTES << class.min(CLASSES - 1) >> 3), 0);
        }
        Buffer { words: store, len_bytes, pool: Some(self.clone()) }
    }

    /// A buffer holding a copy of `bytes`.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.get(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn put_back(&self, words: Vec<u64>) {
        let bytes = words.len() * 8;
        if bytes < SMALLEST_BYTES {
            return;
        }
        // The class whose size this store certainly covers.
        let class = (bytes / SMALLEST_BYTES).ilog2() as usize;
        if let Some(queue) = self.classes.get(class) {
            // A full class frees the store: the pool is bounded.
            let _full = queue.push(words);
        }
    }
}

fn class_of(len_bytes: usize) -> usize {
    len_bytes.div_ceil(SMALLEST_BYTES).max(1).next_power_of_two().ilog2() as usize
}

/// Bytes that belong to whoever holds this; returned to the pool when dropped.
#[derive(Debug, Default)]
pub struct Buffer {
    words: Vec<u64>,
    len_bytes: usize,
    pool: Option<BufferPool>,
}

impl Buffer {
    /// Shortens or lengthens it within what it can hold, `capacity_bytes` at most.
    ///
    /// # Panics
    /// If `len_bytes` is beyond the capacity.
    pub fn set_len(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.capacity_bytes(), "a buffer does not grow");
        self.len_bytes = len_bytes;
    }

    /// How long it can be made.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Its 8-byte words, the last one possibly beyond `len()`.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.len_bytes.div_ceil(8)]
    }

    /// Its 8-byte words, the last one possibly beyond `len()`.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words[..self.len_bytes.div_ceil(8)]
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.words.as_slice().as_bytes()[..self.len_bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.words.as_mut_slice().as_mut_bytes()[..self.len_bytes]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put_back(std::mem::take(&mut self.words));
        }
    }
}
