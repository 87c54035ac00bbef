//! A phase: all threads, from their start to their end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::drive::{Job, Thread};
use super::measure::Measure;
use super::pace::Pace;
use super::series::{Second, Series};
use crate::one_line;
use crate::target::{Counters, Session, Target, Usage};
use crate::workload::operations::Source;

/// Threads get ready before the start.
const LEAD: Duration = Duration::from_millis(20);
/// Between two looks at what is going on.
const LOOK: Duration = Duration::from_millis(200);

/// How a phase is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads.
    pub threads: usize,
    /// Connections, or clients of onesided.
    pub clients: usize,
    /// Operations of a thread that are outstanding at once.
    pub pipeline: usize,
    /// Operations of all threads, at most.
    pub operations: Option<u64>,
    /// Time, at most.
    pub duration: Option<Duration>,
    /// Operations per second of all threads; `None` = closed loop.
    pub rate: Option<f64>,
}

/// What came of a phase.
pub struct Measured {
    /// What the threads measured.
    pub measure: Measure,
    /// Second by second.
    pub seconds: Vec<Second>,
    /// From the start to the end of the last operation.
    pub elapsed: Duration,
    /// CPU time of this process, user and system.
    pub client_cpu: Duration,
    /// How many operations each thread did, in the order of their numbers.
    pub by_thread: Vec<u64>,
    /// What the server used in the phase, and its memory at the end.
    pub usage: Option<Usage>,
    /// What was counted in the phase.
    pub counters: Counters,
    /// What ended it before its time, or kept the target from being asked afterwards.
    pub broken: Option<String>,
}

impl Measured {
    /// Of a phase that did not take place.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            measure: Measure::new(),
            seconds: vec![],
            elapsed: Duration::ZERO,
            client_cpu: Duration::ZERO,
            by_thread: vec![],
            usage: None,
            counters: Counters::default(),
            broken: None,
        }
    }

    /// Operations per second, those that found no record too, as YCSB counts; not the other failed
    /// ones.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        let measure = &self.measure;
        let answered = measure.operations() - measure.failed() + measure.absent();
        answered as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs a phase against a target. `source` makes the operations of a thread by its number; `look`
/// is told of the seconds so far while it goes on, and ends it by false.
pub fn run<S: Source>(
    target: &dyn Target,
    plan: &Plan,
    source: impl Fn(usize) -> S,
    mut look: impl FnMut(Duration, &Series) -> bool,
) -> Result<Measured> {
    let sessions = sessions(target, plan)?;
    let (usage, counters) = (target.usage()?, target.counters());
    let client_cpu = process_cpu();
    let start = Instant::now() + LEAD;
    let job = Job {
        start,
        end_ns: plan.duration.map_or(u64::MAX, |duration| duration.as_nanos() as u64),
        stop: AtomicBool::new(false),
        series: Series::default(),
        pipeline: plan.pipeline,
    };
    let (mut measure, mut by_thread) = (Measure::new(), vec![]);
    for one in work(&job, sessions, plan, source, &mut look) {
        let one = one.with_context(|| target.name())?;
        by_thread.push(one.operations());
        measure.merge(&one);
    }
    let client_cpu = process_cpu().saturating_sub(client_cpu);
    // What was measured stays when the server has gone.
    let (usage, gone) = match target.usage() {
        Ok(after) => (used(usage, after), None),
        Err(error) => (None, Some(format!("asking it afterwards: {}", one_line(&error)))),
    };
    let elapsed = Duration::from_nanos(measure.ended_ns);
    Ok(Measured {
        elapsed,
        seconds: job.series.of(elapsed),
        client_cpu,
        by_thread,
        usage,
        counters: target.counters().since(&counters),
        broken: measure.broken.take().or(gone),
        measure,
    })
}

/// All threads, from their start to their end: what each measured.
fn work<S: Source>(
    job: &Job,
    sessions: Vec<Vec<Box<dyn Session>>>,
    plan: &Plan,
    source: impl Fn(usize) -> S,
    look: &mut impl FnMut(Duration, &Series) -> bool,
) -> Vec<Result<Measure>> {
    let quota = plan.operations.unwrap_or(u64::MAX);
    let threads = plan.threads as u64;
    let (ended, ends) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let mut handles = vec![];
        for (number, sessions) in sessions.into_iter().enumerate() {
            let more = u64::from((number as u64) < quota % threads);
            let pace = match plan.rate {
                Some(rate) => Pace::open(rate, number, plan.threads),
                None => Pace::closed(),
            };
            let (source, quota) = (source(number), quota / threads + more);
            let ended = ended.clone();
            let thread = Thread { sessions, source, pace, quota, job };
            handles.push(scope.spawn(move || {
                let measure = thread.run();
                drop(ended);
                measure
            }));
        }
        drop(ended);
        while ends.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
            if !look(job.start.elapsed(), &job.series) {
                job.stop.store(true, Ordering::Relaxed);
            }
        }
        let join = |handle: std::thread::ScopedJoinHandle<'_, Measure>| {
            handle.join().map_err(|_| anyhow!("a thread panicked"))
        };
        handles.into_iter().map(join).collect()
    })
}

/// Refuses what this target cannot do at all: threads that share its connections.
pub fn check(target: &dyn Target, plan: &Plan) -> Result<()> {
    let (threads, clients) = (plan.threads, plan.clients);
    ensure!(threads > 0 && clients > 0 && plan.pipeline > 0, "no threads, clients or pipeline");
    ensure!(
        clients >= threads || target.shares_clients(),
        "{}: a connection serves one thread at a time; make --clients at least --threads",
        target.name()
    );
    Ok(())
}

/// Sessions of each thread.
fn sessions(target: &dyn Target, plan: &Plan) -> Result<Vec<Vec<Box<dyn Session>>>> {
    check(target, plan)?;
    let (threads, clients) = (plan.threads, plan.clients);
    let of_thread = |thread: usize| {
        // With fewer clients than threads, threads share them.
        let own = (thread..clients.max(threads)).step_by(threads);
        own.map(|number| target.session(number % clients)).collect::<Result<Vec<_>>>()
    };
    (0..threads).map(of_thread).collect()
}

fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nothing if the server was restarted in between.
fn used(before: Option<Usage>, after: Option<Usage>) -> Option<Usage> {
    let (before, after) = (before?, after?);
    let same = before.process == after.process && before.cpu_seconds <= after.cpu_seconds;
    same.then_some(Usage { cpu_seconds: after.cpu_seconds - before.cpu_seconds, ..after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_used_is_not_told_of_another_one() {
        let usage = |process, cpu_seconds| Some(Usage { process, cpu_seconds, resident_bytes: 7 });
        assert_eq!(used(usage(1, 2.0), usage(1, 5.0)), usage(1, 3.0));
        assert_eq!(used(usage(1, 2.0), usage(2, 5.0)), None);
        // In a container it may have the same number.
        assert_eq!(used(usage(1, 2.0), usage(1, 1.0)), None);
    }
}
