//! The command: from arguments to reports.

mod args;
mod progress;
mod replay;
mod run;
mod targets;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

pub use args::{Args, Command};
use args::{LoadArgs, ReportArgs};

use crate::report::{Report, compare, json, plot, text, ycsb};
use crate::run::phase::Plan;
use crate::workload::spec::Interval;

/// Does what was typed. The code is 1 if verification found something.
pub fn main(args: &Args) -> Result<ExitCode> {
    let clean = match &args.command {
        Command::Run(args) => run::main(args, run::Phase::Run)?,
        Command::Load(args) => run::main(args, run::Phase::Load)?,
        Command::Replay(args) => replay::main(args)?,
    };
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
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

/// Writes all that was asked for. False if verification found something.
fn tell(report: &Report, args: &ReportArgs, lines: (Interval, &[f64])) -> Result<bool> {
    let is_stdout = |path: &Path| path == Path::new("-");
    let to_stdout = args.json.as_deref().is_some_and(is_stdout);
    if let Some(path) = &args.json {
        let json = json::report(report);
        match to_stdout {
            true => println!("{json:#}"),
            false => write(path, &format!("{json:#}\n"))?,
        }
    }
    if let Some(path) = &args.plot {
        write(path, &plot::svg(report))?;
    }
    if !to_stdout {
        for target in &report.targets {
            if target.unsupported().is_none() {
                print!("{}", ycsb::lines(&target.measured, lines.0, lines.1));
            }
            println!("\n{}", text::target(target));
        }
        report.notes.iter().for_each(|note| println!("{note}"));
        print!("{}", compare::table(&report.targets));
    }
    Ok(report.targets.iter().all(|target| target.measured.measure.verdicts.is_clean()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
