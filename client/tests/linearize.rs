//! The checker itself: histories made by hand, and random ones beside stateright's tester.

#[path = "common/linearize/mod.rs"]
mod linearize;

use linearize::{Content, Expect, Op, Operation, Ret, State, Verdict, check, search};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

fn did(client: u32, call: u64, at: u64, op: Op, ret: Ret) -> Operation {
    Operation { client, call, answer: Some((at, ret)), op }
}

fn put(piece: u64) -> Op {
    put_if(piece, Expect::Any)
}

fn put_if(piece: u64, expect: Expect) -> Op {
    Op::Put { content: Content::of(piece), expect, expiry_s: 0 }
}

fn value(piece: u64, version: u64) -> Ret {
    Ret::Value(Content::of(piece), version)
}

const DELETE: Op = Op::Delete { expect: Expect::Any };

fn good(history: &[Operation]) {
    if let Err(failure) = check(history) {
        panic!("a good history was refused: {failure}");
    }
}

fn bad(history: &[Operation]) -> String {
    check(history).expect_err("a bad history was accepted").to_string()
}

#[test]
fn overlapping_operations_may_take_effect_in_either_order() {
    let both = |first: Ret, second: Ret| {
        [
            did(0, 0, 10, put(1), Ret::Version(5)),
            did(1, 1, 4, Op::Get, first),
            did(2, 5, 9, Op::Get, second),
        ]
    };
    good(&both(Ret::Absent, Ret::Absent));
    good(&both(Ret::Absent, value(1, 5)));
    good(&both(value(1, 5), value(1, 5)));
    let text = bad(&both(value(1, 5), Ret::Absent));
    assert!(text.contains("Absent") && text.lines().count() == 6, "{text}");
}

#[test]
fn a_stale_read_after_an_acknowledged_put_is_refused() {
    bad(&[
        did(0, 0, 1, put(1), Ret::Version(5)),
        did(0, 2, 3, put(2), Ret::Version(6)),
        did(1, 4, 5, Op::Get, value(1, 5)),
    ]);
    bad(&[did(0, 0, 1, put(1), Ret::Version(5)), did(1, 2, 3, Op::Get, Ret::Absent)]);
    bad(&[did(1, 2, 3, Op::Get, value(9, 9))]);
}

#[test]
fn versions_never_repeat_and_conditions_hold() {
    let v = Expect::Version;
    good(&[
        did(0, 0, 1, put_if(1, Expect::Absent), Ret::Version(5)),
        did(0, 2, 3, put_if(2, v(5)), Ret::Version(6)),
        did(0, 4, 5, put_if(3, v(5)), Ret::Refused),
        did(0, 6, 7, Op::Delete { expect: Expect::Present }, Ret::Deleted),
        did(0, 8, 9, DELETE, Ret::Absent),
        did(0, 10, 11, put(4), Ret::Version(9)),
    ]);
    let first = did(0, 0, 1, put(1), Ret::Version(5));
    bad(&[first, did(0, 2, 3, put(2), Ret::Version(5))]);
    bad(&[first, did(0, 2, 3, DELETE, Ret::Deleted), did(0, 4, 5, put(2), Ret::Version(5))]);
    bad(&[first, did(0, 2, 3, put_if(2, Expect::Absent), Ret::Version(6))]);
    bad(&[first, did(0, 2, 3, put_if(2, v(5)), Ret::Refused)]);
    bad(&[first, did(0, 2, 3, DELETE, Ret::Absent)]);
    // Two that both took the same version.
    bad(&[
        first,
        did(1, 2, 9, put_if(2, v(5)), Ret::Version(6)),
        did(2, 2, 9, put_if(3, v(5)), Ret::Version(6)),
    ]);
}

#[test]
fn an_unknown_outcome_may_take_effect_later_or_never() {
    let lost = Operation { client: 0, call: 0, answer: None, op: put(1) };
    let read = |at, ret| did(1, at, at + 1, Op::Get, ret);
    good(&[lost, read(2, Ret::Absent), read(4, Ret::Absent)]);
    good(&[lost, read(2, Ret::Absent), read(4, value(1, 7)), read(6, value(1, 7))]);
    bad(&[lost, read(2, value(1, 7)), read(4, Ret::Absent)]);
    bad(&[lost, read(2, value(1, 7)), read(4, value(1, 8))]);
}

#[test]
fn appends_increments_and_expiry() {
    let two = Content::of(1).appended(2);
    good(&[
        did(0, 0, 1, Op::Append { piece: 1 }, Ret::Version(5)),
        did(0, 2, 3, Op::Append { piece: 2 }, Ret::Version(6)),
        did(0, 4, 5, Op::Get, Ret::Value(two, 6)),
        did(0, 6, 7, Op::Increment { by: 1 }, Ret::WrongType),
        did(0, 8, 9, DELETE, Ret::Deleted),
        did(0, 10, 19, Op::Increment { by: 2 }, Ret::Number(5, Some(21))),
        did(1, 10, 19, Op::Increment { by: 3 }, Ret::Number(3, Some(20))),
    ]);
    bad(&[
        did(0, 10, 19, Op::Increment { by: 2 }, Ret::Number(2, Some(21))),
        did(1, 10, 19, Op::Increment { by: 3 }, Ret::Number(3, Some(20))),
    ]);
    let short = Op::Put { content: Content::of(1), expect: Expect::Any, expiry_s: 10 };
    let clock = |at, now_s| did(9, at, at, Op::Clock { now_s }, Ret::Ticked);
    let stored = did(0, 0, 1, short, Ret::Version(5));
    let read = |at, ret| did(1, at, at + 1, Op::Get, ret);
    good(&[stored, clock(2, 9), read(3, value(1, 5)), clock(5, 10), read(6, Ret::Absent)]);
    bad(&[stored, clock(2, 9), read(3, Ret::Absent)]);
    bad(&[stored, clock(2, 10), read(3, value(1, 5))]);
    let touched = did(0, 2, 3, Op::Touch { expiry_s: 20 }, Ret::Version(6));
    good(&[
        stored,
        touched,
        clock(4, 15),
        read(5, value(1, 6)),
        clock(7, 20),
        read(8, Ret::Absent),
    ]);
}

/// An end that is known within some time is one instant.
#[test]
fn what_is_short_lived_ends_once_and_for_all() {
    let short = Op::Put { content: Content::of(1), expect: Expect::Any, expiry_s: 7 };
    let stored = did(0, 0, 1, short, Ret::Version(5));
    let ends = did(0, 10, 20, Op::Ends { expiry_s: 7 }, Ret::Ticked);
    let read = |at, ret| did(1, at, at + 1, Op::Get, ret);
    good(&[stored, read(12, value(1, 5)), read(14, Ret::Absent), ends]);
    bad(&[stored, read(12, Ret::Absent), read(14, value(1, 5)), ends]);
    bad(&[stored, read(7, Ret::Absent), ends]);
    bad(&[stored, read(21, value(1, 5)), ends]);
    let other = did(0, 5, 6, put(2), Ret::Version(6));
    good(&[stored, other, ends, read(21, value(2, 6))]);
    let nobody_knows = |o: Operation| Operation { answer: None, ..o };
    let [stored, ends] = [stored, ends].map(nobody_knows);
    good(&[stored, ends, read(12, value(1, 5)), read(30, Ret::Absent)]);
    good(&[stored, ends, read(12, Ret::Absent), read(30, value(1, 5))]);
    bad(&[stored, ends, read(12, value(1, 5)), read(30, Ret::Absent), read(32, value(1, 5))]);
}

#[test]
fn a_counterexample_is_small_though_the_history_is_long() {
    let mut history = Vec::new();
    for i in 0..2_000u64 {
        let at = i * 10;
        history.push(did(0, at, at + 5, put(i), Ret::Version(i + 1)));
        history.push(did(1, at + 6, at + 7, Op::Get, value(i, i + 1)));
    }
    good(&history);
    history.push(did(2, 15_001, 15_002, Op::Get, value(7, 8)));
    let text = bad(&history);
    assert!(text.lines().count() <= 6, "{text}");
}

/// The checker's model as stateright wants it: one version of the truth, two searches.
#[derive(Clone, PartialEq)]
struct Spec(State);

impl SequentialSpec for Spec {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        // The tester asks this only for operations in flight, whose answer nobody knows.
        if let Some(after) = self.0.step(op, None) {
            self.0 = after;
        }
        Ret::Ticked
    }

    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        let after = self.0.step(op, Some(ret));
        self.0 = after.unwrap_or(self.0);
        after.is_some()
    }
}

#[derive(Clone, Copy)]
struct Flight {
    op: Op,
    call: u64,
    ret: Option<Ret>,
}

fn random_op(rng: &mut StdRng, told: &[u64]) -> Op {
    let guess = told.get(rng.random_range(0..told.len().max(1))).copied();
    let expect = match (rng.random_range(0..8), guess) {
        (0, _) => Expect::Absent,
        (1, _) => Expect::Present,
        (2, Some(version)) => Expect::Version(version),
        _ => Expect::Any,
    };
    match rng.random_range(0..11) {
        0..4 => Op::Get,
        4..7 => put_if(rng.random(), expect),
        7 => Op::Delete { expect },
        8 => Op::Append { piece: rng.random() },
        9 => Op::Stamp { stamp: rng.random() },
        _ => Op::Increment { by: rng.random_range(1..9) },
    }
}

/// What a real store would answer, applied at once; now and then a wrong answer.
fn apply(state: &mut State, op: &Op, rng: &mut StdRng) -> Ret {
    let version = match state.stored.and_then(|s| s.version) {
        Some(version) => version + 1,
        None => state.told + rng.random_range(1..3),
    };
    let stored = state.stored.map(|s| (s.content, s.version.unwrap_or(0)));
    let number = |by: i64| match stored {
        Some((Content::Number(n), _)) => n + by,
        _ => by,
    };
    let mut answers = vec![Ret::Version(version), Ret::Absent, Ret::Deleted, Ret::WrongType];
    answers.push(Ret::Refused);
    answers.extend(stored.map(|(content, version)| Ret::Value(content, version)));
    if let Op::Increment { by } = op {
        answers.insert(0, Ret::Number(number(*by), Some(version)));
    }
    let right = answers.iter().find_map(|ret| Some((*ret, state.step(op, Some(ret))?)));
    let (ret, after) = right.expect("every operation has a right answer");
    *state = after;
    let wrong = answers[rng.random_range(0..answers.len())];
    if rng.random_bool(0.03) { wrong } else { ret }
}

/// A history of a few clients, and the oracle that watched it.
fn random_history(seed: u64) -> (Vec<Operation>, LinearizabilityTester<u32, Spec>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tester = LinearizabilityTester::new(Spec(State::default()));
    let (mut history, mut told) = (Vec::new(), vec![]);
    let mut flights: [Option<Flight>; 3] = [None; 3];
    let mut state = State::default();
    for now in 0..rng.random_range(6..34) {
        let client = rng.random_range(0..3usize);
        let id = client as u32;
        match &mut flights[client] {
            None => {
                let op = random_op(&mut rng, &told);
                flights[client] = Some(Flight { op, call: now, ret: None });
                tester.on_invoke(id, op).expect("the client was idle");
            }
            Some(Flight { op, ret: ret @ None, .. }) => {
                *ret = Some(apply(&mut state, op, &mut rng));
                told.extend(state.stored.and_then(|s| s.version));
            }
            Some(Flight { op, call, ret: Some(ret) }) => {
                history.push(did(id, *call, now, *op, *ret));
                tester.on_return(id, *ret).expect("the client was busy");
                flights[client] = None;
            }
        }
    }
    for (client, flight) in flights.iter().enumerate() {
        if let Some(Flight { op, call, .. }) = *flight {
            history.push(Operation { client: client as u32, call, answer: None, op });
        }
    }
    (history, tester)
}

#[test]
fn agrees_with_stateright_on_random_histories() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..4_000 {
        let (history, tester) = random_history(seed);
        let ours = search(State::default(), &history);
        let theirs = tester.is_consistent();
        assert_eq!(ours == Verdict::Linearizable, theirs, "seed {seed}: {history:#?}");
        *(if theirs { &mut accepted } else { &mut refused }) += 1;
        let checked = check(&history);
        assert_eq!(checked.is_ok(), theirs, "seed {seed}: {checked:?}");
    }
    assert!(accepted > 400 && refused > 400, "{accepted} accepted, {refused} refused");
}
