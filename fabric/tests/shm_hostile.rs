//! The shm backend against peers that break every rule: the others are served all the same.

mod shm_support;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onesided_fabric::shm::{Connected, Limits, reachable};
use onesided_fabric::{BufferPool, Memory, Outcome, Rights};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shm_support::raw::{Raw, hello, map};
use shm_support::*;

/// Words that a scribbler stores before it says that it is done.
const SCRIBBLES: usize = 3_000_000;
const SCRIBBLERS: u64 = 3;

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "read-only" => read_only(&parents_blob()),
        other => match other.strip_prefix("scribble-") {
            Some(seed) => scribble(&parents_blob(), seed.parse().expect("a seed")),
            None => panic!("no such role: {other}"),
        },
    }
}

/// Tries to write what may only be read.
fn read_only(blob: &[u8]) {
    let (peer, fds) = Raw::session(blob, 1);
    for fd in [&peer.region(1), &fds[2]] {
        let mapped = map(fd, Rights::ReadWrite);
        assert_eq!(mapped.expect_err("sealed").kind(), ErrorKind::PermissionDenied);
        assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(rustix::io::Errno::PERM));
        map(fd, Rights::ReadOnly).expect("reading is allowed");
    }
    for fd in &fds {
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(rustix::io::Errno::PERM));
    }
}

#[test]
fn a_peer_cannot_map_read_only_memory_writable() {
    let mut admit = Admit::default();
    let memory = region(4096, Rights::ReadOnly);
    memory.store(0, 42).expect("inside");
    admit.regions.insert(1, (Arc::clone(&memory), Rights::ReadOnly));
    let server = Echo::start(Limits::default(), admit);
    Process::spawn("read-only", &server.blob()).join();
    assert_eq!(memory.load(0), Ok(42));
}

/// Stores random words all over what it shares with the server, and rings at random.
fn scribble(blob: &[u8], seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut sessions: Vec<(Raw, Vec<Memory>)> = Vec::new();
    for n in 0..SCRIBBLES {
        // Anew now and then: the server closes a session as soon as it sees nonsense.
        if n % (SCRIBBLES / 20) == 0 {
            let (raw, fds) = Raw::session(blob, random.random());
            let writable = [&fds[0], &fds[1]].map(|fd| map(fd, Rights::ReadWrite));
            sessions.push((raw, writable.into_iter().map(|m| m.expect("mapped")).collect()));
        }
        let (_, memories) = &sessions[random.random_range(0..sessions.len())];
        let memory = &memories[random.random_range(0..memories.len())];
        // The first words, where flags and indices are, and the first slots more often.
        let span = memory.len_bytes() >> random.random_range(0..12);
        let at = random.random_range(0..span.max(256) / 8) * 8;
        let word = match random.random_range(0..4) {
            0 => 0,
            1 => 1 << 32 | random.random_range(0..6000u64),
            2 => random.random_range(0..200),
            _ => random.random(),
        };
        memory.store(at, word).expect("inside");
        if n % 1000 == 0 {
            let garbage: [u8; 40] = random.random();
            // The server has closed the session, perhaps.
            let _closed = sessions[0].0.say(&garbage);
        }
    }
    tell("done", "");
    // Alive, but silent, until killed.
    std::thread::sleep(LONG);
}

/// Sends and checks answers until the scribbler is done, and a few more.
fn converse(session: &Connected, seed: u64, over: &AtomicBool) {
    let pool = BufferPool::new();
    let mut out = Vec::new();
    let mut after = 0;
    for number in 0u64.. {
        let message = pool.copy_of(&number.to_le_bytes());
        post(&*session.endpoint, &*session.cq, &mut out, send(number, message)).expect("open");
        some(&*session.cq, &mut out);
        let answer = out.pop().map(|c| c.outcome);
        assert!(
            matches!(&answer, Some(Outcome::Received(b)) if b[..] == number.to_le_bytes()),
            "seed {seed}: message {number} was answered by {answer:?}"
        );
        after += u64::from(over.load(Ordering::SeqCst));
        if after > 100 {
            println!("{number} messages while others scribbled");
            return;
        }
    }
}

#[test]
fn others_are_served_while_a_peer_scribbles_over_all_it_shares() {
    for round in 0..SCRIBBLERS {
        let seed = rand::random::<u64>();
        println!("seed {seed}");
        let server =
            Echo::start(Limits { staging_bytes: 4096, ..Limits::default() }, Admit::default());
        let mut scribbler = Process::spawn(&format!("scribble-{seed}"), &server.blob());
        let session = connect(&server.blob(), round);
        until("it scribbles", || server.seen.connected.load(Ordering::SeqCst) > 2);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                scribbler.hear("done");
                over.store(true, Ordering::SeqCst);
            });
            converse(&session, seed, &over);
        });
        scribbler.kill();
        let connected = server.seen.connected.load(Ordering::SeqCst);
        assert_eq!(connected, 21, "seed {seed}");
        server.until_disconnected(20);
        drop(session);
        server.until_disconnected(21);
    }
}

#[test]
fn garbage_on_the_socket_closes_the_connection() {
    let server = Echo::start(Limits::default(), Admit::default());
    let blob = server.blob();
    assert!(reachable(&blob));
    let good = hello(&ticket(1));
    let mut cases = vec![vec![0; 1], vec![0xff; 1000], good[..good.len() - 1].to_vec()];
    let mut long = good.clone();
    long.push(0);
    cases.push(long);
    for at in 0..9 {
        let mut wrong = good.clone();
        wrong[at] ^= 0x20;
        cases.push(wrong);
    }
    // A region before a ticket.
    cases.push(vec![2, 0, 0, 0, 0]);
    for case in cases {
        let peer = Raw::connect(&blob).expect("a listener");
        peer.say(&case).expect("sent");
        let heard = peer.hear().map(|(bytes, _)| bytes);
        assert!(heard.as_ref().is_ok_and(Vec::is_empty) || heard.is_err(), "{case:?}: {heard:?}");
    }
    // In a session.
    let (peer, _fds) = Raw::session(&blob, 2);
    peer.say(&good).expect("sent");
    assert!(peer.hear().expect("closed").0.is_empty());
    server.until_disconnected(1);
}

#[test]
fn who_shows_no_ticket_is_closed_in_time() {
    let limits = Limits { handshake_timeout_ms: 50, pending_handshakes: 4, ..Limits::default() };
    let server = Echo::start(limits, Admit::default());
    let silent: Vec<_> =
        (0..20).map(|_| Raw::connect(&server.blob()).expect("a listener")).collect();
    // A good peer finds its way in between.
    let session = connect(&server.blob(), 1);
    for peer in &silent {
        assert!(peer.hear().map_or(true, |(bytes, _)| bytes.is_empty()));
    }
    assert!(!session.endpoint.is_closed());
}
