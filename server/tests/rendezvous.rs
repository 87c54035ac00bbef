//! Values that the server READs from clients' memory as over a network: of all lengths, many at
//! once, from clients that die in the middle of it, and once.

mod common;

use std::collections::VecDeque;

use common::shm::Shm;
use common::*;
use onesided_fabric::WorkRequest;
use onesided_protocol::control::ToServer;
use onesided_protocol::rpc::{Answer, ErrorCode, Landing, Op, Payload, Reply};
use onesided_server::{Server, ServerConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn reads() -> ServerConfig {
    ServerConfig { staging_loads: false, memory_bytes: 512 << 20, ..config() }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 131 + seed) as u8).collect()
}

fn write(client: &Shm, at: u64, value: &[u8]) {
    let staging = client.connected.staging.as_ref().expect("staging");
    staging.write_bytes(at as usize, value).expect("fits");
}

fn staged(offset_bytes: u64, len_bytes: usize) -> Payload<'static> {
    Payload::Staged { offset_bytes, len_bytes: len_bytes as u32 }
}

fn get(client: &mut Shm, key: &[u8], len: usize) -> Vec<u8> {
    let landing = Some(Landing { offset_bytes: 8, len_bytes: len.max(1) as u32 });
    let bytes = client.call_bytes(0, Op::Get { key, landing });
    let Ok(Reply::Found(found)) = Answer::decode(&bytes).expect("decodes").result else {
        panic!("not found")
    };
    match found.value {
        Payload::Inline(value) => value.to_vec(),
        Payload::Staged { offset_bytes, len_bytes } => {
            let mut value = vec![0; len_bytes as usize];
            let staging = client.connected.staging.as_ref().expect("staging");
            staging.read_bytes(offset_bytes as usize, &mut value).expect("inside");
            value
        }
        Payload::Lent { .. } => panic!("no answer is in a lent buffer"),
    }
}

fn stat(server: &Server, name: &str) -> u64 {
    let stats = server.stats();
    stats.into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn every_length() {
    let server = start(reads());
    let mut client = Shm::open(&server);
    let lens = [0, 1, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, 65_536, 1 << 20, (8 << 20) + 1];
    let mut sequence = 0;
    for len in lens.into_iter().chain([(32 << 20) - 1, 32 << 20]) {
        sequence += 1;
        let value = pattern(len, sequence as usize);
        assert!(client.put_staged(sequence, b"k", &value, sequence), "{len}");
        assert!(get(&mut client, b"k", len) == value, "{len}");
    }
    assert_eq!(stat(&server, "values_fetched"), sequence - 1, "nothing is read for nothing");
    assert_eq!(stat(&server, "value_fetches_pending"), 0);
}

#[test]
fn many_at_once_within_a_small_budget() {
    const CLIENTS: usize = 12;
    const EACH: usize = 60;
    let server = start(ServerConfig { rendezvous_bytes: 300_000, ..reads() });
    let clients: Vec<_> = (0..CLIENTS).map(|_| Shm::open(&server)).collect();
    let seed: u64 = rand::random::<u64>() >> 1;
    println!("seed {seed}");
    std::thread::scope(|scope| {
        for (n, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed + n as u64);
                // Some of them are longer than the whole budget.
                let lens: Vec<usize> = (0..EACH).map(|_| rng.random_range(1..500_000)).collect();
                let keys: Vec<String> = (0..EACH).map(|i| format!("{n}-{i}")).collect();
                let mut chain = VecDeque::new();
                for (i, key) in keys.iter().enumerate() {
                    write(&client, i as u64 * 500_000, &pattern(lens[i], n * 99 + i));
                    let op = put_payload(key.as_bytes(), staged(i as u64 * 500_000, lens[i]));
                    chain.push_back(client.request(1 + i as u64, op));
                }
                client.connected.endpoint.post(&mut chain).expect("posts");
                for _ in 0..EACH {
                    assert!(matches!(reply(&client.receive()), Ok(Reply::Done { .. })));
                }
                for (i, key) in keys.iter().enumerate() {
                    let value = get(&mut client, key.as_bytes(), lens[i]);
                    assert!(value == pattern(lens[i], n * 99 + i), "client {n}, value {i}");
                }
            });
        }
    });
    assert_eq!(stat(&server, "value_fetches_pending"), 0);
    assert_eq!(stat(&server, "endpoints_closed_by_server"), 0);
}

fn request(client: &mut Shm, sequence: u64, key: &[u8], len: usize) -> WorkRequest {
    client.request(sequence, put_payload(key, staged(0, len)))
}

#[test]
fn clients_that_die_in_the_middle() {
    let server = start(ServerConfig { rendezvous_bytes: 1 << 20, ..reads() });
    let mut good = Shm::open(&server);
    let value = pattern(100_000, 3);
    for round in 0..40u64 {
        let mut dying = Shm::open(&server);
        write(&dying, 0, &pattern(600_000, round as usize));
        let mut chain: VecDeque<_> =
            (1..=50).map(|n| request(&mut dying, n, b"dying", 600_000)).collect();
        dying.connected.endpoint.post(&mut chain).expect("posts");
        if round % 2 == 0 {
            dying.control.ask(&ToServer::Goodbye);
        }
        drop(dying);
        assert!(good.put_staged(round + 1, b"good", &value, 0));
        assert!(get(&mut good, b"good", value.len()) == value);
    }
    eventually("they are gone", || stat(&server, "endpoints_shm") == 1);
    assert_eq!(stat(&server, "value_fetches_pending"), 0);
    // What of them was applied was applied whole.
    let whole = get(&mut good, b"dying", 600_000);
    assert!((0..40).any(|round| whole == pattern(600_000, round)));
}

#[test]
fn appended_once_however_often_it_is_retried() {
    let server = start(reads());
    let mut client = Shm::open(&server);
    let piece = pattern(5_000, 1);
    let rounds = 30;
    for round in 1..=rounds {
        write(&client, 64, &piece);
        let op = Op::Append { key: b"k", value: staged(64, piece.len()) };
        let first = client.request(round, op.clone());
        client.connected.endpoint.post(&mut VecDeque::from([first])).expect("posts");
        if round % 3 == 0 {
            client.receive();
        }
        // Sometimes it is applied before the end, sometimes not.
        client = client.resume(&server);
        write(&client, 64, &piece);
        assert!(matches!(client.call(round, op.clone()), Ok(Reply::Done { .. })));
        assert!(matches!(client.call(round, op), Ok(Reply::Done { .. })));
    }
    let all = get(&mut client, b"k", piece.len() * rounds as usize);
    assert!(all == piece.repeat(rounds as usize), "{} bytes", all.len());
}

#[test]
fn descriptors_of_all_kinds_in_batches() {
    let server = start(ServerConfig { value_max_bytes: 1 << 20, ..reads() });
    let mut good = Shm::open(&server);
    let mut client = Shm::open(&server);
    let staging_bytes = client.connected.staging.as_ref().expect("staging").len_bytes() as u64;
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    for sequence in 1..=100 {
        let mut total = 0;
        let mut expected = Vec::new();
        let mut ops = Vec::new();
        for _ in 0..rng.random_range(1..40) {
            let len = rng.random_range(0..(1 << 20) + 100_000);
            let offset = match rng.random_range(0..4) {
                0 => rng.random(),
                1 => staging_bytes - rng.random_range(0..300_000),
                _ => rng.random_range(0..staging_bytes / 2),
            };
            let inside = offset.checked_add(len as u64).is_some_and(|end| end <= staging_bytes);
            let fits = inside && total + len as u64 <= staging_bytes;
            expected.push(match () {
                () if len > 1 << 20 => Some(ErrorCode::TooLarge),
                () if !fits => Some(ErrorCode::BadDescriptor),
                () => None,
            });
            if len <= 1 << 20 && fits {
                total += len as u64;
            }
            ops.push(put_payload(b"k", staged(offset, len)));
        }
        let bytes = client.call_bytes(sequence, Op::Batch(ops));
        let Ok(Reply::Batch(results)) = Answer::decode(&bytes).expect("decodes").result else {
            panic!("no batch")
        };
        let codes: Vec<_> = results.into_iter().map(|r| r.err().map(|e| e.code)).collect();
        assert_eq!(codes, expected);
        assert_eq!(good.call(0, Op::Ping), Ok(Reply::Pong));
    }
    assert_eq!(stat(&server, "value_fetches_pending"), 0);
}
