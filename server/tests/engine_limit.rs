//! At the limit: what makes a full store no fuller is taken, whenever and by whom it is cleaned.

mod engine_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::layout::entry::padded_bytes;
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Cleaning, Engine, EngineConfig, Table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Between two looks.
const MOMENT: std::time::Duration = std::time::Duration::from_micros(100);

/// Blocks of 4 KiB.
fn config() -> EngineConfig {
    EngineConfig { segment_bytes: 32 << 10, ..small(4 << 20) }
}

fn table(engine: &Engine) -> Arc<Table> {
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    engine.table(info.id).expect("by id")
}

/// To a reader that comes with an address of before, none of these bytes are the state word of an
/// entry that leads to another one: it would not find the region of that.
fn value(n: u32, round: u32, len_bytes: usize) -> Vec<u8> {
    vec![(n ^ round) as u8 & 0x3F; len_bytes]
}

fn put(table: &Table, n: u32, round: u32, len_bytes: usize) -> Result<u64, RpcError> {
    table.put(&n.to_le_bytes(), &value(n, round, len_bytes), Expect::Any, Ttl::Never, 0)
}

/// What every key holds: the round that wrote it, and its length.
type Model = Vec<(u32, usize)>;

fn check(engine: &Engine, model: &Model) {
    let reader = RawReader::open(engine, "t").expect("in the catalog");
    for (n, &(round, len_bytes)) in (0..).zip(model) {
        assert_eq!(reader.value(&u32::to_le_bytes(n)), value(n, round, len_bytes), "key {n}");
    }
    let live_bytes: usize = model.iter().map(|&(_, len_bytes)| padded_bytes(4, len_bytes)).sum();
    // A cleaner's thread may have copied an entry, and not released the old one yet.
    let is_so = || engine.memory_status().log_live_bytes == live_bytes as u64;
    let soon = (0..10_000).any(|_| {
        is_so() || {
            std::thread::sleep(MOMENT);
            false
        }
    });
    assert!(soon, "{} of {live_bytes} bytes are live", engine.memory_status().log_live_bytes);
}

/// Puts keys until it is full. Their lengths are drawn.
fn fill(engine: &Engine, table: &Table, random: &mut SmallRng, lens: (usize, usize)) -> Model {
    let mut model = Model::new();
    loop {
        let len_bytes = random.random_range(lens.0..=lens.1);
        match put(table, model.len() as u32, 0, len_bytes) {
            Ok(_) => model.push((0, len_bytes)),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::OutOfMemory, "{error}");
                return model;
            }
        }
        (0..random.random_range(0..4)).for_each(|_| _ = engine.clean_slice());
    }
}

/// Of values of a third of a block a full store fills with segments that end in rests: before
/// entries were written over each other, a PUT in a thousand was refused.
#[test]
fn what_is_no_longer_than_before_is_taken_whenever_it_is_cleaned() {
    let mut in_place_entries = 0;
    for seed in 0..24 {
        let mut random = SmallRng::seed_from_u64(seed);
        let lens = [(1_250, 1_250), (20, 5_000), (2_300, 2_400), (9_000, 9_000)][seed as usize % 4];
        let (engine, _) = engine(EngineConfig { seed, ..config() });
        let table = table(&engine);
        let mut model = fill(&engine, &table, &mut random, lens);
        // Slices of cleaning now and then, and how many.
        let (often, slices) = (random.random_range(1..=30), random.random_range(0..=16));
        let shrinks = random.random_range(0..8) == 0;
        for round in 1..=3 * model.len() as u32 {
            if random.random_range(0..often) == 0 {
                (0..random.random_range(0..=slices)).for_each(|_| _ = engine.clean_slice());
            }
            let n = random.random_range(0..model.len());
            let less_bytes = if shrinks { random.random_range(0..=model[n].1 / 20) } else { 0 };
            model[n] = (round, model[n].1 - less_bytes);
            put(&table, n as u32, round, model[n].1)
                .unwrap_or_else(|error| panic!("seed {seed}, key {n}, round {round}: {error}"));
        }
        check(&engine, &model);
        in_place_entries += engine.memory_status().cleaning.in_place_entries;
        // What is deleted comes back.
        for n in (0..model.len()).step_by(4) {
            assert_eq!(table.delete(&(n as u32).to_le_bytes(), Expect::Any), Ok(true));
        }
        for n in (0..model.len()).step_by(8) {
            put(&table, n as u32, 0, model[n].1)
                .unwrap_or_else(|error| panic!("seed {seed}, key {n} again: {error}"));
        }
    }
    assert!(in_place_entries > 1_000, "{in_place_entries}");
}

/// Shorter and shorter values, the cleaner behind them, and readers who see whole ones only.
#[test]
fn entries_that_are_written_over_longer_ones_are_whole_to_readers_and_to_the_cleaner() {
    for cleaning in [Cleaning::Auto, Cleaning::Aggressive] {
        let (engine, _) = engine(EngineConfig { cleaner_thread: true, cleaning, ..config() });
        let table = table(&engine);
        let mut random = SmallRng::seed_from_u64(5);
        let mut model = fill(&engine, &table, &mut random, (1_250, 1_250));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers = [3, 4].map(|seed| {
                let (engine, over, keys) = (&engine, &over, model.len());
                scope.spawn(move || read_whole_ones(engine, over, keys, seed))
            });
            for round in 1..=6 * model.len() as u32 {
                let n = random.random_range(0..model.len());
                // By units of 16 bytes, and by fewer.
                let less_bytes = random.random_range(0..50).min(model[n].1 - 8);
                model[n] = (round, model[n].1 - less_bytes);
                put(&table, n as u32, round, model[n].1)
                    .unwrap_or_else(|error| panic!("key {n}, round {round}: {error}"));
            }
            over.store(true, Ordering::Relaxed);
            let hits = readers.map(|reader| reader.join().expect("a reader"));
            println!("{hits:?} hits, {:?}", engine.memory_status().cleaning);
        });
        check(&engine, &model);
        assert!(engine.memory_status().cleaning.in_place_entries > 0);
    }
}

/// Values about the length from which on they are large, in segments that they share: where the
/// key lies changes with that length. What makes them longer may be refused.
#[test]
fn large_entries_that_are_written_over_in_shared_segments_are_found_beside_the_cleaner() {
    let mut in_place_entries = 0;
    for (cleaning, lens) in [
        (Cleaning::Auto, [16_000, 16_384, 16_400, 17_000]),
        (Cleaning::Aggressive, [16_000, 16_384, 16_400, 17_000]),
        (Cleaning::Aggressive, [17_000, 20_000, 25_000, 28_000]),
    ] {
        let config = EngineConfig { segment_bytes: 64 << 10, ..small(4 << 20) };
        let (engine, _) = engine(EngineConfig { cleaner_thread: true, cleaning, ..config });
        let table = table(&engine);
        let mut random = SmallRng::seed_from_u64(6);
        let mut model = fill(&engine, &table, &mut random, (lens[0], lens[3]));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = {
                let (engine, over, keys) = (&engine, &over, model.len());
                scope.spawn(move || read_whole_ones(engine, over, keys, 7))
            };
            for round in 1..=3 * model.len() as u32 {
                let n = random.random_range(0..model.len());
                let len_bytes = lens[random.random_range(0..lens.len())];
                match put(&table, n as u32, round, len_bytes) {
                    Ok(_) => model[n] = (round, len_bytes),
                    Err(error) => assert!(
                        error.code == ErrorCode::OutOfMemory && len_bytes > model[n].1,
                        "key {n}, round {round}: {error}"
                    ),
                }
            }
            over.store(true, Ordering::Relaxed);
            println!("{} hits", reader.join().expect("a reader"));
        });
        check(&engine, &model);
        println!("{:?}", engine.memory_status().cleaning);
        in_place_entries += engine.memory_status().cleaning.in_place_entries;
    }
    // How many depends on how much room the cleaner makes meanwhile.
    assert!(in_place_entries > 0);
}

/// What is left behind a long value that is written over by a shorter one is room at once, also
/// within a quota.
#[test]
fn a_long_value_that_is_written_over_gives_back_what_is_left_of_it() {
    const LONG: usize = 600_000;
    const SHORT: usize = 150_000;
    for quota_bytes in [0, 3 << 20] {
        let (engine, _) = engine(config());
        let options = TableOptions { quota_bytes, ..TableOptions::default() };
        let info = engine.create_table("t", options).expect("table");
        let table = engine.table(info.id).expect("by id");
        let mut model = Model::new();
        grow(&table, &mut model, LONG);
        let long_ones = model.len();
        assert!(long_ones > 3, "{model:?}");
        // Until there is room for a short one neither to grow nor to replace.
        grow(&table, &mut model, 2_000);
        for (n, known) in model.iter_mut().enumerate().take(long_ones) {
            *known = (1, SHORT);
            put(&table, n as u32, 1, SHORT).expect("it makes the store no fuller");
        }
        assert!(engine.memory_status().cleaning.in_place_entries > 0);
        check(&engine, &model);
        let more = grow(&table, &mut model, SHORT);
        assert!(
            more >= 2 * long_ones,
            "{more} where {long_ones} went that were four times as long"
        );
        check(&engine, &model);
    }
}

/// Puts more keys with values of this length until it is full, and says how many.
fn grow(table: &Table, model: &mut Model, len_bytes: usize) -> usize {
    let before = model.len();
    let refused = loop {
        match put(table, model.len() as u32, 0, len_bytes) {
            Ok(_) => model.push((0, len_bytes)),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, ErrorCode::OutOfMemory, "{refused}");
    model.len() - before
}

fn read_whole_ones(engine: &Engine, over: &AtomicBool, keys: usize, seed: u64) -> u64 {
    let reader = RawReader::open(engine, "t").expect("in the catalog");
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut newest, mut hits) = (vec![0; keys], 0);
    while !over.load(Ordering::Relaxed) || hits == 0 {
        let n = random.random_range(0..keys);
        match reader.get(&(n as u32).to_le_bytes()) {
            Raw::Hit(header, value) => {
                assert!(value.iter().all(|byte| *byte == value[0]), "torn");
                assert!(header.version >= newest[n], "back in time");
                newest[n] = header.version;
                hits += 1;
            }
            Raw::Unproven => {}
            Raw::Miss => panic!("it is there all the time"),
        }
    }
    hits
}
