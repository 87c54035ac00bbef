//! `onesided-bench`: YCSB's workloads against onesided and what one would use instead.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use onesided_bench::cli::{self, Args};

fn main() -> ExitCode {
    match cli::main(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("onesided-bench: {}", onesided_bench::one_line(&error));
            ExitCode::from(2)
        }
    }
}
