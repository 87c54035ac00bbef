//! Shows that the tests bite: with any one rule of the protocol switched off in the real code, a
//! run is found that is not linearizable; with all of them on, the very same seeds find none.

#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/sim/mod.rs"]
mod sim;
#[path = "common/values.rs"]
mod values;

use linearize::Failure;
use onesided_protocol::rules::{Rule, without};
use sim::{Plan, Seen, Sim, Weights};

/// Rules of tables that clients update: `sim_cas.rs`.
const CAS: [Rule; 4] =
    [Rule::FinishByCas, Rule::RepairBeforeReuse, Rule::Token, Rule::IndexReadOnly];

/// Only a device tells: `around_device.rs`, in a guest.
const DEVICE: Rule = Rule::ThroughDevice;

/// Rules that luck seldom finds: `weakened_directed.rs` and
/// `weakened_epochs.rs` provoke them.
const DIRECTED: [Rule; 8] = [
    Rule::Pending,
    Rule::InsertPointsFirst,
    Rule::MarkBeforePublish,
    Rule::LargeUnique,
    Rule::RetiredWaits,
    Rule::AcknowledgeWaits,
    Rule::RetiredIsForgotten,
    Rule::FencedProvesNoMiss,
];

/// Runs tried before a rule counts as not noticed.
const SEEDS: u64 = 600;

fn run(rule: Option<Rule>, plan: &Plan) -> Result<Seen, Failure> {
    without(rule, || Sim::new(plan.clone()).run())
}

fn is_noticed(rule: Rule) {
    for seed in 0..SEEDS {
        let plan = plan_for(rule, seed);
        if let Err(failure @ Failure::Violation { .. }) = run(Some(rule), &plan) {
            println!("{rule:?} off, seed {seed}: {failure}");
            for seed in 0..=seed {
                let plan = plan_for(rule, seed);
                if let Err(failure) = run(None, &plan) {
                    panic!("{rule:?} on, and still, seed {seed}: {failure}");
                }
            }
            return;
        }
    }
    panic!("{rule:?} off, and nothing was noticed in {SEEDS} seeds");
}

fn plan_for(rule: Rule, seed: u64) -> Plan {
    let mut plan = Plan::of(seed);
    plan.network.kill_per_million = 0;
    plan.clock_moves = false;
    let puts_and_deletes = |put, delete| Weights { put, delete, ..Weights::NONE };
    match rule {
        Rule::LargeReadsStateAgain => plan.large_one_in = 2,
        // A READ of a bucket that is under way before a split and after it.
        Rule::MissRechecksVersion => {
            plan.pause_per_mille = 0;
            plan.cache_bytes = 0;
            plan.keys = 3;
            plan.clients = 6;
            plan.gets_percent = 80;
            plan.network.step_burst_words = 2;
            plan.relocate_percent = 0;
            plan.weights = puts_and_deletes(10, 1);
        }
        Rule::CounterEndsFirst => {
            plan.keys = 1;
            plan.gets_percent = 40;
            plan.count_percent = 60;
            plan.weights = puts_and_deletes(2, 8);
        }
        _ => {}
    }
    plan
}

macro_rules! noticed {
    ($($name:ident: $rule:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            is_noticed(Rule::$rule);
        }
    )*
        /// Every rule has its test here or there.
        #[test]
        fn no_rule_is_forgotten() {
            let tested = [$(Rule::$rule),*];
            let somewhere = |rule| {
                tested.contains(rule)
                    || DIRECTED.contains(rule)
                    || CAS.contains(rule)
                    || *rule == DEVICE
            };
            assert!(Rule::ALL.iter().all(somewhere), "{tested:?} and {DIRECTED:?}");
        }
    };
}

noticed! {
    clean_marks: CleanMarks,
    delete_marks: DeleteMarks,
    cache_never_proves_miss: CacheNeverProvesMiss,
    miss_rechecks_version: MissRechecksVersion,
    checksum: Checksum,
    dead_looks_again: DeadLooksAgain,
    large_reads_state_again: LargeReadsStateAgain,
    counter_ends_first: CounterEndsFirst,
}
