//! `config/server.toml`: every key optional, unknown ones refused.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::size::parse_size;
use super::{
    ADMIN_DEFAULT, COUNTERS_TABLE, CasOver, Cleaning, FileTenant, HugePages, ServerConfig,
    TableSpec, Token, parse_fabric, suggest,
};

/// The file's keys. All optional: what is absent is as in `ServerConfig::default()`.
#[derive(Clone, Default, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// `HOST:PORT`.
    pub listen: Option<String>,
    /// Size, e.g. `1GiB`.
    pub memory: Option<String>,
    /// Size, e.g. `32MiB`.
    pub value_max: Option<String>,
    /// `NAME[:option=value,...]` each.
    pub tables: Option<Vec<String>>,
    /// Whether the table `default` may lose entries when memory is full.
    pub evict: Option<bool>,
    /// `shm`, `verbs`, `tcp`.
    pub fabrics: Option<Vec<String>>,
    /// `require`, `prefer`, `never`.
    pub rdma: Option<String>,
    /// `auto`, an address, or `NAME[:PORT[:GID_INDEX]]`.
    pub rdma_device: Option<String>,
    /// `auto`, or bytes: 256, 512, 1024, 2048 or 4096.
    pub rdma_mtu: Option<String>,
    /// `auto`, `shm` or `verbs`.
    pub cas_over: Option<CasOver>,
    /// Path; empty = no token.
    pub token_file: Option<String>,
    /// `HOST:PORT`, or `off`.
    pub admin: Option<String>,
    /// Path; empty = no token.
    pub admin_token_file: Option<String>,
    /// Milliseconds; 0 = never.
    pub slow_request_ms: Option<u64>,
    /// Count.
    pub max_connections: Option<usize>,
    /// Count.
    pub max_handshakes: Option<usize>,
    /// Count.
    pub max_sessions: Option<usize>,
    /// Milliseconds.
    pub handshake_timeout_ms: Option<u64>,
    /// Milliseconds.
    pub session_lease_ms: Option<u32>,
    /// Milliseconds.
    pub ticket_lease_ms: Option<u64>,
    /// Milliseconds.
    pub acknowledge_ms: Option<u64>,
    /// Count.
    pub credits: Option<u32>,
    /// Microseconds.
    pub spin_us: Option<u64>,
    /// Size, e.g. `256MiB`.
    pub rendezvous: Option<String>,
    /// `auto` or `off`.
    pub huge_pages: Option<HugePages>,
    /// `auto`, `aggressive` or `off`.
    pub cleaning: Option<Cleaning>,
    /// Seconds.
    pub shrink_after_s: Option<u32>,
    /// A filter of tracing, e.g. `info`.
    pub log: Option<String>,
    /// `text` or `json`.
    pub log_format: Option<LogFormat>,
    /// `[[tenant]]`, behind all other keys.
    pub tenant: Option<Vec<FileTenant>>,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What file and flags say together.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// For the server.
    pub server: ServerConfig,
    /// A filter of tracing.
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
}

/// Names of all keys.
#[must_use]
pub fn keys() -> Vec<String> {
    match serde_json::to_value(FileConfig::default()) {
        Ok(serde_json::Value::Object(map)) => map.into_iter().map(|(key, _)| key).collect(),
        _ => Vec::new(),
    }
}

/// Reads a file.
///
/// # Errors
/// A text that names the file, the line, the key, and what to write instead.
pub fn read(path: &Path) -> Result<FileConfig, String> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// Reads the text of a file.
///
/// # Errors
/// A text that names the line, the key, and what to write instead.
pub fn parse(text: &str) -> Result<FileConfig, String> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        let message = error.message();
        match message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
            Some((key, rest)) => {
                // `, expected one of `a`, `b``: those of the table that the key is in.
                let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
                format!("line {line}: unknown key `{key}`; {}", suggest::hint(key, &known))
            }
            None => format!("line {line}: {message}"),
        }
    })
}

/// Tables of a daemon that is told of none.
fn of_daemon() -> Vec<TableSpec> {
    ServerConfig::default().tables.into_iter().chain([TableSpec::new(COUNTERS_TABLE)]).collect()
}

/// What `evict` says of the table `default`, if it says something.
fn evicting(mut tables: Vec<TableSpec>, evict: Option<bool>) -> Result<Vec<TableSpec>, String> {
    if evict == Some(true) {
        let wanted = TableSpec::new("default");
        let table = tables.iter_mut().find(|t| t.name == wanted.name && t.tenant == wanted.tenant);
        let table = table.ok_or(
            "evict: there is no table `default`; write NAME:evict for the tables that may lose \
             entries",
        )?;
        table.options.evict = true;
    }
    Ok(tables)
}

impl FileConfig {
    /// What `over` sets replaces what `self` sets: flags before the file.
    #[must_use]
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            listen: over.listen.or(self.listen),
            memory: over.memory.or(self.memory),
            value_max: over.value_max.or(self.value_max),
            tables: over.tables.or(self.tables),
            evict: over.evict.or(self.evict),
            fabrics: over.fabrics.or(self.fabrics),
            rdma: over.rdma.or(self.rdma),
            rdma_device: over.rdma_device.or(self.rdma_device),
            rdma_mtu: over.rdma_mtu.or(self.rdma_mtu),
            cas_over: over.cas_over.or(self.cas_over),
            token_file: over.token_file.or(self.token_file),
            admin: over.admin.or(self.admin),
            admin_token_file: over.admin_token_file.or(self.admin_token_file),
            slow_request_ms: over.slow_request_ms.or(self.slow_request_ms),
            max_connections: over.max_connections.or(self.max_connections),
            max_handshakes: over.max_handshakes.or(self.max_handshakes),
            max_sessions: over.max_sessions.or(self.max_sessions),
            handshake_timeout_ms: over.handshake_timeout_ms.or(self.handshake_timeout_ms),
            session_lease_ms: over.session_lease_ms.or(self.session_lease_ms),
            ticket_lease_ms: over.ticket_lease_ms.or(self.ticket_lease_ms),
            acknowledge_ms: over.acknowledge_ms.or(self.acknowledge_ms),
            credits: over.credits.or(self.credits),
            spin_us: over.spin_us.or(self.spin_us),
            rendezvous: over.rendezvous.or(self.rendezvous),
            huge_pages: over.huge_pages.or(self.huge_pages),
            cleaning: over.cleaning.or(self.cleaning),
            shrink_after_s: over.shrink_after_s.or(self.shrink_after_s),
            log: over.log.or(self.log),
            log_format: over.log_format.or(self.log_format),
            tenant: over.tenant.or(self.tenant),
        }
    }

    /// Fills in the defaults and checks every value.
    ///
    /// # Errors
    /// A text that names the key and says what it may be.
    pub fn settings(self) -> Result<Settings, String> {
        let default = ServerConfig::default();
        let size = |key: &str, text: Option<String>, default: usize| match text {
            None => Ok(default),
            Some(text) => parse_size(&text)
                .and_then(|n| usize::try_from(n).map_err(|_| format!("`{text}` is too much")))
                .map_err(|error| format!("{key}: {error}")),
        };
        let tables = self.tables.map(|all| all.iter().map(|t| t.parse::<TableSpec>()).collect());
        let fabrics = self.fabrics.map(|all| all.iter().map(|f| parse_fabric(f)).collect());
        let rdma = self.rdma.map(|text| text.parse().map_err(|error| format!("rdma: {error}")));
        let device = self.rdma_device.map(|text| text.parse());
        let mtu = self.rdma_mtu.map(|text| text.parse());
        let mtu = mtu.transpose().map_err(|error| format!("rdma_mtu: {error}"))?;
        let device = device.transpose().map_err(|error| format!("rdma_device: {error}"))?;
        let tenants = self.tenant.unwrap_or_default().into_iter().map(FileTenant::spec);
        let server = ServerConfig {
            listen: self.listen.unwrap_or(default.listen),
            memory_bytes: size("memory", self.memory, default.memory_bytes)?,
            value_max_bytes: size("value_max", self.value_max, default.value_max_bytes)?,
            tables: evicting(tables.transpose()?.unwrap_or_else(of_daemon), self.evict)?,
            fabrics: fabrics.transpose()?.unwrap_or(default.fabrics),
            rdma: rdma.transpose()?.unwrap_or(default.rdma),
            rdma_device: device.unwrap_or(default.rdma_device),
            rdma_mtu: mtu.unwrap_or(default.rdma_mtu),
            cas_over: self.cas_over.unwrap_or(default.cas_over),
            admin: admin(self.admin),
            admin_token: token("admin_token_file", self.admin_token_file.as_deref())?,
            own_process: true,
            slow_request_ms: self.slow_request_ms.unwrap_or(default.slow_request_ms),
            token: token("token_file", self.token_file.as_deref())?,
            tenants: tenants.collect::<Result<_, _>>()?,
            max_connections: self.max_connections.unwrap_or(default.max_connections),
            max_handshakes: self.max_handshakes.unwrap_or(default.max_handshakes),
            max_sessions: self.max_sessions.unwrap_or(default.max_sessions),
            handshake_timeout_ms: self.handshake_timeout_ms.unwrap_or(default.handshake_timeout_ms),
            session_lease_ms: self.session_lease_ms.unwrap_or(default.session_lease_ms),
            ticket_lease_ms: self.ticket_lease_ms.unwrap_or(default.ticket_lease_ms),
            acknowledge_ms: self.acknowledge_ms.unwrap_or(default.acknowledge_ms),
            credits: self.credits.unwrap_or(default.credits),
            spin_us: self.spin_us.unwrap_or(default.spin_us),
            rendezvous_bytes: size("rendezvous", self.rendezvous, default.rendezvous_bytes)?,
            staging_loads: default.staging_loads,
            huge_pages: self.huge_pages.unwrap_or(default.huge_pages),
            cleaning: self.cleaning.unwrap_or(default.cleaning),
            shrink_after_s: self.shrink_after_s.unwrap_or(default.shrink_after_s),
            region_bytes: default.region_bytes,
            registration_max_bytes: default.registration_max_bytes,
            segment_bytes: default.segment_bytes,
            split_load_percent: default.split_load_percent,
            seed: default.seed,
        };
        server.check()?;
        let log = self.log.unwrap_or_else(|| "info".to_owned());
        Ok(Settings { server, log, log_format: self.log_format.unwrap_or_default() })
    }
}

/// Where the admin port of a daemon is.
fn admin(text: Option<String>) -> Option<String> {
    let text = text.unwrap_or_else(|| ADMIN_DEFAULT.to_owned());
    (text != "off").then_some(text)
}

/// The token that a key's file holds.
pub(super) fn token(key: &str, path: Option<&str>) -> Result<Option<Token>, String> {
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{key}: cannot read {path}: {error}"))?;
    Token::new(&text).map(Some).map_err(|error| format!("{key} {path}: {error}"))
}
