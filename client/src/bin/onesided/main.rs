//! The command `onesided`: store, read, load and dump keys, and look after a server's tables.
//!
//! Exit codes: 0 done, 1 the key is absent or the condition was not met, 2 failed, with one line
//! on stderr that says why.

#![forbid(unsafe_code)]

mod admin;
mod args;
mod bulk;
mod doctor;
mod dump;
mod load;
mod output;
mod place;
mod rdma_errors;
mod scan;
mod session;
mod spec;
mod top;
mod values;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use args::{Cli, Command};
use session::{Outcome, Session};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(&cli.command);
    match run(&cli) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Absent) => ExitCode::from(1),
        Ok(Outcome::Failed) => ExitCode::from(2),
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onesided: {}", one_line(&error));
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<Outcome> {
    if let Command::Doctor(args) = &cli.command {
        // It also works without a server.
        return doctor::run(cli, args);
    }
    if let Command::Generate { dir } = &cli.command {
        return generate(dir);
    }
    let session = Session::open(cli)?;
    let outcome = match &cli.command {
        Command::Put(args) => values::put(&session, args),
        Command::Get(args) => values::get(&session, args),
        Command::Del(args) => values::del(&session, args),
        Command::Incr(args) => values::incr(&session, args),
        Command::Load(args) => load::run(&session, args),
        Command::Dump(args) => dump::run(&session, args),
        Command::Scan(args) => scan::run(&session, args),
        Command::Tables(args) => admin::tables(&session, args),
        Command::Stats => admin::stats(&session),
        Command::Top(args) => top::run(&session, args),
        Command::Ping(args) => admin::ping(&session, args),
        Command::Doctor(args) => doctor::run(cli, args),
        Command::Generate { dir } => generate(dir),
    };
    // Or the server would keep the session until its lease is over.
    session.client.close();
    outcome
}

/// Manual pages, one for each subcommand, and completions, for packages.
fn generate(dir: &Path) -> Result<Outcome> {
    let mut command = Cli::command();
    clap_mangen::generate_to(command.clone(), dir)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "onesided", dir)?;
    }
    Ok(Outcome::Done)
}

/// Warnings of the library, such as a fallback to another fabric; `RUST_LOG` changes the level.
/// Not into what `top` draws: it says itself that the server is gone.
fn log_to_stderr(command: &Command) {
    use tracing_subscriber::EnvFilter;
    if matches!(command, Command::Top(_)) && io::stderr().is_terminal() {
        return;
    }
    let filter = EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .init();
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes in one line; a cause that the text before it tells already is left out.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', " ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line += ": ";
            line += &text;
        }
    }
    line
}
