//! The command line. Flags are the keys of `config/server.toml`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::config::file::{self, FileConfig, LogFormat, Settings};
use crate::config::{CasOver, Cleaning, HugePages};

const EXAMPLES: &str = "\
Examples:
  onesided-server
      1 GiB in memory, tables `default` and `counters`, reachable from this host only
  onesided-server --memory 8GiB --table sessions:ttl=3600 --table blobs:quota=4GiB
      two tables with options; without --table there are `default` and `counters`
  onesided-server --listen 0.0.0.0:7411 --token-file /etc/onesided/token
      open to other hosts, for clients that know the token
  onesided-server --config config/server.toml --log info,onesided_server=debug
      everything from a file, and more in the log; `kill -HUP` reads it again: log level, tokens,
      slow_request_ms and manage_tables change at once, for all else it says what needs a restart
  onesided-server check-config config/server.toml
      whether the file is right

Clients on this host read through shared memory, those with RDMA over the network, both without
the server's CPU; others use tcp.
Try it: onesided put hello world && onesided get hello";

/// A key-value store whose readers do not ask: clients find and fetch values in the server's
/// memory with one-sided reads, and may change it by compare-and-swap; all else is a small RPC.
#[derive(Parser, Clone, Debug)]
#[command(name = "onesided-server", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Read settings from FILE (see config/server.toml for every key); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where clients connect. Only this host can by default; 0.0.0.0:7411 or [::]:7411 opens it
    /// to others: set --token-file then [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    /// Memory for all tables, taken as they grow. When it is full, tables that may evict lose
    /// entries; of others, what needs more memory fails and nothing is lost [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// A table to make at start; may be repeated. Options: ttl=SECONDS, quota=SIZE, floor=SIZE,
    /// tenant=NAME, evict, noeviction, ordered, update=rpc|cas [default: default and counters]
    #[arg(long = "table", value_name = "NAME[:option=value,...]")]
    tables: Vec<String>,

    /// The table `default` is a cache: when memory is full, what is used least makes room
    #[arg(long)]
    evict: bool,

    /// Over which fabric clients change counters, and entries of tables with update=cas,
    /// themselves; over others the server does it for them. `auto` is shm if it is among the
    /// fabrics, else verbs [default: auto]
    #[arg(long, value_name = "FABRIC")]
    cas_over: Option<CasOver>,

    /// File with the token that clients must know. Without one whoever reaches the port may read
    /// and write everything (of the default tenant, if the file has more)
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,

    /// Where operators and Prometheus ask by HTTP: / (a page with live figures), /metrics,
    /// /healthz, /readyz, /api/v1/. Beyond this host it needs --admin-token-file; `off`: nowhere
    /// [default: 127.0.0.1:7412]
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,

    /// File with the token that requests to the admin port must carry (Authorization: Bearer)
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,

    /// Log requests that take longer than this to be served; 0 logs none [default: 100]
    #[arg(long, value_name = "MS")]
    slow_request_ms: Option<u64>,

    /// Ways to be reached, best first: shm (this host, one-sided reads), verbs (RDMA, one-sided
    /// reads), tcp (everybody, reads are RPCs) [default: shm,verbs,tcp]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    fabric: Vec<String>,

    /// RDMA: `require` fails to start without it, `prefer` goes on without it and says why,
    /// `never` does not touch it [default: prefer]
    #[arg(long, value_name = "POLICY")]
    rdma: Option<String>,

    /// RDMA device to use: NAME[:PORT[:GID_INDEX]], such as mlx5_0:1:3, or one of this host's
    /// addresses; otherwise the best is chosen [default: auto]
    #[arg(long, value_name = "DEVICE")]
    rdma_device: Option<String>,

    /// Longest packets of RDMA connections, in bytes: 256, 512, 1024, 2048 or 4096. More than the
    /// port's active MTU is an error [default: auto]
    #[arg(long, value_name = "BYTES")]
    rdma_mtu: Option<String>,

    /// What to log: error, warn, info, debug, or per module [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,

    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// Sessions at once, one per client process; more are told ServerFull [default: 1024]
    #[arg(long, value_name = "N")]
    max_sessions: Option<usize>,

    /// Whether memory goes into huge pages, so that reads wait for fewer page table look-ups
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    huge_pages: Option<HugePages>,

    /// When entries are moved together, so that memory becomes free [default: auto]
    #[arg(long, value_name = "WHEN")]
    cleaning: Option<Cleaning>,

    /// Longest value, at most 60MiB [default: 32MiB]
    #[arg(long, value_name = "SIZE")]
    value_max: Option<String>,
}

/// Something else than to serve.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Read file and flags as a server would, say what is wrong with them, and end. Ports,
    /// devices and memory are not tried
    CheckConfig {
        /// The file; `--config FILE` does, too
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// As the server takes it.
        #[arg(long, value_name = "FILE", hide = true, conflicts_with = "file")]
        config: Option<PathBuf>,
    },
    /// Write the manual page, and completions of shells, into a folder
    #[command(hide = true)]
    Generate {
        /// The folder.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

impl Cli {
    /// The command, if it is not to serve. Its file is that of [`Self::settings`] from now on.
    pub fn take_command(&mut self) -> Option<Command> {
        let command = self.command.take()?;
        if let Command::CheckConfig { file, config } = &command
            && let Some(file) = file.as_ref().or(config.as_ref())
        {
            self.config = Some(file.clone());
        }
        Some(command)
    }

    /// Where the settings come from, for the log.
    #[must_use]
    pub fn source(&self) -> String {
        match &self.config {
            Some(path) => format!("{} and flags", path.display()),
            None => "defaults and flags".to_owned(),
        }
    }

    /// File and flags together.
    ///
    /// # Errors
    /// A text that says which key or flag is wrong and what it may be.
    pub fn settings(self) -> Result<Settings, String> {
        let from_file = match &self.config {
            Some(path) => file::read(path)?,
            None => FileConfig::default(),
        };
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        let flags = FileConfig {
            listen: self.listen,
            memory: self.memory,
            value_max: self.value_max,
            tables: some(self.tables),
            evict: self.evict.then_some(true),
            fabrics: some(self.fabric),
            rdma: self.rdma,
            rdma_device: self.rdma_device,
            rdma_mtu: self.rdma_mtu,
            cas_over: self.cas_over,
            token_file: self.token_file,
            admin: self.admin,
            admin_token_file: self.admin_token_file,
            slow_request_ms: self.slow_request_ms,
            max_sessions: self.max_sessions,
            huge_pages: self.huge_pages,
            cleaning: self.cleaning,
            log: self.log,
            log_format: self.log_format,
            ..FileConfig::default()
        };
        from_file.overridden_by(flags).settings()
    }
}
