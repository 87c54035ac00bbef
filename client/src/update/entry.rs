//! The bytes of an entry that replaces another one.

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::layout::entry::{EntryHeader, is_large, padded_bytes};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::state::State;
use onesided_protocol::limits::KEY_MAX_BYTES;
use onesided_protocol::rules::{Rule, holds};

use super::Put;

/// Longer ones go by RPC: leases begin with a block.
const LEN_MAX_BYTES: usize = 64 << 10;

/// Bytes that the entry takes.
pub(super) fn len_bytes(key: &[u8], value: &[u8]) -> usize {
    padded_bytes(key.len(), value.len())
}

/// Whether such an entry may be written one-sidedly: not a large one.
pub(super) fn fits(key: &[u8], value: &[u8]) -> bool {
    let is_short = key.len() <= KEY_MAX_BYTES && !is_large(value.len());
    is_short && len_bytes(key, value) <= LEN_MAX_BYTES
}

/// The words that say what an entry is.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) pending: u64,
    pub(super) committed: u64,
    /// What the entry before it becomes.
    pub(super) forward: u64,
}

/// Lays out a pending entry for `addr`; `bytes` has its length.
pub(super) fn lay_out(
    bytes: &mut [u8],
    put: &Put<'_>,
    version: u64,
    addr: LogAddr,
    sums: &ChecksumKey,
) -> Words {
    let header = EntryHeader {
        version,
        value_len: put.value.len() as u32,
        key_len: put.key.len() as u16,
        flags: 0,
        expiry_s: put.expiry_s,
        user_flags: put.options.user_flags,
    };
    for (word, to) in
        header.to_words().into_iter().zip(bytes.as_chunks_mut::<8>().0[1..].iter_mut())
    {
        *to = word.to_le_bytes();
    }
    let (start, end) = (header.value_offset(), header.len_bytes());
    bytes[header.key_offset()..start].copy_from_slice(put.key);
    bytes[start..end].copy_from_slice(put.value);
    bytes[end..].fill(0);
    let checksum = sums.checksum(addr, bytes);
    let (pending, committed) = (State::pending(checksum), State::committed(checksum));
    let first = if holds(Rule::Pending) { pending } else { committed };
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    let class = size_class::of(header.padded_bytes());
    Words { pending, committed, forward: State::forwarded(class, addr) }
}
