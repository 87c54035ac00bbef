//! Figures of one server by all the ways there are: they agree with one another when nothing
//! happens, and while much does no counter goes back and no byte is in two places.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use onesided_protocol::control::{TableOptions, TableStatus};
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::config::TableSpec;
use onesided_server::engine::{Engine, Table};
use onesided_server::{Server, ServerConfig};

const LOOKS: usize = 200;

/// Regions come and go by the second.
fn lively() -> ServerConfig {
    let cache = TableOptions { evict: true, ..TableOptions::default() };
    let ordered = TableOptions { ordered: true, ..TableOptions::default() };
    let table = |name: &str, options| TableSpec { options, ..TableSpec::new(name) };
    ServerConfig {
        memory_bytes: 16 << 20,
        region_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        shrink_after_s: 1,
        tables: vec![TableSpec::new("default"), table("cache", cache), table("order", ordered)],
        ..config()
    }
}

fn open(engine: &Engine, name: &str) -> Arc<Table> {
    let info = engine.open_table(name).expect("it is there");
    engine.table(info.id).expect("by its number")
}

/// Memory may be full, and a table gone.
fn put(table: &Table, key: u64, len_bytes: usize, ttl: Ttl) {
    let value = vec![key as u8; len_bytes];
    match table.put(&key.to_le_bytes(), &value, Expect::Any, ttl, 0) {
        Ok(_) => {}
        Err(error) => {
            let known = [ErrorCode::OutOfMemory, ErrorCode::NoSuchTable];
            assert!(known.contains(&error.code), "{error:?}");
        }
    }
}

/// Overwrites, expires, evicts, deletes.
fn write(engine: &Engine, stop: &AtomicBool) {
    let [default, cache, order] = ["default", "cache", "order"].map(|name| open(engine, name));
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        put(&default, key % 3000, 100 + (key % 700) as usize, Ttl::Never);
        put(&default, (1 << 40) | (key % 1000), 200, Ttl::Seconds(1));
        put(&cache, key, 300, Ttl::Never);
        put(&order, key % 2000, 50, Ttl::Never);
        if n.is_multiple_of(5) {
            let deleted = default.delete(&(key % 3000).to_le_bytes(), Expect::Any);
            deleted.expect("deleted, or not there");
        }
    }
}

/// Tables that live shortly: their memory, and with it regions, come and go.
fn make_and_drop(engine: &Engine, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if engine.create_table("short", TableOptions::default()).is_ok() {
            let table = open(engine, "short");
            (0..2000).for_each(|key| put(&table, key, 1000, Ttl::Never));
            engine.drop_table("short", Vec::new()).expect("dropped");
        }
    }
}

/// Samples by name and labels.
type Samples = BTreeMap<String, f64>;

fn samples(text: &str) -> Samples {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.rsplit_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

fn sum(samples: &Samples, name: &str) -> f64 {
    let all = samples.iter().filter(|(sample, _)| {
        sample.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    });
    all.map(|(_, value)| value).sum()
}

fn counters(text: &str) -> Vec<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.strip_suffix(" counter")).map(str::to_owned).collect()
}

#[test]
fn while_much_happens_sums_hold_and_no_counter_goes_back() {
    let server = start(lively());
    let (engine, stop) = (server.engine(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| write(engine, &stop));
        scope.spawn(|| make_and_drop(engine, &stop));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watch(&server)));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

fn watch(server: &Server) {
    let mut before = Samples::new();
    let (mut looks, mut cleaned) = (0, 0.0);
    // As long as it takes until there was something to see.
    while looks < LOOKS || cleaned == 0.0 {
        let text = server.metrics();
        let now = samples(&text);
        let limit = now["onesided_memory_limit_bytes"];
        assert_eq!(sum(&now, "onesided_memory_bytes"), limit, "{text}");
        assert_eq!(limit, (16 << 20) as f64);
        for name in counters(&text) {
            for (sample, value) in now.iter().filter(|(sample, _)| sample.starts_with(&name)) {
                // It counts the life of a table, and that name's tables come and go.
                let is_of_short = sample.contains("table=\"short\"");
                let earlier = before.get(sample).copied().unwrap_or(0.0);
                assert!(is_of_short || *value >= earlier, "{sample}: {earlier}, then {value}");
            }
        }
        cleaned = now["onesided_cleaning_segments_total"];
        before = now;
        looks += 1;
        assert!(looks < 1_000_000, "nothing is cleaned\n{text}");
    }
}

/// What `stats` says.
fn stats(server: &Server) -> BTreeMap<String, u64> {
    server.stats().into_iter().collect()
}

#[test]
fn at_rest_all_ways_to_look_agree() {
    let server = start(lively());
    let engine = server.engine();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write(engine, &stop));
        scope.spawn(|| make_and_drop(engine, &stop));
        let evicted = || stats(&server)["cleaning_evicted_entries"] > 0;
        eventually("something is evicted", evicted);
        stop.store(true, Ordering::Relaxed);
    });
    // Threads of the server clean and expire on for a while.
    let all = || {
        let (stats, shown, tables) =
            (stats(&server), samples(&server.metrics()), engine.list_tables());
        (stats, shown, tables, self::stats(&server))
    };
    let of = |stats: &BTreeMap<String, u64>| {
        let moving = ["memory_", "cleaning_"];
        let kept = |name: &&String| moving.iter().any(|start| name.starts_with(start));
        stats.keys().filter(kept).map(|name| stats[name]).collect::<Vec<_>>()
    };
    eventually("nothing happens", || {
        let (before, shown, tables, after) = all();
        if of(&before) != of(&after) {
            return false;
        }
        agree(&before, &shown, &tables);
        true
    });
}

fn agree(stats: &BTreeMap<String, u64>, shown: &Samples, tables: &[TableStatus]) {
    let stat = |name: &str| stats[name] as f64;
    let part = |of: &str| shown[&format!("onesided_memory_bytes{{use=\"{of}\"}}")];
    for (metric, stat_name) in [
        ("onesided_memory_limit_bytes", "memory_limit_bytes"),
        ("onesided_memory_region_bytes", "memory_region_bytes"),
        ("onesided_memory_regions", "memory_regions"),
        ("onesided_written_bytes_total", "cleaning_written_bytes"),
        ("onesided_evicted_entries_total", "cleaning_evicted_entries"),
        ("onesided_cleaning_moved_bytes_total", "cleaning_moved_bytes"),
        ("onesided_cleaning_freed_bytes_total", "cleaning_freed_bytes"),
    ] {
        assert_eq!(shown[metric], stat(stat_name), "{metric}");
    }
    assert_eq!(part("log_live"), stat("memory_log_live_bytes"));
    assert_eq!(part("log_dead"), stat("memory_log_dead_bytes"));
    assert_eq!(part("retired"), stat("memory_retired_bytes"));
    assert_eq!(part("order"), stat("memory_order_bytes"));
    assert_eq!(part("index") + part("index_held"), stat("memory_index_bytes"));
    let of_tables = |of: fn(&TableStatus) -> u64| tables.iter().map(of).sum::<u64>() as f64;
    let table = |name: &str| sum(shown, &format!("onesided_table_{name}"));
    for (metric, listed) in [
        ("keys", of_tables(|table| table.keys)),
        ("live_bytes", of_tables(|table| table.live_bytes)),
        ("dead_bytes", of_tables(|table| table.dead_bytes)),
        ("log_bytes", of_tables(|table| table.log_bytes)),
        ("index_bytes", of_tables(|table| table.index_bytes)),
        ("evicted_entries_total", of_tables(|table| table.evicted_entries)),
    ] {
        assert_eq!(table(metric), listed, "{metric}");
    }
    // All memory of logs and indexes is a table's.
    let told = || format!("{stats:#?}\n{tables:#?}");
    assert_eq!(part("log_live"), table("live_bytes"), "{}", told());
    let log = part("log_live") + part("log_dead") + part("log_free");
    assert_eq!(log, table("log_bytes"), "{}", told());
    assert_eq!(part("log_dead"), table("dead_bytes"), "{}", told());
    // A table's keys in order are counted by blocks.
    let (index, most) = (part("index") + part("order"), part("index_spare"));
    let of_tables_index = table("index_bytes");
    assert!((index..=index + most).contains(&of_tables_index), "{}", told());
    // Of tables that are gone as well.
    assert!(stat("cleaning_written_bytes") >= of_tables(|table| table.written_bytes));
    assert!(stat("cleaning_evicted_entries") >= of_tables(|table| table.evicted_entries));
}
