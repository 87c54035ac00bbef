//! As `sim_linearizability.rs`, with clients that update entries by themselves: one-sided updates,
//! all that is done by RPC, one-sided reads, cleaning, splits and regions that go, on the same
//! keys.
//! And with each of the rules of such tables switched off, which must be noticed.
//!
//! `SEED=n cargo test -p onesided --test sim_cas seeds` runs one seed; `SEEDS=n` runs that many.

#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/sim/mod.rs"]
mod sim;
#[path = "common/values.rs"]
mod values;

use linearize::{Expect, Failure, Op};
use onesided_protocol::rules::{Rule, without};
use sim::{Call, Doubts, Entered, Plan, Seen, Sim};

/// Runs tried before a rule counts as not noticed.
const WEAKENED_SEEDS: u64 = 600;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) -> Result<Seen, String> {
    Sim::new(Plan::cas_of(seed)).run().map_err(|failure| {
        format!(
            "seed {seed}: {failure}rerun: SEED={seed} cargo test -p onesided --test sim_cas seeds"
        )
    })
}

#[test]
fn seeds_are_linearizable() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(300),
    };
    let mut all = Seen::default();
    for seed in seeds {
        let seen = run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        all.gets += seen.gets;
        all.splits += seen.splits;
        all.operations += seen.operations;
        all.forward_hops += seen.forward_hops;
        all.rpc_gets += seen.rpc_gets;
        all.moved += seen.moved;
        all.revoked += seen.revoked;
        all.one_sided_puts += seen.one_sided_puts;
        all.update_round_trips += seen.update_round_trips;
        all.updates_lost += seen.updates_lost;
        all.finished += seen.finished;
        all.updates += seen.updates;
    }
    println!("{all:?}");
    let enough = all.gets > 1_000 && all.splits > 100 && all.moved > 2_000;
    let updates = all.one_sided_puts > 2_000 && all.updates_lost > 100 && all.finished > 50;
    let counters = all.updates > 100;
    assert!(number("SEED").is_some() || enough && updates && counters, "{all:?}");
}

fn is_noticed(rule: Rule) {
    let run = |rule, seed| {
        let mut plan = Plan::cas_of(seed);
        plan.network.kill_per_million = 0;
        plan.clock_moves = false;
        (plan.count_percent, plan.resumed_percent) = (0, None);
        without(rule, || Sim::new(plan).run())
    };
    for seed in 0..WEAKENED_SEEDS {
        if let Err(failure @ Failure::Violation { .. }) = run(Some(rule), seed) {
            println!("{rule:?} off, seed {seed}: {failure}");
            for seed in 0..=seed {
                if let Err(failure) = run(None, seed) {
                    panic!("{rule:?} on, and still, seed {seed}: {failure}");
                }
            }
            return;
        }
    }
    panic!("{rule:?} off, and nothing was noticed in {WEAKENED_SEEDS} seeds");
}

/// Enough that entries wait to be committed until an update of one more takes four along.
const KEYS: usize = 6;
/// Updates of a client until so many wait, at most: its leases end, and then none does.
const UPDATES_MAX: usize = 60;

/// Three clients that do what a test tells them, one call at a time, and nothing else happens.
fn directed(seed: u64) -> Plan {
    let mut plan = Plan {
        keys: KEYS,
        clients: 3,
        mutations: 0,
        pause_per_mille: 0,
        clock_moves: false,
        large_one_in: u64::MAX,
        value_bytes: (100, 101),
        count_percent: 0,
        resumed_percent: None,
        threads: 1,
        ..Plan::cas_of(seed)
    };
    plan.network.kill_per_million = 0;
    plan
}

/// As [`directed`]; a step of the network does as little as there is.
fn step_by_step(seed: u64, resumed_percent: Option<u64>) -> Plan {
    let mut plan = Plan { resumed_percent, ..directed(seed) };
    plan.network.step_burst_words = 1;
    plan
}

/// Client 0 inserts all keys, leases, and knows the entries; of all but the first one it updates
/// some. Whether its next update takes along what commits those.
fn prepare(sim: &Sim) -> bool {
    let put = |key| {
        sim.begin(0, sim.put(key, Expect::Any, 0));
        sim.settle();
    };
    (0..3).for_each(|_| put(0));
    (1..KEYS).for_each(put);
    for number in 0..UPDATES_MAX {
        // By then the commit of key 0 waits no more.
        let is_enough = number >= 2 * KEYS;
        if is_enough && (sim.has_batch(0) || !sim.plan.commits_wait) {
            break;
        }
        put(1 + number % (KEYS - 1));
    }
    sim.has_batch(0)
}

fn all_keys() -> Call {
    Call::Get((0..KEYS).collect())
}

/// Some keys, one client that updates one of them and dies after so many steps of the network,
/// others that read and update it. `true`: the update was over before.
fn dies_after(steps: u64, seed: u64, batches: &mut u64) -> Result<bool, Failure> {
    let sim = Sim::new(step_by_step(seed, None));
    let _entered = Entered::new(&sim);
    let put = |client| {
        sim.begin(client, sim.put(0, Expect::Any, 0));
        sim.settle();
    };
    let has_batch = prepare(&sim);
    sim.begin(0, sim.put(0, Expect::Any, 0));
    for _ in 0..steps {
        sim.network_goes_on();
        sim.server_goes_on();
    }
    let is_over = !sim.busy();
    *batches += u64::from(has_batch && !sim.has_batch(0));
    sim.kill(0);
    let get = |client| {
        sim.begin(client, all_keys());
        sim.settle();
    };
    get(1);
    put(2);
    // What it had leased comes back, and nothing that was acknowledged goes with it.
    sim.take_back();
    get(2);
    put(1);
    get(0);
    put(0);
    get(1);
    let leases = sim.engine.cas_status().leases;
    assert!(leases <= 6, "{leases} leases of three clients");
    sim.verdict().map(|_| is_over)
}

#[test]
fn a_client_may_die_between_any_two_of_its_steps() {
    let mut batches = 0;
    for seed in 0..12 {
        let mut steps = 0;
        while !dies_after(steps, seed, &mut batches)
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
        {
            steps += 1;
            assert!(steps < 5_000, "seed {seed}: an update has no end");
        }
        assert!(steps >= 5, "seed {seed}: {steps} steps");
    }
    assert!(batches > 50, "{batches} updates took along what commits others");
}

/// A client whose entries wait for its next update to be committed.
fn commits_wait(seed: u64) -> Plan {
    Plan { cache_bytes: 0, commits_wait: true, commits_per_mille: 0, ..directed(seed) }
}

/// What commits entries has left and is done before the memory may go: it may be in there.
#[test]
fn memory_goes_after_what_commits_entries_is_done() {
    for seed in 0..12 {
        let sim = Sim::new(commits_wait(seed));
        let _entered = Entered::new(&sim);
        assert!(prepare(&sim), "seed {seed}: some wait");
        let mut retirements = sim.retire(sim.engine.epoch());
        for _ in 0..10 {
            assert!(!retirements[0].is_over(), "seed {seed}: nothing of it can be done yet");
        }
        assert!(!sim.has_batch(0), "seed {seed}: it is posted");
        let finished = sim.engine.cas_status().finished_entries;
        let steps = (0..10_000).take_while(|_| {
            sim.network_goes_on();
            !retirements[0].is_over()
        });
        assert!(steps.count() < 10_000, "seed {seed}: no end");
        sim.begin(1, all_keys());
        sim.settle();
        let of_server = sim.engine.cas_status().finished_entries - finished;
        assert_eq!(of_server, 0, "seed {seed}: entries are committed by then");
        sim.verdict().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Entries whose writer does not commit them. Others look at one twice, and ask.
#[test]
fn who_meets_a_pending_entry_twice_asks_the_server() {
    let mut all = Seen::default();
    for seed in 0..12 {
        let sim = Sim::new(commits_wait(seed));
        let _entered = Entered::new(&sim);
        prepare(&sim);
        let before = sim.verdict().expect("nothing else has happened");
        let finished = sim.engine.cas_status().finished_entries;
        for key in 0..KEYS {
            sim.begin(1, Call::Get(vec![key]));
            sim.settle();
        }
        let seen = sim.verdict().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let asked = sim.engine.cas_status().finished_entries - finished;
        all.finished += asked;
        all.retries += seen.retries - before.retries;
        all.checksum_failures += seen.checksum_failures - before.checksum_failures;
    }
    println!("{all:?}");
    assert!(all.finished > 12, "entries that nobody had committed: {all:?}");
    // Beside those, some slots lag too far: that is no second look.
    assert!(all.retries <= all.finished, "{all:?}");
    assert_eq!(all.checksum_failures, 0);
}

/// What happens between the end of a connection and the next one.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Update,
    Delete,
    Clean,
    LeaseEnds,
}

/// The connection of a client that updates a key breaks after so many steps of the network; the
/// next one is of the same session, or of another one. `true`: the update was over before.
fn breaks_after(
    steps: u64,
    seed: u64,
    meanwhile: Meanwhile,
    resumed: bool,
    (doubts, batches): (&mut Doubts, &mut u64),
) -> Result<bool, Failure> {
    let sim = Sim::new(step_by_step(seed, Some(if resumed { 100 } else { 0 })));
    let _entered = Entered::new(&sim);
    let put = |client| sim.begin(client, sim.put(0, Expect::Any, 0));
    let has_batch = prepare(&sim);
    put(0);
    (0..steps).for_each(|_| sim.network_goes_on());
    let is_over = !sim.busy();
    *batches += u64::from(has_batch && !sim.has_batch(0));
    sim.apart.set(true);
    sim.sever(0);
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Update => (put(1), sim.settle_one(1)).1,
        Meanwhile::Delete => {
            let (key, op, bytes) = (0, Op::Delete { expect: Expect::Any }, Vec::new());
            sim.begin(1, Call::Change { key, op, bytes, ttl_s: 0 });
            sim.settle_one(1);
        }
        Meanwhile::Clean => drop(sim.engine.clean()),
        Meanwhile::LeaseEnds => sim.take_back_from(0),
    }
    sim.begin(2, Call::Get(vec![0]));
    sim.settle_one(2);
    sim.apart.set(false);
    sim.settle();
    for client in [0, 1, 2] {
        sim.begin(client, all_keys());
        sim.settle();
        put(client);
        sim.settle();
    }
    let seen = sim.verdict()?;
    doubts.applied += seen.doubts.applied;
    doubts.not_applied += seen.doubts.not_applied;
    doubts.unknown += seen.doubts.unknown;
    Ok(is_over)
}

/// What a client is in doubt about it asks the server, which knows as long as the session lives;
/// it says that nobody knows only where that ended.
#[test]
fn a_connection_may_break_between_any_two_steps_of_an_update() {
    use Meanwhile::{Clean, Delete, LeaseEnds, Nothing, Update};
    let mut batches = 0;
    for resumed in [true, false] {
        for meanwhile in [Nothing, Update, Delete, Clean, LeaseEnds] {
            let mut all = Doubts::default();
            for seed in 0..4 {
                let mut breaks = |steps, all: &mut Doubts| {
                    let of = (all, &mut batches);
                    breaks_after(steps, seed, meanwhile, resumed, of).unwrap_or_else(|failure| {
                        panic!("{meanwhile:?}, seed {seed}, {steps} steps: {failure}")
                    })
                };
                let mut steps = 0;
                while !breaks(steps, &mut all) {
                    steps += 1;
                    assert!(steps < 5_000, "seed {seed}: an update has no end");
                }
                assert!(steps >= 5, "seed {seed}: {steps} steps");
            }
            println!("{meanwhile:?}, the session {resumed}: {all:?}");
            match (resumed, meanwhile) {
                (true, LeaseEnds) | (false, _) => {
                    assert!(all.unknown > 0 && all.applied + all.not_applied == 0, "{all:?}");
                }
                (true, _) => {
                    assert!(all.applied > 0 && all.not_applied > 0, "{all:?}");
                    assert_eq!(all.unknown, 0);
                }
            }
        }
    }
    assert!(batches > 50, "{batches} updates took along what commits others");
}

#[test]
fn finish_by_cas() {
    is_noticed(Rule::FinishByCas);
}

#[test]
fn repair_before_reuse() {
    is_noticed(Rule::RepairBeforeReuse);
}

/// What clients WRITE is no answer to anybody before it is linked.
#[test]
fn pending() {
    is_noticed(Rule::Pending);
}

#[test]
fn token() {
    is_noticed(Rule::Token);
}

#[test]
fn index_read_only() {
    is_noticed(Rule::IndexReadOnly);
}
