//! The fast path where a READ is a load (shm): bucket, entry, judgement, in the caller's own
//! instruction stream. What it cannot decide at first sight is left to [`super::lookup`].
//!
//! It counts what stands between two cache misses: batches prefetch, and a single GET keeps few
//! enough instructions that the processor overlaps the misses of the next one with its own.

use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::{Verdict, first_read_bytes, judge};
use onesided_protocol::layout::line::{BUCKET_BYTES, BUCKET_WORDS, LINE_WORDS};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use zerocopy::IntoBytes;

use super::bucket::matching;
use super::io::{Io, clamp};
use super::lookup::{Expired, value_of};
use super::view::{IndexMap, Place, TableView};
use crate::value::Value;

/// The value of `key`, if its bucket and entry say so at first sight.
#[inline]
pub(crate) fn get_now(io: &Io<'_>, view: &TableView, key: &[u8]) -> Option<Value> {
    let map = view.map()?;
    let hash = view.hash(key);
    let place = map.place(hash)?;
    let bucket = bucket_now(io, map, place)?;
    let (value, read_bytes) =
        slots(&bucket, hash).find_map(|slot| entry_now(io, view, slot, key))?;
    io.connection.stats().fast_get(read_bytes as u64 + BUCKET_BYTES as u64);
    Some(value)
}

/// Keys whose misses are overlapped by prefetching: as many as a core has line fill buffers for.
const GROUP: usize = 16;

/// As [`get_now`] for many keys: `found(i, value)` is called for those that it decides.
pub(crate) fn get_many_now<K: AsRef<[u8]>>(
    io: &Io<'_>,
    view: &TableView,
    keys: &[K],
    values: &mut [Option<Value>],
) {
    let Some(map) = view.map() else { return };
    for (keys, values) in keys.chunks(GROUP).zip(values.chunks_mut(GROUP)) {
        let mut places = [None; GROUP];
        for (place, key) in places.iter_mut().zip(keys) {
            let hash = view.hash(key.as_ref());
            *place = map.place(hash).map(|place| (hash, place));
            if let Some((_, at)) = place {
                prefetch(io, at.addr, BUCKET_BYTES);
            }
        }
        let (mut reads, mut read_bytes) = (0, 0);
        let mut found = [None; GROUP];
        for ((slot, place), key) in found.iter_mut().zip(places).zip(keys) {
            *slot = place.and_then(|(hash, place)| {
                let bucket = bucket_now(io, map, place)?;
                // More than one candidate is rare and left to the lookup.
                slots(&bucket, hash).next()
            });
            if let Some((addr, slot)) = slot.and_then(|slot| Some((slot.addr()?, slot))) {
                prefetch(
                    io,
                    addr,
                    first_read_bytes(size_class::bytes(slot.class()), key.as_ref().len()),
                );
            }
        }
        for ((value, slot), key) in values.iter_mut().zip(found).zip(keys) {
            let found = slot.and_then(|slot| entry_now(io, view, slot, key.as_ref()));
            *value = found.map(|(value, len_bytes)| {
                read_bytes += len_bytes + BUCKET_BYTES;
                reads += 2;
                value
            });
        }
        io.connection.stats().one_sided_read(reads, read_bytes as u64);
    }
}

pub(super) fn slots(
    bucket: &[u64; BUCKET_WORDS],
    hash: KeyHash,
) -> impl Iterator<Item = Slot> + '_ {
    matching(&bucket[1..LINE_WORDS], hash).chain(matching(&bucket[LINE_WORDS + 1..], hash))
}

#[inline]
fn bucket_now(io: &Io<'_>, map: &IndexMap, place: Place) -> Option<[u64; BUCKET_WORDS]> {
    if let Some(image) = map.cache.get(place.directory_index, place.bucket, place.addr) {
        io.connection.stats().cache_hit();
        return Some(image);
    }
    let mut image = [0; BUCKET_WORDS];
    read_now(io, place.addr, BUCKET_BYTES, |_| &mut image)?;
    map.cache.put(place.directory_index, place.bucket, place.addr, &image);
    Some(image)
}

#[inline]
fn entry_now(io: &Io<'_>, view: &TableView, slot: Slot, key: &[u8]) -> Option<(Value, usize)> {
    let addr = slot.addr()?;
    let len_bytes = first_read_bytes(size_class::bytes(slot.class()), key.len());
    let mut image = Vec::new();
    read_now(io, addr, len_bytes, |words| {
        image = vec![0; words];
        &mut image
    })?;
    match judge(view.info.secret, addr, image.as_bytes(), key) {
        Verdict::Hit(header) if io.expired(header.expiry_s) == Expired::No => {
            let read_bytes = image.len() * 8;
            Some((value_of(image, &header), read_bytes))
        }
        _ => None,
    }
}

/// A READ done at once into what `into` makes for a number of words; `None` if it must be left
/// to the lookup.
#[inline]
fn read_now<'b>(
    io: &Io<'_>,
    addr: LogAddr,
    len_bytes: usize,
    into: impl FnOnce(usize) -> &'b mut [u64],
) -> Option<()> {
    let (remote, len_bytes) = clamp(addr, len_bytes, io.regions.len_bytes(addr.region()))?;
    let into = into(len_bytes / 8);
    io.connection.endpoint().read_now(remote, into)?.ok()
}

#[inline]
fn prefetch(io: &Io<'_>, addr: LogAddr, len_bytes: usize) {
    let region_bytes = io.regions.len_bytes(addr.region());
    if let Some((remote, len_bytes)) = clamp(addr, len_bytes, region_bytes) {
        io.connection.endpoint().prefetch(remote, len_bytes);
    }
}
