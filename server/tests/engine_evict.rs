//! Tables that may lose entries: storing never fails, and what is used stays.

mod engine_support;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engine_support::{Raw, RawReader, engine};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Cleaning, Engine, EngineConfig, Table};
use onesided_server::{Server, ServerConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const MEMORY_BYTES: usize = 8 << 20;
const VALUE_BYTES: usize = 100;
/// About six times as many as fit.
const KEYS: u64 = 200_000;

fn config() -> EngineConfig {
    EngineConfig {
        memory_bytes: MEMORY_BYTES,
        segment_bytes: 64 << 10,
        cleaning: Cleaning::Auto,
        seed: 5,
        ..EngineConfig::default()
    }
}

fn table(engine: &Arc<Engine>, name: &str, evict: bool, quota_bytes: u64) -> Arc<Table> {
    let options = TableOptions { evict, quota_bytes, ..TableOptions::default() };
    let info = engine.create_table(name, options).expect("table");
    engine.table(info.id).expect("by id")
}

fn value(key: u64) -> Vec<u8> {
    let mut value = vec![key as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

fn put(table: &Table, key: u64) {
    let put = table.put(&key.to_le_bytes(), &value(key), Expect::Any, Ttl::Never, 0);
    put.unwrap_or_else(|error| panic!("key {key}: {error}"));
}

/// Whether the key is there; then its value is right.
fn is_there(table: &Table, key: u64, buffer: &mut Vec<u8>) -> bool {
    let found = table.get(&key.to_le_bytes(), buffer).is_some();
    assert!(!found || *buffer == value(key), "key {key} has another value");
    found
}

/// The same by the memory alone: the engine does not know that it was read, but where a client
/// would have to ask.
fn is_there_unseen(table: &Table, reader: &RawReader<'_>, key: u64) -> bool {
    match reader.get(&key.to_le_bytes()) {
        Raw::Hit(_, found) => {
            assert!(found == value(key), "key {key} has another value");
            true
        }
        Raw::Miss => false,
        Raw::Unproven => is_there(table, key, &mut Vec::new()),
    }
}

/// Few keys are asked for often: the logarithm of the rank is uniform, as with Zipf's law.
fn skewed(random: &mut SmallRng) -> u64 {
    (KEYS as f64).powf(random.random()) as u64 - 1
}

/// A cache of so many entries that forgets what was used longest ago.
struct Lru {
    max: usize,
    used_at: HashMap<u64, u64>,
    by_time: BTreeSet<(u64, u64)>,
    now: u64,
}

impl Lru {
    fn new(max: usize) -> Self {
        Self { max, used_at: HashMap::new(), by_time: BTreeSet::new(), now: 0 }
    }

    fn is_there(&mut self, key: u64) -> bool {
        self.now += 1;
        let before = self.used_at.insert(key, self.now);
        before.map(|at| self.by_time.remove(&(at, key)));
        self.by_time.insert((self.now, key));
        if self.used_at.len() > self.max
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.used_at.remove(&oldest);
        }
        before.is_some()
    }
}

/// GETs and, where nothing is found, PUTs; gives how many of the second half of the GETs found
/// something, here and in an LRU cache of as many entries as there are in the end.
fn found_of(requests: u64, told: bool) -> (f64, f64) {
    let (engine, _) = engine(config());
    let table = table(&engine, "t", true, 0);
    let mut random = SmallRng::seed_from_u64(11);
    let mut buffer = Vec::new();
    let reader = RawReader::open(&engine, "t").expect("a record");
    let stream: Vec<u64> = (0..requests).map(|_| skewed(&mut random)).collect();
    let mut hits = 0;
    for (n, &key) in (0..).zip(&stream) {
        if n % 10_000 == 0 {
            engine.tend_heat();
        }
        let there = match told {
            true => is_there(&table, key, &mut buffer),
            false => is_there_unseen(&table, &reader, key),
        };
        hits += u64::from(there && n >= requests / 2);
        if !there {
            put(&table, key);
        }
    }
    let status = engine.memory_status();
    assert!(status.log_bytes + status.meta_bytes <= MEMORY_BYTES as u64, "{status:?}");
    assert!(status.cleaning.evicted_entries > requests / 20, "{status:?}");
    assert_eq!(status.cleaning.evicted_for_quota, 0, "there is none");
    let keys = engine.list_tables()[0].keys as usize;
    let mut lru = Lru::new(keys);
    let lru_hits: u64 =
        (0..).zip(&stream).map(|(n, &key)| u64::from(lru.is_there(key) && n >= requests / 2)).sum();
    let half = requests as f64 / 2.0;
    (hits as f64 / half, lru_hits as f64 / half)
}

#[test]
fn what_is_used_often_stays_more_than_in_an_lru_cache() {
    let (ours, lru) = found_of(600_000, true);
    assert!(ours > lru + 0.01, "{ours:.3} found, LRU {lru:.3}");
    let (untold, lru) = found_of(600_000, false);
    assert!(untold < ours && untold > lru - 0.05, "{untold:.3} found untold, LRU {lru:.3}");
}

/// The table is filled before anybody has the time to tend what is known of its keys.
#[test]
fn what_was_used_in_a_fast_first_fill_stays() {
    const FIRST: u64 = 150_000;
    let (engine, _) = engine(EngineConfig { memory_bytes: 4 * MEMORY_BYTES, ..config() });
    let table = table(&engine, "t", true, 0);
    let mut buffer = Vec::new();
    for key in 0..FIRST {
        put(&table, key);
        let again = if key % 10 == 0 { 9 } else { 4 };
        (0..again).for_each(|_| assert!(is_there(&table, key, &mut buffer)));
    }
    assert_eq!(engine.memory_status().cleaning.evicted_entries, 0, "they fit");
    (FIRST..3 * FIRST).for_each(|key| put(&table, key));
    let reader = RawReader::open(&engine, "t").expect("a record");
    let stays = |&key: &u64| is_there_unseen(&table, &reader, key);
    let there = (0..FIRST).step_by(10).filter(stays).count();
    assert!(there > 14_000, "{there} of 15000 that were used twice as often as others");
}

#[test]
fn reports_of_clients_count() {
    let (engine, _) = engine(config());
    let table = table(&engine, "t", true, 0);
    let seed = table.info().hash_seed;
    let favourites: Vec<u64> = (0..2_000).collect();
    favourites.iter().for_each(|&key| put(&table, key));
    for key in 2_000..KEYS {
        put(&table, key);
        if key % 500 == 0 {
            engine.tend_heat();
            let hash = |key: &u64| onesided_protocol::hash::KeyHash::of(seed, &key.to_le_bytes()).0;
            let hashes: Vec<u64> = favourites.iter().map(hash).collect();
            engine.note_accesses(table.id(), &hashes);
        }
    }
    let reader = RawReader::open(&engine, "t").expect("a record");
    let there = favourites.iter().filter(|&&key| is_there_unseen(&table, &reader, key)).count();
    assert!(there > 1_950, "{there} of 2000 that were read all the time");
    // An unknown table is no harm.
    engine.note_accesses(77, &[1, 2, 3]);
}

#[test]
fn who_may_not_lose_entries_does_not() {
    let (engine, _) = engine(config());
    let stays = table(&engine, "stays", false, 0);
    let goes = table(&engine, "goes", true, 0);
    let mut buffer = Vec::new();
    (0..10_000).for_each(|key| put(&stays, key));
    for key in 0..KEYS {
        put(&goes, key);
    }
    assert!((0..10_000).all(|key| is_there(&stays, key, &mut buffer)));
    // What the other one needs is made room for, until nothing is left to go.
    let mut stored = 10_000;
    let refused = loop {
        let put = stays.put(&u64::to_le_bytes(stored), &value(stored), Expect::Any, Ttl::Never, 0);
        match put {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, ErrorCode::OutOfMemory);
    assert!((0..stored).all(|key| is_there(&stays, key, &mut buffer)), "{stored} stored");
    assert!(stored > 20_000, "only {stored} of a table fit that others make room for");
}

#[test]
fn a_quota_is_kept_by_evicting() {
    let (engine, _) = engine(config());
    let quota_bytes = 2 << 20;
    let table = table(&engine, "t", true, quota_bytes);
    let mut buffer = Vec::new();
    for key in 0..50_000 {
        put(&table, key);
        let status = &engine.list_tables()[0];
        let spare_bytes = 2 * (64 << 10);
        assert!(status.log_bytes + status.index_bytes <= quota_bytes + spare_bytes, "{status:?}");
    }
    let status = &engine.list_tables()[0];
    assert!(status.evicted_entries > 0);
    assert_eq!(status.evicted_for_quota, status.evicted_entries, "memory was never full");
    let there = (0..50_000).filter(|&key| is_there(&table, key, &mut buffer)).count();
    assert!(there > 5_000, "{there} keys in 2 MiB");
    let too_long = vec![0; quota_bytes as usize];
    table.put(b"too long", &too_long, Expect::Any, Ttl::Never, 0).expect_err("beyond the quota");
    let still = (0..50_000).filter(|&key| is_there(&table, key, &mut buffer)).count();
    assert_eq!(still, there, "nothing went for what cannot fit");
    for key in 0..40 {
        let put = table.put(&u64::to_le_bytes(key), &[3; 500_000], Expect::Any, Ttl::Never, 0);
        put.unwrap_or_else(|error| panic!("long value {key}: {error}"));
    }
}

/// A server and its table `default`, which evicts.
fn small_server(memory_mib: usize) -> (Server, Arc<Table>) {
    let mut config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: memory_mib << 20,
        ..ServerConfig::default()
    };
    config.tables[0].options.evict = true;
    let server = Server::start(config).expect("a server");
    let info = server.engine().open_table("default").expect("table");
    let table = server.engine().table(info.id).expect("by id");
    (server, table)
}

/// With as little memory as a server takes.
#[test]
fn a_small_server_evicts_too() {
    for memory_mib in [2, 3, 6, 10] {
        let (_server, table) = small_server(memory_mib);
        for key in 0..40_000_u64 {
            let value = vec![1; 100 + (key % 2_000) as usize];
            let put = table.put(&key.to_le_bytes(), &value, Expect::Any, Ttl::Never, 0);
            put.unwrap_or_else(|error| panic!("{memory_mib} MiB, key {key}: {error}"));
        }
    }
}

/// Values of which only a few fit leave each other no room for copies.
#[test]
fn long_values_make_room_for_each_other_and_for_short_ones() {
    const MIB: usize = 1 << 20;
    for (memory_mib, lens) in [
        (8, &[MIB][..]),
        (16, &[MIB][..]),
        (8, &[4 * MIB, MIB, MIB, 100, 3_000]),
        (16, &[4 * MIB, MIB, 40_000, 0, 3_000, 6 * MIB]),
    ] {
        let (server, table) = small_server(memory_mib);
        let mut found = Vec::new();
        for (key, &len) in (0_u64..120).zip(lens.iter().cycle()) {
            let value = vec![key as u8; len];
            let put = table.put(&key.to_le_bytes(), &value, Expect::Any, Ttl::Never, 0);
            put.unwrap_or_else(|error| panic!("{memory_mib} MiB, {lens:?}, key {key}: {error}"));
            if table.get(&key.to_le_bytes(), &mut found).is_some() {
                assert!(found == value, "{memory_mib} MiB, {lens:?}, key {key}");
            }
        }
        let keys = || server.engine().list_tables()[0].keys;
        let before = keys();
        let too_long = vec![0; (memory_mib << 20) - (MIB / 2)];
        table.put(b"too long", &too_long, Expect::Any, Ttl::Never, 0).expect_err("no room ever");
        assert_eq!(keys(), before, "nothing went for what cannot fit");
    }
}

#[test]
fn a_table_that_stops_evicting_refuses() {
    let (engine, _) = engine(config());
    let table = table(&engine, "t", true, 0);
    (0..KEYS / 2).for_each(|key| put(&table, key));
    engine.alter_table("t", TableOptions::default()).expect("altered");
    let before = engine.list_tables()[0].keys;
    let refused = (KEYS..).find_map(|key| {
        table.put(&key.to_le_bytes(), &value(key), Expect::Any, Ttl::Never, 0).err()
    });
    assert_eq!(refused.map(|error| error.code), Some(ErrorCode::OutOfMemory));
    assert!(engine.list_tables()[0].keys >= before);
}

/// What was to be emptied for room is not, once the table may lose nothing any more.
#[test]
fn nothing_goes_after_a_table_stopped_evicting() {
    let (engine, _) = engine(config());
    let table = table(&engine, "t", true, 0);
    let evicted = || engine.list_tables()[0].evicted_entries;
    (0..KEYS / 2).for_each(|key| put(&table, key));
    for round in 1..40 {
        (0..300).for_each(|key| put(&table, round * KEYS + key));
        engine.alter_table("t", TableOptions::default()).expect("altered");
        let before = evicted();
        for key in 300..1_300_u64 {
            let key = round * KEYS + key;
            let _refused = table.put(&key.to_le_bytes(), &value(key), Expect::Any, Ttl::Never, 0);
            engine.clean();
        }
        assert_eq!(evicted(), before, "round {round}");
        let options = TableOptions { evict: true, ..TableOptions::default() };
        engine.alter_table("t", options).expect("altered");
    }
}
