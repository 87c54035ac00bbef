//! Child processes: this test binary again, running its test `child` with a role in the
//! environment. One role is a server.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use onesided::{Client, ClientBuilder, FabricChoice, FabricKind, blocking};
use onesided_protocol::control::FabricName;
use onesided_server::config::{Cleaning, HugePages, TableSpec};
use onesided_server::{Server, ServerConfig};
use serde::{Deserialize, Serialize};

/// Longer than anything here takes on a busy machine; only a failing test waits this long.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// No child lives longer, the seconds of a long soak apart.
const LIFE: Duration = Duration::from_secs(240);
const ROLE: &str = "ONESIDED_TEST_ROLE";
/// Its value `verbs`: test one-sided READs over an RDMA device, not over shared memory.
const FABRIC: &str = "ONESIDED_TEST_FABRIC";
/// HOST:PORT of a server of another host to test against, not one of the test's own.
const SERVER: &str = "ONESIDED_TEST_SERVER";
/// `aggressive`: servers of their own move all entries all the while.
const CLEANING: &str = "ONESIDED_TEST_CLEANING";
/// How much of the work to do: an emulated machine has less time.
const PERCENT: &str = "ONESIDED_TEST_PERCENT";

/// The fabric of one-sided READs that is tested.
pub(crate) fn one_sided() -> FabricChoice {
    match std::env::var(FABRIC).as_deref() {
        Ok("verbs") => FabricChoice::Verbs,
        Ok(other) if other != "shm" => panic!("{FABRIC}={other}: there are shm and verbs"),
        _ => FabricChoice::Shm,
    }
}

/// As [`one_sided`], as connections name it.
pub(crate) fn one_sided_kind() -> FabricKind {
    match one_sided() {
        FabricChoice::Verbs => FabricKind::Verbs,
        _ => FabricKind::Shm,
    }
}

/// A time that a server gives its clients, longer where they are slow.
pub(crate) fn patience_ms(here_ms: u32) -> u32 {
    if std::env::var(PERCENT).is_ok() { here_ms * 4 } else { here_ms }
}

/// The server of another host that is to be tested against.
pub(crate) fn other_host() -> Option<SocketAddr> {
    let addr = std::env::var(SERVER).ok()?;
    Some(addr.parse().expect("HOST:PORT"))
}

/// The part of some amount of work that is to be done here.
pub(crate) fn scaled(work: usize) -> usize {
    let percent = std::env::var(PERCENT).map_or(100, |text| text.parse().expect("a percentage"));
    work * percent / 100
}

/// What a child is told, if this process is one.
pub(crate) fn role<T: for<'de> Deserialize<'de>>() -> Option<T> {
    let text = std::env::var(ROLE).ok()?;
    // So that a parent never waits for ever.
    let soak_s = std::env::var("SOAK_S").map_or(0, |text| text.parse().expect("seconds"));
    let life = LIFE + Duration::from_secs(soak_s);
    std::thread::spawn(move || {
        std::thread::sleep(life);
        eprintln!("a child panicked: it was not over after {life:?}");
        std::process::exit(1);
    });
    Some(serde_json::from_str(&text).expect("a role"))
}

/// Says something to the parent.
pub(crate) fn tell(word: &str, rest: &str) {
    println!("<{word}>{rest}");
}

/// Waits for the parent's next line; `false` when there will be none.
pub(crate) fn told() -> bool {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("stdin") > 0
}

/// Whether the parent has said anything since the start, or has gone. Never blocks.
pub(crate) struct Told(std::thread::JoinHandle<()>);

impl Told {
    pub(crate) fn listen() -> Self {
        Self(std::thread::spawn(|| {
            told();
        }))
    }

    pub(crate) fn over(&self) -> bool {
        self.0.is_finished()
    }
}

/// A child process, killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: File,
}

impl Process {
    pub(crate) fn spawn(role: &impl Serialize) -> Self {
        let stderr = tempfile::tempfile().expect("a file");
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, serde_json::to_string(role).expect("JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().expect("a descriptor"))
            .spawn()
            .expect("a child");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout, stderr }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the next line that the child says with [`tell`] and this word.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let n = self.stdout.read_line(&mut line).expect("text");
            assert!(n > 0, "the child ended before it said {word}: {}", self.errors());
            // The test harness may have begun the line.
            if let Some((_, rest)) = line.split_once(&format!("<{word}>")) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Lets a [`told`] return.
    pub(crate) fn say(&mut self) {
        let stdin = self.stdin.as_mut().expect("open");
        stdin.write_all(b"\n").expect("the child reads");
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("its end");
    }

    /// What it has said on stderr.
    pub(crate) fn errors(&mut self) -> String {
        let mut said = Vec::new();
        self.stderr.rewind().expect("a file");
        self.stderr.read_to_end(&mut said).expect("readable");
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Closes its stdin; it must end, and well.
    pub(crate) fn join(mut self) {
        drop(self.stdin.take());
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("its end");
        let errors = self.errors();
        assert!(status.success(), "{status}: {said}\n{errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has usually ended.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// What a server in a child process is told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ServerRole {
    pub(crate) listen: SocketAddr,
    pub(crate) memory_mib: usize,
    pub(crate) region_mib: usize,
    pub(crate) cleaning: Cleaning,
    /// Regions go back to the system after so many seconds of slack.
    pub(crate) shrink_after_s: u32,
    pub(crate) session_lease_ms: u32,
    pub(crate) handshake_timeout_ms: u64,
    pub(crate) tables: Vec<String>,
    pub(crate) huge_pages: HugePages,
}

impl Default for ServerRole {
    fn default() -> Self {
        let config = ServerConfig::default();
        Self {
            listen: ([127, 0, 0, 1], 0).into(),
            memory_mib: 512,
            region_mib: config.region_bytes >> 20,
            cleaning: match std::env::var(CLEANING).as_deref() {
                Ok("aggressive") => Cleaning::Aggressive,
                _ => Cleaning::Auto,
            },
            shrink_after_s: config.shrink_after_s,
            session_lease_ms: config.session_lease_ms,
            handshake_timeout_ms: config.handshake_timeout_ms,
            tables: vec!["default".to_owned()],
            huge_pages: config.huge_pages,
        }
    }
}

/// What a server of these tests offers.
pub(crate) fn fabrics() -> Vec<FabricName> {
    match one_sided() {
        FabricChoice::Verbs => vec![FabricName::Verbs, FabricName::Tcp],
        _ => ServerConfig::default().fabrics,
    }
}

/// Serves until the parent closes stdin, then stops cleanly.
pub(crate) fn serve(role: ServerRole) {
    let config = ServerConfig {
        listen: role.listen.to_string(),
        memory_bytes: role.memory_mib << 20,
        own_process: true,
        region_bytes: role.region_mib << 20,
        session_lease_ms: role.session_lease_ms,
        handshake_timeout_ms: role.handshake_timeout_ms,
        tables: role.tables.iter().map(|name| TableSpec::new(name)).collect(),
        fabrics: fabrics(),
        cleaning: role.cleaning,
        shrink_after_s: role.shrink_after_s,
        huge_pages: role.huge_pages,
        ..ServerConfig::default()
    };
    let server = Server::start(config).expect("the server starts");
    tell("listens", &server.addr().to_string());
    while told() {}
    server.stop();
}

/// A server in a child process, or one of another host.
pub(crate) struct Daemon {
    process: Option<Process>,
    pub(crate) addr: SocketAddr,
}

impl Daemon {
    /// `wrap` makes the role of a child out of the server's.
    pub(crate) fn start<R: Serialize>(role: ServerRole, wrap: impl Fn(ServerRole) -> R) -> Self {
        if let Some(addr) = other_host() {
            return Self { process: None, addr };
        }
        let mut process = Process::spawn(&wrap(role));
        let addr = process.hear("listens").parse().expect("an address");
        Self { process: Some(process), addr }
    }

    /// The process, unless it is another host's.
    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    fn id(&self) -> u32 {
        self.process.as_ref().expect("a server of this host").id()
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.process.as_mut().expect("a server of this host").kill();
    }

    /// Ends it, and it must end well.
    pub(crate) fn join(self) {
        if let Some(process) = self.process {
            process.join();
        }
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        builder(self.addr)
    }

    /// Descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        let directory = format!("/proc/{}/fd", self.id());
        std::fs::read_dir(directory).expect("it runs").count()
    }

    /// A line of its status, KiB as bytes.
    pub(crate) fn status_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
        let kib: u64 =
            line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        kib << 10
    }
}

/// A client that is patient enough for a machine under load.
pub(crate) fn builder(addr: SocketAddr) -> ClientBuilder {
    Client::builder()
        .url(format!("onesided://{addr}"))
        .connect_timeout_ms(20_000)
        .silence_timeout_ms(20_000)
        .operation_timeout_ms(60_000)
}

/// One of the server's counters.
pub(crate) fn stat(client: &blocking::Client, name: &str) -> u64 {
    let stats = client.server_stats().expect("stats");
    stats.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Waits until `done`, bounded; a failure shows what it was last.
pub(crate) fn until<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> Result<(), T>) {
    let end = Instant::now() + LONG;
    while let Err(seen) = look() {
        assert!(Instant::now() < end, "{what} never happened: {seen:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
