//! Keys of an ordered table, as many as one message takes.

use std::ops::Range;

use onesided_protocol::layout::slot::Slot;
use onesided_protocol::limits::SCAN_KEYS_MAX;
use onesided_protocol::rpc::{Answer, ErrorCode, KeyAt, Op, Reply, RpcError};

use super::{Call, Scratch};
use crate::engine::ScanRange;

/// Bytes of an answer that are no key: id, kind, whether there are more, and count.
const HEAD_BYTES: usize = 8 + 1 + 1 + 4;
/// A key's length and its slot.
const KEY_OVERHEAD_BYTES: usize = 4 + 8;
/// Most that one answer takes where messages may be long: a scan is not to keep others waiting.
const PAGE_BYTES: usize = 64 << 10;

/// The keys of one answer; their bytes lie in the arena.
#[derive(Default)]
struct Page {
    keys: Vec<(Range<usize>, Slot)>,
    /// A key that no message takes: its length.
    too_long: Option<usize>,
}

impl Call<'_> {
    /// Executes a scan and encodes its answer.
    pub(super) fn answer_scan(
        &self,
        id: u64,
        op: &Op<'_>,
        range: ScanRange<'_>,
        limit: usize,
        scratch: &mut Scratch,
    ) {
        let Scratch { arena, encoded, .. } = scratch;
        arena.clear();
        let max_bytes = self.peer.caps.max_message_bytes;
        let result = self.page(range, limit, max_bytes, arena);
        let result = result.as_ref().map_err(Clone::clone).map(|(page, more)| {
            let key = |(range, slot): &(Range<usize>, Slot)| KeyAt {
                key: arena.get(range.clone()).unwrap_or_default(),
                slot: slot.0,
            };
            Reply::Keys { keys: page.keys.iter().map(key).collect(), more: *more }
        });
        self.dispatcher.shard.count(op, result.as_ref());
        Answer { id, result }.encode(encoded);
    }

    /// The next keys, and whether others may follow.
    fn page(
        &self,
        range: ScanRange<'_>,
        limit: usize,
        max_bytes: usize,
        arena: &mut Vec<u8>,
    ) -> Result<(Page, bool), RpcError> {
        let limit = limit.min(SCAN_KEYS_MAX);
        let mut page = Page::default();
        let mut len_bytes = HEAD_BYTES;
        let ended = self.table()?.scan(range, |key, slot| {
            len_bytes += KEY_OVERHEAD_BYTES + key.len();
            let is_first = page.keys.is_empty();
            if len_bytes > max_bytes || len_bytes > PAGE_BYTES && !is_first {
                page.too_long = is_first.then_some(key.len());
                return false;
            }
            let start = arena.len();
            arena.extend_from_slice(key);
            page.keys.push((start..arena.len(), slot));
            page.keys.len() < limit
        })?;
        match page.too_long {
            None => Ok((page, !ended)),
            Some(len) => {
                let kind = self.peer.caps.kind;
                let text = format!(
                    "the next key has {len} bytes, and {kind} carries messages of {max_bytes}: \
                     scan over tcp"
                );
                Err(RpcError::new(ErrorCode::TooLarge, text))
            }
        }
    }
}
