//! All keys of a table, by READing its index and entries: what `dump` needs before there is a
//! scan. A key that is there during the whole walk is met exactly once; one that comes or goes
//! meanwhile may or may not be.
//!
//! The walk goes through the hash space in order, segment by segment. Keys move between segments
//! only by splits, and a segment counts only if no split touched it from the first look to the
//! last, so that no key can slip from what is still ahead to what is behind.

use onesided_fabric::RemoteAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::{
    EntryHeader, HEADER_BYTES, Verdict, first_read_bytes, judge,
};
use onesided_protocol::layout::line::{INDEX_SEGMENT_BYTES, LINE_WORDS, LineHeader};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::limits::HOPS_MAX;
use zerocopy::IntoBytes;

use super::io::Io;
use super::lookup::Expired;
use super::view::{Refreshed, TableView};
use crate::error::Error;

/// Looks at one segment before giving up: a split takes about a millisecond, a look as long.
const SEGMENT_LOOKS_MAX: u32 = 1_000;
/// Looks at one slot before the whole segment is looked at again.
const SLOT_LOOKS_MAX: u32 = 100;

/// All keys; `None`: the table is gone.
pub(crate) async fn keys(io: &Io<'_>, view: &TableView) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let mut keys = Vec::new();
    let mut prefix = 0u64;
    while let Ok(next) = u32::try_from(prefix) {
        let hash = KeyHash(u64::from(next) << 32);
        // A large table's walk takes longer than any operation: a segment is one.
        let by = io.connection.read_deadline();
        let io = &Io { by: Some(&by), ..*io };
        let Some((depth, mut found)) = segment(io, view, hash).await? else { return Ok(None) };
        keys.append(&mut found);
        prefix += 1 << (32 - u32::from(depth.min(32)));
    }
    Ok(Some(keys))
}

/// The keys of the segment that serves a hash, and its depth.
async fn segment(
    io: &Io<'_>,
    view: &TableView,
    hash: KeyHash,
) -> Result<Option<(u8, Vec<Vec<u8>>)>, Error> {
    for look in 0..SEGMENT_LOOKS_MAX {
        if look > 0 {
            tokio::task::yield_now().await;
        }
        if view.refresh(io, hash).await? == Refreshed::TableGone {
            return Ok(None);
        }
        let Some(place) = view.map().and_then(|map| map.place(hash)) else { continue };
        let Some((remote, len)) = io.place(place.segment, INDEX_SEGMENT_BYTES).await? else {
            continue;
        };
        if len < INDEX_SEGMENT_BYTES {
            continue;
        }
        let lines = io.read_at(remote, len).await?;
        let header = LineHeader(lines[0]);
        if header.in_progress() || !header.covers(hash.prefix()) {
            continue;
        }
        let Some(keys) = keys_of(io, view, remote, &lines).await? else { continue };
        let again = io.read_at(remote, 8).await?;
        // A split bumps every line's version, this one's too.
        let same = LineHeader(again[0]).version() == header.version();
        if same && io.connection.endpoint().is_fenced() {
            return Err(io.connection.lost_error());
        }
        if same {
            return Ok(Some((header.depth(), keys)));
        }
    }
    Err(Error::BadAnswer("a segment of the index was split again and again"))
}

/// The keys that the slots of a segment's lines lead to; `None`: look at all of it again.
async fn keys_of(
    io: &Io<'_>,
    view: &TableView,
    segment: RemoteAddr,
    lines: &[u64],
) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let mut keys = Vec::new();
    for (index, &word) in lines.iter().enumerate() {
        if index % LINE_WORDS == 0 || Slot(word).is_empty() {
            continue;
        }
        let at = RemoteAddr { offset_bytes: segment.offset_bytes + index as u64 * 8, ..segment };
        match key_at(io, view, at, Slot(word)).await? {
            Met::Key(key) => keys.push(key),
            Met::Nothing => {}
            Met::Unsettled => return Ok(None),
        }
    }
    Ok(Some(keys))
}

/// What a slot leads to.
enum Met {
    Key(Vec<u8>),
    Nothing,
    Unsettled,
}

/// Follows a slot, READing it again as long as its key is being replaced.
async fn key_at(
    io: &Io<'_>,
    view: &TableView,
    at: RemoteAddr,
    mut slot: Slot,
) -> Result<Met, Error> {
    for _ in 0..SLOT_LOOKS_MAX {
        if slot.is_empty() {
            return Ok(Met::Nothing);
        }
        if let Some(met) = entry_key(io, view, slot).await? {
            return Ok(met);
        }
        slot = Slot(io.read_at(at, 8).await?[0]);
    }
    Ok(Met::Unsettled)
}

/// The key of a slot's entry, or of the one that replaced it; `None`: look at the slot again.
async fn entry_key(io: &Io<'_>, view: &TableView, slot: Slot) -> Result<Option<Met>, Error> {
    let (mut class, mut next) = (slot.class(), slot.addr());
    for _ in 0..=HOPS_MAX {
        let Some(addr) = next else { break };
        let Some(head) = io.read(addr, HEADER_BYTES).await? else { break };
        let Some(&[_, header @ ..]) = head.first_chunk::<4>() else { break };
        let header = EntryHeader::from_words(header);
        let len = first_read_bytes(size_class::bytes(class), usize::from(header.key_len));
        let Some(words) = io.read(addr, len).await? else { break };
        let Some(key) = words.as_bytes().get(header.key_offset()..header.value_offset()) else {
            break;
        };
        match judge(&view.sums, addr, words.as_bytes(), key) {
            Verdict::Hit(header) | Verdict::Large { header, .. } => {
                if io.expired(header.expiry_s) != Expired::Yes {
                    return Ok(Some(Met::Key(key.to_vec())));
                }
                // Replaced in time, after it was READ, it does not count: look again.
                let again = io.read(addr, HEADER_BYTES).await?;
                let same = again.is_some_and(|again| again.first() == words.first());
                return Ok(same.then_some(Met::Nothing));
            }
            Verdict::Forwarded(of, to) => (class, next) = (of, Some(to)),
            Verdict::OtherKey | Verdict::Dead | Verdict::Unproven => break,
        }
    }
    Ok(None)
}
