//! The loop of one thread: plan, send, take the answers, measure; again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;

use super::history::Verdicts;
use super::measure::{Measure, Status, Times};
use super::pace::{Pace, wait_until};
use super::series::Series;
use crate::one_line;
use crate::target::{Operation, Outcome, Session};
use crate::workload::operations::{Kind, Planned, Source, Step};

/// Batches after which it is decided how many are timed.
const TRIAL_BATCHES: u64 = 4096;
/// Batches that are faster than this on average are not all timed: reading the clock twice takes 50
/// to 200 ns, the more so in a virtual machine.
const SHORT_NS: u64 = 2000;
/// Then one of so many is.
const TIMED_ONE_OF: u64 = 16;

/// What all threads of a phase have in common.
pub struct Job {
    /// When all begin.
    pub start: Instant,
    /// When all end, in ns after the start; `u64::MAX` if time does not end them.
    pub end_ns: u64,
    /// Ends all.
    pub stop: AtomicBool,
    /// What happens in each second.
    pub series: Series,
    /// A thread has so many operations outstanding, at most.
    pub pipeline: usize,
}

impl Job {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns || self.stop.load(Ordering::Relaxed)
    }
}

/// One thread.
pub struct Thread<'a, S: Source> {
    /// Taken in turns.
    pub sessions: Vec<Box<dyn Session>>,
    /// Where operations come from.
    pub source: S,
    /// When they begin.
    pub pace: Pace,
    /// How many, at most.
    pub quota: u64,
    /// What it has in common with the others.
    pub job: &'a Job,
}

/// Places of one batch.
struct Batch {
    slots: Vec<Planned>,
    statuses: Vec<Status>,
    /// Times in an open loop.
    due_ns: Vec<u64>,
    /// How the reads of read-modify-writes ended, and when: all of a batch together.
    reads: Vec<Status>,
    read_ns: u64,
    used: usize,
}

/// What the answers of a batch tell beside their statuses.
#[derive(Default)]
struct Notes {
    verdicts: Verdicts,
    first_failure: Option<String>,
    unsupported: Option<Kind>,
}

impl<S: Source> Thread<'_, S> {
    /// Works until quota, time or source ends, or the connection: then all threads end.
    pub fn run(mut self) -> Measure {
        let mut measure = Measure::new();
        let mut notes = Notes::default();
        let mut batch = Batch {
            slots: vec![Planned::default(); self.job.pipeline],
            statuses: vec![Status::Pending; self.job.pipeline],
            due_ns: vec![0; self.job.pipeline],
            reads: vec![],
            read_ns: 0,
            used: 0,
        };
        let (mut batches, mut timed_one_of, mut turn) = (0_u64, 1, 0);
        wait_until(self.job.start, 0, u64::MAX);
        let mut now_ns = 0;
        while !self.job.is_over(now_ns) && self.plan(&mut batch, &mut now_ns) {
            // A power of two: no division in every round.
            let is_timed = batches & (timed_one_of - 1) == 0;
            let began_ns = if is_timed { self.job.now_ns() } else { 0 };
            if let Err(error) = self.execute(turn, &mut batch, &mut notes) {
                measure.broken = Some(one_line(&error));
                self.job.stop.store(true, Ordering::Relaxed);
                break;
            }
            turn = if turn + 1 < self.sessions.len() { turn + 1 } else { 0 };
            let mut times = None;
            if is_timed {
                now_ns = self.job.now_ns();
                times = Some(Times { intended_ns: None, began_ns, ended_ns: now_ns });
            }
            if is_timed {
                measure.tick(now_ns, &self.job.series);
            }
            self.record(&batch, times, &mut measure);
            batches += 1;
            if batches == TRIAL_BATCHES && now_ns / TRIAL_BATCHES < SHORT_NS {
                timed_one_of = if self.pace.is_open() { 1 } else { TIMED_ONE_OF };
            }
            if notes.unsupported.is_some() {
                self.job.stop.store(true, Ordering::Relaxed);
            }
        }
        measure.tick(self.job.now_ns(), &self.job.series);
        measure.flush(&self.job.series);
        measure.timed_one_of = timed_one_of;
        measure.verdicts = notes.verdicts;
        measure.first_failure = notes.first_failure;
        measure.unsupported = notes.unsupported;
        measure
    }

    /// Fills the batch: in an open loop with what is due. False at the end.
    #[inline]
    fn plan(&mut self, batch: &mut Batch, now_ns: &mut u64) -> bool {
        self.source.begin_batch();
        batch.used = 0;
        while batch.used < batch.slots.len() && self.quota > 0 {
            if let Some(due_ns) = self.due_ns() {
                if batch.used == 0 {
                    if !wait_until(self.job.start, due_ns, self.job.end_ns) {
                        return false;
                    }
                    *now_ns = self.job.now_ns();
                } else if due_ns > *now_ns {
                    break;
                }
                batch.due_ns[batch.used] = due_ns;
            }
            if !self.source.plan(&mut batch.slots[batch.used]) {
                break;
            }
            self.pace.advance();
            self.quota -= 1;
            batch.used += 1;
        }
        batch.used > 0
    }

    /// When the next operation should begin; `None` in a closed loop.
    #[inline]
    fn due_ns(&mut self) -> Option<u64> {
        if self.pace.is_open() { Some(self.pace.due_ns()) } else { self.source.due_ns() }
    }

    /// Sends all of a batch and takes the answers; then the updates of its read-modify-writes.
    #[inline]
    fn execute(&mut self, turn: usize, batch: &mut Batch, notes: &mut Notes) -> Result<()> {
        let (slots, statuses) = (&batch.slots[..batch.used], &mut batch.statuses[..batch.used]);
        let (session, source) = (&mut *self.sessions[turn], &self.source);
        if let ([slot], [status]) = (slots, &mut *statuses) {
            *status = Status::Pending;
            let operation = [source.operation(slot, Step::First)];
            session.execute(&operation, &mut |_, outcome| {
                take(source, slot, Step::First, outcome, status, notes);
            })?;
        } else {
            let operations: Vec<Operation<'_>> =
                slots.iter().map(|slot| source.operation(slot, Step::First)).collect();
            statuses.fill(Status::Pending);
            session.execute(&operations, &mut |place, outcome| {
                take(source, &slots[place], Step::First, outcome, &mut statuses[place], notes);
            })?;
        }
        let is_second = |slot: &Planned| slot.kind == Kind::ReadModifyWrite;
        batch.reads.clear();
        if slots.iter().any(is_second) {
            batch.reads.extend_from_slice(statuses);
            batch.read_ns = self.job.now_ns();
            return second(session, source, slots, statuses, notes);
        }
        Ok(())
    }

    #[inline]
    fn record(&self, batch: &Batch, times: Option<Times>, measure: &mut Measure) {
        let is_open = self.pace.is_open() || self.source.is_timed();
        for place in 0..batch.used {
            let intended_ns = is_open.then(|| batch.due_ns[place]);
            let times = times.map(|times| Times { intended_ns, ..times });
            let (kind, status) = (batch.slots[place].kind, batch.statuses[place]);
            measure.record(kind, status, times);
            if kind == Kind::ReadModifyWrite {
                measure.record_halves(batch.reads[place], status, batch.read_ns, times);
            }
        }
    }
}

/// The updates of those read-modify-writes of a batch whose reads have found something.
#[cold]
fn second<S: Source>(
    session: &mut dyn Session,
    source: &S,
    slots: &[Planned],
    statuses: &mut [Status],
    notes: &mut Notes,
) -> Result<()> {
    let found = |place: &usize| {
        slots[*place].kind == Kind::ReadModifyWrite && statuses[*place] == Status::Ok
    };
    let places: Vec<usize> = (0..slots.len()).filter(found).collect();
    let operation = |place: &usize| source.operation(&slots[*place], Step::Second);
    let operations: Vec<Operation<'_>> = places.iter().map(operation).collect();
    places.iter().for_each(|place| statuses[*place] = Status::Pending);
    session.execute(&operations, &mut |place, outcome| {
        let place = places[place];
        take(source, &slots[place], Step::Second, outcome, &mut statuses[place], notes);
    })
}

/// Takes one answer.
#[inline]
fn take<S: Source>(
    source: &S,
    slot: &Planned,
    step: Step,
    outcome: Outcome<'_>,
    status: &mut Status,
    notes: &mut Notes,
) {
    source.answered(slot, step, outcome, &mut notes.verdicts);
    match outcome {
        Outcome::Found(_) | Outcome::Done | Outcome::Scanned(_) => *status = Status::Ok,
        Outcome::Record { .. } => {}
        Outcome::Absent => *status = Status::Absent,
        Outcome::Unsupported => {
            *status = Status::Failed;
            notes.unsupported = Some(slot.kind);
        }
        Outcome::Failed(message) => {
            *status = Status::Failed;
            notes.first_failure.get_or_insert_with(|| message.to_owned());
        }
    }
}
