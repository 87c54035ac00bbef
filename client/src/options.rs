//! What can be chosen: per client and per PUT.

use std::str::FromStr;
use std::time::Duration;

use onesided_fabric::Rdma;
use onesided_fabric::verbs::{Options as RdmaDevice, PathMtu};
use onesided_protocol::limits::TOKEN_MAX_BYTES;
use onesided_protocol::rpc::{Expect, Ttl};

use crate::client::Client;
use crate::error::Error;
use crate::said::Said;
use crate::url::Url;

/// Which fabric to use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FabricChoice {
    /// The best that both sides have: shm on the same host, verbs, else tcp. A fallback is logged.
    #[default]
    Auto,
    /// Shared memory, or an error.
    Shm,
    /// RDMA, or an error.
    Verbs,
    /// A byte stream, or an error. Every GET is then an RPC.
    Tcp,
}

impl FromStr for FabricChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "shm" => Ok(Self::Shm),
            "verbs" => Ok(Self::Verbs),
            "tcp" => Ok(Self::Tcp),
            _ => Err(format!("`{name}` is no fabric; there are auto, shm, verbs, tcp")),
        }
    }
}

/// Options of one PUT: `PutOptions::default().ttl(Ttl::Seconds(60)).expect(Expect::Absent)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PutOptions {
    /// How long the value lives.
    pub ttl: Ttl,
    /// The user's own flags, returned with the value.
    pub user_flags: u32,
    /// Condition; otherwise [`Error::Unexpected`].
    pub expect: Expect,
}

impl PutOptions {
    /// Sets how long the value lives.
    #[must_use]
    pub fn ttl(mut self, ttl: Ttl) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the user's own flags.
    #[must_use]
    pub fn user_flags(mut self, user_flags: u32) -> Self {
        self.user_flags = user_flags;
        self
    }

    /// Sets the condition.
    #[must_use]
    pub fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }
}

/// Lending a buffer costs the server a round trip, copying it time by its length;
/// docs/BENCHMARKS.md says what is known of where they meet.
const ZERO_COPY_BYTES: usize = 32 << 10;

/// Options of a client, as they are used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which fabric.
    pub fabric: FabricChoice,
    /// Whether verbs is a must, welcome or out of the question.
    pub rdma: Rdma,
    /// Which RDMA device, port, GID or address of this host.
    pub rdma_device: RdmaDevice,
    /// Longest packets of an RDMA connection.
    pub rdma_mtu: PathMtu,
    /// Authenticates; empty = none.
    pub token: String,
    /// Bound of one attempt to connect, hello and fabric included.
    pub connect_timeout: Duration,
    /// Bound of one operation, waiting for a reconnection included.
    pub operation_timeout: Duration,
    /// A server that is silent for this long is lost.
    pub silence_timeout: Duration,
    /// Whether to connect again after a loss.
    pub reconnect: bool,
    /// How long to try to; `None` = as long as the client lives.
    pub reconnect_timeout: Option<Duration>,
    /// A connection that nobody has used for this long is closed until somebody does; `None` =
    /// never. Not over shared memory.
    pub idle_timeout: Option<Duration>,
    /// Over tcp, or after a fallback: when to try a better fabric, for the first time; the pauses
    /// grow to 32 times this. `None` = never while the connection lasts.
    pub better_fabric_retry: Option<Duration>,
    /// How long a call polls before it sleeps, if the server is on this host; four times as long
    /// over verbs.
    pub spin: Duration,
    /// Bound of the bucket cache, over all tables.
    pub cache_bytes: usize,
    /// Fill the bucket cache when a table is opened.
    pub prefill: bool,
    /// Tables that evict are told of one GET in so many; 0 = of none.
    pub access_sample_every: u32,
    /// Whether the server is told how much was read and updated, and GETs are timed for it.
    pub report_reads: bool,
    /// Values from this length on are stored from a registered buffer without a copy.
    pub zero_copy_bytes: usize,
    /// Registered buffers that nobody has are kept up to so many bytes ...
    pub registered_bytes: usize,
    /// ... and up to so many of them.
    pub registered_buffers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fabric: FabricChoice::Auto,
            rdma: Rdma::Prefer,
            rdma_device: RdmaDevice::default(),
            rdma_mtu: PathMtu::AUTO,
            token: String::new(),
            connect_timeout: Duration::from_secs(3),
            operation_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(4),
            reconnect: true,
            reconnect_timeout: None,
            idle_timeout: Some(Duration::from_secs(300)),
            better_fabric_retry: Some(Duration::from_secs(10)),
            spin: Duration::from_micros(50),
            cache_bytes: 256 << 20,
            prefill: false,
            access_sample_every: 8,
            report_reads: true,
            zero_copy_bytes: ZERO_COPY_BYTES,
            registered_bytes: 256 << 20,
            registered_buffers: 64,
        }
    }
}

/// Makes a [`Client`]: `Client::builder().url("onesided://127.0.0.1:7411").connect().await`.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    url: String,
    /// What a URL can say too.
    said: Said,
    options: Options,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let url = "onesided://127.0.0.1:7411".to_owned();
        Self { url, said: Said::default(), options: Options::default() }
    }
}

impl ClientBuilder {
    /// Where the server is: `onesided://HOST[:PORT]`, and behind it options as
    /// `?NAME=VALUE&NAME=VALUE`: `fabric`, `rdma`, `rdma_mtu`, `zero_copy_bytes`,
    /// `idle_timeout_ms`, `better_fabric_retry_ms`, each as the method here of that name, which
    /// takes precedence.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// Which fabric to use \[auto\].
    #[must_use]
    pub fn fabric(mut self, fabric: FabricChoice) -> Self {
        self.said.fabric = Some(fabric);
        self
    }

    /// Whether RDMA is a must, welcome or out of the question \[prefer\].
    ///
    /// - [`Rdma::Prefer`]: shared memory on the server's own host, else verbs where both sides
    ///   have it, else tcp. A fallback is logged once, with its reason, and is in
    ///   [`crate::Stats::fallback`].
    /// - [`Rdma::Require`]: verbs or an error that says why not; on the server's own host too.
    /// - [`Rdma::Never`]: as `Prefer`, without verbs: no library is opened, no device touched.
    #[must_use]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.said.rdma = Some(rdma);
        self
    }

    /// Which RDMA device of this host to use, such as `"mlx5_0:1:3".parse()?`: name, port and GID
    /// index, or an address; what is not said is chosen \[all of it\]. One that is asked for and
    /// missing is an error, unless RDMA or its fabric are ruled out.
    #[must_use]
    pub fn rdma_device(mut self, device: RdmaDevice) -> Self {
        self.options.rdma_device = device;
        self
    }

    /// Longest packets of an RDMA connection, such as `"1024".parse()?` \[what the path allows\].
    /// The server's `rdma_mtu` counts too, the smaller one of both. More than the port's active MTU
    /// is an error.
    #[must_use]
    pub fn rdma_mtu(mut self, mtu: PathMtu) -> Self {
        self.said.rdma_mtu = Some(mtu);
        self
    }

    /// The token that the server expects.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.options.token = token.into();
        self
    }

    /// Bound of one attempt to connect \[3,000\].
    #[must_use]
    pub fn connect_timeout_ms(mut self, ms: u64) -> Self {
        self.options.connect_timeout = at_least_1_ms(ms);
        self
    }

    /// Bound of one operation, waiting for a reconnection included \[5,000\].
    #[must_use]
    pub fn operation_timeout_ms(mut self, ms: u64) -> Self {
        self.options.operation_timeout = at_least_1_ms(ms);
        self
    }

    /// A server that does not answer heartbeats for this long is lost \[4,000\].
    #[must_use]
    pub fn silence_timeout_ms(mut self, ms: u64) -> Self {
        self.options.silence_timeout = at_least_1_ms(ms);
        self
    }

    /// Whether to connect again after a loss \[true\].
    #[must_use]
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.options.reconnect = reconnect;
        self
    }

    /// How long to try to connect again; 0 = as long as the client lives \[0\].
    #[must_use]
    pub fn reconnect_timeout_ms(mut self, ms: u64) -> Self {
        self.options.reconnect_timeout = (ms > 0).then(|| Duration::from_millis(ms));
        self
    }

    /// A connection over verbs or tcp that nobody has used for this long is closed, which frees a
    /// queue pair or socket on both sides; the session goes on, and the next operation connects
    /// again, which takes it some ms, and finds the bucket cache empty. 0 = never \[300,000\].
    #[must_use]
    pub fn idle_timeout_ms(mut self, ms: u64) -> Self {
        self.said.idle_timeout_ms = Some(ms);
        self
    }

    /// Over tcp, or after a fallback to another fabric: when to try a better one, for the first
    /// time; the pauses double up to 32 times this. Not if the fabric was chosen by name. 0 = not
    /// before the connection ends \[10,000\].
    #[must_use]
    pub fn better_fabric_retry_ms(mut self, ms: u64) -> Self {
        self.said.better_fabric_retry_ms = Some(ms);
        self
    }

    /// How long a call polls before it sleeps, if the server is on this host (shm, tcp); four times
    /// as long over verbs, wherever the server is \[50\].
    #[must_use]
    pub fn spin_us(mut self, us: u64) -> Self {
        self.options.spin = Duration::from_micros(us.min(1_000_000));
        self
    }

    /// Bound of the bucket cache, over all tables \[256 MiB\].
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.options.cache_bytes = bytes;
        self
    }

    /// Fill the bucket cache when a table is opened \[false\].
    #[must_use]
    pub fn prefill(mut self, prefill: bool) -> Self {
        self.options.prefill = prefill;
        self
    }

    /// Tables that evict are told of one GET in so many, so that they keep what is read: the server
    /// does not see one-sided reads; 0 = of none \[8\].
    #[must_use]
    pub fn access_sample_every(mut self, gets: u32) -> Self {
        self.options.access_sample_every = gets;
        self
    }

    /// Whether heartbeats tell the server how much this client read and updated one-sidedly, and
    /// one GET of 256 is timed for that \[true\]. Without, the server's metrics have nothing of
    /// that, and [`crate::Stats`] has no latencies.
    #[must_use]
    pub fn report_reads(mut self, report: bool) -> Self {
        self.options.report_reads = report;
        self
    }

    /// From which length on [`crate::Table::put_from`] lets the server fetch the value from the
    /// buffer instead of copying it into a message or into staging memory \[32 KiB\].
    #[must_use]
    pub fn zero_copy_bytes(mut self, bytes: usize) -> Self {
        self.said.zero_copy_bytes = Some(bytes);
        self
    }

    /// How much of registered buffers stays registered while nobody has them: bytes and number
    /// \[256 MiB, 64\]. The one that was used longest ago goes first. 0 = each is registered anew.
    #[must_use]
    pub fn registered_kept(mut self, bytes: usize, buffers: usize) -> Self {
        self.options.registered_bytes = bytes;
        self.options.registered_buffers = buffers;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// When the URL is bad, the server cannot be reached or refuses, or the fabric that was asked
    /// for cannot be had.
    pub async fn connect(self) -> Result<Client, Error> {
        let (url, options) = self.into_parts()?;
        // Connecting blocks: keep it off the runtime's threads, where there is a runtime.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Client::connect_now(&url, options);
        };
        let connected = runtime.spawn_blocking(move || Client::connect_now(&url, options)).await;
        connected.map_err(|error| Error::System {
            what: "a thread to connect on",
            source: std::io::Error::other(error),
        })?
    }

    pub(crate) fn into_parts(self) -> Result<(Url, Options), Error> {
        let url = Url::parse(&self.url)?;
        let mut options = self.options;
        self.said.or(url.said).apply(&mut options);
        if options.token.len() > TOKEN_MAX_BYTES {
            let len = options.token.len();
            let text = format!("a token of {len} bytes; at most {TOKEN_MAX_BYTES}");
            return Err(Error::TooLarge(text));
        }
        let contradiction = |fabric| {
            let reason = format!("rdma={} forbids it", options.rdma);
            Err(Error::Fabric { fabric, reason })
        };
        match (options.fabric, options.rdma) {
            (FabricChoice::Verbs, Rdma::Never) => contradiction("verbs"),
            (FabricChoice::Shm, Rdma::Require) => contradiction("shm"),
            (FabricChoice::Tcp, Rdma::Require) => contradiction("tcp"),
            _ => Ok((url, options)),
        }
    }
}

fn at_least_1_ms(ms: u64) -> Duration {
    Duration::from_millis(ms.max(1))
}
