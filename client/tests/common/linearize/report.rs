//! From "not linearizable" to a counterexample that a person can read.

use std::fmt;
use std::time::{Duration, Instant};

use super::search::{end_states, explore};
use super::{Content, Op, Operation, Ret, State, Verdict};

/// Why a history is refused.
#[derive(Debug)]
pub enum Failure {
    /// No order of these explains them, whichever of the states it begins in.
    Violation {
        /// What the operations before, all of them over by then, can have left.
        begins: Vec<State>,
        /// As few as were found to be enough.
        history: Vec<Operation>,
    },
    /// Too many operations overlap for the memory allowed.
    Undecided(usize),
}

/// Checks a history of one key that begins without a value.
///
/// It is cut where nothing was in flight, and each part is checked from every state in which
/// the part before it can end.
pub fn check(history: &[Operation]) -> Result<(), Failure> {
    let mut sorted = history.to_vec();
    sorted.sort_by_key(|operation| operation.call);
    let mut states = vec![State::default()];
    let mut rest = &sorted[..];
    while !rest.is_empty() {
        let (part, after) = rest.split_at(quiet_at(rest));
        states = match after.is_empty() {
            true => last_part(&states, part)?,
            false => ends(&states, part)?,
        };
        rest = after;
    }
    Ok(())
}

/// How many operations there are before the first moment with none in flight.
fn quiet_at(sorted: &[Operation]) -> usize {
    let mut busy_until = Some(0);
    for (i, operation) in sorted.iter().enumerate() {
        // What has no answer is in flight for ever.
        let Some(until) = busy_until else { return sorted.len() };
        if i > 0 && operation.call > until {
            return i;
        }
        busy_until = operation.answer.map(|(at, _)| at.max(until));
    }
    sorted.len()
}

fn ends(begins: &[State], part: &[Operation]) -> Result<Vec<State>, Failure> {
    let mut all = Vec::new();
    for &state in begins {
        all.extend(end_states(state, part).ok_or(Failure::Undecided(part.len()))?);
    }
    if all.is_empty() {
        return Err(violation(begins, part));
    }
    all.sort_by_key(|state| format!("{state:?}"));
    all.dedup();
    Ok(all)
}

fn last_part(begins: &[State], part: &[Operation]) -> Result<Vec<State>, Failure> {
    match verdict(begins, part, 512 << 20) {
        Verdict::Linearizable => Ok(Vec::new()),
        Verdict::Undecided => Err(Failure::Undecided(part.len())),
        Verdict::Not => Err(violation(begins, part)),
    }
}

fn verdict(begins: &[State], part: &[Operation], max_bytes: usize) -> Verdict {
    let mut all = Verdict::Not;
    for &state in begins {
        match explore(state, part, max_bytes, None) {
            Verdict::Linearizable => return Verdict::Linearizable,
            Verdict::Undecided => all = Verdict::Undecided,
            Verdict::Not => {}
        }
    }
    all
}

/// For the search for a small counterexample, which may be given up.
const SMALL_BYTES: usize = 8 << 20;
/// How long a counterexample is made smaller at most.
const SHRINK_MAX: Duration = Duration::from_secs(10);

/// Linearizability is closed under prefixes: the shortest bad one, then without what does not
/// matter.
fn violation(begins: &[State], part: &[Operation]) -> Failure {
    let mut returns: Vec<u64> = part.iter().filter_map(|o| Some(o.answer?.0)).collect();
    returns.sort_unstable();
    let bad = |part: &[Operation]| verdict(begins, part, SMALL_BYTES) == Verdict::Not;
    let good = returns.partition_point(|&at| !bad(&until(part, at)));
    let kept = returns.get(good).map_or(part.to_vec(), |&at| until(part, at));
    // An operation without an answer may happen at any later time, or never: if it is bad even
    // so, it is bad whatever that operation did.
    let mut relaxed = kept.clone();
    let give_up = Instant::now() + SHRINK_MAX;
    for i in (0..relaxed.len()).rev() {
        if Instant::now() > give_up {
            // A long counterexample is better than none.
            break;
        }
        let answer = relaxed[i].answer.take();
        if answer.is_some() && !bad(&relaxed) {
            relaxed[i].answer = answer;
        }
    }
    let read = |content: Content| {
        let is_it =
            |o: &Operation| matches!(o.answer, Some((_, Ret::Value(read, _))) if read == content);
        relaxed.iter().any(is_it)
    };
    let matters = |i: &usize| {
        relaxed[*i].answer.is_some()
            || matches!(relaxed[*i].op, Op::Put { content, .. } if read(content))
    };
    let history = (0..kept.len()).filter(matters).map(|i| kept[i]).collect();
    Failure::Violation { begins: begins.to_vec(), history }
}

/// What is known at a time: what had not returned has no answer yet.
fn until(part: &[Operation], at: u64) -> Vec<Operation> {
    let called = part.iter().filter(|operation| operation.call <= at);
    called
        .map(|o| Operation { answer: o.answer.filter(|&(returned, _)| returned <= at), ..*o })
        .collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begins, history) = match self {
            Self::Undecided(len) => {
                return write!(f, "{len} operations overlap too much to be checked");
            }
            Self::Violation { begins, history } => (begins, history),
        };
        writeln!(f, "not linearizable: no order explains these {} operations", history.len())?;
        for state in begins {
            match state.stored {
                Some(s) => writeln!(f, "beginning with {s:?}")?,
                None => writeln!(f, "beginning with nothing (versions so far: {})", state.told)?,
            }
        }
        writeln!(f, "{:>14} {:>14}  {:>6}  what", "call", "return", "client")?;
        for o in history {
            let (at, ret) = match o.answer {
                Some((at, ret)) => (at.to_string(), Answer(ret).to_string()),
                None => ("never".to_owned(), "unknown".to_owned()),
            };
            let op = Asked(o.op);
            writeln!(f, "{:>14} {at:>14}  {:>6}  {op} -> {ret}", o.call, o.client)?;
        }
        Ok(())
    }
}

struct Asked(Op);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Op::Put { content, expect: super::Expect::Any, expiry_s: 0 } => {
                write!(f, "put {content:?}")
            }
            Op::Put { content, expect, expiry_s: 0 } => write!(f, "put {content:?} if {expect:?}"),
            Op::Delete { expect: super::Expect::Any } => write!(f, "delete"),
            op => write!(f, "{op:?}"),
        }
    }
}

struct Answer(Ret);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ret::Value(content, version) => write!(f, "{content:?}, version {version}"),
            Ret::Version(version) => write!(f, "done, version {version}"),
            ret => write!(f, "{ret:?}"),
        }
    }
}
