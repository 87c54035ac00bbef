//! The built command against a server in this process.
#![allow(dead_code)] // each test file uses a part

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use onesided_server::{Server, ServerConfig};

/// A server of its own for each test.
pub(crate) struct Bed {
    pub(crate) server: Server,
    pub(crate) directory: tempfile::TempDir,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let config = ServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            memory_bytes: 256 << 20,
            // As a daemon's.
            tables: ["default", "counters"].map(|name| name.parse().expect("a name")).to_vec(),
            ..ServerConfig::default()
        };
        let server = Server::start(config).expect("the server starts");
        Self { server, directory: tempfile::tempdir().expect("a directory") }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command
            .env("ONESIDED_SERVER", self.server.addr().to_string())
            .env_remove("RUST_LOG")
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        let output = self.command().args(arguments).output().expect("the command runs");
        Ran(output)
    }

    pub(crate) fn run_with_stdin(&self, arguments: &[&str], stdin: &[u8]) -> Ran {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        // It reads all of it before it writes anything.
        child.stdin.take().expect("stdin").write_all(stdin).expect("stdin");
        Ran(child.wait_with_output().expect("it ends"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_onesided"))
}

/// What came of a run.
pub(crate) struct Ran(pub Output);

impl Ran {
    #[track_caller]
    pub(crate) fn code(&self, expected: i32) -> &Self {
        assert_eq!(
            self.0.status.code(),
            Some(expected),
            "stdout {:?} stderr {:?}",
            String::from_utf8_lossy(&self.0.stdout),
            self.stderr()
        );
        self
    }

    /// Exit code 0, and this on stdout.
    #[track_caller]
    pub(crate) fn prints(&self, expected: &[u8]) {
        self.code(0);
        assert!(self.0.stdout == expected, "stdout {}", self.0.stdout.escape_ascii());
    }

    /// This exit code, nothing on stdout, and one line on stderr that contains `text`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, text: &str) {
        self.code(code);
        assert!(self.0.stdout.is_empty(), "stdout {}", self.0.stdout.escape_ascii());
        let stderr = self.stderr();
        assert!(stderr.contains(text), "stderr {stderr:?} without {text:?}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "stderr {stderr:?}");
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.code(0).0.stdout).expect("JSON")
    }
}
