//! Keys that all want the same bucket: the index deepens as far as it may, and then says so.

mod engine_support;

use engine_support::{RawReader, engine};
use onesided_protocol::control::TableOptions;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::limits::DEPTH_MAX;
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::EngineConfig;

/// The 8-byte key that has this hash: XXH3 of 4 to 8 bytes, run backwards.
fn key_with(seed: u64, hash: u64) -> [u8; 8] {
    const FACTOR: u64 = 0x9FB2_1C65_1E98_DF25;
    const SECRET: [u64; 2] = [0x1CAD_21F7_2C81_017C, 0xDB97_9083_E96D_D4DE];
    let mut inverse: u64 = 1;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
    }
    let mut x = hash ^ (hash >> 28) ^ (hash >> 56);
    x = x.wrapping_mul(inverse);
    x ^= (x >> 35) + 8;
    x = x.wrapping_mul(inverse);
    // x ^ rotl(x, 49) ^ rotl(x, 24) is its own inverse when applied 64 times.
    for _ in 0..63 {
        x ^= x.rotate_left(49) ^ x.rotate_left(24);
    }
    let seed = seed ^ u64::from((seed as u32).swap_bytes()) << 32;
    (x ^ (SECRET[0] ^ SECRET[1]).wrapping_sub(seed)).rotate_left(32).to_le_bytes()
}

#[test]
fn a_full_bucket_at_the_depth_limit_is_index_full_and_nothing_is_lost() {
    let (engine, _) = engine(EngineConfig { memory_bytes: 192 << 20, ..EngineConfig::default() });
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    let table = engine.table(info.id).expect("by id");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    // All bits but those of the fingerprint and the unused ones are the same.
    let key = |n: u64| {
        let hash = 0xDEAD_BEEF_5500_0000 + n * 31;
        let key = key_with(info.hash_seed, hash);
        assert_eq!(KeyHash::of(info.hash_seed, &key), KeyHash(hash));
        key
    };
    let put = |n: u64| table.put(&key(n), &n.to_le_bytes(), Expect::Absent, Ttl::Never, 0);
    let mut count = 0;
    let error = loop {
        match put(count) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, ErrorCode::IndexFull, "{error}");
    // Two lines of a bucket and all of a tail.
    assert_eq!(count, 7 * (2 + 64));
    assert_eq!(reader.directory().depth(), DEPTH_MAX);
    let all_there = || (0..count).for_each(|n| assert_eq!(reader.value(&key(n)), n.to_le_bytes()));
    all_there();
    let full = engine.memory_status();
    assert_eq!(put(count).expect_err("still full").code, ErrorCode::IndexFull);
    assert_eq!(engine.memory_status(), full, "a refused put left something behind");
    // Room elsewhere, and here after a delete.
    table.put(b"elsewhere", b"v", Expect::Absent, Ttl::Never, 0).expect("put");
    assert!(table.delete(&key(3), Expect::Any).expect("delete"));
    put(3).expect("in the slot that is free");
    all_there();
    assert_eq!(engine.list_tables()[0].keys, count + 1);
}

#[test]
fn a_tail_that_is_full_splits_the_segment_before_its_load_does() {
    let config =
        EngineConfig { memory_bytes: 64 << 20, split_load_percent: 100, ..EngineConfig::default() };
    let (engine, _) = engine(config);
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    let table = engine.table(info.id).expect("by id");
    let reader = RawReader::open(&engine, "t").expect("in the catalog");
    for n in 0..60_000_u32 {
        let bytes = n.to_le_bytes();
        table.put(&bytes, &bytes, Expect::Absent, Ttl::Never, 0).expect("put");
        assert_eq!(reader.value(&(n / 3).to_le_bytes()), (n / 3).to_le_bytes());
    }
    (0..60_000_u32).for_each(|n| assert_eq!(reader.value(&n.to_le_bytes()), n.to_le_bytes()));
    assert!(reader.directory().depth() >= 4);
}
