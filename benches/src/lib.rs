//! The load generator `onesided-bench` as a library: YCSB's workloads, run against onesided and
//! against what one would use instead, in one run and by one loop.

// Opening LMDB is unsafe (target/lmdb.rs); nothing else here may be.
#![deny(unsafe_code)]

pub mod cli;
pub mod report;
pub mod run;
pub mod target;
pub mod workload;

/// The error and its causes in one line; a cause that the text before it tells already is left out.
#[must_use]
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for text in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}
