//! Memory: reuse, limits, and what is left after a failure.

mod engine_support;

use std::collections::HashSet;

use engine_support::{Raw, RawReader, engine, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Engine, EngineConfig, EngineError, MemoryStatus, Table};
use std::sync::Arc;

fn table(engine: &Arc<Engine>, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table("t", options).expect("table");
    engine.table(info.id).expect("by id")
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Puts keys until it fails; gives how many there are, and the code.
fn fill(table: &Table, value: &[u8]) -> (u32, ErrorCode) {
    for n in 0.. {
        if let Err(error) = table.put(&key(n), value, Expect::Any, Ttl::Never, n) {
            for part in ["bytes", "nothing was changed", "delete keys"] {
                assert!(error.text.contains(part), "{}", error.text);
            }
            return (n, error.code);
        }
    }
    unreachable!("memory without end")
}

#[test]
fn dead_segments_are_reused_at_once() {
    let (engine, _) = engine(small(1 << 20));
    let table = table(&engine, TableOptions::default());
    // 100 MiB of entries through 1 MiB of memory.
    for n in 0..100_000_u32 {
        let key = key(n % 3);
        table.put(&key, &[n as u8; 1_000], Expect::Any, Ttl::Never, n).expect("put");
        assert!(engine.memory_status().log_bytes <= 5 * 4096);
    }
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    (99_997..100_000_u32).for_each(|n| assert_eq!(reader.value(&key(n % 3)), [n as u8; 1_000]));
}

#[test]
fn a_part_of_a_value_is_replaced_where_it_lies() {
    let (engine, _) = engine(small(1 << 20));
    let table = table(&engine, TableOptions::default());
    // Entries that short and long checksums prove.
    for len in [40, 1_000, 16_000] {
        table.put(b"k", &vec![7; len], Expect::Any, Ttl::Never, 9).expect("put");
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        let (slots, before) = (reader.slots_of(b"k"), engine.memory_status());
        let (mut expected, mut version) = (vec![7; len], 0);
        for n in 0..3_000 {
            // From the first byte to the last, and of any length.
            let (from, bytes) = (n * 31 % len, vec![n as u8; 1 + n % 13]);
            let bytes = &bytes[..bytes.len().min(len - from)];
            expected[from..from + bytes.len()].copy_from_slice(bytes);
            let written = table.write_at(b"k", from as u64, bytes).expect("write_at");
            let Raw::Hit(header, value) = reader.get(b"k") else { panic!("{len}: no hit") };
            assert!(value == expected, "{len} bytes, round {n}");
            assert_eq!((Some(header.version), header.user_flags), (written, 9));
            assert!(header.version > version, "{len} bytes, round {n}");
            version = header.version;
        }
        assert_eq!(reader.slots_of(b"k"), slots, "{len} bytes: at the same place");
        let after = engine.memory_status();
        assert_eq!((after.log_bytes, after.free_bytes), (before.log_bytes, before.free_bytes));
        // What changes the length is written anew.
        table.write_at(b"k", len as u64 - 1, b"12").expect("write_at");
        expected.truncate(len - 1);
        expected.extend(b"12");
        assert!(reader.value(b"k") == expected, "{len} bytes, one more");
        assert_ne!(reader.slots_of(b"k"), slots, "{len} bytes: elsewhere");
    }
}

#[test]
fn segments_grow_as_they_fill_and_long_entries_lie_side_by_side() {
    let (engine, _) = engine(EngineConfig { memory_bytes: 64 << 20, ..EngineConfig::default() });
    let table = table(&engine, TableOptions::default());
    let log_bytes = || engine.memory_status().log_bytes;
    for n in 0..40_000_u32 {
        table.put(&key(n), &[n as u8; 100], Expect::Any, Ttl::Never, n).expect("put");
        let status = engine.memory_status();
        assert!(status.log_free_bytes <= 128 << 10, "{status:?}");
    }
    let before = log_bytes();
    for n in 0..50_u32 {
        let value = [n as u8; 200 << 10];
        table.put(&key(n), &value, Expect::Any, Ttl::Never, n).expect("put");
    }
    let taken = log_bytes() - before;
    assert!(taken <= 11 << 20, "50 values of 200 KiB took {taken} bytes");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    (0..50_u32).for_each(|n| assert_eq!(reader.value(&key(n)), [n as u8; 200 << 10]));
    (0..40_000_u32).for_each(|n| assert!(table.delete(&key(n), Expect::Any).expect("delete")));
    assert!(log_bytes() <= 1 << 20, "{} bytes of log without a key", log_bytes());
}

#[test]
fn addresses_recur() {
    let (engine, _) = engine(small(1 << 20));
    let table = table(&engine, TableOptions::default());
    let mut places = HashSet::new();
    let region = || engine.region(1).expect("a region");
    for n in 0..1_000_u64 {
        table.put(b"k", &n.to_le_bytes().repeat(100), Expect::Any, Ttl::Never, 0).expect("put");
        // Where the value is now: found by its bytes.
        let words = region().len_bytes() / 8;
        let mut memory = vec![0; words];
        region().read_words(0, &mut memory).expect("all of it");
        let value = [n; 40];
        places.extend(memory.windows(40).position(|at| at == value));
    }
    assert!(places.len() <= 12, "{} places for 1000 entries", places.len());
}

#[test]
fn when_memory_is_full_nothing_changes_and_deletes_make_room() {
    for value_len in [50, 3_000, 20_000] {
        let (engine, _) = engine(EngineConfig { split_load_percent: 10, ..small(2 << 20) });
        let table = table(&engine, TableOptions::default());
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        let value = vec![7; value_len];
        let (count, code) = fill(&table, &value);
        assert_eq!(code, ErrorCode::OutOfMemory);
        let entries_bytes = count as usize * (value_len + 40);
        assert!(entries_bytes > 700_000, "only {count} keys");
        let full = engine.memory_status();
        let error = table.put(&key(0), &[1; 60_000], Expect::Any, Ttl::Never, 0);
        assert_eq!(error.expect_err("full").code, ErrorCode::OutOfMemory);
        let now = engine.memory_status();
        let now = MemoryStatus { cleaning: full.cleaning, ..now };
        assert_eq!(now, full, "a refused put left something behind");
        assert!(matches!(reader.get(&key(count)), Raw::Miss | Raw::Unproven));
        for n in 0..count {
            assert_eq!(reader.value(&key(n)), value);
            assert_eq!(table.get(&key(n), &mut Vec::new()).expect("there").user_flags, n);
        }
        assert_eq!(engine.list_tables()[0].keys, u64::from(count));
        (0..count).for_each(|n| assert!(table.delete(&key(n), Expect::Any).expect("delete")));
        let (again, _) = fill(&table, &value);
        // A region's fragments may fit a little less well the second time.
        assert!(again >= count * 9 / 10, "{again} keys after {count} were deleted");
    }
}

#[test]
fn a_quota_holds_for_its_table_only() {
    let (engine, _) = engine(small(8 << 20));
    let limited = table(&engine, TableOptions { quota_bytes: 1 << 20, ..TableOptions::default() });
    let info = engine.create_table("other", TableOptions::default()).expect("table");
    let other = engine.table(info.id).expect("by id");
    let (count, code) = fill(&limited, &[1; 500]);
    assert_eq!(code, ErrorCode::OutOfMemory);
    assert!((1_000..2_000).contains(&count), "{count} keys of 500 bytes in 1 MiB");
    other.put(b"k", b"v", Expect::Any, Ttl::Never, 0).expect("another table's put");
    let more = TableOptions { quota_bytes: 2 << 20, ..TableOptions::default() };
    engine.alter_table("t", more).expect("alter");
    let (count_more, _) = fill(&limited, &[1; 500]);
    assert!(count_more > count + 1_000, "{count_more} keys with twice the quota");
    let status = &engine.list_tables()[1];
    assert_eq!(status.name, "t");
    assert!(status.log_bytes + status.index_bytes <= 2 << 20);
}

#[test]
fn entries_longer_than_a_segment_take_several_and_give_them_back() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    for round in 0..50_u8 {
        for n in 0..4 {
            let value = vec![round ^ n as u8; 200_000 + 1_111 * n as usize];
            table.put(&key(n), &value, Expect::Any, Ttl::Never, 0).expect("put");
            assert_eq!(reader.value(&key(n)), value);
        }
    }
    (0..4).for_each(|n| assert!(table.delete(&key(n), Expect::Any).expect("delete")));
    assert_eq!(engine.memory_status().log_bytes, 0);
}

#[test]
fn too_long_keys_and_values_are_refused_with_the_limit() {
    let (engine, _) = engine(EngineConfig { value_max_bytes: 1_000, ..small(4 << 20) });
    let table = table(&engine, TableOptions::default());
    let put = |key: &[u8], value: &[u8]| table.put(key, value, Expect::Any, Ttl::Never, 0);
    put(&vec![1; 65_535], &[2; 1_000]).expect("the longest key and value");
    for error in [put(&vec![1; 65_536], b""), put(b"k", &[2; 1_001])] {
        let error = error.expect_err("too long");
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert!(error.text.contains("65535") || error.text.contains("1000"), "{}", error.text);
    }
    table.put(b"k", &[0; 999], Expect::Any, Ttl::Never, 0).expect("put");
    assert_eq!(table.append(b"k", b"12").expect_err("too long").code, ErrorCode::TooLarge);
    for offset in [999, 1_000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let error = table.write_at(b"k", offset, b"12").expect_err("too long");
        assert_eq!(error.code, ErrorCode::TooLarge, "at {offset}");
        assert!(error.text.contains("1000"), "{}", error.text);
    }
    assert!(table.write_at(b"k", 998, b"12").expect("write_at").is_some());
    assert_eq!(table.write_at(b"none", 5_000, b"12"), Ok(None));
}

#[test]
fn a_configuration_that_cannot_be_is_refused_by_name() {
    let good = small(4 << 20);
    let cases = [
        (EngineConfig { segment_bytes: 5_000, ..good.clone() }, "segment_bytes"),
        (EngineConfig { region_bytes: 6_000, ..good.clone() }, "region_bytes"),
        (EngineConfig { memory_bytes: 100, ..good.clone() }, "memory_bytes"),
        (EngineConfig { memory_bytes: 1 << 50, ..good.clone() }, "memory_bytes"),
        (EngineConfig { split_load_percent: 0, ..good.clone() }, "split_load_percent"),
        (EngineConfig { value_max_bytes: 1 << 30, ..good }, "value_max_bytes"),
    ];
    for (config, name) in cases {
        let clock = engine_support::FakeClock::at_s(1);
        match Engine::new(config, engine_support::private_memory(), clock) {
            Err(EngineError::Config(text)) => assert!(text.contains(name), "{text}"),
            other => panic!("{name}: {:?}", other.map(|_| "an engine")),
        }
    }
}

#[test]
fn a_table_full_of_expired_entries_takes_new_ones() {
    let (engine, clock) = engine(small(1 << 20));
    let table = table(&engine, TableOptions { default_ttl_s: 10, ..TableOptions::default() });
    let put = |n: u32| table.put(&key(n), &[7; 500], Expect::Any, Ttl::TableDefault, n);
    let first = (0..).find(|&n| put(n).is_err()).expect("memory is finite");
    assert!(first > 1_000, "only {first} keys");
    assert_eq!(put(first).expect_err("nothing has expired").code, ErrorCode::OutOfMemory);
    clock.advance_s(11);
    // Other keys: nobody comes for the old ones any more.
    (first..2 * first).for_each(|n| assert!(put(n).is_ok(), "key {n} after {first}"));
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    (first..2 * first).for_each(|n| assert_eq!(reader.value(&key(n)), [7; 500]));
}

#[test]
fn what_has_expired_is_removed_within_sixty_calls() {
    let (engine, clock) = engine(small(8 << 20));
    let table = table(&engine, TableOptions::default());
    assert!(!engine.has_expiring());
    let live = |n: u32| n.is_multiple_of(3);
    for n in 0..10_000 {
        let ttl = if live(n) { Ttl::Never } else { Ttl::Seconds(5) };
        table.put(&key(n), &[n as u8; 100], Expect::Any, ttl, n).expect("put");
    }
    assert!(engine.has_expiring());
    assert_eq!((0..60).map(|_| engine.expire()).sum::<usize>(), 0, "nothing has expired yet");
    clock.advance_s(6);
    let expired = (0..10_000).filter(|&n| !live(n)).count();
    assert_eq!((0..60).map(|_| engine.expire()).sum::<usize>(), expired);
    assert_eq!(engine.list_tables()[0].keys, 10_000 - expired as u64);
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    for n in 0..10_000 {
        match live(n) {
            true => assert_eq!(reader.value(&key(n)), [n as u8; 100]),
            // A fingerprint that another key has too leaves a reader without proof.
            false => assert!(!matches!(reader.get(&key(n)), Raw::Hit(..)), "key {n}"),
        }
    }
}
