//! Memory that is not needed goes back to the system, and what is in it stays whole.

mod engine_support;

use std::sync::Arc;

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::{Retired, TableOptions};
use onesided_protocol::layout::catalog::RegionRecord;
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_server::engine::{Acknowledged, Engine, EngineConfig, Table};

const MEMORY: usize = 16 << 20;
const REGION: usize = 1 << 20;
const VALUE_BYTES: usize = 200;
const AFTER_S: u64 = 60;

fn config() -> EngineConfig {
    EngineConfig { region_bytes: REGION, shrink_after_s: AFTER_S as u32, ..small(MEMORY) }
}

fn table(engine: &Engine) -> Arc<Table> {
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    engine.table(info.id).expect("by id")
}

fn key(n: usize) -> Vec<u8> {
    format!("key-{n:08}").into_bytes()
}

fn put(table: &Table, n: usize) {
    let value = vec![n as u8; VALUE_BYTES];
    table.put(&key(n), &value, Expect::Any, Ttl::Never, 0).expect("there is memory");
}

fn assert_sum(engine: &Engine) {
    let status = engine.memory_status();
    let sum = status.log_bytes + status.meta_bytes + status.free_bytes + status.retired_bytes;
    assert_eq!(sum, status.limit_bytes, "{status:?}");
    assert_eq!(status.limit_bytes, MEMORY as u64);
}

/// Fills most of the memory, and deletes all but one key of `keep_one_in`. Gives the number of
/// keys.
fn fill_and_thin(table: &Table, keep_one_in: usize) -> usize {
    let keys = MEMORY * 4 / 5 / (VALUE_BYTES + 56);
    (0..keys).for_each(|n| put(table, n));
    for n in (0..keys).filter(|n| n % keep_one_in != 0) {
        assert_eq!(table.delete(&key(n), Expect::Any), Ok(true));
    }
    keys
}

#[test]
fn regions_go_when_slack_lasts_and_their_keys_stay() {
    let (engine, clock) = engine(config());
    let table = table(&engine);
    let keys = fill_and_thin(&table, 5);
    let before = engine.memory_status();
    assert!(before.region_bytes > 12 << 20, "{before:?}");
    assert!(!engine.shrink(), "the slack is new");
    clock.advance_s(AFTER_S - 1);
    assert!(!engine.shrink(), "and not old yet");
    clock.advance_s(1);
    while engine.shrink() {
        assert_sum(&engine);
    }
    let left = engine.memory_status();
    let all_bytes = left.region_bytes + left.retired_bytes;
    assert!(all_bytes <= before.region_bytes + REGION as u64, "one to move into, at most");
    // A fifth, an eighth of that, and a region.
    let most = (left.log_live_bytes + left.meta_bytes) * 9 / 8 + 2 * REGION as u64;
    assert!(left.region_bytes <= most, "{left:?}");
    assert_eq!(left.cleaning.evicted_entries, 0);
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    for n in 0..keys {
        match (n % 5, reader.get(&key(n))) {
            (0, Raw::Hit(_, value)) => assert_eq!(value, vec![n as u8; VALUE_BYTES]),
            // A fingerprint may be another key's, which proves no miss.
            (1.., Raw::Miss | Raw::Unproven) => {}
            (_, other) => panic!("key {n}: {other:?}"),
        }
    }
    // Back to the budget, and made anew when needed.
    engine.reclaim(&Acknowledged::by_all());
    assert_sum(&engine);
    assert_eq!(engine.memory_status().retired_bytes, 0);
    fill_and_thin(&table, 1);
    assert_sum(&engine);
    assert!(engine.memory_status().region_bytes > 12 << 20);
}

#[test]
fn a_retired_region_is_offered_to_nobody_and_waits_for_sessions() {
    let (engine, _) = engine(config());
    let table = table(&engine);
    fill_and_thin(&table, 5);
    assert!(engine.leave_region());
    let (epoch, retired) = engine.retired_after(0);
    let [Retired::Region(id)] = retired[..] else { panic!("{retired:?}") };
    assert!(engine.region(id).is_none());
    let mut record = [0; size_of::<RegionRecord>()];
    let catalog = engine.region(0).expect("the catalog");
    catalog.read_bytes(RegionRecord::offset(id), &mut record).expect("inside");
    assert_eq!(record, [0; size_of::<RegionRecord>()]);
    let waiting = engine.memory_status();
    assert_eq!(waiting.retired_bytes, REGION as u64);
    for sessions in [vec![(1, 0)], vec![(1, epoch), (2, epoch - 1)]] {
        let sessions = sessions.into_iter().collect();
        engine.reclaim(&Acknowledged {
            epoch: engine.epoch(),
            sessions,
            ..Acknowledged::default()
        });
        assert_eq!(engine.memory_status(), waiting, "a session may look at it");
    }
    let sessions = [(1, epoch), (2, epoch)].into_iter().collect();
    engine.reclaim(&Acknowledged { epoch: engine.epoch(), sessions, ..Acknowledged::default() });
    assert_eq!(engine.memory_status().retired_bytes, 0);
    assert_sum(&engine);
}

#[test]
fn what_is_in_use_stays() {
    let (engine, clock) = engine(config());
    let table = table(&engine);
    let keys = fill_and_thin(&table, 1);
    for _ in 0..3 {
        assert!(!engine.shrink());
        clock.advance_s(AFTER_S);
    }
    (0..keys).for_each(|n| assert!(table.get(&key(n), &mut Vec::new()).is_some()));
    let (never, clock) = engine_support::engine(EngineConfig { shrink_after_s: 0, ..config() });
    fill_and_thin(&self::table(&never), 9);
    for _ in 0..3 {
        assert!(!never.shrink());
        clock.advance_s(1_000_000);
    }
}

/// Numbers of regions are not used twice; when they run short, memory stays.
#[test]
fn there_are_always_numbers_for_all_of_the_memory() {
    let (engine, _) = engine(EngineConfig { memory_bytes: MEMORY, ..config() });
    let table = table(&engine);
    let mut left = 0;
    for round in 0..100 {
        fill_and_thin(&table, 50);
        while engine.leave_region() {
            left += 1;
        }
        engine.reclaim(&Acknowledged::by_all());
        assert_sum(&engine);
        if engine.regions() > 150 {
            break;
        }
        assert!(round < 99, "{left} regions left");
    }
    fill_and_thin(&table, 1);
    assert!(engine.memory_status().region_bytes > 12 << 20);
}
