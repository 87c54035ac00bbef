//! Strangers and mad clients by the thousand against a server in a process of its own, while good
//! clients work. The server's tests send it single kinds of nonsense; here is all of it at once.

#[path = "common/children.rs"]
mod children;
#[path = "../../fabric/tests/shm_support/mod.rs"]
mod shm_support;
#[path = "../../server/tests/common/mod.rs"]
mod wire;

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use children::*;
use onesided::{FabricChoice, blocking};
use onesided_fabric::shm;
use onesided_fabric::{BufferPool, Memory, Rights};
use onesided_protocol::control::{FabricName, PURPOSE_CONTROL, PURPOSE_DATA, ToClient, ToServer};
use onesided_protocol::rpc::{Payload, Request};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use shm_support::raw::{Raw, hello as shm_hello, map};
use wire::{exchange, preamble};

/// All together 10,000. Spread, because a process may have only so many descriptors.
const FLOODERS: usize = 5;
const CONNECTIONS_EACH: usize = 2_000;
const SCRIBBLES: usize = 200_000;
const MESSAGES: usize = 300;

/// What the server may grow by: it keeps at most 4,096 connections.
const ANON_GROWTH_MAX_BYTES: u64 = 128 << 20;
const SHARED_GROWTH_MAX_BYTES: u64 = 256 << 20;
const DESCRIPTORS_MAX: usize = 6_000;

#[derive(Serialize, Deserialize)]
enum Role {
    Server(ServerRole),
    Flood { addr: SocketAddr, blob: Vec<u8>, seed: u64 },
    Mad { addr: SocketAddr, seed: u64 },
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Server(role)) => serve(role),
        Some(Role::Flood { addr, blob, seed }) => flood(addr, &blob, seed),
        Some(Role::Mad { addr, seed }) => go_mad(addr, seed),
    }
}

/// Sockets are descriptors, and the soft limit is often 1024.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the maximum");
}

/// The first bytes of a stranger.
fn opening(kind: usize, random: &mut SmallRng) -> Vec<u8> {
    let mut junk = vec![0; random.random_range(1..2000)];
    random.fill_bytes(&mut junk);
    let mut hello = vec![0; 4];
    ToServer::Hello(wire::hello()).encode(&mut hello);
    let len = hello.len() as u32 - 4;
    hello[..4].copy_from_slice(&len.to_le_bytes());
    let control = preamble(PURPOSE_CONTROL);
    let data = preamble(PURPOSE_DATA);
    match kind {
        0 => Vec::new(),
        1 => junk,
        2 => control[..5].to_vec(),
        3 => [&control[..], &hello[..hello.len() / 2]].concat(),
        4 => [&control[..], &(1u32 << 31).to_le_bytes(), &junk].concat(),
        5 => [data, junk].concat(),
        6 => [&data[..], &junk[..junk.len().min(31)]].concat(),
        // A session that never says another word.
        _ => [control, hello].concat(),
    }
}

/// Opens connections, says something on each, and holds them all.
fn flood(addr: SocketAddr, blob: &[u8], seed: u64) {
    raise_descriptor_limit();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut held = Vec::new();
    let mut held_unix = Vec::new();
    for n in 0..CONNECTIONS_EACH {
        let mut stream = TcpStream::connect_timeout(&addr, LONG).expect("a listener");
        stream.set_nonblocking(true).expect("a socket");
        // Refused and closed already, perhaps.
        let _closed = stream.write_all(&opening(n % 8, &mut random));
        held.push(stream);
        if n % 20 == 0
            && let Ok(peer) = Raw::connect(blob)
        {
            let mut junk = vec![0; random.random_range(1..400)];
            random.fill_bytes(&mut junk);
            let _closed = if n % 40 == 0 { peer.say(&junk) } else { Ok(0) };
            held_unix.push(peer);
        }
    }
    tell("open", &held.len().to_string());
    told();
}

/// A session, however long it takes to find a gap in the flood.
fn enter(addr: SocketAddr) -> (TcpStream, onesided_protocol::control::Welcome) {
    let end = Instant::now() + LONG;
    loop {
        let attempt = || {
            let mut stream = TcpStream::connect_timeout(&addr, LONG)?;
            stream.set_read_timeout(Some(LONG))?;
            stream.write_all(&preamble(PURPOSE_CONTROL))?;
            let answer = exchange(&mut stream, &ToServer::Hello(wire::hello()))?;
            std::io::Result::Ok((stream, answer))
        };
        match attempt() {
            Ok((stream, ToClient::Welcome(welcome))) => return (stream, *welcome),
            other => assert!(Instant::now() < end, "never let in: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A client with a good session that breaks every rule, again and again.
fn go_mad(addr: SocketAddr, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let enough = Told::listen();
    for round in 0.. {
        let (mut control, welcome) = enter(addr);
        let offer = welcome.fabrics.iter().find(|offer| offer.kind == FabricName::Shm);
        let blob = &offer.expect("shm").blob;
        match round % 3 {
            0 => scribble(blob, &welcome.ticket, &mut random),
            1 => babble_shm(blob, &welcome.ticket, &mut random),
            _ => babble_tcp(addr, &welcome.ticket, &mut random),
        }
        let mut junk = vec![0; random.random_range(1..500)];
        random.fill_bytes(&mut junk);
        // Only kinds that do not exist: what is well formed is allowed.
        junk[0] = random.random_range(13..=255);
        let len = if round % 2 == 0 { 1 << 31 } else { junk.len() as u32 };
        let _closed = control.write_all(&[&len.to_le_bytes()[..], &junk].concat());
        if round == 8 {
            tell("mad", "");
        }
        if enough.over() && round >= 8 {
            return;
        }
    }
}

/// Random words all over rings and doorbell, in the shape of what belongs there or not.
fn scribble(blob: &[u8], ticket: &[u8; 32], random: &mut SmallRng) {
    let Ok(raw) = Raw::connect(blob) else { return };
    let Ok(_) = raw.say(&shm_hello(ticket)) else { return };
    let Ok((_, fds)) = raw.hear() else { return };
    // Fewer when the flood of half-open connections is in the way.
    let writable = fds.iter().take(2).map(|fd| map(fd, Rights::ReadWrite).expect("mapped"));
    let memories: Vec<Memory> = writable.collect();
    for _ in 0..if memories.is_empty() { 0 } else { SCRIBBLES } {
        let memory = &memories[random.random_range(0..memories.len())];
        let span = memory.len_bytes() >> random.random_range(0..12);
        let at = random.random_range(0..span.max(256) / 8) * 8;
        let word = match random.random_range(0..4) {
            0 => 0,
            1 => 1 << 32 | random.random_range(0..6000u64),
            2 => random.random_range(0..200),
            _ => random.random(),
        };
        memory.store(at, word).expect("inside");
    }
}

/// A request, well formed but for a few bytes.
fn nearly(random: &mut SmallRng) -> Vec<u8> {
    let (offset_bytes, len_bytes) = match random.random_range(0..3) {
        0 => (random.random(), random.random()),
        1 => (u64::MAX - 100, 1 << 31),
        _ => (0, random.random_range(0..2000)),
    };
    let key = b"mad key";
    let op = match random.random_range(0..3) {
        0 => wire::put_payload(key, Payload::Staged { offset_bytes, len_bytes }),
        1 => wire::put(key, b"mad value"),
        _ => onesided_protocol::rpc::Op::Get { key, landing: None },
    };
    let mut bytes = Vec::new();
    Request { id: random.random(), sequence: random.random_range(0..200), table: 1, op }
        .encode(&mut bytes);
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..bytes.len());
        bytes[at] = random.random();
    }
    bytes
}

fn babble_shm(blob: &[u8], ticket: &[u8; 32], random: &mut SmallRng) {
    let Ok(connected) = shm::connect(blob, ticket, 1, LONG) else { return };
    let pool = BufferPool::new();
    let mut out = Vec::new();
    for n in 0..MESSAGES as u64 {
        let message = pool.copy_of(&nearly(random));
        let request = shm_support::send(n, message);
        if connected.endpoint.post(&mut VecDeque::from([request])).is_err() {
            // The ring is full because nobody takes the answers, or the session is over.
            connected.cq.wait(Duration::from_millis(1));
        }
        if n % 3 == 0 {
            connected.cq.poll(&mut out, 64);
            out.clear();
        }
    }
}

fn babble_tcp(addr: SocketAddr, ticket: &[u8; 32], random: &mut SmallRng) {
    let Ok(mut stream) = TcpStream::connect_timeout(&addr, LONG) else { return };
    let _set = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _refused = stream.write_all(&[&preamble(PURPOSE_DATA)[..], ticket].concat());
    for _ in 0..MESSAGES {
        let bytes = nearly(random);
        let len = match random.random_range(0..20) {
            0 => random.random_range(1..=u32::MAX),
            _ => bytes.len() as u32,
        };
        if stream.write_all(&[&len.to_le_bytes()[..], &bytes].concat()).is_err() {
            return;
        }
    }
}

/// Works until `over`, every answer checked; the longest call.
fn work(table: &blocking::Table, name: &str, over: &AtomicBool, calls: &AtomicU64) -> Duration {
    let mut longest = Duration::ZERO;
    for n in 0u64.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let key = format!("good-{name}-{}", n % 50);
        let value = n.to_le_bytes().repeat((n % 300) as usize);
        let start = Instant::now();
        table.put(&key, &value).expect("a put");
        longest = longest.max(start.elapsed());
        let start = Instant::now();
        let got = table.get(&key).expect("a get").expect("a value");
        longest = longest.max(start.elapsed());
        assert!(got[..] == value[..], "{key}");
        assert_eq!(table.get("good-none").expect("a get"), None);
        calls.fetch_add(3, Ordering::SeqCst);
    }
    longest
}

/// The most that the server took.
#[derive(Clone, Copy, Debug)]
struct Size {
    anon_bytes: u64,
    shared_bytes: u64,
    descriptors: usize,
}

impl Size {
    fn of(daemon: &Daemon) -> Self {
        Self {
            anon_bytes: daemon.status_bytes("RssAnon:"),
            shared_bytes: daemon.status_bytes("RssShmem:"),
            descriptors: daemon.descriptors(),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            anon_bytes: self.anon_bytes.max(other.anon_bytes),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }

    fn check(self, before: Self) {
        let grown = |now: u64, before: u64| now.saturating_sub(before);
        let shown = format!("{before:?} became {self:?}");
        assert!(grown(self.anon_bytes, before.anon_bytes) < ANON_GROWTH_MAX_BYTES, "{shown}");
        assert!(grown(self.shared_bytes, before.shared_bytes) < SHARED_GROWTH_MAX_BYTES, "{shown}");
        assert!(self.descriptors < DESCRIPTORS_MAX, "{shown}");
    }
}

/// All the nonsense at once, and what the server grew to.
fn attack(daemon: &Daemon, blob: &[u8], seed: u64) -> Size {
    let addr = daemon.addr;
    let mut mad: Vec<_> =
        (0..2).map(|n| Process::spawn(&Role::Mad { addr, seed: seed ^ n })).collect();
    let flooder = |n| Role::Flood { addr, blob: blob.to_vec(), seed: seed.wrapping_add(n) };
    let mut flooders: Vec<_> = (0..FLOODERS as u64).map(|n| Process::spawn(&flooder(n))).collect();
    let mut size = Size::of(daemon);
    let mut open = 0;
    for flooder in &mut flooders {
        open += flooder.hear("open").parse::<usize>().expect("a number");
        size = size.max(Size::of(daemon));
    }
    assert_eq!(open, FLOODERS * CONNECTIONS_EACH);
    // All of them are held. Who is new must find a way in, as soon as the silent have had their
    // time to say hello.
    let (_control, _welcome) = enter(addr);
    for mad in &mut mad {
        mad.hear("mad");
        size = size.max(Size::of(daemon));
    }
    for process in flooders.iter_mut().chain(&mut mad) {
        process.say();
    }
    flooders.into_iter().chain(mad).for_each(Process::join);
    size.max(Size::of(daemon))
}

/// What an idle server must not have left of it.
fn settles(daemon: &Daemon, client: &blocking::Client, before: Size) {
    until("sessions end", || match stat(client, "sessions") {
        2 => Ok(()),
        more => Err(more),
    });
    until("connections end", || match stat(client, "control_connections") {
        2 => Ok(()),
        more => Err(more),
    });
    until("descriptors are closed", || match daemon.descriptors() {
        n if n <= before.descriptors => Ok(()),
        more => Err((more, before.descriptors)),
    });
    let cpu_ms = || stat(client, "process_cpu_user_ms") + stat(client, "process_cpu_system_ms");
    // Nobody left anything that keeps it busy. Not a speed: CPU time against time.
    until("it is idle again", || {
        let (start, used_ms) = (Instant::now(), cpu_ms());
        std::thread::sleep(Duration::from_secs(1));
        let used_ms = u128::from(cpu_ms() - used_ms);
        if used_ms * 3 < start.elapsed().as_millis() { Ok(()) } else { Err(used_ms) }
    });
}

#[test]
fn good_clients_are_served_among_ten_thousand_hostile_connections() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let role = ServerRole {
        handshake_timeout_ms: 2_000,
        session_lease_ms: 5_000,
        ..ServerRole::default()
    };
    let daemon = Daemon::start(role, Role::Server);
    let connect = |fabric| {
        let builder = daemon.builder().operation_timeout_ms(20_000);
        builder.fabric(fabric).connect_blocking().expect("connects")
    };
    let clients = [connect(FabricChoice::Shm), connect(FabricChoice::Tcp)];
    let tables = clients.each_ref().map(|client| client.table("default").expect("the table"));
    let blob = {
        let (mut control, welcome) = enter(daemon.addr);
        let goodbye = exchange(&mut control, &ToServer::Goodbye).expect("an answer");
        assert_eq!(goodbye, ToClient::Done);
        let offer = welcome.fabrics.into_iter().find(|offer| offer.kind == FabricName::Shm);
        offer.expect("shm").blob
    };
    let (over, calls) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    until("both work", || match stat(&clients[0], "sessions") {
        2 => Ok(()),
        more => Err(more),
    });
    let before = Size::of(&daemon);
    let (longest, size) = std::thread::scope(|scope| {
        let spawn = |n: usize| {
            let (table, over, calls) = (&tables[n], &over, &calls[n]);
            scope.spawn(move || work(table, &n.to_string(), over, calls))
        };
        let workers = [spawn(0), spawn(1)];
        let size = attack(&daemon, &blob, seed);
        let at_end = [0, 1].map(|n| calls[n].load(Ordering::SeqCst));
        // Still at work.
        for n in [0, 1] {
            until("it goes on", || match calls[n].load(Ordering::SeqCst) > at_end[n] {
                true => Ok(()),
                false => Err(n),
            });
        }
        over.store(true, Ordering::SeqCst);
        (workers.map(|worker| worker.join().expect("every answer was right")), size)
    });
    println!("{calls:?} calls, the longest {longest:?}; {before:?} became {size:?}");
    size.check(before);
    for client in &clients {
        assert_eq!(client.stats().reconnects, 0, "they were never cut off");
    }
    settles(&daemon, &clients[0], before);
    assert!(stat(&clients[0], "connections_accepted") >= (FLOODERS * CONNECTIONS_EACH) as u64);
    drop((tables, clients));
    daemon.join();
}
