//! Writing.

use anyhow::Result;
use onesided::FabricChoice;

use crate::common::data::{self, Walk};
use crate::common::measure::{Contestant, Figure, Time, in_turns};
use crate::common::redis::RedisServer;
use crate::common::store::{self, Store};
use crate::report::{Report, ns};
use crate::{TURN, rounds};

const PIPELINE: u64 = 16;

/// PUT over shm, one at a time; and over loopback TCP, 16 at a time.
pub(crate) fn measure(
    report: &mut Report,
    store: &Store,
    pairs: u64,
    redis: Option<&RedisServer>,
) -> Result<()> {
    eprintln!("PUT over shm");
    let mut walk = Walk::new(44, pairs);
    let contestants = [Contestant::new("onesided put, shm", |calls| {
        (0..calls).fold(0, |sum, _| {
            let index = walk.next();
            sum ^ store.table.put(data::key(index), data::value(index)).expect("put")
        })
    })];
    let Figure { median_ns, .. } = in_turns(contestants, rounds(), TURN, Time::Wall)[0];
    report.figure("RPC PUT over shm", &ns(median_ns), "under 5 us", median_ns < 5_000.0);
    let Some(redis) = redis else { return Ok(()) };
    pipelined(report, store, pairs, redis)
}

fn pipelined(report: &mut Report, store: &Store, pairs: u64, redis: &RedisServer) -> Result<()> {
    eprintln!("PUT over loopback TCP");
    let (_client, table) = store::connect(&store.server.url, FabricChoice::Tcp)?;
    let mut redis = redis.tcp()?;
    let mut ours = Walk::new(45, pairs);
    let mut theirs = Walk::new(45, pairs);
    let contestants = [
        Contestant::batched("onesided put_many of 16, tcp", PIPELINE, |calls| {
            for _ in 0..calls {
                store::put_many(&table, (0..PIPELINE).map(|_| ours.next())).expect("put_many");
            }
            calls
        }),
        Contestant::batched("Redis SET pipelined 16, tcp", PIPELINE, |calls| {
            for _ in 0..calls {
                let some: Vec<_> = (0..PIPELINE)
                    .map(|_| theirs.next())
                    .map(|index| (data::key(index), data::value(index)))
                    .collect();
                let some: Vec<(&[u8], &[u8])> =
                    some.iter().map(|(k, v)| (&k[..], &v[..])).collect();
                redis.set_many(&some).expect("redis");
            }
            calls
        }),
    ];
    let figures = in_turns(contestants, rounds(), TURN, Time::Wall);
    let peer = "Redis SET over loopback TCP, pipelined 16";
    report.at_most("PUT over loopback TCP, pipelined 16", figures[0], peer, figures[1], 1.0);
    Ok(())
}
