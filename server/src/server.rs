//! Putting it together, starting and stopping it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use onesided_fabric::{BufferPool, CompletionQueue, FabricKind, shm, tcp};
use onesided_protocol::control::{FabricName, FabricOffer, TableOptions, UpdateMode};
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::{Mutex, RwLock};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use crate::admin::{self, Admin};
use crate::clock::ServerClock;
use crate::config::{ServerConfig, Token, fabric_name};
use crate::control;
use crate::engine::{Engine, EngineError, MemoryStatus};
use crate::fabrics::{Fabrics, region_bytes, staging_bytes};
use crate::metrics::render;
use crate::metrics::snapshot::{Metrics, Snapshot};
use crate::poller::Poller;
use crate::rdma::Rdma;
use crate::rpc::{Dispatcher, Timing};
use crate::session::{self, Gate, Sessions};
use crate::stats::{self, Ended, LogLimit, Stats};
use crate::tenant::Tenants;

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 1024;
/// How long control connections may take to end.
const CONTROL_STOP: Duration = Duration::from_secs(2);
/// A hostile shm session can delay others' messages until the poller's sleep is over.
const SHM_SLEEP: Duration = Duration::from_secs(1);
const TCP_SLEEP: Duration = Duration::from_secs(60);

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value of the configuration.
    #[error("configuration: {0}")]
    Config(String),
    /// The address.
    #[error("cannot listen on {listen}: {source}; {}", listen_hint(source))]
    Listen {
        /// As configured.
        listen: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The admin port.
    #[error("cannot open the admin port {listen}: {source}{}", admin_hint(source))]
    Admin {
        /// As configured.
        listen: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A fabric.
    #[error(
        "cannot start the fabric {fabric}: {source}; leave it out of --fabric to do without{}",
        rdma_hint(fabric)
    )]
    Fabric {
        /// Which.
        fabric: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The storage engine.
    #[error("cannot start the storage engine: {0}")]
    Engine(#[from] EngineError),
    /// A table that was to be made at start.
    #[error("cannot make the table `{name}`: {reason}")]
    Table {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// Threads.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What every part of a running server can reach.
pub(crate) struct Core {
    pub(crate) config: ServerConfig,
    pub(crate) tenants: Tenants,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) metrics: Metrics,
    /// What who asks at the admin port must know.
    pub(crate) admin_token: ArcSwapOption<Token>,
    pub(crate) timing: Arc<Timing>,
    stopping: AtomicBool,
    pub(crate) gate: Arc<Gate>,
    pub(crate) tcp: Option<tcp::Acceptor>,
    /// All but verbs.
    offers: Vec<FabricOffer>,
    pub(crate) rdma: Rdma,
    pub(crate) log_limit: LogLimit,
    /// Written while a table is dropped, read while one is opened or made.
    pub(crate) dropping: RwLock<()>,
    clock: Arc<ServerClock>,
}

impl Core {
    /// The fabrics to tell a client of, in the order of the configuration.
    pub(crate) fn offers(&self) -> Vec<FabricOffer> {
        let of = |kind: &FabricName| match kind {
            FabricName::Verbs => self.rdma.offer(),
            kind => self.offers.iter().find(|offer| offer.kind == *kind).cloned(),
        };
        let mut offers: Vec<FabricOffer> = Vec::new();
        for offer in self.config.fabrics.iter().filter_map(of) {
            if offers.iter().all(|other| other.kind != offer.kind) {
                offers.push(offer);
            }
        }
        offers
    }

    /// The fabrics that clients can use now.
    fn usable(&self) -> Vec<FabricName> {
        let usable = |kind: &FabricName| *kind != FabricName::Verbs || self.rdma.is_there();
        self.offers().iter().map(|offer| offer.kind).filter(usable).collect()
    }

    /// All fabrics by name, and whether clients can use them now.
    pub(crate) fn fabrics_now(&self) -> Vec<(&'static str, bool)> {
        let usable = self.usable();
        let all = [FabricName::Shm, FabricName::Verbs, FabricName::Tcp];
        all.map(|fabric| (fabric_name(fabric), usable.contains(&fabric))).to_vec()
    }

    /// Over which fabric clients change counters and entries themselves now.
    pub(crate) fn updates_over(&self) -> Option<FabricName> {
        let is_there = |fabric: &FabricName| *fabric != FabricName::Verbs || self.rdma.updates();
        self.config.updates_over().filter(is_there)
    }

    /// Refuses a table whose entries clients could not update.
    ///
    /// # Errors
    /// `BadOption`.
    pub(crate) fn check_updates(&self, options: TableOptions) -> Result<(), RpcError> {
        let over_verbs = self.config.updates_over() == Some(FabricName::Verbs);
        if options.update == UpdateMode::Cas
            && over_verbs
            && let Some(device) = self.rdma.lacks_atomics()
        {
            let text = format!(
                "update=cas: the RDMA device {device} has no atomics, so that clients cannot \
                 update entries over it: leave the option out, or set cas_over = \"shm\""
            );
            return Err(RpcError::new(ErrorCode::BadOption, text));
        }
        Ok(())
    }

    /// Whether clients can connect; if not, why.
    pub(crate) fn is_ready(&self) -> Result<(), &'static str> {
        match () {
            () if self.stopping.load(Ordering::Acquire) => Err("the server is stopping"),
            () if self.usable().is_empty() => Err("no fabric can be used now"),
            () => Ok(()),
        }
    }

    pub(crate) fn uptime_ms(&self) -> u64 {
        self.clock.uptime_ms()
    }

    pub(crate) fn start_unix_s(&self) -> f64 {
        self.clock.start_unix_s()
    }

    /// All counters, by name, with the memory of those who may see them.
    pub(crate) fn stats(&self, memory: &MemoryStatus) -> Vec<(String, u64)> {
        let clients = self.metrics.reported.total();
        let mut list = self.stats.list(self.sessions.len(), &clients);
        for (fabric, offered) in self.fabrics_now() {
            list.push((format!("fabric_{fabric}_offered"), offered.into()));
            let updates = self.updates_over().map(fabric_name) == Some(fabric);
            list.push((format!("fabric_{fabric}_updates"), updates.into()));
        }
        list.extend(
            self.rdma.figures().into_iter().map(|(name, value)| (format!("verbs_{name}"), value)),
        );
        list.push(("uptime_ms".to_owned(), self.clock.uptime_ms()));
        list.push(("start_unix_ms".to_owned(), (self.clock.start_unix_s() * 1e3) as u64));
        let own = self.config.own_process;
        let cpu_ns = self.metrics.cpu_ns(own).values().sum();
        list.push(("threads_cpu_ns".to_owned(), cpu_ns));
        if own {
            list.extend(stats::process());
        }
        list.extend(stats::memory(memory));
        list
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    addr: SocketAddr,
    core: Arc<Core>,
    running: Mutex<Option<Running>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// What has to be ended.
struct Running {
    stop: watch::Sender<bool>,
    stopping: Arc<AtomicBool>,
    control: JoinHandle<()>,
    pollers: Vec<(Arc<dyn CompletionQueue>, JoinHandle<()>)>,
    shm: Option<shm::Listener>,
    admin: Option<Admin>,
}

impl Server {
    /// Starts a server; it serves when this returns.
    ///
    /// # Errors
    /// [`StartError`] says what could not be had and what to do.
    pub fn start(mut config: ServerConfig) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        // No object lies across two pieces that a device knows: a region is one piece.
        config.region_bytes = region_bytes(&config);
        raise_descriptor_limit();
        let runtime = runtime().map_err(StartError::Thread)?;
        let listener = listen(&runtime, &config.listen)?;
        let addr = listener.local_addr().map_err(|source| listen_error(&config.listen, source))?;
        let admin = admin::bind(&config)?;
        let clock = Arc::new(ServerClock::default());
        let tenants = Tenants::start(&config, &clock)?;
        let stats = Arc::new(Stats::default());
        let limits = session::Limits {
            max_sessions: config.max_sessions,
            session_lease: Duration::from_millis(u64::from(config.session_lease_ms)),
            acknowledge: Duration::from_millis(config.acknowledge_ms),
            ticket_lease: Duration::from_millis(config.ticket_lease_ms),
        };
        let sessions = Arc::new(Sessions::new(limits, Arc::clone(&stats)));
        let gate = Arc::new(Gate { sessions: Arc::clone(&sessions), stats: Arc::clone(&stats) });
        let mut fabrics = Fabrics::start(&config, &gate, addr)?;
        let core = Arc::new(Core {
            tcp: fabrics.tcp.take(),
            offers: std::mem::take(&mut fabrics.offers),
            rdma: Rdma::new(addr, fabrics.verbs.take()),
            admin_token: ArcSwapOption::new(config.admin_token.clone().map(Arc::new)),
            timing: Arc::new(Timing::new(admin.is_some(), config.slow_request_ms)),
            stopping: AtomicBool::new(false),
            config,
            tenants,
            sessions,
            stats,
            metrics: Metrics::default(),
            gate,
            log_limit: LogLimit::default(),
            dropping: RwLock::new(()),
            clock,
        });
        // The tables of the configuration have labels of their own.
        for table in core.tenants.tables() {
            core.metrics.labels.number(&table.tenant, &table.status.name);
        }
        for table in &core.config.tables {
            core.check_updates(table.options).map_err(|error| StartError::Table {
                name: table.to_string(),
                reason: error.to_string(),
            })?;
        }
        let mut running = run(&core, runtime, listener, fabrics).map_err(StartError::Thread)?;
        let admin = admin.map(|bound| bound.serve(&core)).transpose();
        running.admin = admin.map_err(StartError::Thread)?;
        Ok(Self { addr, core, running: Mutex::new(Some(running)) })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where its admin port is, if it has one.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.running.lock().as_ref()?.admin.as_ref().map(|admin| admin.addr)
    }

    /// The fabrics that it offers, in the order of the configuration: verbs only where it works.
    #[must_use]
    pub fn fabrics(&self) -> Vec<FabricName> {
        self.core.usable()
    }

    /// The storage engine of its default tenant, for tests and embedding.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.core.tenants.default().engine
    }

    /// The names of its tenants, the default one's first.
    #[must_use]
    pub fn tenants(&self) -> Vec<&str> {
        self.core.tenants.names()
    }

    /// The storage engine of a tenant.
    #[must_use]
    pub fn engine_of(&self, tenant: &str) -> Option<&Arc<Engine>> {
        self.core.tenants.named(tenant).map(|tenant| &tenant.engine)
    }

    /// Its counters, over all tenants: names, units last, and values.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, u64)> {
        self.core.stats(&self.core.tenants.memory_status())
    }

    /// What it shows to Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        render::text(&Snapshot::take(&self.core))
    }

    /// Stops it, in a few seconds at most: no new connections, control connections end, sessions
    /// end, endpoints close. Calling it again does nothing.
    pub fn stop(&self) {
        let Some(running) = self.running.lock().take() else { return };
        self.core.stopping.store(true, Ordering::Release);
        self.core.tenants.engines().for_each(|engine| engine.end_huge_pages());
        // Fails when the thread has ended already.
        let _ended_already = running.stop.send(true);
        join(running.control, "control");
        self.core.sessions.end_all(Ended::Stop);
        running.stopping.store(true, Ordering::Release);
        for (cq, thread) in running.pollers {
            cq.wake();
            join(thread, "poller");
        }
        if let Some(shm) = running.shm {
            shm.stop();
        }
        self.core.rdma.stop();
        if let Some(admin) = running.admin {
            admin.stop();
        }
        tracing::info!(addr = %self.addr, "server stopped");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn join(thread: JoinHandle<()>, name: &str) {
    if thread.join().is_err() {
        tracing::error!(name, "a thread of the server has panicked");
    }
}

/// Sockets are descriptors: the soft limit of 1024 would be the first to be hit.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit on descriptors");
        }
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    // One thread for all control connections, a few for what may take a while.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("control-blocking")
        .max_blocking_threads(4)
        .build()
}

fn rdma_hint(fabric: &str) -> &'static str {
    if fabric == "verbs" { ", or allow that with --rdma prefer and --rdma-device auto" } else { "" }
}

fn admin_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => "; give it another one with --admin HOST:PORT, or none",
        std::io::ErrorKind::AddrNotAvailable => "; this host has no such address",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
        _ => "",
    }
}

/// What to do about an address that cannot be had.
fn listen_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => "is another server running there?",
        std::io::ErrorKind::AddrNotAvailable => "this host has no such address",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege",
        _ => "it must be HOST:PORT, such as 127.0.0.1:7411",
    }
}

fn listen_error(listen: &str, source: std::io::Error) -> StartError {
    StartError::Listen { listen: listen.to_owned(), source }
}

fn listen(runtime: &tokio::runtime::Runtime, text: &str) -> Result<TcpListener, StartError> {
    let attempt = || {
        let _context = runtime.enter();
        let addr = text.to_socket_addrs()?.next().ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address")
        })?;
        let socket = match addr {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A server that restarts finds its port in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(BACKLOG)
    };
    attempt().map_err(|source| listen_error(text, source))
}

/// A thread that serves a queue until it is told to stop.
pub(crate) fn start_poller(
    core: &Core,
    kind: FabricKind,
    cq: Arc<dyn CompletionQueue>,
    fetch_bytes: usize,
    stopping: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    let is_shm = kind == FabricKind::Shm;
    let one_sided = kind != FabricKind::Tcp;
    let poller = Poller {
        cq,
        dispatcher: Dispatcher::new(&core.stats, &core.timing, core.config.value_max_bytes),
        sessions: Arc::clone(&core.sessions),
        stopping,
        kind,
        credits: core.config.credits as usize,
        staging_bytes: if one_sided { staging_bytes(&core.config) } else { 0 },
        blocked_max: Duration::from_millis(u64::from(core.config.session_lease_ms)),
        pool: BufferPool::new(),
        fetch_bytes,
        spin: Duration::from_micros(core.config.spin_us),
        sleep: if is_shm { SHM_SLEEP } else { TCP_SLEEP },
    };
    std::thread::Builder::new().name(format!("poll-{kind}")).spawn(move || poller.run())
}

fn run(
    core: &Arc<Core>,
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    fabrics: Fabrics,
) -> std::io::Result<Running> {
    let stopping = Arc::new(AtomicBool::new(false));
    let mut pollers = Vec::new();
    for (kind, cq) in fabrics.queues {
        let fetch_bytes = core.config.rendezvous_bytes;
        let (queue, stopping) = (Arc::clone(&cq), Arc::clone(&stopping));
        let thread = start_poller(core, kind, queue, fetch_bytes, stopping)?;
        pollers.push((cq, thread));
    }
    core.rdma.run(core)?;
    let (stop, stopped) = watch::channel(false);
    let for_control = Arc::clone(core);
    let control = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(control::run(for_control, listener, stopped));
        // Connections see the same signal; what does not end in time is cut off.
        runtime.shutdown_timeout(CONTROL_STOP);
    })?;
    Ok(Running { stop, stopping, control, pollers, shm: fabrics.shm, admin: None })
}
