//! As `weakened_rules.rs`, for rules that luck seldom finds: the model's counterexamples
//! (design.md 12), provoked in the real code at every place where they could happen.

#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/sim/mod.rs"]
mod sim;
#[path = "common/values.rs"]
mod values;

use std::rc::Rc;

use linearize::{Expect, Failure, Op};
use onesided_fabric::sim::Options;
use onesided_protocol::rpc::{Expect as WireExpect, Ttl};
use onesided_protocol::rules::{Rule, without};
use sim::{Call, Entered, Plan, Sim, Weights};

/// One key, a value of which fills a segment, so that addresses recur at once; no luck but the
/// order of READ words.
fn plan() -> Plan {
    Plan {
        seed: 1,
        network: Options { straggler_per_mille: 0, step_burst_words: 64, ..Options::default() },
        memory_bytes: 4 << 20,
        keys: 1,
        clients: 3,
        mutations: 0,
        gets_percent: 0,
        prefill: 0,
        value_bytes: (800, 801),
        large_one_in: u64::MAX,
        cache_bytes: 1 << 20,
        pause_per_mille: 0,
        pause_steps: 0,
        clock_moves: false,
        drop_per_mille: 0,
        fillers_max: 0,
        relocate_percent: 0,
        clean_percent: 0,
        ordered: false,
        cas: false,
        shrinks: false,
        count_percent: 0,
        counts_far: false,
        resumed_percent: None,
        commits_wait: false,
        commits_per_mille: 0,
        threads: 1,
        weights: Weights::NONE,
    }
}

fn get() -> Call {
    Call::Get(vec![0])
}

fn delete() -> Call {
    let op = Op::Delete { expect: Expect::Any };
    Call::Change { key: 0, op, bytes: Vec::new(), ttl_s: 0 }
}

/// Makes a call and lets it end.
fn make(sim: &Sim, client: usize, call: Call) {
    sim.begin(client, call);
    sim.settle();
}

fn put(sim: &Sim) {
    make(sim, 0, sim.put(0, Expect::Any, 0));
}

/// Prepares with `before`; then client 0 puts, and before the put's store number `store` client 1
/// gets, then client 2. `true`: the put has no more stores than that.
fn interrupted(store: u64, before: impl Fn(&Sim)) -> Result<bool, Failure> {
    interrupted_in(plan(), store, before)
}

fn interrupted_in(plan: Plan, store: u64, before: impl Fn(&Sim)) -> Result<bool, Failure> {
    interrupted_call(plan, store, before, put)
}

fn interrupted_call(
    plan: Plan,
    store: u64,
    before: impl Fn(&Sim),
    call: impl Fn(&Sim),
) -> Result<bool, Failure> {
    let sim = Sim::new(plan);
    let _entered = Entered::new(&sim);
    before(&sim);
    sim.interrupt(store, vec![(1, get()), (2, get())]);
    call(&sim);
    let is_over = sim.is_uninterrupted();
    sim.verdict().map(|_| is_over)
}

/// With all rules on no place is bad; with this one off some place is.
fn is_noticed(rule: Rule, run: impl Fn(u64) -> Result<bool, Failure>) {
    let first_bad = |rule| {
        without(rule, || {
            (0..100_000).find_map(|place| match run(place) {
                Ok(is_over) => is_over.then_some((place, None)),
                Err(failure) => Some((place, Some(failure))),
            })
        })
    };
    let (places, failure) = first_bad(None).expect("it ends");
    if let Some(failure) = failure {
        panic!("{rule:?} on, and still, place {places}: {failure}");
    }
    assert!(places > 50, "only {places} places");
    match first_bad(Some(rule)) {
        Some((place, Some(failure @ Failure::Violation { .. }))) => {
            println!("{rule:?} off, place {place} of {places}: {failure}");
        }
        other => panic!("{rule:?} off, and nothing was noticed: {other:?}"),
    }
}

/// There is room for one value, so that the next one is written over it. One client's cached slot
/// leads there; the other one looks at the bucket.
#[test]
fn overwriting_in_place_is_an_update() {
    // Entries that one checksum proves, and large ones.
    for (value_bytes, memory_kib) in [(9_000, 86), (20_000, 100)] {
        let plan = Plan {
            value_bytes: (value_bytes, value_bytes + 1),
            memory_bytes: memory_kib << 10,
            ..plan()
        };
        let in_place = |sim: &Sim| sim.engine.memory_status().cleaning.in_place_entries;
        let before = |sim: &Sim| {
            put(sim);
            make(sim, 1, get());
            put(sim);
            assert_eq!(in_place(sim), 1);
        };
        // Each third place: there are many, most of them in the middle of the value.
        let places = (0..).step_by(3).find(|&store| {
            let run = interrupted_in(plan.clone(), store, before);
            run.unwrap_or_else(|failure| panic!("{value_bytes} bytes, place {store}: {failure}"))
        });
        assert!(places > Some(50), "{places:?} places");
        println!("{value_bytes} bytes: {places:?} places");
    }
}

/// A part of a value is replaced where it lies. One client's cached slot leads there; the other one
/// looks at the bucket.
#[test]
fn replacing_a_part_is_an_update() {
    // Entries that short and long checksums prove.
    for value_bytes in [100, 800] {
        let plan = Plan { value_bytes: (value_bytes, value_bytes + 1), ..plan() };
        let log_bytes = |sim: &Sim| sim.engine.memory_status().log_live_bytes;
        let before = |sim: &Sim| {
            put(sim);
            make(sim, 1, get());
        };
        let stamp = |sim: &Sim| {
            let live_bytes = log_bytes(sim);
            make(sim, 0, sim.stamp(0));
            assert_eq!(log_bytes(sim), live_bytes, "it was written anew");
        };
        let places = (0..).find(|&store| {
            let run = interrupted_call(plan.clone(), store, before, stamp);
            run.unwrap_or_else(|failure| panic!("{value_bytes} bytes, place {store}: {failure}"))
        });
        // The state word twice, the version, and what is replaced.
        assert!(places >= Some(4), "{places:?} places");
        println!("{value_bytes} bytes: {places:?} places");
    }
}

/// One client's cached slot leads to the very place where the key is being inserted again; the
/// other one looks at the bucket.
#[test]
fn insert_points_first() {
    is_noticed(Rule::InsertPointsFirst, |store| {
        interrupted(store, |sim| {
            put(sim);
            make(sim, 1, get());
            make(sim, 0, delete());
        })
    });
}

/// One client looks at the bucket, the other one's cached slot leads to the old entry.
#[test]
fn mark_before_publish() {
    is_noticed(Rule::MarkBeforePublish, |store| {
        interrupted(store, |sim| {
            put(sim);
            make(sim, 2, get());
        })
    });
}

/// One client's cached slot leads to the last but one entry, in whose place the next one is
/// being written; the other one's to the last.
#[test]
fn pending() {
    is_noticed(Rule::Pending, |store| {
        interrupted(store, |sim| {
            put(sim);
            make(sim, 1, get());
            put(sim);
            make(sim, 2, get());
        })
    });
}

/// The cleaner moves the key's entry; then it is overwritten. One client's cached slot leads to
/// where it was before, the other one looks at the bucket.
#[test]
fn clean_marks_in_cleaning() {
    is_noticed(Rule::CleanMarks, |store| {
        let sim = Sim::new(plan());
        let _entered = Entered::new(&sim);
        // The first free places are taken: two that are free again keep the old entry's bytes.
        let fill = |key: &[u8]| {
            let put = sim.table.put(key, &[3; 800], WireExpect::Any, Ttl::Never, 0);
            put.expect("there is memory");
        };
        [b"first", b"other"].into_iter().for_each(|key| fill(key));
        put(&sim);
        make(&sim, 2, get());
        fill(b"seals what is before it");
        for key in [b"first", b"other"] {
            sim.table.delete(key, WireExpect::Any).expect("it was put");
        }
        sim.interrupt(store, vec![(2, get()), (1, get())]);
        assert!(sim.engine.clean(), "a segment is sealed");
        put(&sim);
        make(&sim, 2, get());
        let is_over = sim.is_uninterrupted();
        sim.verdict().map(|_| is_over)
    });
}

/// While a large value is being READ, its place gets another key's bytes and then the same
/// version of the value again.
#[test]
fn large_unique() {
    without_large_unique(get);
}

/// The same, straight into the caller's buffer.
#[test]
fn large_unique_in_a_lent_buffer() {
    without_large_unique(|| Call::GetLent(0));
}

fn without_large_unique(get: impl Fn() -> Call) {
    is_noticed(Rule::LargeUnique, |place| {
        let (steps, meanwhile) = (place / 40, place % 40);
        let plan = Plan { large_one_in: 1, ..plan() };
        let sim = Sim::new(plan);
        let _entered = Entered::new(&sim);
        put(&sim);
        make(&sim, 1, get());
        sim.begin(1, get());
        go_on(&sim, steps);
        sim.relocate(0);
        let other = sim.table.put(b"other", &[3; 16_400], WireExpect::Any, Ttl::Never, 0);
        other.expect("there is memory");
        go_on(&sim, meanwhile);
        sim.table.delete(b"other", WireExpect::Any).expect("it was put");
        sim.relocate(0);
        sim.settle();
        sim.verdict().map(|_| steps == 50)
    });
}

fn go_on(sim: &Rc<Sim>, steps: u64) {
    (0..steps).for_each(|_| sim.network_goes_on());
}
