//! The fast path where a READ is a load (shm): bucket, entry, judgement, in the caller's own
//! instruction stream. What it cannot decide at first sight is left to [`super::lookup`].
//!
//! It counts what stands between two cache misses: batches prefetch, and a single GET keeps few
//! enough instructions that the processor overlaps the misses of the next one with its own. So
//! there is no bucket cache here (the index is as near), no copy of the bucket, and no copy of
//! the value: the entry is READ once, to where it stays.

use onesided_fabric::{Line, Loads, RegionId, RemoteAddr};
use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::{EntryHeader, Verdict, first_read_bytes, judge};
use onesided_protocol::layout::line::{BUCKET_BYTES, BUCKET_WORDS};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;

use super::bucket::AnyMatch;
use super::io::Io;
use super::lookup::{Expired, bytes_of};
use super::target::Target;
use super::view::TableView;
use crate::table::Own;
use crate::value::{Meta, Value};

/// The value of `key`, if its bucket and entry say so at first sight.
#[inline(always)]
pub(crate) fn get_now(io: &Io<'_>, view: &TableView, own: &mut Own, key: &[u8]) -> Option<Value> {
    let loads = io.connection.loads()?;
    let hash = view.hash(key);
    let at = EntryRead::of(slot_now(loads, bucket_place(view, hash)?, hash)?, key)?;
    let value = entry_now(io, loads, view, at, key)?;
    own.shard.fast_gets(1, at.read_bytes());
    Some(value)
}

/// As [`get_now`]; the value goes into `target`.
#[inline]
pub(crate) fn get_into_now(
    io: &Io<'_>,
    view: &TableView,
    own: &mut Own,
    key: &[u8],
    target: &mut Target<'_, '_>,
) -> Option<Meta> {
    let loads = io.connection.loads()?;
    let hash = view.hash(key);
    let at = EntryRead::of(slot_now(loads, bucket_place(view, hash)?, hash)?, key)?;
    loads.read_lines_into(at.remote, at.lines, &mut own.scratch).ok()?;
    let image = own.scratch.as_flattened().as_flattened();
    let header = hit(io, view, at, image, key)?;
    if !target.copy(bytes_of(image, &header)) {
        return None;
    }
    own.shard.fast_gets(1, at.read_bytes());
    Some(Meta::of(&header))
}

/// Keys whose misses are overlapped by prefetching: as many as a core has line fill buffers for.
const GROUP: usize = 16;

/// As [`get_now`] for many keys; also for how many it does not decide.
pub(crate) fn get_many_now<K: AsRef<[u8]>>(
    io: &Io<'_>,
    view: &TableView,
    own: &mut Own,
    keys: &[K],
) -> Option<super::ManyNow> {
    let loads = io.connection.loads()?;
    let mut values = Vec::with_capacity(keys.len());
    let (mut hits, mut read_bytes) = (0, 0);
    for keys in keys.chunks(GROUP) {
        let mut places = [None; GROUP];
        for (place, key) in places.iter_mut().zip(keys) {
            let hash = view.hash(key.as_ref());
            *place = bucket_place(view, hash).map(|remote| (remote, hash));
            if let Some((remote, _)) = *place {
                loads.prefetch(remote, BUCKET_BYTES);
            }
        }
        let mut targets = [None; GROUP];
        for ((target, place), key) in targets.iter_mut().zip(&places).zip(keys) {
            let Some((remote, hash)) = *place else { continue };
            let slot = slot_now(loads, remote, hash);
            *target = slot.and_then(|slot| EntryRead::of(slot, key.as_ref()));
            if let Some(at) = target {
                loads.prefetch(at.remote, at.lines * size_of::<Line>());
            }
        }
        for (target, key) in targets.iter().zip(keys) {
            values.push(target.and_then(|at| entry_apart(io, loads, view, at, key.as_ref())));
            if let (Some(at), Some(Some(_))) = (target, values.last()) {
                hits += 1;
                read_bytes += at.read_bytes();
            }
        }
    }
    own.shard.fast_gets(hits, read_bytes);
    Some((values, keys.len() - hits as usize))
}

#[inline(always)]
fn bucket_place(view: &TableView, hash: KeyHash) -> Option<RemoteAddr> {
    Some(remote(view.map()?.place(hash)?.addr))
}

/// A slot that the bucket has for this hash.
#[inline(always)]
fn slot_now(loads: &Loads, bucket: RemoteAddr, hash: KeyHash) -> Option<Slot> {
    let found = AnyMatch::new(hash);
    loads.fold_words::<BUCKET_WORDS, _>(bucket, found, AnyMatch::after).ok()?.slot()
}

/// The READ that a slot asks for.
#[derive(Clone, Copy)]
struct EntryRead {
    addr: LogAddr,
    remote: RemoteAddr,
    lines: usize,
}

impl EntryRead {
    #[inline(always)]
    fn of(slot: Slot, key: &[u8]) -> Option<Self> {
        let addr = slot.addr()?;
        let len_bytes = first_read_bytes(size_class::bytes(slot.class()), key.len());
        // A large entry's is no multiple of a line: it takes more READs than this one.
        let lines = len_bytes / size_of::<Line>();
        (lines * size_of::<Line>() == len_bytes).then(|| Self { addr, remote: remote(addr), lines })
    }

    #[inline]
    fn read_bytes(&self) -> u64 {
        (BUCKET_BYTES + self.lines * size_of::<Line>()) as u64
    }
}

#[inline(always)]
fn remote(addr: LogAddr) -> RemoteAddr {
    RemoteAddr { region: RegionId(addr.region()), offset_bytes: addr.offset_bytes() as u64 }
}

/// As [`entry_now`], not in the caller's instruction stream.
#[inline(never)]
fn entry_apart(
    io: &Io<'_>,
    loads: &Loads,
    view: &TableView,
    at: EntryRead,
    key: &[u8],
) -> Option<Value> {
    entry_now(io, loads, view, at, key)
}

#[inline(always)]
fn entry_now(
    io: &Io<'_>,
    loads: &Loads,
    view: &TableView,
    at: EntryRead,
    key: &[u8],
) -> Option<Value> {
    let image = loads.read_lines(at.remote, at.lines).ok()?.into_flattened().into_flattened();
    let header = hit(io, view, at, &image, key)?;
    Some(Value::in_entry(image, &header))
}

/// The header of the entry in `image`, if that answers.
#[inline(always)]
fn hit(
    io: &Io<'_>,
    view: &TableView,
    at: EntryRead,
    image: &[u8],
    key: &[u8],
) -> Option<EntryHeader> {
    match judge(view.info.secret, at.addr, image, key) {
        Verdict::Hit(header) if io.expired(header.expiry_s) == Expired::No => Some(header),
        _ => None,
    }
}
