//! What can be typed.

use clap::Parser;
use onesided::{FabricChoice, Rdma, RdmaDevice};

const EXAMPLES: &str = "\
Examples:
  onesided-bench                                 95 % GET, 5 % PUT, 1 million keys, 10 s
  onesided-bench --get-percent 100 --threads 2   read only
  onesided-bench --fabric tcp --value-bytes 4096
  onesided-bench --json | jq .get.p99_us

The keys that it writes begin with \"bench-\"; beside other data use a table of its own (--table).";

/// Generate load on a onesided server and say what came of it.
#[derive(Parser, Debug)]
#[command(name = "onesided-bench", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Args {
    /// Where the server is.
    #[arg(
        long,
        env = "ONESIDED_SERVER",
        value_name = "URL",
        default_value = "onesided://127.0.0.1:7411"
    )]
    pub(crate) server: String,
    /// Fabric: auto, shm, verbs or tcp. Without this the URL decides.
    #[arg(long)]
    pub(crate) fabric: Option<FabricChoice>,
    /// RDMA: require, prefer or never. Without this the URL decides, else it is prefer.
    #[arg(long)]
    pub(crate) rdma: Option<Rdma>,
    /// RDMA device of this host: NAME[:PORT[:GID_INDEX]] or an address.
    #[arg(long, default_value = "auto")]
    pub(crate) rdma_device: RdmaDevice,
    /// The table.
    #[arg(long, default_value = "default")]
    pub(crate) table: String,
    /// Threads, all of one client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// How long to measure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// How many keys.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Length of a value.
    #[arg(long, default_value_t = 100)]
    pub(crate) value_bytes: u32,
    /// Of 100 operations, how many are GETs; the others are PUTs.
    #[arg(long, default_value_t = 95, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) get_percent: u32,
    /// Draws the keys.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Do not store all keys first: they are there from an earlier run.
    #[arg(long)]
    pub(crate) no_fill: bool,
    /// GETs of one get_many: so many READs are outstanding at once. 1 = each GET alone.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch: u32,
    /// GET into a registered buffer and PUT from one, as is best for large values over RDMA.
    #[arg(long, conflicts_with = "batch")]
    pub(crate) registered: bool,
    /// Bound of the bucket cache in bytes; 0 = none, so that every GET reads its bucket first.
    #[arg(long)]
    pub(crate) cache_bytes: Option<usize>,
    /// Read the whole index ahead instead of bucket by bucket.
    #[arg(long)]
    pub(crate) prefill: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
