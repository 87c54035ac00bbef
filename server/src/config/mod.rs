//! What the server is told: [`ServerConfig`] for programs, [`mod@file`] for `config/server.toml`.

use std::fmt;
use std::net::SocketAddr;

use onesided_fabric::{Rdma, verbs};
use onesided_protocol::control::FabricName;
use onesided_protocol::limits::{
    DEFAULT_PORT, MUTATIONS_IN_FLIGHT_MAX, REGION_BYTES, SEGMENT_BYTES, TOKEN_MAX_BYTES,
    VALUE_MAX_BYTES, VALUE_MAX_DEFAULT_BYTES,
};
use serde::{Deserialize, Serialize};

use crate::engine;
use crate::tenant::engine_config;

pub mod file;
mod suggest;
mod table;
mod tenant;

pub use crate::engine::Cleaning;
pub use onesided_protocol::size;
pub use table::TableSpec;
pub use tenant::{DEFAULT_TENANT, FileTenant, TENANTS_MAX, TenantSpec};

/// Where the daemon's admin port is unless it is told otherwise.
pub const ADMIN_DEFAULT: &str = "127.0.0.1:7412";

/// The table that a daemon has besides `default`, unless it is told otherwise.
pub const COUNTERS_TABLE: &str = "counters";

/// Everything that a [`crate::Server`] is started with. `Default` is for a server within a program:
/// the daemon has an admin port and the table `counters`, too.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerConfig {
    /// `HOST:PORT` of the control connections and of the tcp fabric; port 0 lets the system
    /// choose.
    pub listen: String,
    /// Bytes for entries and indexes of all tables.
    pub memory_bytes: usize,
    /// Longest value in bytes.
    pub value_max_bytes: usize,
    /// Tables to make at start.
    pub tables: Vec<TableSpec>,
    /// Ways to be reached, best first.
    pub fabrics: Vec<FabricName>,
    /// Whether verbs, where `fabrics` names it, must start, may, or is left alone.
    pub rdma: Rdma,
    /// Which RDMA device, port, GID or address; what is not said is chosen.
    pub rdma_device: verbs::Options,
    /// Longest packets of RDMA connections.
    pub rdma_mtu: verbs::PathMtu,
    /// Over which fabric clients change counters and entries of tables of mode `cas` themselves.
    pub cas_over: CasOver,
    /// `HOST:PORT` of the admin port; `None` = none, which is the default for programs that embed a
    /// server. The daemon's is [`ADMIN_DEFAULT`], which may be taken by another server.
    pub admin: Option<String>,
    /// What who asks at the admin port must know; required where other hosts can reach it.
    pub admin_token: Option<Token>,
    /// Whether the process is the server's own, as the daemon's is: then its CPU time, memory and
    /// descriptors are shown. Else they are those of the program that embeds the server, and only
    /// the CPU time of the server's threads is.
    pub own_process: bool,
    /// Requests that take longer than this to be served are logged; 0 = none.
    pub slow_request_ms: u64,
    /// What a client of the default tenant must know; `None` lets everybody in.
    pub token: Option<Token>,
    /// Tenants besides the default one; that one's limits, if it is named here.
    pub tenants: Vec<TenantSpec>,
    /// Control connections at once; tcp data connections are bounded by the same number.
    pub max_connections: usize,
    /// Connections at once that have not said hello yet.
    pub max_handshakes: usize,
    /// Sessions at once.
    pub max_sessions: usize,
    /// A connection that has not said hello after this time is closed.
    pub handshake_timeout_ms: u64,
    /// A session without a heartbeat for this long ends.
    pub session_lease_ms: u32,
    /// A ticket that nobody has used for this long is void.
    pub ticket_lease_ms: u64,
    /// A session that does not acknowledge for this long that memory was retired ends, though it
    /// sends heartbeats.
    pub acknowledge_ms: u64,
    /// Requests that one session may have outstanding.
    pub credits: u32,
    /// How long a poller looks for a near client's next request before it sleeps.
    pub spin_us: u64,
    /// Bytes of values that are READ from clients' memory at once, over all clients, on a fabric
    /// where that takes a round trip; 0 = one request's at a time.
    pub rendezvous_bytes: usize,
    /// Whether shm staging memory is loaded at once, as it can be, or by READs with completions as
    /// over a network; for tests.
    pub staging_loads: bool,
    /// Whether memory is put into huge pages as it comes into use.
    pub huge_pages: HugePages,
    /// When entries are moved together, so that memory becomes free.
    pub cleaning: Cleaning,
    /// Regions that were too many for so many seconds go back to the system; 0 = never.
    pub shrink_after_s: u32,
    /// Length of a region; for tests.
    pub region_bytes: usize,
    /// What an RDMA device takes as one piece at most, if that is less than the device says; for
    /// tests.
    pub registration_max_bytes: u64,
    /// Longest log segment; for tests.
    pub segment_bytes: usize,
    /// Load at which an index segment splits, in percent; for tests.
    pub split_load_percent: u8,
    /// Where incarnation, secrets and hash seeds are drawn from; `None` = the system's randomness.
    /// For tests.
    pub seed: Option<u64>,
}

/// A fabric over which clients change words of the server's memory: one at a time, since what
/// a device does is not atomic with what processors do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CasOver {
    /// Shared memory if it is among the fabrics, else verbs.
    #[default]
    Auto,
    /// Shared memory.
    Shm,
    /// RDMA.
    Verbs,
}

/// Whether to use huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Where the kernel lets this process; small pages where it does not.
    #[default]
    Auto,
    /// Small pages.
    Off,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: format!("127.0.0.1:{DEFAULT_PORT}"),
            memory_bytes: 1 << 30,
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
            tables: vec![TableSpec::new("default")],
            fabrics: vec![FabricName::Shm, FabricName::Verbs, FabricName::Tcp],
            rdma: Rdma::Prefer,
            rdma_device: verbs::Options::default(),
            rdma_mtu: verbs::PathMtu::AUTO,
            cas_over: CasOver::Auto,
            admin: None,
            admin_token: None,
            own_process: false,
            slow_request_ms: 100,
            token: None,
            tenants: Vec::new(),
            max_connections: 4096,
            max_handshakes: 256,
            max_sessions: 1024,
            handshake_timeout_ms: 5_000,
            session_lease_ms: 10_000,
            ticket_lease_ms: 10_000,
            acknowledge_ms: 10_000,
            credits: 64,
            spin_us: 50,
            rendezvous_bytes: 256 << 20,
            staging_loads: true,
            huge_pages: HugePages::Auto,
            cleaning: Cleaning::Auto,
            shrink_after_s: 60,
            region_bytes: REGION_BYTES,
            registration_max_bytes: u64::MAX,
            segment_bytes: SEGMENT_BYTES,
            split_load_percent: 78,
            seed: None,
        }
    }
}

impl ServerConfig {
    /// Looks for values that cannot be.
    ///
    /// # Errors
    /// A text that names the key, the value and the range.
    pub fn check(&self) -> Result<(), String> {
        range("value_max", self.value_max_bytes, 1, VALUE_MAX_BYTES)?;
        range("max_connections", self.max_connections, 1, 1 << 20)?;
        range("max_handshakes", self.max_handshakes, 1, 1 << 20)?;
        range("max_sessions", self.max_sessions, 1, 65_536)?;
        range("handshake_timeout_ms", self.handshake_timeout_ms as usize, 1, 3_600_000)?;
        range("session_lease_ms", self.session_lease_ms as usize, 20, 3_600_000)?;
        range("ticket_lease_ms", self.ticket_lease_ms as usize, 1, 3_600_000)?;
        range("shrink_after_s", self.shrink_after_s as usize, 0, 1 << 30)?;
        range("acknowledge_ms", self.acknowledge_ms as usize, 1, 3_600_000)?;
        range("credits", self.credits as usize, 1, MUTATIONS_IN_FLIGHT_MAX)?;
        range("spin_us", self.spin_us as usize, 0, 1_000_000)?;
        if self.fabrics.is_empty() {
            return Err("fabrics: name at least one of shm, verbs, tcp".to_owned());
        }
        let names_verbs = self.fabrics.contains(&FabricName::Verbs);
        if self.rdma == Rdma::Require && !names_verbs {
            return Err("rdma is require, but fabrics does not name verbs: add it".to_owned());
        }
        if self.rdma == Rdma::Never && self.fabrics.iter().all(|f| *f == FabricName::Verbs) {
            return Err("rdma is never, but fabrics names nothing else: add shm or tcp".to_owned());
        }
        if self.cas_over != CasOver::Auto && self.updates_over().is_none() {
            let name = if self.cas_over == CasOver::Shm { "shm" } else { "verbs" };
            return Err(format!(
                "cas_over is {name}, which fabrics does not name, or rdma forbids: add it"
            ));
        }
        let (memory, least) = (self.memory_bytes, 2 * self.segment_bytes);
        if memory < least {
            return Err(format!(
                "memory is {memory} bytes; it must be at least {least}, for an index and entries"
            ));
        }
        self.check_admin()?;
        self.check_tenants()?;
        self.check_engines()?;
        self.check_tables()
    }
}

impl ServerConfig {
    /// The fabric over which clients change words themselves, if there is one.
    #[must_use]
    pub fn updates_over(&self) -> Option<FabricName> {
        let has_shm = self.fabrics.contains(&FabricName::Shm);
        let has_verbs = self.fabrics.contains(&FabricName::Verbs) && self.rdma != Rdma::Never;
        match self.cas_over {
            CasOver::Auto | CasOver::Shm if has_shm => Some(FabricName::Shm),
            CasOver::Auto | CasOver::Verbs if has_verbs => Some(FabricName::Verbs),
            _ => None,
        }
    }

    /// Each tenant's engine could be made.
    fn check_engines(&self) -> Result<(), String> {
        for tenant in self.all_tenants() {
            let config = engine_config(self, &tenant, 0);
            engine::check(&config).map_err(|e| format!("tenant `{}`: {e}", tenant.name))?;
        }
        Ok(())
    }

    /// Names are looked up only when the server starts.
    fn check_admin(&self) -> Result<(), String> {
        let Some(listen) = &self.admin else { return Ok(()) };
        if !listen.contains(':') {
            return Err(format!("admin is `{listen}`; it must be HOST:PORT, or off"));
        }
        let addr = listen.parse::<SocketAddr>();
        if addr.is_ok_and(|addr| !addr.ip().is_loopback()) && self.admin_token.is_none() {
            return Err(format!(
                "admin is {listen}, which other hosts can reach, and there is no token: set \
                 admin_token_file, or listen on 127.0.0.1"
            ));
        }
        Ok(())
    }
}

fn range(key: &str, value: usize, min: usize, max: usize) -> Result<(), String> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(format!("{key} is {value}; it must be from {min} to {max}"))
}

/// A shared secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token of 1 to 256 bytes; white space around it does not belong to it.
    ///
    /// # Errors
    /// When it is empty or longer.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.len() {
            0 => Err("the token is empty".to_owned()),
            1..=TOKEN_MAX_BYTES => Ok(Self(text.to_owned())),
            len => Err(format!("the token has {len} bytes; the limit is {TOKEN_MAX_BYTES}")),
        }
    }

    /// Whether `text` is it, in a time that does not tell how much of it is right.
    pub(crate) fn is(&self, text: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), text.as_bytes());
        let mut difference = ours.len() ^ theirs.len();
        for (at, byte) in ours.iter().enumerate() {
            difference |= usize::from(byte ^ theirs.get(at).copied().unwrap_or(0));
        }
        std::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Reads a fabric's name.
///
/// # Errors
/// When there is none of that name.
pub fn parse_fabric(text: &str) -> Result<FabricName, String> {
    match text.trim() {
        "shm" => Ok(FabricName::Shm),
        "tcp" => Ok(FabricName::Tcp),
        "verbs" => Ok(FabricName::Verbs),
        other => {
            let hint = suggest::hint(other, &["shm", "verbs", "tcp"]);
            Err(format!("no fabric `{other}`; {hint}"))
        }
    }
}

/// The name of a fabric, as it is written in the configuration.
#[must_use]
pub fn fabric_name(fabric: FabricName) -> &'static str {
    match fabric {
        FabricName::Shm => "shm",
        FabricName::Verbs => "verbs",
        FabricName::Tcp => "tcp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_compared_whole_and_never_shown() {
        let token = Token::new(" secret\n").expect("valid");
        assert!(token.is("secret"));
        for wrong in ["", "secre", "secret1", "Secret", "secret "] {
            assert!(!token.is(wrong), "{wrong}");
        }
        assert!(!format!("{token:?}").contains("secret"));
        assert!(Token::new(" ").is_err());
        assert!(Token::new(&"x".repeat(257)).is_err());
    }

    #[test]
    fn defaults_are_possible_and_limits_named() {
        assert_eq!(ServerConfig::default().check(), Ok(()));
        let config = ServerConfig { credits: 65, ..ServerConfig::default() };
        assert_eq!(config.check(), Err("credits is 65; it must be from 1 to 64".to_owned()));
    }
}
