//! Maps of this process: what no store that lies outside of it can do better.

use std::sync::Arc;

use anyhow::{Result, bail};
use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::Mutex;

use super::patch::{patch, write_at};
use super::{Counters, Description, Operation, Outcome, Session, Target, Usage};

type Key = Box<[u8]>;
type Locked = Mutex<HashMap<Key, Vec<u8>>>;
type Sharded = dashmap::DashMap<Key, Vec<u8>, DefaultHashBuilder>;

/// `map://`, or `map://?kind=dashmap`.
pub(super) enum Map {
    /// hashbrown behind one lock.
    Locked(Arc<Locked>),
    /// Many locks.
    Sharded(Arc<Sharded>),
}

impl Map {
    /// Of what follows the scheme.
    pub(super) fn open(rest: &str) -> Result<Self> {
        match rest {
            "" | "?kind=hashbrown" => Ok(Self::Locked(Arc::default())),
            "?kind=dashmap" => Ok(Self::Sharded(Arc::default())),
            _ => bail!("`{rest}`: there are map://, map://?kind=hashbrown, map://?kind=dashmap"),
        }
    }
}

impl Target for Map {
    fn name(&self) -> String {
        match self {
            Self::Locked(_) => "map hashbrown".to_owned(),
            Self::Sharded(_) => "map dashmap".to_owned(),
        }
    }

    fn describe(&self) -> Result<Description> {
        let locks = match self {
            Self::Locked(_) => "hashbrown's HashMap behind one lock",
            Self::Sharded(_) => "DashMap with hashbrown's hash function",
        };
        let notes = vec![
            format!("{locks}, in this process; reads lend the record, nothing is copied"),
            "times to live are ignored".to_owned(),
        ];
        Ok(Description { transport: "none".to_owned(), notes, ..Description::default() })
    }

    fn session(&self, _client: usize) -> Result<Box<dyn Session>> {
        let patched = Vec::new();
        Ok(match self {
            Self::Locked(map) => Box::new(LockedSession { map: Arc::clone(map), patched }),
            Self::Sharded(map) => Box::new(ShardedSession { map: Arc::clone(map), patched }),
        })
    }

    fn usage(&self) -> Result<Option<Usage>> {
        Ok(None)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn clear(&self) -> Result<()> {
        match self {
            Self::Locked(map) => map.lock().clear(),
            Self::Sharded(map) => map.clear(),
        }
        Ok(())
    }
}

/// Changes a part of a record where it is.
fn change(
    record: Option<&mut Vec<u8>>,
    operation: &Operation<'_>,
    patched: &mut Vec<u8>,
    place: usize,
    answer: &mut dyn FnMut(usize, Outcome<'_>),
) {
    let Some(record) = record else { return answer(place, Outcome::Absent) };
    if let Operation::Update { offset, bytes, .. } = *operation {
        write_at(record, offset, bytes);
        return answer(place, Outcome::Done);
    }
    match patch(operation, record, patched) {
        Ok(()) => {
            record.clone_from(patched);
            answer(place, Outcome::Done);
        }
        Err(error) => answer(place, Outcome::Failed(&error.to_string())),
    }
}

struct LockedSession {
    map: Arc<Locked>,
    patched: Vec<u8>,
}

impl Session for LockedSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        let mut map = self.map.lock();
        for (place, operation) in batch.iter().enumerate() {
            match *operation {
                Operation::Read { key } => match map.get(key) {
                    Some(value) => answer(place, Outcome::Found(value)),
                    None => answer(place, Outcome::Absent),
                },
                Operation::Insert { key, value, .. }
                | Operation::Update { key, bytes: value, whole: true, .. } => {
                    match map.get_mut(key) {
                        Some(record) => {
                            record.clear();
                            record.extend_from_slice(value);
                        }
                        None => drop(map.insert(key.into(), value.to_vec())),
                    }
                    answer(place, Outcome::Done);
                }
                Operation::Update { key, .. } | Operation::Replace { key, .. } => {
                    change(map.get_mut(key), operation, &mut self.patched, place, answer);
                }
                Operation::Scan { .. } => answer(place, Outcome::Unsupported),
                Operation::Delete { key } => match map.remove(key) {
                    Some(_) => answer(place, Outcome::Done),
                    None => answer(place, Outcome::Absent),
                },
            }
        }
        Ok(())
    }
}

struct ShardedSession {
    map: Arc<Sharded>,
    patched: Vec<u8>,
}

impl Session for ShardedSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        for (place, operation) in batch.iter().enumerate() {
            match *operation {
                Operation::Read { key } => match self.map.get(key) {
                    Some(value) => answer(place, Outcome::Found(&value)),
                    None => answer(place, Outcome::Absent),
                },
                Operation::Insert { key, value, .. }
                | Operation::Update { key, bytes: value, whole: true, .. } => {
                    match self.map.get_mut(key) {
                        Some(mut record) => {
                            record.clear();
                            record.extend_from_slice(value);
                        }
                        None => drop(self.map.insert(key.into(), value.to_vec())),
                    }
                    answer(place, Outcome::Done);
                }
                Operation::Update { key, .. } | Operation::Replace { key, .. } => {
                    let mut record = self.map.get_mut(key);
                    let record = record.as_deref_mut();
                    change(record, operation, &mut self.patched, place, answer);
                }
                Operation::Scan { .. } => answer(place, Outcome::Unsupported),
                Operation::Delete { key } => match self.map.remove(key) {
                    Some(_) => answer(place, Outcome::Done),
                    None => answer(place, Outcome::Absent),
                },
            }
        }
        Ok(())
    }
}
