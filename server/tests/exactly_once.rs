//! A mutation whose answer was lost is retried, and applied once.

mod common;

use std::time::Duration;

use common::*;
use onesided_protocol::rpc::{Answer, ErrorCode, Expect, Op, Payload, Reply, RpcError, Ttl};
use onesided_server::ServerConfig;

const INCREMENT: Op<'static> = Op::Increment { key: b"n", by: 1 };

fn number(reply: Result<Reply<'static>, RpcError>) -> u64 {
    match reply {
        Ok(Reply::Number { value, .. }) => value as u64,
        other => panic!("{other:?}"),
    }
}

#[test]
fn killed_before_the_answer_resumed_and_retried() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    let table = data.table;
    for round in 1..=30 {
        // Sent, and its answer never read: sometimes it is applied before the end, sometimes not.
        data.send(round, INCREMENT);
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(data);
        control = Control::resume(server.addr(), &control.welcome);
        assert!(control.welcome.resumed);
        let applied = control.welcome.applied_sequence;
        assert!(applied == round || applied == round - 1, "{applied} in round {round}");
        let ticket = control.welcome.ticket;
        data = Data::open(server.addr(), &ticket, table);
        let first = data.call_bytes(round, INCREMENT);
        let second = data.call_bytes(round, INCREMENT);
        assert_eq!(first[8..], second[8..], "the same answer again");
        assert_eq!(number(reply(&second)), round);
    }
    assert_eq!(data.get(b"n").as_deref(), Some(&b"30"[..]));
}

#[test]
fn answered_as_the_first_time() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let done = data.call(1, put(b"k", b"v")).expect("put");
    assert!(data.call(2, put(b"k", b"w")).is_ok());
    assert_eq!(data.call(1, put(b"k", b"v")), Ok(done), "kept, not applied again");
    assert_eq!(data.get(b"k").as_deref(), Some(&b"w"[..]));
    let delete = Op::Delete { key: b"k", expect: Expect::Any };
    assert_eq!(data.call(3, delete.clone()), Ok(Reply::Deleted));
    assert_eq!(data.call(3, delete.clone()), Ok(Reply::Deleted));
    assert_eq!(data.call(4, delete), Ok(Reply::Absent));
}

#[test]
fn failures_are_kept_too() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let replace = Op::Put {
        key: b"k",
        value: Payload::Inline(b"v"),
        expect: Expect::Present,
        ttl: Ttl::Never,
        user_flags: 0,
    };
    assert_eq!(code(data.call(1, replace.clone())), ErrorCode::Unexpected);
    assert!(data.call(2, put(b"k", b"v")).is_ok());
    assert_eq!(code(data.call(1, replace)), ErrorCode::Unexpected, "the first answer stands");
}

#[test]
fn the_window_is_64_wide() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    for sequence in 1..=100 {
        assert_eq!(number(data.call(sequence, INCREMENT)), sequence);
    }
    assert_eq!(code(data.call(36, INCREMENT)), ErrorCode::SequenceTooOld);
    assert_eq!(number(data.call(37, INCREMENT)), 37);
    assert_eq!(data.get(b"n").as_deref(), Some(&b"100"[..]));
    assert_eq!(control.stat("rpc_retries_answered"), 1);
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    for sequence in 1..=64 {
        data.send(sequence, INCREMENT);
    }
    for sequence in 1..=64 {
        let bytes = read_frame(&mut data.stream).expect("an answer");
        assert_eq!(Answer::decode(&bytes).expect("decodes").id, sequence);
        assert_eq!(number(reply(&bytes)), sequence);
    }
}

#[test]
fn a_mutation_without_a_sequence_number_is_refused() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    assert_eq!(code(data.call(0, put(b"k", b"v"))), ErrorCode::Malformed);
    assert!(data.is_closed());
    let ticket = control.ticket();
    assert_eq!(Data::open(server.addr(), &ticket, data.table).get(b"k"), None);
}

#[test]
fn sessions_do_not_share_numbers() {
    let server = start(config());
    let (_first_control, mut first) = connect(server.addr());
    let (_second_control, mut second) = connect(server.addr());
    assert_eq!(number(first.call(1, INCREMENT)), 1);
    assert_eq!(number(second.call(1, INCREMENT)), 2);
}

#[test]
fn when_the_lease_is_over_a_retry_is_not_applied() {
    let server = start(ServerConfig { session_lease_ms: 200, ..config() });
    let (control, mut data) = connect(server.addr());
    assert_eq!(number(data.call(1, INCREMENT)), 1);
    assert!(data.is_closed(), "the lease is over");
    let again = Control::resume(server.addr(), &control.welcome);
    assert!(!again.welcome.resumed, "the client learns that outcomes are unknown");
    assert_eq!(again.welcome.applied_sequence, 0);
}

#[test]
fn a_batch_is_applied_once_and_its_long_values_are_not_kept() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let big = vec![7; 100_000];
    assert!(data.call(1, put(b"big", &big)).is_ok());
    let get = |key| Op::Get { key, landing: None };
    let batch = Op::Batch(vec![INCREMENT, get(&b"big"[..]), get(b"none"), INCREMENT]);
    let first = data.call_bytes(2, batch.clone());
    let Ok(Reply::Batch(replies)) = Answer::decode(&first).expect("decodes").result else {
        panic!("no batch")
    };
    assert_eq!(replies.len(), 4);
    assert!(matches!(&replies[1], Ok(Reply::Found(f)) if f.value == Payload::Inline(&big)));
    assert_eq!(replies[2], Ok(Reply::Absent));
    let again = data.call_bytes(2, batch);
    let Ok(Reply::Batch(retried)) = Answer::decode(&again).expect("decodes").result else {
        panic!("no batch")
    };
    assert_eq!((&retried[0], &retried[3]), (&replies[0], &replies[3]));
    let error = retried[1].as_ref().expect_err("not kept");
    assert_eq!((error.code, error.text.as_str()), (ErrorCode::NeedsLanding, "100000"));
    assert_eq!(data.get(b"n").as_deref(), Some(&b"2"[..]));
}

/// The answer to a batch, and to its retry.
fn twice(data: &mut Data, sequence: u64, batch: &Op<'_>) -> [Vec<u8>; 2] {
    [(); 2].map(|()| data.call_bytes(sequence, batch.clone()))
}

fn results(answer: &[u8]) -> Vec<Result<Reply<'_>, RpcError>> {
    match Answer::decode(answer).expect("decodes").result {
        Ok(Reply::Batch(results)) => results,
        other => panic!("{other:?}"),
    }
}

#[test]
fn short_answers_to_batches_are_given_again_whole() {
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    assert!(data.call(1, put(b"k", &[7; 900])).is_ok());
    let batch = Op::Batch(vec![Op::Get { key: b"k", landing: None }, INCREMENT]);
    let [first, again] = twice(&mut data, 2, &batch);
    assert!(first.len() > 900 && first[8..] == again[8..]);
    // Texts of errors are no values.
    let table = data.table;
    data.table = 999;
    let batch = Op::Batch(vec![INCREMENT; 40]);
    let [first, again] = twice(&mut data, 3, &batch);
    assert!(first.len() > 2000 && first[8..] == again[8..]);
    data.table = table;
    assert_eq!(data.get(b"n").as_deref(), Some(&b"1"[..]));
}

#[test]
fn of_longer_ones_what_the_batch_overwrites_is_kept() {
    const GET: Op<'static> = Op::Get { key: b"k", landing: None };
    const OTHER: Op<'static> = Op::Get { key: b"other", landing: None };
    let server = start(config());
    let (_control, mut data) = connect(server.addr());
    let old = [7; 3000];
    assert!(data.call(1, put(b"k", &old)).is_ok());
    assert!(data.call(2, put(b"other", &old)).is_ok());
    let batch = Op::Batch(vec![GET, OTHER, INCREMENT, put(b"k", b"new"), GET]);
    let [first, again] = twice(&mut data, 3, &batch);
    let (first, again) = (results(&first), results(&again));
    assert!(matches!(&first[0], Ok(Reply::Found(f)) if f.value == Payload::Inline(&old)));
    assert_eq!(first[0], again[0], "it cannot be asked for any more");
    assert_eq!(again[1].as_ref().expect_err("not kept").code, ErrorCode::NeedsLanding);
    assert_eq!(again[4].as_ref().expect_err("not kept").text, "3");
    assert_eq!(first[2..4], again[2..4]);
    // More than is compared, and less than is kept: any of them may be one that is overwritten.
    assert!(data.call(4, put(b"k", &old[..150])).is_ok());
    let mut ops = vec![GET; 70];
    ops.push(INCREMENT);
    let [first, again] = twice(&mut data, 5, &Op::Batch(ops));
    assert!(first[8..] == again[8..]);
    // More than is kept.
    let mut ops = vec![OTHER; 6];
    ops.push(put(b"other", b"new"));
    let [first, again] = twice(&mut data, 6, &Op::Batch(ops));
    let again = results(&again);
    let kept = again.iter().take_while(|result| result.is_ok()).count();
    assert_eq!(again[..kept], results(&first)[..kept]);
    assert!((1..6).contains(&kept) && again[6].is_ok());
    assert_eq!(again[kept].as_ref().expect_err("not kept").text, "3000");
    assert_eq!(data.get(b"n").as_deref(), Some(&b"2"[..]), "each applied once");
}
