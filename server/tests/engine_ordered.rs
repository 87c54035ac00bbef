//! Ordered tables: scans against a map in order, whatever removes keys; and what they take.

mod engine_support;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_support::{engine, small};
use onesided_fabric::Memory;
use onesided_fabric::mem::StoreHook;
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Acknowledged, Cleaning, Engine, EngineConfig, ScanRange, Table};
use proptest::prelude::*;

const ORDERED: TableOptions = TableOptions { ordered: true, ..TableOptions::DEFAULT };
const ALL: ScanRange<'static> = ScanRange { from: b"", after: false, prefix_len: 0 };

fn table(engine: &Arc<Engine>, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table("t", options).expect("table");
    engine.table(info.id).expect("by id")
}

fn put(table: &Table, key: &[u8], value: &[u8]) {
    table.put(key, value, Expect::Any, Ttl::TableDefault, 0).expect("put");
}

/// The first keys of a range, and whether there are no others.
fn scan(table: &Table, range: ScanRange<'_>, limit: usize) -> (Vec<Vec<u8>>, bool) {
    let mut keys = Vec::new();
    let ended = table.scan(range, |key, slot| {
        assert!(slot.addr().is_some());
        keys.push(key.to_vec());
        keys.len() < limit
    });
    (keys, ended.expect("an ordered table"))
}

fn all(table: &Table) -> Vec<Vec<u8>> {
    scan(table, ALL, usize::MAX).0
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, usize),
    Mortal(Vec<u8>),
    Delete(Vec<u8>),
    Relocate(Vec<u8>),
    WriteAt(Vec<u8>),
    Expire,
    Clean,
    Scan { from: Vec<u8>, after: bool, prefix_len: usize, limit: usize },
}

fn a_step() -> impl Strategy<Value = Step> {
    // Few bytes and short keys: prefixes of each other, repeats, the empty key.
    let key = || {
        let byte = prop::sample::select(vec![0, 1, b'a', b'b', 0xFE, 0xFF]);
        prop::collection::vec(byte, 0..4)
    };
    prop_oneof![
        6 => (key(), 0..400_usize).prop_map(|(key, len)| Step::Put(key, len)),
        1 => (key()).prop_map(Step::Mortal),
        3 => key().prop_map(Step::Delete),
        1 => key().prop_map(Step::Relocate),
        1 => key().prop_map(Step::WriteAt),
        1 => Just(Step::Expire),
        1 => Just(Step::Clean),
        4 => (key(), any::<bool>(), 0..4_usize, 1..9_usize).prop_map(
            |(from, after, prefix_len, limit)| {
                let prefix_len = prefix_len.min(from.len());
                Step::Scan { from, after, prefix_len, limit }
            },
        ),
    ]
}

/// Keys, and whether they expire.
type Model = BTreeMap<Vec<u8>, bool>;

fn expected(model: &Model, range: ScanRange<'_>, limit: usize) -> (Vec<Vec<u8>>, bool) {
    let ScanRange { from, after, prefix_len } = range;
    let from_bound = if after { Bound::Excluded(from) } else { Bound::Included(from) };
    let keys = model.range::<[u8], _>((from_bound, Bound::Unbounded)).map(|(key, _)| key);
    let keys = keys.filter(|key| key.starts_with(&from[..prefix_len]));
    let keys: Vec<Vec<u8>> = keys.take(limit).cloned().collect();
    let ended = keys.len() < limit;
    (keys, ended)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn scans_are_those_of_a_map(steps in prop::collection::vec(a_step(), 1..300)) {
        let config = EngineConfig { cleaning: Cleaning::Aggressive, ..small(8 << 20) };
        let (engine, clock) = engine(config);
        let table = table(&engine, ORDERED);
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Put(key, len) => {
                    put(&table, &key, &vec![7; len]);
                    model.insert(key, false);
                }
                Step::Mortal(key) => {
                    let put = table.put(&key, b"mortal", Expect::Any, Ttl::Seconds(5), 0);
                    put.expect("put");
                    model.insert(key, true);
                }
                Step::Delete(key) => {
                    let was = table.delete(&key, Expect::Any).expect("delete");
                    prop_assert_eq!(was, model.remove(&key).is_some());
                }
                Step::Relocate(key) => drop(table.relocate(&key).expect("relocate")),
                Step::WriteAt(key) => {
                    let version = table.write_at(&key, 3, b"x").expect("write_at");
                    prop_assert_eq!(version.is_some(), model.contains_key(&key));
                }
                Step::Expire => {
                    clock.advance_s(6);
                    (0..60).for_each(|_| assert!(engine.expire() <= model.len()));
                    model.retain(|_, expires| !*expires);
                }
                Step::Clean => drop(engine.clean()),
                Step::Scan { from, after, prefix_len, limit } => {
                    let range = ScanRange { from: &from, after, prefix_len };
                    prop_assert_eq!(scan(&table, range, limit), expected(&model, range, limit));
                }
            }
        }
        prop_assert_eq!(all(&table), model.into_keys().collect::<Vec<_>>());
        prop_assert_eq!(all(&table).len() as u64, engine.list_tables()[0].keys);
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n:08}").into_bytes()
}

#[test]
fn what_is_evicted_is_met_no_more_and_makes_room() {
    let (engine, _) = engine(EngineConfig { segment_bytes: 64 << 10, ..small(8 << 20) });
    let table = table(&engine, TableOptions { evict: true, ..ORDERED });
    for n in 0..200_000 {
        put(&table, &key(n), &[n as u8; 40]);
    }
    let status = engine.memory_status();
    let keys = engine.list_tables()[0].keys;
    assert!(status.cleaning.evicted_entries > 100_000, "{status:?}");
    assert!(keys > 20_000, "only {keys} keys in 8 MiB");
    let met = all(&table);
    assert_eq!(met.len() as u64, keys);
    assert!(met.is_sorted() && met.iter().all(|key| table.get(key, &mut Vec::new()).is_some()));
    // Memory that is not of the regions takes as many blocks of them out of use.
    assert!(status.order_bytes > keys * 80, "{status:?}");
    assert!(status.meta_bytes >= status.order_bytes + status.index_bytes, "{status:?}");
    let sum = status.log_bytes + status.meta_bytes + status.free_bytes;
    assert_eq!(sum, status.limit_bytes);
}

#[test]
fn the_keys_count_in_the_quota_and_come_back() {
    let (engine, _) = engine(small(16 << 20));
    let quota_bytes = 4 << 20;
    let put_all = |table: &Table| {
        let put = |n: &u32| table.put(&key(*n), b"short", Expect::Any, Ttl::Never, 0).is_ok();
        (0..).take_while(put).count() as u32
    };
    let ordered = table(&engine, TableOptions { quota_bytes, ..ORDERED });
    let keys = put_all(&ordered);
    let refused = ordered.put(&key(keys), b"short", Expect::Any, Ttl::Never, 0);
    assert_eq!(refused.expect_err("no room").code, ErrorCode::OutOfMemory);
    assert_eq!(all(&ordered).len(), keys as usize, "what was refused is not met");
    let status = engine.list_tables().remove(0);
    assert!(status.index_bytes > u64::from(keys) * 92, "{status:?}");
    assert!(status.index_bytes + status.log_bytes <= quota_bytes, "{status:?}");

    (0..keys).for_each(|n| assert!(ordered.delete(&key(n), Expect::Any).expect("delete")));
    assert!(all(&ordered).is_empty());
    assert_eq!(engine.memory_status().order_bytes, 0);
    assert!(engine.list_tables()[0].index_bytes < status.index_bytes / 2);
    assert!(put_all(&ordered) >= keys * 9 / 10, "there is room again");

    engine.drop_table("t", Vec::new()).expect("dropped");
    engine.reclaim(&Acknowledged::by_all());
    let gone = ordered.scan(ALL, |_, _| true);
    assert_eq!(gone, Ok(true), "no key is left");
    let status = engine.memory_status();
    assert_eq!((status.order_bytes, status.meta_bytes, status.log_bytes), (0, 0, 0));
    let plain = table(&engine, TableOptions { quota_bytes, ..TableOptions::default() });
    assert!(put_all(&plain) > keys * 3 / 2, "without order there is room for more");
}

#[test]
fn a_table_is_ordered_from_the_start_or_never() {
    let (engine, _) = engine(small(4 << 20));
    let plain = table(&engine, TableOptions::default());
    put(&plain, b"k", b"v");
    let error = plain.scan(ALL, |_, _| true).expect_err("not ordered");
    assert!(error.code == ErrorCode::BadOption && error.text.contains("`ordered`"), "{error}");
    let error = engine.alter_table("t", ORDERED).expect_err("too late");
    assert!(error.code == ErrorCode::BadOption && error.text.contains("\"t\""), "{error}");
    assert!(!plain.options().ordered);
    engine.create_table("o", ORDERED).expect("table");
    let other = TableOptions { default_ttl_s: 5, evict: true, ..ORDERED };
    assert_eq!(engine.alter_table("o", other).expect("altered").options, other);
    assert!(engine.alter_table("o", TableOptions::default()).is_err());
}

/// Keys that stay are met in every scan, once and in order, whatever others do.
#[test]
fn scans_beside_writers_and_cleaning_meet_every_key_that_stays() {
    const STAYING: u32 = 500;
    let config = EngineConfig { cleaning: Cleaning::Auto, cleaner_thread: true, ..small(4 << 20) };
    let (engine, _) = engine(config);
    let table = table(&engine, ORDERED);
    (0..STAYING).for_each(|n| put(&table, &key(n * 2), &[1; 300]));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                for turn in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let n = (turn % STAYING * 7_919 + thread * 31) % STAYING;
                    put(table, &key(n * 2), &[turn as u8; 300]);
                    put(table, &key(n * 2 + 1), &[turn as u8; 100]);
                    table.delete(&key(n * 2 + 1), Expect::Any).expect("delete");
                }
            });
        }
        for _ in 0..200 {
            let met = all(&table);
            assert!(met.is_sorted_by(|a, b| a < b));
            let staying = met.iter().filter(|key| key.last().is_some_and(|b| b % 2 == 0)).count();
            assert_eq!(staying, STAYING as usize);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(all(&table).len(), STAYING as usize);
}

/// What happens before each store to memory that peers read.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn Fn() + Send>>>);

impl StoreHook for Hook {
    fn before_store(&self) {
        if let Some(act) = &*self.0.lock().expect("no panic meanwhile") {
            act();
        }
    }
}

/// A key comes in before anybody can read it, and goes when nobody can any more: a scan that
/// begins just before the last store of an insert, by which its entry can be read, meets it, and so
/// does one just before the first store of a delete; both wait until the change is done.
#[test]
fn a_key_that_can_be_read_is_met() {
    let hook = Arc::new(Hook::default());
    let in_memory = Arc::clone(&hook);
    let make = move |_: &str, len: usize, _| Memory::hooked(len, in_memory.clone());
    let clock = engine_support::FakeClock::at_s(1_000);
    let engine = Engine::new(small(4 << 20), Box::new(make), clock).expect("engine");
    let table = table(&engine, ORDERED);
    let scans: Arc<Mutex<Vec<(bool, JoinHandle<_>)>>> = Arc::default();
    let (of_hook, scanned) = (Arc::clone(&scans), Arc::clone(&table));
    let scan_in_another_thread = move || {
        let met = Arc::clone(&scanned);
        let scan = std::thread::spawn(move || all(&met));
        let begun = Instant::now();
        while !scan.is_finished() && begun.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
        }
        let waits = !scan.is_finished();
        of_hook.lock().expect("no panic meanwhile").push((waits, scan));
    };
    let during = |act: &dyn Fn()| {
        *hook.0.lock().expect("no panic meanwhile") =
            Some(Box::new(scan_in_another_thread.clone()));
        act();
        *hook.0.lock().expect("no panic meanwhile") = None;
        let scans = std::mem::take(&mut *scans.lock().expect("no panic meanwhile"));
        let end = |(waits, scan): (bool, JoinHandle<_>)| (waits, scan.join().expect("a scan"));
        scans.into_iter().map(end).collect::<Vec<_>>()
    };
    let scans = during(&|| put(&table, b"k", b"v"));
    assert_eq!(scans.first(), Some(&(false, vec![])));
    assert_eq!(scans.last(), Some(&(true, vec![b"k".to_vec()])));
    let scans = during(&|| assert!(table.delete(b"k", Expect::Any).expect("delete")));
    assert_eq!(scans.first(), Some(&(true, vec![])));
}
