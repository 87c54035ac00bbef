//! Where it was measured.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn line_of(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The value of the first line `NAME: value` of a file below /proc.
fn field_of(path: &str, name: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
    found.unwrap_or("").trim().to_owned()
}

/// What a figure depends on.
#[must_use]
pub fn host() -> Value {
    json!({
        "name": line_of("/proc/sys/kernel/hostname"),
        "kernel": line_of("/proc/sys/kernel/osrelease"),
        "processor": field_of("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory": field_of("/proc/meminfo", "MemTotal"),
        "load_average": line_of("/proc/loadavg"),
    })
}

/// The commit of the tree that this program lies in, or that it was told when it was built.
#[must_use]
pub fn commit() -> Option<String> {
    if let Some(told) = option_env!("ONESIDED_COMMIT") {
        return Some(told.to_owned());
    }
    let program = std::env::current_exe().ok()?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let output = Command::new("git").arg("-C").arg(folder).args(["rev-parse", "HEAD"]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
