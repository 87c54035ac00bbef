//! `onesided top` on a terminal: one that script(1) makes, and a parser that knows what would be
//! on its screen.

mod command_support;

use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use command_support::*;
use onesided_server::{Server, ServerConfig};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether script(1) is there; CI has to have it.
fn has_script() -> bool {
    let runs = Command::new("script").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !runs {
        let text = "script is not there: apt install bsdutils";
        assert!(std::env::var_os("CI").is_none(), "{text}");
        println!("skipped: {text}");
    }
    runs
}

/// `onesided top` on a terminal.
struct Top {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Top {
    fn start(server: &str, columns: u16, rows: u16) -> Self {
        let top = format!(
            "stty columns {columns} rows {rows}; exec {} --timeout-ms 1000 top --every-ms 100",
            binary().display()
        );
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &top, "/dev/null"])
            .env("ONESIDED_SERVER", server)
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        let size = [rows, columns].map(|cells| NonZero::new(cells).expect("some"));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size[0], size[1], 0)));
        let (drawn, mut stdout) = (Arc::clone(&screen), child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stdout.read(&mut bytes) {
                drawn.lock().process(&bytes[..len]);
            }
        });
        let keys = child.stdin.take().expect("piped");
        Self { child, keys, screen }
    }

    fn text(&self) -> String {
        self.screen.lock().screen().contents()
    }

    #[track_caller]
    fn shows(&self, part: &str) {
        let start = Instant::now();
        while !self.text().contains(part) {
            assert!(start.elapsed() < PATIENCE, "{part} is not on\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).and_then(|()| self.keys.flush()).expect("pressed");
    }

    /// Sends a signal to the program itself, not to script.
    fn signal(&self, signal: Signal) {
        let script = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
        let pid = children.expect("readable").trim().parse().ok().and_then(Pid::from_raw);
        rustix::process::kill_process(pid.expect("one child"), signal).expect("signalled");
    }

    /// Waits for its end. The terminal is as it was.
    #[track_caller]
    fn ends(mut self) -> ExitStatus {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it goes on:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        };
        let restored = || {
            let parser = self.screen.lock();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        };
        while !restored() {
            assert!(start.elapsed() < PATIENCE, "the terminal is not restored");
            std::thread::sleep(Duration::from_millis(20));
        }
        status
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

#[test]
fn it_draws_and_q_ends_it() {
    if !has_script() {
        return;
    }
    let bed = Bed::new();
    bed.run(["put", "greeting", "hello"]).code(0);
    let mut top = Top::start(&bed.server.addr().to_string(), 80, 24);
    for part in [
        "onesided onesided://127.0.0.1:",
        "one-sided GETs",
        "server CPU",
        "live entries",
        " 2 tables, the largest first",
        "q quits",
    ] {
        top.shows(part);
    }
    assert!(top.screen.lock().screen().alternate_screen(), "what was there before is kept");
    top.press("x");
    top.press("q");
    assert!(top.ends().success());
}

#[test]
fn it_shows_that_the_server_is_gone_and_that_it_is_back() {
    if !has_script() {
        return;
    }
    let bed = Bed::new();
    let addr = bed.server.addr().to_string();
    let mut top = Top::start(&addr, 120, 30);
    top.shows("server CPU");
    bed.server.stop();
    top.shows("NO ANSWER, trying again");
    let text = top.text();
    assert!(text.contains("server CPU") && !text.contains("WARN"), "it stays as it was\n{text}");
    let config = ServerConfig { listen: addr, memory_bytes: 64 << 20, ..ServerConfig::default() };
    let again = Server::start(config).expect("the server starts");
    top.shows("restarts seen: 1");
    assert!(!top.text().contains("NO ANSWER"), "{}", top.text());
    again.stop();
    top.shows("NO ANSWER");
    top.press("\u{3}");
    assert!(top.ends().success(), "Ctrl-C ends it, though nobody answers");
}

#[test]
fn who_ends_it_from_elsewhere_gets_the_terminal_back() {
    if !has_script() {
        return;
    }
    let bed = Bed::new();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let top = Top::start(&bed.server.addr().to_string(), 80, 24);
        top.shows("server CPU");
        top.signal(signal);
        assert!(top.ends().success(), "{signal:?}");
    }
}

#[test]
fn a_small_terminal_is_enough() {
    if !has_script() {
        return;
    }
    let bed = Bed::new();
    for (columns, rows) in [(40, 10), (1, 1)] {
        let mut top = Top::start(&bed.server.addr().to_string(), columns, rows);
        if columns > 1 {
            top.shows("one-sided GETs");
        }
        let start = Instant::now();
        while !top.screen.lock().screen().alternate_screen() {
            assert!(start.elapsed() < PATIENCE, "it does not draw");
            std::thread::sleep(Duration::from_millis(20));
        }
        top.press("q");
        assert!(top.ends().success(), "{columns}x{rows}");
    }
}
