//! What can be typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, value_parser};
use onesided::{FabricChoice, Rdma, RdmaDevice, UpdateMode};

const EXAMPLES: &str = "\
Examples:
  onesided-bench run --workload b                        the server at its default address, 10 s
  onesided-bench run --workload a --target map:// --target redis+unix:///run/redis.sock
  onesided-bench run --workload c --embedded --fabric shm,tcp --clients 4 --plot c.svg
  onesided-bench run --workload my.properties -p recordcount=1000000 --rate 50000 --duration 60s
  onesided-bench run --workload c --json | jq .operations.read.p99_us
  onesided-bench replay trace.csv --target memcached://127.0.0.1

It writes keys that begin with \"user\"; beside other data use a table of its own (--table).";

/// YCSB's workloads against onesided, Redis, memcached, LMDB and maps, in one run.
#[derive(Parser, Debug)]
#[command(name = "onesided-bench", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Store the records, then do what the workload says, and measure that.
    Run(RunArgs),
    /// Store the records, and measure that.
    Load(RunArgs),
    /// Do what a trace says: a CSV of timestamp, key, key size, value size, client, operation, ttl.
    Replay(ReplayArgs),
    /// Write manual pages, and completions of shells, into a folder.
    #[command(hide = true)]
    Generate {
        /// The folder.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// Of `run` and `load`.
#[derive(ClapArgs, Debug)]
pub struct RunArgs {
    /// a to f, or a property file of YCSB. a to f have 100,000 records and run for 10 s unless told
    /// otherwise. [default: b]
    #[arg(long, short = 'w', value_name = "a|b|c|d|e|f|FILE")]
    pub workload: Option<String>,
    /// A property file of YCSB more; what it says takes the place of what was said before.
    #[arg(short = 'P', value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A property; takes the place of what files say.
    #[arg(short = 'p', value_name = "KEY=VALUE")]
    pub properties: Vec<String>,
    /// Take no offence at properties that nobody knows.
    #[arg(long)]
    pub allow_unknown: bool,
    /// Records; the same as -p recordcount=N.
    #[arg(long, visible_alias = "keys", value_parser = value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// One value of so many bytes in place of fields: N, uniform:MIN-MAX or zipfian:MIN-MAX.
    #[arg(long, visible_alias = "value-bytes", value_name = "D")]
    pub value_size: Option<String>,
    /// Check every value that is read against what may have been written. Each record has one
    /// thread that writes it then, and the generator takes more time.
    #[arg(long)]
    pub verify: bool,
    /// Do not store the records first: they are there from an earlier run.
    #[arg(long)]
    pub no_fill: bool,
    /// How it is done.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What it is done to.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Where it is told.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Of `replay`.
#[derive(ClapArgs, Debug)]
pub struct ReplayArgs {
    /// The trace.
    pub trace: PathBuf,
    /// Do operations when the trace did them, so many times as fast: latency counts from then.
    /// Without this, and without --rate, one follows the other.
    #[arg(long, value_name = "TIMES", conflicts_with = "rate", value_parser = positive)]
    pub speed: Option<f64>,
    /// How it is done.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What it is done to.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Where it is told.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// How operations are done.
#[derive(ClapArgs, Debug)]
pub struct LoadArgs {
    /// Operations of all threads; the same as -p operationcount=N.
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// How long: 10, 10s, 500ms or 5m; the same as -p maxexecutiontime=S.
    #[arg(long, visible_alias = "seconds", value_parser = duration, conflicts_with = "operations")]
    pub duration: Option<Duration>,
    /// Begin so many operations in a second, whether those before are over or not (open loop):
    /// latency counts from when an operation should have begun. The same as -p target=N.
    #[arg(long, value_name = "OPS", value_parser = positive)]
    pub rate: Option<f64>,
    /// Threads; the same as -p threadcount=N. [default: as many as clients]
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Connections, or clients of onesided. Threads take turns with more than one, and share them
    /// if there are fewer, which only onesided can. [default: as many as threads]
    #[arg(long, value_parser = value_parser!(u32).range(1..=65_536))]
    pub clients: Option<u32>,
    /// Operations of a thread that are outstanding at once. Each takes as long as all of them.
    #[arg(
        long, visible_alias = "batch", default_value_t = 1,
        value_parser = value_parser!(u32).range(1..=65_536)
    )]
    pub pipeline: u32,
    /// Draws keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What is measured.
#[derive(ClapArgs, Debug)]
pub struct TargetArgs {
    /// What to measure, one after the other: onesided://HOST, redis://HOST, redis+unix:///PATH,
    /// memcached://HOST, memcached+unix:///PATH, map://, map://?kind=dashmap, lmdb://PATH, null://.
    /// [default: onesided://127.0.0.1:7411]
    #[arg(long, visible_alias = "server", env = "ONESIDED_SERVER", value_name = "URL")]
    pub target: Vec<String>,
    /// Measure an onesided-server that is started for this, before others. It has to lie beside
    /// this program, or in the path.
    #[arg(long)]
    pub embedded: bool,
    /// Fabric of onesided: auto, shm, verbs or tcp; more than one, with commas between, are
    /// measured one after the other. Without this the URL decides.
    #[arg(long, value_delimiter = ',')]
    pub fabric: Vec<FabricChoice>,
    /// RDMA: require, prefer or never. Without this the URL decides, else it is prefer.
    #[arg(long)]
    pub rdma: Option<Rdma>,
    /// RDMA device of this host: NAME[:PORT[:GID_INDEX]] or an address.
    #[arg(long, default_value = "auto")]
    pub rdma_device: RdmaDevice,
    /// Table of onesided; made if it is not there. [default: default, for scans ordered, and with
    /// --update cas: cas]
    #[arg(long)]
    pub table: Option<String>,
    /// How entries are updated in a table of onesided that is made: rpc, or cas, by the clients
    /// themselves.
    #[arg(long, default_value = "rpc", value_parser = update_mode)]
    pub update: UpdateMode,
    /// GET into registered buffers and PUT from them, as is best for large values over RDMA.
    #[arg(long)]
    pub registered: bool,
    /// Bound of the bucket cache in bytes; 0 = none, so that every GET reads its bucket first.
    #[arg(long)]
    pub cache_bytes: Option<usize>,
    /// Read the whole index ahead instead of bucket by bucket.
    #[arg(long)]
    pub prefill: bool,
    /// Process of a memcached whose own word is of no use (a container), for its memory.
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Remove ALL records of each target first, whoever wrote them.
    #[arg(long)]
    pub clear: bool,
}

/// Where it is told.
#[derive(ClapArgs, Debug)]
pub struct ReportArgs {
    /// Write JSON to a file. Without a name, or with -: to stdout, in place of text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Draw latency by percentile, and throughput over time.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let scale = match &text[end..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("write seconds, or 500ms, 10s, 5m, 1h".to_owned()),
    };
    let seconds = positive(&text[..end])? * scale;
    if seconds > 86_400.0 {
        return Err("a day at most".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "write a number above 0".to_owned())
}

fn update_mode(name: &str) -> Result<UpdateMode, String> {
    UpdateMode::from_name(name).ok_or_else(|| format!("`{name}`: there are rpc and cas"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        let all = ["10", "1.5s", "500ms", "2m"].map(duration);
        let expected = [10_000, 1500, 500, 120_000].map(|ms| Ok(Duration::from_millis(ms)));
        assert_eq!(all, expected);
        for wrong in ["", "0", "-1", "s", "10x", "2000h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
