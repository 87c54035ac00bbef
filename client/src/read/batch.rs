//! Many GETs at once: READs of all of them behind one doorbell.

use onesided_fabric::RemoteAddr;
use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::{Verdict, first_read_bytes, judge};
use onesided_protocol::layout::line::BUCKET_BYTES;
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;

use super::bucket::{Bucket, any_match};
use super::io::{Io, clamp};
use super::lookup::{Expired, bytes_of};
use super::view::{IndexMap, TableView};
use crate::error::Error;
use crate::stats::Counter;
use crate::value::{Meta, Value};

/// One READ of a doorbell: for which key, where, how much.
struct Wanted<T> {
    index: usize,
    what: T,
    remote: RemoteAddr,
    len_bytes: usize,
}

/// Fills in the values that two doorbells (buckets that are not cached, then entries) decide at
/// first sight; the others are left to the lookup.
pub(crate) async fn get_many_posted<K: AsRef<[u8]>>(
    io: &Io<'_>,
    view: &TableView,
    keys: &[K],
    values: &mut [Option<Value>],
) -> Result<(), Error> {
    let Some(map) = view.map() else { return Ok(()) };
    let mut slots: Vec<Option<Slot>> = vec![None; keys.len()];
    let mut missing = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let hash = view.hash(key.as_ref());
        let Some(place) = map.place(hash) else { continue };
        match Bucket::cached(map, place) {
            Some(bucket) => {
                io.counts.add(Counter::CacheHits, 1);
                slots[index] = bucket.candidates(hash).first().copied();
            }
            None => missing.extend(wanted(io, index, hash, place.addr, BUCKET_BYTES)),
        }
    }
    for (bucket, wanted) in read_all(io, missing).await? {
        slots[wanted.index] = keep(map, wanted.what, &bucket);
    }
    entries(io, view, keys, &slots, values).await
}

/// Fills in the values that one doorbell decides at first sight, given where the entries were; the
/// others are left to the lookup.
pub(crate) async fn entries_posted<K: AsRef<[u8]>>(
    io: &Io<'_>,
    view: &TableView,
    keys: &[K],
    slots: &[Slot],
    values: &mut [Option<Value>],
) -> Result<(), Error> {
    let slots: Vec<Option<Slot>> = slots.iter().copied().map(Some).collect();
    entries(io, view, keys, &slots, values).await
}

async fn entries<K: AsRef<[u8]>>(
    io: &Io<'_>,
    view: &TableView,
    keys: &[K],
    slots: &[Option<Slot>],
    values: &mut [Option<Value>],
) -> Result<(), Error> {
    let entries = slots.iter().enumerate().filter_map(|(index, slot)| {
        let (slot, addr) = slot.and_then(|slot| Some((slot, slot.addr()?)))?;
        let len = first_read_bytes(size_class::bytes(slot.class()), keys[index].as_ref().len());
        wanted(io, index, addr, addr, len)
    });
    for (entry, wanted) in read_all(io, entries.collect()).await? {
        let key = keys[wanted.index].as_ref();
        if let Verdict::Hit(header) = judge(&view.sums, wanted.what, &entry, key)
            && !header.is_counter()
            && io.expired(header.expiry_s) == Expired::No
        {
            let bytes = bytes_of(&entry, &header).to_vec();
            values[wanted.index] = Some(Value::new(bytes, Meta::of(&header)));
        }
    }
    Ok(())
}

/// A READ inside a known region; what is not known yet is left to the lookup.
fn wanted<T>(
    io: &Io<'_>,
    index: usize,
    what: T,
    addr: LogAddr,
    len_bytes: usize,
) -> Option<Wanted<T>> {
    let (remote, len_bytes) = clamp(addr, len_bytes, io.regions.len_bytes(addr.region()))?;
    Some(Wanted { index, what, remote, len_bytes })
}

async fn read_all<T>(
    io: &Io<'_>,
    wanted: Vec<Wanted<T>>,
) -> Result<Vec<(onesided_fabric::Buffer, Wanted<T>)>, Error> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let reads: Vec<_> = wanted.iter().map(|w| (w.remote, w.len_bytes)).collect();
    io.count(reads.len() as u64, reads.iter().map(|read| read.1).sum());
    let buffers = io.connection.read_many_until(&reads, io.deadline()).await?;
    Ok(buffers.into_iter().zip(wanted).collect())
}

/// Keeps a bucket that was READ, and gives its first candidate.
fn keep(map: &IndexMap, hash: KeyHash, bucket: &onesided_fabric::Buffer) -> Option<Slot> {
    let image = bucket.words().first_chunk()?;
    let place = map.place(hash)?;
    map.cache.put(place.directory_index, place.bucket, place.addr, image);
    any_match(image, hash)
}
