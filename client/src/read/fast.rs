//! The fast path where a READ is a load (shm): bucket, entry, judgement, in the caller's own
//! instruction stream. What it cannot decide at first sight is left to [`super::lookup`].
//!
//! It counts what stands between two cache misses: batches prefetch, and a single GET keeps few
//! enough instructions that the processor overlaps the misses of the next one with its own.

use std::cell::RefCell;

use onesided_fabric::RemoteAddr;
use onesided_protocol::LogAddr;
use onesided_protocol::layout::entry::{Verdict, first_read_bytes, judge};
use onesided_protocol::layout::line::{BUCKET_BYTES, BUCKET_WORDS};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use zerocopy::IntoBytes;

use super::bucket::any_match;
use super::io::{Io, clamp};
use super::lookup::{Expired, value_of};
use super::view::{IndexMap, Place, TableView};
use crate::value::Value;

/// The value of `key`, if its bucket and entry say so at first sight.
#[inline]
pub(crate) fn get_now(io: &Io<'_>, view: &TableView, key: &[u8]) -> Option<Value> {
    let map = view.map()?;
    let hash = view.hash(key);
    let mut bucket = [0; BUCKET_WORDS];
    bucket_now(io, map, map.place(hash)?, &mut bucket)?;
    let at = Target::of(io, any_match(&bucket, hash), key)?;
    let value = entry_now(io, view, at, key)?;
    io.connection.stats().fast_get((at.len_bytes + BUCKET_BYTES) as u64);
    Some(value)
}

/// Keys whose misses are overlapped by prefetching: as many as a core has line fill buffers for.
const GROUP: usize = 16;

/// As [`get_now`] for many keys; fills in the values that it decides.
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
            if let Some((_, at)) = place
                && let Some((remote, _)) = place_of(io, at.addr, BUCKET_BYTES)
            {
                io.connection.endpoint().prefetch(remote, BUCKET_BYTES);
            }
        }
        let mut targets = [None; GROUP];
        for ((target, place), key) in targets.iter_mut().zip(places).zip(keys) {
            let Some((hash, place)) = place else { continue };
            let mut bucket = [0; BUCKET_WORDS];
            if bucket_now(io, map, place, &mut bucket).is_none() {
                continue;
            }
            *target = Target::of(io, any_match(&bucket, hash), key.as_ref());
            if let Some(at) = target {
                io.connection.endpoint().prefetch(at.remote, at.len_bytes);
            }
        }
        for ((value, target), key) in values.iter_mut().zip(targets).zip(keys) {
            *value = target.and_then(|at| entry_now(io, view, at, key.as_ref()));
            if let Some(at) = target.filter(|_| value.is_some()) {
                io.connection.stats().one_sided_read(2, (at.len_bytes + BUCKET_BYTES) as u64);
            }
        }
    }
}

#[inline]
fn bucket_now(
    io: &Io<'_>,
    map: &IndexMap,
    place: Place,
    image: &mut [u64; BUCKET_WORDS],
) -> Option<()> {
    if let Some(cached) = map.cache.get(place.directory_index, place.bucket, place.addr) {
        *image = cached;
        io.connection.stats().cache_hit();
        return Some(());
    }
    let (remote, _) = place_of(io, place.addr, BUCKET_BYTES)?;
    io.connection.endpoint().read_now(remote, image)?.ok()?;
    map.cache.put(place.directory_index, place.bucket, place.addr, image);
    Some(())
}

/// The READ that a slot asks for.
#[derive(Clone, Copy)]
struct Target {
    addr: LogAddr,
    remote: RemoteAddr,
    len_bytes: usize,
}

impl Target {
    #[inline]
    fn of(io: &Io<'_>, slot: Slot, key: &[u8]) -> Option<Self> {
        let addr = slot.addr()?;
        let len_bytes = first_read_bytes(size_class::bytes(slot.class()), key.len());
        let (remote, len_bytes) = place_of(io, addr, len_bytes)?;
        Some(Self { addr, remote, len_bytes })
    }
}

thread_local! {
    /// Where entries are READ to: at most a long key and a value that is not large.
    static SCRATCH: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

#[inline]
fn entry_now(io: &Io<'_>, view: &TableView, at: Target, key: &[u8]) -> Option<Value> {
    SCRATCH.with_borrow_mut(|scratch| {
        let words = at.len_bytes / 8;
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
        let image = &mut scratch[..words];
        io.connection.endpoint().read_now(at.remote, image)?.ok()?;
        match judge(view.info.secret, at.addr, image.as_bytes(), key) {
            Verdict::Hit(header) if io.expired(header.expiry_s) == Expired::No => {
                Some(value_of(image.as_bytes(), &header))
            }
            _ => None,
        }
    })
}

#[inline]
fn place_of(io: &Io<'_>, addr: LogAddr, len_bytes: usize) -> Option<(RemoteAddr, usize)> {
    clamp(addr, len_bytes, io.regions.len_bytes(addr.region()))
}
