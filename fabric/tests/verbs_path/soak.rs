//! Many clients do everything at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{Connected, Limits};
use onesided_fabric::{BufferPool, Opcode, Outcome, RegionId, RemoteAddr, WorkRequest};

use crate::rig::{REGION_BYTES, Server, attach, has_device, messages, read, take, talks};

/// One client of the soak: its own page of region 2, and the counter at its start.
struct Soaker<'s> {
    server: &'s Server,
    random: u64,
    place: u64,
    pool: BufferPool,
    peer: Connected,
    /// FAAs that took effect.
    added: u64,
}

const PAGE: u64 = 4096;

impl<'s> Soaker<'s> {
    fn new(server: &'s Server, seed: u64, place: u64) -> Self {
        let peer = Self::join(server, place);
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { server, random, place, pool: BufferPool::new(), peer, added: 0 }
    }

    fn join(server: &Server, place: u64) -> Connected {
        let peer = server.connect(place, Limits { send_depth: 64, ..Limits::default() });
        for region in [1, 2] {
            attach(&peer, region);
        }
        peer
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    /// A chain of anything, of which some are signalled, and then its check.
    fn round(&mut self) {
        let at = |offset_bytes| RemoteAddr { region: RegionId(2), offset_bytes };
        let len = 1 + self.random(2000);
        let salt = self.random(250) as u8;
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(3) ^ salt).collect();
        let place = self.place * PAGE;
        let from = self.pool.copy_of(&bytes);
        let adds = self.random(3);
        let word = self.random(REGION_BYTES as u64 / 8 - 600);
        let words = 1 + self.random(600);
        let request = |id, signaled, op| WorkRequest { id, signaled, op };
        let mut chain = VecDeque::new();
        chain.push_back(request(1, false, Opcode::Write { remote: at(place), from }));
        for _ in 0..adds {
            chain.push_back(request(2, true, Opcode::FetchAdd { remote: at(0), add: 1 }));
        }
        chain.push_back(read(3, &self.pool, 1, word * 8, words as usize * 8));
        chain.push_back(read(4, &self.pool, 2, place, bytes.len()));
        let count = chain.len() - 1;
        self.peer.endpoint.post(&mut chain).expect("posted");
        for completion in take(&self.peer, count) {
            match (completion.id, completion.outcome) {
                (2, Outcome::Atomic(_)) => self.added += 1,
                (3, Outcome::Read(seen)) => {
                    assert!((word..).zip(seen.words()).all(|(n, &w)| w == n * 3));
                }
                (4, Outcome::Read(seen)) => assert!(seen[..] == bytes[..]),
                other => panic!("{other:?}"),
            }
        }
    }

    fn run(&mut self, until: Instant) {
        let mut rounds = 0;
        while Instant::now() < until {
            self.round();
            rounds += 1;
            match self.random(40) {
                0 => {
                    let max = self.peer.endpoint.caps().max_message_bytes;
                    let all = messages(rounds, 10, max);
                    talks(&self.peer, &all, 4);
                }
                1 => self.peer = Self::join(self.server, self.place),
                _ => {}
            }
        }
    }
}

/// A number that the environment gives.
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

/// Many clients do everything at once, come and go; every byte is checked.
#[test]
fn a_soak_of_everything() {
    if !has_device() {
        return;
    }
    const CLIENTS: u64 = 24;
    let server = Server::start(Limits { receive_depth: 32, ..Limits::default() });
    let memory = Arc::clone(&server.gate.regions.lock()[&2].0);
    let seed = given("SEED").unwrap_or_else(|| {
        std::time::UNIX_EPOCH.elapsed().map_or(1, |now| u64::from(now.subsec_nanos()))
    });
    eprintln!("SEED={seed}");
    let until = Instant::now() + Duration::from_secs(given("SOAK_S").unwrap_or(15));
    let added: u64 = std::thread::scope(|scope| {
        let server = &server;
        let soak = |place| {
            move || {
                let mut soaker = Soaker::new(server, seed + place, place);
                soaker.run(until);
                soaker.added
            }
        };
        let clients: Vec<_> = (1..=CLIENTS).map(|place| scope.spawn(soak(place))).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert!(added > 0);
    assert_eq!(memory.load(0), Ok(added), "each FAA once");
    let ends = server.seen.ends.lock().len();
    eprintln!("{added} additions, {ends} connections ended");
}
