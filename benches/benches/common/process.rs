//! The server as a process of its own: this program again, told by the environment to serve.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use onesided_server::{Server, ServerConfig};

const ROLE: &str = "ONESIDED_BENCH_SERVE";

/// How to serve.
pub struct Serve {
    /// For all tables.
    pub memory_bytes: usize,
    /// Whether the table `default` evicts.
    pub evict: bool,
    /// As the daemon does by default: an admin port, and requests are timed. Else neither, as with
    /// `--admin off --slow-request-ms 0`.
    pub metrics: bool,
}

impl Serve {
    /// 2 GiB, as the daemon does else.
    pub const DEFAULT: Self = Self { memory_bytes: 2 << 30, evict: false, metrics: true };

    /// As it is told by the environment.
    fn text(&self) -> String {
        format!("{} {} {}", self.memory_bytes, self.evict, self.metrics)
    }

    fn told() -> Option<Self> {
        let told = std::env::var(ROLE).ok()?;
        let mut words = told.split(' ');
        Some(Self {
            memory_bytes: words.next()?.parse().ok()?,
            evict: words.next()?.parse().ok()?,
            metrics: words.next()?.parse().ok()?,
        })
    }
}

/// Serves until stdin ends, if this process was started to. A bench calls it first of all.
pub fn serve_if_told() -> bool {
    let Some(Serve { memory_bytes, evict, metrics }) = Serve::told() else { return false };
    let defaults = ServerConfig::default();
    let mut config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes,
        max_sessions: 4096,
        admin: metrics.then(|| "127.0.0.1:0".to_owned()),
        slow_request_ms: if metrics { defaults.slow_request_ms } else { 0 },
        ..defaults
    };
    config.tables.iter_mut().for_each(|table| table.options.evict = evict);
    let server = Server::start(config).expect("the server starts");
    let admin = server.admin_addr().map(|addr| addr.to_string());
    println!("{} {}", server.addr(), admin.unwrap_or_default());
    // The parent's end closes when it drops the process, and also when it dies.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    server.stop();
    true
}

/// Another store's server, ended when this is dropped.
pub struct Peer(Child);

impl Peer {
    /// Starts it, and waits until `is_up`; `Err` says why there is none.
    pub fn start(command: &mut Command, is_up: impl Fn() -> bool) -> io::Result<Self> {
        let peer = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_up() {
            if Instant::now() > deadline {
                let program = command.get_program().display();
                return Err(io::Error::other(format!("{program} does not listen after 10 s")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server process, ended when this is dropped.
pub struct ServerProcess {
    child: Child,
    /// Kept open: the server may write.
    _stdout: BufReader<ChildStdout>,
    /// Where it listens.
    pub url: String,
    /// Where it shows its metrics, if it does.
    pub admin: Option<SocketAddr>,
}

impl ServerProcess {
    /// Starts one with 2 GiB and a table `default`.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&Serve::DEFAULT)
    }

    /// The same as told.
    pub fn start_with(serve: &Serve) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, serve.text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let (addr, admin) = line.trim_end_matches('\n').split_once(' ').unwrap_or_default();
        let url = format!("onesided://{addr}");
        Ok(Self { child, _stdout: stdout, url, admin: admin.parse().ok() })
    }

    /// CPU time that its threads have had.
    pub fn cpu(&self) -> io::Result<Duration> {
        let mut ns = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
            ns += first.ok_or_else(|| io::Error::other("schedstat has no numbers"))?;
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Resident bytes, shared memory included.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Ok(kib.ok_or_else(|| io::Error::other("status has no VmRSS"))? * 1024)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Closing stdin asks it to stop.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
