//! The shm backend between processes: messages, reads, rights, and the death of either side.

mod shm_support;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onesided_fabric::shm::{ConnectError, Limits, MAX_REGIONS};
use onesided_fabric::{
    AccessError, AttachError, BufferPool, Memory, Opcode, Outcome, PostError, RegionId, RemoteAddr,
    Rights, WorkError, WorkRequest,
};
use shm_support::*;

const MESSAGES: u64 = 100_000;
const WINDOW: u64 = 32;

fn at(region: u32, offset_bytes: u64) -> RemoteAddr {
    RemoteAddr { region: RegionId(region), offset_bytes }
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "exchange" => exchange(&parents_blob()),
        "busy-client" => busy_client(&parents_blob()),
        "rights" => rights(&parents_blob()),
        "server" => server(),
        other => panic!("no such role: {other}"),
    }
}

/// A message of a number: its length and bytes follow from it.
fn payload(number: u64, pool: &BufferPool) -> onesided_fabric::Buffer {
    let mut message = pool.get(8 + (number % 500) as usize);
    message.fill(number as u8);
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

fn exchange(blob: &[u8]) {
    let session = connect(blob, 7);
    let (endpoint, cq) = (&*session.endpoint, &*session.cq);
    endpoint.attach(RegionId(3), &[]).expect("offered");
    let pool = BufferPool::new();
    let (mut sent, mut answered, mut seen) = (0, 0, 0);
    let mut out = Vec::new();
    while answered < MESSAGES {
        while sent < MESSAGES && sent - answered < WINDOW && out.is_empty() {
            post(endpoint, cq, &mut out, send(sent, payload(sent, &pool))).expect("open");
            sent += 1;
        }
        some(cq, &mut out);
        for completion in out.drain(..) {
            assert_eq!(completion.context, 7);
            let Outcome::Received(answer) = completion.outcome else {
                panic!("unexpected {completion:?}")
            };
            assert_eq!(&answer[..], &payload(answered, &pool)[..], "answer {answered}");
            answered += 1;
            let mut words = [0; 24];
            let read = endpoint.read_now(at(3, 64), &mut words).expect("reads are loads");
            read.expect("inside");
            assert!(words[0] >= seen, "a word went back from {seen} to {}", words[0]);
            seen = words[0];
        }
    }
    assert!(seen > 0, "the server's stores are seen");
}

#[test]
fn two_processes_exchange_messages_and_reads() {
    let memory = region(1 << 20, Rights::ReadOnly);
    let mut admit = Admit::default();
    admit.regions.insert(3, (Arc::clone(&memory), Rights::ReadOnly));
    let server = Echo::start(Limits::default(), admit);
    let client = Process::spawn("exchange", &server.blob());
    let mut count = 0;
    while server.seen.disconnected.load(Ordering::SeqCst) == 0 {
        count += 1;
        memory.store(64, count).expect("inside");
        std::thread::sleep(Duration::from_millis(1));
    }
    client.join();
    assert_eq!(server.seen.received.load(Ordering::SeqCst), MESSAGES);
}

/// Sends without end.
fn busy_client(blob: &[u8]) {
    let session = connect(blob, 9);
    let pool = BufferPool::new();
    let mut out = Vec::new();
    for number in 0.. {
        let request = send(number, payload(number, &pool));
        if post(&*session.endpoint, &*session.cq, &mut out, request).is_err() {
            return;
        }
        session.cq.poll(&mut out, 64);
        out.clear();
    }
}

#[test]
fn killed_client_is_noticed_once_and_others_go_on() {
    let server = Echo::start(Limits { max_endpoints: 2, ..Limits::default() }, Admit::default());
    for round in 1..=5 {
        let before = server.seen.received.load(Ordering::SeqCst);
        let mut client = Process::spawn("busy-client", &server.blob());
        until("it sends", || server.seen.received.load(Ordering::SeqCst) > before + 1000);
        client.kill();
        server.until_disconnected(round);
    }
    // The slots are free again, and a new session sees nothing of the old ones.
    exchange_few(&server.blob());
}

fn exchange_few(blob: &[u8]) {
    let session = connect(blob, 1);
    let pool = BufferPool::new();
    let mut out = Vec::new();
    for number in 0..300 {
        let request = send(number, payload(number, &pool));
        post(&*session.endpoint, &*session.cq, &mut out, request).expect("open");
        some(&*session.cq, &mut out);
        let Some(Outcome::Received(answer)) = out.pop().map(|c| c.outcome) else {
            panic!("not an answer")
        };
        assert_eq!(&answer[..], &payload(number, &pool)[..]);
    }
}

/// Serves until killed.
fn server() {
    let memory = region(1 << 20, Rights::ReadOnly);
    let mut admit = Admit::default();
    admit.regions.insert(0, (Arc::clone(&memory), Rights::ReadOnly));
    let echo = Echo::start(Limits::default(), admit);
    tell("blob", &hex(&echo.blob()));
    for count in 0.. {
        // Every word of the region is the same within one round.
        for word in 0..128 {
            memory.store(word * 8, count).expect("inside");
        }
    }
}

#[test]
fn killed_server_ends_the_session_once() {
    let mut server = Process::spawn("server", &[]);
    let blob = unhex(&server.hear("blob"));
    let session = connect(&blob, 4);
    let endpoint = &*session.endpoint;
    endpoint.attach(RegionId(0), &[]).expect("offered");
    let pool = BufferPool::new();
    let mut chain: VecDeque<_> = (0..10).map(|n| send(n, payload(n, &pool))).collect();
    endpoint.post(&mut chain).expect("open");
    let mut words = [0; 128];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            server.kill();
        });
        until("reads stop", || {
            let mut words = words;
            endpoint.read_now(at(0, 0), &mut words).expect("reads are loads").is_err()
        });
    });
    let after = endpoint.read_now(at(0, 0), &mut words);
    assert_eq!(after, Some(Err(AccessError::NotAttached(0))));
    assert!(disconnected(&*session.cq).contains("the peer is gone"));
    let mut out = Vec::new();
    assert_eq!(session.cq.poll(&mut out, 64), 0, "nothing after the end: {out:?}");
    let mut chain = VecDeque::from([send(1, payload(1, &pool))]);
    assert!(matches!(endpoint.post(&mut chain), Err(PostError::Closed)));
    assert_eq!(chain.len(), 1);
    assert!(matches!(endpoint.attach(RegionId(1), &[]), Err(AttachError::Closed)));
    let again = onesided_fabric::shm::connect(&blob, &ticket(4), 4, LONG);
    assert!(matches!(again, Err(ConnectError::NoSuchSocket(_))), "{again:?}");
}

/// What a client may and may not do to regions.
fn rights(blob: &[u8]) {
    let session = connect(blob, 5);
    let endpoint = &*session.endpoint;
    let pool = BufferPool::new();
    endpoint.attach(RegionId(1), &[]).expect("offered");
    endpoint.attach(RegionId(1), &[]).expect("twice is once");
    endpoint.attach(RegionId(2), &[]).expect("offered");
    assert!(matches!(endpoint.attach(RegionId(9), &[]), Err(AttachError::NotOffered(_))));
    let beyond = RegionId(u32::try_from(MAX_REGIONS).expect("small"));
    assert!(matches!(endpoint.attach(beyond, &[]), Err(AttachError::TooMany(..))));
    // Writable: all four operations, in order.
    let op = |id, op| WorkRequest { id, signaled: true, op };
    let mut chain = VecDeque::from([
        op(1, Opcode::Write { remote: at(2, 8), from: pool.copy_of(&5u64.to_le_bytes()) }),
        op(2, Opcode::CompareSwap { remote: at(2, 8), expected: 5, new: 6 }),
        op(3, Opcode::FetchAdd { remote: at(2, 8), add: 10 }),
        op(4, Opcode::Read { remote: at(2, 8), into: pool.get(8) }),
    ]);
    endpoint.post(&mut chain).expect("open");
    let mut out = Vec::new();
    at_least(&*session.cq, &mut out, 4);
    let ids: Vec<u64> = out.iter().map(|c| c.id).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    assert!(matches!(&out[1].outcome, Outcome::Atomic(5)));
    assert!(matches!(&out[2].outcome, Outcome::Atomic(6)));
    assert!(matches!(&out[3].outcome, Outcome::Read(b) if b[..] == 16u64.to_le_bytes()));
    out.clear();
    // Read-only: refused, and the session is over.
    let write = Opcode::Write { remote: at(1, 0), from: pool.copy_of(b"overwritten") };
    endpoint.post(&mut VecDeque::from([op(5, write)])).expect("open");
    at_least(&*session.cq, &mut out, 2);
    let refused = WorkError::Access(AccessError::ReadOnly);
    assert!(matches!(&out[0].outcome, Outcome::Failed(e, Some(_)) if *e == refused), "{out:?}");
    assert!(matches!(&out[1].outcome, Outcome::Disconnected(_)), "{out:?}");
    assert!(endpoint.is_closed());
}

#[test]
fn rights_hold_across_processes() {
    let mut admit = Admit::default();
    let read_only = region(4096, Rights::ReadOnly);
    read_only.store(0, 42).expect("inside");
    admit.regions.insert(1, (Arc::clone(&read_only), Rights::ReadOnly));
    admit.regions.insert(2, (region(4096, Rights::ReadWrite), Rights::ReadWrite));
    let server = Echo::start(Limits::default(), admit);
    Process::spawn("rights", &server.blob()).join();
    server.until_disconnected(1);
    assert_eq!(read_only.load(0), Ok(42));
}

#[test]
fn staging_memory_is_region_0_of_the_server() {
    let limits = Limits { staging_bytes: 1 << 20, ..Limits::default() };
    let (listener, cq) =
        onesided_fabric::shm::Listener::start("s", limits, Arc::new(Admit::default()))
            .expect("a listener");
    let session = connect(&listener.blob(), 2);
    let staging: Arc<Memory> = session.staging.clone().expect("asked for");
    let mut out = Vec::new();
    some(&*cq, &mut out);
    let Some(Outcome::Connected(peer)) = out.pop().map(|c| c.outcome) else { panic!("no peer") };
    peer.attach(RegionId(0), &[]).expect("there");
    assert!(matches!(peer.attach(RegionId(1), &[]), Err(AttachError::NotOffered(_))));
    let value = vec![0xA5; 300_000];
    staging.write_bytes(4096 + 3, &value).expect("inside");
    let mut got = vec![0; value.len()];
    peer.read_bytes_now(at(0, 4096 + 3), &mut got).expect("loads").expect("inside");
    assert_eq!(got, value);
    staging.release(0, 1 << 20).expect("released");
    peer.read_bytes_now(at(0, 4096 + 3), &mut got).expect("loads").expect("inside");
    assert!(got.iter().all(|&b| b == 0));
    let pool = BufferPool::new();
    let write = Opcode::Write { remote: at(0, 5), from: pool.copy_of(b"answer") };
    let request = WorkRequest { id: 8, signaled: true, op: write };
    peer.post(&mut VecDeque::from([request])).expect("open");
    some(&*cq, &mut out);
    assert!(matches!(&out[0].outcome, Outcome::Written(_)) && out[0].id == 8);
    let mut answer = [0; 6];
    staging.read_bytes(5, &mut answer).expect("inside");
    assert_eq!(&answer, b"answer");
    out.clear();
    // Outside: the session ends on this side, and the client notices.
    let read = Opcode::Read { remote: at(0, (1 << 20) - 4), into: pool.get(8) };
    peer.post(&mut VecDeque::from([WorkRequest { id: 9, signaled: false, op: read }]))
        .expect("open");
    some(&*cq, &mut out);
    assert!(matches!(&out[0].outcome, Outcome::Failed(WorkError::Access(_), Some(_))));
    assert!(disconnected(&*session.cq).contains("gone"));
}

#[test]
fn sleepers_are_woken_and_only_one_sleeps() {
    let server = Echo::start(Limits::default(), Admit::default());
    let session = connect(&server.blob(), 3);
    let cq = &*session.cq;
    cq.wake();
    assert_eq!(cq.wait(LONG), onesided_fabric::Wait::Ready, "a wake before the wait counts");
    assert_eq!(cq.wait(Duration::from_millis(1)), onesided_fabric::Wait::TimedOut);
    std::thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| cq.wait(LONG)));
        until("one is busy", || waits.iter().any(|w| w.is_finished()));
        cq.wake();
        let ends = waits.map(|w| w.join().expect("no panic"));
        assert!(ends.contains(&onesided_fabric::Wait::Busy), "{ends:?}");
        assert!(ends.contains(&onesided_fabric::Wait::Ready), "{ends:?}");
    });
    // Both sides asleep in between: every message must wake.
    let pool = BufferPool::new();
    let mut out = Vec::new();
    for number in 0..20_000 {
        let request = send(number, payload(number, &pool));
        post(&*session.endpoint, cq, &mut out, request).expect("open");
        while cq.poll(&mut out, 1) == 0 {
            assert_eq!(cq.wait(LONG), onesided_fabric::Wait::Ready);
        }
        out.clear();
    }
}

#[test]
fn a_full_ring_pushes_back() {
    let limits = Limits { credits: 4, max_message_bytes: 64, ..Limits::default() };
    let (listener, cq) =
        onesided_fabric::shm::Listener::start("s", limits, Arc::new(Admit::default()))
            .expect("a listener");
    let session = connect(&listener.blob(), 6);
    let pool = BufferPool::new();
    let mut chain: VecDeque<_> = (0..7).map(|n| send(n, pool.copy_of(&[n as u8]))).collect();
    assert!(matches!(session.endpoint.post(&mut chain), Err(PostError::Full)));
    assert_eq!(chain.iter().map(|r| r.id).collect::<Vec<_>>(), [4, 5, 6]);
    let mut out = Vec::new();
    at_least(&*cq, &mut out, 5);
    session.endpoint.post(&mut chain).expect("room again");
    let long = pool.copy_of(&[0; 65]);
    let mut chain = VecDeque::from([send(7, long)]);
    let posted = session.endpoint.post(&mut chain);
    assert!(matches!(posted, Err(PostError::TooLong { len_bytes: 65, max_bytes: 64 })));
    assert_eq!(chain.len(), 1);
}

#[test]
fn refusals_say_why() {
    let limits = Limits { max_endpoints: 1, ..Limits::default() };
    let server = Echo::start(limits, Admit::default());
    let refused = onesided_fabric::shm::connect(&server.blob(), &[0; 32], 0, LONG);
    assert!(
        matches!(&refused, Err(ConnectError::Refused(text)) if text == "unknown ticket"),
        "{refused:?}"
    );
    let first = connect(&server.blob(), 1);
    let second = onesided_fabric::shm::connect(&server.blob(), &ticket(2), 2, LONG);
    assert!(matches!(&second, Err(ConnectError::Refused(text)) if text.contains("no room")));
    drop(first);
    server.until_disconnected(1);
    let _third = connect(&server.blob(), 3);
}
