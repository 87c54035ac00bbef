//! What does a PUT cost, by fabric, alone and in batches?

mod common;

use common::data::{self, Walk};
use common::store::{self, Store};
use criterion::{Criterion, Throughput};
use onesided::FabricChoice;

/// Few enough that overwriting them for as long as criterion likes reuses memory.
const PAIRS: u64 = 1_000;

fn main() {
    if common::process::serve_if_told() {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for (name, fabric) in [("put/shm", FabricChoice::Shm), ("put/tcp", FabricChoice::Tcp)] {
        let Store { table, client: _client, server: _server } =
            Store::empty(fabric).expect("a server");
        let mut group = criterion.benchmark_group(name);
        let mut walk = Walk::new(2, PAIRS);
        group.throughput(Throughput::Elements(1));
        group.bench_function("one at a time", |bencher| {
            bencher.iter(|| {
                let index = walk.next();
                table.put(data::key(index), data::value(index)).expect("put")
            });
        });
        group.throughput(Throughput::Elements(16));
        group.bench_function("put_many of 16", |bencher| {
            bencher.iter(|| store::put_many(&table, (0..16).map(|_| walk.next())).expect("put"));
        });
        group.finish();
    }
    criterion.final_summary();
}
