//! The data path over a real RDMA device when things go wrong: run in a guest
//! (`tools/guests/test verbs_path`). Without `ONESIDED_VERBS=1` each test says that it did not run.

mod deaf;
mod loopback;
mod polled;
mod processes;
mod regions;
mod rig;
mod soak;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::verbs::Limits;
use onesided_fabric::{
    AccessError, BufferPool, Opcode, Outcome, RegionId, Wait, WorkError, WorkRequest,
};

use rig::{Server, attach, has_device, messages, read, reads_well, take, talks};

/// Many clients, few receive buffers, and a server that dozes: nobody hears of it. Clients may have
/// fewer requests outstanding while buffers run low, and as many as before soon after.
#[test]
fn a_flood_loses_nothing_and_fails_nobody() {
    if !has_device() {
        return;
    }
    const CLIENTS: usize = 48;
    const EACH: usize = 40;
    const CREDITS: u64 = 16;
    let limits = Limits { receive_depth: 16, credits: CREDITS as usize, ..Limits::default() };
    let server = Server::start(limits);
    let figure = |name: &str| server.figure(name);
    assert_eq!(figure("credits_granted"), CREDITS);
    let peers: Vec<_> = (0..CLIENTS).map(|n| server.connect(n as u64, Limits::default())).collect();
    assert_eq!(figure("queue_pairs"), CLIENTS as u64);
    let least = AtomicU64::new(CREDITS);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seen = &server.seen;
        let (done, least, figure) = (&done, &least, &figure);
        scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                seen.pause.store(true, Ordering::Release);
                std::thread::sleep(Duration::from_millis(100));
                least.fetch_min(figure("credits_granted"), Ordering::Relaxed);
                seen.pause.store(false, Ordering::Release);
                std::thread::sleep(Duration::from_millis(150));
            }
        });
        let talking: Vec<_> = peers
            .chunks(CLIENTS / 8)
            .enumerate()
            .map(|(salt, peers)| {
                scope.spawn(move || {
                    let all = messages(salt, EACH, 20_000);
                    peers.iter().for_each(|peer| talks(peer, &all, 16));
                })
            })
            .collect();
        let ended: Vec<_> = talking.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(server.seen.received.load(Ordering::Relaxed), (CLIENTS * EACH) as u64);
    assert_eq!(*server.seen.ends.lock(), []);
    let (events, least) = (figure("receive_limit_events"), least.into_inner());
    eprintln!("{events} times few buffers were left; at least {least} of {CREDITS} requests");
    assert!(events > 0 && least < CREDITS);
    let begin = Instant::now();
    while figure("credits_granted") < CREDITS || figure("receive_buffers_posted") < 16 {
        assert!(begin.elapsed() < Duration::from_secs(20), "grants do not recover");
        talks(&peers[0], &messages(1, 4, 100), 4);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Nothing rings for what was there before the wait began: it is found all the same, behind pieces
/// and sends of which nobody hears.
#[test]
fn who_waits_finds_what_came_before() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let peer = server.connect(1, Limits::default());
    let pool = BufferPool::new();
    for len in [1, 60_000] {
        let op = Opcode::Send { message: pool.copy_of(&vec![7; len]) };
        let mut chain = VecDeque::from([WorkRequest { id: 0, signaled: false, op }]);
        peer.endpoint.post(&mut chain).expect("posted");
        // Long enough for the answer to be there.
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(peer.cq.wait(Duration::ZERO), Wait::Ready, "{len} bytes");
        match take(&peer, 1).remove(0).outcome {
            Outcome::Received(message) => assert_eq!(message.len(), len),
            other => panic!("{other:?}"),
        }
    }
}

/// The owner gives up a region: a READ of it ends the one connection that tries.
#[test]
fn a_dead_rkey_gives_no_bytes_and_harms_nobody_else() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let pool = BufferPool::new();
    let peers = [1, 2].map(|context| server.connect(context, Limits::default()));
    for peer in &peers {
        for region in [1, 2] {
            attach(peer, region);
        }
        reads_well(peer, &pool, 5);
    }
    let given_up = server.gate.regions.lock().remove(&2).expect("offered");
    assert_eq!(Arc::strong_count(&given_up.0), 1, "nobody else holds it");
    drop(given_up);
    let mut into = read(7, &pool, 2, 0, 64);
    if let Opcode::Read { into, .. } = &mut into.op {
        into.fill(0xee);
    }
    let chain = [read(6, &pool, 1, 0, 64), into, read(8, &pool, 1, 0, 64)];
    let mut chain = VecDeque::from(chain);
    peers[0].endpoint.post(&mut chain).expect("posted");
    let all = take(&peers[0], usize::MAX);
    let outcomes: Vec<_> = all.iter().map(|c| (c.id, &c.outcome)).collect();
    assert!(matches!(outcomes[0], (6, Outcome::Read(_))), "{outcomes:?}");
    match outcomes[1] {
        (7, Outcome::Failed(WorkError::Access(AccessError::NotAttached(2)), Some(bytes))) => {
            assert!(bytes.iter().all(|&b| b == 0xee), "bytes of a region that is gone");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(outcomes[2], (8, Outcome::Failed(WorkError::Flushed, Some(_)))));
    match outcomes[3] {
        (0, Outcome::Disconnected(reason)) => assert!(reason.contains("rkey"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(outcomes.len(), 4);
    reads_well(&peers[1], &pool, 9);
    let refused = peers[1].endpoint.attach(RegionId(3), &[]);
    assert!(refused.is_err());
    reads_well(&peers[1], &pool, 100);
    server.awaits("one end", |seen| seen.ends.lock().len() == 1);
}

/// A server that takes nothing for longer than a request may take is given up.
#[test]
fn a_request_that_never_completes_ends_its_connection() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits { receive_depth: 16, ..Limits::default() });
    let limits = Limits { work_timeout_ms: 1_000, ..Limits::default() };
    let peer = server.connect(1, limits);
    talks(&peer, &messages(0, 3, 5_000), 2);
    server.seen.pause.store(true, Ordering::Release);
    let pool = BufferPool::new();
    let send = |id| WorkRequest {
        id,
        signaled: true,
        op: Opcode::Send { message: pool.copy_of(&[1; 100]) },
    };
    let mut chain: VecDeque<_> = (1..=40).map(send).collect();
    peer.endpoint.post(&mut chain).expect("posted");
    let begin = Instant::now();
    let mut all = take(&peer, usize::MAX);
    match all.pop().map(|end| end.outcome) {
        Some(Outcome::Disconnected(reason)) => assert!(reason.contains("within 1s"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "bounded: {:?}", begin.elapsed());
    let ids: Vec<u64> = all.iter().map(|c| c.id).collect();
    assert_eq!(ids, (1..=40).collect::<Vec<_>>(), "each exactly once, in order");
    server.seen.pause.store(false, Ordering::Release);
    server.awaits("its end", |seen| seen.ends.lock().len() == 1);
}
