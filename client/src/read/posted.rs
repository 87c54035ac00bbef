//! The first step of a GET where a READ is a round trip, for a thread that waits itself: one READ
//! brings the entry, and one before it the bucket if that is not cached. Without the lookup's
//! futures and copies, which over a fast network take as long as the network. What it cannot decide
//! is left to [`super::lookup`].

use std::sync::Arc;

use onesided_fabric::{Buffer, Caps};
use onesided_protocol::LogAddr;
use onesided_protocol::layout::entry::{EntryHeader, first_read_bytes, judge_plain};
use onesided_protocol::layout::line::{BUCKET_BYTES, LINE_BYTES};
use onesided_protocol::layout::size_class;

use super::bucket::any_match;
use super::io::{Io, clamp};
use super::lookup::{Expired, bytes_of};
use super::view::TableView;
use crate::core::{Connection, Deadline};
use crate::room::{Room, SHORT_LINES};
use crate::stats::Counter;
use crate::table::Own;
use crate::value::{Meta, Value};

/// Where a thread READs to is at least so long, and kept for its next GET, sooner than the pool
/// could find one, if it is at most so long.
const LANDING_BYTES: usize = 1024;
const LANDING_MAX_BYTES: usize = 4096;

/// The value of `key`, if its bucket and the entry say so at first sight. `io` is of
/// `connection`. `by`: as of [`Connection::read_blocking`].
#[inline(never)]
pub(super) fn get(
    connection: &Arc<Connection>,
    io: &Io<'_>,
    view: &TableView,
    own: &mut Own,
    key: &[u8],
    by: &mut Option<Deadline>,
) -> Option<Value> {
    let Caps { one_sided: true, reads_now: false, .. } = connection.caps() else { return None };
    if own.sampler.is_due() {
        own.sampler.begin();
    }
    let hash = view.hash(key);
    let map = view.map()?;
    let place = map.place(hash)?;
    let slot = match map.cache.get(place.directory_index, place.bucket, place.addr) {
        Some(bucket) => {
            own.shard.add(Counter::CacheHits, 1);
            any_match(&bucket, hash)?
        }
        None => {
            let read = read(connection, io, own, (place.addr, BUCKET_BYTES), by)?;
            let bucket = read.words().first_chunk()?;
            map.cache.put(place.directory_index, place.bucket, place.addr, bucket);
            any_match(bucket, hash)?
        }
    };
    let addr = slot.addr()?;
    let len_bytes = first_read_bytes(size_class::bytes(slot.class()), key.len());
    let entry = read(connection, io, own, (addr, len_bytes), by)?;
    let header = judge_plain(&view.sums, addr, entry, key)?;
    if io.expired(header.expiry_s) != Expired::No {
        return None;
    }
    let value = value(entry, &header);
    if entry.capacity_bytes() > LANDING_MAX_BYTES {
        own.landing = Buffer::default();
    }
    own.shard.add(Counter::Gets, 1);
    own.shard.add(Counter::OneSidedHits, 1);
    own.end_sample(Some(hash));
    Some(value)
}

/// READs up to `len_bytes` at `addr` to where this thread READs everything.
fn read<'o>(
    connection: &Arc<Connection>,
    io: &Io<'_>,
    own: &'o mut Own,
    (addr, len_bytes): (LogAddr, usize),
    by: &mut Option<Deadline>,
) -> Option<&'o Buffer> {
    let (remote, len_bytes) = clamp(addr, len_bytes, io.regions.len_bytes(addr.region()))?;
    let Own { shard, landing, .. } = own;
    if landing.capacity_bytes() < len_bytes {
        *landing = connection.shared().pool.get(len_bytes.max(LANDING_BYTES));
    }
    landing.set_len(len_bytes);
    shard.add(Counter::RoundTrips, 1);
    shard.add(Counter::Reads, 1);
    shard.add(Counter::ReadBytes, len_bytes as u64);
    connection.read_blocking(remote, landing, by).then_some(landing)
}

/// A copy: the buffer is memory that a device knows, which is scarce.
#[inline]
fn value(entry: &[u8], header: &EntryHeader) -> Value {
    if entry.len() > SHORT_LINES * LINE_BYTES {
        return Value::new(bytes_of(entry, header).to_vec(), Meta::of(header));
    }
    let mut room = Room::take();
    if let Some(body) = room.body_mut() {
        let lines = body.lines.as_flattened_mut().as_flattened_mut();
        lines[..entry.len()].copy_from_slice(entry);
    }
    Value::in_room(room)
}
