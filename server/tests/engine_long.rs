//! Long values, which have memory to themselves: overwritten where they lie when there is no room
//! beside them, kept without a copy when others go, and refused at once when they can never fit.

mod engine_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Engine, EngineConfig, Table};

const MIB: usize = 1 << 20;

fn config(memory_bytes: usize) -> EngineConfig {
    EngineConfig { segment_bytes: 64 << 10, region_bytes: memory_bytes, ..small(memory_bytes) }
}

fn table(engine: &Engine, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table("t", options).expect("table");
    engine.table(info.id).expect("by id")
}

fn put(table: &Table, key: &[u8], value: &[u8]) -> Result<u64, RpcError> {
    table.put(key, value, Expect::Any, Ttl::Never, 0)
}

fn found(engine: &Engine, key: &[u8]) -> (EntryHeader, Vec<u8>) {
    match RawReader::open(engine, "t").expect("in the catalog").get(key) {
        Raw::Hit(header, value) => (header, value),
        other => panic!("{other:?}"),
    }
}

#[test]
fn at_the_limit_a_long_value_is_overwritten_where_it_lies() {
    // Small and large entries, by what proves them whole.
    for (memory_bytes, segment_bytes, len) in [(8 * MIB, 64 << 10, 5 * MIB), (MIB, 4_096, 15_000)] {
        let (engine, _) = engine(EngineConfig { segment_bytes, ..config(memory_bytes) });
        let table = table(&engine, TableOptions::default());
        // All that there is, by values of one length.
        let keys = (0_u64..).take_while(|n| put(&table, &n.to_le_bytes(), &vec![0; len]).is_ok());
        let keys = keys.count() as u64;
        let in_place = || engine.memory_status().cleaning.in_place_entries;
        for round in 1..100_u64 {
            let key = round % keys;
            // Shorter from time to time.
            let value = vec![round as u8; len - round as usize * 10];
            let before = found(&engine, &key.to_le_bytes()).0.version;
            let version = put(&table, &key.to_le_bytes(), &value).expect("not longer");
            assert!(version > before, "round {round}");
            assert!(found(&engine, &key.to_le_bytes()).1 == value, "round {round}");
        }
        if keys == 1 {
            assert_eq!(in_place(), 99);
            let error = put(&table, &0_u64.to_le_bytes(), &vec![0; len]).expect_err("longer now");
            assert_eq!(error.code, ErrorCode::OutOfMemory, "{error}");
        }
        // Conditions, expiry and versions are those of any update.
        let (header, old) = found(&engine, &0_u64.to_le_bytes());
        let put_if = |version| {
            let expect = Expect::Version(version);
            table.put(&0_u64.to_le_bytes(), &old, expect, Ttl::Seconds(9), 7)
        };
        assert_eq!(put_if(header.version + 1).expect_err("another").code, ErrorCode::Unexpected);
        let version = put_if(header.version).expect("this one");
        let (now, _) = found(&engine, &0_u64.to_le_bytes());
        assert_eq!((now.version, now.user_flags, now.expiry_s), (version, 7, 1_000_009));
        // Nothing is counted twice, and all of it comes back.
        let status = engine.memory_status();
        assert_eq!(status.log_live_bytes, {
            let lens = (0..keys).map(|key| found(&engine, &key.to_le_bytes()).0.padded_bytes());
            lens.sum::<usize>() as u64
        });
        (0..keys).for_each(|key| {
            assert_eq!(table.delete(&key.to_le_bytes(), Expect::Any), Ok(true));
        });
        assert_eq!(engine.memory_status().log_live_bytes, 0);
        put(&table, b"again", &vec![1; len]).expect("there is room");
    }
}

/// Readers meet whole values only, and none older than one they met before.
#[test]
fn readers_of_a_value_that_is_overwritten_where_it_lies_see_whole_ones() {
    const LEN: usize = 300_000;
    let (engine, _) = engine(EngineConfig { cleaner_thread: true, ..config(9 * (64 << 10)) });
    let table = table(&engine, TableOptions::default());
    put(&table, b"key", &vec![0; LEN]).expect("it fits once");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let reader = RawReader::open(&engine, "t").expect("in the catalog");
                let (mut newest, mut hits) = (0, 0_u64);
                while !over.load(Ordering::Relaxed) || hits == 0 {
                    match reader.get(b"key") {
                        Raw::Hit(header, value) => {
                            assert_eq!(value.len(), LEN);
                            assert!(value.iter().all(|byte| *byte == value[0]), "torn");
                            assert!(header.version >= newest, "back in time");
                            newest = header.version;
                            hits += 1;
                        }
                        Raw::Unproven => {}
                        Raw::Miss => panic!("it is there all the time"),
                    }
                }
                hits
            })
        });
        for round in 0..3_000_u32 {
            put(&table, b"key", &vec![round as u8; LEN]).expect("as long as before");
        }
        over.store(true, Ordering::Relaxed);
        let hits: u64 = readers.map(|reader| reader.join().expect("a reader")).iter().sum();
        println!("{hits} hits, {:?}", engine.memory_status().cleaning);
    });
    assert!(engine.memory_status().cleaning.in_place_entries > 2_000);
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let (engine, _) = engine(config(8 * MIB));
    let quota_bytes = 2 << 20;
    let options = TableOptions { quota_bytes, evict: true, ..TableOptions::default() };
    let table = table(&engine, options);
    (0..2_000_u64).for_each(|n| _ = put(&table, &n.to_le_bytes(), &[1; 400]).expect("it evicts"));
    let before = engine.list_tables();
    let waits = engine.memory_status().cleaning.waits;
    let error = put(&table, b"long", &vec![0; 2 * MIB]).expect_err("beyond the quota");
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert!(error.text.contains("can never fit") && error.text.contains("quota"), "{error}");
    let error = put(&table, b"long", &vec![0; 8 * MIB - 4_096]).expect_err("beyond the memory");
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert_eq!(engine.list_tables(), before, "nothing went");
    assert_eq!(engine.memory_status().cleaning.waits, waits, "nobody waited");
    engine.alter_table("t", TableOptions { evict: true, ..TableOptions::default() }).expect("ok");
    put(&table, b"long", &vec![0; 6 * MIB]).expect("others go for it");
}

/// What stays of the long ones stays where it is.
#[test]
fn long_values_that_stay_are_not_copied_when_others_go() {
    let (engine, _) = engine(config(16 * MIB));
    let table = table(&engine, TableOptions { evict: true, ..TableOptions::default() });
    let mut found = Vec::new();
    let key = |n: u64| n.to_le_bytes();
    for n in 0..600 {
        put(&table, &key(n), &vec![n as u8; 300_000]).expect("it evicts");
        // The first ten are warm.
        (0..10).for_each(|n| _ = table.get(&key(n), &mut found));
    }
    let status = engine.memory_status();
    assert!(status.cleaning.evicted_entries > 500, "{status:?}");
    let moved = status.cleaning.moved_entries;
    assert!(moved < 60, "{moved} of 600 entries were copied");
    let warm = (0..10).filter(|&n| table.get(&key(n), &mut found).is_some()).count();
    assert!(warm >= 8, "{warm} of the ten warm ones are there");
}

#[test]
fn payload_and_padding_are_told() {
    let (engine, _) = engine(config(8 * MIB));
    let table = table(&engine, TableOptions::default());
    let mut expected = (0, 0);
    for n in 0..3_000_u64 {
        let len = (n * 7 % 300) as usize;
        put(&table, &n.to_le_bytes(), &[1; 5]).expect("put");
        put(&table, &n.to_le_bytes(), &vec![1; len]).expect("put");
        let payload = 8 + len;
        let padding = (32 + payload).next_multiple_of(16) - 32 - payload;
        expected = (expected.0 + payload as u64, expected.1 + padding as u64);
    }
    let now = || {
        let status = &engine.list_tables()[0];
        assert_eq!(
            status.live_bytes,
            status.payload_bytes + status.padding_bytes + 32 * status.keys
        );
        (status.payload_bytes, status.padding_bytes)
    };
    assert_eq!(now(), expected);
    assert!(engine.list_tables()[0].splits > 0 || engine.list_tables()[0].keys == 3_000);
    (0..3_000_u64).for_each(|n| assert_eq!(table.delete(&n.to_le_bytes(), Expect::Any), Ok(true)));
    assert_eq!(now(), (0, 0));
}
