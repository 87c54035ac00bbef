//! The search for an order.

use std::collections::HashSet;

use super::{Operation, State};

/// What the search says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is none.
    Not,
    /// The memory allowed was not enough to tell.
    Undecided,
}

/// Memory for configurations seen.
const SEEN_MAX_BYTES: usize = 512 << 20;
const NONE: u32 = u32::MAX;

/// Calls and returns in order of time, as a list from which operations are lifted.
struct Events {
    /// Operation of each event, and whether it is its return.
    what: Vec<(u32, bool)>,
    /// Neighbours; the last index is the head.
    next: Vec<u32>,
    prev: Vec<u32>,
    /// Events of each operation.
    call: Vec<u32>,
    ret: Vec<u32>,
}

impl Events {
    fn new(history: &[Operation]) -> Self {
        let mut order: Vec<(u64, bool, u32)> = Vec::new();
        for (i, operation) in history.iter().enumerate() {
            order.push((operation.call, false, i as u32));
            if let Some((at, _)) = operation.answer {
                order.push((at, true, i as u32));
            }
        }
        // At equal times calls come first: the clock could not tell them apart.
        order.sort_unstable();
        let (mut call, mut ret) = (vec![NONE; history.len()], vec![NONE; history.len()]);
        for (event, &(_, is_return, i)) in order.iter().enumerate() {
            let side = if is_return { &mut ret } else { &mut call };
            side[i as usize] = event as u32;
        }
        let n = order.len() as u32;
        let next = (1..=n).chain([0]).collect();
        let prev = [n].into_iter().chain(0..n).collect();
        let what = order.iter().map(|&(_, is_return, i)| (i, is_return)).collect();
        Self { what, next, prev, call, ret }
    }

    fn first(&self) -> u32 {
        self.next[self.what.len()]
    }

    fn lift(&mut self, op: u32) {
        for event in [self.call[op as usize], self.ret[op as usize]] {
            if event != NONE {
                let (next, prev) = (self.next[event as usize], self.prev[event as usize]);
                self.next[prev as usize] = next;
                self.prev[next as usize] = prev;
            }
        }
    }

    fn put_back(&mut self, op: u32) {
        for event in [self.ret[op as usize], self.call[op as usize]] {
            if event != NONE {
                let (next, prev) = (self.next[event as usize], self.prev[event as usize]);
                self.next[prev as usize] = event;
                self.prev[next as usize] = event;
            }
        }
    }
}

/// Searches for an order of `history` that starts with `initial`, respects real time, and
/// explains every answer.
pub fn search(initial: State, history: &[Operation]) -> Verdict {
    explore(initial, history, SEEN_MAX_BYTES, None)
}

/// All states in which such an order can end; `None` when that is too much. Meant for histories
/// in which everything returned.
pub fn end_states(initial: State, history: &[Operation]) -> Option<HashSet<State>> {
    let mut ends = HashSet::new();
    match explore(initial, history, SEEN_MAX_BYTES, Some(&mut ends)) {
        Verdict::Undecided => None,
        Verdict::Linearizable | Verdict::Not => Some(ends),
    }
}

/// The search; with `ends` it does not stop at the first order but notes where each ends.
pub fn explore(
    initial: State,
    history: &[Operation],
    max_bytes: usize,
    mut ends: Option<&mut HashSet<State>>,
) -> Verdict {
    let mut events = Events::new(history);
    let mut left = history.iter().filter(|operation| operation.answer.is_some()).count();
    let mut done = vec![0u64; history.len().div_ceil(64)];
    let mut seen: HashSet<(Box<[u64]>, State)> = HashSet::new();
    let seen_max = max_bytes / (done.len() * 8 + 96);
    let mut taken: Vec<(u32, State)> = Vec::new();
    let mut state = initial;
    let mut event = events.first();
    loop {
        if left == 0 {
            let Some(ends) = &mut ends else { return Verdict::Linearizable };
            ends.insert(state);
        }
        // While something is left, its return is in the list and met before the end.
        if left == 0 || events.what[event as usize].1 {
            // No order goes on from here: take the last choice back.
            let Some((last, before)) = taken.pop() else { return Verdict::Not };
            done[last as usize / 64] &= !(1 << (last % 64));
            left += usize::from(history[last as usize].answer.is_some());
            events.put_back(last);
            state = before;
            event = events.next[events.call[last as usize] as usize];
            continue;
        }
        let op = events.what[event as usize].0;
        let operation = &history[op as usize];
        let answer = operation.answer.as_ref().map(|(_, ret)| ret);
        if let Some(after) = state.step(&operation.op, answer) {
            done[op as usize / 64] |= 1 << (op % 64);
            if seen.insert((done.clone().into(), after)) {
                if seen.len() > seen_max {
                    return Verdict::Undecided;
                }
                taken.push((op, state));
                state = after;
                left -= usize::from(answer.is_some());
                events.lift(op);
                event = events.first();
                continue;
            }
            done[op as usize / 64] &= !(1 << (op % 64));
        }
        event = events.next[event as usize];
    }
}
