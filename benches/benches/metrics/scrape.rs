//! How long `/metrics` takes to answer while there are a thousand sessions.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use onesided::FabricChoice;
use onesided::blocking::Client;

use crate::common::process::ServerProcess;

const SESSIONS: usize = 1_000;
const SCRAPES: usize = 101;
const TARGET: Duration = Duration::from_millis(5);

pub(crate) fn measure(server: &ServerProcess) -> Result<()> {
    eprintln!("scrapes with {SESSIONS} sessions");
    let connect = |_| {
        let builder = Client::builder().url(&server.url).fabric(FabricChoice::Tcp);
        // So that they are there, and do nothing.
        builder.silence_timeout_ms(60_000).connect_timeout_ms(30_000).connect_blocking()
    };
    let _clients = (0..SESSIONS).map(connect).collect::<Result<Vec<_>, _>>()?;
    let mut times = Vec::new();
    let mut len_bytes = 0;
    for _ in 0..SCRAPES {
        let start = Instant::now();
        let text = scrape(server)?;
        times.push(start.elapsed());
        len_bytes = text.len();
        let sessions = text.lines().find_map(|line| line.strip_prefix("onesided_sessions "));
        let sessions: usize = sessions.context("no onesided_sessions")?.parse()?;
        ensure!(sessions >= SESSIONS, "{sessions} sessions are left");
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (median, most) = (times[SCRAPES / 2], times[SCRAPES - 1]);
    let met = if median < TARGET { "yes" } else { "**no**" };
    println!(
        "\n/metrics with {SESSIONS} sessions, a connection each time: median {:.2} ms, longest \
         {:.2} ms of {SCRAPES}; {len_bytes} bytes. Target under {} ms: {met}.",
        ms(median),
        ms(most),
        TARGET.as_millis()
    );
    Ok(())
}

fn scrape(server: &ServerProcess) -> Result<String> {
    let mut stream = TcpStream::connect(server.admin.context("it has no admin port")?)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
