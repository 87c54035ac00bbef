//! A table's floor: what others cannot take from it, and what eviction leaves it.

mod engine_support;

use std::sync::Arc;

use engine_support::{FakeClock, RawReader, engine, private_memory, small};
use onesided_protocol::control::{TableOptions, TableStatus};
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Budget, Cleaning, Engine, EngineConfig, Table};

const MIB: u64 = 1 << 20;
const MEMORY: usize = 8 << 20;
const VALUE_BYTES: usize = 400;

fn config() -> EngineConfig {
    EngineConfig { segment_bytes: 32 << 10, region_bytes: 1 << 20, ..small(MEMORY) }
}

fn options(evict: bool, floor_bytes: u64) -> TableOptions {
    TableOptions { evict, floor_bytes, ..TableOptions::default() }
}

fn table(engine: &Engine, name: &str, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table(name, options).expect("table");
    engine.table(info.id).expect("by id")
}

fn put(table: &Table, n: u32) -> Result<u64, RpcError> {
    table.put(&n.to_le_bytes(), &[n as u8; VALUE_BYTES], Expect::Any, Ttl::Never, 0)
}

/// Puts keys until it fails; their number.
fn fill(table: &Table) -> u32 {
    let refused = (0..200_000).find_map(|n| Some((n, put(table, n).err()?)));
    let (count, error) = refused.expect("memory is finite");
    assert_eq!(error.code, ErrorCode::OutOfMemory, "{error}");
    count
}

fn status(engine: &Engine, name: &str) -> TableStatus {
    let tables = engine.list_tables();
    tables.into_iter().find(|table| table.name == name).expect("a table")
}

/// What a floor counts.
fn taken(engine: &Engine, name: &str) -> u64 {
    let status = status(engine, name);
    status.log_bytes + status.index_bytes
}

/// What blocks are longer than what is asked of them, and indexes share.
const SLOP: u64 = 300 << 10;

#[test]
fn a_table_can_fill_its_floor_whatever_others_took_before() {
    for cleaner_thread in [false, true] {
        let (engine, _) = engine(EngineConfig { cleaner_thread, ..config() });
        let kept = table(&engine, "kept", options(false, 2 * MIB));
        let others = [false, true].map(|evict| {
            let name = if evict { "cache" } else { "stays" };
            table(&engine, name, options(evict, 0))
        });
        fill(&others[0]);
        (0..20_000).for_each(|n| _ = put(&others[1], n));
        let left = MEMORY as u64 - taken(&engine, "stays") - taken(&engine, "cache");
        assert!(left >= 2 * MIB, "{left} bytes are left");
        let count = fill(&kept);
        let bytes = taken(&engine, "kept");
        assert!(bytes + SLOP >= 2 * MIB, "{count} keys, {bytes} bytes");
        // What it has, it can overwrite; and so can the others.
        (0..3 * count).for_each(|n| put(&kept, n % count).map(drop).expect("as long as before"));
        (0..1_000).for_each(|n| put(&others[0], n).map(drop).expect("as long as before"));
        let reader = RawReader::open(&engine, "kept").expect("in the catalog");
        for n in 0..count {
            assert_eq!(reader.value(&n.to_le_bytes()), vec![n as u8; VALUE_BYTES]);
        }
    }
}

#[test]
fn eviction_for_others_ends_at_the_floor() {
    for cleaning in [Cleaning::Auto, Cleaning::Aggressive] {
        let (engine, _) = engine(EngineConfig { cleaning, ..config() });
        let kept = table(&engine, "kept", options(true, 3 * MIB));
        let other = table(&engine, "other", options(true, 0));
        // More than its floor, as long as nobody else wants it.
        (0..12_000).for_each(|n| put(&kept, n).map(drop).expect("it evicts"));
        assert!(taken(&engine, "kept") > 5 * MIB);
        for n in 0..60_000 {
            put(&other, n).expect("it evicts");
            if n % 1_000 == 0 {
                let bytes = taken(&engine, "kept");
                assert!(bytes + (64 << 10) >= 3 * MIB, "{bytes} bytes after {n} puts");
            }
        }
        let (kept_bytes, other_bytes) = (taken(&engine, "kept"), taken(&engine, "other"));
        assert!(kept_bytes < 4 * MIB, "beyond its floor it is as others are: {kept_bytes}");
        assert!(other_bytes > 3 * MIB, "{other_bytes}");
        assert!(status(&engine, "kept").evicted_entries > 0);
    }
}

/// Others may take all beyond it and evict nothing: then it goes on with its own.
#[test]
fn a_cache_at_its_floor_makes_room_for_itself() {
    let (engine, _) = engine(config());
    let cache = table(&engine, "cache", options(true, 2 * MIB));
    let stays = table(&engine, "stays", options(false, 0));
    fill(&stays);
    let before = status(&engine, "stays").keys;
    for n in 0..40_000 {
        put(&cache, n).unwrap_or_else(|error| panic!("key {n}: {error}"));
    }
    let bytes = taken(&engine, "cache");
    assert!((2 * MIB - SLOP..=2 * MIB + SLOP).contains(&bytes), "{bytes} bytes");
    let cache = status(&engine, "cache");
    assert_eq!(cache.keys + cache.evicted_entries, 40_000);
    assert_eq!(status(&engine, "stays").keys, before);
    put(&stays, 1_000_000).expect_err("what is the cache's is not there for others");
}

#[test]
fn floors_that_do_not_fit_are_refused() {
    let (engine, _) = engine(config());
    let refused = |result: Result<_, RpcError>, says: &str| {
        let error = result.map(|_: onesided_protocol::control::TableInfo| ()).expect_err(says);
        assert_eq!(error.code, ErrorCode::BadOption);
        assert!(error.text.contains(says), "{error}");
    };
    refused(engine.create_table("a", options(false, 8 * MIB)), "more than the memory");
    engine.create_table("a", options(false, 4 * MIB)).expect("half of it");
    refused(engine.create_table("b", options(true, 4 * MIB)), "more than the memory");
    engine.create_table("b", options(true, 3 * MIB)).expect("it fits");
    refused(engine.alter_table("b", options(true, 4 * MIB)), "nothing was changed");
    assert_eq!(engine.open_table("b").map(|info| info.options.floor_bytes), Ok(3 * MIB));
    let quota = TableOptions { quota_bytes: MIB, ..options(false, 2 * MIB) };
    refused(engine.alter_table("a", quota), "above the table's quota");
    engine.drop_table("a", Vec::new()).expect("dropped");
    engine.alter_table("b", options(true, 6 * MIB)).expect("there is room again");
    engine.alter_table("b", options(true, 0)).expect("none");
    engine.create_table("c", options(false, 6 * MIB)).expect("there is room again");
}

/// A floor that comes late takes nothing from tables that may lose nothing, and something from the
/// others.
#[test]
fn a_floor_that_is_set_later_is_filled_by_eviction() {
    let (engine, _) = engine(config());
    let kept = table(&engine, "kept", options(false, 0));
    let cache = table(&engine, "cache", options(true, 0));
    (0..40_000).for_each(|n| put(&cache, n).map(drop).expect("it evicts"));
    assert!(taken(&engine, "cache") > 6 * MIB);
    engine.alter_table("kept", options(false, 4 * MIB)).expect("altered");
    fill(&kept);
    assert!(taken(&engine, "kept") + SLOP >= 4 * MIB, "{}", taken(&engine, "kept"));
}

#[test]
fn floors_hold_against_other_tenants() {
    let budget = Budget::new(MEMORY);
    let tenant = |seed| {
        let clock = FakeClock::at_s(1_000_000);
        let config = EngineConfig { seed, ..config() };
        Engine::within(Arc::clone(&budget), config, private_memory(), clock).expect("an engine")
    };
    let [a, b] = [1, 2].map(tenant);
    let kept = table(&a, "kept", options(false, 3 * MIB));
    let error = b.create_table("x", options(false, 5 * MIB)).expect_err("too much");
    assert!(error.text.contains("other tenants' floors"), "{error}");
    let greedy = table(&b, "greedy", options(false, 0));
    fill(&greedy);
    fill(&kept);
    assert!(taken(&a, "kept") + SLOP >= 3 * MIB, "{}", taken(&a, "kept"));
    assert!(taken(&b, "greedy") > 3 * MIB, "{}", taken(&b, "greedy"));
}
