//! Where it was measured.

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

/// The commit that this program was built of, or that `ONESIDED_COMMIT` told the build; `None` if
/// it was built outside a git tree.
#[must_use]
pub fn commit() -> Option<String> {
    option_env!("ONESIDED_COMMIT").filter(|told| !told.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    #[test]
    fn the_commit_is_known_where_there_is_a_git_tree() {
        let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
        if output.is_ok_and(|output| output.status.success()) {
            assert!(super::commit().is_some());
        }
    }
}
