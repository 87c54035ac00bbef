//! As `weakened_directed.rs`, for memory whose bytes do not prove themselves: used again too early,
//! it proves lies, and READs of regions that went are fatal. A GET that is under way when its table
//! is dropped finds the key or asks the server; it never says by itself that the key is absent. A
//! region that goes costs no connection.

#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/sim/mod.rs"]
mod sim;
#[path = "common/values.rs"]
mod values;

use std::rc::Rc;

use linearize::{Expect, Op};
use onesided_fabric::sim::Options;
use onesided_protocol::rpc::{CounterAction, Expect as WireExpect, Ttl};
use onesided_protocol::rules::{Rule, without};
use onesided_server::engine::{Acknowledged, Counted};
use sim::{Call, Entered, Plan, Sim, Weights};

/// Client 1 gets; client 0 prepares.
const GETTER: usize = 1;
/// More than a GET takes.
const STEPS_OF_A_GET: u64 = 2_000;

fn plan() -> Plan {
    let network = Options { straggler_per_mille: 0, step_burst_words: 1, ..Options::default() };
    Plan {
        network,
        memory_bytes: 4 << 20,
        keys: 1,
        clients: 2,
        mutations: 0,
        prefill: 0,
        value_bytes: (100, 101),
        large_one_in: u64::MAX,
        cache_bytes: 0,
        pause_per_mille: 0,
        clock_moves: false,
        drop_per_mille: 0,
        shrinks: false,
        count_percent: 0,
        resumed_percent: None,
        weights: Weights::NONE,
        ..Plan::of(1)
    }
}

/// A table with one key, which a client has got once.
fn settled() -> Rc<Sim> {
    let sim = Sim::new(plan());
    for (client, call) in [(0, sim.put(0, Expect::Any, 0)), (GETTER, get())] {
        sim.begin(client, call);
        sim.settle();
    }
    sim
}

fn get() -> Call {
    Call::Get(vec![0])
}

fn go_on(sim: &Sim, steps: u64) {
    (0..steps).for_each(|_| sim.network_goes_on());
}

/// Another table, which takes the first free memory for its index.
fn make_another_table(sim: &Sim) {
    sim.engine.create_table("another", Default::default()).expect("there is memory");
}

/// The table is dropped when a GET has gone so many steps; clients learn of it at once, and the
/// memory is used again as soon as they acknowledge. Gives the misses that clients proved, and
/// whether the GET had ended before.
fn dropped_under_a_get(steps: u64) -> (u64, bool) {
    let sim = settled();
    let _entered = Entered::new(&sim);
    let before = sim.one_sided_misses();
    sim.begin(GETTER, get());
    go_on(&sim, steps);
    let had_ended = !sim.busy();
    let epoch = sim.engine.epoch();
    sim.engine.drop_table("t", vec![0, 1]).expect("it is there");
    let mut retirements = sim.retire(epoch);
    sim.reclaim(&mut retirements, epoch);
    make_another_table(&sim);
    // Then it has ended, or waits for a control connection, which there is none here.
    go_on(&sim, STEPS_OF_A_GET);
    sim.reclaim(&mut retirements, epoch);
    assert!(!sim.engine.has_retired(), "nothing is under way, and it is not acknowledged");
    (sim.one_sided_misses() - before, had_ended)
}

/// The same, when the client is stopped and its session ends meanwhile.
fn fenced_under_a_get(steps: u64) -> (u64, bool) {
    let sim = settled();
    let _entered = Entered::new(&sim);
    let before = sim.one_sided_misses();
    sim.begin(GETTER, get());
    go_on(&sim, steps);
    let had_ended = !sim.busy();
    sim.fence(GETTER);
    sim.engine.drop_table("t", vec![0, 1]).expect("it is there");
    sim.engine.reclaim(&Acknowledged::by_all());
    make_another_table(&sim);
    go_on(&sim, STEPS_OF_A_GET);
    (sim.one_sided_misses() - before, had_ended)
}

/// As [`settled`], with the key's entry in a region where no index is; its clients cache buckets.
fn settled_in_a_region() -> Rc<Sim> {
    let sim = Sim::new(Plan { cache_bytes: 1 << 20, ..plan() });
    // The first region, up to its end.
    let fill = |key: &[u8], len_bytes: usize| {
        sim.table.put(key, &vec![7; len_bytes], WireExpect::Any, Ttl::Never, 0).expect("memory");
    };
    fill(b"long", 330 << 10);
    (0..60_u8).for_each(|n| fill(&[n], 900));
    for (client, call) in [(0, sim.put(0, Expect::Any, 0)), (GETTER, get())] {
        sim.begin(client, call);
        sim.settle();
    }
    sim
}

/// The region is given back when a GET has gone so many steps. Gives the connections that died,
/// and whether the GET had ended before.
fn region_left_under_a_get(steps: u64) -> (u64, bool) {
    let sim = settled_in_a_region();
    let _entered = Entered::new(&sim);
    sim.begin(GETTER, get());
    go_on(&sim, steps);
    let had_ended = !sim.busy();
    leave_region(&sim);
    (sim.lost(), had_ended)
}

/// The server leaves the key's region, which goes as soon as clients let it.
fn leave_region(sim: &Rc<Sim>) {
    let epoch = sim.engine.epoch();
    assert!(sim.engine.leave_region(), "there is one without an index");
    let (_, retired) = sim.engine.retired_after(epoch);
    let mut retirements = sim.retire(epoch);
    for _ in 0..STEPS_OF_A_GET {
        sim.reclaim(&mut retirements, epoch);
        if !sim.engine.has_retired() {
            break;
        }
        sim.network_goes_on();
    }
    assert!(!sim.engine.has_retired(), "it is acknowledged when the GET is over");
    sim.revoke(&retired);
    sim.settle();
}

/// A client has the bucket cached that points into a region which has gone.
fn stale_after_a_region_was_left(after: u64) -> (u64, bool) {
    let sim = settled_in_a_region();
    let _entered = Entered::new(&sim);
    leave_region(&sim);
    sim.begin(GETTER, get());
    sim.settle();
    (sim.lost(), after > 10)
}

/// As [`settled`]; the key is a counter, and a client knows where its cell is.
fn settled_counter() -> Rc<Sim> {
    let sim = Sim::new(plan());
    for _ in 0..2 {
        sim.begin(GETTER, add());
        sim.settle();
    }
    sim
}

fn add() -> Call {
    Call::Count { key: 0, op: Op::Add { by: 1 } }
}

/// The counter is deleted, and its cell retired.
fn end_counter(sim: &Sim) {
    assert!(sim.table.delete(&sim::key(0), WireExpect::Any).expect("there is memory"));
    sim.engine.retire_cells();
}

/// Another counter, which has the first free cell and this number.
const OTHERS: i64 = 100;

fn make_another_counter(sim: &Sim) {
    let add = CounterAction::Add { by: OTHERS };
    sim.table.counter(b"another", add).expect("there is memory");
}

/// Whether somebody has changed it who meant the one before.
fn is_changed(sim: &Sim) -> u64 {
    match sim.table.counter(b"another", CounterAction::Find) {
        Ok(Counted::There { number, .. }) => u64::from(number != OTHERS),
        other => panic!("{other:?}"),
    }
}

/// The counter is deleted when an addition has gone so many steps, and its cell is another's as
/// soon as clients acknowledge. Gives whether that one was changed, and whether the addition had
/// ended before.
fn cell_retired_under_an_addition(steps: u64) -> (u64, bool) {
    let sim = settled_counter();
    let _entered = Entered::new(&sim);
    sim.begin(GETTER, add());
    go_on(&sim, steps);
    let had_ended = !sim.busy();
    let epoch = sim.engine.epoch();
    end_counter(&sim);
    let mut retirements = sim.retire(epoch);
    sim.reclaim(&mut retirements, epoch);
    make_another_counter(&sim);
    // Then it has ended, or asks the server, which does not answer.
    go_on(&sim, STEPS_OF_A_GET);
    sim.reclaim(&mut retirements, epoch);
    assert!(!sim.engine.has_retired(), "nothing is under way, and it is not acknowledged");
    (is_changed(&sim), had_ended)
}

/// A client knows the cell of a counter that has ended, and that is another's by now.
fn stale_after_cells_were_retired(after: u64) -> (u64, bool) {
    let sim = settled_counter();
    let _entered = Entered::new(&sim);
    let epoch = sim.engine.epoch();
    end_counter(&sim);
    let mut retirements = sim.retire(epoch);
    go_on(&sim, STEPS_OF_A_GET);
    sim.reclaim(&mut retirements, epoch);
    assert!(!sim.engine.has_retired(), "nothing is under way, and it is not acknowledged");
    make_another_counter(&sim);
    sim.begin(GETTER, add());
    go_on(&sim, STEPS_OF_A_GET);
    (is_changed(&sim), after > 10)
}

/// As [`is_noticed_in`], of a GET.
fn is_noticed(rule: Rule, run: impl Fn(u64) -> (u64, bool)) {
    is_noticed_in(6, rule, run);
}

/// With all rules on no step is bad, and there are some; with this one off some step is.
fn is_noticed_in(least: u64, rule: Rule, run: impl Fn(u64) -> (u64, bool)) {
    let first_bad = |rule| {
        without(rule, || {
            for steps in 0.. {
                match run(steps) {
                    (0, false) => {}
                    (0, true) => return (steps, false),
                    _ => return (steps, true),
                }
            }
            unreachable!("a GET ends")
        })
    };
    let (steps, is_bad) = first_bad(None);
    assert!(!is_bad, "{rule:?} on, and still, step {steps}");
    assert!(steps >= least, "only {steps} steps");
    let (bad, is_bad) = first_bad(Some(rule));
    assert!(is_bad, "{rule:?} off, and nothing was noticed in {steps} steps");
    println!("{rule:?} off, step {bad} of {steps}: it is noticed");
}

#[test]
fn retired_waits() {
    is_noticed(Rule::RetiredWaits, dropped_under_a_get);
}

#[test]
fn acknowledge_waits() {
    is_noticed(Rule::AcknowledgeWaits, dropped_under_a_get);
}

#[test]
fn retired_regions_wait() {
    is_noticed(Rule::RetiredWaits, region_left_under_a_get);
}

#[test]
fn regions_are_acknowledged_when_reads_are_over() {
    is_noticed(Rule::AcknowledgeWaits, region_left_under_a_get);
}

#[test]
fn retired_cells_wait() {
    is_noticed_in(2, Rule::RetiredWaits, cell_retired_under_an_addition);
}

#[test]
fn cells_are_acknowledged_when_additions_are_over() {
    is_noticed_in(2, Rule::AcknowledgeWaits, cell_retired_under_an_addition);
}

#[test]
fn retired_cells_are_forgotten() {
    is_noticed(Rule::RetiredIsForgotten, stale_after_cells_were_retired);
}

#[test]
fn retired_is_forgotten() {
    is_noticed(Rule::RetiredIsForgotten, stale_after_a_region_was_left);
}

#[test]
fn fenced_proves_no_miss() {
    is_noticed(Rule::FencedProvesNoMiss, fenced_under_a_get);
}
