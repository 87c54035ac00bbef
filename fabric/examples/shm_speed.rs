//! How fast the shm backend is: `cargo run --release -p onesided-fabric --example shm_speed`.
//!
//! Times a direct READ of 192 bytes, whose place depends on the READ before, and a message there
//! and back between two processes, both spinning, then both sleeping in between.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::shm::{self, Connected, Limits, Listener};
use onesided_fabric::{
    Admission, Buffer, BufferPool, Completion, Memory, Opcode, Outcome, Refused, RegionId,
    RemoteAddr, Rights, WorkRequest,
};

const BLOB: &str = "ONESIDED_BLOB";
const READS: u64 = 5_000_000;
const PINGS: u64 = 300_000;
const SLEEPY_PINGS: u64 = 20_000;
const LONG: Duration = Duration::from_secs(10);

struct Open(Arc<Memory>);

impl Admission for Open {
    fn admit(&self, _ticket: &[u8; 32]) -> Result<u64, Refused> {
        Ok(1)
    }

    fn region(&self, _context: u64, _region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        Some((Arc::clone(&self.0), Rights::ReadOnly))
    }
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Fallible<()> {
    match std::env::var(BLOB) {
        Ok(blob) => client(&unhex(&blob)?),
        Err(_) => server(),
    }
}

fn server() -> Fallible<()> {
    let memory = Arc::new(Memory::shared("speed", 64 << 20, Rights::ReadOnly)?);
    let (listener, cq) =
        Listener::start("onesided-speed", Limits::default(), Arc::new(Open(memory)))?;
    let blob: String = listener.blob().iter().map(|b| format!("{b:02x}")).collect();
    let mut child =
        Command::new(std::env::current_exe()?).env(BLOB, blob).stdin(Stdio::null()).spawn()?;
    let mut out = Vec::new();
    let mut peer = None;
    let mut received = 0;
    loop {
        if cq.poll(&mut out, 64) == 0 {
            if received < PINGS {
                std::hint::spin_loop();
            } else {
                // However it ends, the queue is polled again.
                let _any = cq.wait(LONG);
            }
        }
        for completion in out.drain(..) {
            match completion.outcome {
                Outcome::Connected(endpoint) => peer = Some(endpoint),
                Outcome::Received(message) => {
                    received += 1;
                    let peer = peer.as_ref().ok_or("a message before its peer")?;
                    peer.post(&mut VecDeque::from([send(message)]))?;
                }
                Outcome::Disconnected(_) => {
                    child.wait()?;
                    return Ok(());
                }
                other => return Err(format!("unexpected {other:?}").into()),
            }
        }
    }
}

fn send(message: Buffer) -> WorkRequest {
    WorkRequest { id: 0, signaled: false, op: Opcode::Send { message } }
}

fn client(blob: &[u8]) -> Fallible<()> {
    let session = shm::connect(blob, &[0; 32], 1, LONG)?;
    let region = RegionId(0);
    session.endpoint.attach(region, &[])?;
    for (what, span) in [("in a 16 KiB place", 16 << 10), ("anywhere in 64 MiB", 64 << 20)] {
        let mut offset_bytes = 0;
        let mut words = [0; 24];
        let start = Instant::now();
        for _ in 0..READS {
            let read = session.endpoint.read_now(RemoteAddr { region, offset_bytes }, &mut words);
            read.ok_or("no direct reads")??;
            // The words are 0; the compiler does not know, so the next place depends on them.
            let next =
                (offset_bytes + words[23]).wrapping_mul(0x9E37_79B9).wrapping_add(0x61C8_8640);
            offset_bytes = next % (span - 192) / 64 * 64;
        }
        report(&format!("READ of 192 bytes, {what}"), start, READS);
    }
    ping(&session, &mut Vec::new(), "message there and back, both spin", PINGS, false)?;
    ping(&session, &mut Vec::new(), "message there and back, both sleep", SLEEPY_PINGS, true)
}

fn ping(
    session: &Connected,
    out: &mut Vec<Completion>,
    what: &str,
    pings: u64,
    sleep: bool,
) -> Fallible<()> {
    let pool = BufferPool::new();
    let mut chain = VecDeque::with_capacity(1);
    let start = Instant::now();
    for number in 0..pings {
        let mut message = pool.get(64);
        message[..8].copy_from_slice(&number.to_le_bytes());
        chain.push_back(send(message));
        session.endpoint.post(&mut chain)?;
        while session.cq.poll(out, 1) == 0 {
            if sleep {
                session.cq.wait(LONG);
            } else {
                std::hint::spin_loop();
            }
        }
        match out.pop().map(|c| c.outcome) {
            Some(Outcome::Received(answer)) if answer[..8] == number.to_le_bytes() => {}
            other => return Err(format!("unexpected {other:?}").into()),
        }
    }
    report(what, start, pings);
    Ok(())
}

fn report(what: &str, start: Instant, times: u64) {
    let ns = start.elapsed().as_nanos() as f64 / times as f64;
    println!("{what:40} {ns:10.1} ns");
}

fn unhex(text: &str) -> Fallible<Vec<u8>> {
    (0..text.len() / 2).map(|i| Ok(u8::from_str_radix(&text[i * 2..i * 2 + 2], 16)?)).collect()
}
