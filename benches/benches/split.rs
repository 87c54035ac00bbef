//! What does a PUT cost that splits a segment of the index, beside one that does not? In the engine
//! alone: no client, no message.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::data;
use criterion::Criterion;
use onesided_fabric::Memory;
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_server::clock::ServerClock;
use onesided_server::engine::{Engine, EngineConfig, Table};

const MEMORY_BYTES: usize = 256 << 20;
/// They fit, with what is beside them.
const PAIRS_MAX: u64 = 1_000_000;

/// A table that grows, and is made anew when it is full.
struct Growing {
    engine: Arc<Engine>,
    table: Arc<Table>,
    pairs: u64,
    splits: u64,
}

impl Growing {
    fn new() -> Self {
        let config = EngineConfig { memory_bytes: MEMORY_BYTES, ..EngineConfig::default() };
        let memory = Box::new(|_: &str, len_bytes, _| Memory::private(len_bytes));
        let engine = Engine::new(config, memory, Arc::new(ServerClock::default()));
        let engine = engine.expect("an engine");
        let info = engine.create_table("t", TableOptions::default()).expect("a table");
        let table = engine.table(info.id).expect("it was made");
        Self { engine, table, pairs: 0, splits: 0 }
    }

    /// One more pair: how long that took, and whether it has split a segment.
    fn put(&mut self) -> (Duration, bool) {
        if self.pairs == PAIRS_MAX {
            *self = Self::new();
        }
        let (key, value) = (data::key(self.pairs), data::value(self.pairs));
        self.pairs += 1;
        let start = Instant::now();
        let stored = self.table.put(&key, &value, Expect::Any, Ttl::Never, 0);
        let took = start.elapsed();
        stored.expect("there is room");
        let splits = self.engine.list_tables()[0].splits;
        (took, std::mem::replace(&mut self.splits, splits) != splits)
    }

    /// How long `count` PUTs took that were, or were not, splits.
    fn time(&mut self, count: u64, split: bool) -> Duration {
        let (mut sum, mut left) = (Duration::ZERO, count);
        while left > 0 {
            let (took, has_split) = self.put();
            if has_split == split {
                sum += took;
                left -= 1;
            }
        }
        sum
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("split");
    // A split comes with some thousand PUTs.
    group.sample_size(10);
    let mut growing = Growing::new();
    group.bench_function("a PUT that splits nothing", |bencher| {
        bencher.iter_custom(|count| growing.time(count, false));
    });
    group.bench_function("a PUT that splits a segment", |bencher| {
        bencher.iter_custom(|count| growing.time(count, true));
    });
    group.finish();
    criterion.final_summary();
}
