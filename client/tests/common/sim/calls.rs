//! What clients call, and how the answers are recorded.

use std::rc::Rc;

use onesided::{Counter, Error, Expect as ApiExpect, KeyRange, PutOptions, Table, Ttl};

use super::{Sim, key};
use crate::linearize::{Content, Expect, Op, Ret};
use crate::values::{STAMP_OFFSET, content_of, piece, stamp};

/// One call of a client.
#[derive(Clone, Debug)]
pub enum Call {
    /// One key, or several at once.
    Get(Vec<usize>),
    /// One key, into a buffer that is lent to the client.
    GetLent(usize),
    /// All of so many keys, by scans of so many at a time: a look at each of them.
    Scan { keys: usize, at_a_time: usize },
    /// Something with a counter, by the client's handle.
    Count { key: usize, op: Op },
    /// A mutation. `bytes` is what it carries.
    Change { key: usize, op: Op, bytes: Vec<u8>, ttl_s: u32 },
}

/// What a call came to: an answer for each key; `None`: nobody knows.
pub type Answers = Result<Vec<Option<Ret>>, Error>;

impl Call {
    /// Keys and operations, as the history has them.
    pub fn operations(&self) -> Vec<(usize, Op)> {
        match self {
            Self::Get(keys) => keys.iter().map(|&key| (key, Op::Get)).collect(),
            Self::Scan { keys, .. } => (0..*keys).map(|key| (key, Op::Get)).collect(),
            Self::GetLent(key) => vec![(*key, Op::Get)],
            Self::Change { key, op, .. } | Self::Count { key, op } => vec![(*key, *op)],
        }
    }

    /// Makes the call.
    pub async fn make(self, table: Table, counters: Rc<Vec<Counter>>) -> Answers {
        match self {
            Self::Get(keys) => {
                let wanted: Vec<_> = keys.into_iter().map(key).collect();
                let values = match &wanted[..] {
                    [only] => vec![table.get(only).await?],
                    _ => table.get_many(&wanted).await?,
                };
                let answer = |value: Option<onesided::Value>| match value {
                    Some(value) => Ret::Value(content_of(&value), value.version()),
                    None => Ret::Absent,
                };
                Ok(values.into_iter().map(|value| Some(answer(value))).collect())
            }
            Self::Scan { keys, at_a_time } => scan(&table, keys, at_a_time).await,
            Self::GetLent(number) => Ok(vec![Some(get_lent(&table, &key(number)).await?)]),
            Self::Count { key, op } => match count(&counters[key], op).await {
                Ok(old) => Ok(vec![Some(Ret::Old(old))]),
                Err(Error::WrongType(_)) => Ok(vec![Some(Ret::WrongType)]),
                Err(Error::OutcomeUnknown { .. }) => Ok(vec![None]),
                Err(error) => Err(error),
            },
            Self::Change { key: number, op, bytes, ttl_s } => {
                match change(&table, &key(number), op, &bytes, ttl_s).await {
                    Ok(ret) => Ok(vec![Some(ret)]),
                    Err(Error::Unexpected(_)) => Ok(vec![Some(Ret::Refused)]),
                    Err(Error::WrongType(_)) => Ok(vec![Some(Ret::WrongType)]),
                    Err(Error::OutcomeUnknown { .. }) => Ok(vec![None]),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

async fn count(counter: &Counter, op: Op) -> Result<i64, Error> {
    match op {
        Op::Add { by } => counter.fetch_add(by).await,
        Op::Swap { expected, new } => counter.compare_and_swap(expected, new).await,
        _ => counter.get().await,
    }
}

/// What is not met was absent at some moment.
async fn scan(table: &Table, keys: usize, at_a_time: usize) -> Answers {
    let mut met: Vec<(Vec<u8>, Ret)> = Vec::new();
    let mut range = KeyRange::prefix("key-");
    loop {
        let page = table.scan_range(&range, at_a_time).await?;
        let is_last = page.len() < at_a_time;
        for (key, value) in page {
            assert!(met.last().is_none_or(|(last, _)| *last < key), "{key:?} after {met:?}");
            range = range.after(&key);
            met.push((key, Ret::Value(content_of(&value), value.version())));
        }
        if is_last {
            break;
        }
    }
    let of = |number| met.iter().find(|(met, _)| *met == key(number));
    let answers = (0..keys).map(|number| Some(of(number).map_or(Ret::Absent, |(_, ret)| *ret)));
    let answers: Vec<_> = answers.collect();
    assert_eq!(met.len(), answers.iter().filter(|ret| **ret != Some(Ret::Absent)).count());
    Ok(answers)
}

async fn get_lent(table: &Table, key: &[u8]) -> Result<Ret, Error> {
    let mut buffer = table.buffer(500);
    loop {
        let got;
        (buffer, got) = table.get_into_registered(key, buffer).await;
        match got {
            Ok(Some(meta)) => return Ok(Ret::Value(content_of(&buffer), meta.version)),
            Ok(None) => return Ok(Ret::Absent),
            Err(Error::BufferTooSmall { needed_bytes, capacity_bytes }) => {
                assert!(needed_bytes > capacity_bytes && buffer.is_empty());
                buffer = table.buffer(needed_bytes);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn change(table: &Table, key: &[u8], op: Op, bytes: &[u8], ttl_s: u32) -> Result<Ret, Error> {
    let ttl = if ttl_s == 0 { Ttl::Never } else { Ttl::Seconds(ttl_s) };
    Ok(match op {
        Op::Put { expect, .. } => {
            let options = PutOptions::default().ttl(ttl).expect(api(expect));
            Ret::Version(table.put_with(key, bytes, options).await?)
        }
        Op::Delete { expect } => match table.delete_with(key, api(expect)).await? {
            true => Ret::Deleted,
            false => Ret::Absent,
        },
        Op::Append { .. } => Ret::Version(table.append(key, bytes).await?),
        Op::Increment { by } => Ret::Number(table.increment(key, by).await?, None),
        Op::Stamp { .. } => match table.write_at(key, STAMP_OFFSET as u64, bytes).await? {
            Some(version) => Ret::Version(version),
            None => Ret::Absent,
        },
        Op::Touch { .. } => match table.touch(key, ttl).await? {
            true => Ret::Touched,
            false => Ret::Absent,
        },
        Op::Add { .. } | Op::Swap { .. } | Op::Count => unreachable!("by a handle"),
        Op::Get | Op::Clock { .. } | Op::Ends { .. } => Ret::Ticked,
    })
}

pub fn api(expect: Expect) -> ApiExpect {
    match expect {
        Expect::Any => ApiExpect::Any,
        Expect::Absent => ApiExpect::Absent,
        Expect::Present => ApiExpect::Present,
        Expect::Version(version) => ApiExpect::Version(version),
    }
}

impl Sim {
    /// A call as the plan's weights say.
    pub fn random_call(&self) -> Call {
        if self.pick(100) < self.plan.count_percent {
            let op = match self.pick(8) {
                0 => Op::Count,
                1 => Op::Swap { expected: self.random_number(), new: self.random_number() },
                2 | 3 if self.plan.counts_far => {
                    Op::Swap { expected: self.random_number(), new: self.random_number() }
                }
                _ => Op::Add { by: self.pick(7) as i64 - 3 },
            };
            self.mutations.update(|n| n + usize::from(op != Op::Count));
            return Call::Count { key: self.random_key(), op };
        }
        if self.pick(100) < self.plan.gets_percent {
            if self.plan.ordered && self.pick(12) == 0 {
                let at_a_time = 1 + self.pick(4) as usize;
                return Call::Scan { keys: self.plan.keys, at_a_time };
            }
            let count = if self.pick(4) == 0 { 1 + self.pick(self.plan.keys as u64) } else { 1 };
            let mut keys: Vec<_> = (0..count).map(|_| self.random_key()).collect();
            keys.dedup();
            return match keys[..] {
                [key] if self.pick(2) == 0 => Call::GetLent(key),
                _ => Call::Get(keys),
            };
        }
        self.mutations.update(|n| n + 1);
        self.random_change()
    }

    /// A small one; or one of the last that a counter holds.
    fn random_number(&self) -> i64 {
        match self.plan.counts_far && self.pick(3) > 0 {
            true => Counter::MAX - self.pick(2) as i64,
            false => self.pick(4) as i64,
        }
    }

    fn random_key(&self) -> usize {
        self.pick(self.plan.keys as u64) as usize
    }

    fn random_change(&self) -> Call {
        let w = self.plan.weights;
        let short_lived = if self.plan.clock_moves { w.put_short_lived } else { 0 };
        let touch = if self.plan.clock_moves { w.touch } else { 0 };
        let kinds = [w.put, w.put_if, short_lived, w.delete, w.append, w.increment, touch, w.stamp];
        let mut at = self.pick(kinds.iter().sum());
        let kind = kinds.iter().position(|&weight| {
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        let key = self.random_key();
        let on = |op, ttl_s| Call::Change { key, op, bytes: Vec::new(), ttl_s };
        match kind {
            Some(1) => self.put(key, self.random_expect(), 0),
            // Clients that give an expiry themselves are wrong by up to a second.
            Some(2) => {
                let ttl_s = 1 + self.pick(2) as u32 + u32::from(self.plan.cas);
                self.put(key, Expect::Any, ttl_s)
            }
            Some(3) => {
                let any = self.pick(4) > 0;
                on(Op::Delete { expect: if any { Expect::Any } else { self.random_expect() } }, 0)
            }
            Some(4) => {
                let (number, bytes) = self.next_piece();
                Call::Change { key, op: Op::Append { piece: number }, bytes, ttl_s: 0 }
            }
            Some(5) => on(Op::Increment { by: 1 + self.pick(5) as i64 }, 0),
            Some(6) => on(Op::Touch { expiry_s: 0 }, self.pick(3) as u32),
            Some(7) => self.stamp(key),
            _ => self.put(key, Expect::Any, 0),
        }
    }

    /// A put of bytes that were never written before.
    pub fn put(&self, key: usize, expect: Expect, ttl_s: u32) -> Call {
        let (number, bytes) = self.next_piece();
        let op = Op::Put { content: Content::of(number), expect, expiry_s: 0 };
        Call::Change { key, op, bytes, ttl_s }
    }

    /// Some bytes of a value replaced by others that were never written before.
    pub fn stamp(&self, key: usize) -> Call {
        let (number, _) = self.next_piece();
        Call::Change { key, op: Op::Stamp { stamp: number }, bytes: stamp(number), ttl_s: 0 }
    }

    fn next_piece(&self) -> (u64, Vec<u8>) {
        let number = self.pieces.get() + 1;
        self.pieces.set(number);
        let (from, to) = match self.pick(self.plan.large_one_in) {
            0 if self.plan.large_one_in < u64::MAX => (16_400, 20_000),
            _ => self.plan.value_bytes,
        };
        (number, piece(number, from + self.pick((to - from) as u64) as usize))
    }

    fn random_expect(&self) -> Expect {
        match self.pick(4) {
            0 => Expect::Absent,
            1 => Expect::Present,
            // One that some key had lately.
            _ => Expect::Version(self.told.get() + self.pick(2)),
        }
    }
}
