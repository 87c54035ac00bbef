//! What does a round trip of an RPC cost, by fabric, and how much of it is a GET?

mod common;

use common::data::{self, Walk};
use common::store::{self, Store};
use criterion::Criterion;
use onesided::FabricChoice;

const PAIRS: u64 = 1_000;

fn main() {
    if common::process::serve_if_told() {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for (name, fabric) in [("rpc/shm", FabricChoice::Shm), ("rpc/tcp", FabricChoice::Tcp)] {
        let Store { table, client, server: _server } = Store::empty(fabric).expect("a server");
        store::fill(&table, 0..PAIRS).expect("filled");
        let mut group = criterion.benchmark_group(name);
        group.bench_function("ping", |bencher| bencher.iter(|| client.ping().expect("a pong")));
        // Over shared memory a GET would ask nobody.
        if fabric == FabricChoice::Tcp {
            let mut walk = Walk::new(1, PAIRS);
            group.bench_function("get", |bencher| {
                bencher.iter(|| table.get(data::key(walk.next())).expect("get"));
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
