//! Tables: made, changed, dropped.

mod engine_support;

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::{Retired, TableOptions};
use onesided_protocol::layout::catalog::{CLOCK_OFFSET, TableRecord};
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Acknowledged, Engine};

/// What these sessions have acknowledged.
fn acknowledged(engine: &Engine, sessions: &[(u64, u64)]) -> Acknowledged {
    let (epoch, sessions) = (engine.epoch(), sessions.iter().copied().collect());
    Acknowledged { epoch, sessions, ..Acknowledged::default() }
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

#[test]
fn tables_are_made_opened_listed_and_altered() {
    let (engine, _) = engine(small(8 << 20));
    let options =
        TableOptions { default_ttl_s: 9, quota_bytes: 1 << 20, ..TableOptions::default() };
    let made = engine.create_table("a", options).expect("create");
    assert_eq!(engine.open_table("a").expect("open"), made);
    let exists = engine.create_table("a", options).expect_err("twice");
    assert_eq!(exists.code, ErrorCode::TableExists);
    let other = engine.create_table("b", TableOptions::default()).expect("create");
    assert!(other.id != made.id && other.hash_seed != made.hash_seed);
    assert!(other.secret != made.secret && other.slot != made.slot);
    let epoch = engine.catalog_epoch();
    let changed = TableOptions { default_ttl_s: 1, ..TableOptions::default() };
    assert_eq!(engine.alter_table("a", changed).expect("alter").options, changed);
    assert!(engine.catalog_epoch() > epoch);
    assert!(RawReader::open(&engine, "a").is_some());
    let names: Vec<_> = engine.list_tables().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["a", "b"]);
    for name in ["", &"x".repeat(65)] {
        assert!(engine.create_table(name, options).is_err());
    }
    for quota_bytes in [1, 1_024, 68 << 10] {
        let options = TableOptions { quota_bytes, ..options };
        let refused = engine.create_table("c", options).expect_err("its index takes more");
        assert_eq!(refused.code, ErrorCode::BadOption, "{refused:?}");
    }
    assert_eq!(engine.open_table("c").expect_err("none").code, ErrorCode::NoSuchTable);
    assert_eq!(engine.alter_table("c", options).expect_err("none").code, ErrorCode::NoSuchTable);
    assert_eq!(engine.drop_table("c", Vec::new()).expect_err("none").code, ErrorCode::NoSuchTable);
}

#[test]
fn there_are_at_most_as_many_tables_as_records() {
    let (engine, _) = engine(small(128 << 20));
    for n in 0..1_024 {
        engine.create_table(&n.to_string(), TableOptions::default()).expect("create");
    }
    let error = engine.create_table("one more", TableOptions::default()).expect_err("full");
    assert_eq!(error.code, ErrorCode::TooLarge);
    engine.drop_table("17", vec![3]).expect("drop");
    let error = engine.create_table("one more", TableOptions::default()).expect_err("known");
    assert_eq!(error.code, ErrorCode::TooLarge);
    engine.reclaim(&acknowledged(&engine, &[(3, 0)]));
    let error = engine.create_table("one more", TableOptions::default()).expect_err("known");
    assert_eq!(error.code, ErrorCode::TooLarge);
    engine.reclaim(&acknowledged(&engine, &[(4, 0)]));
    let info = engine.create_table("one more", TableOptions::default()).expect("a free record");
    assert_eq!((info.slot, info.id), (17, 1_025));
}

#[test]
fn the_clock_is_in_the_catalog() {
    let (engine, clock) = engine(small(1 << 20));
    let word = || engine.region(0).expect("catalog").load(CLOCK_OFFSET).expect("a word");
    assert_eq!(word(), 1_000_000 * 1_000_000_000);
    clock.advance_s(5);
    assert_eq!(word(), 1_000_000 * 1_000_000_000);
    engine.tick();
    assert_eq!(word(), engine.clock_ns());
    assert_eq!(engine.clock_ns(), 1_000_005 * 1_000_000_000);
}

#[test]
fn a_dropped_table_proves_nothing_and_its_memory_comes_back() {
    let (engine, _) = engine(small(16 << 20));
    let info = engine.create_table("t", TableOptions::default()).expect("create");
    let table = engine.table(info.id).expect("by id");
    (0..20_000).for_each(|n| {
        table.put(&key(n), b"value", Expect::Any, Ttl::Never, 0).expect("put");
    });
    // A client that knows the table from before.
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    let known = reader.freeze();
    let before = engine.memory_status();

    engine.drop_table("t", vec![7, 42]).expect("drop");
    assert!(engine.table(info.id).is_none());
    assert!(RawReader::open(&engine, "t").is_none());
    let mut record = [0; size_of::<TableRecord>()];
    let catalog = engine.region(0).expect("catalog");
    catalog.read_bytes(TableRecord::offset(info.slot), &mut record).expect("record");
    assert_eq!(record, [0; size_of::<TableRecord>()]);
    for n in 0..30_000 {
        assert_eq!(known.get(&key(n)), Raw::Unproven, "key {n}");
    }
    for result in [
        table.put(b"k", b"v", Expect::Any, Ttl::Never, 0).map(|_| ()),
        table.delete(b"k", Expect::Any).map(|_| ()),
        table.increment(b"k", 1).map(|_| ()),
        table.relocate(b"k").map(|_| ()),
    ] {
        assert_eq!(result.expect_err("dropped").code, ErrorCode::NoSuchTable);
    }
    assert_eq!(table.get(&key(1), &mut Vec::new()), None);

    let dropped = engine.memory_status();
    assert_eq!((dropped.log_bytes, dropped.log_live_bytes), (0, 0));
    assert_eq!(dropped.index_bytes, before.index_bytes);
    assert!(dropped.quarantined_bytes > 4 * (68 << 10), "{dropped:?}");
    assert_eq!(engine.retired_after(0), (1, vec![Retired::Table(info.id)]));
    assert_eq!(engine.retired_after(1), (1, Vec::new()));
    for sessions in [&[(7, 1), (42, 0)], &[(41, 1), (42, 0)], &[(7, 0), (42, 1)]] {
        engine.reclaim(&acknowledged(&engine, sessions));
        assert_eq!(engine.memory_status(), dropped, "a session may still look: {sessions:?}");
    }
    let early = Acknowledged { epoch: 0, ..Acknowledged::by_all() };
    engine.reclaim(&early);
    assert_eq!(engine.memory_status(), dropped, "sessions may have begun before the table went");
    assert!(engine.waits_for(42, 0).is_some() && engine.waits_for(41, 0).is_none());
    assert!(engine.waits_for(42, 1).is_none());
    engine.reclaim(&acknowledged(&engine, &[(41, 0), (42, 1)]));
    assert!(!engine.has_retired());
    let free = engine.memory_status();
    assert_eq!((free.index_bytes, free.quarantined_bytes, free.meta_bytes), (0, 0, 0));
    assert_eq!(free.free_bytes, free.limit_bytes);
}

#[test]
fn a_table_made_again_is_another_one() {
    let (engine, _) = engine(small(4 << 20));
    let mut ids = Vec::new();
    for round in 0..50_u64 {
        let info = engine.create_table("t", TableOptions::default()).expect("create");
        assert!(!ids.contains(&(info.id, info.slot)));
        ids.push((info.id, info.slot));
        let table = engine.table(info.id).expect("by id");
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        for n in 0..500 {
            assert!(!matches!(reader.get(&key(n)), Raw::Hit(..)), "of an earlier life");
            let value = round.to_le_bytes();
            table.put(&key(n), &value, Expect::Absent, Ttl::Never, 0).expect("put");
        }
        (0..500).for_each(|n| assert_eq!(reader.value(&key(n)), round.to_le_bytes()));
        engine.drop_table("t", vec![round]).expect("drop");
        engine.reclaim(&Acknowledged::by_all());
    }
}
