//! Tables of mode `cas`: a client that updates by writing memory and by compare-and-swap, beside
//! the server that does all it does; and one that writes nonsense.

mod engine_support;
#[path = "engine_cas/world.rs"]
mod world;

use engine_support::device::{Device, Fate};
use engine_support::{Raw, RawReader, small};
use onesided_protocol::LogAddr;
use onesided_protocol::control::TableOptions;
use onesided_protocol::layout::entry::{EntryHeader, HEADER_BYTES, VALUE_LEN_OFFSET, prefix_bytes};
use onesided_protocol::layout::state::{Death, State};
use onesided_protocol::limits::LEASES_MAX;
use onesided_protocol::rpc::{ErrorCode, Expect, Ttl};
use onesided_server::engine::{Cleaning, EngineConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use world::{CAS, World, Writer};

/// A device that fails is no client that has broken a key.
#[test]
fn a_device_that_fails_loses_nothing() {
    let world = World::new(small(16 << 20));
    let device = Device::new();
    world.engine.set_atomics(device.clone());
    world.put(b"k", b"first");
    let mut writer = Writer::new(&world, 1);
    device.set(Fate::NotDone);
    let put = || world.table.put(b"k", b"third", Expect::Any, Ttl::Never, 0);
    assert_eq!(put().expect_err("it fails").code, ErrorCode::Internal);
    let delete = world.table.delete(b"k", Expect::Any);
    assert_eq!(delete.expect_err("it fails").code, ErrorCode::Internal);
    assert_eq!(world.value(b"k").as_deref(), Some(&b"first"[..]));
    // Linked by a client, and nobody can commit it.
    writer.update(b"k", b"second", 2).expect("room");
    for _ in 0..2 {
        assert_eq!(world.value(b"k").as_deref(), Some(&b"second"[..]));
        assert_eq!(put().expect_err("it fails").code, ErrorCode::Internal);
    }
    assert_eq!((world.broken(), world.engine.cas_status().finished_entries), (0, 0));
    device.set(Fate::Done);
    put().expect("it works again");
    assert_eq!(world.value(b"k").as_deref(), Some(&b"third"[..]));
    assert_eq!(world.engine.cas_status().finished_entries, 1);
    // Done, and nobody was told.
    device.set(Fate::Unheard);
    assert_eq!(world.table.delete(b"k", Expect::Any), Ok(true));
    assert_eq!(world.value(b"k"), None);
    device.set(Fate::Done);
    writer.seal();
    assert_eq!(world.broken(), 0);
}

#[test]
fn the_server_follows_finishes_and_repairs_before_whatever_it_does() {
    let world = World::new(small(16 << 20));
    let mut writer = Writer::new(&world, 1);
    let first = world.put(b"k", b"by the server");
    for steps in [2, 3, 3, 2] {
        let version = writer.update(b"k", &[steps as u8; 40], steps).expect("room");
        assert_eq!(world.get(b"k"), Some((vec![steps as u8; 40], version)), "{steps} steps");
        let reader = RawReader::open(&world.engine, "t").expect("in the catalog");
        let slot = reader.slots_of(b"k")[0];
        assert!(matches!(reader.follow(slot, b"k"), Raw::Hit(..)), "the slot was repaired");
    }
    // What is written and not linked is nothing.
    writer.update(b"k", b"nobody sees it", 1).expect("room");
    assert_eq!(world.get(b"k"), Some((vec![2; 40], first + 4)));
    // A long chain, then each thing that the server may do.
    let chain = |writer: &mut Writer<'_>| {
        (0..9_u8).for_each(|n| assert!(writer.update(b"k", &[n; 8], 3).is_some()));
    };
    chain(&mut writer);
    let error = world.table.put(b"k", b"x", Expect::Version(first + 4), Ttl::Never, 0);
    assert_eq!(error.map_err(|e| e.code), Err(ErrorCode::Unexpected));
    assert_eq!(world.put(b"k", b"y"), first + 14);
    chain(&mut writer);
    assert_eq!(world.table.append(b"k", b"+").expect("append"), first + 24);
    assert_eq!(world.value(b"k"), Some([&[8; 8][..], b"+"].concat()));
    chain(&mut writer);
    assert!(world.table.relocate(b"k").expect("relocate"));
    assert_eq!(world.get(b"k"), Some((vec![8; 8], first + 33)));
    chain(&mut writer);
    assert!(world.table.delete(b"k", Expect::Version(first + 42)).expect("delete"));
    assert_eq!(world.get(b"k"), None);
    assert!(world.put(b"k", b"again") > first + 42, "no version comes twice");
    writer.seal();
    assert_eq!(world.value(b"k"), Some(b"again".to_vec()));
    assert_eq!(world.broken(), 0);
}

/// Clients go on with one key while the server's process does not run: a chain of all that they had
/// room for.
#[test]
fn no_chain_is_too_long_for_a_server_that_has_stood_still() {
    let world = World::new(small(64 << 20));
    let mut newest = None;
    let (mut writers, mut updates) = (vec![], 0_u32);
    world.put(b"k", b"first");
    for session in 0..150 {
        for _ in 0..LEASES_MAX {
            let mut writer = Writer::new(&world, session);
            let mut from = newest.unwrap_or_else(|| writer.newest(b"k"));
            while let Some(next) = writer.update_from(from, b"k", &updates.to_le_bytes(), 3) {
                (from, updates) = (next, updates + 1);
            }
            newest = Some(from);
            writers.push(writer);
        }
    }
    assert!(updates > 100_000, "{updates}");
    assert_eq!(world.value(b"k"), Some((updates - 1).to_le_bytes().to_vec()));
    assert_eq!(world.broken(), 0);
    writers.into_iter().for_each(Writer::seal);
    assert_eq!(world.value(b"k"), Some((updates - 1).to_le_bytes().to_vec()));
}

#[test]
fn an_entry_is_told_to_be_linked_or_not() {
    let world = World::new(small(16 << 20));
    let mut writer = Writer::new(&world, 1);
    world.put(b"k", b"v");
    let id = world.info.id;
    for (steps, linked) in [(1, false), (2, true), (3, true)] {
        let at = LogAddr::new(writer.addr.region(), writer.addr.offset_bytes() + writer.used_bytes);
        writer.update(b"k", b"w", steps).expect("room");
        assert_eq!(world.engine.linked(1, id, b"k", at).expect("its own"), linked, "{steps}");
        world.put(b"k", b"by the server");
        assert_eq!(world.engine.linked(1, id, b"k", at).expect("its own"), linked, "{steps}");
        let others = world.engine.linked(2, id, b"k", at).map_err(|error| error.code);
        assert_eq!(others, Err(ErrorCode::BadOption));
    }
    let at = writer.addr;
    writer.seal();
    assert!(world.engine.linked(1, id, b"k", at).is_err(), "it has no such lease any more");
}

#[test]
fn leases_are_bounded_and_all_comes_back() {
    let world = World::new(small(16 << 20));
    let id = world.info.id;
    let before = world.log_bytes();
    let leases: Vec<_> = (0..LEASES_MAX).map(|_| Writer::new(&world, 1)).collect();
    let refused = world.engine.lease(1, id, 1).map_err(|error| error.code);
    assert_eq!(refused, Err(ErrorCode::TooLarge));
    assert!(world.engine.lease(2, id, 1 << 30).expect("another session's").1 <= 4096);
    assert_eq!(world.engine.cas_status().leases, LEASES_MAX as u64 + 1);
    assert!(!world.engine.seal(2, leases[0].addr), "not its own");
    assert!(world.engine.seal(1, leases[0].addr));
    assert!(!world.engine.seal(1, leases[0].addr), "once");
    assert_eq!(world.engine.take_back(1), LEASES_MAX - 1);
    assert!(world.engine.has_leases(2) && !world.engine.has_leases(1));
    assert_eq!(world.engine.take_back(2), 1);
    assert_eq!(world.log_bytes(), before, "nothing was written there");
    let rpc = world.engine.create_table("rpc", TableOptions::default()).expect("table");
    let refused = world.engine.lease(1, rpc.id, 1).map_err(|error| error.code);
    assert_eq!(refused, Err(ErrorCode::BadOption));
    // A lease outlives its table.
    let (addr, _) = world.engine.lease(1, id, 1).expect("there is memory");
    world.engine.drop_table("t", Vec::new()).expect("drop");
    assert!(world.engine.seal(1, addr));
}

/// Random updates by clients, and all that the server does, against a map. In the end all memory
/// must have come back.
fn random_run(seed: u64, config: EngineConfig) {
    let world = World::new(config);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut model: std::collections::BTreeMap<u8, Vec<u8>> = Default::default();
    let writer = |n| Writer::try_new(&world, n, 1).expect("there is memory");
    let mut writers: Vec<Writer<'_>> = (0..3).map(writer).collect();
    for step in 0..3_000_u32 {
        let number = random.random_range(0..12_u8);
        let key = [b'k', number];
        let value = vec![step as u8; random.random_range(0..200)];
        match random.random_range(0..20) {
            0..10 if model.contains_key(&number) => {
                let writer = random.random_range(0..writers.len());
                let steps = random.random_range(1..=3);
                if writers[writer].update(&key, &value, steps).is_none() {
                    let session = writers[writer].session;
                    let wanted_bytes = random.random_range(1..5_000);
                    // As a client does: without one it would ask the server for its updates.
                    if let Some(next) = Writer::try_new(&world, session, wanted_bytes) {
                        std::mem::replace(&mut writers[writer], next).seal();
                    }
                } else if steps > 1 {
                    model.insert(number, value);
                    // Somebody commits it before it can be replaced again.
                    if steps == 2 {
                        assert_eq!(world.value(&key).as_ref(), model.get(&number), "{seed} {step}");
                    }
                }
            }
            10..13 => {
                world.put(&key, &value);
                model.insert(number, value);
            }
            13 => {
                let was = world.table.delete(&key, Expect::Any).expect("delete");
                assert_eq!(was, model.remove(&number).is_some(), "{seed} {step}");
            }
            14 => {
                world.table.relocate(&key).expect("relocate");
            }
            15..18 => _ = world.engine.clean(),
            _ => assert_eq!(world.value(&key).as_ref(), model.get(&number), "{seed} {step}"),
        }
    }
    for number in 0..12 {
        let value = world.value(&[b'k', number]);
        assert_eq!(value.as_ref(), model.get(&number), "seed {seed}, key {number}");
    }
    let padded_bytes = |value: &Vec<u8>| (HEADER_BYTES + 2 + value.len()).next_multiple_of(16);
    let live_bytes: usize = model.values().map(padded_bytes).sum();
    assert_eq!(world.live_bytes(), live_bytes as u64, "seed {seed}");
    world.assert_sums();
    writers.into_iter().for_each(Writer::seal);
    for number in 0..12 {
        let value = world.value(&[b'k', number]);
        assert_eq!(value.as_ref(), model.get(&number), "seed {seed}, key {number}, sealed");
        world.table.delete(&[b'k', number], Expect::Any).expect("delete");
    }
    assert_eq!(world.broken(), 0, "seed {seed}");
    // What is left is the segments that are appended to.
    let left = world.log_bytes();
    assert!(left <= 2 * 4096, "seed {seed}: {left} bytes did not come back");
}

#[test]
fn random_updates_by_both_sides_agree_with_a_map() {
    for seed in 0..60 {
        random_run(seed, EngineConfig { cleaning: Cleaning::Aggressive, ..small(4 << 20) });
        random_run(seed, EngineConfig { cleaning: Cleaning::Auto, ..small(4 << 20) });
    }
}

/// Entries of 80 bytes are READ as 128. Where a client changes what they say of their lengths, sums
/// hold all the same.
#[test]
fn live_bytes_are_those_of_the_entries() {
    const KEYS: u64 = 1_000;
    const ENTRY_BYTES: u64 = 80;
    let world = World::new(small(4 << 20));
    let key = |n: u64| n.to_le_bytes();
    let mut writers: Vec<_> = (0..3).map(|n| Writer::new(&world, n)).collect();
    for n in 0..KEYS {
        world.put(&key(n), &[1; 40]);
    }
    let updated: Vec<_> = (0..KEYS).step_by(7).collect();
    for (n, at) in updated.iter().zip((0..3).cycle()) {
        writers[at].update(&key(*n), &[2; 40], 3).expect("room");
        assert_eq!(world.value(&key(*n)), Some(vec![2; 40]), "its slot points there");
    }
    assert_eq!(world.live_bytes(), KEYS * ENTRY_BYTES);
    world.assert_sums();
    writers.into_iter().for_each(Writer::seal);
    for n in 0..KEYS / 2 {
        world.table.delete(&key(n), Expect::Any).expect("delete");
    }
    assert_eq!(world.live_bytes(), KEYS / 2 * ENTRY_BYTES);
    for n in KEYS / 2..KEYS {
        let addr = world.slot_addr(&key(n));
        let lie = if n % 2 == 0 { 0 } else { u32::MAX };
        let at = addr.offset_bytes() + VALUE_LEN_OFFSET;
        let memory = world.engine.region(addr.region()).expect("a region");
        memory.write_bytes(at, &lie.to_le_bytes()).expect("inside");
        world.table.delete(&key(n), Expect::Any).expect("it is gone");
        world.assert_sums();
    }
    assert_eq!(world.broken(), KEYS / 2);
    assert!(world.log_bytes() <= 2 * 4096, "{} bytes did not come back", world.log_bytes());
}

/// What a client does to entries of a segment so that a walk does not meet them.
#[derive(Clone, Copy, Debug)]
enum Hides {
    /// It says that they are dead.
    Dead,
    /// It says that the first one has no end.
    Length,
    /// It writes other keys into them.
    Key,
}

/// A segment whose slots lead where no walk does is emptied all the same, and cleaning has an end.
#[test]
fn segments_that_a_client_hides_slots_into_are_emptied() {
    for hides in [Hides::Dead, Hides::Length, Hides::Key] {
        let world = World::new(EngineConfig { cleaning: Cleaning::Auto, ..small(4 << 20) });
        let key = |n: u32| format!("key {n}").into_bytes();
        let mut writer = Writer::new(&world, 1);
        for n in 0..20 {
            world.put(&key(n), &[7; 60]);
            writer.update(&key(n), &[8; 60], 3).expect("room");
        }
        // Its slots point into the lease.
        (0..20).for_each(|n| assert_eq!(world.value(&key(n)), Some(vec![8; 60])));
        let newest: Vec<_> = (0..20).map(|n| writer.newest(&key(n))).collect();
        let first = writer.addr;
        writer.seal();
        let store = |addr: LogAddr, bytes: usize, word: u64| {
            let memory = world.engine.region(addr.region()).expect("a region");
            let at = addr.offset_bytes() + bytes;
            memory.write_bytes(at, &word.to_le_bytes()).expect("inside");
        };
        match hides {
            Hides::Dead => {
                newest[..15].iter().for_each(|n| store(n.addr, 0, State::dead(Death::Deleted)));
            }
            Hides::Length => store(first, VALUE_LEN_OFFSET, u64::from(u32::MAX)),
            Hides::Key => newest[..15].iter().for_each(|n| store(n.addr, HEADER_BYTES, 0)),
        }
        // Half of the segment dies as it should.
        for n in 15..18 {
            world.table.delete(&key(n), Expect::Any).expect("delete");
        }
        let cleans = (0..100).take_while(|_| world.engine.clean()).count();
        assert!(cleans < 100, "{hides:?}: it has no end");
        let reader = RawReader::open(&world.engine, "t").expect("in the catalog");
        let in_lease = |n: u32| {
            let slots = reader.slots_of(&key(n)).into_iter().filter_map(|slot| slot.addr());
            let bytes = first.offset_bytes()..first.offset_bytes() + 4096;
            let is_in = |at: LogAddr| at.region() == first.region();
            slots.into_iter().any(|at| is_in(at) && bytes.contains(&at.offset_bytes()))
        };
        assert!((0..20).all(|n| !in_lease(n)), "{hides:?}: the segment is not empty");
        let lost = if matches!(hides, Hides::Length) { 1 } else { 15 };
        assert_eq!(world.broken(), lost, "{hides:?}");
        (18..20).for_each(|n| assert_eq!(world.value(&key(n)), Some(vec![8; 60]), "{hides:?}"));
        for n in 0..20 {
            world.table.delete(&key(n), Expect::Any).expect("delete");
        }
        assert!(world.log_bytes() <= 2 * 4096, "{hides:?}: {} bytes", world.log_bytes());
    }
}

/// Nonsense in a lease: nothing panics, no other key is harmed, and the memory comes back.
#[test]
fn nonsense_in_a_lease_harms_only_what_was_linked_to_it() {
    for seed in 0..300 {
        let mut random = SmallRng::seed_from_u64(seed);
        let world = World::new(EngineConfig {
            cleaning: Cleaning::Aggressive,
            split_load_percent: 1,
            ..small(4 << 20)
        });
        let other = world.engine.create_table("other", CAS).expect("table");
        let other = world.engine.table(other.id).expect("by id");
        let key = |n: u32| format!("key {n}").into_bytes();
        for n in 0..40 {
            world.put(&key(n), &[7; 60]);
            other.put(&key(n), &[8; 60], Expect::Any, Ttl::Never, 0).expect("put");
        }
        let mut writer = Writer::new(&world, 1);
        let places = nonsense(&mut writer, &mut random);
        // Some keys are linked to it.
        for n in 0..10 {
            let newest = writer.newest(&key(n));
            let at = places[random.random_range(0..places.len())];
            let word = match random.random_range(0..5) {
                0 => State::forwarded(random.random(), at),
                1 => State::forwarded(3, newest.addr),
                2 => random.random(),
                3 => State::forwarded(0, LogAddr::from_bits(random.random()).unwrap_or(at)),
                _ => State::forwarded(1, world.slot_addr(&key(30))),
            };
            assert!(writer.swap(newest.addr, newest.word, word));
        }
        writer.seal();
        for n in 0..200 {
            let _maybe = world.value(&key(n % 10));
            let _maybe = world.table.delete(&key(n % 10), Expect::Any);
            world.put(&key(n), &[7; 60]);
            world.engine.clean();
            world.engine.expire();
        }
        for n in 0..40 {
            if n < 10 {
                world.put(&key(n), &[7; 60]);
            }
            assert_eq!(world.value(&key(n)), Some(vec![7; 60]), "seed {seed}, key {n}");
            let mut value = Vec::new();
            assert!(other.get(&key(n), &mut value).is_some() && value == [8; 60], "seed {seed}");
        }
        assert!(world.broken() <= 10 * 200, "seed {seed}");
        for n in 0..200 {
            world.table.delete(&key(n), Expect::Any).expect("delete");
        }
        (0..100).for_each(|_| _ = world.engine.clean());
        let status = world.engine.list_tables();
        let left = status.iter().find(|table| table.name == "t").expect("it is there");
        assert!(left.log_bytes <= 2 * 4096, "seed {seed}: {} bytes", left.log_bytes);
        world.engine.drop_table("t", Vec::new()).expect("drop");
    }
}

/// Fills the lease with entries that are right, entries that lie and random bytes. Gives places.
fn nonsense(writer: &mut Writer<'_>, random: &mut SmallRng) -> Vec<LogAddr> {
    let mut places = vec![writer.addr];
    for _ in 0..30 {
        let key = format!("key {}", random.random_range(0..12)).into_bytes();
        let header = EntryHeader {
            version: random.random(),
            value_len: if random.random() { 20 } else { random.random() },
            key_len: if random.random() { key.len() as u16 } else { random.random() },
            flags: if random.random() { 0 } else { random.random() },
            ..EntryHeader::default()
        };
        let mut bytes = prefix_bytes(&header, random.random(), &key);
        bytes.resize(bytes.len().next_multiple_of(16) + 32, random.random());
        let Some(addr) = writer.place(bytes.len()) else { break };
        let sum = writer.sums.checksum(addr, &bytes);
        let word = match random.random_range(0..4) {
            0 => State::committed(sum),
            1 => State::pending(sum),
            2 => State::forwarded(1, places[random.random_range(0..places.len())]),
            _ => random.random(),
        };
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        writer.memory(addr).write_bytes(addr.offset_bytes(), &bytes).expect("inside");
        places.push(addr);
    }
    let end =
        LogAddr::new(writer.addr.region(), writer.addr.offset_bytes() + writer.len_bytes - 16);
    places.push(end);
    places
}
