//! `replay`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::args::ReplayArgs;
use super::interrupt::Interrupt;
use super::progress::Progress;
use super::targets::{Wanted, wanted};
use super::{measure_all, note_of, plan, probe, tell};
use crate::report::{Report, TargetReport};
use crate::run::phase::{self, Plan};
use crate::target::Options;
use crate::workload::spec::Interval;
use crate::workload::trace::{Parts, Replay, Trace};

/// Measures all targets; there is nothing to verify.
pub(super) fn main(args: &ReplayArgs, interrupt: &Interrupt) -> Result<bool> {
    let trace = Trace::read(&args.trace)?;
    let mut plan = plan(&args.load, None);
    let count = trace.len() as u64;
    let operations = plan.operations.unwrap_or(count);
    ensure!(
        operations <= count,
        "--operations {operations}: {} has {count}; ask for fewer, or for all without it",
        args.trace.display()
    );
    let trace = Arc::new(trace.split(operations as usize, plan.threads));
    // Each thread has its part of the trace.
    plan.operations = None;
    let options = Options {
        record_bytes: trace.value_max_bytes(),
        records: trace.keys(),
        ..Options::default()
    };
    let mut notes = vec![];
    if let Some(speed) = args.speed {
        notes.push(format!("operations begin when the trace says, {speed} times as fast"));
    }
    let all = wanted(&args.target, &options)?;
    check_keys(args, &trace, &all)?;
    probe(&args.report, &all, &plan)?;
    let mut report = Report {
        command: "replay",
        arguments: std::env::args().skip(1).collect(),
        workload: args.trace.display().to_string(),
        properties: vec![],
        notes,
        seed: args.load.seed,
        plan,
        targets: vec![],
    };
    report.targets = measure_all(&all, interrupt, |wanted| {
        measure(args, &trace, &report.plan, wanted, interrupt)
    });
    report.notes.extend(note_of(interrupt));
    tell(&report, &args.report, (Interval::Both, &[50.0, 95.0, 99.0]))
}

/// Refuses keys that one of the targets does not take, by the first of their lines.
fn check_keys(args: &ReplayArgs, trace: &Parts, all: &[Wanted]) -> Result<()> {
    for wanted in all {
        for (line, key) in trace.keys_by_line() {
            let place = || format!("{}: {}, line {line}", wanted.url, args.trace.display());
            wanted.check_key(key).with_context(place)?;
        }
    }
    Ok(())
}

fn measure(
    args: &ReplayArgs,
    trace: &Arc<Parts>,
    plan: &Plan,
    wanted: &Wanted,
    interrupt: &Interrupt,
) -> Result<TargetReport> {
    let opened = wanted.open()?;
    let target = &*opened.target;
    // After the phase the server may be gone.
    let description = target.describe()?;
    if args.target.clear {
        target.clear().with_context(|| format!("clearing {}", wanted.url))?;
    }
    let progress = Progress::new(&target.name(), plan);
    let source = |thread| Replay::new(trace, thread, args.speed, args.load.seed);
    let look = |elapsed: Duration, series: &_| {
        progress.look(elapsed, series);
        !interrupt.came()
    };
    let measured = phase::run(target, plan, source, look)?;
    drop(progress);
    Ok(TargetReport {
        url: wanted.url.clone(),
        name: target.name(),
        description: target.describe().unwrap_or(description),
        fill: None,
        failure: measured.broken.clone(),
        measured,
        verified: false,
    })
}
