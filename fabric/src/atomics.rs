//! Read-modify-writes of words of this side's own memory that peers change, too.
//!
//! Most RDMA devices are atomic among their own operations only: between a device's CAS and the
//! processor's one of the two may be lost. So words that peers change over a device are changed by
//! their owner over the same device ([`crate::verbs::LoopbackAtomics`]), and those that peers
//! change by loads and stores are changed by the processor ([`CpuAtomics`]). An aligned word may be
//! loaded by the processor either way.

use std::fmt;
use std::sync::Arc;

use crate::mem::{AccessError, Memory};

/// An 8-byte word of this side's memory.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// Which memory.
    pub memory: &'a Arc<Memory>,
    /// Where in it; a multiple of 8.
    pub offset_bytes: usize,
}

/// How this side changes words that peers change, too. May be called by several threads.
pub trait Atomics: Send + Sync + fmt::Debug {
    /// If the word is `expected`, makes it `new`. `Ok` holds what was there before: it took effect
    /// if that equals `expected`. What was stored before is seen before it.
    ///
    /// # Errors
    /// See [`AtomicsError`].
    fn compare_swap(&self, word: Word<'_>, expected: u64, new: u64) -> Result<u64, AtomicsError>;

    /// Adds to the word, wrapping; gives what was there before.
    ///
    /// # Errors
    /// See [`AtomicsError`].
    fn fetch_add(&self, word: Word<'_>, add: u64) -> Result<u64, AtomicsError>;
}

/// Why a word was not changed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum AtomicsError {
    /// The word is outside, misaligned or read-only: nothing was done.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The device could not be asked: nothing was done.
    #[error("the RDMA device that changes such words cannot be used: {0}")]
    NotDone(String),
    /// The device was asked and did not say what came of it. It does nothing more about it.
    #[error("the RDMA device did not say whether it changed the word: {0}")]
    Unknown(String),
}

/// The processor's own: where peers change words by it, too, or nobody else does.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuAtomics;

impl Atomics for CpuAtomics {
    fn compare_swap(&self, word: Word<'_>, expected: u64, new: u64) -> Result<u64, AtomicsError> {
        Ok(word.memory.compare_swap(word.offset_bytes, expected, new)?)
    }

    fn fetch_add(&self, word: Word<'_>, add: u64) -> Result<u64, AtomicsError> {
        Ok(word.memory.fetch_add(word.offset_bytes, add)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_swaps_adds_and_refuses() {
        let memory = Arc::new(Memory::private(4096).expect("memory"));
        let at = |offset_bytes| Word { memory: &memory, offset_bytes };
        let atomics: &dyn Atomics = &CpuAtomics;
        assert_eq!(atomics.fetch_add(at(8), 5).expect("inside"), 0);
        assert_eq!(atomics.fetch_add(at(8), 3_u64.wrapping_neg()).expect("inside"), 5);
        assert_eq!(atomics.compare_swap(at(8), 1, 9).expect("inside"), 2, "not what was expected");
        assert_eq!(atomics.compare_swap(at(8), 2, 9).expect("inside"), 2);
        assert_eq!(memory.load(8), Ok(9));
        for wrong in [4, 4096] {
            let refused = atomics.fetch_add(at(wrong), 1);
            assert!(matches!(refused, Err(AtomicsError::Access(_))), "{refused:?}");
        }
    }
}
