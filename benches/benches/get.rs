//! What does a one-sided GET over shared memory cost, index cached, 1 million pairs?

mod common;

use common::data::{self, Walk};
use common::store::Store;
use criterion::{Criterion, Throughput};

fn main() {
    if common::process::serve_if_told() {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    let pairs = data::pairs();
    let Store { table, client: _client, server: _server } = Store::filled(pairs).expect("filled");
    let mut group = criterion.benchmark_group("get/shm");
    group.throughput(Throughput::Elements(1));
    let mut walk = Walk::new(1, pairs);
    let mut index = 0;
    group.bench_function("dependent", |bencher| {
        bencher.iter(|| {
            let value = table.get(data::key(index)).expect("get").expect("the key is there");
            let word = value.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            index = walk.after(word);
            value
        });
    });
    group.bench_function("independent", |bencher| {
        bencher.iter(|| table.get(data::key(walk.next())).expect("get"));
    });
    group.bench_function("absent", |bencher| {
        bencher.iter(|| table.get(data::key(pairs + walk.next())).expect("get"));
    });
    for batch in [4_usize, 16, 64] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(format!("get_many of {batch}"), |bencher| {
            bencher.iter(|| {
                let keys: Vec<_> = (0..batch).map(|_| data::key(walk.next())).collect();
                table.get_many(&keys).expect("get_many")
            });
        });
    }
    group.finish();
    criterion.final_summary();
}
