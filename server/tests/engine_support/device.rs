//! A device that changes words and can fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use onesided_fabric::{Atomics, AtomicsError, CpuAtomics, Word};

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Done,
    /// Nothing was done.
    NotDone,
    /// It was done, and nobody was told.
    Unheard,
}

#[derive(Debug)]
pub(crate) struct Device(AtomicU8);

impl Device {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU8::new(Fate::Done as u8)))
    }

    pub(crate) fn set(&self, fate: Fate) {
        self.0.store(fate as u8, Ordering::Relaxed);
    }

    fn run(&self, act: impl FnOnce() -> Result<u64, AtomicsError>) -> Result<u64, AtomicsError> {
        let fate = self.0.load(Ordering::Relaxed);
        if fate == Fate::NotDone as u8 {
            return Err(AtomicsError::NotDone("it is away".to_owned()));
        }
        let done = act()?;
        if fate == Fate::Unheard as u8 {
            return Err(AtomicsError::Unknown("it said nothing".to_owned()));
        }
        Ok(done)
    }
}

impl Atomics for Device {
    fn compare_swap(&self, word: Word<'_>, expected: u64, new: u64) -> Result<u64, AtomicsError> {
        self.run(|| CpuAtomics.compare_swap(word, expected, new))
    }

    fn fetch_add(&self, word: Word<'_>, add: u64) -> Result<u64, AtomicsError> {
        self.run(|| CpuAtomics.fetch_add(word, add))
    }
}
