//! GET without asking (design.md 4).
//!
//! | module | what |
//! |---|---|
//! | `fast` | the first step, where a READ is a load |
//! | `posted` | the first step, where a READ is a round trip and the thread waits |
//! | `lookup` | every case, on any one-sided fabric |
//! | `batch` | many keys: READs behind one doorbell |
//! | `walk` | all keys |
//! | `scan` | keys in order, from the server, and their values |
//! | `bucket` | which slots match, and what proves that none does |
//! | `view`, `cache`, `prefill` | the table's directory and the buckets cached under it |
//! | `regions`, `io` | what may be READ, and how it is |
//! | `target` | where the value is wanted |
//! | `current` | where the entry is, for who replaces it |

mod batch;
mod bucket;
mod cache;
mod current;
mod fast;
mod io;
mod lookup;
mod posted;
mod prefill;
mod regions;
mod scan;
mod target;
mod view;
mod walk;

pub(crate) use cache::CacheBudget;
pub(crate) use current::{
    Current, Look, Seen, current, current_now, examine, newest_now, point_slot, seen_slot,
};
pub(crate) use scan::{Page, scan};
pub(crate) use view::TableView;

pub(crate) use io::Io;
use lookup::Outcome;
use target::{Lent, Target};

use onesided_fabric::Loads;
use onesided_protocol::hash::KeyHash;

use crate::accesses::Sample;
use crate::core::Deadline;
use crate::error::Error;
use crate::registered::RegisteredBuffer;
use crate::rpc;
use crate::stats::Counter;
use crate::table::{OpenTable, Own, TableHandle};
use crate::value::{Meta, Value};

impl OpenTable {
    #[inline]
    pub(crate) fn io(&self) -> Io<'_> {
        let Self { connection, view, counts, .. } = self;
        Io { connection, regions: &view.regions, counts, by: None }
    }

    /// As [`Self::io`], for an operation that must have ended by then.
    pub(crate) fn io_until<'a>(&'a self, by: &'a Deadline) -> Io<'a> {
        Io { by: Some(by), ..self.io() }
    }
}

/// The value of `key`: at first sight, by a lookup, or by asking.
#[inline]
pub(crate) async fn get(table: &TableHandle, key: &[u8]) -> Result<Option<Value>, Error> {
    if let Some(value) = get_now(table, key) {
        return Ok(Some(value));
    }
    // On the heap: the fast path's future stays small.
    Box::pin(get_slowly(table, key, Waited::No)).await
}

/// The value of `key`, where a READ is a load and the first look decides. One for each type of
/// keys, so that what is inside has one caller: then it is inlined, and knows the key's length.
#[inline(always)]
pub(crate) fn get_now<K: AsRef<[u8]> + ?Sized>(table: &TableHandle, key: &K) -> Option<Value> {
    table.with_now(|open, own| get_by_loads(open, open.connection.loads()?, own, key))
}

/// As [`get_now`], for a thread that waits itself: also where a READ is a round trip. What is not
/// decided goes on until `by`, if that is said.
#[inline(always)]
pub(crate) fn get_waiting<K: AsRef<[u8]> + ?Sized>(
    table: &TableHandle,
    key: &K,
    by: &mut Option<Deadline>,
) -> Option<Value> {
    table.with_now(|open, own| match open.connection.loads() {
        Some(loads) => get_by_loads(open, loads, own, key),
        None => posted::get(&open.connection, &open.io(), &open.view, own, key.as_ref(), by),
    })
}

#[inline(always)]
fn get_by_loads<K: AsRef<[u8]> + ?Sized>(
    open: &OpenTable,
    loads: &Loads,
    own: &mut Own,
    key: &K,
) -> Option<Value> {
    if own.sampler.is_due() {
        return get_sampled(open, own, key.as_ref());
    }
    fast::get_now(loads, &open.io(), &open.view, own, key.as_ref())
}

/// As [`get_now`], for one GET in some. What is not decided is sampled until it is.
#[cold]
#[inline(never)]
fn get_sampled(open: &OpenTable, own: &mut Own, key: &[u8]) -> Option<Value> {
    own.sampler.begin();
    let io = open.io();
    let value = fast::get_now(io.connection.loads()?, &io, &open.view, own, key)?;
    own.end_sample(Some(open.view.hash(key)));
    Some(value)
}

impl Own {
    /// A GET is over; if it was sampled, it is told of. With the hash of its key if that was found
    /// one-sidedly.
    pub(super) fn end_sample(&mut self, found: Option<KeyHash>) {
        if let Some(sample) = self.sampler.take_begun() {
            self.sampler.end(&sample, &self.shard, found);
        }
    }
}

/// As [`get`], into the caller's buffer; `None` leaves it empty.
pub(crate) async fn get_into(
    table: &TableHandle,
    key: &[u8],
    into: &mut Vec<u8>,
) -> Result<Option<Meta>, Error> {
    get_to(table, key, &mut Target::Vec(into)).await
}

/// As [`get_into`], into a buffer that a READ may own meanwhile.
pub(crate) async fn get_into_registered(
    table: &TableHandle,
    key: &[u8],
    into: RegisteredBuffer,
) -> (RegisteredBuffer, Result<Option<Meta>, Error>) {
    let mut lent = Lent::new(into.buffer, table.link().shared());
    let got = get_to(table, key, &mut Target::Lent(&mut lent)).await;
    (RegisteredBuffer { buffer: lent.take() }, got)
}

async fn get_to(
    table: &TableHandle,
    key: &[u8],
    target: &mut Target<'_, '_>,
) -> Result<Option<Meta>, Error> {
    target.clear();
    if let Some(meta) = get_to_now(table, key, target) {
        return Ok(Some(meta));
    }
    table.count(Counter::Gets, 1);
    // On the heap: the fast path's future stays small.
    let by = table.deadline("get");
    let got = Box::pin(decide(table, key, by, target)).await;
    match got {
        Ok((Some(meta), how)) => {
            if how == How::OneSided {
                note_reads(table, std::iter::once(key));
            }
            Ok(Some(meta))
        }
        nothing => {
            target.clear();
            nothing.map(|(meta, _)| meta)
        }
    }
}

/// As [`get_now`], into the caller's buffer; `None` leaves it empty.
#[inline]
pub(crate) fn get_into_now(table: &TableHandle, key: &[u8], into: &mut Vec<u8>) -> Option<Meta> {
    into.clear();
    get_to_now(table, key, &mut Target::Vec(into))
}

#[inline]
fn get_to_now(table: &TableHandle, key: &[u8], target: &mut Target<'_, '_>) -> Option<Meta> {
    table.with_now(|open, own| fast::get_into_now(&open.io(), &open.view, own, key, target))
}

/// As [`get_now`] for many keys: the values that the first look decides, and for how many keys it
/// does not. `None` where a READ is no load.
#[inline]
pub(crate) fn get_many_now<K: AsRef<[u8]>>(table: &TableHandle, keys: &[K]) -> Option<ManyNow> {
    table.with_now(|open, own| fast::get_many_now(&open.io(), &open.view, own, keys))
}

/// Values in the order of their keys, and how many of them are not decided.
pub(crate) type ManyNow = (Vec<Option<Value>>, usize);

/// Whether the first look was [`get_waiting`], and until when that may go on, if it took long.
#[derive(Clone, Copy)]
pub(crate) enum Waited {
    No,
    Until(Option<Deadline>),
}

/// [`get`] after the first look, which was [`get_waiting`] or not.
pub(crate) async fn get_slowly(
    table: &TableHandle,
    key: &[u8],
    waited: Waited,
) -> Result<Option<Value>, Error> {
    table.count(Counter::Gets, 1);
    let sample = take_sample(table, matches!(waited, Waited::Until(_)));
    let by = match waited {
        Waited::Until(Some(by)) => by,
        Waited::Until(None) | Waited::No => table.deadline("get"),
    };
    let (value, how) = decide_value(table, key, by).await?;
    if let Some(sample) = sample {
        let _told = table.with_now(|open, own| {
            let found = (how == How::OneSided && value.is_some()).then(|| open.view.hash(key));
            own.sampler.end(&sample, &own.shard, found);
            Some(())
        });
    }
    Ok(value)
}

/// The sample that the first look has begun; where there was none it begins here.
fn take_sample(table: &TableHandle, waited: bool) -> Option<Sample> {
    table.with_now(|open, own| {
        let connection = &open.connection;
        let looked = connection.loads().is_some() || waited && connection.caps().one_sided;
        if !looked && own.sampler.is_due() {
            own.sampler.begin();
        }
        own.sampler.take_begun()
    })
}

async fn decide_value(
    table: &TableHandle,
    key: &[u8],
    by: Deadline,
) -> Result<(Option<Value>, How), Error> {
    let mut bytes = Vec::new();
    let (meta, how) = decide(table, key, by, &mut Target::Vec(&mut bytes)).await?;
    Ok((meta.map(|meta| Value::new(bytes, meta)), how))
}

/// Who found the value, or that there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    OneSided,
    Rpc,
}

/// A GET that is counted already. Without a value the target holds anything.
async fn decide(
    table: &TableHandle,
    key: &[u8],
    by: Deadline,
    target: &mut Target<'_, '_>,
) -> Result<(Option<Meta>, How), Error> {
    match look_up(table, key, by, target).await? {
        Ok(Outcome::Hit(meta)) => {
            table.count(Counter::OneSidedHits, 1);
            Ok((Some(meta), How::OneSided))
        }
        Ok(Outcome::NoRoom { needed_bytes }) => Err(target.too_small(needed_bytes)),
        Ok(Outcome::Miss) => {
            table.count(Counter::OneSidedMisses, 1);
            Ok((None, How::OneSided))
        }
        Err(error @ Error::TimedOut { .. }) => Err(error),
        // Another error is one of this connection; asking goes on with the next one, if any.
        Ok(Outcome::AskServer) | Err(_) => ask(table, key, by, target).await,
    }
}

/// What READs tell of a key, if they do.
async fn look_up(
    table: &TableHandle,
    key: &[u8],
    by: Deadline,
    target: &mut Target<'_, '_>,
) -> Result<Result<Outcome, Error>, Error> {
    let open = table.open(by).await?;
    if !open.connection.caps().one_sided {
        return Ok(Ok(Outcome::AskServer));
    }
    // From here on, and not while it waits for a connection or an answer.
    let _begun = table.begin();
    if !open.is_usable() {
        return Ok(Ok(Outcome::AskServer));
    }
    let io = open.io_until(&by);
    if open.view.begins_prefill() {
        prefill::prefill(&io, &open.view).await?;
    }
    Ok(lookup::lookup(&io, &open.view, key, target).await)
}

/// These keys were read one-sidedly.
fn note_reads<'k>(table: &TableHandle, keys: impl Iterator<Item = &'k [u8]>) {
    // Without a connection there is nobody to tell.
    let _told = table.with_now(|open, own| {
        keys.for_each(|key| own.sampler.note(open.view.hash(key)));
        Some(())
    });
}

async fn ask(
    table: &TableHandle,
    key: &[u8],
    by: Deadline,
    target: &mut Target<'_, '_>,
) -> Result<(Option<Meta>, How), Error> {
    let value = rpc::get(table, by, key).await?;
    let meta = value.map(|value| target.take_value(value)).transpose()?;
    Ok((meta, How::Rpc))
}

/// The values of `keys`, in their order.
pub(crate) async fn get_many<K: AsRef<[u8]>>(
    table: &TableHandle,
    keys: &[K],
) -> Result<Vec<Option<Value>>, Error> {
    match get_many_now(table, keys) {
        Some((values, 0)) => Ok(values),
        now => get_many_after(table, keys, now).await,
    }
}

/// As [`get_many`], after the first look.
pub(crate) async fn get_many_after<K: AsRef<[u8]>>(
    table: &TableHandle,
    keys: &[K],
    now: Option<ManyNow>,
) -> Result<Vec<Option<Value>>, Error> {
    let by = table.deadline("get_many");
    let mut values = match now {
        // The decided ones are counted.
        Some((values, undecided)) => {
            table.count(Counter::Gets, undecided);
            values
        }
        None => {
            let open = table.open(by).await?;
            table.count(Counter::Gets, keys.len());
            if !open.connection.caps().one_sided {
                return rpc::get_many(table, keys).await;
            }
            let mut values: Vec<Option<Value>> = keys.iter().map(|_| None).collect();
            let begun = table.begin();
            if open.is_usable() {
                let io = open.io_until(&by);
                // An error: the connection is lost. What was read counts, the others ask on the
                // next.
                let _lost = batch::get_many_posted(&io, &open.view, keys, &mut values).await;
            }
            drop(begun);
            table.count(Counter::OneSidedHits, values.iter().flatten().count());
            let read = keys.iter().zip(&values).filter(|(_, value)| value.is_some());
            note_reads(table, read.map(|(key, _)| key.as_ref()));
            values
        }
    };
    for (value, key) in values.iter_mut().zip(keys).filter(|(value, _)| value.is_none()) {
        let how;
        (*value, how) = decide_value(table, key.as_ref(), by).await?;
        if value.is_some() && how == How::OneSided {
            note_reads(table, std::iter::once(key.as_ref()));
        }
    }
    Ok(values)
}

/// All keys.
pub(crate) async fn keys(table: &TableHandle) -> Result<Vec<Vec<u8>>, Error> {
    let _begun = table.begin();
    let open = table.open(table.deadline("keys")).await?;
    if !open.connection.caps().one_sided {
        return Err(Error::Fabric {
            fabric: "tcp",
            reason: "listing keys needs one-sided READs, and this fabric has none".to_owned(),
        });
    }
    match walk::keys(&open.io(), &open.view).await? {
        Some(keys) => Ok(keys),
        None => {
            open.mark_stale();
            Err(Error::NoSuchTable("the table was dropped".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests;
