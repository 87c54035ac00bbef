//! Random runs with counters: changed one-sidedly and by RPC, read in every way, deleted, made
//! again and replaced by values, while entries move, segments are reused and the index splits.
//!
//! `SEED=n cargo test -p onesided --test sim_counters` runs one seed; `SEEDS=n` runs that many.

#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/sim/mod.rs"]
mod sim;
#[path = "common/values.rs"]
mod values;

use sim::{Plan, Seen, Sim, Weights};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan(seed: u64) -> Plan {
    let weights =
        Weights { put: 2, put_if: 1, delete: 6, increment: 2, append: 1, ..Weights::NONE };
    Plan { count_percent: 30 + seed % 50, clock_moves: false, weights, ..Plan::of(seed) }
}

/// Runs the plans of all seeds.
fn run(plan: impl Fn(u64) -> Plan) -> Seen {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(300),
    };
    let mut all = Seen::default();
    for seed in seeds {
        let seen = Sim::new(plan(seed)).run().unwrap_or_else(|failure| {
            panic!(
                "seed {seed}: {failure}rerun: SEED={seed} cargo test -p onesided --test \
                 sim_counters"
            )
        });
        all.gets += seen.gets;
        all.updates += seen.updates;
        all.update_retries += seen.update_retries;
        all.rpc_gets += seen.rpc_gets;
        all.moved += seen.moved;
        all.splits += seen.splits;
    }
    println!("{all:?}");
    all
}

#[test]
fn counters_are_linearizable() {
    let all = run(plan);
    let enough = all.updates > 1_000 && all.update_retries > 100 && all.gets > 1_000;
    assert!(number("SEED").is_some() || enough && all.moved > 500, "{all:?}");
}

/// Of each handle's additions some find a number near its limits that it saw far from them last.
#[test]
fn counters_at_their_limits_are_linearizable() {
    let all = run(|seed| Plan { counts_far: true, ..plan(seed) });
    assert!(number("SEED").is_some() || all.updates > 1_000 && all.update_retries > 100, "{all:?}");
}
