//! The index grows while every key stays where a reader finds it.

mod engine_support;

use engine_support::{Raw, RawReader, engine};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_server::engine::{EngineConfig, Table};

fn key(n: u32) -> [u8; 16] {
    let mut key = *b"key-000000000000";
    key[12..].copy_from_slice(&n.to_be_bytes());
    key
}

fn put(table: &Table, n: u32) {
    table.put(&key(n), &n.to_le_bytes(), Expect::Absent, Ttl::Never, n).expect("put");
}

fn check(reader: &RawReader<'_>, table: &Table, n: u32) {
    match reader.get(&key(n)) {
        Raw::Hit(header, value) => {
            assert_eq!(value, n.to_le_bytes());
            assert_eq!(header.user_flags, n);
        }
        other => panic!("key {n}: {other:?}"),
    }
    let mut value = Vec::new();
    assert_eq!(table.get(&key(n), &mut value).expect("present").user_flags, n);
    assert_eq!(value, n.to_le_bytes());
}

#[test]
fn all_keys_are_found_from_memory_alone_while_the_index_grows() {
    let (engine, _) = engine(EngineConfig { memory_bytes: 256 << 20, ..EngineConfig::default() });
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    let table = engine.table(info.id).expect("by id");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    let mut stored = 0;
    for goal in [1_000, 6_000, 20_000, 100_000, 500_000] {
        for n in stored..goal {
            put(&table, n);
            // A key that was there long before, at every step of every split.
            if n % 64 == 0 {
                check(&reader, &table, n / 2);
            }
        }
        stored = goal;
        (0..stored).for_each(|n| check(&reader, &table, n));
        (stored..stored + 1_000).for_each(|n| match reader.get(&key(n)) {
            Raw::Miss | Raw::Unproven => {}
            hit => panic!("key {n} was never stored: {hit:?}"),
        });
    }
    let status = &engine.list_tables()[0];
    assert_eq!(status.keys, u64::from(stored));
    assert!(reader.directory().depth() >= 7, "it did not grow");
    assert!(status.splits >= 90, "{} splits", status.splits);
}

#[test]
fn absent_keys_are_proven_absent() {
    let (engine, _) = engine(EngineConfig { memory_bytes: 64 << 20, ..EngineConfig::default() });
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    let table = engine.table(info.id).expect("by id");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    (0..20_000).for_each(|n| put(&table, n));
    let proven = (20_000..30_000).filter(|&n| reader.get(&key(n)) == Raw::Miss).count();
    // The rest meets another key's fingerprint: 14 bits, about 10 slots.
    assert!(proven > 9_950, "only {proven} of 10000");
    (0..20_000).for_each(|n| assert!(table.delete(&key(n), Expect::Any).expect("delete")));
    let proven = (0..20_000).filter(|&n| reader.get(&key(n)) == Raw::Miss).count();
    assert_eq!(proven, 20_000);
}
