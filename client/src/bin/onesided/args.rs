//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use onesided::{PathMtu, Rdma, RdmaDevice};

/// Examples that `--help` ends with; a test runs every one of them.
const EXAMPLES: &str = "\
Examples (a server on this machine: `cargo run --release --bin onesided-server`):
  onesided put greeting 'hello world'
  onesided get greeting
  printf 'bytes from a pipe' | onesided put blob
  onesided put session-7 alice --ttl 3600 --if-absent
  onesided incr visits
  onesided --table counters incr requests 5
  onesided load ./photos --verify
  onesided dump ./copy
  onesided tables create cache:ttl=60,quota=256MiB
  onesided --table cache put key value
  onesided tables create people:ordered
  onesided --table people put user:7 alice
  onesided --table people scan --prefix user: --limit 10
  onesided --json stats
  onesided ping
  onesided --rdma never ping
  onesided doctor

Exit codes: 0 = done; 1 = the key is absent, or the condition was not met; 2 = it failed, and one
line on stderr says why and what to do.";

const INCR_HELP: &str = "\
In the table `counters` the key becomes a counter: a cell of 8 bytes that programs add to without
the server's CPU (-2^61 to 2^61 - 1). A key that was put there holds an ordinary value, and is
refused: del it first. In all other tables incr adds to a value that is a decimal number of 64
bits.";

const LOAD_HELP: &str = "\
In the table `counters` files that hold a decimal number and nothing else become counters, so that
what dump wrote comes back as it was.";

/// The table in which `incr` and `load` make counters.
pub(crate) const COUNTERS_TABLE: &str = "counters";

/// Talk to a onesided server: store, read, load and dump keys, look after tables.
#[derive(Parser, Debug)]
#[command(name = "onesided", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    /// Where the server is: onesided://HOST[:PORT][?NAME=VALUE&...], or just HOST[:PORT]. NAME is
    /// fabric, rdma, rdma_mtu, zero_copy_bytes, idle_timeout_ms or better_fabric_retry_ms; the
    /// options here take precedence [default: onesided://127.0.0.1:7411]
    #[arg(long, global = true, env = "ONESIDED_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,

    /// How bytes reach the server. `auto` takes shared memory on the server's own host, an RDMA
    /// device where both have one, else tcp; the others fail when they cannot be had.
    #[arg(long, global = true, value_name = "FABRIC", default_value = "auto")]
    pub(crate) fabric: Fabric,

    /// RDMA: `require` it (on this host too) or fail, `prefer` it to tcp, `never` touch it. Without
    /// this the URL decides (?rdma=...), else it is `prefer`.
    #[arg(long, global = true, value_name = "POLICY")]
    pub(crate) rdma: Option<Rdma>,

    /// RDMA device of this host: NAME[:PORT[:GID_INDEX]], such as mlx5_0:1:3, or an address.
    /// `auto` takes the best that reaches the server. One that is named and missing is an error.
    #[arg(long, global = true, value_name = "DEVICE", default_value = "auto")]
    pub(crate) rdma_device: RdmaDevice,

    /// Longest packets of an RDMA connection, in bytes: 256, 512, 1024, 2048 or 4096. `auto` takes
    /// what the path allows. Without this the URL decides (?rdma_mtu=...), else it is `auto`.
    #[arg(long, global = true, value_name = "BYTES")]
    pub(crate) rdma_mtu: Option<PathMtu>,

    /// Close a connection over verbs or tcp that was not used for so many milliseconds; 0 = never
    /// [default: the URL's, else 300000]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) idle_timeout_ms: Option<u64>,

    /// After a fallback, try a better fabric so many milliseconds later, and then ever more rarely;
    /// 0 = never [default: the URL's, else 10000]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) better_fabric_retry_ms: Option<u64>,

    /// The table that put, get, del, incr, scan, load and dump work on.
    #[arg(long, global = true, value_name = "NAME", default_value = "default")]
    pub(crate) table: String,

    /// File that holds the server's token; needed only if the server was started with one.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Longest wait for one operation, in milliseconds.
    #[arg(long, global = true, value_name = "N", default_value_t = 5_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout_ms: u32,

    /// Print results as JSON on stdout, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Choices of `--fabric`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fabric {
    /// The best that both sides have.
    Auto,
    /// Shared memory; the server is on this host.
    Shm,
    /// An RDMA device.
    Verbs,
    /// A TCP connection; every GET asks the server.
    Tcp,
}

/// Subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Store a value; prints its version.
    Put(PutArgs),
    /// Print a value, byte for byte; exit 1 and nothing on stdout when there is none.
    Get(GetArgs),
    /// Remove a key; exit 1 when there was none.
    Del(DelArgs),
    /// Add to a number (absent = 0); prints what it is now.
    #[command(after_help = INCR_HELP)]
    Incr(IncrArgs),
    /// Store every file below a directory; the key is its relative path.
    #[command(after_help = LOAD_HELP)]
    Load(LoadArgs),
    /// Write every key of the table to a file below a directory: the reverse of load.
    Dump(DumpArgs),
    /// Print keys and values of an ordered table, in the order of the keys' bytes.
    Scan(ScanArgs),
    /// List, create, alter and drop tables; without a subcommand, list.
    Tables(TablesArgs),
    /// Counters of the server, and of this client.
    Stats,
    /// The server's figures in this terminal, live; q quits.
    Top(TopArgs),
    /// Write manual pages, and completions of shells, into a folder.
    #[command(hide = true)]
    Generate {
        /// The folder.
        dir: PathBuf,
    },
    /// Round trips to the server's CPU and back: shortest, median, longest.
    Ping(PingArgs),
    /// What this host has and lacks for RDMA, and, with --server, each fabric to that server: what
    /// works, what does not, what to do. Exit 2 only if something fails that was asked for: with
    /// --rdma require, RDMA that does not work is an error, not a warning. --rdma-device is heeded.
    Doctor(DoctorArgs),
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How many round trips and reads over each fabric.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) count: u32,
}

/// Arguments of `put`.
#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// The key.
    pub(crate) key: OsString,
    /// The value; `-` or nothing reads it from stdin.
    #[arg(allow_negative_numbers = true, conflicts_with = "file")]
    pub(crate) value: Option<OsString>,
    /// Take the value from this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Seconds it lives; 0 = for ever. Without this the table decides.
    #[arg(long, value_name = "S")]
    pub(crate) ttl: Option<u32>,
    /// A number of your own that is kept beside the value.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) flags: u32,
    #[command(flatten)]
    pub(crate) condition: Condition,
}

/// When a put is done; otherwise exit 1.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct Condition {
    /// Only if the key has no value yet.
    #[arg(long)]
    pub(crate) if_absent: bool,
    /// Only if the key has a value.
    #[arg(long)]
    pub(crate) if_present: bool,
    /// Only if the value's version is this one (`get --meta` and `put` print it).
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<u64>,
}

/// Arguments of `get`.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// The key.
    pub(crate) key: OsString,
    /// Print version, flags and expiry to stderr.
    #[arg(long)]
    pub(crate) meta: bool,
}

/// Arguments of `del`.
#[derive(Args, Debug)]
pub(crate) struct DelArgs {
    /// The key.
    pub(crate) key: OsString,
    /// Only if the value's version is this one.
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<u64>,
}

/// Arguments of `incr`.
#[derive(Args, Debug)]
pub(crate) struct IncrArgs {
    /// The key.
    pub(crate) key: OsString,
    /// How much; may be negative.
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) by: i64,
}

/// Arguments of `scan`.
#[derive(Args, Debug)]
pub(crate) struct ScanArgs {
    /// The key to begin with; without it the first one.
    pub(crate) from: Option<OsString>,
    /// Only keys that begin so.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<OsString>,
    /// At most so many; 0 = all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    /// Keys alone.
    #[arg(long)]
    pub(crate) keys: bool,
}

/// What `load` and `dump` have in common.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// How many are in flight at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    /// End at the first failure instead of naming it and going on.
    #[arg(long)]
    pub(crate) stop_on_error: bool,
}

/// Arguments of `load`.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// Symbolic links below it are not followed.
    pub(crate) dir: PathBuf,
    /// Read every value back afterwards and compare.
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Arguments of `dump`.
#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// Made if it does not exist. Keys that would lead out of it are refused.
    pub(crate) dir: PathBuf,
    /// Dump the keys of this file, one a line (`-`: of stdin), instead of walking the index.
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Arguments of `ping`.
#[derive(Args, Debug)]
pub(crate) struct PingArgs {
    /// How many round trips.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// How often it looks, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=60_000))]
    pub(crate) every_ms: u32,
}

const SPEC_HELP: &str = "\
Options of a table, after a colon, separated by commas:
  ttl=N        seconds a value lives unless its put says otherwise; 0 = for ever
  quota=SIZE   bytes that entries and index may take (64MiB, 1GiB, ...); 0 = no limit but
               the server's memory
  floor=SIZE   bytes that other tables cannot take from it, and that eviction leaves it
  evict        entries may go when memory, or the quota, is full: a cache
  noeviction   they may not: what would need more memory is refused
  update=MODE  rpc (default): the server changes what is there when it is asked to; cas: clients do
               so themselves, by RDMA or in shared memory; not with ordered or evict. Such tables
               take memory of their own, of which little is left where others took all of it
  ordered      its keys are kept in order too, for scans; only when it is made";

/// `tables`.
#[derive(Args, Debug)]
pub(crate) struct TablesArgs {
    /// With the list: where the memory of each is, what cleaning, expiry and eviction have done.
    #[arg(long)]
    pub(crate) detail: bool,
    #[command(subcommand)]
    pub(crate) command: Option<TablesCommand>,
}

/// Subcommands of `tables`.
#[derive(Subcommand, Debug)]
pub(crate) enum TablesCommand {
    /// All tables with their size and options.
    List {
        /// Where the memory of each is, what cleaning, expiry and eviction have done.
        #[arg(long)]
        detail: bool,
    },
    /// Make a table.
    #[command(after_help = SPEC_HELP)]
    Create {
        /// NAME[:option=value,...]
        spec: String,
    },
    /// Change options of a table; those not named stay.
    #[command(after_help = SPEC_HELP)]
    Alter {
        /// NAME:option=value,...
        spec: String,
    },
    /// Remove a table and everything in it; asks first.
    Drop {
        /// Its name.
        name: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}
