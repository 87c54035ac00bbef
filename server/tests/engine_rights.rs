//! What clients may write lies in regions of its own; everything else in regions that they may only
//! read. Both share one amount of memory.

mod engine_support;

use std::os::fd::AsFd;
use std::sync::Arc;

use engine_support::{FakeClock, Raw, RawReader, engine, small};
use onesided_fabric::{Memory, Rights};
use onesided_protocol::control::{TableOptions, UpdateMode};
use onesided_protocol::layout::catalog::{RegionRecord, TABLE_FLAG_CAS, TableRecord};
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Engine, EngineConfig, Table};
use zerocopy::FromBytes;

const CAS: TableOptions = TableOptions { update: UpdateMode::Cas, ..TableOptions::DEFAULT };

fn table(engine: &Engine, name: &str, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table(name, options).expect("table");
    assert_eq!(info.options, options);
    engine.table(info.id).expect("by id")
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:06}").into_bytes()
}

fn put(table: &Table, n: u32, value: &[u8]) -> Result<u64, ErrorCode> {
    let version = table.put(&key(n), value, Expect::Any, Ttl::Never, n);
    version.map_err(|error| error.code)
}

/// How many regions have each right, as the engine and its catalog say.
fn regions(engine: &Engine) -> (usize, usize) {
    let catalog = engine.region(0).expect("the catalog");
    let mut counts = (0, 0);
    for id in 1..engine.regions() {
        let Some((memory, rights)) = engine.region_with_rights(id) else { continue };
        let mut bytes = [0; size_of::<RegionRecord>()];
        catalog.read_bytes(RegionRecord::offset(id), &mut bytes).expect("inside");
        let record = RegionRecord::read_from_bytes(&bytes).expect("as long");
        assert!(record.is_valid() && record.len_bytes.get() == memory.len_bytes() as u64);
        assert_eq!(record.rights.get() == 1, rights == Rights::ReadWrite);
        match rights {
            Rights::ReadOnly => counts.0 += 1,
            Rights::ReadWrite => counts.1 += 1,
        }
    }
    let of_map = engine.map(0, 1_000);
    let writable = of_map.iter().filter(|region| region.rights == Rights::ReadWrite);
    assert_eq!(writable.count(), counts.1);
    counts
}

/// Bytes of log segments by the right of the region that they are in.
fn logs(engine: &Engine) -> (u64, u64) {
    let of = |rights| {
        let regions = engine.map(0, 1_000).into_iter();
        let cells = regions.filter(|region| region.rights == rights).flat_map(|r| r.cells);
        cells.map(|cell| cell.log_bytes).sum()
    };
    (of(Rights::ReadOnly), of(Rights::ReadWrite))
}

fn assert_sum(engine: &Engine, limit_bytes: u64) {
    let status = engine.memory_status();
    let sum = status.log_bytes + status.meta_bytes + status.free_bytes + status.retired_bytes;
    assert_eq!((sum, status.limit_bytes), (limit_bytes, limit_bytes), "{status:?}");
}

#[test]
fn logs_of_cas_tables_and_nothing_else_are_writable() {
    let (engine, _) = engine(small(4 << 20));
    let cas = table(&engine, "cas", CAS);
    let rpc = table(&engine, "rpc", TableOptions::default());
    put(&rpc, 1, b"one").expect("put");
    assert_eq!(regions(&engine).1, 0, "nobody has written to a cas table yet");
    for n in 0..1_000 {
        put(&rpc, n, &[1; 100]).expect("put");
        put(&cas, n, &[2; 100]).expect("put");
    }
    let (read_only, writable) = logs(&engine);
    assert!(read_only >= 130_000 && writable >= 130_000, "{read_only} {writable}");
    let status = engine.list_tables();
    assert_eq!(
        status.iter().map(|table| table.log_bytes).collect::<Vec<_>>(),
        [writable, read_only]
    );
    let meta = engine.map(0, 1_000).into_iter().filter(|r| r.rights == Rights::ReadWrite);
    assert_eq!(meta.flat_map(|r| r.cells).map(|cell| cell.meta_bytes).sum::<u64>(), 0);
    let reader = RawReader::open(&engine, "cas").expect("in the catalog");
    (0..1_000).for_each(|n| assert_eq!(reader.value(&key(n)), [2; 100]));
    assert_sum(&engine, 4 << 20);
}

#[test]
fn the_catalog_says_how_a_table_is_updated() {
    let (engine, _) = engine(small(4 << 20));
    let info = engine.create_table("cas", CAS).expect("table");
    let catalog = engine.region(0).expect("the catalog");
    let mut bytes = [0; size_of::<TableRecord>()];
    catalog.read_bytes(TableRecord::offset(info.slot), &mut bytes).expect("inside");
    let record = TableRecord::read_from_bytes(&bytes).expect("as long");
    assert!(record.is_valid());
    assert_eq!(record.flags.get(), TABLE_FLAG_CAS);
}

#[test]
fn what_contradicts_itself_or_is_fixed_is_refused() {
    let (engine, _) = engine(small(4 << 20));
    for options in [TableOptions { ordered: true, ..CAS }, TableOptions { evict: true, ..CAS }] {
        let error = engine.create_table("t", options).expect_err("refused");
        assert!(error.code == ErrorCode::BadOption && error.text.contains("leave one"), "{error}");
    }
    table(&engine, "cas", CAS);
    table(&engine, "rpc", TableOptions::default());
    let evicting = TableOptions { evict: true, ..CAS };
    for (name, options) in [("cas", TableOptions::default()), ("rpc", CAS), ("cas", evicting)] {
        let error = engine.alter_table(name, options).expect_err("refused");
        assert_eq!(error.code, ErrorCode::BadOption, "{error}");
    }
    let changed = TableOptions { quota_bytes: 1 << 20, ..CAS };
    assert_eq!(engine.alter_table("cas", changed).expect("altered").options, changed);
}

/// Of one kind of table as much is put as there is room for, the other one keeps what it has; and
/// overwriting and cleaning go on where memory is full.
#[test]
fn either_kind_fills_up_and_is_cleaned_while_the_other_keeps_its_own() {
    for filled_first in [UpdateMode::Rpc, UpdateMode::Cas] {
        let (engine, _) = engine(small(2 << 20));
        let cas = table(&engine, "cas", CAS);
        let tables = [table(&engine, "rpc", TableOptions::default()), cas];
        tables
            .iter()
            .for_each(|table| _ = put(table, 1_000_000, &[9; 100]).expect("room for both"));
        let [few, many] = match filled_first {
            UpdateMode::Rpc => [&tables[1], &tables[0]],
            UpdateMode::Cas => [&tables[0], &tables[1]],
        };
        let keys = (0..).find(|&n| put(many, n, &[n as u8; 100]).is_err()).expect("finite");
        assert!(keys > 4_000, "{keys} keys of 150 bytes in 2 MiB");
        assert_eq!(put(many, keys, &[0; 100]), Err(ErrorCode::OutOfMemory));
        // What is live in the log of a cas table is known in steps of 64 bytes only, so that of a
        // full one the cleaner sees what is dead when a quarter is.
        let deleted = |n: u32| filled_first == UpdateMode::Cas && n.is_multiple_of(3);
        for n in (0..keys).filter(|&n| deleted(n)) {
            assert_eq!(many.delete(&key(n), Expect::Any), Ok(true));
        }
        for round in 1..4_u8 {
            for n in (0..keys).filter(|n| n % 3 != 0) {
                put(many, n, &[n as u8 ^ round; 100]).expect("no longer than before");
            }
        }
        while engine.clean() {}
        let mut value = Vec::new();
        few.get(&key(1_000_000), &mut value).expect("there");
        assert_eq!(value, [9; 100]);
        let reader = RawReader::open(&engine, many.name()).expect("in the catalog");
        for n in 0..keys {
            let round = if n % 3 != 0 { 3 } else { 0 };
            if deleted(n) {
                assert!(!matches!(reader.get(&key(n)), Raw::Hit(..)), "key {n}");
                continue;
            }
            assert_eq!(reader.value(&key(n)), [n as u8 ^ round; 100], "key {n}");
        }
        assert_sum(&engine, 2 << 20);
        let cleaned = engine.memory_status().cleaning;
        assert!(cleaned.moved_entries > 0, "{cleaned:?}");
    }
}

#[test]
fn writable_regions_go_back_to_the_system_too() {
    let config = EngineConfig { region_bytes: 256 << 10, shrink_after_s: 60, ..small(4 << 20) };
    let (engine, clock) = engine(config);
    let cas = table(&engine, "cas", CAS);
    let keys = 15_000;
    (0..keys).for_each(|n| _ = put(&cas, n, &[n as u8; 100]).expect("put"));
    let (_, before) = regions(&engine);
    assert!(before > 4, "{before} regions");
    for n in (0..keys).filter(|n| n % 10 != 0) {
        assert_eq!(cas.delete(&key(n), Expect::Any), Ok(true));
    }
    let _begins = engine.shrink();
    clock.advance_s(61);
    while engine.shrink() {}
    let (_, after) = regions(&engine);
    assert!(after < before / 2, "{after} regions of {before}");
    let reader = RawReader::open(&engine, "cas").expect("in the catalog");
    for n in 0..keys {
        match n % 10 {
            0 => assert_eq!(reader.value(&key(n)), [n as u8; 100]),
            _ => assert!(!matches!(reader.get(&key(n)), Raw::Hit(..)), "key {n}"),
        }
    }
    assert_sum(&engine, 4 << 20);
}

#[test]
fn peers_can_map_what_they_may_write_and_nothing_else() {
    let config = small(4 << 20);
    let engine = Engine::new(config, Box::new(Memory::shared), FakeClock::at_s(1)).expect("engine");
    for options in [TableOptions::default(), CAS] {
        let table = table(&engine, options.update.name(), options);
        put(&table, 1, b"value").expect("put");
    }
    assert_eq!(regions(&engine), (1, 1));
    for id in 0..engine.regions() {
        let (memory, rights) = engine.region_with_rights(id).expect("made");
        let fd = memory.fd().expect("a memfd").as_fd().try_clone_to_owned().expect("a descriptor");
        let mapped = Memory::foreign(fd, memory.len_bytes(), Rights::ReadWrite);
        assert_eq!(mapped.is_ok(), rights == Rights::ReadWrite, "region {id}");
    }
}
