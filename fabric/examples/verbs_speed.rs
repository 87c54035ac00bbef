//! Latency and rate of READs through an RDMA device of this host, client and server in one
//! process. In a guest, beside what the raw device does:
//!
//!     cargo build --release -p onesided-fabric --example verbs_speed
//!     tools/guests/run -n 1 -- bash -c 'target/release/examples/verbs_speed 256
//!         ib_read_lat -F -s 256 >/dev/null & sleep 1; ib_read_lat -F -s 256 $HOST_IP'

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{ConnectOptions, Connected, Limits, Listener, Options, connect};
use onesided_fabric::{
    Admission, Buffer, BufferPool, Completion, Memory, Opcode, Outcome, Refused, RegionId,
    RemoteAddr, Rights, WorkRequest,
};

const REGION_BYTES: u64 = 1 << 20;
const WARM_UP: usize = 500;
const READS: usize = 3000;

struct Gate(Arc<Memory>);

impl Admission for Gate {
    fn admit(&self, _: &[u8; 32]) -> Result<u64, Refused> {
        Ok(1)
    }

    fn region(&self, _: u64, _: RegionId) -> Option<(Arc<Memory>, Rights)> {
        Some((Arc::clone(&self.0), Rights::ReadOnly))
    }
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Fallible<()> {
    let len_bytes = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 256,
    };
    let memory = Memory::shared("speed", REGION_BYTES as usize, Rights::ReadOnly)?;
    let gate = Arc::new(Gate(Arc::new(memory)));
    let (listener, server) = Listener::start(&Options::default(), 0, Limits::default(), gate)?;
    let timeout = Duration::from_secs(10);
    let options = ConnectOptions::default();
    let peer = connect(&listener.blob(512), &[0; 32], 1, timeout, &options)?;
    // Somebody must poll at the server for an attach to be answered; READs need nobody.
    let endpoint = Arc::clone(&peer.endpoint);
    let asking = std::thread::spawn(move || endpoint.attach(RegionId(1), &[]));
    let mut out = Vec::new();
    while !asking.is_finished() {
        server.poll(&mut out, 16);
    }
    asking.join().map_err(|_| "panicked")??;
    let pool = BufferPool::new();
    latency(&peer, &pool, len_bytes)?;
    for depth in [1, 16, 64] {
        rate(&peer, &pool, len_bytes, depth)?;
    }
    Ok(())
}

fn read(n: u64, into: Buffer) -> WorkRequest {
    let offset_bytes = n * 320 % (REGION_BYTES - into.len() as u64);
    let remote = RemoteAddr { region: RegionId(1), offset_bytes };
    WorkRequest { id: n, signaled: true, op: Opcode::Read { remote, into } }
}

fn bytes_of(completion: Completion) -> Fallible<Buffer> {
    match completion.outcome {
        Outcome::Read(buffer) => Ok(buffer),
        other => Err(format!("{other:?}").into()),
    }
}

fn latency(peer: &Connected, pool: &BufferPool, len_bytes: usize) -> Fallible<()> {
    let (mut times, mut posts) = (Vec::new(), Duration::ZERO);
    let (mut chain, mut out) = (VecDeque::new(), Vec::new());
    for n in 0..WARM_UP + READS {
        let begin = Instant::now();
        chain.push_back(read(n as u64, pool.get(len_bytes)));
        peer.endpoint.post(&mut chain)?;
        posts += begin.elapsed();
        while peer.cq.poll(&mut out, 16) == 0 {}
        for completion in out.drain(..) {
            drop(bytes_of(completion)?);
        }
        times.push(begin.elapsed());
    }
    let times = &mut times[WARM_UP..];
    times.sort();
    let us = |at: Duration| at.as_nanos() as f64 / 1e3;
    let at = |percent: usize| us(times[times.len() * percent / 100]);
    println!(
        "READ {len_bytes} B: p50 {:.2} us, p90 {:.2}, p99 {:.2}, min {:.2}; a post {:.2}",
        at(50),
        at(90),
        at(99),
        at(0),
        us(posts / (WARM_UP + READS) as u32)
    );
    Ok(())
}

fn rate(peer: &Connected, pool: &BufferPool, len_bytes: usize, depth: u64) -> Fallible<()> {
    let mut chain: VecDeque<_> = (0..depth).map(|n| read(n, pool.get(len_bytes))).collect();
    peer.endpoint.post(&mut chain)?;
    let mut out: Vec<Completion> = Vec::new();
    let begin = Instant::now();
    let (mut posted, mut done) = (depth, 0);
    while done < posted {
        peer.cq.poll(&mut out, 32);
        let goes_on = begin.elapsed() < Duration::from_secs(4);
        for completion in out.drain(..) {
            done += 1;
            let buffer = bytes_of(completion)?;
            if goes_on {
                chain.push_back(read(posted, buffer));
                posted += 1;
            }
        }
        peer.endpoint.post(&mut chain)?;
    }
    let rate = done as f64 / begin.elapsed().as_secs_f64();
    println!("READ {len_bytes} B, {depth} outstanding: {rate:.0}/s");
    Ok(())
}
