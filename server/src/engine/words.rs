//! Words that clients change one-sidedly: the server changes them only as its clients do
//! ([`onesided_fabric::Atomics`]).

use std::sync::Arc;

use onesided_fabric::{Atomics, AtomicsError, CpuAtomics, Word};
use onesided_protocol::LogAddr;
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::RwLock;

use super::{Engine, Shared};

/// How such words are changed now.
pub(super) struct Words(RwLock<Arc<dyn Atomics>>);

impl Default for Words {
    fn default() -> Self {
        Self(RwLock::new(Arc::new(CpuAtomics)))
    }
}

fn failed(error: &AtomicsError) -> RpcError {
    match error {
        AtomicsError::Unknown(_) => {
            tracing::error!(%error, "a word that clients change may have been changed");
            RpcError::new(ErrorCode::OutcomeUnknown, format!("{error}; it may have been changed"))
        }
        AtomicsError::NotDone(_) | AtomicsError::Access(_) => not_done(error),
    }
}

fn not_done(error: &AtomicsError) -> RpcError {
    tracing::error!(%error, "a word that clients change could not be changed");
    let text = format!("{error}; nothing was changed: try again, or look into the server's log");
    RpcError::new(ErrorCode::Internal, text)
}

impl Shared {
    /// If the word at `addr` is `expected`, makes it `new`; gives what was there before.
    ///
    /// # Errors
    /// `Internal`, `OutcomeUnknown`: the device that changes such words failed.
    pub(super) fn compare_swap(
        &self,
        addr: LogAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, RpcError> {
        self.try_swap(addr, expected, new).map_err(|error| failed(&error))
    }

    fn try_swap(&self, addr: LogAddr, expected: u64, new: u64) -> Result<u64, AtomicsError> {
        let atomics = Arc::clone(&self.words.0.read());
        atomics.compare_swap(self.word(addr), expected, new)
    }

    /// As [`Self::compare_swap`]; whether it took effect. `new` is no word that anybody else would
    /// put there.
    ///
    /// # Errors
    /// `Internal`: the device failed, and nothing was changed.
    pub(super) fn swap(&self, addr: LogAddr, expected: u64, new: u64) -> Result<bool, RpcError> {
        match self.try_swap(addr, expected, new) {
            Ok(found) => Ok(found == expected),
            // The device failed: what it was told before is done or never will be.
            Err(_) if self.pool.at(addr).load() == new => Ok(true),
            Err(error) => Err(not_done(&error)),
        }
    }

    /// Adds to the word at `addr`, wrapping; gives what was there before.
    ///
    /// # Errors
    /// As [`Self::compare_swap`].
    pub(super) fn fetch_add(&self, addr: LogAddr, add: u64) -> Result<u64, RpcError> {
        let atomics = Arc::clone(&self.words.0.read());
        atomics.fetch_add(self.word(addr), add).map_err(|error| failed(&error))
    }

    fn word(&self, addr: LogAddr) -> Word<'_> {
        Word { memory: self.pool.memory_at(addr), offset_bytes: addr.offset_bytes() }
    }
}

impl Engine {
    /// From now on words that clients change one-sidedly (counters, and entries of tables of mode
    /// `cas`) are changed like this; until then by the processor. No client may change any while
    /// it is called: before they connect, or when the device that they came over is gone.
    pub fn set_atomics(&self, atomics: Arc<dyn Atomics>) {
        *self.shared.words.0.write() = atomics;
    }
}
