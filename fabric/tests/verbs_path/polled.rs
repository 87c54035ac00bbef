//! What a thread waits for itself, beside everything else that goes on.

use std::collections::VecDeque;
use std::time::Duration;

use onesided_fabric::verbs::{Connected, Limits};
use onesided_fabric::{
    Awaited, Buffer, BufferPool, Opcode, Outcome, Polled, RegionId, RemoteAddr, WorkRequest,
};

use crate::rig::{REGION_BYTES, Server, attach, has_device, read, reads_well, take, talks};

const SPIN: Duration = Duration::from_millis(500);

fn polled(peer: &Connected, id: u64, offset_bytes: u64, into: &mut Buffer) -> Polled {
    let at = RemoteAddr { region: RegionId(1), offset_bytes };
    peer.endpoint.polled(id, Awaited::Read(at, into), SPIN)
}

#[track_caller]
fn assert_bytes(buffer: &Buffer, offset_bytes: u64) {
    let first = offset_bytes / 8;
    let right = buffer.words().iter().zip(first..).all(|(&word, number)| word == number * 3);
    assert!(right, "{} bytes from {offset_bytes}", buffer.len());
}

/// Each gives the right bytes, and no completion of it is left for anybody.
#[test]
fn a_polled_read_brings_its_bytes_and_leaves_nothing_behind() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let (peer, pool) = (server.connect(1, Limits::default()), BufferPool::new());
    attach(&peer, 1);
    for id in 1..2_000 {
        let offset_bytes = id * 72 % (REGION_BYTES as u64 - 8192);
        let len_bytes = if id % 50 == 0 { 8192 } else { 192 };
        let mut into = pool.get(len_bytes);
        assert_eq!(polled(&peer, id, offset_bytes, &mut into), Polled::Done, "{id}");
        assert_eq!(into.len(), len_bytes);
        assert_bytes(&into, offset_bytes);
    }
    assert_eq!(peer.cq.poll(&mut Vec::new(), 16), 0);
    reads_well(&peer, &pool, 50);
    talks(&peer, &[vec![1; 20_000]], 1);
}

/// What completes before it is kept for whoever polls next, and so is the READ then.
#[test]
fn a_polled_read_that_meets_others_is_completed_through_the_queue() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let (peer, pool) = (server.connect(1, Limits::default()), BufferPool::new());
    attach(&peer, 1);
    let mut through_the_queue = 0;
    for round in 0..200 {
        let send = Opcode::Send { message: pool.copy_of(&[7; 100]) };
        let send = WorkRequest { id: 0, signaled: false, op: send };
        let mut chain = VecDeque::from([read(5, &pool, 1, 0, 64), send]);
        peer.endpoint.post(&mut chain).expect("posted");
        let mut into = pool.get(64);
        let mut late = match polled(&peer, 9, round * 8, &mut into) {
            Polled::Done => {
                assert_bytes(&into, round * 8);
                0
            }
            Polled::Posted => 1,
            Polled::NotPosted => panic!("nobody polls"),
        };
        assert_eq!(into.len(), if late == 1 { 0 } else { 64 });
        through_the_queue += late;
        let mut others = 2;
        for completion in take(&peer, 2 + late) {
            match (completion.id, completion.outcome) {
                (9, Outcome::Read(buffer)) if late == 1 => {
                    assert_bytes(&buffer, round * 8);
                    late = 0;
                }
                (5, Outcome::Read(_)) | (0, Outcome::Received(_)) => others -= 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((others, late), (0, 0), "each exactly once");
    }
    assert!(through_the_queue > 0, "the READ before it completes before it");
}

/// What must not be posted is not, and harms nobody: the ordinary way says why.
#[test]
fn a_polled_read_outside_a_region_is_not_posted() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let (peer, pool) = (server.connect(1, Limits::default()), BufferPool::new());
    attach(&peer, 1);
    for (region, offset_bytes) in [(1, REGION_BYTES as u64 - 8), (2, 0), (9, 0)] {
        let at = RemoteAddr { region: RegionId(region), offset_bytes };
        let mut into = pool.get(64);
        let refused = peer.endpoint.polled(1, Awaited::Read(at, &mut into), SPIN);
        assert_eq!((refused, into.len()), (Polled::NotPosted, 64));
    }
    reads_well(&peer, &pool, 50);
    peer.endpoint.close();
    let mut into = pool.get(64);
    assert_eq!((polled(&peer, 2, 0, &mut into), into.len()), (Polled::NotPosted, 64));
}

/// Each finds what the one before left, with the WRITE before it done, and no completion is left.
#[test]
fn a_polled_addition_finds_what_was_there_after_what_is_before_it_in_its_chain() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let (peer, pool) = (server.connect(1, Limits::default()), BufferPool::new());
    for region in [1, 2] {
        peer.endpoint.attach(RegionId(region), &[]).expect("offered");
    }
    let at = |offset_bytes| RemoteAddr { region: RegionId(2), offset_bytes };
    let (memory, _) = server.gate.regions.lock()[&2].clone();
    for id in 1..2_000_u64 {
        let write = Opcode::Write { remote: at(64), from: pool.copy_of(&id.to_le_bytes()) };
        let add = Opcode::FetchAdd { remote: at(0), add: 3 };
        let unheard = WorkRequest { id: 0, signaled: false, op: write };
        let mut chain = VecDeque::from([unheard, WorkRequest { id, signaled: true, op: add }]);
        peer.endpoint.post(&mut chain).expect("posted");
        let mut found = u64::MAX;
        let polled = peer.endpoint.polled(id, Awaited::Atomic(&mut found), SPIN);
        assert_eq!(polled, Polled::Done, "{id}: nothing else is going on");
        assert_eq!((found, memory.load(64).expect("inside")), ((id - 1) * 3, id));
    }
    assert_eq!(peer.cq.poll(&mut Vec::new(), 16), 0);
    reads_well(&peer, &pool, 50);
}
