//! Counters: entries whose value is the address of a cell ([`super::cells`]), in which the number
//! is. Clients change it without asking; what is here changes it for those that ask, and ends it.
//!
//! A counter ends (it is deleted, or an ordinary value takes its place) with an addition to its
//! cell, after which that holds no number any more: only then its entry goes. Whoever changes the
//! cell later is told so by the word that was there. All of this happens under the lock of the
//! key's index segment, so whoever finds a counter's entry there finds a number in its cell.

use onesided_protocol::LogAddr;
use onesided_protocol::layout::cell::{
    self, ADD_MAX, CELL_BYTES, DELETED, is_in_range, is_near_a_limit, may_become,
};
use onesided_protocol::layout::entry::{EntryHeader, FLAG_COUNTER};
use onesided_protocol::limits::{DEPTH_MAX, KEY_MAX_BYTES};
use onesided_protocol::rpc::{CounterAction, ErrorCode, RpcError};
use onesided_protocol::rules::{Rule, holds};

use super::bucket::Hit;
use super::cells;
use super::table::{Found, Refused, Table};

/// How often a number that changes all the time is compared and swapped: each time somebody else
/// has changed it.
const SWAPS: usize = 10_000;

/// What came of an action on a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// There is none, and none was made.
    Absent,
    /// There is one.
    There {
        /// Where its number is.
        cell: LogAddr,
        /// What it is.
        number: i64,
        /// Version of its entry.
        version: u64,
    },
    /// It was changed, or not, as the action says.
    Changed {
        /// The number before.
        old: i64,
        /// Version of its entry; 0 if there is none.
        version: u64,
    },
}

fn out_of_range() -> RpcError {
    let (min, max) = (cell::NUMBER_MIN, cell::NUMBER_MAX);
    RpcError::new(ErrorCode::WrongType, format!("a counter holds {min} to {max}"))
}

/// What an operation on ordinary values says of a counter.
pub(super) fn is_a_counter(operation: &str) -> RpcError {
    let text = format!(
        "the key is a counter, on which there is no {operation}: change its number, put a value in \
         its place, or delete it"
    );
    RpcError::new(ErrorCode::WrongType, text)
}

/// The number of a counter that an action makes, which counts as 0 before; `None`: it makes none.
fn first_number(action: CounterAction) -> Option<i64> {
    match action {
        CounterAction::Add { by } => Some(by),
        CounterAction::Set { to } => Some(to),
        CounterAction::CompareSwap { expected: 0, new } => Some(new),
        CounterAction::CompareSwap { .. } | CounterAction::Find => None,
    }
}

impl Table {
    /// Does something to a counter; what changes one makes it, if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the key has an ordinary value, or the number would be beyond the range;
    /// as of [`Self::put`].
    pub fn counter(&self, key: &[u8], action: CounterAction) -> Result<Counted, RpcError> {
        if key.len() > KEY_MAX_BYTES {
            let text = format!("a key of {} bytes: the limit is {KEY_MAX_BYTES}", key.len());
            return Err(RpcError::new(ErrorCode::TooLarge, text));
        }
        self.with_room(|| self.try_counter(key, action))
    }

    fn try_counter(&self, key: &[u8], action: CounterAction) -> Result<Counted, Refused> {
        // Every look but the last ends in a split.
        for _ in 0..=2 * u32::from(DEPTH_MAX) {
            let mut found = self.find(key)?;
            match self.drop_expired(&mut found, key)? {
                Some(hit) if hit.header.is_counter() => return Ok(self.act(&hit, action)?),
                Some(_) => {
                    let text = "the key has an ordinary value, and is no counter: delete it first";
                    return Err(RpcError::new(ErrorCode::WrongType, text).into());
                }
                None => {}
            }
            let Some(number) = first_number(action) else {
                return Ok(match action {
                    CounterAction::Find => Counted::Absent,
                    _ => Counted::Changed { old: 0, version: 0 },
                });
            };
            if !is_in_range(number) {
                return Err(out_of_range().into());
            }
            if let Some(version) = self.make_counter(&mut found, key, number)? {
                return Ok(Counted::Changed { old: 0, version });
            }
        }
        Err(Self::index_full().into())
    }

    /// A new counter for a key that has no entry. `None`: the segment was split, look again.
    fn make_counter(
        &self,
        found: &mut Found<'_>,
        key: &[u8],
        number: i64,
    ) -> Result<Option<u64>, Refused> {
        let taken = self.cells.take(&self.shared, &self.account, self.id());
        let wanted = cells::wanted(&self.shared.pool, self.id());
        let cell = taken.map_err(|error| Refused { error, wanted })?;
        // Before anybody can know of it.
        self.shared.pool.at(cell).store(number.cast_unsigned());
        let header = EntryHeader {
            value_len: CELL_BYTES as u32,
            key_len: key.len() as u16,
            flags: FLAG_COUNTER,
            ..EntryHeader::default()
        };
        let inserted = self.insert(found, header, key, &cell::to_value(cell));
        if !matches!(inserted, Ok(Some(_))) {
            self.cells.give(&[cell]);
        }
        inserted
    }

    fn act(&self, hit: &Hit, action: CounterAction) -> Result<Counted, RpcError> {
        let (cell, version) = (self.cell_of(hit)?, hit.header.version);
        let old = match action {
            CounterAction::Find => {
                return Ok(Counted::There { cell, number: self.number(cell)?, version });
            }
            CounterAction::Add { by } if self.is_added(cell, by)? => {
                let old = self.shared.fetch_add(cell, by.cast_unsigned())?;
                cell::number(old).ok_or_else(broken)?
            }
            CounterAction::Add { by } => self.swap(cell, |old| Some(old.saturating_add(by)))?,
            CounterAction::Set { to } => self.swap(cell, |_| Some(to))?,
            CounterAction::CompareSwap { expected, new } => {
                self.swap(cell, |old| (old == expected).then_some(new))?
            }
        };
        Ok(Counted::Changed { old, version })
    }

    /// Whether this is added, as a client does; else it is compared and swapped, which may fail.
    fn is_added(&self, cell: LogAddr, by: i64) -> Result<bool, RpcError> {
        Ok(by.unsigned_abs() <= ADD_MAX && !is_near_a_limit(self.number(cell)?))
    }

    /// Makes the number what `next` says, if it says something; gives what it was before.
    fn swap(&self, cell: LogAddr, next: impl Fn(i64) -> Option<i64>) -> Result<i64, RpcError> {
        for _ in 0..SWAPS {
            let old = self.number(cell)?;
            let Some(new) = next(old) else { return Ok(old) };
            if !may_become(old, new) {
                return Err(out_of_range());
            }
            let expected = old.cast_unsigned();
            if self.shared.compare_swap(cell, expected, new.cast_unsigned())? == expected {
                return Ok(old);
            }
        }
        let text = "others change this counter all the time; it was left as it is: try again";
        Err(RpcError::new(ErrorCode::Contended, text))
    }

    /// The number of a counter that is there.
    pub(super) fn number_of(&self, hit: &Hit) -> Result<i64, RpcError> {
        self.number(self.cell_of(hit)?)
    }

    fn number(&self, cell: LogAddr) -> Result<i64, RpcError> {
        cell::number(self.shared.pool.at(cell).load()).ok_or_else(broken)
    }

    fn cell_of(&self, hit: &Hit) -> Result<LogAddr, RpcError> {
        if hit.header.value_len as usize != CELL_BYTES {
            return Err(broken());
        }
        let mut value = [0; CELL_BYTES];
        self.shared.pool.at(hit.addr).plus(hit.header.value_offset()).read(&mut value);
        let cell = cell::from_value(&value).ok_or_else(broken)?;
        // Where clients can write entries, one may name anything.
        let is_own = !self.is_cas() || self.shared.pool.is_cell(cell, self.id());
        if is_own { Ok(cell) } else { Err(broken()) }
    }

    /// A counter ends: no change of its number counts from now on. Its entry goes next. One that
    /// has ended, whose entry could not go then, stays so: twice would make a number of it again.
    fn end_cell(&self, cell: LogAddr) -> Result<(), RpcError> {
        match cell::number(self.shared.pool.at(cell).load()) {
            Some(_) => self.shared.fetch_add(cell, DELETED).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Ends the counter whose entry is at `addr`, if it is one, and whose table goes.
    pub(super) fn end_counter_of_dropped(&self, addr: LogAddr, header: EntryHeader) {
        if header.is_counter() {
            let cell = self.cell_of(&Hit { slot_bytes: 0, addr, header });
            // What cannot be ended is no use to anybody either: its table is gone.
            let _logged = cell.and_then(|cell| self.end_cell(cell));
        }
    }

    /// Before an entry goes: if it is a counter's, that ends. Gives its cell, for
    /// [`Self::counter_has_gone`].
    pub(super) fn end_counter_if(&self, hit: &Hit) -> Result<Option<LogAddr>, RpcError> {
        if !hit.header.is_counter() {
            return Ok(None);
        }
        let end = |cell| match holds(Rule::CounterEndsFirst) {
            true => self.end_cell(cell).map(|()| Some(cell)),
            false => Ok(Some(cell)),
        };
        match self.cell_of(hit).and_then(end) {
            // A client has made it name no cell of this table: there is none to end.
            Err(error) if self.is_cas() && error.code == ErrorCode::WrongType => Ok(None),
            ended => ended,
        }
    }

    /// The entry of a counter that has ended is gone, and nothing leads to its cell.
    pub(super) fn counter_has_gone(&self, cell: Option<LogAddr>) -> Result<(), RpcError> {
        let Some(cell) = cell else { return Ok(()) };
        if !holds(Rule::CounterEndsFirst) {
            self.end_cell(cell)?;
        }
        // Where clients can write entries, other ones may name it.
        if !self.is_cas() {
            self.cells.has_ended(cell, &self.shared, self.id());
        }
        Ok(())
    }
}

/// Clients may write cells, and one of this tenant's has.
fn broken() -> RpcError {
    let text = "the counter's memory holds no number: a client has overwritten it; put a value in \
                its place, or delete it";
    RpcError::new(ErrorCode::WrongType, text)
}
