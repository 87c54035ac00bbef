//! Memory per key along the split cycle: 16-byte keys, 100-byte values.

mod engine_support;

use engine_support::engine;
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_server::engine::{EngineConfig, MemoryStatus};

const PAIR_BYTES: f64 = 116.0;

/// Bytes per key beside key and value: log segments, also what is still empty of the last one,
/// index, private state. Rests of metadata blocks and the catalog's fixed part are not a key's.
fn overhead(status: &MemoryStatus, keys: u32) -> f64 {
    let used = status.log_bytes + status.index_bytes + status.private_bytes;
    used as f64 / f64::from(keys) - PAIR_BYTES
}

#[test]
fn a_million_pairs_cost_at_most_64_bytes_each_and_never_more_than_70() {
    let (engine, _) = engine(EngineConfig { memory_bytes: 512 << 20, ..EngineConfig::default() });
    let info = engine.create_table("t", TableOptions::default()).expect("table");
    let table = engine.table(info.id).expect("by id");
    let mut worst = (0.0, 0);
    for n in 1..=1_000_000_u32 {
        let mut key = *b"key-000000000000";
        key[8..12].copy_from_slice(&n.to_be_bytes());
        table.put(&key, &[n as u8; 100], Expect::Any, Ttl::Never, 0).expect("put");
        if n % 1_000 == 0 {
            let status = engine.memory_status();
            let bytes = overhead(&status, n);
            if n % 100_000 == 0 {
                let load = f64::from(n) * 8.0 / status.index_bytes as f64;
                println!("{n} keys: {bytes:.2} bytes per key, index load {:.1} %", load * 100.0);
            }
            if n >= 100_000 {
                assert!(bytes <= 70.0, "{bytes} bytes per key at {n} keys: {status:?}");
                if bytes > worst.0 {
                    worst = (bytes, n);
                }
            }
        }
    }
    println!("worst: {:.2} bytes per key at {} keys", worst.0, worst.1);
    let status = engine.memory_status();
    assert!(overhead(&status, 1_000_000) <= 64.0, "{status:?}");
    assert_eq!(status.log_bytes + status.meta_bytes + status.free_bytes, status.limit_bytes);
}
