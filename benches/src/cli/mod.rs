//! The command: from arguments to reports.

mod args;
mod interrupt;
mod progress;
mod replay;
mod run;
mod stored;
mod targets;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

pub use args::{Args, Command};
use args::{LoadArgs, ReportArgs};
use interrupt::Interrupt;
use targets::Wanted;

use crate::one_line;
use crate::report::{Report, TargetReport, compare, json, plot, text, ycsb};
use crate::run::phase::Plan;
use crate::workload::spec::Interval;

/// Does what was typed. The code is 1 if a target failed, or an operation, or verification found
/// something; a signal's number and 128 if one came.
pub fn main(args: &Args) -> Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    let clean = match &args.command {
        Command::Run(args) => run::main(args, run::Phase::Run, &interrupt)?,
        Command::Load(args) => run::main(args, run::Phase::Load, &interrupt)?,
        Command::Replay(args) => replay::main(args, &interrupt)?,
        Command::Generate { dir } => generate(dir)?,
    };
    if let Some(code) = interrupt.exit_code() {
        return Ok(ExitCode::from(code));
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Manual pages, one for each command, and completions, for packages.
fn generate(dir: &Path) -> Result<bool> {
    let mut command = Args::command();
    clap_mangen::generate_to(command.clone(), dir)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "onesided-bench", dir)?;
    }
    Ok(true)
}

/// Threads and clients, one following from the other.
fn plan(args: &LoadArgs, threads: Option<usize>) -> Plan {
    let wanted = |number: Option<u32>| number.map(|number| number as usize);
    let clients = wanted(args.clients);
    let threads = wanted(args.threads).or(threads).or(clients).unwrap_or(1);
    Plan {
        threads,
        clients: clients.unwrap_or(threads),
        pipeline: args.pipeline as usize,
        operations: args.operations,
        duration: args.duration,
        rate: args.rate,
    }
}

/// Refuses what would fail only when all is measured: files that cannot be written, and targets
/// that are not there or cannot do what is planned.
fn probe(report: &ReportArgs, wanted: &[Wanted], plan: &Plan) -> Result<()> {
    let files = [("--json", &report.json), ("--plot", &report.plot)];
    for (flag, path) in files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?))) {
        if !is_stdout(path) {
            writable(path).with_context(|| format!("{flag} {}", path.display()))?;
        }
    }
    wanted.iter().try_for_each(|wanted| wanted.probe(plan))
}

/// Leaves what is there as it is, and nothing where nothing is.
fn writable(path: &Path) -> std::io::Result<()> {
    let was_there = path.exists();
    std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    if was_there { Ok(()) } else { std::fs::remove_file(path) }
}

/// Each target's report, one after the other. One that fails does not take the others' with it.
fn measure_all(
    all: &[Wanted],
    interrupt: &Interrupt,
    measure: impl Fn(&Wanted) -> Result<TargetReport>,
) -> Vec<TargetReport> {
    let one = |wanted: &Wanted| {
        let report = measure(wanted)
            .unwrap_or_else(|error| TargetReport::failed(&wanted.name(), one_line(&error)));
        if let Some(failure) = &report.failure {
            eprintln!("onesided-bench: {}: {failure}", wanted.name());
        }
        if report.failures() > 0 {
            let why = report.measured.measure.first_failure.as_deref();
            let why = why.unwrap_or("it does not say why");
            eprintln!("onesided-bench: {}: {} failed: {why}", wanted.name(), report.failures());
        }
        report
    };
    all.iter().take_while(|_| !interrupt.came()).map(one).collect()
}

/// What a report of less than what was asked for has to say.
fn note_of(interrupt: &Interrupt) -> Option<String> {
    let what = "interrupted: the last target was measured until then, and none after it";
    interrupt.came().then(|| what.to_owned())
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes all that was asked for. False if a target did not end well.
fn tell(report: &Report, args: &ReportArgs, lines: (Interval, &[f64])) -> Result<bool> {
    let to_stdout = args.json.as_deref().is_some_and(is_stdout);
    if let Some(path) = &args.json {
        let json = json::report(report);
        match to_stdout {
            true => say(&format!("{json:#}\n"))?,
            false => write(path, &format!("{json:#}\n"))?,
        }
    }
    if let Some(path) = &args.plot {
        write(path, &plot::svg(report))?;
    }
    if !to_stdout {
        let mut all = String::new();
        for target in &report.targets {
            if target.has_figures() {
                all += &ycsb::lines(&target.measured, lines.0, lines.1);
            }
            all += &format!("\n{}\n", text::target(target));
        }
        report.notes.iter().for_each(|note| all += &format!("{note}\n"));
        all += &compare::table(&report.targets);
        say(&all)?;
    }
    Ok(report.targets.iter().all(TargetReport::is_clean))
}

/// To stdout. Whoever reads it may have seen enough.
fn say(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to stdout")
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
