//! RPC over shared memory: values by staging, limits, and what the regions look like to a client.
//! All of it twice: where staging memory is loaded, and where it is READ as over a network.

mod common;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use common::shm::Shm;
use common::*;
use onesided_fabric::shm;
use onesided_fabric::{Opcode, Outcome, PostError, RegionId, RemoteAddr, WorkRequest};
use onesided_protocol::control::ToServer;
use onesided_protocol::limits::KEY_MAX_BYTES;
use onesided_protocol::rpc::{Answer, ErrorCode, Landing, Op, Payload, Reply};
use onesided_server::ServerConfig;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 131 + seed) as u8).collect()
}

/// Each of them over either way to a client's memory.
macro_rules! over_both {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn by_loads() {
                super::$name(super::config());
            }

            #[test]
            fn by_reads() {
                super::$name(super::ServerConfig { staging_loads: false, ..super::config() });
            }
        }
    )*};
}

over_both! {
    small_values_travel_inside
    large_values_go_by_staging_both_ways
    descriptors_outside_the_staging_are_refused
    a_batch_puts_each_value_where_it_belongs
    long_values_without_room_are_not_copied
    a_pipeline_beyond_the_ring_loses_nothing
    regions_are_readable_and_nothing_else
    garbage_closes_and_others_go_on
    a_ticket_of_an_ended_session_is_void
}

fn small_values_travel_inside(config: ServerConfig) {
    let server = start(config);
    let mut client = Shm::open(&server);
    assert_eq!(client.call(0, Op::Ping), Ok(Reply::Pong));
    assert!(client.call(1, put(b"k", b"v")).is_ok());
    let answer = client.call_bytes(0, Op::Get { key: b"k", landing: None });
    let Ok(Reply::Found(found)) = Answer::decode(&answer).expect("decodes").result else {
        panic!("not found")
    };
    assert_eq!(found.value, Payload::Inline(b"v"));
    let key = pattern(KEY_MAX_BYTES, 1);
    assert!(client.call(2, put(&key, &pattern(4096, 2))).is_ok(), "the longest key fits");
    assert_eq!(client.control.stat("endpoints_shm"), 1);
}

fn large_values_go_by_staging_both_ways(config: ServerConfig) {
    let server = start(ServerConfig { value_max_bytes: 4 << 20, ..config });
    let mut client = Shm::open(&server);
    for (n, len) in [80_000, 1 << 20, 4 << 20].into_iter().enumerate() {
        let value = pattern(len, n);
        assert!(client.put_staged(n as u64 + 1, b"k", &value, 4096), "{len}");
        let answer = client.call_bytes(0, Op::Get { key: b"k", landing: None });
        let error = Answer::decode(&answer).expect("decodes").result.expect_err("no landing");
        assert_eq!((error.code, error.text), (ErrorCode::NeedsLanding, len.to_string()));
        let short = Landing { offset_bytes: 0, len_bytes: len as u32 - 1 };
        let answer = client.call_bytes(0, Op::Get { key: b"k", landing: Some(short) });
        let error = Answer::decode(&answer).expect("decodes").result.expect_err("too short");
        assert_eq!(error.code, ErrorCode::NeedsLanding);
        let landing = Landing { offset_bytes: 24, len_bytes: len as u32 };
        let answer = client.call_bytes(0, Op::Get { key: b"k", landing: Some(landing) });
        let Ok(Reply::Found(found)) = Answer::decode(&answer).expect("decodes").result else {
            panic!("not found")
        };
        let staged = Payload::Staged { offset_bytes: 24, len_bytes: len as u32 };
        assert_eq!(found.value, staged);
        let mut read = vec![0; len];
        let staging = client.connected.staging.as_ref().expect("staging");
        staging.read_bytes(24, &mut read).expect("fits");
        assert!(read == value, "{len}");
    }
}

fn descriptors_outside_the_staging_are_refused(config: ServerConfig) {
    let server = start(ServerConfig { value_max_bytes: 1 << 20, ..config });
    let mut client = Shm::open(&server);
    let end = client.connected.staging.as_ref().expect("staging").len_bytes() as u64;
    let mut sequence = 0;
    for (offset_bytes, len_bytes) in
        [(end, 1), (end - 7, 8), (u64::MAX, 1), (u64::MAX - 7, 8), (1 << 63, 100_000)]
    {
        sequence += 1;
        let staged = Payload::Staged { offset_bytes, len_bytes };
        let result = client.call(sequence, put_payload(b"k", staged));
        assert_eq!(code(result), ErrorCode::BadDescriptor, "{offset_bytes} {len_bytes}");
    }
    // Nothing was applied, and nothing is remembered: a connection may have ended meanwhile.
    assert!(client.put_staged(sequence, b"k", &pattern(100_000, 0), 0), "the same number again");
    let staged = Payload::Staged { offset_bytes: 0, len_bytes: (1 << 20) + 1 };
    assert_eq!(code(client.call(6, put_payload(b"k", staged))), ErrorCode::TooLarge);
    assert!(client.put_staged(7, b"k", &pattern(100_000, 1), 0));
    for offset_bytes in [end, end - 99_999, u64::MAX - 10] {
        let landing = Some(Landing { offset_bytes, len_bytes: 100_000 });
        let answer = client.call_bytes(0, Op::Get { key: b"k", landing });
        let error = Answer::decode(&answer).expect("decodes").result.expect_err("refused");
        assert_eq!(error.code, ErrorCode::BadDescriptor);
    }
    assert_eq!(client.call(0, Op::Ping), Ok(Reply::Pong), "the session lives");
}

fn a_batch_puts_each_value_where_it_belongs(config: ServerConfig) {
    let server = start(config);
    let mut client = Shm::open(&server);
    let (small, large) = (pattern(100, 1), pattern(200_000, 2));
    assert!(client.call(1, put(b"s", &small)).is_ok());
    assert!(client.put_staged(2, b"l", &large, 0));
    let landing = Some(Landing { offset_bytes: 1 << 20, len_bytes: 200_000 });
    let batch = Op::Batch(vec![
        Op::Get { key: b"s", landing: None },
        Op::Get { key: b"l", landing },
        Op::Get { key: b"l", landing: None },
        put(b"t", b"v"),
    ]);
    let answer = client.call_bytes(3, batch.clone());
    let Ok(Reply::Batch(replies)) = Answer::decode(&answer).expect("decodes").result else {
        panic!("no batch")
    };
    assert!(matches!(&replies[0], Ok(Reply::Found(f)) if f.value == Payload::Inline(&small)));
    let staged = Payload::Staged { offset_bytes: 1 << 20, len_bytes: 200_000 };
    assert!(matches!(&replies[1], Ok(Reply::Found(f)) if f.value == staged));
    assert_eq!(replies[2].as_ref().expect_err("no landing").code, ErrorCode::NeedsLanding);
    assert!(matches!(&replies[3], Ok(Reply::Done { .. })));
    let mut read = vec![0; 200_000];
    let staging = client.connected.staging.as_ref().expect("staging");
    staging.read_bytes(1 << 20, &mut read).expect("fits");
    assert!(read == large);
    // A retry does not write into memory that the client may use otherwise by now.
    staging.zero(1 << 20, 200_000).expect("fits");
    let answer = client.call_bytes(3, batch);
    let Ok(Reply::Batch(retried)) = Answer::decode(&answer).expect("decodes").result else {
        panic!("no batch")
    };
    assert_eq!(retried[1].as_ref().expect_err("not kept").code, ErrorCode::NeedsLanding);
    assert_eq!(retried[3], replies[3]);
}

fn long_values_without_room_are_not_copied(config: ServerConfig) {
    let server = start(config);
    let mut client = Shm::open(&server);
    assert!(client.put_staged(1, b"k", &pattern(20 << 20, 0), 0));
    // One of them has room.
    let landing = Some(Landing { offset_bytes: 0, len_bytes: 20 << 20 });
    for landing in [None, landing] {
        let gets = Op::Batch(vec![Op::Get { key: b"k", landing }; 1024]);
        // To copy all of them would be 20 GiB.
        let quick = (0..5).any(|_| {
            let begun = Instant::now();
            let answer = client.call_bytes(0, gets.clone());
            let took = begun.elapsed();
            let Ok(Reply::Batch(replies)) = Answer::decode(&answer).expect("decodes").result else {
                panic!("no batch")
            };
            let found = replies.iter().filter(|reply| reply.is_ok()).count();
            assert_eq!(found, usize::from(landing.is_some()));
            took < Duration::from_secs(1)
        });
        assert!(quick, "{landing:?}");
    }
}

fn a_pipeline_beyond_the_ring_loses_nothing(config: ServerConfig) {
    let server = start(config);
    let mut client = Shm::open(&server);
    let (total, mut sent, mut received) = (5_000u64, 0, 0);
    let mut chain = VecDeque::new();
    while received < total {
        while sent < total && chain.len() < 16 && sent - received < 64 {
            sent += 1;
            let op = Op::Increment { key: b"n", by: 1 };
            chain.push_back(client.request(sent, op));
        }
        match client.connected.endpoint.post(&mut chain) {
            Ok(()) | Err(PostError::Full) => {}
            Err(error) => panic!("{error}"),
        }
        let answer = client.receive();
        received += 1;
        let Ok(Reply::Number { value, .. }) = reply(&answer) else { panic!("no number") };
        assert_eq!(value as u64, received);
    }
}

fn regions_are_readable_and_nothing_else(config: ServerConfig) {
    let server = start(config);
    let mut client = Shm::open(&server);
    assert!(client.call(1, put(b"k", b"v")).is_ok());
    let endpoint = client.connected.endpoint.clone();
    let regions = server.engine().regions();
    for id in 0..regions {
        endpoint.attach(RegionId(id), &[]).expect("offered");
        let mut word = [0];
        let remote = RemoteAddr { region: RegionId(id), offset_bytes: 0 };
        endpoint.read_now(remote, &mut word).expect("at once").expect("readable");
    }
    assert!(endpoint.attach(RegionId(regions), &[]).is_err(), "no such region");
    let remote = RemoteAddr { region: RegionId(0), offset_bytes: 0 };
    let op = Opcode::Write { remote, from: client.pool.copy_of(&[0; 8]) };
    let _refused_here =
        endpoint.post(&mut VecDeque::from([WorkRequest { id: 1, signaled: true, op }]));
    assert!(matches!(client.next(), Outcome::Failed(..)));
    assert!(client.is_closed());
}

fn garbage_closes_and_others_go_on(config: ServerConfig) {
    let server = start(config);
    let mut good = Shm::open(&server);
    for length in [0, 1, 23, 24, 25, 4000] {
        let mut client = Shm::open(&server);
        let message = client.pool.copy_of(&vec![0xee; length]);
        let send = WorkRequest { id: 1, signaled: false, op: Opcode::Send { message } };
        client.connected.endpoint.post(&mut VecDeque::from([send])).expect("posts");
        let answer = client.receive();
        let error = Answer::decode(&answer).expect("decodes").result.expect_err("refused");
        assert_eq!(error.code, ErrorCode::Malformed, "{length}");
        assert!(client.is_closed());
        assert_eq!(good.call(0, Op::Ping), Ok(Reply::Pong));
    }
}

fn a_ticket_of_an_ended_session_is_void(config: ServerConfig) {
    let server = start(config);
    let mut control = Control::open(server.addr());
    let ticket = control.ticket();
    let blob = control.welcome.fabrics[0].blob.clone();
    control.ask(&ToServer::Goodbye);
    let refused = shm::connect(&blob, &ticket, 1, PATIENCE);
    assert!(matches!(refused, Err(shm::ConnectError::Refused(_))), "{refused:?}");
}

#[test]
fn values_of_a_batch_that_are_loaded_are_bounded() {
    let server = start(config());
    let mut client = Shm::open(&server);
    assert!(client.put_staged(1, b"k", &pattern(10 << 20, 0), 0));
    // Ten times the same bytes.
    let staged = Payload::Staged { offset_bytes: 0, len_bytes: 10 << 20 };
    let answer = client.call_bytes(2, Op::Batch(vec![put_payload(b"k", staged); 10]));
    let Ok(Reply::Batch(replies)) = Answer::decode(&answer).expect("decodes").result else {
        panic!("no batch")
    };
    let done = replies.iter().map(Result::is_ok).collect::<Vec<_>>();
    assert_eq!(done, (0..10).map(|n| n < 7).collect::<Vec<_>>(), "64 MiB, and the last one");
}
