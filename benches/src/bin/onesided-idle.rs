//! `onesided-idle`: clients that are connected and do nothing, to see what each costs the server.

#![forbid(unsafe_code)]

use std::io::Read;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use onesided::FabricChoice;
use onesided::blocking::Client;

/// An emulated host that stands still for half a minute is no reason to begin again.
const TRIES: usize = 5;
/// Heartbeats at longer intervals: so many clients of one process are not what is measured.
const SILENCE_TIMEOUT_MS: u64 = 60_000;
const CONNECT_TIMEOUT_MS: u64 = 30_000;

/// Connect clients, say so, and hold them until standard input ends.
#[derive(Parser, Debug)]
#[command(name = "onesided-idle", version, max_term_width = 100)]
struct Args {
    /// How many.
    clients: usize,
    /// Where the server is.
    #[arg(long, value_name = "URL", default_value = "onesided://127.0.0.1:7411")]
    server: String,
    /// Fabric: auto, shm, verbs or tcp.
    #[arg(long, default_value = "auto")]
    fabric: FabricChoice,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let start = Instant::now();
    // They are to cost the server what a connection costs.
    let builder = Client::builder().url(&args.server).fabric(args.fabric).idle_timeout_ms(0);
    let builder =
        builder.connect_timeout_ms(CONNECT_TIMEOUT_MS).silence_timeout_ms(SILENCE_TIMEOUT_MS);
    let connect = |number: usize| {
        let mut client = builder.clone().connect_blocking();
        for _ in 1..TRIES {
            if client.is_err() {
                client = builder.clone().connect_blocking();
            }
        }
        client.with_context(|| format!("client {number} of {}", args.clients))
    };
    let clients = (1..=args.clients).map(connect).collect::<Result<Vec<_>>>()?;
    println!("{} connected in {:.1} s", clients.len(), start.elapsed().as_secs_f64());
    std::io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
    Ok(())
}
