//! Counters: numbers that many clients change by one round trip each, without the server's
//! processor where the fabric can do that.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use onesided_fabric::{Memory, Opcode, RegionId, RemoteAddr};
use onesided_protocol::LogAddr;
use onesided_protocol::layout::cell::{self, ADD_MAX, CELL_BYTES};
use onesided_protocol::rpc::{CounterAction, Op};

use crate::error::Error;
use crate::rpc;
use crate::stats::Counter as Counts;
use crate::table::{OpenTable, Table};

/// How often a call may meet a cell whose counter was deleted, or a changed number where it wants
/// to set one, before it asks the server to do it.
const TRIES: usize = 8;

/// A number that many clients change at the same time, wait-free.
///
/// Each call is one round trip over RDMA, and a few instructions in shared memory; the server's
/// processor takes no part. Over tcp, and where a session may not write, the server does it. An
/// absent counter counts as 0 and is made by the first call that changes it; other ways to see the
/// same key (`get`, `delete`, ...) see the number in decimal.
///
/// It holds [`Counter::MIN`] to [`Counter::MAX`]; what leads further is refused. Only who saw it
/// last more than 2^60 from there may still add up to 2^32 to what is less than that from a limit
/// by now: such an addition counts like any other, and then what leads back is done, and nothing
/// else. It never expires, and is never evicted.
///
/// Less than 2^60 or so from a limit additions are requests to the server.
pub struct Counter {
    table: Table,
    key: Box<[u8]>,
    /// Where it is, on the connection of then.
    place: ArcSwapOption<Place>,
    /// What was seen last: what it may still be.
    seen: AtomicI64,
}

struct Place {
    open: Weak<OpenTable>,
    cell: LogAddr,
    /// [`OpenTable::cells_epoch`] before it was asked for.
    epoch: u64,
}

impl Place {
    /// Whether the connection was told so, and the cell may be no other counter's by now: for who
    /// has begun an operation.
    #[inline]
    fn is_on(&self, open: &OpenTable) -> bool {
        std::ptr::eq(self.open.as_ptr(), open) && self.epoch == open.cells_epoch()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter")
            .field("table", &self.table.name())
            .field("key", &self.key.escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}

/// What is to be done to a number.
#[derive(Clone, Copy)]
enum Change {
    Add(i64),
    CompareSwap { expected: i64, new: i64 },
}

impl Change {
    /// Whether it may be done one-sidedly to a number that was this lately. What was added takes
    /// effect, and others go on from there: it cannot be taken off again as if it had never been.
    #[inline]
    fn is_one_sided(self, seen: i64) -> bool {
        match self {
            Self::Add(by) => by.unsigned_abs() <= ADD_MAX && !cell::is_near_a_limit(seen),
            Self::CompareSwap { .. } => true,
        }
    }

    fn action(self) -> CounterAction {
        match self {
            Self::Add(by) => CounterAction::Add { by },
            Self::CompareSwap { expected, new } => CounterAction::CompareSwap { expected, new },
        }
    }

    fn opcode(self, remote: RemoteAddr) -> Opcode {
        match self {
            Self::Add(by) => Opcode::FetchAdd { remote, add: by.cast_unsigned() },
            Self::CompareSwap { expected, new } => {
                let (expected, new) = (expected.cast_unsigned(), new.cast_unsigned());
                Opcode::CompareSwap { remote, expected, new }
            }
        }
    }

    /// The word before. `None`: it cannot be done there.
    fn by_processor(self, memory: &Memory, offset_bytes: usize) -> Option<u64> {
        match self {
            Self::Add(by) => memory.fetch_add(offset_bytes, by.cast_unsigned()),
            Self::CompareSwap { expected, new } => {
                memory.compare_swap(offset_bytes, expected.cast_unsigned(), new.cast_unsigned())
            }
        }
        .ok()
    }
}

/// What came of a first attempt.
enum Now {
    /// The number before.
    Done(i64),
    /// Whether it was done is not known, or cannot be.
    Failed(Error),
    /// Not here, or not at first sight.
    NotDone,
}

impl Counter {
    /// Least number that it holds.
    pub const MIN: i64 = cell::NUMBER_MIN;
    /// Greatest number that it holds.
    pub const MAX: i64 = cell::NUMBER_MAX;

    pub(crate) fn new(table: Table, key: &[u8]) -> Self {
        Self { table, key: key.into(), place: ArcSwapOption::empty(), seen: AtomicI64::new(0) }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Adds to it; gives what it was before.
    ///
    /// # Errors
    /// [`Error::WrongType`] if the key has an ordinary value, or the sum is beyond the range: then
    /// nothing was added. [`Error::OutcomeUnknown`] if it may have been added: it is never tried
    /// again by itself. [`Error::OutOfMemory`], [`Error::ConnectionLost`], [`Error::TimedOut`].
    pub async fn fetch_add(&self, by: i64) -> Result<i64, Error> {
        let change = Change::Add(by);
        match self.now("fetch_add", change) {
            Now::Done(old) => Ok(old),
            now => self.after("fetch_add", change, now).await,
        }
    }

    /// Makes it `new` if it is `expected`; gives what it was before: it was done if that is
    /// `expected`.
    ///
    /// # Errors
    /// As [`Self::fetch_add`].
    pub async fn compare_and_swap(&self, expected: i64, new: i64) -> Result<i64, Error> {
        if !cell::is_in_range(new) {
            return Err(out_of_range());
        }
        if cell::number(expected.cast_unsigned()).is_none() {
            // It is no number, so it is not that one.
            return self.get().await;
        }
        let change = Change::CompareSwap { expected, new };
        let now = self.now("compare_and_swap", change);
        self.after("compare_and_swap", change, now).await
    }

    /// What it is; 0 if there is none.
    ///
    /// # Errors
    /// [`Error::WrongType`] if the key has an ordinary value; [`Error::ConnectionLost`],
    /// [`Error::TimedOut`].
    pub async fn get(&self) -> Result<i64, Error> {
        match self.read_now() {
            Some(number) => Ok(number),
            None => self.read().await,
        }
    }

    /// Makes it `to`, whatever it was.
    ///
    /// # Errors
    /// As [`Self::fetch_add`].
    pub async fn set(&self, to: i64) -> Result<(), Error> {
        if !cell::is_in_range(to) {
            return Err(out_of_range());
        }
        let mut expected = self.seen.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let change = Change::CompareSwap { expected, new: to };
            let now = self.now("set", change);
            let old = self.after("set", change, now).await?;
            if old == expected {
                return Ok(());
            }
            self.table.handle.count(Counts::CounterRetries, 1);
            expected = old;
        }
        self.ask("set", CounterAction::Set { to }).await.map(|_| ())
    }

    /// A first attempt, where a round trip is a few instructions, or this thread waits for it and
    /// does nothing else.
    #[inline]
    fn now(&self, what: &'static str, change: Change) -> Now {
        let place = self.place.load();
        let Some(place) = &*place else { return Now::NotDone };
        if !change.is_one_sided(self.seen.load(Ordering::Relaxed)) {
            return Now::NotDone;
        }
        let done = self.table.handle.with_now(|open, own| {
            if !place.is_on(open) || !open.updates_one_sidedly() {
                return None;
            }
            let word = match open.connection.loads() {
                Some(loads) => {
                    let memory = loads.region(RegionId(place.cell.region()))?;
                    let word = change.by_processor(memory, place.cell.offset_bytes())?;
                    if loads.is_open() { Ok(word) } else { Err(the_session_had_ended(what)) }
                }
                None => {
                    let remote = open.io().known_cell(place.cell)?;
                    open.connection.atomic_blocking(what, change.opcode(remote))?
                }
            };
            own.shard.add(Counts::CounterUpdates, 1);
            own.shard.add(Counts::CounterRoundTrips, 1);
            Some(word)
        });
        match done {
            None => Now::NotDone,
            Some(Err(error)) => Now::Failed(error),
            Some(Ok(word)) => match cell::number(word) {
                Some(old) => self.note(change, old),
                None => Now::NotDone,
            },
        }
    }

    fn note(&self, change: Change, old: i64) -> Now {
        let is = match change {
            Change::Add(by) => old.wrapping_add(by),
            Change::CompareSwap { expected, new } if expected == old => new,
            Change::CompareSwap { .. } => old,
        };
        self.seen.store(is, Ordering::Relaxed);
        Now::Done(old)
    }

    async fn after(&self, what: &'static str, change: Change, now: Now) -> Result<i64, Error> {
        match now {
            Now::Done(old) => Ok(old),
            Now::NotDone => self.change(what, change).await,
            Now::Failed(error) => Err(error),
        }
    }

    /// Where a round trip is one, or a first attempt was none.
    async fn change(&self, what: &'static str, change: Change) -> Result<i64, Error> {
        let handle = &self.table.handle;
        let by = handle.deadline(what);
        let is_one_sided = || change.is_one_sided(self.seen.load(Ordering::Relaxed));
        for _ in 0..TRIES {
            let open = handle.open(by).await?;
            if !open.updates_one_sidedly() || !is_one_sided() {
                break;
            }
            let place = match self.place_on(&open) {
                Some(cell) => Some(cell),
                None => match self.find(&open).await? {
                    // The server makes it, and changes it, at once.
                    (_, None) => break,
                    (place, _) => place,
                },
            };
            let begun = handle.begin();
            let is_there = || open.is_usable() && self.place_on(&open) == place;
            let is_good = || is_one_sided() && is_there();
            let Some(cell) = place.filter(|_| is_good()) else { continue };
            let word = match open.io().cell(cell).await {
                Ok(Some(remote)) => open.connection.atomic(change.opcode(remote), by).await,
                Ok(None) => {
                    self.place.store(None);
                    continue;
                }
                Err(error) => Err(error),
            };
            drop(begun);
            let word = match word {
                // It was not posted, and the next connection may come in time.
                Err(Error::ConnectionLost(_)) if handle.link().reconnects() => continue,
                word => word?,
            };
            handle.count(Counts::CounterUpdates, 1);
            handle.count(Counts::CounterRoundTrips, 1);
            if let Some(old) = cell::number(word) {
                self.note(change, old);
                return Ok(old);
            }
            // Deleted, or replaced: the next one is elsewhere.
            self.place.store(None);
            handle.count(Counts::CounterRetries, 1);
        }
        self.ask(what, change.action()).await
    }

    /// The server does it; gives the number before.
    async fn ask(&self, what: &'static str, action: CounterAction) -> Result<i64, Error> {
        self.table.handle.count(Counts::RpcCounters, 1);
        let op = Op::Counter { key: &self.key, action };
        let old = rpc::call(&self.table.handle, what, &op, rpc::number).await?;
        match action {
            CounterAction::Add { by } => _ = self.note(Change::Add(by), old),
            CounterAction::Set { to } => self.seen.store(to, Ordering::Relaxed),
            _ => {}
        }
        Ok(old)
    }

    /// Where it is, if this connection was told so.
    fn place_on(&self, open: &Arc<OpenTable>) -> Option<LogAddr> {
        let place = self.place.load();
        let place = place.as_ref()?;
        place.is_on(open).then_some(place.cell)
    }

    /// Asks where it is, and what it is. The place is one only if the answer came over this
    /// connection.
    async fn find(&self, open: &Arc<OpenTable>) -> Result<(Option<LogAddr>, Option<i64>), Error> {
        self.table.handle.count(Counts::RpcCounters, 1);
        let epoch = open.cells_epoch();
        let op = Op::Counter { key: &self.key, action: CounterAction::Find };
        let (found, answered) =
            rpc::call_where(&self.table.handle, "counter", &op, rpc::counter).await?;
        let Some((cell, number)) = found else { return Ok((None, None)) };
        // Before the place: who finds that adds to a number that was seen.
        self.seen.store(number, Ordering::Relaxed);
        let is_of_this = Arc::ptr_eq(&answered, open);
        if is_of_this {
            let place = Place { open: Arc::downgrade(open), cell, epoch };
            self.place.store(Some(Arc::new(place)));
        }
        Ok((is_of_this.then_some(cell), Some(number)))
    }

    /// As [`Self::get`], where that is a load.
    #[inline]
    pub(crate) fn read_now(&self) -> Option<i64> {
        let place = self.place.load();
        let place = place.as_ref()?;
        self.table.handle.with_now(|open, own| {
            let loads = open.connection.loads()?;
            if !place.is_on(open) {
                return None;
            }
            let memory = loads.region(RegionId(place.cell.region()))?;
            let number = cell::number(memory.load(place.cell.offset_bytes()).ok()?)?;
            own.shard.add(Counts::Reads, 1);
            own.shard.add(Counts::RoundTrips, 1);
            own.shard.add(Counts::ReadBytes, CELL_BYTES as u64);
            loads.is_open().then_some(number)
        })
    }

    /// [`Self::get`] after the first attempt.
    pub(crate) async fn read(&self) -> Result<i64, Error> {
        let handle = &self.table.handle;
        let by = handle.deadline("get");
        for _ in 0..TRIES {
            let open = handle.open(by).await?;
            if !open.connection.caps().one_sided {
                break;
            }
            let Some(cell) = self.place_on(&open) else {
                match self.find(&open).await? {
                    (Some(_), _) => continue,
                    (None, number) => return Ok(number.unwrap_or(0)),
                }
            };
            let begun = handle.begin();
            if !open.is_usable() || self.place_on(&open) != Some(cell) {
                continue;
            }
            let read = open.io().number(cell).await;
            drop(begun);
            // An error: the connection is lost, and the next one knows.
            if let Ok(Some(number)) = read {
                self.seen.store(number, Ordering::Relaxed);
                return Ok(number);
            }
            self.place.store(None);
        }
        let open = handle.open(by).await?;
        Ok(self.find(&open).await?.1.unwrap_or(0))
    }
}

fn the_session_had_ended(what: &'static str) -> Error {
    Error::OutcomeUnknown { what, reason: "the session had ended".to_owned() }
}

fn out_of_range() -> Error {
    let (min, max) = (Counter::MIN, Counter::MAX);
    Error::WrongType(format!("a counter holds {min} to {max}"))
}

#[cfg(test)]
mod tests;
