//! A onesided server of the run's own: a child process, so that what it uses can be told from what
//! the generator uses, and the generator knows no server's insides.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::Options;

const PROGRAM: &str = "onesided-server";
/// A server that is not ready by then is not waited for.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Beside each record: header, key, index.
const RECORD_OVERHEAD_BYTES: u64 = 200;
const MEMORY_MIN_BYTES: u64 = 1 << 30;

/// A server process, ended when this is dropped.
#[derive(Debug)]
pub struct Embedded {
    child: Child,
    url: String,
}

impl Embedded {
    /// Starts the `onesided-server` that lies beside this program, or is in the path, on a free
    /// port of this host, with room for twice the records.
    ///
    /// # Errors
    /// When there is none, or it does not start: with its own words.
    pub fn start(options: &Options) -> Result<Self> {
        let record = options.record_bytes as u64 + RECORD_OVERHEAD_BYTES;
        let memory_bytes = options.records.saturating_mul(2 * record).max(MEMORY_MIN_BYTES);
        let program = program();
        let child = Command::new(&program)
            .args(["--listen", "127.0.0.1:0", "--log", "info", "--log-format", "json"])
            .args(["--memory", &memory_bytes.to_string()])
            // A terminal's Ctrl-C is for the generator, which ends the server after itself.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!(
                    "{}: put {PROGRAM} beside onesided-bench (cargo build --release --bins)",
                    program.display()
                )
            })?;
        // From here on an error ends it.
        let mut embedded = Self { child, url: String::new() };
        let stderr = embedded.child.stderr.take().context("a child without stderr")?;
        embedded.url = format!("onesided://{}", address(stderr)?);
        Ok(embedded)
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ended_already = self.child.wait();
    }
}

/// Beside this program, or of tests, beside their folder; else what the path says.
fn program() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    let beside = here.ancestors().skip(1).take(2).map(|folder| folder.join(PROGRAM));
    beside.into_iter().find(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}

/// Waits until the log says that it is ready. What comes later is read and forgotten, so that the
/// server never waits for a reader.
fn address(stderr: ChildStderr) -> Result<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // Nobody listens any more when it is ready.
            let _nobody_listens = sender.send(line);
        }
    });
    let deadline = Instant::now() + START_TIMEOUT;
    let mut last = String::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => {
                if let Some(address) = ready(&line) {
                    return Ok(address);
                }
                last = line;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("it ended: {last}"),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(anyhow!("{PROGRAM} is not ready after {START_TIMEOUT:?}: {last}"));
            }
        }
    }
}

/// The address in the line that says that it is ready.
fn ready(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    fields["message"].as_str()?.ends_with("is ready").then_some(())?;
    fields["listen"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_ready_has_the_address() {
        let line = r#"{"level":"INFO","fields":{"message":"onesided-server is ready",
                       "listen":"127.0.0.1:33","config":"flags"}}"#;
        assert_eq!(ready(line).as_deref(), Some("127.0.0.1:33"));
        for line in ["", "text", r#"{"fields":{"message":"stopping","listen":"127.0.0.1:33"}}"#] {
            assert_eq!(ready(line), None);
        }
    }
}
