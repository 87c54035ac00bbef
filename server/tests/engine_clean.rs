//! Cleaning: a store in which keys are overwritten goes on, and every key stays what it was.

mod engine_support;

use std::sync::Arc;

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Cleaning, Engine, EngineConfig, Table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn table(engine: &Arc<Engine>) -> Arc<Table> {
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    engine.table(info.id).expect("by id")
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:08}").into_bytes()
}

fn value(n: u32, round: u32, len_bytes: usize) -> Vec<u8> {
    let mut value = vec![(n ^ round) as u8; len_bytes];
    value[..4].copy_from_slice(&n.to_le_bytes());
    value[4..8].copy_from_slice(&round.to_le_bytes());
    value
}

/// Bytes of an entry.
fn entry_bytes(len_bytes: usize) -> u64 {
    (32 + key(0).len() + len_bytes).next_multiple_of(16) as u64
}

/// Puts as many keys as make this part of the memory live, in thousandths; gives their number.
fn fill(engine: &Engine, table: &Table, len_bytes: usize, per_mille: u64) -> u32 {
    for n in 0.. {
        let status = engine.memory_status();
        let used_bytes = status.log_live_bytes + status.meta_bytes;
        if used_bytes * 1_000 >= status.limit_bytes * per_mille {
            return n;
        }
        table.put(&key(n), &value(n, 0, len_bytes), Expect::Absent, Ttl::Never, n).expect("put");
    }
    unreachable!("memory without end")
}

/// Overwrites keys at random so often that each is overwritten 20 times on average.
fn overwrite(engine: &Engine, table: &Table, keys: u32, len_bytes: usize, seed: u64) -> Vec<u32> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut rounds = vec![0; keys as usize];
    for _ in 0..20 * keys {
        let n = random.random_range(0..keys);
        let round = &mut rounds[n as usize];
        *round += 1;
        let value = value(n, *round, len_bytes);
        let put = table.put(&key(n), &value, Expect::Present, Ttl::Never, n);
        put.unwrap_or_else(|error| {
            panic!("key {n}, round {round}: {error} {:?}", engine.memory_status())
        });
    }
    rounds
}

fn check(engine: &Engine, table: &Table, rounds: &[u32], len_bytes: usize) {
    let reader = RawReader::open(engine, "t").expect("in the catalog");
    for (n, &round) in (0..).zip(rounds) {
        assert_eq!(reader.value(&key(n)), value(n, round, len_bytes), "key {n}");
        let stored = table.get(&key(n), &mut Vec::new()).expect("there");
        assert_eq!(stored.user_flags, n);
    }
    let live_bytes = engine.memory_status().log_live_bytes;
    assert_eq!(live_bytes, rounds.len() as u64 * entry_bytes(len_bytes), "live bytes");
}

/// Long segments, as they are by default in a larger memory: an eighth of a segment holds many
/// entries.
fn config(memory_bytes: usize) -> EngineConfig {
    EngineConfig { segment_bytes: memory_bytes / 256, ..small(memory_bytes) }
}

#[test]
fn overwriting_goes_on_at_ninety_per_cent() {
    for (len_bytes, cleaner_thread) in [(30, false), (100, true), (100, false)] {
        let config = EngineConfig { cleaner_thread, ..config(4 << 20) };
        let (engine, _) = engine(config);
        let table = table(&engine);
        let keys = fill(&engine, &table, len_bytes, 900);
        let rounds = overwrite(&engine, &table, keys, len_bytes, 1);
        println!(
            "{len_bytes} bytes: {:?} {:?}",
            engine.memory_status().cleaning,
            engine.memory_status()
        );
        check(&engine, &table, &rounds, len_bytes);
    }
}

#[test]
fn a_full_store_refuses_what_makes_it_fuller_and_takes_the_rest() {
    let (engine, _) = engine(config(4 << 20));
    let table = table(&engine);
    let put = |n: u32, round: u32, len_bytes: usize| {
        table.put(&key(n), &value(n, round, len_bytes), Expect::Any, Ttl::Never, n)
    };
    let keys = (0..).find(|&n| put(n, 0, 200).is_err()).expect("memory is finite");
    let live_bytes = u64::from(keys) * entry_bytes(200);
    let status = engine.memory_status();
    let utilisation = (live_bytes + status.meta_bytes) * 100 / status.limit_bytes;
    assert!(utilisation >= 93, "{utilisation} % of {status:?}");
    let error = put(keys, 0, 200).expect_err("full");
    assert_eq!(error.code, ErrorCode::OutOfMemory);
    assert!(error.text.contains("nothing was changed"), "{error}");
    assert_eq!(put(0, 1, 3_000).expect_err("longer").code, ErrorCode::OutOfMemory);
    // Overwriting with as many bytes, and then with fewer, goes on for ever, whatever is refused
    // in between.
    let mut random = SmallRng::seed_from_u64(3);
    let mut rounds = vec![0; keys as usize];
    for round in 1..3 * keys {
        let n = random.random_range(0..keys);
        put(n, round, 200).unwrap_or_else(|error| panic!("round {round}: {error}"));
        rounds[n as usize] = round;
        assert!(put(keys + round, 0, 200).is_err(), "round {round}: a new key");
    }
    check(&engine, &table, &rounds, 200);
    for n in (0..keys).step_by(10) {
        put(n, 0, 100).unwrap_or_else(|error| panic!("key {n}, shorter: {error}"));
    }
    // What is deleted makes room.
    let deleted = keys / 5;
    (0..deleted).for_each(|n| assert!(table.delete(&key(n), Expect::Any).expect("delete")));
    let more = (keys..).find(|&n| put(n, 0, 200).is_err()).expect("memory is finite") - keys;
    assert!(more >= deleted * 8 / 10, "{more} keys after {deleted} were deleted");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    (keys..keys + more).for_each(|n| assert_eq!(reader.value(&key(n)), value(n, 0, 200)));
    (0..deleted).for_each(|n| assert!(!matches!(reader.get(&key(n)), Raw::Hit(..)), "key {n}"));
}

#[test]
fn nothing_moves_when_nothing_is_to_gain() {
    let (engine, _) = engine(EngineConfig { cleaner_thread: true, ..config(4 << 20) });
    let table = table(&engine);
    let put = |n| table.put(&key(n), &value(n, 0, 200), Expect::Any, Ttl::Never, n);
    let keys = (0..).find(|&n| put(n).is_err()).expect("memory is finite");
    (keys..keys + 100).for_each(|n| assert!(put(n).is_err()));
    let status = engine.memory_status().cleaning;
    assert_eq!((status.moved_entries, status.segments), (0, 0), "{status:?}");
}

#[test]
fn without_cleaning_memory_comes_back_only_when_all_of_a_segment_is_dead() {
    let (engine, _) = engine(EngineConfig { cleaning: Cleaning::Off, ..config(4 << 20) });
    let table = table(&engine);
    let put = |n| table.put(&key(n), &value(n, 0, 200), Expect::Any, Ttl::Never, n);
    let keys = (0..).find(|&n| put(n).is_err()).expect("memory is finite");
    (0..keys).step_by(2).for_each(|n| assert!(table.delete(&key(n), Expect::Any).is_ok()));
    assert!((keys..keys + 100).any(|n| put(n).is_err()), "there is room without cleaning");
}

#[test]
fn cleaning_removes_what_has_expired() {
    let (engine, clock) = engine(config(4 << 20));
    let table = table(&engine);
    let ttl = |n: u32| if n.is_multiple_of(2) { Ttl::Seconds(5) } else { Ttl::Never };
    let put = |n| table.put(&key(n), &value(n, 0, 200), Expect::Any, ttl(n), n);
    let keys = (0..).find(|&n| put(n).is_err()).expect("memory is finite");
    clock.advance_s(6);
    while engine.clean() {}
    // Found by looking for something dead: what expires is not counted as dead before.
    (1..keys).step_by(20).for_each(|n| assert!(table.delete(&key(n), Expect::Any).is_ok()));
    while engine.clean() {}
    let status = engine.memory_status().cleaning;
    assert!(status.expired_entries > 0, "{status:?}");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    for n in (1..keys).step_by(2).filter(|n| n % 20 != 1) {
        assert_eq!(reader.value(&key(n)), value(n, 0, 200), "key {n}");
    }
}

#[test]
fn aggressive_cleaning_loses_nothing() {
    for cleaner_thread in [false, true] {
        let cleaning = Cleaning::Aggressive;
        let (engine, _) = engine(EngineConfig { cleaning, cleaner_thread, ..config(4 << 20) });
        let table = table(&engine);
        let keys = fill(&engine, &table, 100, 500);
        let large = vec![7; 40_000];
        table.put(b"large", &large, Expect::Any, Ttl::Never, 0).expect("put");
        let mut rounds = vec![0; keys as usize];
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        let mut random = SmallRng::seed_from_u64(5);
        for round in 1..20_000 {
            let n = random.random_range(0..keys);
            rounds[n as usize] = round;
            let put = table.put(&key(n), &value(n, round, 100), Expect::Any, Ttl::Never, n);
            put.expect("put");
            engine.clean();
            match reader.get(&key(n)) {
                Raw::Hit(_, found) => assert_eq!(found, value(n, round, 100)),
                // It may move between two looks, again and again.
                other => assert!(cleaner_thread && other == Raw::Unproven, "{other:?}"),
            }
        }
        assert!(engine.memory_status().cleaning.moved_entries > 100_000);
        assert_eq!(engine.memory_status().cleaning.given_up, 0);
        drop(reader);
        for (n, &round) in (0..).zip(&rounds) {
            let mut found = Vec::new();
            table.get(&key(n), &mut found).expect("there");
            assert_eq!(found, value(n, round, 100), "key {n}");
        }
        let mut found = Vec::new();
        table.get(b"large", &mut found).expect("there");
        assert_eq!(found, large);
    }
}

fn evicting(engine: &Arc<Engine>, quota_bytes: u64) -> Arc<Table> {
    let options = TableOptions { quota_bytes, evict: true, ..TableOptions::default() };
    let info = engine.create_table("t", options).expect("table");
    engine.table(info.id).expect("by id")
}

#[test]
fn a_table_that_evicts_takes_everything_and_others_lose_nothing() {
    for (cleaner_thread, quota_bytes) in [(false, 0), (true, 0), (false, 1 << 20)] {
        let (engine, _) = engine(EngineConfig { cleaner_thread, ..config(4 << 20) });
        let table = evicting(&engine, quota_bytes);
        let info = engine.create_table("stays", TableOptions::default()).expect("table");
        let stays = engine.table(info.id).expect("by id");
        (0..500).for_each(|n| {
            stays.put(&key(n), &value(n, 1, 200), Expect::Any, Ttl::Never, 0).expect("put");
        });
        // Ten times the memory.
        let total = 160_000;
        for n in 0..total {
            let put = table.put(&key(n), &value(n, 0, 200), Expect::Absent, Ttl::Never, n);
            put.unwrap_or_else(|error| panic!("key {n}: {error} {:?}", engine.memory_status()));
        }
        let status = engine.list_tables();
        let (kept, evicted) = (status[1].keys, status[1].evicted_entries);
        assert_eq!(kept + evicted, u64::from(total), "{status:?}");
        let limit_bytes = if quota_bytes == 0 { 4 << 20 } else { quota_bytes };
        let used = (kept * entry_bytes(200) + status[1].index_bytes) * 100 / limit_bytes;
        assert!(used >= 55, "{used} % are used: {status:?}");
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        let is_there = |n: u32| match reader.get(&key(n)) {
            Raw::Hit(_, found) => found == value(n, 0, 200),
            _ => false,
        };
        let mut newest = total - kept as u32 / 40..total;
        assert!(newest.all(is_there), "what was written a moment ago is there");
        let reader = RawReader::open(&engine, "stays").expect("in the catalog");
        (0..500).for_each(|n| assert_eq!(reader.value(&key(n)), value(n, 1, 200)));
        assert_eq!(status[0].evicted_entries, 0);
    }
}

#[test]
fn a_small_quota_of_a_table_that_evicts_is_in_one_segment() {
    let (engine, _) = engine(config(64 << 20));
    let table = evicting(&engine, 300 << 10);
    for n in 0..20_000 {
        let put = table.put(&key(n), &value(n, 0, 200), Expect::Absent, Ttl::Never, n);
        put.unwrap_or_else(|error| panic!("key {n}: {error} {:?}", engine.list_tables()));
    }
    let status = &engine.list_tables()[0];
    assert!(status.log_bytes + status.index_bytes <= 300 << 10, "{status:?}");
}

#[test]
fn long_values_find_a_row_among_short_ones() {
    let (engine, _) = engine(EngineConfig { region_bytes: 1 << 20, ..config(8 << 20) });
    let table = table(&engine);
    let keys = fill(&engine, &table, 200, 850);
    // Every third key: segments are two thirds full, and no block is free.
    let third = || (0..keys).filter(|n| n % 3 == 0);
    third().for_each(|n| assert!(table.delete(&key(n), Expect::Any).expect("delete")));
    let long = |n: u32| vec![n as u8; 400 << 10];
    for n in 0..4 {
        let put = table.put(format!("long {n}").as_bytes(), &long(n), Expect::Any, Ttl::Never, 0);
        put.unwrap_or_else(|error| panic!("{n}: {error} {:?}", engine.memory_status()));
    }
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    (0..4).for_each(|n| assert_eq!(reader.value(format!("long {n}").as_bytes()), long(n)));
    for n in (0..keys).filter(|n| n % 3 != 0) {
        assert_eq!(reader.value(&key(n)), value(n, 0, 200), "key {n}");
    }
}

#[test]
fn values_of_all_lengths_are_overwritten_at_eighty_per_cent() {
    let config = EngineConfig { region_bytes: 8 << 20, ..config(32 << 20) };
    let (engine, _) = engine(config);
    let table = table(&engine);
    let mut random = SmallRng::seed_from_u64(9);
    // Log-uniform from 1 byte to 1 MiB.
    let mut len = move || 2_f64.powf(random.random_range(0.0..20.0)) as usize;
    let mut lens = Vec::new();
    let mut live_bytes = 0;
    while live_bytes < (32 << 20) * 7 / 10 {
        lens.push((len(), 0_u8));
        live_bytes += lens[lens.len() - 1].0 + 64;
    }
    let fill = |(len_bytes, round): (usize, u8)| vec![round; len_bytes];
    for (n, &what) in (0..).zip(&lens) {
        table.put(&key(n), &fill(what), Expect::Any, Ttl::Never, 0).expect("put");
    }
    let mut random = SmallRng::seed_from_u64(10);
    for round in 0..20 * lens.len() {
        let n = random.random_range(0..lens.len());
        // Two change lengths, so that the sum stays.
        let m = random.random_range(0..lens.len());
        let (a, b) = (lens[n].0, lens[m].0);
        (lens[n], lens[m]) = ((b, round as u8), (a, round as u8));
        let shorter_first = if a > b { [n, m] } else { [m, n] };
        for n in shorter_first {
            let put = table.put(&key(n as u32), &fill(lens[n]), Expect::Any, Ttl::Never, 0);
            put.unwrap_or_else(|error| {
                let status = engine.memory_status();
                panic!("round {round}, {} bytes: {error} {status:?}", lens[n].0)
            });
        }
    }
    println!("{:?}", engine.memory_status());
    for (n, &what) in (0..).zip(&lens) {
        let mut found = Vec::new();
        table.get(&key(n), &mut found).expect("there");
        assert!(found == fill(what), "key {n}");
    }
}
