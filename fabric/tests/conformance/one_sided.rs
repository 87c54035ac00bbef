//! Cases of READ, WRITE, CAS and FAA: every backend that has them passes these.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onesided_fabric::{
    AccessError, AttachError, Line, Loads, Memory, Opcode, Outcome, RegionId, Rights, WorkError,
    WorkRequest,
};

use crate::rig::{End, Rig, at, pattern, quiet, signaled};

const PAGE: usize = 4096;
const LEN: usize = 4 * PAGE;

fn read_ok(rig: &mut Rig, client: usize, op: Opcode) -> Vec<u8> {
    match rig.run(client, op) {
        Outcome::Read(buffer) => buffer.to_vec(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn a_read_returns_what_was_written(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let bytes = pattern(1, LEN);
    memory.write_bytes(0, &bytes).unwrap();
    let spans =
        [(0, 8), (0, 1), (1, 1), (7, 2), (8, 128), (3, 61), (0, LEN), (LEN - 9, 9), (1, LEN - 1)];
    for (offset, len) in spans {
        let op = rig.read(1, offset as u64, len);
        assert!(read_ok(rig, client, op) == bytes[offset..offset + len], "{len} at {offset}");
    }
    for (salt, (offset, len)) in spans.into_iter().enumerate() {
        let mut expected = vec![0; LEN];
        memory.read_bytes(0, &mut expected).unwrap();
        let new = pattern(salt + 9, len);
        let op = rig.write(1, offset as u64, &new);
        let Outcome::Written(buffer) = rig.run(client, op) else { panic!("{len} at {offset}") };
        assert!(buffer[..] == new[..], "the buffer comes back unchanged");
        expected[offset..offset + len].copy_from_slice(&new);
        let mut now = vec![0; LEN];
        memory.read_bytes(0, &mut now).unwrap();
        assert!(now == expected, "{len} at {offset}: nothing around it changed");
    }
}

pub(crate) fn large_transfers_are_whole(rig: &mut Rig) {
    const LARGE: usize = 1 << 20;
    let (client, memory) = rig.connect_to(1, LARGE, Rights::ReadWrite);
    let bytes = pattern(5, LARGE);
    let op = rig.write(1, 0, &bytes);
    assert!(matches!(rig.run(client, op), Outcome::Written(_)));
    let mut seen = vec![0; LARGE];
    memory.read_bytes(0, &mut seen).unwrap();
    assert!(seen == bytes);
    let op = rig.read(1, 0, LARGE);
    assert!(read_ok(rig, client, op) == bytes);
}

/// The request fails with `expected`, gives its buffer back, and the endpoint is dead after it.
fn fails(rig: &mut Rig, client: usize, op: Opcode, expected: impl Fn(AccessError) -> bool) {
    let has_buffer = matches!(op, Opcode::Read { .. } | Opcode::Write { .. });
    let what = format!("{op:?}");
    match rig.run(client, op) {
        Outcome::Failed(WorkError::Access(error), buffer) => {
            assert!(expected(error), "{what}: {error}");
            assert_eq!(buffer.is_some(), has_buffer, "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
    let rest = rig.all_until_end(End::Client(client));
    assert_eq!(rest.len(), 1, "{what}: {rest:?}");
    rig.all_until_end(End::Server(client));
}

pub(crate) fn accesses_outside_a_region_fail(rig: &mut Rig) {
    let (client, _) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let len = LEN as u64;
    for (offset, size) in [(len - 8, 8), (len - 1, 1), (0, LEN)] {
        let op = rig.read(1, offset, size);
        assert_eq!(read_ok(rig, client, op).len(), size, "{size} at {offset} is inside");
    }
    let outside = [
        (len - 8, 9),
        (len - 7, 8),
        (len, 1),
        (len, 8),
        (0, LEN + 1),
        (len + 8, 8),
        (1 << 32, 8),
        (u64::MAX - 7, 8),
        (u64::MAX, 1),
        (u64::MAX - 3, 64),
        (1 << 63, 8),
    ];
    let out_of_bounds = |error| match error {
        AccessError::OutOfBounds { region_bytes, .. } => region_bytes == LEN as u64,
        _ => false,
    };
    for (offset, size) in outside {
        for write in [false, true] {
            let client = rig.connect();
            rig.attach(client, 1).unwrap();
            let op = match write {
                true => rig.write(1, offset, &vec![1; size]),
                false => rig.read(1, offset, size),
            };
            fails(rig, client, op, out_of_bounds);
        }
    }
    for offset in [len, len + 8, u64::MAX - 7] {
        let client = rig.connect();
        rig.attach(client, 1).unwrap();
        fails(rig, client, Opcode::FetchAdd { remote: at(1, offset), add: 1 }, out_of_bounds);
    }
}

pub(crate) fn regions_must_be_offered_and_attached(rig: &mut Rig) {
    let (client, _) = rig.connect_to(1, LEN, Rights::ReadWrite);
    rig.backend.offer(RegionId(2), LEN, Rights::ReadWrite);
    let refused = rig.attach(client, 3).unwrap_err();
    assert!(matches!(refused, AttachError::NotOffered(RegionId(3))), "{refused}");
    rig.attach(client, 1).unwrap();
    for region in [2, 3, 0xffff, u32::MAX] {
        let client = rig.connect();
        let op = rig.read(region, 0, 8);
        fails(rig, client, op, |e| e == AccessError::NotAttached(region));
        let client = rig.connect();
        let op = rig.write(region, 0, &[1; 8]);
        fails(rig, client, op, |e| e == AccessError::NotAttached(region));
    }
    // What was attached before is untouched by all that.
    let op = rig.read(1, 0, 8);
    read_ok(rig, client, op);
}

pub(crate) fn read_only_means_read_only(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadOnly);
    memory.store(8, 0x1234).unwrap();
    let op = rig.read(1, 8, 8);
    assert_eq!(read_ok(rig, client, op), 0x1234u64.to_le_bytes());
    let ops = [
        rig.write(1, 8, &[9; 8]),
        Opcode::CompareSwap { remote: at(1, 8), expected: 0x1234, new: 1 },
        Opcode::FetchAdd { remote: at(1, 8), add: 1 },
    ];
    for op in ops {
        let client = rig.connect();
        rig.attach(client, 1).unwrap();
        fails(rig, client, op, |e| e == AccessError::ReadOnly);
    }
    assert_eq!(memory.load(8).unwrap(), 0x1234);
}

pub(crate) fn atomics_return_what_was_there(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    memory.store(16, 5).unwrap();
    let cas = |expected, new| Opcode::CompareSwap { remote: at(1, 16), expected, new };
    let add = |add| Opcode::FetchAdd { remote: at(1, 16), add };
    let steps = [
        (cas(5, 7), 5, 7),
        (cas(5, 9), 7, 7),
        (add(3), 7, 10),
        (add(u64::MAX), 10, 9),
        (cas(9, u64::MAX), 9, u64::MAX),
        (add(2), u64::MAX, 1),
        (add(0), 1, 1),
    ];
    for (op, before, after) in steps {
        let what = format!("{op:?}");
        let Outcome::Atomic(found) = rig.run(client, op) else { panic!("{what}") };
        assert_eq!((found, memory.load(16).unwrap()), (before, after), "{what}");
    }
    assert_eq!((memory.load(8).unwrap(), memory.load(24).unwrap()), (0, 0));
}

pub(crate) fn atomics_of_many_clients_lose_nothing(rig: &mut Rig) {
    let (first, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let mut clients = vec![first];
    for _ in 0..3 {
        let client = rig.connect();
        rig.attach(client, 1).unwrap();
        clients.push(client);
    }
    for _ in 0..10 {
        for &client in &clients {
            let adds = (0..10).map(|n| signaled(n, Opcode::FetchAdd { remote: at(1, 0), add: 1 }));
            rig.post(End::Client(client), adds);
        }
        memory.fetch_add(0, 1).unwrap();
    }
    let mut seen = Vec::new();
    for &client in &clients {
        for _ in 0..100 {
            let completion = rig.next(End::Client(client));
            let Outcome::Atomic(found) = completion.outcome else { panic!("{completion:?}") };
            seen.push(found);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 400, "no two saw the same count");
    assert_eq!(memory.load(0).unwrap(), 410);
}

pub(crate) fn misaligned_atomics_fail(rig: &mut Rig) {
    rig.backend.offer(RegionId(1), LEN, Rights::ReadWrite);
    for offset in [1, 4, 7, LEN as u64 - 4] {
        let ops = [
            Opcode::CompareSwap { remote: at(1, offset), expected: 0, new: 1 },
            Opcode::FetchAdd { remote: at(1, offset), add: 1 },
        ];
        for op in ops {
            let client = rig.connect();
            rig.attach(client, 1).unwrap();
            fails(rig, client, op, |e| e == AccessError::Misaligned(offset));
        }
    }
}

pub(crate) fn a_write_is_there_before_the_send_after_it(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    for round in 0..50u64 {
        let new = pattern(round as usize, 1000);
        let offset = (round % 8) * 1024;
        let write = rig.write(1, offset, &new);
        let send = rig.send(0, &offset.to_le_bytes());
        rig.post(End::Client(client), [quiet(0, write), send]);
        let message = rig.next_message(End::Server(client));
        assert!(message[..] == offset.to_le_bytes()[..]);
        let mut seen = vec![0; 1000];
        memory.read_bytes(offset as usize, &mut seen).unwrap();
        assert!(seen == new, "round {round}");
    }
}

/// Looks from another thread: whoever sees the CAS must see what was written before it.
fn watch(memory: &Memory, slots: u64, failed: &AtomicBool) {
    let mut seen = 0;
    while seen < slots && !failed.load(Ordering::Relaxed) {
        seen = memory.load(0).unwrap();
        for slot in seen.saturating_sub(2)..seen {
            let mut bytes = [0; 56];
            memory.read_bytes(64 + slot as usize * 64, &mut bytes).unwrap();
            assert!(bytes[..] == pattern(slot as usize + 1, 56)[..], "slot {slot} of {seen}");
        }
        std::thread::yield_now();
    }
}

pub(crate) fn a_write_is_there_before_the_cas_after_it(rig: &mut Rig) {
    const SLOTS: u64 = 200;
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let failed = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (memory, failed) = (Arc::clone(&memory), Arc::clone(&failed));
        std::thread::spawn(move || watch(&memory, SLOTS, &failed))
    };
    for slot in 0..SLOTS {
        let write = rig.write(1, 64 + slot * 64, &pattern(slot as usize + 1, 56));
        let cas = Opcode::CompareSwap { remote: at(1, 0), expected: slot, new: slot + 1 };
        rig.post(End::Client(client), [quiet(1, write), signaled(2, cas)]);
        let completion = rig.next(End::Client(client));
        assert_eq!(completion.id, 2, "{completion:?}");
        failed.store(
            !matches!(completion.outcome, Outcome::Atomic(f) if f == slot),
            Ordering::Relaxed,
        );
    }
    watcher.join().unwrap();
    assert!(!failed.load(Ordering::Relaxed), "a CAS lost");
}

fn whole(word: u64) -> bool {
    word.to_le_bytes().iter().all(|&b| b == word as u8)
}

pub(crate) fn words_are_whole_while_others_write(rig: &mut Rig) {
    const BYTES: usize = 2048;
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let stop = Arc::new(AtomicBool::new(false));
    let store_all = |memory: &Memory, round: u8| {
        for offset in (0..BYTES).step_by(8) {
            memory.store(offset, u64::from_le_bytes([round; 8])).unwrap();
        }
    };
    let inline = rig.backend.single_threaded();
    let writer = (!inline).then(|| {
        let (memory, stop) = (Arc::clone(&memory), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut round = 0u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                store_all(&memory, round);
            }
        })
    });
    for round in 0..200u8 {
        let read = rig.read(1, 0, BYTES);
        rig.post(End::Client(client), [signaled(1, read)]);
        if inline {
            store_all(&memory, round);
        }
        let Outcome::Read(bytes) = rig.next(End::Client(client)).outcome else { panic!() };
        assert!(bytes.words().iter().all(|&w| whole(w)), "round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(writer) = writer {
        writer.join().unwrap();
    }
}

pub(crate) fn unsignaled_successes_are_quiet_and_failures_are_not(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let mut chain = Vec::new();
    for n in 0..8u64 {
        chain.push(quiet(n, rig.write(1, n * 8, &n.to_le_bytes())));
    }
    chain.push(quiet(8, Opcode::FetchAdd { remote: at(1, 0), add: 100 }));
    chain.push(signaled(9, Opcode::FetchAdd { remote: at(1, 0), add: 0 }));
    rig.post(End::Client(client), chain);
    let completion = rig.next(End::Client(client));
    assert_eq!(completion.id, 9);
    assert!(matches!(completion.outcome, Outcome::Atomic(100)), "{completion:?}");
    assert_eq!(memory.load(56).unwrap(), 7);
    rig.linger();
    assert_eq!(rig.arrived(End::Client(client)), 0);
    let bad = rig.write(1, LEN as u64, &[1]);
    rig.post(End::Client(client), [quiet(77, bad)]);
    let completion = rig.next(End::Client(client));
    assert_eq!(completion.id, 77);
    assert!(matches!(completion.outcome, Outcome::Failed(WorkError::Access(_), Some(_))));
}

pub(crate) fn a_chain_completes_in_posting_order(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    memory.write_bytes(0, &pattern(3, LEN)).unwrap();
    let chain: Vec<_> =
        (0..16).map(|n| signaled(n, rig.read(1, n * 100, 100 + n as usize))).collect();
    rig.post(End::Client(client), chain);
    for n in 0..16 {
        let completion = rig.next(End::Client(client));
        assert_eq!(completion.id, n);
        let Outcome::Read(bytes) = completion.outcome else { panic!("{completion:?}") };
        let start = n as usize * 100;
        assert!(bytes[..] == pattern(3, LEN)[start..start + 100 + n as usize]);
    }
    let mixed = |n: u64, rig: &Rig| match n % 5 {
        0 => rig.read(1, 0, 64),
        1 => rig.write(1, 8192, &pattern(0, 300)),
        2 => Opcode::FetchAdd { remote: at(1, 4096), add: 1 },
        3 => Opcode::CompareSwap { remote: at(1, 4104), expected: 0, new: 0 },
        _ => rig.send(0, b"between").op,
    };
    let chain: Vec<_> = (0..40).map(|n| signaled(n, mixed(n, rig))).collect();
    rig.post(End::Client(client), chain);
    for n in 0..40 {
        let completion = rig.next(End::Client(client));
        assert_eq!(completion.id, n);
        let right = match completion.outcome {
            Outcome::Read(_) => n % 5 == 0,
            Outcome::Written(_) => n % 5 == 1,
            Outcome::Atomic(_) => n % 5 == 2 || n % 5 == 3,
            Outcome::Sent(_) => n % 5 == 4,
            _ => false,
        };
        assert!(right, "request {n}: {:?}", completion.outcome);
    }
    for _ in 0..8 {
        assert_eq!(&rig.next_message(End::Server(client))[..], b"between");
    }
}

pub(crate) fn many_outstanding_reads_are_all_answered(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    memory.write_bytes(0, &pattern(3, LEN)).unwrap();
    let endpoint = rig.endpoint(End::Client(client));
    let total = 3 * endpoint.caps().send_depth as u64;
    let mut chain: VecDeque<WorkRequest> =
        (0..total).map(|n| signaled(n, rig.read(1, n % 4000, 40))).collect();
    let mut next = 0;
    while next < total {
        let left = chain.len();
        match endpoint.post(&mut chain) {
            Ok(()) => assert!(chain.is_empty()),
            Err(error) => assert!(!chain.is_empty(), "{error} of {left}"),
        }
        let completion = rig.next(End::Client(client));
        assert_eq!(completion.id, next);
        let Outcome::Read(bytes) = completion.outcome else { panic!("{completion:?}") };
        let start = next as usize % 4000;
        assert!(bytes[..] == pattern(3, LEN)[start..start + 40], "READ {next}");
        next += 1;
    }
}

pub(crate) fn what_is_behind_a_failure_is_flushed(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadWrite);
    let chain = [
        signaled(1, rig.write(1, 0, &[1; 8])),
        signaled(2, rig.write(1, LEN as u64, &[1; 8])),
        signaled(3, rig.write(1, 8, &[1; 8])),
        quiet(4, Opcode::FetchAdd { remote: at(1, 16), add: 1 }),
    ];
    // What comes after the failure may also be refused at once.
    let mut chain = VecDeque::from(chain);
    let endpoint = rig.endpoint(End::Client(client));
    let _closed_already = endpoint.post(&mut chain);
    let all = rig.all_until_end(End::Client(client));
    let taken = 4 - chain.len();
    assert!(taken >= 2, "{all:?}");
    let ids: Vec<u64> = all.iter().map(|c| c.id).collect();
    assert_eq!(ids, [1, 2, 3, 4][..taken].iter().copied().chain([0]).collect::<Vec<_>>());
    assert!(matches!(all[0].outcome, Outcome::Written(_)), "{all:?}");
    assert!(matches!(all[1].outcome, Outcome::Failed(WorkError::Access(_), Some(_))), "{all:?}");
    for completion in &all[2..taken] {
        assert!(matches!(completion.outcome, Outcome::Failed(WorkError::Flushed, _)), "{all:?}");
    }
    assert_eq!(memory.load(0).unwrap(), u64::from_le_bytes([1; 8]));
    assert_eq!(memory.load(8).unwrap() + memory.load(16).unwrap(), 0, "nothing after it");
}

pub(crate) fn reads_now_are_reads(rig: &mut Rig) {
    let (client, memory) = rig.connect_to(1, LEN, Rights::ReadOnly);
    memory.write_bytes(0, &pattern(3, LEN)).unwrap();
    let endpoint = rig.endpoint(End::Client(client));
    let mut words = [0; 16];
    let mut bytes = [0; 77];
    if !endpoint.caps().reads_now {
        assert!(endpoint.read_now(at(1, 0), &mut words).is_none());
        assert!(endpoint.read_bytes_now(at(1, 0), &mut bytes).is_none());
        return;
    }
    endpoint.read_now(at(1, 256), &mut words).unwrap().unwrap();
    let seen: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    assert!(seen == pattern(3, LEN)[256..256 + 128]);
    endpoint.read_bytes_now(at(1, 13), &mut bytes).unwrap().unwrap();
    assert!(bytes[..] == pattern(3, LEN)[13..13 + 77]);
    let end = LEN as u64 - 128;
    endpoint.read_now(at(1, end), &mut words).unwrap().unwrap();
    for offset in [end + 8, LEN as u64, 1 << 40, u64::MAX - 7] {
        let error = endpoint.read_now(at(1, offset), &mut words).unwrap().unwrap_err();
        assert!(matches!(error, AccessError::OutOfBounds { .. }), "{offset}: {error}");
        let error = endpoint.read_bytes_now(at(1, offset + 7), &mut [0; 200]).unwrap().unwrap_err();
        assert!(matches!(error, AccessError::OutOfBounds { .. }), "{offset}: {error}");
    }
    let error = endpoint.read_now(at(1, 4), &mut words).unwrap().unwrap_err();
    assert_eq!(error, AccessError::Misaligned(4));
    for region in [2, 20_000, u32::MAX] {
        let error = endpoint.read_now(at(region, 0), &mut words).unwrap().unwrap_err();
        assert_eq!(error, AccessError::NotAttached(region));
    }
    if let Some(loads) = endpoint.loads() {
        loads_are_reads(loads);
        endpoint.close();
        assert!(!loads.is_open(), "what is read now does not count");
    }
}

/// Of a region that holds `pattern(3, LEN)`.
fn loads_are_reads(loads: &Loads) {
    let memory = loads.region(RegionId(1)).expect("attached");
    assert_eq!(memory.len_bytes(), LEN);
    for from in [0, 16, 256, LEN - 192] {
        let expected = &pattern(3, LEN)[from..from + 192];
        let mut into = [Line::default(); 3];
        memory.lines_to(from, &mut into).expect("inside");
        assert!(into.as_flattened().as_flattened() == expected);
        let lines = memory.lines_vec(from, 3).expect("inside");
        assert!(lines.as_flattened().as_flattened() == expected);
    }
    for outside in [LEN - 176, LEN, 1 << 40, usize::MAX - 15, 8] {
        assert!(memory.lines_to(outside, &mut [Line::default(); 3]).is_none(), "{outside}");
    }
    for region in [2, 20_000, u32::MAX] {
        assert!(loads.region(RegionId(region)).is_none());
    }
    assert!(loads.is_open());
}
