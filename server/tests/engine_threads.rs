//! Threads on overlapping keys, with splits and immediate reuse of memory under way.

mod engine_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Acknowledged, Engine, EngineConfig, Table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const WRITERS: u64 = 4;
const SETTLED: u32 = 500;
const SHARED: u32 = 300;
const OWN: u32 = 3_000;
const STEPS: u32 = 20_000;

fn key(kind: char, n: u32) -> Vec<u8> {
    format!("{kind}{n}").into_bytes()
}

/// A value that says whose it is in every word.
fn value(key: &[u8], round: u32) -> Vec<u8> {
    let mut unit = key.to_vec();
    unit.extend_from_slice(&round.to_le_bytes());
    unit.repeat(1 + round as usize % 40)
}

fn assert_whole(key: &[u8], value: &[u8]) {
    let unit = &value[..key.len() + 4];
    assert_eq!(&unit[..key.len()], key, "a foreign value");
    assert!(value.chunks(unit.len()).all(|chunk| chunk == unit), "a torn value");
}

fn start() -> (Arc<Engine>, Arc<Table>) {
    let config = EngineConfig { split_load_percent: 5, ..small(64 << 20) };
    let (engine, _) = engine(config);
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    let table = engine.table(info.id).expect("by id");
    (engine, table)
}

fn put(table: &Table, key: &[u8], round: u32) -> Result<u64, RpcError> {
    table.put(key, &value(key, round), Expect::Any, Ttl::Never, 0)
}

fn write(table: &Table, writer: u64) {
    let mut random = SmallRng::seed_from_u64(writer);
    let mut own = 0;
    for step in 0..STEPS {
        let key = match random.random_range(0..10) {
            0 => key('s', random.random_range(0..SETTLED)),
            1 if own < OWN => {
                own += 1;
                let n = writer as u32 * OWN + own;
                put(table, &key('o', n), n).expect("put");
                continue;
            }
            2 => {
                table.increment(b"sum", 1).expect("increment");
                continue;
            }
            3 => {
                compare_and_set(table);
                continue;
            }
            _ => key('x', random.random_range(0..SHARED)),
        };
        match random.random_range(0..8) {
            0 if key[0] == b'x' => {
                table.delete(&key, Expect::Any).expect("delete");
            }
            1 => {
                table.relocate(&key).expect("relocate");
            }
            2 => {
                let mut value = Vec::new();
                if table.get(&key, &mut value).is_some() {
                    assert_whole(&key, &value);
                }
            }
            _ => {
                put(table, &key, step).expect("put");
            }
        }
    }
}

/// Adds 1 the hard way.
fn compare_and_set(table: &Table) {
    for _ in 0..1_000 {
        let mut value = Vec::new();
        let stored = table.get(b"cas", &mut value).expect("there");
        let sum = u64::from_le_bytes(value.try_into().expect("8 bytes")) + 1;
        let expect = Expect::Version(stored.version);
        match table.put(b"cas", &sum.to_le_bytes(), expect, Ttl::Never, 0) {
            Ok(_) => return,
            Err(error) => assert_eq!(error.code, ErrorCode::Unexpected),
        }
    }
    panic!("somebody else was always faster");
}

fn read(engine: &Engine, done: &AtomicBool, hits: &AtomicU64) {
    let reader = RawReader::open(engine, "t").expect("in the catalog");
    let mut random = SmallRng::seed_from_u64(99);
    while !done.load(Ordering::Acquire) {
        let settled = random.random_bool(0.5);
        let n = random.random_range(0..if settled { SETTLED } else { SHARED });
        let key = key(if settled { 's' } else { 'x' }, n);
        match reader.get(&key) {
            Raw::Hit(_, value) => {
                assert_whole(&key, &value);
                hits.fetch_add(1, Ordering::Relaxed);
            }
            Raw::Miss => assert!(!settled, "a settled key was missed"),
            Raw::Unproven => {}
        }
    }
}

#[test]
fn nothing_is_lost_torn_or_missed() {
    let (engine, table) = start();
    (0..SETTLED).for_each(|n| assert!(put(&table, &key('s', n), 0).is_ok()));
    table.put(b"cas", &0_u64.to_le_bytes(), Expect::Absent, Ttl::Never, 0).expect("put");
    let (done, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(|| read(&engine, &done, &hits)));
        let table = &table;
        let writers = [0, 1, 2, 3].map(|n| scope.spawn(move || write(table, n)));
        assert_eq!(writers.len() as u64, WRITERS);
        let written = writers.map(|thread| thread.join().is_ok());
        done.store(true, Ordering::Release);
        assert_eq!(readers.map(|thread| thread.join().is_ok()), [true; 2]);
        assert_eq!(written, [true; WRITERS as usize]);
    });
    assert!(hits.load(Ordering::Relaxed) > 0);
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    let mut sum = 0;
    let mut counts = [0_u32; 2];
    for writer in 0..WRITERS {
        // Replays the choices, so that it knows what must have come of them.
        let (own, increments, compares) = replay(writer);
        for n in 1..=own {
            let n = writer as u32 * OWN + n;
            assert_eq!(reader.value(&key('o', n)), value(&key('o', n), n));
        }
        sum += i64::from(increments);
        counts[0] += compares;
        counts[1] += own;
    }
    assert_eq!(reader.value(b"sum"), sum.to_string().as_bytes());
    assert_eq!(reader.value(b"cas"), u64::from(counts[0]).to_le_bytes());
    let mut unused = Vec::new();
    let shared = (0..SHARED).filter(|&n| table.get(&key('x', n), &mut unused).is_some()).count();
    let keys = engine.list_tables()[0].keys;
    assert_eq!(keys, u64::from(SETTLED + counts[1] + 2) + shared as u64);
    assert!(engine.list_tables()[0].splits > 10);
}

/// Own keys, increments and compare-and-sets of a writer.
fn replay(writer: u64) -> (u32, u32, u32) {
    let mut random = SmallRng::seed_from_u64(writer);
    let (mut own, mut increments, mut compares) = (0, 0, 0);
    for _ in 0..STEPS {
        match random.random_range(0..10) {
            0 => drop(random.random_range(0..SETTLED)),
            1 if own < OWN => {
                own += 1;
                continue;
            }
            2 => {
                increments += 1;
                continue;
            }
            3 => {
                compares += 1;
                continue;
            }
            _ => drop(random.random_range(0..SHARED)),
        }
        random.random_range(0..8);
    }
    (own, increments, compares)
}

#[test]
fn a_table_is_dropped_under_load() {
    let (engine, first) = start();
    let other = engine.create_table("other", TableOptions::default()).expect("table");
    let other = engine.table(other.id).expect("by id");
    drop(first);
    for round in 0..20 {
        let info = engine.open_table("t").expect("open");
        let table = engine.table(info.id).expect("by id");
        std::thread::scope(|scope| {
            let load = [0, 1].map(|n| {
                let (table, other) = (&table, &other);
                scope.spawn(move || {
                    for step in 0.. {
                        if let Err(error) = put(table, &key('k', step * 2 + n), step) {
                            assert_eq!(error.code, ErrorCode::NoSuchTable, "{error}");
                            break;
                        }
                        put(other, &key('k', step % 50), step).expect("another table's put");
                    }
                })
            });
            while table.info().directory.depth() < 2 {
                std::thread::yield_now();
            }
            engine.drop_table("t", vec![round]).expect("drop");
            assert_eq!(load.map(|thread| thread.join().is_ok()), [true; 2]);
        });
        drop(table);
        engine.reclaim(&Acknowledged::by_all());
        engine.create_table("t", TableOptions::default()).expect("create");
    }
    engine.drop_table("t", Vec::new()).expect("drop");
    engine.drop_table("other", Vec::new()).expect("drop");
    engine.reclaim(&Acknowledged::by_all());
    let status = engine.memory_status();
    assert_eq!(status.free_bytes, status.limit_bytes, "{status:?}");
}
