//! Engines of one budget, as a server has one for each tenant.

mod engine_support;

use std::sync::Arc;

use engine_support::{FakeClock, RawReader, private_memory, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Budget, Engine, EngineConfig, Table};

const REGION_BYTES: usize = 256 << 10;

fn tenant(budget: &Arc<Budget>, memory_bytes: usize, seed: u64) -> (Arc<Engine>, Arc<Table>) {
    let config = EngineConfig { region_bytes: REGION_BYTES, seed, ..small(memory_bytes) };
    let clock = FakeClock::at_s(1_000_000);
    let engine = Engine::within(Arc::clone(budget), config, private_memory(), clock);
    let engine = engine.expect("an engine");
    let info = engine.create_table("t", TableOptions::default()).expect("a table");
    let table = engine.table(info.id).expect("by id");
    (engine, table)
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Puts keys until it fails.
fn fill(table: &Table, byte: u8) -> (u32, RpcError) {
    for n in 0..10_000 {
        if let Err(error) = table.put(&key(n), &[byte; 1000], Expect::Any, Ttl::Never, 0) {
            return (n, error);
        }
    }
    unreachable!("memory without end");
}

#[test]
fn a_budget_holds_for_all_and_a_limit_for_one() {
    let budget = Budget::new(8 * REGION_BYTES);
    let (limited, few) = tenant(&budget, 2 * REGION_BYTES, 1);
    let (greedy, many) = tenant(&budget, 8 * REGION_BYTES, 2);
    let (_other, none) = tenant(&budget, 8 * REGION_BYTES, 3);

    let (count, error) = fill(&few, 1);
    assert_eq!(error.code, ErrorCode::OutOfMemory);
    assert!(error.text.contains("limit of the tenant 524288 bytes"), "{}", error.text);
    assert!((300..520).contains(&count), "{count} keys of 1000 bytes in half a MiB");
    // A 64th of each one's is left to what clients may write, or a segment.
    let (few_left, many_left) = (2 * REGION_BYTES / 64, 8 * REGION_BYTES / 64);
    let few_bytes = 2 * REGION_BYTES - few_left;
    assert_eq!(limited.memory_status().region_bytes, few_bytes as u64);

    let (count, error) = fill(&many, 2);
    assert_eq!(error.code, ErrorCode::OutOfMemory);
    let held = few_bytes + REGION_BYTES;
    let text = format!("limit 2097152 bytes, other tenants hold {held}");
    assert!(error.text.contains(&text), "{}", error.text);
    assert!(count > 800, "{count} keys of 1000 bytes in the rest");
    let status = greedy.memory_status();
    let taken_bytes = 8 * REGION_BYTES - held - many_left;
    assert_eq!((status.region_bytes, status.unmade_bytes), (taken_bytes as u64, many_left as u64));
    assert_eq!(budget.left_bytes(), many_left);

    // What it holds already is still its own, full as the others are.
    none.put(b"k", b"v", Expect::Any, Ttl::Never, 0).expect("room in its own region");
    assert!(many.delete(&key(0), Expect::Any).expect("delete"));
    let status = limited.memory_status();
    let parts = status.log_bytes + status.meta_bytes + status.free_bytes;
    assert_eq!(parts, status.limit_bytes);
}

#[test]
fn nothing_of_one_is_in_the_catalog_or_the_regions_of_another() {
    let budget = Budget::new(8 * REGION_BYTES);
    let (one, its) = tenant(&budget, 8 * REGION_BYTES, 1);
    let (two, others) = tenant(&budget, 8 * REGION_BYTES, 2);
    for n in 0..200 {
        its.put(&key(n), &[0xa1; 1000], Expect::Any, Ttl::Never, 0).expect("put");
        others.put(&key(n), &[0xb2; 1000], Expect::Any, Ttl::Never, 0).expect("put");
    }
    let (one_reader, two_reader) = (RawReader::open(&one, "t"), RawReader::open(&two, "t"));
    let (one_reader, two_reader) = (one_reader.expect("listed"), two_reader.expect("listed"));
    for n in 0..200 {
        assert_eq!(one_reader.value(&key(n)), [0xa1; 1000]);
        assert_eq!(two_reader.value(&key(n)), [0xb2; 1000]);
    }
    // Two tables of one name and one number, with secrets of their own.
    let (first, second) = (its.info(), others.info());
    assert_eq!(first.id, second.id);
    assert_ne!((first.secret, first.hash_seed), (second.secret, second.hash_seed));
    for (engine, foreign) in [(&one, [0xb2; 64]), (&two, [0xa1; 64])] {
        for id in 0..engine.regions() {
            let memory = engine.region(id).expect("made");
            let mut bytes = vec![0; memory.len_bytes()];
            memory.read_bytes(0, &mut bytes).expect("whole");
            assert!(!bytes.windows(foreign.len()).any(|part| part == foreign), "region {id}");
        }
    }
}
