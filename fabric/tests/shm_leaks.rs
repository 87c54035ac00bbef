//! Descriptors and mappings come back. One test in a process of its own: it counts both.

mod shm_support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onesided_fabric::shm::Limits;
use onesided_fabric::{RegionId, Rights};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shm_support::raw::{Raw, hello};
use shm_support::*;

const GARBAGE_CONNECTIONS: usize = 10_000;
const HELD_OPEN: usize = 500;
const PENDING: usize = 16;

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "victim" => {
            let session = connect(&parents_blob(), 1);
            session.endpoint.attach(RegionId(1), &[]).expect("offered");
            tell("ready", "");
            std::thread::sleep(LONG);
        }
        "garbage" => garbage(&parents_blob()),
        other => panic!("no such role: {other}"),
    }
}

/// Many connections with anything but a ticket that is known.
fn garbage(blob: &[u8]) {
    let mut random = SmallRng::seed_from_u64(1);
    let mut held = std::collections::VecDeque::new();
    for _ in 0..GARBAGE_CONNECTIONS {
        let Ok(peer) = Raw::connect(blob) else { continue };
        let said = match random.random_range(0..4) {
            0 => vec![],
            1 => hello(&[0; 32]),
            2 => hello(&[0; 32])[..20].to_vec(),
            _ => (0..random.random_range(1..1500)).map(|_| random.random()).collect(),
        };
        if !said.is_empty() {
            // The server may have closed it at once.
            let _closed = peer.say(&said);
        }
        held.push_back(peer);
        if held.len() > HELD_OPEN {
            held.pop_front();
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// Mappings of memory that this backend makes.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.lines().filter(|line| line.contains("/memfd:shm-")).count()
}

fn wait_for(what: &str, baseline: (usize, usize)) {
    until(what, || (descriptors(), mappings()) == baseline);
}

#[test]
fn nothing_is_kept_of_sessions_that_ended() {
    if role().is_some() {
        return;
    }
    let before_server = (descriptors(), mappings());
    let mut admit = Admit::default();
    admit.regions.insert(1, (region(4096, Rights::ReadOnly), Rights::ReadOnly));
    let limits = Limits {
        staging_bytes: 1 << 20,
        pending_handshakes: PENDING,
        handshake_timeout_ms: 200,
        ..Limits::default()
    };
    let server = Echo::start(limits, admit);
    let baseline = (descriptors(), mappings());

    // In this process: both ends count.
    for round in 0..20 {
        let sessions: Vec<_> = (0..100).map(|n| connect(&server.blob(), round * 100 + n)).collect();
        for session in &sessions {
            session.endpoint.attach(RegionId(1), &[]).expect("offered");
        }
        drop(sessions);
    }
    server.until_disconnected(2000);
    wait_for("2,000 sessions leave nothing", baseline);

    for round in 1..=3 {
        let mut victim = Process::spawn("victim", &server.blob());
        victim.hear("ready");
        victim.kill();
        drop(victim);
        server.until_disconnected(2000 + round);
        wait_for("a killed client leaves nothing", baseline);
    }

    garbage_is_bounded(&server, baseline);
    wait_for("garbage leaves nothing", baseline);
    drop(server);
    // The region of the test is gone with the admission.
    wait_for("a stopped listener leaves nothing", before_server);
}

fn garbage_is_bounded(server: &Echo, baseline: (usize, usize)) {
    let (over, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                most.fetch_max(descriptors(), Ordering::SeqCst);
                std::thread::yield_now();
            }
        });
        Process::spawn("garbage", &server.blob()).join();
        over.store(true, Ordering::SeqCst);
    });
    let most = most.load(Ordering::SeqCst);
    // The pipe to the child, the counting itself, and one connection that is being refused.
    let allowed = baseline.0 + PENDING + 8;
    assert!(most <= allowed, "{most} descriptors, but {allowed} are allowed");
    let session = connect(&server.blob(), 99);
    assert!(!session.endpoint.is_closed());
}
