//! The four servers in turns, and what is to be read from it.

use std::time::Duration;

use crate::common::data::Walk;
use crate::{Part, Side};

/// How long one server's turn takes: short, so that many find the machine undisturbed.
const TURN: Duration = Duration::from_millis(3);
/// Turns of each server in a round, of which the fastest tenth counts.
const TURNS: usize = 40;
/// Rounds unless `ONESIDED_BENCH_ROUNDS` says otherwise.
const ROUNDS: usize = 15;

/// What came of a part.
pub(crate) struct Line {
    part: &'static Part,
    /// ns an operation, of each server, by round.
    rounds: Vec<[f64; 4]>,
}

/// Gives the servers their turns.
pub(crate) fn measure(part: &'static Part, sides: &[Side; 4], pairs: u64) -> Line {
    eprintln!("{}", part.what);
    let mut walk = Walk::new(7, pairs);
    let calls = calibrate(part, &sides[0], &mut walk);
    sides[1..].iter().for_each(|side| (part.run)(side, &mut walk, calls));
    let count = std::env::var("ONESIDED_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok());
    let mut round = || {
        let mut times = [const { Vec::new() }; 4];
        for turn in 0..TURNS * 4 {
            // Each is as often before as behind each other one.
            let which = (turn + turn / 4) % 4;
            let mut run = || (part.run)(&sides[which], &mut walk, calls);
            times[which].push(part.time.of(&mut run).as_nanos() as f64 / calls as f64);
        }
        times.map(|mut times| {
            times.sort_unstable_by(f64::total_cmp);
            times[TURNS / 10]
        })
    };
    Line { part, rounds: (0..count.unwrap_or(ROUNDS)).map(|_| round()).collect() }
}

/// Operations that take about a turn.
fn calibrate(part: &Part, side: &Side, walk: &mut Walk) -> u64 {
    let mut calls = 64;
    loop {
        // The fastest of some: one that was disturbed would make turns short.
        let run = |_| part.time.of(&mut || (part.run)(side, walk, calls));
        let took = (0..8).map(run).min().unwrap_or_default();
        if took * 2 >= TURN {
            let share = TURN.as_secs_f64() / took.as_secs_f64();
            return ((calls as f64 * share) as u64).max(1);
        }
        calls *= 2;
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Line {
    /// The median over rounds of what these are more than those, in percent.
    fn more(&self, these: &[usize], those: &[usize]) -> f64 {
        let sum = |round: &[f64; 4], sides: &[usize]| sides.iter().map(|side| round[*side]).sum();
        let more = |round: &[f64; 4]| {
            let (these, those): (f64, f64) = (sum(round, these), sum(round, those));
            (these / those - 1.0) * 100.0
        };
        median(self.rounds.iter().map(more))
    }

    fn row(&self) -> String {
        let Part { what, limit_percent, .. } = self.part;
        let ns = |sides: [usize; 2]| {
            median(self.rounds.iter().map(|round| (round[sides[0]] + round[sides[1]]) / 2.0))
        };
        let cost = self.more(&[1, 3], &[0, 2]);
        let noise = [self.more(&[2], &[0]), self.more(&[3], &[1])];
        let doubt = noise.map(f64::abs).into_iter().fold(0.0, f64::max);
        let met = match cost {
            _ if cost + doubt < *limit_percent => "yes",
            _ if cost - doubt < *limit_percent => "not shown",
            _ => "**no**",
        };
        let (without, with) = (ns([0, 2]), ns([1, 3]));
        format!(
            "| {what} | {without:.0} ns | {with:.0} ns | {cost:+.1} % | {:+.1} %, {:+.1} % | under \
             {limit_percent:.0} % | {met} |",
            noise[0], noise[1]
        )
    }
}

/// Prints the table to stdout.
pub(crate) fn print(lines: &[Line]) {
    println!("| | without metrics | with | more | the same twice: without, with | target | met |");
    println!("|---|---:|---:|---:|---:|---:|---|");
    lines.iter().for_each(|line| println!("{}", line.row()));
}
