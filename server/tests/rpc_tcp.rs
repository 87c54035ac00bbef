//! The operations over tcp: values of all sizes, limits, back-pressure.

mod common;

use common::*;
use onesided_protocol::control::{Heartbeat, ToClient, ToServer};
use onesided_protocol::limits::KEY_MAX_BYTES;
use onesided_protocol::rpc::{Answer, ErrorCode, Expect, Op, Payload, Reply, Ttl};
use onesided_server::ServerConfig;

#[test]
fn operations() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    data.ping();
    assert_eq!(data.get(b"k"), None);
    assert!(data.call(1, put(b"k", b"v")).is_ok());
    assert_eq!(data.get(b"k").as_deref(), Some(&b"v"[..]));
    assert!(data.call(2, Op::Append { key: b"k", value: Payload::Inline(b"w") }).is_ok());
    assert_eq!(data.get(b"k").as_deref(), Some(&b"vw"[..]));
    let write_at = |key| Op::WriteAt { key, offset_bytes: 3, value: Payload::Inline(b"x") };
    assert!(matches!(data.call(9, write_at(b"k")), Ok(Reply::Done { .. })));
    assert_eq!(data.get(b"k").as_deref(), Some(&b"vw\0x"[..]));
    assert_eq!(data.call(10, write_at(b"none")), Ok(Reply::Absent));
    assert_eq!(code(data.call(3, Op::Increment { key: b"k", by: 1 })), ErrorCode::WrongType);
    let touched = data.call(4, Op::Touch { key: b"k", ttl: Ttl::Seconds(9) });
    assert!(matches!(touched, Ok(Reply::Done { .. })), "{touched:?}");
    assert_eq!(data.call(5, Op::Touch { key: b"x", ttl: Ttl::Never }), Ok(Reply::Absent));
    assert_eq!(data.call(6, Op::Delete { key: b"k", expect: Expect::Any }), Ok(Reply::Deleted));
    assert!(data.call(7, put(b"", b"the empty key")).is_ok());
    assert_eq!(data.get(b"").as_deref(), Some(&b"the empty key"[..]));
    data.table += 1000;
    assert_eq!(code(data.call(8, put(b"k", b"v"))), ErrorCode::NoSuchTable);
    assert_eq!(control.stat("rpc_put_ok"), 2);
    assert_eq!(control.stat("rpc_put_failed"), 1);
    assert_eq!(control.stat("rpc_get_miss"), 1);
    assert_eq!(control.stat("endpoints_tcp"), 1);
}

#[test]
fn values_up_to_the_limit_and_not_beyond() {
    let value_max_bytes = 3 << 20;
    let server = start(ServerConfig { value_max_bytes, ..config() });
    let (_control, mut data) = connect(server.addr());
    let key = vec![b'k'; KEY_MAX_BYTES];
    let lengths = [0, 1, 4096, 16 << 10, (16 << 10) + 1, 1 << 20, value_max_bytes];
    for (n, len) in lengths.into_iter().enumerate() {
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + n) as u8).collect();
        assert!(data.call(n as u64 + 1, put(&key, &value)).is_ok(), "{len}");
        assert!(data.get(&key).as_ref() == Some(&value), "{len}");
    }
    let error = data.call(8, put(b"k", &vec![0; value_max_bytes + 1])).expect_err("too large");
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert!(error.text.contains("3145728"), "{}", error.text);
    data.ping();
    let error = data.call(9, put(&vec![0; KEY_MAX_BYTES + 1], b"")).expect_err("too large");
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert!(error.text.contains("65535"), "{}", error.text);
    data.ping();
}

#[test]
fn there_is_no_staging_over_tcp() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let staged = Payload::Staged { offset_bytes: 0, len_bytes: 8 };
    assert_eq!(code(data.call(1, put_payload(b"k", staged))), ErrorCode::BadDescriptor);
    assert_eq!(data.get(b"k"), None);
}

#[test]
fn a_batch_that_overflows_says_what_is_missing() {
    let server = start(ServerConfig { value_max_bytes: 100_000, ..config() });
    let (_control, mut data) = connect(server.addr());
    let value = vec![1; 90_000];
    assert!(data.call(1, put(b"a", &value)).is_ok());
    assert!(data.call(2, put(b"b", &value)).is_ok());
    let get = |key| Op::Get { key, landing: None };
    let batch = Op::Batch(vec![get(&b"a"[..]), get(b"b"), get(b"x"), Op::Ping]);
    let bytes = data.call_bytes(0, batch);
    let Ok(Reply::Batch(replies)) = Answer::decode(&bytes).expect("decodes").result else {
        panic!("no batch")
    };
    assert!(matches!(&replies[0], Ok(Reply::Found(_))));
    let error = replies[1].as_ref().expect_err("does not fit");
    assert_eq!((error.code, error.text.as_str()), (ErrorCode::NeedsLanding, "90000"));
    assert_eq!((&replies[2], &replies[3]), (&Ok(Reply::Absent), &Ok(Reply::Pong)));
}

#[test]
fn a_batch_that_rewrites_much_is_broken_off() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    assert!(data.call(1, put(b"k", &vec![0; 10 << 20])).is_ok());
    let append = Op::Append { key: b"k", value: Payload::Inline(b"+") };
    let touch = Op::Touch { key: b"k", ttl: Ttl::Never };
    let write = Op::WriteAt { key: b"k", offset_bytes: 0, value: Payload::Inline(b"-") };
    let ops = [[append, touch, write].as_slice(); 4].concat();
    let ops = [ops.as_slice(), &[Op::Ping, Op::Get { key: b"none", landing: None }]].concat();
    for (sequence, len) in [(2, (10 << 20) + 3), (2, (10 << 20) + 3), (3, (10 << 20) + 6)] {
        let bytes = data.call_bytes(sequence, Op::Batch(ops.clone()));
        let Ok(Reply::Batch(replies)) = Answer::decode(&bytes).expect("decodes").result else {
            panic!("no batch")
        };
        for (n, reply) in replies.iter().enumerate() {
            match reply {
                Ok(Reply::Done { .. }) => assert!(n < 7, "{n}: after more than 64 MiB"),
                Err(error) => assert_eq!((n >= 7, error.code), (true, ErrorCode::NeedsLanding)),
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!(data.get(b"k").map(|value| value.len()), Some(len), "once");
    }
}

#[test]
fn a_full_batch() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let keys: Vec<_> = (0..1024u32).map(u32::to_le_bytes).collect();
    let puts = keys.iter().map(|key| put(key, b"value")).collect();
    let bytes = data.call_bytes(1, Op::Batch(puts));
    let Ok(Reply::Batch(replies)) = Answer::decode(&bytes).expect("decodes").result else {
        panic!("no batch")
    };
    assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Done { .. }))));
    assert!(keys.iter().all(|key| data.get(key).as_deref() == Some(&b"value"[..])));
}

#[test]
fn a_reader_that_does_not_read_is_held_back_and_then_served() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let value: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    assert!(data.call(1, put(b"k", &value)).is_ok());
    // 40 MiB of answers: far more than sockets and send buffer take.
    for _ in 0..40 {
        data.send(0, Op::Get { key: b"k", landing: None });
    }
    let (_other_control, mut other) = connect(server.addr());
    other.ping();
    for n in 0..40 {
        let bytes = read_frame(&mut data.stream).expect("an answer");
        let Ok(Reply::Found(found)) = Answer::decode(&bytes).expect("decodes").result else {
            panic!("answer {n}")
        };
        assert!(found.value == Payload::Inline(&value), "answer {n}");
    }
    data.ping();
}

#[test]
fn more_than_the_credits_closes() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    let value = vec![0; 1 << 20];
    assert!(data.call(1, put(b"k", &value)).is_ok());
    for _ in 0..200 {
        data.send(0, Op::Get { key: b"k", landing: None });
    }
    eventually("the endpoint closes", || control.stat("endpoints_tcp") == 0);
    assert_eq!(control.stat("endpoints_closed_by_server"), 1);
}

#[test]
fn one_that_takes_no_answers_for_a_lease_is_closed() {
    let server = start(ServerConfig { session_lease_ms: 1_000, ..config() });
    let (mut control, mut data) = connect(server.addr());
    assert!(data.call(1, put(b"k", &vec![0; 1 << 20])).is_ok());
    for _ in 0..40 {
        data.send(0, Op::Get { key: b"k", landing: None });
    }
    eventually("the endpoint closes", || {
        let beat = control.ask(&ToServer::Heartbeat(Heartbeat::default()));
        assert!(matches!(beat, ToClient::Alive { .. }), "its session goes on");
        control.stat("endpoints_tcp") == 0
    });
    assert_eq!(control.stat("endpoints_closed_by_server"), 1);
    let ticket = control.ticket();
    Data::open(server.addr(), &ticket, data.table).ping();
}
