//! Space for index segments and directories, cut from metadata blocks and kept by length when
//! given back.

use std::collections::{BTreeMap, BTreeSet};

use onesided_protocol::LogAddr;
use onesided_protocol::layout::addr::UNIT_BYTES;
use onesided_protocol::layout::line::LINE_BYTES;
use onesided_protocol::rpc::RpcError;
use parking_lot::Mutex;

use super::block::Use;
use super::memory::Pool;
use super::room::{Need, Wanted};

/// What is taken from the pool at a time, if there is room: 15 index segments, with 4 KiB left.
const CHUNK_BYTES: usize = 1 << 20;
/// Small pools are not cut up in so large pieces: at most this part of one at a time.
const CHUNK_PART: usize = 64;

/// Where index segments and directories come from. 64-byte aligned: a line is a cache line.
#[derive(Default)]
pub(super) struct Meta {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What is left of the block that is being cut up.
    rest: Option<(LogAddr, usize)>,
    /// Given back, by length.
    free: BTreeMap<usize, BTreeSet<LogAddr>>,
    /// What was taken from the pool, by its address.
    chunks: BTreeMap<LogAddr, Chunk>,
    used_bytes: usize,
}

struct Chunk {
    len_bytes: usize,
    used_bytes: usize,
}

fn plus(addr: LogAddr, bytes: usize) -> LogAddr {
    LogAddr::new(addr.region(), addr.offset_bytes() + bytes)
}

/// Bytes that a piece of this length takes.
pub(super) const fn piece_bytes(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(LINE_BYTES)
}

/// A chunk that holds as many such pieces as there is room for, at least one; and its bytes.
fn take_chunk(pool: &Pool, piece_bytes: usize, owner: u32) -> Result<(LogAddr, usize), RpcError> {
    let pieces = CHUNK_BYTES.min(pool.limit_bytes() / CHUNK_PART) / piece_bytes;
    let take = |pieces: usize| {
        let len_bytes = (pieces * piece_bytes).next_multiple_of(pool.block_bytes());
        let wanted = Wanted::to_read(owner, len_bytes, Need::Grow);
        Ok((pool.take(wanted, Use::Meta, 0)?, len_bytes))
    };
    if pieces > 1
        && let Ok(chunk) = take(pieces)
    {
        return Ok(chunk);
    }
    take(1)
}

impl Meta {
    /// Takes a piece for a table; its bytes are whatever was there before.
    pub(super) fn take(
        &self,
        pool: &Pool,
        len_bytes: usize,
        owner: u32,
    ) -> Result<LogAddr, RpcError> {
        const { assert!(LINE_BYTES.is_multiple_of(UNIT_BYTES)) };
        let len_bytes = piece_bytes(len_bytes);
        let mut state = self.state.lock();
        let addr = match state.reuse(len_bytes) {
            Some(addr) => addr,
            None => {
                let (addr, chunk_bytes) = take_chunk(pool, len_bytes, owner)?;
                state.chunks.insert(addr, Chunk { len_bytes: chunk_bytes, used_bytes: 0 });
                state.keep(addr, len_bytes, chunk_bytes);
                addr
            }
        };
        state.used_bytes += len_bytes;
        if let Some((_, chunk)) = state.chunk_of(addr) {
            chunk.used_bytes += len_bytes;
        }
        Ok(addr)
    }

    /// Gives a piece back. Nobody may look at it any more. Blocks without a piece in use are
    /// free for logs again.
    pub(super) fn give(&self, pool: &Pool, addr: LogAddr, len_bytes: usize) {
        let len_bytes = piece_bytes(len_bytes);
        let mut state = self.state.lock();
        state.used_bytes -= len_bytes;
        state.free.entry(len_bytes).or_default().insert(addr);
        let Some((start, chunk)) = state.chunk_of(addr) else { return };
        chunk.used_bytes -= len_bytes;
        if chunk.used_bytes == 0 {
            let end = plus(start, chunk.len_bytes - LINE_BYTES);
            state.forget(start, end);
            pool.give(start);
        }
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.state.lock().used_bytes
    }
}

impl State {
    fn reuse(&mut self, len_bytes: usize) -> Option<LogAddr> {
        if let Some(addr) = self.free.get_mut(&len_bytes).and_then(BTreeSet::pop_first) {
            return Some(addr);
        }
        let (addr, left) = self.rest?;
        let left = left.checked_sub(len_bytes)?;
        self.rest = (left > 0).then(|| (plus(addr, len_bytes), left));
        Some(addr)
    }

    /// Keeps the longer of two rests; the other serves directories of its length.
    fn keep(&mut self, addr: LogAddr, len_bytes: usize, chunk_bytes: usize) {
        if chunk_bytes == len_bytes {
            return;
        }
        let new = (plus(addr, len_bytes), chunk_bytes - len_bytes);
        let (keep, spare) = match self.rest {
            Some(old) if old.1 > new.1 => (old, Some(new)),
            old => (new, old),
        };
        self.rest = Some(keep);
        if let Some((addr, len_bytes)) = spare {
            self.free.entry(len_bytes).or_default().insert(addr);
        }
    }

    /// The chunk that a piece was cut from.
    fn chunk_of(&mut self, addr: LogAddr) -> Option<(LogAddr, &mut Chunk)> {
        self.chunks.range_mut(..=addr).next_back().map(|(&start, chunk)| (start, chunk))
    }

    /// Forgets a chunk, from its first to its last line, and what was free in it.
    fn forget(&mut self, start: LogAddr, last: LogAddr) {
        self.chunks.remove(&start);
        self.rest = self.rest.filter(|(rest, _)| !(start..=last).contains(rest));
        for free in self.free.values_mut() {
            while let Some(&piece) = free.range(start..=last).next() {
                free.remove(&piece);
            }
        }
    }
}
