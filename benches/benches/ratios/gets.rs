//! Reading.

use std::hint::black_box;

use anyhow::Result;
use hashbrown::HashMap;
use onesided::blocking::Table;

use crate::common::data::{self, KEY_BYTES, VALUE_BYTES, Walk};
use crate::common::lmdb::Lmdb;
use crate::common::measure::{Contestant, Figure, Time, in_turns};
use crate::common::redis::RedisServer;
use crate::common::store::Store;
use crate::huge;
use crate::report::Report;
use crate::{TURN, rounds};

pub(crate) type Map = HashMap<Box<[u8]>, Box<[u8]>>;

const BATCH: usize = 16;

/// Fills everybody, measures, and gives the filled store back.
pub(crate) fn measure(
    report: &mut Report,
    pairs: u64,
    redis: Option<&RedisServer>,
) -> Result<Store> {
    eprintln!("filling onesided, hashbrown and LMDB with {pairs} pairs");
    let store = Store::filled(pairs)?;
    let map: Map = (0..pairs).map(pair).collect();
    let lmdb = Lmdb::filled(pairs)?;
    let before = store.client.stats();
    let dependent = singles::<true>(&store.table, &map, &lmdb, pairs);
    let independent = singles::<false>(&store.table, &map, &lmdb, pairs);
    report_singles(report, &dependent, "dependent", 1.0);
    report_singles(report, &independent, "independent", 1.8);
    huge::beside(report, dependent[0], independent[0]);
    batches(report, &store.table, &map, pairs);
    if let Some(redis) = redis {
        beside_redis(report, &store.table, redis, pairs)?;
    }
    let after = store.client.stats();
    let (gets, by_rpc) = (after.gets - before.gets, after.rpc_gets - before.rpc_gets);
    report.figure(
        "GETs of these that asked the server",
        &format!("{by_rpc} of {gets}"),
        "0",
        by_rpc == 0,
    );
    Ok(store)
}

pub(crate) fn pair(index: u64) -> (Box<[u8]>, Box<[u8]>) {
    (Box::from(&data::key(index)[..]), Box::from(&data::value(index)[..]))
}

fn report_singles(report: &mut Report, figures: &[Figure; 5], how: &str, limit: f64) {
    let what = format!("GET, {how}");
    let [ours, copied, reused, lmdb_each, lmdb_kept] = *figures;
    report.at_most(&what, ours, "hashbrown get, copied to a new Vec", copied, limit);
    report.beside(&what, ours, "hashbrown get, copied to one buffer", reused);
    report.faster(&what, ours, "LMDB, a transaction each", lmdb_each, 5.0);
    report.faster(&what, ours, "LMDB, transaction kept", lmdb_kept, 5.0);
}

fn singles<const DEPENDENT: bool>(
    table: &Table,
    map: &Map,
    lmdb: &Lmdb,
    pairs: u64,
) -> [Figure; 5] {
    eprintln!("GET, {}", if DEPENDENT { "dependent" } else { "independent" });
    let mut buffer = Vec::new();
    let ours = walk::<DEPENDENT>(pairs, |key| {
        word(&table.get(key).expect("get").expect("the key is there"))
    });
    let copied = walk::<DEPENDENT>(pairs, |key| {
        let value: Vec<u8> = map.get(&key[..]).expect("the key is there").to_vec();
        word(&black_box(value))
    });
    let reused = walk::<DEPENDENT>(pairs, |key| {
        buffer.clear();
        buffer.extend_from_slice(map.get(&key[..]).expect("the key is there"));
        word(black_box(&buffer))
    });
    let lmdb_each = walk::<DEPENDENT>(pairs, |key| {
        let txn = lmdb.read().expect("a transaction");
        word(&lmdb.get(&txn, key).expect("get").expect("the key is there"))
    });
    // LMDB has one read transaction a thread: this one is kept for a turn.
    let mut kept = Walk::new(42, pairs);
    let lmdb_kept = |calls| {
        let txn = lmdb.read().expect("a transaction");
        steps::<DEPENDENT>(&mut kept, calls, |key| {
            word(&lmdb.get(&txn, key).expect("get").expect("the key is there"))
        })
    };
    in_turns(
        [
            Contestant::new("onesided get", ours),
            Contestant::new("hashbrown, a new Vec", copied),
            Contestant::new("hashbrown, one buffer", reused),
            Contestant::new("LMDB, a transaction each", lmdb_each),
            Contestant::new("LMDB, transaction kept", lmdb_kept),
        ],
        rounds(),
        TURN,
        Time::Cpu,
    )
}

/// Calls `get` with keys; whether the next key depends on what `get` returns is the question of
/// the measurement.
pub(crate) fn walk<'a, const DEPENDENT: bool>(
    pairs: u64,
    mut get: impl FnMut(&[u8; KEY_BYTES]) -> u64 + 'a,
) -> impl FnMut(u64) -> u64 + 'a {
    let mut walk = Walk::new(42, pairs);
    move |calls| steps::<DEPENDENT>(&mut walk, calls, &mut get)
}

/// A constant, or the compiler selects without a branch and makes all of them dependent.
fn steps<const DEPENDENT: bool>(
    walk: &mut Walk,
    calls: u64,
    mut get: impl FnMut(&[u8; KEY_BYTES]) -> u64,
) -> u64 {
    let mut sum = 0;
    let mut index = walk.next();
    for _ in 0..calls {
        let word = get(&data::key(index));
        sum ^= word;
        index = if DEPENDENT { walk.after(word) } else { walk.next() };
    }
    sum
}

/// The first 8 bytes of a whole value.
pub(crate) fn word(value: &[u8]) -> u64 {
    assert_eq!(value.len(), VALUE_BYTES);
    value.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn batches(report: &mut Report, table: &Table, map: &Map, pairs: u64) {
    eprintln!("get_many of {BATCH}");
    let mut ours = Walk::new(43, pairs);
    let mut theirs = Walk::new(43, pairs);
    let contestants = [
        Contestant::batched("onesided get_many", BATCH as u64, move |calls| {
            (0..calls).fold(0, |sum, _| {
                let keys: [_; BATCH] = std::array::from_fn(|_| data::key(ours.next()));
                let values = table.get_many(&keys).expect("get_many");
                sum + values
                    .iter()
                    .map(|value| value.as_ref().map_or(0, |v| v.len()))
                    .sum::<usize>() as u64
            })
        }),
        Contestant::batched("hashbrown", BATCH as u64, move |calls| {
            (0..calls).fold(0, |sum, _| {
                let keys: [_; BATCH] = std::array::from_fn(|_| data::key(theirs.next()));
                let values: Vec<Option<Vec<u8>>> =
                    keys.iter().map(|key| map.get(&key[..]).map(|value| value.to_vec())).collect();
                sum + black_box(values).len() as u64
            })
        }),
    ];
    let figures = in_turns(contestants, rounds(), TURN, Time::Cpu);
    report.at_most("get_many of 16, a key", figures[0], "hashbrown get, a key", figures[1], 0.8);
}

fn beside_redis(
    report: &mut Report,
    table: &Table,
    server: &RedisServer,
    pairs: u64,
) -> Result<()> {
    eprintln!("GET beside Redis");
    let mut redis = server.unix()?;
    let mut filled = 0;
    while filled < pairs {
        let numbers = filled..pairs.min(filled + 512);
        filled = numbers.end;
        let some: Vec<_> = numbers.map(|index| (data::key(index), data::value(index))).collect();
        let some: Vec<(&[u8], &[u8])> = some.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        redis.set_many(&some)?;
    }
    let mut value = Vec::new();
    let ours =
        walk::<true>(pairs, |key| word(&table.get(key).expect("get").expect("the key is there")));
    let theirs = walk::<true>(pairs, |key| {
        redis.get(key, &mut value).expect("redis");
        word(&value)
    });
    let contestants =
        [Contestant::new("onesided get", ours), Contestant::new("Redis GET, Unix socket", theirs)];
    let figures = in_turns(contestants, rounds(), TURN, Time::Wall);
    let peer = "Redis GET, Unix socket, no pipelining";
    report.faster("GET, dependent", figures[0], peer, figures[1], 100.0);
    Ok(())
}
