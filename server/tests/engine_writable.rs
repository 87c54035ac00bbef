//! Memory for what clients may write where others have filled theirs, and the other way round.

mod engine_support;

use std::sync::Arc;

use engine_support::{RawReader, engine, small};
use onesided_fabric::Rights;
use onesided_protocol::control::{TableOptions, UpdateMode};
use onesided_protocol::rpc::{CounterAction, ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Engine, EngineConfig, Table};

const CAS: TableOptions = TableOptions { update: UpdateMode::Cas, ..TableOptions::DEFAULT };
const EVICT: TableOptions = TableOptions { evict: true, ..TableOptions::DEFAULT };
const MEMORY: usize = 4 << 20;

fn table(engine: &Engine, name: &str, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table(name, options).expect("table");
    engine.table(info.id).expect("by id")
}

fn put(table: &Table, n: u32) -> Result<u64, RpcError> {
    table.put(&n.to_le_bytes(), &[n as u8; 400], Expect::Any, Ttl::Never, 0)
}

fn add(table: &Table, key: &str) -> Result<(), RpcError> {
    table.counter(key.as_bytes(), CounterAction::Add { by: 1 }).map(|_| ())
}

/// Puts keys until it fails, at most twice as many as fit; their number.
fn fill(table: &Table) -> u32 {
    let most = 2 * MEMORY as u32 / 400;
    (0..most).find(|&n| put(table, n).is_err()).unwrap_or(most)
}

fn writable_bytes(engine: &Engine) -> usize {
    let regions = engine.map(0, 1_000).into_iter();
    let writable = regions.filter(|region| region.rights == Rights::ReadWrite);
    writable.map(|region| region.len_bytes as usize).sum()
}

fn assert_sum(engine: &Engine) {
    let status = engine.memory_status();
    let in_use = status.log_bytes + status.meta_bytes + status.cells_bytes;
    let sum = in_use + status.free_bytes + status.retired_bytes;
    assert_eq!((sum, status.limit_bytes), (MEMORY as u64, MEMORY as u64), "{status:?}");
}

/// The memory has many segments, or as few as it may to leave one to a first writable region.
fn configs() -> impl Iterator<Item = EngineConfig> {
    [16 << 10, 128 << 10]
        .into_iter()
        .map(|segment_bytes| EngineConfig { segment_bytes, ..small(MEMORY) })
}

#[test]
fn a_full_cache_has_room_for_its_first_counters() {
    for config in configs() {
        let (engine, _) = engine(config);
        let cache = table(&engine, "cache", EVICT);
        fill(&cache);
        assert!(engine.memory_status().cleaning.evicted_entries > 1_000);
        assert_eq!(writable_bytes(&engine), 0, "nobody has asked for any");
        for n in 0..100 {
            add(&cache, &format!("counter-{n}")).expect("room was left");
        }
        fill(&cache);
        for n in 0..100 {
            let mut value = Vec::new();
            let key = format!("counter-{n}");
            cache.get(key.as_bytes(), &mut value).expect("counters are not evicted");
            assert_eq!(value, b"1");
        }
        assert!(writable_bytes(&engine) <= MEMORY / 16, "{}", writable_bytes(&engine));
        assert_sum(&engine);
    }
}

#[test]
fn a_full_cache_makes_room_for_tables() {
    for config in configs() {
        let (engine, _) = engine(config);
        let cache = table(&engine, "cache", EVICT);
        fill(&cache);
        let cas = table(&engine, "cas", CAS);
        (0..20).for_each(|n| _ = put(&cas, n).expect("room was left"));
        let more = ["a", "b", "c"].map(|name| table(&engine, name, TableOptions::default()));
        for n in 0..20 {
            more.iter().for_each(|table| _ = put(table, n).expect("others go"));
        }
        fill(&cache);
        let reader = RawReader::open(&engine, "cas").expect("in the catalog");
        (0..20_u32).for_each(|n| assert_eq!(reader.value(&n.to_le_bytes()), [n as u8; 400]));
        assert_sum(&engine);
    }
}

#[test]
fn a_full_store_that_loses_nothing_says_what_to_do() {
    for config in configs() {
        let (engine, _) = engine(config);
        let store = table(&engine, "store", TableOptions::default());
        let keys = fill(&store);
        // What is short finds room a little longer.
        let refused_counter = (0..10_000).find_map(|n| add(&store, &n.to_string()).err());
        let refused = [
            refused_counter.expect("their entries take memory that others have"),
            engine.create_table("t", TableOptions::default()).expect_err("nor has an index"),
        ];
        for error in refused {
            assert_eq!(error.code, ErrorCode::OutOfMemory, "{error}");
            assert!(error.text.contains("delete keys or drop a table"), "{error}");
        }
        for n in 0..keys / 4 {
            assert_eq!(store.delete(&n.to_le_bytes(), Expect::Any), Ok(true));
        }
        add(&store, "counter").expect("there is room");
        let cas = table(&engine, "cas", CAS);
        put(&cas, 1).expect("in the first writable region");
        fill(&cas);
        let error = put(&cas, 1_000_000).expect_err("of which there is no second one");
        assert!(error.text.contains("tables with update=cas"), "{error}");
        assert_sum(&engine);
    }
}

/// Half of it was one region for an index that needed a tenth.
#[test]
fn a_table_that_clients_update_can_have_nearly_all_memory() {
    for config in configs() {
        let (engine, _) = engine(config);
        let cas = table(&engine, "cas", CAS);
        let keys = fill(&cas);
        let all = MEMORY as u32 / 448;
        assert!(keys > all * 3 / 4, "{keys} keys of {all} that fit if there is nothing else");
        assert_sum(&engine);
    }
}

#[test]
fn a_quota_that_no_index_fits_is_refused_however_it_is_set() {
    let (engine, _) = engine(small(MEMORY));
    table(&engine, "t", TableOptions::default());
    let options = TableOptions { quota_bytes: 10, ..TableOptions::default() };
    for refused in [engine.create_table("u", options), engine.alter_table("t", options)] {
        let error = refused.expect_err("too low");
        assert_eq!(error.code, ErrorCode::BadOption, "{error}");
    }
}
