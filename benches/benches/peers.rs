//! What do other engines cost for the same pairs? In-process hash map, LMDB, Redis. (For ratios
//! take `benches/run.sh`, where contestants take turns.)

mod common;

use common::data::{self, Walk};
use common::lmdb::Lmdb;
use common::redis::RedisServer;
use criterion::{Criterion, Throughput};
use hashbrown::HashMap;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let pairs = data::pairs();
    in_process(&mut criterion, pairs);
    lmdb(&mut criterion, pairs);
    match RedisServer::start() {
        Ok(server) => redis(&mut criterion, &server),
        Err(error) => eprintln!("Redis left out ({error}): apt-get install redis-server"),
    }
    criterion.final_summary();
}

fn in_process(criterion: &mut Criterion, pairs: u64) {
    let pair = |index| (Box::from(&data::key(index)[..]), Box::from(&data::value(index)[..]));
    let map: HashMap<Box<[u8]>, Box<[u8]>> = (0..pairs).map(pair).collect();
    let mut group = criterion.benchmark_group("peers/hashbrown");
    group.throughput(Throughput::Elements(1));
    let mut walk = Walk::new(3, pairs);
    group.bench_function("get, copied", |bencher| {
        bencher.iter(|| map.get(&data::key(walk.next())[..]).map(|value| value.to_vec()));
    });
    group.finish();
}

fn lmdb(criterion: &mut Criterion, pairs: u64) {
    let lmdb = Lmdb::filled(pairs).expect("LMDB");
    let mut group = criterion.benchmark_group("peers/lmdb");
    group.throughput(Throughput::Elements(1));
    let mut walk = Walk::new(4, pairs);
    group.bench_function("get, a transaction each", |bencher| {
        bencher.iter(|| {
            let txn = lmdb.read().expect("a transaction");
            lmdb.get(&txn, &data::key(walk.next())).expect("get")
        });
    });
    let txn = lmdb.read().expect("a transaction");
    group.bench_function("get, transaction kept", |bencher| {
        bencher.iter(|| lmdb.get(&txn, &data::key(walk.next())).expect("get"));
    });
    group.finish();
}

fn redis(criterion: &mut Criterion, server: &RedisServer) {
    let mut redis = server.unix().expect("redis");
    let (key, value) = (data::key(0), data::value(0));
    redis.set_many(&[(&key, &value)]).expect("redis");
    let mut group = criterion.benchmark_group("peers/redis, Unix socket");
    group.throughput(Throughput::Elements(1));
    let mut into = Vec::new();
    group.bench_function("GET", |bencher| {
        bencher.iter(|| redis.get(&key, &mut into).expect("redis"));
    });
    group.bench_function("SET", |bencher| {
        bencher.iter(|| redis.set_many(&[(&key, &value)]).expect("redis"));
    });
    group.finish();
}
