//! A thread that does all kinds of operations at random on a few keys and records them, for the
//! checker of histories.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use onesided::{Error, Expect, PutOptions, Ttl, blocking};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;

use crate::journal::{Journal, LIFE_S, STAMP_BYTES, STAMP_OFFSET, content, now_ns, piece, stamp};
use crate::linearize::{self, Content, Op, Ret};

/// Few, so that many meet on each.
pub(crate) const KEYS: usize = 12;

/// Keys behind those whose values have short lives, and are seldom replaced before they end.
pub(crate) const SHORT_LIVED: usize = 8;
/// A worker that [`Worker::has_short_lived`] spends one of so many steps on them.
const SHORT_LIVED_ONE_IN: u32 = 12;

pub(crate) fn key(n: usize) -> String {
    format!("shared-{n}")
}

pub(crate) struct Worker<'t> {
    table: &'t blocking::Table,
    /// By key: they know where a counter was.
    counters: [blocking::Counter; KEYS],
    random: SmallRng,
    journal: Journal,
    /// Versions to expect.
    seen: [u64; KEYS + SHORT_LIVED],
    short_lived: bool,
    /// Its client may lose its session: then what became of an operation is not known.
    may_fail: bool,
    /// Operations that failed so.
    pub(crate) failed: u64,
}

impl<'t> Worker<'t> {
    pub(crate) fn new(table: &'t blocking::Table, random: SmallRng, journal: Journal) -> Self {
        let counters = std::array::from_fn(|n| table.counter(key(n)));
        let seen = [0; KEYS + SHORT_LIVED];
        let (short_lived, may_fail, failed) = (false, false, 0);
        Self { table, counters, random, journal, seen, short_lived, may_fail, failed }
    }

    /// Some of its keys have values that expire.
    pub(crate) fn has_short_lived(self) -> Self {
        Self { short_lived: true, ..self }
    }

    /// From now on its client may lose its session.
    pub(crate) fn may_fail(self) -> Self {
        Self { may_fail: true, ..self }
    }

    /// An operation without an answer.
    fn fails(&mut self, error: &Error) {
        assert!(self.may_fail, "{error}");
        self.failed += 1;
    }

    pub(crate) fn step(&mut self) {
        if self.short_lived && self.random.random_ratio(1, SHORT_LIVED_ONE_IN) {
            return self.short_lived_step();
        }
        let n = self.random.random_range(0..KEYS);
        match self.random.random_range(0..100) {
            0..40 => self.get(n),
            40..48 => self.get_many(),
            // Clients that lose their sessions are about values.
            48..55 if self.may_fail => self.get(n),
            48..55 => self.count(n),
            55..70 => self.put(n, Expect::Any),
            70..75 => self.put_many(),
            75..85 => {
                let expect = self.expect(n);
                self.put(n, expect);
            }
            85..92 => self.delete(n, Expect::Any),
            92..95 => self.delete(n, Expect::Version(self.seen[n])),
            95..97 => self.stamp(n),
            _ => self.append(n),
        }
    }

    fn short_lived_step(&mut self) {
        let n = KEYS + self.random.random_range(0..SHORT_LIVED);
        match self.random.random_range(0..1000) {
            0..8 => self.put_short_lived(n),
            8..10 => self.touch(n),
            10..13 => self.put(n, Expect::Present),
            13..15 => self.append(n),
            15..16 => self.delete(n, Expect::Any),
            _ => self.get(n),
        }
    }

    fn expect(&mut self, n: usize) -> Expect {
        match self.random.random_range(0..3) {
            0 => Expect::Absent,
            1 => Expect::Present,
            _ => Expect::Version(self.seen[n]),
        }
    }

    fn value(&mut self) -> (u64, Vec<u8>) {
        let id = self.journal.unique();
        let len = match self.random.random_range(0..20) {
            0 => self.random.random_range(16_000..60_000),
            _ => self.random.random_range(STAMP_BYTES..300),
        };
        (id, piece(id, len))
    }

    fn found(&mut self, n: usize, call: u32, at: u64, value: Option<onesided::Value>) {
        let ret = match value {
            None => Ret::Absent,
            Some(value) => {
                self.seen[n] = value.version();
                // No piece is as short as a counter's number.
                let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                let content = match number.filter(|_| value.len() < STAMP_BYTES) {
                    Some(number) => Content::Number(number),
                    None => content(&value),
                };
                Ret::Value(content, value.version())
            }
        };
        self.journal.answered_at(call, at, ret);
    }

    pub(crate) fn get(&mut self, n: usize) {
        let call = self.journal.calls(n, Op::Get);
        match self.table.get(key(n)) {
            Ok(value) => self.found(n, call, now_ns(), value),
            Err(error) => self.fails(&error),
        }
    }

    fn get_many(&mut self) {
        let all: Vec<usize> = sample(&mut self.random, KEYS, 4).into_vec();
        let calls: Vec<u32> = all.iter().map(|&n| self.journal.calls(n, Op::Get)).collect();
        let keys: Vec<_> = all.iter().map(|&n| key(n)).collect();
        let values = match self.table.get_many(&keys) {
            Ok(values) => values,
            Err(error) => return self.fails(&error),
        };
        let at = now_ns();
        for ((n, call), value) in all.into_iter().zip(calls).zip(values) {
            self.found(n, call, at, value);
        }
    }

    fn wrote(&mut self, n: usize, call: u32, at: u64, result: Result<u64, Error>) {
        match result {
            Ok(version) => {
                self.seen[n] = version;
                self.journal.answered_at(call, at, Ret::Version(version));
            }
            Err(Error::Unexpected(_)) => self.journal.answered_at(call, at, Ret::Refused),
            // Counters.
            Err(Error::WrongType(_)) => self.journal.answered_at(call, at, Ret::WrongType),
            Err(error) => self.fails(&error),
        }
    }

    /// Something with a counter: one of an absent key comes into being, a value is none.
    fn count(&mut self, n: usize) {
        let [expected, new] = [0; 2].map(|_| self.random.random_range(0..4));
        let op = match self.random.random_range(0..6) {
            0 => Op::Count,
            1 => Op::Swap { expected, new },
            _ => Op::Add { by: new - 1 },
        };
        let call = self.journal.calls(n, op);
        let counter = &self.counters[n];
        let old = match op {
            Op::Add { by } => counter.fetch_add(by),
            Op::Swap { expected, new } => counter.compare_and_swap(expected, new),
            _ => counter.get(),
        };
        match old {
            Ok(old) => self.journal.answered(call, Ret::Old(old)),
            Err(Error::WrongType(_)) => self.journal.answered(call, Ret::WrongType),
            Err(error) => self.fails(&error),
        }
    }

    fn put(&mut self, n: usize, expect: Expect) {
        let (id, value) = self.value();
        let op = Op::Put { content: Content::of(id), expect: model(expect), expiry_s: 0 };
        let call = self.journal.calls(n, op);
        let options = PutOptions::default().expect(expect);
        let result = self.table.put_with(key(n), value, options);
        self.wrote(n, call, now_ns(), result);
    }

    pub(crate) fn put_short_lived(&mut self, n: usize) {
        let (id, value) = self.value();
        let (content, expiry_s) = (Content::of(id), self.journal.expiry());
        let op = Op::Put { content, expect: linearize::Expect::Any, expiry_s };
        let call = self.journal.calls(n, op);
        let options = PutOptions::default().ttl(Ttl::Seconds(LIFE_S));
        let result = self.table.put_with(key(n), value, options);
        self.wrote(n, call, now_ns(), result);
    }

    fn touch(&mut self, n: usize) {
        let call = self.journal.calls(n, Op::Touch { expiry_s: self.journal.expiry() });
        match self.table.touch(key(n), Ttl::Seconds(LIFE_S)) {
            Ok(true) => self.journal.answered(call, Ret::Touched),
            Ok(false) => self.journal.answered(call, Ret::Absent),
            Err(error) => self.fails(&error),
        }
    }

    fn put_many(&mut self) {
        let mut calls = Vec::new();
        let mut pairs = Vec::new();
        for n in sample(&mut self.random, KEYS, 3) {
            let (id, value) = self.value();
            let expect = linearize::Expect::Any;
            let op = Op::Put { content: Content::of(id), expect, expiry_s: 0 };
            calls.push((n, self.journal.calls(n, op)));
            pairs.push((key(n), value));
        }
        let results = self.table.put_many(&pairs);
        let at = now_ns();
        for ((n, call), result) in calls.into_iter().zip(results) {
            self.wrote(n, call, at, result);
        }
    }

    fn append(&mut self, n: usize) {
        let (id, value) = self.value();
        let call = self.journal.calls(n, Op::Append { piece: id });
        let result = self.table.append(key(n), value);
        self.wrote(n, call, now_ns(), result);
    }

    fn stamp(&mut self, n: usize) {
        let id = self.journal.unique();
        let call = self.journal.calls(n, Op::Stamp { stamp: id });
        match self.table.write_at(key(n), STAMP_OFFSET, stamp(id)) {
            Ok(None) => self.journal.answered(call, Ret::Absent),
            Ok(Some(version)) => self.wrote(n, call, now_ns(), Ok(version)),
            Err(error) => self.wrote(n, call, now_ns(), Err(error)),
        }
    }

    fn delete(&mut self, n: usize, expect: Expect) {
        let call = self.journal.calls(n, Op::Delete { expect: model(expect) });
        let ret = match self.table.delete_with(key(n), expect) {
            Ok(true) => Ret::Deleted,
            Ok(false) => Ret::Absent,
            Err(Error::Unexpected(_)) => Ret::Refused,
            Err(error) => return self.fails(&error),
        };
        self.journal.answered(call, ret);
    }
}

fn model(expect: Expect) -> linearize::Expect {
    match expect {
        Expect::Any => linearize::Expect::Any,
        Expect::Absent => linearize::Expect::Absent,
        Expect::Present => linearize::Expect::Present,
        Expect::Version(version) => linearize::Expect::Version(version),
    }
}
