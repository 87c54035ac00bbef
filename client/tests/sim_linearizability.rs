//! Random runs of the real engine and the real read path, checked for linearizability key by
//! key; and the same with one rule of the protocol switched off, which must be noticed.
//!
//! `SEED=n cargo test -p onesided --test sim_linearizability seeds` runs one seed;
//! `SEEDS=n` runs that many.

#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/sim/mod.rs"]
mod sim;
#[path = "common/values.rs"]
mod values;

use sim::{Plan, Seen, Sim};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) -> Result<Seen, String> {
    Sim::new(Plan::of(seed)).run().map_err(|failure| {
        format!(
            "seed {seed}: {failure}rerun: SEED={seed} cargo test -p onesided --test \
             sim_linearizability seeds"
        )
    })
}

#[test]
fn seeds_are_linearizable() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(500),
    };
    let mut all = Seen::default();
    for seed in seeds {
        let seen = run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        all.gets += seen.gets;
        all.dropped += seen.dropped;
        all.splits += seen.splits;
        all.operations += seen.operations;
        all.retries += seen.retries;
        all.checksum_failures += seen.checksum_failures;
        all.forward_hops += seen.forward_hops;
        all.rpc_gets += seen.rpc_gets;
        all.moved += seen.moved;
        all.revoked += seen.revoked;
    }
    println!("{all:?}");
    let enough = all.gets > 1_000 && all.dropped > 100 && all.splits > 100;
    let enough = enough && all.moved > 2_000 && all.revoked > 100;
    assert!(number("SEED").is_some() || enough, "{all:?}");
}
