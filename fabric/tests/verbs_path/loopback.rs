//! Words that peers change over the device are changed by their owner over the device: nothing is
//! lost; and what is lost if the owner's processor does it instead.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use onesided_fabric::verbs::{Atomicity, Connected, Limits, LoopbackAtomics};
use onesided_fabric::{
    Atomics, AtomicsError, CpuAtomics, Memory, Opcode, Outcome, RegionId, RemoteAddr, Word,
    WorkRequest,
};

use super::rig::{Server, TIMEOUT, attach, has_device, take};

/// A peer adds 1 to the first word of region 2, and waits for it.
fn peer_adds(peer: &Connected) {
    let remote = RemoteAddr { region: RegionId(2), offset_bytes: 0 };
    let op = Opcode::FetchAdd { remote, add: 1 };
    let mut chain = VecDeque::from([WorkRequest { id: 1, signaled: true, op }]);
    peer.endpoint.post(&mut chain).expect("posted");
    match take(peer, 1).remove(0).outcome {
        Outcome::Atomic(_) => {}
        other => panic!("{other:?}"),
    }
}

fn word_of(server: &Server) -> Arc<Memory> {
    Arc::clone(&server.gate.regions.lock()[&2].0)
}

/// `peers` and the owner add, `each` times; gives the sum.
fn add_together(server: &Server, atomics: &dyn Atomics, peers: u64, each: u64) -> u64 {
    let memory = word_of(server);
    let word = Word { memory: &memory, offset_bytes: 0 };
    memory.store(0, 0).expect("inside");
    std::thread::scope(|scope| {
        for n in 0..peers {
            scope.spawn(move || {
                let peer = server.connect(n, Limits::default());
                attach(&peer, 2);
                (0..each).for_each(|_| peer_adds(&peer));
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                (0..each).for_each(|_| _ = atomics.fetch_add(word, 1).expect("added"));
            });
        }
    });
    memory.load(0).expect("inside")
}

#[test]
fn over_the_device_nothing_is_lost() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    assert_ne!(server.listener.atomicity(), Atomicity::None);
    let atomics = LoopbackAtomics::start(server.listener.choice()).expect("to itself");
    assert!(!atomics.is_connected(), "who changes nothing holds no queue pair");
    assert_eq!(add_together(&server, &atomics, 2, 500), 4 * 500);
    assert!(atomics.is_connected());
    let memory = word_of(&server);
    let word = |offset_bytes| Word { memory: &memory, offset_bytes };
    assert_eq!(atomics.compare_swap(word(0), 1, 7).expect("compared"), 2_000);
    assert_eq!(atomics.compare_swap(word(0), 2_000, 7).expect("swapped"), 2_000);
    assert_eq!(memory.load(0), Ok(7));
    for wrong in [4, memory.len_bytes()] {
        let refused = atomics.fetch_add(word(wrong), 1);
        assert!(matches!(refused, Err(AtomicsError::Access(_))), "{refused:?}");
    }
    assert_eq!(atomics.fetch_add(word(0), 1).expect("it goes on"), 7);
    let other = Arc::new(Memory::private(4096).expect("memory"));
    let word = Word { memory: &other, offset_bytes: 8 };
    assert_eq!(atomics.fetch_add(word, 3).expect("other memory"), 0);
    assert_eq!(other.load(8), Ok(3));
}

/// Of a device whose atomics are its own only. That something is lost is a matter of luck, which is
/// tried until it happens.
#[test]
fn going_around_the_device_loses_additions() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    if server.listener.atomicity() != Atomicity::Device {
        eprintln!("DID NOT RUN: this device is atomic with processors");
        return;
    }
    let memory = word_of(&server);
    let peer = server.connect(1, Limits::default());
    attach(&peer, 2);
    let (is_over, mut by_device) = (AtomicBool::new(false), 0);
    let by_processor = std::thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let word = Word { memory: &memory, offset_bytes: 0 };
            let mut added = 0;
            while !is_over.load(Ordering::Relaxed) {
                CpuAtomics.fetch_add(word, 1).expect("added");
                added += 1;
            }
            added
        });
        let start = Instant::now();
        while start.elapsed() < TIMEOUT / 4 {
            peer_adds(&peer);
            by_device += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        adding.join().expect("added")
    });
    let sum = memory.load(0).expect("inside");
    assert!(sum < by_device + by_processor, "{sum} of {by_device} + {by_processor}: none was lost");
}
