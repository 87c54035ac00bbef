//! The program itself: its start line, its errors, its end.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Instant;

use common::*;
use onesided_protocol::control::{Hello, ToClient, ToServer};
use rustix::process::{Pid, Signal, kill_process};

/// A running daemon, killed when dropped.
struct Daemon {
    child: Child,
    addr: SocketAddr,
    stderr: BufReader<ChildStderr>,
    /// Lines before it was ready.
    before: Vec<serde_json::Value>,
    /// The line that says so.
    ready: serde_json::Value,
}

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-server"));
    command.args(flags).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

impl Daemon {
    fn start(flags: &[&str]) -> Self {
        let own = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"];
        let all = [&own[..], flags].concat();
        let mut child = command(&all).spawn().expect("starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut before = Vec::new();
        let ready = loop {
            let mut line = String::new();
            stderr.read_line(&mut line).expect("a line");
            let line: serde_json::Value = serde_json::from_str(&line).expect("one object a line");
            if line["fields"]["message"] == "onesided-server is ready" {
                break line["fields"].clone();
            }
            before.push(line);
        };
        let addr = ready["listen"].as_str().expect("listen").parse().expect("an address");
        Self { child, addr, stderr, before, ready }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("signalled");
    }

    fn ends(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already in most tests.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// What it says when it does not start.
fn refusal(flags: &[&str]) -> String {
    let output = command(flags).output().expect("runs");
    assert!(!output.status.success());
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn serves_and_ends_cleanly_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&["--table", "t:ttl=9", "--memory", "64MiB"]);
        let mut control = Control::open(daemon.addr);
        let table = control.table("t");
        let ticket = control.welcome.ticket;
        let mut data = Data::open(daemon.addr, &ticket, table);
        assert!(data.call(1, put(b"k", b"v")).is_ok());
        let idle = dial(daemon.addr);
        // To the program and to its group: that is one.
        daemon.signal(signal);
        daemon.signal(signal);
        assert!(daemon.ends().success());
        drop(idle);
        let mut rest = String::new();
        daemon.stderr.read_to_string(&mut rest).expect("text");
        assert!(rest.contains("server stopped") && !rest.contains("panic"), "{rest}");
        assert!(data.is_closed());
        assert!(exchange(&mut control.stream, &ToServer::Stats).is_err());
    }
}

#[test]
fn a_client_that_is_killed_leaves_nothing() {
    let daemon = Daemon::start(&[]);
    let mut stays = Control::open(daemon.addr);
    for _ in 0..20 {
        let (mut control, mut data) = connect(daemon.addr);
        data.send(1, put(b"k", b"v"));
        // Half a frame, and gone.
        std::io::Write::write_all(&mut control.stream, &[9, 0, 0]).expect("sent");
    }
    eventually("connections are gone", || {
        stays.stat("control_connections") == 1 && stays.stat("endpoints_tcp") == 0
    });
}

#[test]
fn errors_say_what_to_do() {
    let daemon = Daemon::start(&[]);
    let listen = daemon.addr.to_string();
    for (flags, part) in [
        (["--listen", &listen], "is another server running there?"),
        (["--listen", "nonsense"], "cannot listen on nonsense"),
        (["--listen", "127.0.0.1"], "it must be HOST:PORT"),
        (["--listen=127.0.0.1:0", "--memory=1MiB"], "it must be at least 2097152"),
        (["--table=a", "--table=a:ttl=5"], "table `a` is given twice"),
        (["--memory", "1GB"], "use B, KiB, MiB, GiB or TiB"),
        (["--fabric=verbs", "--rdma=never"], "rdma is never"),
        (["--fabric=shm", "--rdma=require"], "rdma is require"),
        (["--log", "a=b=c"], "log filter"),
        (["--config", "/no/such.toml"], "/no/such.toml"),
    ] {
        let text = refusal(&flags);
        assert!(text.starts_with("onesided-server: ") && text.contains(part), "{text}");
        assert!(text.matches("os error").count() <= 1, "a cause is told twice: {text}");
    }
}

/// Whether it offers verbs, and the warnings that it began with.
fn verbs_and_warnings(daemon: &Daemon) -> (bool, Vec<&serde_json::Value>) {
    let fabrics = daemon.ready["fabrics"].as_str().expect("fabrics");
    let warnings = daemon.before.iter().filter(|line| line["level"] == "WARN");
    (fabrics.split(',').any(|name| name == "verbs"), warnings.collect())
}

#[test]
fn rdma_is_required_preferred_or_left_alone() {
    let never = Daemon::start(&["--rdma", "never"]);
    assert_eq!(never.ready["fabrics"].as_str(), Some("shm,tcp"));
    // It may speak of other things: of huge pages that this machine's kernel refuses.
    let speaks_of_rdma = |line: &&serde_json::Value| {
        let text = line.to_string().to_lowercase();
        ["verbs", "rdma", "infiniband"].iter().any(|word| text.contains(word))
    };
    assert_eq!(never.before.iter().find(speaks_of_rdma), None);
    let plain = Daemon::start(&[]);
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    assert!(devices > 0 || verbs_and_warnings(&plain).1.is_empty(), "{:?}", plain.before);
    // Whether there is RDMA depends on the machine; what follows from that does not.
    let preferred = Daemon::start(&["--fabric", "verbs,tcp"]);
    let (has_verbs, warnings) = verbs_and_warnings(&preferred);
    assert_eq!(warnings.len(), usize::from(!has_verbs), "{warnings:?}");
    let mut control = Control::open(preferred.addr);
    assert_eq!(control.stat("fabric_verbs_offered"), u64::from(has_verbs));
    assert_eq!(control.stat("fabric_shm_offered"), 0);
    if has_verbs {
        let required = Daemon::start(&["--rdma", "require"]);
        assert!(verbs_and_warnings(&required).0);
        return;
    }
    let reason = warnings[0]["fields"]["reason"].as_str().expect("a reason");
    for flags in
        [["--rdma=require", "--listen=127.0.0.1:0"], ["--fabric=verbs", "--listen=127.0.0.1:0"]]
    {
        let text = refusal(&flags);
        let told = text.contains("cannot start the fabric verbs") && text.contains(reason);
        assert!(told, "`{reason}` is not why: {text}");
    }
}

#[test]
fn a_hang_up_reads_the_configuration_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, text: &str| std::fs::write(path(name), text).expect("written");
    write("token", "old");
    let file = |rest: &str| format!("token_file = \"{}\"\n{rest}", path("token"));
    write("server.toml", &file(""));
    let mut daemon = Daemon::start(&["--config", &path("server.toml")]);
    let with = |token: &str| Control::with(daemon.addr, Hello { token: token.into(), ..hello() });
    let mut stays = with("old").expect("the token");
    write("token", "new");
    write("server.toml", &file("memory = \"2GiB\"\nlog = \"debug\"\n"));
    daemon.signal(Signal::HUP);
    eventually("the new token is known", || with("new").is_ok());
    assert!(with("old").is_err());
    assert!(matches!(stays.ask(&ToServer::ListTables), ToClient::Tables(_)), "it goes on");
    // What is wrong changes nothing.
    write("server.toml", "memmory = 1\n");
    daemon.signal(Signal::HUP);
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &String| line.contains("did you mean `memory`?")) {
        let mut line = String::new();
        assert!(daemon.stderr.read_line(&mut line).expect("a line") > 0, "{lines:?}");
        lines.push(line);
    }
    assert!(lines.iter().any(|line| line.contains("need a restart") && line.contains("memory")));
    assert!(lines.iter().any(|line| line.contains("DEBUG")), "the level changed: {lines:?}");
    assert!(with("new").is_ok());
    daemon.signal(Signal::TERM);
    assert!(daemon.ends().success());
}

#[test]
fn check_config_says_what_is_wrong_and_serves_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).expect("written");
        command(&["check-config", path.to_str().expect("text")]).output().expect("runs")
    };
    let right = check("memory = \"2GiB\"\n");
    assert!(right.status.success());
    assert!(String::from_utf8_lossy(&right.stdout).contains("right; 2GiB for 2 tables"));
    for (text, part) in [
        ("memmory = 1", "did you mean `memory`?"),
        ("log = \"a=b=c\"", "log filter"),
        ("admin = \"0.0.0.0:1\"", "admin_token_file"),
        ("admin = \"7412\"", "HOST:PORT, or off"),
        ("memory = \"1000TiB\"", "at most 16383 regions"),
        ("tables = [\"x:update=cas,update=rpc\"]", "given twice"),
    ] {
        let wrong = check(text);
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(!wrong.status.success() && said.contains(part), "{text}: {said}");
    }
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/server.toml");
    let ways = [
        &["check-config", shipped][..],
        &["check-config", "--config", shipped],
        &["--config", shipped, "check-config"],
    ];
    for way in ways {
        let output = command(way).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("server.toml and flags"), "{said}");
    }
}
