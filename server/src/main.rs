//! The daemon.

#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use onesided_server::Server;
use onesided_server::cli::{Cli, Command};
use onesided_server::config::fabric_name;
use onesided_server::config::file::{LogFormat, Settings};
use onesided_server::config::size::format_size;
use onesided_server::supervised::Supervisor;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// What signals the program and its group, as `timeout` does, means it once.
const SAME_SIGNAL: Duration = Duration::from_millis(500);
/// A clean shutdown takes no longer; what has not ended by then is left behind.
const STOP_MAX: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    let done = match cli.take_command() {
        Some(Command::CheckConfig { .. }) => check(&cli),
        Some(Command::Generate { dir }) => generate(&dir),
        None => serve(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onesided-server: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes; a cause that the text before it tells already is left out.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for text in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

fn settings(cli: &Cli) -> anyhow::Result<Settings> {
    cli.clone().settings().map_err(|error| anyhow!(error))
}

/// Whether a server could be told this.
fn check(cli: &Cli) -> anyhow::Result<()> {
    let settings = settings(cli)?;
    filter(&settings)?;
    let server = &settings.server;
    println!(
        "{}: right; {} for {} tables of {} tenants, at {}",
        cli.source(),
        format_size(server.memory_bytes as u64),
        server.tables.len(),
        server.tenant_names().len(),
        server.listen
    );
    for warning in server.warnings() {
        println!("warning: {warning}");
    }
    Ok(())
}

/// Manual page and completions, for packages.
fn generate(dir: &Path) -> anyhow::Result<()> {
    let mut command = Cli::command();
    clap_mangen::generate_to(command.clone(), dir)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "onesided-server", dir)?;
    }
    Ok(())
}

fn serve(cli: &Cli) -> anyhow::Result<()> {
    let source = cli.source();
    let settings = settings(cli)?;
    let set_filter = init_logs(&settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before the server starts, so that no signal is missed.
    let _context = runtime.enter();
    let mut signals = Signals {
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
    };
    let mut hang_up = signal(SignalKind::hangup())?;
    let supervisor = Supervisor::of_environment().context("cannot reach NOTIFY_SOCKET")?;
    let server = Server::start(settings.server.clone())?;
    log_start(&server, &settings, &source);
    if let Some(supervisor) = &supervisor {
        supervisor.ready(&format!("clients connect to {}", server.addr()));
    }
    let interval = supervisor.as_ref().and_then(Supervisor::interval);
    let name = runtime.block_on(async {
        loop {
            tokio::select! {
                name = signals.next() => return name,
                _ = hang_up.recv() => reload(cli, &server, &set_filter),
                () = next_beat(interval) => {
                    // It takes the locks that a server that hangs would hold.
                    let _alive = server.metrics();
                    supervisor.iter().for_each(Supervisor::is_well);
                }
            }
        }
    });
    supervisor.iter().for_each(Supervisor::stopping);
    tracing::info!(signal = name, "stopping; a second signal ends at once");
    stop(server, &runtime, signals);
    Ok(())
}

/// What ends the program.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Ends the server, or the program when that takes too long or is wanted at once.
fn stop(server: Server, runtime: &Runtime, mut signals: Signals) {
    let again_from = Instant::now() + SAME_SIGNAL;
    let stopping = std::thread::spawn(move || server.stop());
    let stopped = runtime.block_on(async {
        let patience = tokio::time::sleep(STOP_MAX);
        tokio::pin!(patience);
        loop {
            tokio::select! {
                _ = signals.next() => {
                    if Instant::now() > again_from {
                        return Err("a second signal");
                    }
                }
                () = &mut patience => return Err("the time is over"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {
                    if stopping.is_finished() {
                        return Ok(());
                    }
                }
            }
        }
    });
    if let Err(why) = stopped {
        tracing::error!(why, "not everything has ended");
        std::process::exit(1);
    }
}

/// Ends when the supervisor is due to hear that all is well; never, if it does not want to.
async fn next_beat(interval: Option<Duration>) {
    match interval {
        Some(interval) => tokio::time::sleep(interval).await,
        None => std::future::pending().await,
    }
}

/// Reads file and flags again. What is wrong with them changes nothing.
fn reload(cli: &Cli, server: &Server, set_filter: &SetFilter) {
    let reloaded = settings(cli).and_then(|settings| {
        let filter = filter(&settings)?;
        let restart = server.reload(&settings.server).map_err(|error| anyhow!(error))?;
        set_filter(filter)?;
        Ok(restart)
    });
    match reloaded {
        Ok(restart) if restart.is_empty() => tracing::info!("configuration read again"),
        Ok(restart) => {
            let keys = restart.join(", ");
            tracing::warn!(keys, "configuration read again; these need a restart to change");
        }
        Err(error) => {
            tracing::error!(error = one_line(&error), "configuration not changed: it is wrong");
        }
    }
}

/// Changes what is logged.
type SetFilter = Box<dyn Fn(EnvFilter) -> anyhow::Result<()>>;

fn filter(settings: &Settings) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(&settings.log).with_context(|| {
        format!("log filter `{}`: try info, or info,onesided_server=debug", settings.log)
    })
}

fn init_logs(settings: &Settings) -> anyhow::Result<SetFilter> {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(settings)?)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    Ok(match settings.log_format {
        LogFormat::Text => {
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| Ok(handle.reload(filter)?))
        }
        LogFormat::Json => {
            let lines = lines.json().with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| Ok(handle.reload(filter)?))
        }
    })
}

fn log_start(server: &Server, settings: &Settings, source: &str) {
    let config = &settings.server;
    let fabrics: Vec<_> = server.fabrics().into_iter().map(fabric_name).collect();
    let tables: Vec<_> = config.tables.iter().map(ToString::to_string).collect();
    tracing::info!(
        listen = %server.addr(),
        admin = server.admin_addr().map_or("off".to_owned(), |addr| addr.to_string()),
        fabrics = fabrics.join(","),
        rdma = %config.rdma,
        cas_over = config.updates_over().map_or("none", fabric_name),
        memory = format_size(config.memory_bytes as u64),
        tables = tables.join(" "),
        tenants = server.tenants().join(" "),
        token = config.token.is_some(),
        config = source,
        "onesided-server is ready"
    );
    if !server.addr().ip().is_loopback() && config.token.is_none() {
        tracing::warn!("open to other hosts without a token: set --token-file");
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
}
