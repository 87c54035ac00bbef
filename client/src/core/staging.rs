//! Memory shared with the server for values that do not fit into a message: one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onesided_fabric::{AttachError, Endpoint, Memory};
use onesided_protocol::rpc::{Landing, Payload};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::lends::Lent;
use super::time::{Deadline, Ticker, TimedOut};
use crate::error::Error;

/// Longer uses give their pages back afterwards.
const KEEP_PAGES_BYTES: usize = 256 << 10;

/// The staging memory of one connection.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Arc<Memory>,
    turn: Arc<Mutex<()>>,
    /// The server can address it.
    is_lent: AtomicBool,
}

/// What the server may READ or WRITE until the answer to a request is there: it goes with the
/// request, also when nobody waits for the answer any more.
#[derive(Debug)]
pub(crate) enum Keep {
    /// The staging memory.
    Staging(Turn),
    /// A buffer of the caller's.
    Lent { _lent: Lent },
}

/// The right to use the staging memory.
#[derive(Debug)]
pub(crate) struct Turn {
    memory: Arc<Memory>,
    used_bytes: usize,
    _turn: OwnedMutexGuard<()>,
}

impl Staging {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, turn: Arc::default(), is_lent: AtomicBool::new(false) }
    }

    /// Makes it addressable to the server, before its first use: on some fabrics that takes memory
    /// that cannot be swapped, which who has only small values never needs.
    pub(crate) fn lend(&self, endpoint: &dyn Endpoint) -> Result<(), AttachError> {
        if !self.is_lent.load(Ordering::Acquire) {
            endpoint.lend(&self.memory)?;
            self.is_lent.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) async fn take(&self, ticker: &Ticker, by: Deadline) -> Result<Turn, TimedOut> {
        let turn = match Arc::clone(&self.turn).try_lock_owned() {
            Ok(turn) => turn,
            Err(_busy) => ticker.timed(by, Arc::clone(&self.turn).lock_owned()).await?,
        };
        Ok(Turn { memory: Arc::clone(&self.memory), used_bytes: 0, _turn: turn })
    }
}

impl Turn {
    /// Copies a value in, and says where it is.
    pub(crate) fn store(&mut self, value: &[u8]) -> Result<Payload<'static>, Error> {
        self.memory.write_bytes(0, value)?;
        self.used_bytes = value.len();
        Ok(Payload::Staged { offset_bytes: 0, len_bytes: value.len() as u32 })
    }

    /// All of the memory, for an answer.
    pub(crate) fn landing(&mut self) -> Landing {
        let len_bytes = u32::try_from(self.memory.len_bytes()).unwrap_or(u32::MAX);
        Landing { offset_bytes: 0, len_bytes }
    }

    /// Copies what the server wrote.
    pub(crate) fn load(&mut self, offset_bytes: u64, len_bytes: u32) -> Result<Vec<u8>, Error> {
        let offset = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let len = len_bytes as usize;
        if offset.checked_add(len).is_none_or(|end| end > self.memory.len_bytes()) {
            return Err(Error::BadAnswer("a value outside the staging memory"));
        }
        let mut value = vec![0; len];
        self.memory.read_bytes(offset, &mut value)?;
        self.used_bytes = self.used_bytes.max(offset + len);
        Ok(value)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.used_bytes > KEEP_PAGES_BYTES
            && let Err(error) = self.memory.release(0, self.used_bytes)
        {
            tracing::debug!(%error, "staging pages stay in use until the session ends");
        }
    }
}
