//! Contestants taken in turns, A B C A B C, so that what disturbs the machine meets them all.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Which time is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// What a clock on the wall shows: for calls that wait for another process.
    Wall,
    /// The calling thread's on a CPU: for calls that wait for nobody. The same on a quiet machine;
    /// on another one the time slices of others are not counted.
    Cpu,
}

impl Time {
    /// How long it takes.
    pub fn of<T>(self, run: impl FnOnce() -> T) -> Duration {
        let now = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let (start, cpu_start) = (Instant::now(), now());
        std::hint::black_box(run());
        if self == Self::Wall { start.elapsed() } else { now() - cpu_start }
    }
}

/// One contestant: does so many operations.
pub struct Contestant<'a> {
    /// As the table names it.
    pub name: &'a str,
    /// Operations that one call of `run` with 1 stands for.
    pub ops_per_call: u64,
    /// Does `n` calls and returns something that depends on all of them.
    pub run: Box<dyn FnMut(u64) -> u64 + 'a>,
}

impl<'a> Contestant<'a> {
    /// Where one call is one operation.
    pub fn new(name: &'a str, run: impl FnMut(u64) -> u64 + 'a) -> Self {
        Self { name, ops_per_call: 1, run: Box::new(run) }
    }

    /// Where one call is a batch.
    pub fn batched(name: &'a str, ops_per_call: u64, run: impl FnMut(u64) -> u64 + 'a) -> Self {
        Self { name, ops_per_call, run: Box::new(run) }
    }

    /// Calls that take about `target`; warms up on the way.
    fn calibrate(&mut self, target: Duration) -> u64 {
        let mut calls = 1;
        loop {
            let start = Instant::now();
            std::hint::black_box((self.run)(calls));
            let elapsed = start.elapsed();
            if elapsed * 2 >= target || calls > 1 << 40 {
                let per_call = elapsed.as_secs_f64() / calls as f64;
                return ((target.as_secs_f64() / per_call) as u64).max(1);
            }
            calls *= 2;
        }
    }
}

/// Nanoseconds of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The median round's.
    pub median_ns: f64,
    /// The fastest round's.
    pub min_ns: f64,
    /// The slowest round's.
    pub max_ns: f64,
}

/// Runs the contestants in turns: `rounds` rounds of about `target` each. Medians, in their order.
pub fn in_turns<const N: usize>(
    mut contestants: [Contestant<'_>; N],
    rounds: usize,
    target: Duration,
    time: Time,
) -> [Figure; N] {
    let calls = contestants.each_mut().map(|one| one.calibrate(target));
    let mut times = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for ((contestant, &calls), times) in contestants.iter_mut().zip(&calls).zip(&mut times) {
            let elapsed = time.of(|| (contestant.run)(calls));
            let ops = (calls * contestant.ops_per_call) as f64;
            times.push(elapsed.as_nanos() as f64 / ops);
        }
    }
    let figures = times.map(figure);
    for (contestant, figure) in contestants.iter().zip(&figures) {
        let Figure { median_ns, min_ns, max_ns } = figure;
        let name = contestant.name;
        eprintln!("  {name}: {median_ns:.0} ns ({min_ns:.0} to {max_ns:.0})");
    }
    figures
}

fn figure(mut times: Vec<f64>) -> Figure {
    times.sort_unstable_by(f64::total_cmp);
    Figure { median_ns: times[times.len() / 2], min_ns: times[0], max_ns: times[times.len() - 1] }
}
