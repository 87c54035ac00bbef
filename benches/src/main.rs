//! `onesided-bench`: a load generator. Threads of one client get and put uniform keys for a while;
//! then it says how many, how fast, and how many of the reads asked the server.

#![forbid(unsafe_code)]

mod args;
mod load;
mod report;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use args::Args;

/// Patient: what is measured may be slow to start.
const CONNECT_TIMEOUT_MS: u64 = 30_000;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onesided-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut builder = onesided::Client::builder()
        .url(&args.server)
        .rdma_device(args.rdma_device.clone())
        .prefill(args.prefill);
    if let Some(fabric) = args.fabric {
        builder = builder.fabric(fabric);
    }
    if let Some(rdma) = args.rdma {
        builder = builder.rdma(rdma);
    }
    if let Some(bytes) = args.cache_bytes {
        builder = builder.cache_bytes(bytes);
    }
    let client = builder.connect_timeout_ms(CONNECT_TIMEOUT_MS).connect_blocking()?;
    let table = client.table(&args.table)?;
    if !args.no_fill {
        load::fill(&table, args).context("filling")?;
    }
    // Opened again, so that a prefill sees the index as it is now.
    let table = client.table(&args.table)?;
    let before = report::Counters::of(&client)?;
    let measured = load::run(&table, args)?;
    let after = report::Counters::of(&client)?;
    let report = report::Report { args, measured: &measured, before, after, client: &client };
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    Ok(())
}
