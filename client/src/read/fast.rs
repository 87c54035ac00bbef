//! The fast path where a READ is a load (shm): bucket, entry, judgement, in the caller's own
//! instruction stream. What it cannot decide at first sight is left to [`super::lookup`].
//!
//! It counts what stands between two cache misses: batches prefetch, and a single GET keeps few
//! enough instructions that the processor overlaps the misses of the next one with its own. So
//! there is no bucket cache here (the index is as near), no copy of the bucket, and no copy of
//! the value: the entry is READ once, to where it stays.

use onesided_fabric::{Line, Loads, Memory, RegionId};
use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::{EntryHeader, first_read_bytes, judge_plain};
use onesided_protocol::layout::line::{BUCKET_BYTES, LINE_BYTES};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;

use super::bucket::{HIGH_SHIFT, SLOTS};
use super::io::Io;
use super::lookup::{Expired, bytes_of};
use super::target::Target;
use super::view::TableView;
use crate::room::{Room, SHORT_LINES};
use crate::table::Own;
use crate::value::{Meta, Value};

const _: () = assert!(LINE_BYTES == size_of::<Line>());

/// The value of `key`, if its bucket and entry say so at first sight. Inlined to where the length
/// of the key may be known.
#[inline(always)]
pub(crate) fn get_now(
    loads: &Loads,
    io: &Io<'_>,
    view: &TableView,
    own: &mut Own,
    key: &[u8],
) -> Option<Value> {
    let hash = view.hash(key);
    let slot = slot_now(bucket_place(loads, view, hash)?, hash)?;
    if usize::from(slot.class()) >= SHORT_LINES {
        return get_long_now(*io, view, own, slot, key);
    }
    let at = EntryRead::short(loads, slot)?;
    let value = short_entry_now(io, view, at, key)?;
    counts(loads, own, 1, at.read_bytes()).then_some(value)
}

/// The rest of [`get_now`] where the entry is no short one.
#[inline(never)]
fn get_long_now(
    io: Io<'_>,
    view: &TableView,
    own: &mut Own,
    slot: Slot,
    key: &[u8],
) -> Option<Value> {
    let loads = io.connection.loads()?;
    let at = EntryRead::of(loads, slot, key)?;
    let value = long_entry_now(&io, view, at, key)?;
    counts(loads, own, 1, at.read_bytes()).then_some(value)
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
    let at = EntryRead::of(loads, slot_now(bucket_place(loads, view, hash)?, hash)?, key)?;
    if own.scratch.len() < at.lines {
        own.scratch.resize(at.lines, Line::default());
    }
    let lines = own.scratch.get_mut(..at.lines)?;
    at.memory.lines_to(at.addr.offset_bytes(), lines)?;
    let image = lines.as_flattened().as_flattened();
    let header = hit(io, view, at, image, key)?;
    own.sampler.note(hash);
    (target.copy(bytes_of(image, &header)) && counts(loads, own, 1, at.read_bytes()))
        .then(|| Meta::of(&header))
}

/// Whether what was read counts: the session had not ended.
#[inline(always)]
fn counts(loads: &Loads, own: &Own, gets: u64, read_bytes: u64) -> bool {
    let is_open = loads.is_open();
    if is_open {
        own.shard.fast_gets(gets, read_bytes);
    }
    is_open
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
            *place = bucket_place(loads, view, hash).map(|place| (place, hash));
            if let Some(((memory, at), _)) = *place {
                memory.prefetch(at, BUCKET_BYTES);
            }
        }
        let mut targets = [None; GROUP];
        for ((target, place), key) in targets.iter_mut().zip(&places).zip(keys) {
            let Some((place, hash)) = *place else { continue };
            let slot = slot_now(place, hash);
            *target = slot.and_then(|slot| EntryRead::of(loads, slot, key.as_ref()));
            if let Some(EntryRead { memory, addr, lines }) = *target {
                memory.prefetch(addr.offset_bytes(), lines * LINE_BYTES);
            }
        }
        for ((target, place), key) in targets.iter().zip(&places).zip(keys) {
            values.push(target.and_then(|at| entry_apart(io, view, at, key.as_ref())));
            if let (Some(at), Some((_, hash)), Some(Some(_))) = (target, place, values.last()) {
                own.sampler.note(*hash);
                hits += 1;
                read_bytes += at.read_bytes();
            }
        }
    }
    counts(loads, own, hits, read_bytes).then_some((values, keys.len() - hits as usize))
}

/// The values of entries at known places that prove themselves at first sight.
pub(crate) fn entries_now<K: AsRef<[u8]>>(
    io: &Io<'_>,
    view: &TableView,
    keys: &[K],
    slots: &[Slot],
) -> Option<Vec<Option<Value>>> {
    let loads = io.connection.loads()?;
    let mut values = Vec::with_capacity(keys.len());
    let (mut reads, mut read_bytes) = (0, 0);
    for (keys, slots) in keys.chunks(GROUP).zip(slots.chunks(GROUP)) {
        let mut targets = [None; GROUP];
        for ((target, slot), key) in targets.iter_mut().zip(slots).zip(keys) {
            *target = EntryRead::of(loads, *slot, key.as_ref());
            if let Some(EntryRead { memory, addr, lines }) = *target {
                memory.prefetch(addr.offset_bytes(), lines * LINE_BYTES);
                reads += 1;
                read_bytes += lines * LINE_BYTES;
            }
        }
        let targets = targets.iter().zip(keys);
        values.extend(targets.map(|(target, key)| entry_apart(io, view, (*target)?, key.as_ref())));
    }
    io.count(reads, read_bytes);
    loads.is_open().then_some(values)
}

/// Where the bucket of this hash is.
#[inline(always)]
pub(super) fn bucket_place<'a>(
    loads: &'a Loads,
    view: &TableView,
    hash: KeyHash,
) -> Option<(&'a Memory, usize)> {
    let addr = view.map()?.place(hash)?.addr;
    Some((loads.region(RegionId(addr.region()))?, addr.offset_bytes()))
}

/// A slot that the bucket at this place has for this hash: as [`super::bucket::any_match`].
#[inline(always)]
pub(super) fn slot_now((memory, at): (&Memory, usize), hash: KeyHash) -> Option<Slot> {
    memory.find_word::<HIGH_SHIFT>(at, u32::from(hash.fingerprint()), SLOTS).map(Slot)
}

/// The READ that a slot asks for.
#[derive(Clone, Copy)]
struct EntryRead<'a> {
    memory: &'a Memory,
    addr: LogAddr,
    lines: usize,
}

impl<'a> EntryRead<'a> {
    #[inline(always)]
    fn of(loads: &'a Loads, slot: Slot, key: &[u8]) -> Option<Self> {
        let addr = slot.addr()?;
        let len_bytes = first_read_bytes(size_class::bytes(slot.class()), key.len());
        let lines = len_bytes / LINE_BYTES;
        // A large entry's is no multiple of a line: it takes more READs than this one.
        if lines * LINE_BYTES != len_bytes {
            return None;
        }
        Some(Self { memory: loads.region(RegionId(addr.region()))?, addr, lines })
    }

    /// That of a slot whose class is below [`SHORT_LINES`].
    #[inline(always)]
    fn short(loads: &'a Loads, slot: Slot) -> Option<Self> {
        // As `size_class::bytes`: classes are lines, from one line on.
        let (addr, lines) = (slot.addr()?, usize::from(slot.class()) + 1);
        Some(Self { memory: loads.region(RegionId(addr.region()))?, addr, lines })
    }

    #[inline(always)]
    fn read_bytes(&self) -> u64 {
        (BUCKET_BYTES + self.lines * LINE_BYTES) as u64
    }
}

/// The value of the short entry that a slot points at. (One whose class goes beyond the region's
/// end is left to the lookup.)
#[inline(always)]
fn short_entry_now(io: &Io<'_>, view: &TableView, at: EntryRead<'_>, key: &[u8]) -> Option<Value> {
    let mut room = Room::take();
    let body = room.body_mut()?;
    at.memory.lines_to(at.addr.offset_bytes(), body.lines.get_mut(..at.lines)?)?;
    let image = body.lines.as_flattened().as_flattened().get(..at.lines * LINE_BYTES)?;
    hit(io, view, at, image, key)?;
    Some(Value::in_room(room))
}

/// The value of the entry that a slot points at, not in the caller's instruction stream.
#[inline(never)]
fn entry_apart(io: &Io<'_>, view: &TableView, at: EntryRead<'_>, key: &[u8]) -> Option<Value> {
    if at.lines > SHORT_LINES {
        return long_entry_now(io, view, at, key);
    }
    short_entry_now(io, view, at, key)
}

/// As [`short_entry_now`], of any length.
#[inline(never)]
fn long_entry_now(io: &Io<'_>, view: &TableView, at: EntryRead<'_>, key: &[u8]) -> Option<Value> {
    let image = at.memory.lines_vec(at.addr.offset_bytes(), at.lines)?;
    let image = image.into_flattened().into_flattened();
    let header = hit(io, view, at, &image, key)?;
    Some(Value::in_entry(image, &header))
}

/// The header of the entry in `image`, if that answers.
#[inline(always)]
fn hit(
    io: &Io<'_>,
    view: &TableView,
    at: EntryRead<'_>,
    image: &[u8],
    key: &[u8],
) -> Option<EntryHeader> {
    let header = judge_plain(&view.sums, at.addr, image, key)?;
    (io.expired(header.expiry_s) == Expired::No).then_some(header)
}
