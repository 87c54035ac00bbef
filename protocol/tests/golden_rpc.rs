//! Golden bytes of every request, answer and error, written down by hand, both ways.

mod common;

use common::{assert_hex, hex};
use onesided_protocol::DecodeError;
use onesided_protocol::codec::Reader;
use onesided_protocol::rpc::{
    Answer, BatchAnswer, CounterAction, ErrorCode, Expect, Found, KeyAt, Landing, Op, Payload,
    Reply, Request, RpcError, Ttl,
};

const HEADER: &str = "
    0807060504030201  # id
    2a00000000000000  # sequence 42
    07000000          # table 7
    00000000          # reserved";

fn request(op: Op<'_>) -> Request<'_> {
    Request { id: 0x0102_0304_0506_0708, sequence: 42, table: 7, op }
}

fn requests() -> Vec<(&'static str, Op<'static>, &'static str)> {
    let mut all = reads();
    all.extend(puts());
    all.extend(other_mutations());
    all
}

fn reads() -> Vec<(&'static str, Op<'static>, &'static str)> {
    vec![
        ("ping", Op::Ping, "00"),
        (
            "find a counter",
            Op::Counter { key: b"k", action: CounterAction::Find },
            "0a 01000000 6b 00 0000000000000000 0000000000000000",
        ),
        ("get", Op::Get { key: b"k", landing: None }, "01 01000000 6b 0000000000000000 00000000"),
        (
            "get with a landing",
            Op::Get { key: b"", landing: Some(Landing { offset_bytes: 4_096, len_bytes: 65_536 }) },
            "01 00000000 0010000000000000 00000100",
        ),
        (
            "scan",
            Op::Scan { from: b"", after: false, prefix_len: 0, limit: 1_024 },
            "09 00000000 00 0000 0004",
        ),
        (
            "whether an entry was linked",
            Op::Linked { key: b"k", addr: 0x0102_0304_0506 },
            "0e 01000000 6b 0605040302010000",
        ),
        (
            "scan behind a key with a prefix",
            Op::Scan { from: b"abc", after: true, prefix_len: 2, limit: 7 },
            "09 03000000 616263 01 0200 0700",
        ),
    ]
}

fn puts() -> Vec<(&'static str, Op<'static>, &'static str)> {
    let put = |value, expect, ttl| Op::Put { key: b"key", value, expect, ttl, user_flags: 9 };
    vec![
        (
            "put",
            put(Payload::Inline(b"va"), Expect::Any, Ttl::TableDefault),
            "02 03000000 6b6579
             00 0000000000000000  # expect any
             00 00000000          # ttl of the table
             09000000             # user flags
             00 02000000 7661     # inline",
        ),
        (
            "put if absent, for ever",
            put(Payload::Inline(b""), Expect::Absent, Ttl::Never),
            "02 03000000 6b6579 01 0000000000000000 01 00000000 09000000 00 00000000",
        ),
        (
            "put if present, a minute",
            put(Payload::Inline(b""), Expect::Present, Ttl::Seconds(60)),
            "02 03000000 6b6579 02 0000000000000000 02 3c000000 09000000 00 00000000",
        ),
        (
            "put, lent",
            put(Payload::Lent { number: 3, len_bytes: 0x2_0000 }, Expect::Any, Ttl::Never),
            "02 03000000 6b6579 00 0000000000000000 01 00000000 09000000 02 0300 00000200",
        ),
        (
            "put if version, staged",
            put(
                Payload::Staged { offset_bytes: 0x1_0000, len_bytes: 0x2000 },
                Expect::Version(0x1122_3344_5566_7788),
                Ttl::Seconds(0),
            ),
            "02 03000000 6b6579
             03 8877665544332211
             02 00000000
             09000000
             01 0000010000000000 00200000  # staged",
        ),
    ]
}

fn other_mutations() -> Vec<(&'static str, Op<'static>, &'static str)> {
    let batch = vec![
        Op::Delete { key: b"a", expect: Expect::Any },
        Op::Get { key: b"b", landing: None },
        Op::Ping,
    ];
    vec![
        (
            "delete",
            Op::Delete { key: b"k", expect: Expect::Version(5) },
            "03 01000000 6b 03 0500000000000000",
        ),
        (
            "append",
            Op::Append { key: b"k", value: Payload::Inline(b"xyz") },
            "04 01000000 6b 00 03000000 78797a",
        ),
        (
            "write at an offset",
            Op::WriteAt { key: b"k", offset_bytes: 0x102, value: Payload::Inline(b"yz") },
            "08 01000000 6b 0201000000000000 00 02000000 797a",
        ),
        (
            "add to a counter",
            Op::Counter { key: b"k", action: CounterAction::Add { by: -2 } },
            "0a 01000000 6b 01 feffffffffffffff 0000000000000000",
        ),
        (
            "compare and swap a counter",
            Op::Counter { key: b"k", action: CounterAction::CompareSwap { expected: 1, new: -1 } },
            "0a 01000000 6b 02 0100000000000000 ffffffffffffffff",
        ),
        (
            "set a counter",
            Op::Counter { key: b"k", action: CounterAction::Set { to: 258 } },
            "0a 01000000 6b 03 0201000000000000 0000000000000000",
        ),
        ("increment", Op::Increment { key: b"k", by: -2 }, "05 01000000 6b feffffffffffffff"),
        ("touch", Op::Touch { key: b"k", ttl: Ttl::Seconds(1) }, "06 01000000 6b 02 01000000"),
        (
            "batch",
            Op::Batch(batch),
            "07 03000000
             03 01000000 61 00 0000000000000000
             01 01000000 62 0000000000000000 00000000
             00",
        ),
        ("empty batch", Op::Batch(vec![]), "07 00000000"),
        ("lease", Op::Lease { len_bytes: 0x1_0000 }, "0c 00000100"),
        ("seal", Op::Seal { addr: 0x0102_0304_0506 }, "0d 0605040302010000"),
    ]
}

#[test]
fn every_request() {
    let mut seen = [false; 14];
    for (what, op, body) in requests() {
        // No wildcard: a new operation does not compile until it is here, and fails until it
        // has golden bytes.
        seen[match &op {
            Op::Ping => 0,
            Op::Get { .. } => 1,
            Op::Put { .. } => 2,
            Op::Delete { .. } => 3,
            Op::Append { .. } => 4,
            Op::Increment { .. } => 5,
            Op::Touch { .. } => 6,
            Op::Batch(_) => 7,
            Op::WriteAt { .. } => 8,
            Op::Scan { .. } => 9,
            Op::Lease { .. } => 10,
            Op::Seal { .. } => 11,
            Op::Linked { .. } => 12,
            Op::Counter { .. } => 13,
        }] = true;
        let golden = format!("{HEADER}\n{body}");
        let mut bytes = vec![];
        request(op.clone()).encode(&mut bytes);
        assert_hex(what, &bytes, &golden);
        assert_eq!(Request::decode(&hex(&golden)), Ok(request(op)), "{what}");
        assert_eq!(Request::peek_id(&bytes), 0x0102_0304_0506_0708);
    }
    assert_eq!(seen, [true; 14]);
}

#[test]
fn mutations() {
    let changes = |op: Op<'_>| op.is_mutation();
    assert!(reads().into_iter().all(|(_, op, _)| !changes(op)));
    assert!(puts().into_iter().all(|(_, op, _)| changes(op)));
    assert!(!changes(Op::Batch(vec![])));
    assert!(!changes(Op::Batch(vec![Op::Ping])));
    assert!(changes(Op::Batch(vec![Op::Ping, Op::Increment { key: b"", by: 0 }])));
}

fn answers() -> Vec<(&'static str, Result<Reply<'static>, RpcError>, &'static str)> {
    let found = Found {
        version: 0x1122_3344_5566_7788,
        expiry_s: 0x6A5B_4C3D,
        user_flags: 7,
        value: Payload::Inline(b"va"),
    };
    let staged =
        Found { value: Payload::Staged { offset_bytes: 4_096, len_bytes: 5_000 }, ..found };
    let batch = Reply::Batch(vec![
        Ok(Reply::Absent),
        Err(RpcError::new(ErrorCode::WrongType, "no")),
        Ok(Reply::Done { version: 1 }),
    ]);
    vec![
        ("error", Err(RpcError::new(ErrorCode::OutOfMemory, "full")), "00 0800 04000000 66756c6c"),
        ("pong", Ok(Reply::Pong), "01"),
        (
            "found",
            Ok(Reply::Found(found)),
            "02 8877665544332211 3d4c5b6a 07000000 00 02000000 7661",
        ),
        (
            "found, staged",
            Ok(Reply::Found(staged)),
            "02 8877665544332211 3d4c5b6a 07000000 01 0010000000000000 88130000",
        ),
        ("absent", Ok(Reply::Absent), "03"),
        ("done", Ok(Reply::Done { version: 258 }), "04 0201000000000000"),
        ("deleted", Ok(Reply::Deleted), "05"),
        (
            "number",
            Ok(Reply::Number { value: -1, version: 3 }),
            "06 ffffffffffffffff 0300000000000000",
        ),
        (
            "counter",
            Ok(Reply::Counter { cell: 0x102, number: -1, version: 3 }),
            "09 0201000000000000 ffffffffffffffff 0300000000000000",
        ),
        ("no keys", Ok(Reply::Keys { keys: vec![], more: false }), "08 00 00000000"),
        (
            "keys",
            Ok(Reply::Keys {
                keys: vec![KeyAt { key: b"a", slot: 0x102 }, KeyAt { key: b"", slot: u64::MAX }],
                more: true,
            }),
            "08 01 02000000 01000000 61 0201000000000000 00000000 ffffffffffffffff",
        ),
        (
            "leased",
            Ok(Reply::Leased { addr: 0x0102_0304_0506, len_bytes: 0x2_0000 }),
            "0c 0605040302010000 00000200",
        ),
        ("sealed", Ok(Reply::Sealed), "0d"),
        ("linked", Ok(Reply::Linked { linked: true }), "0e 01"),
        ("batch", Ok(batch), "07 03000000 03 00 0b00 02000000 6e6f 04 0100000000000000"),
    ]
}

#[test]
fn every_answer() {
    let mut seen = [false; 13];
    for (what, result, body) in answers() {
        seen[match &result {
            Err(_) => 0,
            Ok(Reply::Pong) => 1,
            Ok(Reply::Found(_)) => 2,
            Ok(Reply::Absent) => 3,
            Ok(Reply::Done { .. }) => 4,
            Ok(Reply::Deleted) => 5,
            Ok(Reply::Number { .. }) => 6,
            Ok(Reply::Batch(_)) => 7,
            Ok(Reply::Keys { .. }) => 8,
            Ok(Reply::Leased { .. }) => 9,
            Ok(Reply::Sealed) => 10,
            Ok(Reply::Linked { .. }) => 11,
            Ok(Reply::Counter { .. }) => 12,
        }] = true;
        let golden = format!("0807060504030201 {body}");
        let answer = Answer { id: 0x0102_0304_0506_0708, result };
        let mut bytes = vec![];
        answer.encode(&mut bytes);
        assert_hex(what, &bytes, &golden);
        assert_eq!(Answer::decode(&hex(&golden)), Ok(answer), "{what}");
    }
    assert_eq!(seen, [true; 13]);
}

#[test]
fn every_error_code() {
    let numbers: [(ErrorCode, u16); 19] = [
        (ErrorCode::Malformed, 1),
        (ErrorCode::Version, 2),
        (ErrorCode::Unauthorized, 3),
        (ErrorCode::ServerFull, 4),
        (ErrorCode::NoSuchTable, 5),
        (ErrorCode::TableExists, 6),
        (ErrorCode::TooLarge, 7),
        (ErrorCode::OutOfMemory, 8),
        (ErrorCode::IndexFull, 9),
        (ErrorCode::Unexpected, 10),
        (ErrorCode::WrongType, 11),
        (ErrorCode::SequenceTooOld, 12),
        (ErrorCode::NeedsLanding, 13),
        (ErrorCode::BadOption, 14),
        (ErrorCode::ShuttingDown, 15),
        (ErrorCode::BadDescriptor, 16),
        (ErrorCode::Internal, 17),
        (ErrorCode::OutcomeUnknown, 18),
        (ErrorCode::Contended, 19),
    ];
    assert_eq!(numbers.map(|(code, _)| code), ErrorCode::ALL);
    for (code, number) in numbers {
        let mut bytes = vec![];
        RpcError::new(code, "é!").encode(&mut bytes);
        let golden = format!("{number:02x} 00 03000000 c3a921");
        assert_hex("error", &bytes, &golden);
        let read = RpcError::decode(&mut Reader::new(&hex(&golden)));
        assert_eq!(read, Ok(RpcError { code, text: "é!".into() }));
    }
    for number in [0_u16, 20, 0xFFFF] {
        let bytes = [&number.to_le_bytes()[..], &[0; 4]].concat();
        let read = RpcError::decode(&mut Reader::new(&bytes));
        let value = u64::from(number);
        assert_eq!(read, Err(DecodeError::Unknown { field: "error code", value }));
    }
}

/// What no version of this build means: refused, never taken for something near it.
#[test]
fn refused_requests() {
    let refused = [
        ("reserved word", "0000000000000000 0000000000000000 00000000 01000000 00"),
        ("operation 11", "0000000000000000 0000000000000000 00000000 00000000 0b"),
        ("operation 255", "0000000000000000 0000000000000000 00000000 00000000 ff"),
    ];
    for (what, golden) in refused {
        assert!(Request::decode(&hex(golden)).is_err(), "{what}");
    }
    let bodies = [
        ("batch in a batch", "07 01000000 07 00000000"),
        ("batch of 1,025", &format!("07 01040000 {}", "00".repeat(1_025))),
        ("batch that ends early", "07 02000000 00"),
        ("expect 4", "03 01000000 6b 04 0000000000000000"),
        ("expect any with a version", "03 01000000 6b 00 0100000000000000"),
        ("expect absent with a version", "03 01000000 6b 01 0100000000000000"),
        ("expect present with a version", "03 01000000 6b 02 0100000000000000"),
        ("ttl 3", "06 01000000 6b 03 00000000"),
        ("ttl of the table with seconds", "06 01000000 6b 00 01000000"),
        ("ttl never with seconds", "06 01000000 6b 01 01000000"),
        ("landing of no room", "01 01000000 6b 0100000000000000 00000000"),
        ("scan in a batch", "07 01000000 09 00000000 00 0000 0100"),
        ("scan of no keys", "09 00000000 00 0000 0000"),
        ("scan of 1,025 keys", "09 00000000 00 0000 0104"),
        ("scan by more of a prefix than there is", "09 01000000 61 00 0200 0100"),
        ("scan after 2", "09 00000000 02 0000 0100"),
        ("counter action 4", "0a 01000000 6b 04 0000000000000000 0000000000000000"),
        ("counter to find with a number", "0a 01000000 6b 00 0100000000000000 0000000000000000"),
        ("payload 2", "04 01000000 6b 02 00000000"),
        ("key beyond the end", "01 ffffffff"),
        ("key of 2^31", "01 00000080 6b"),
        ("value of 2^31", "04 01000000 6b 00 00000080 6b"),
        ("a byte too many", "00 00"),
        ("no body", ""),
    ];
    for (what, body) in bodies {
        assert!(Request::decode(&hex(&format!("{HEADER}\n{body}"))).is_err(), "{what}");
    }
    assert_eq!(Request::peek_id(&[1, 2, 3]), 0);
}

#[test]
fn refused_answers() {
    let bodies = [
        ("reply 10", "0a"),
        ("keys in a batch", "07 01000000 08 00 00000000"),
        ("1,025 keys", &format!("08 00 01040000 {}", "00".repeat(12 * 1_025))),
        ("more keys 2", "08 02 00000000"),
        ("batch in a batch", "07 01000000 07 00000000"),
        ("batch of 1,025", &format!("07 01040000 {}", "01".repeat(1_025))),
        ("error text of 1,025", &format!("00 0100 01040000 {}", "20".repeat(1_025))),
        ("error text that is none", "00 0100 01000000 ff"),
        ("a byte too many", "01 00"),
        ("no body", ""),
    ];
    for (what, body) in bodies {
        let bytes = hex(&format!("0807060504030201 {body}"));
        assert!(Answer::decode(&bytes).is_err(), "{what}");
    }
}

#[test]
fn an_answer_to_a_batch_is_the_same_in_pieces() {
    let value = vec![7; 300];
    let found =
        Found { version: u64::MAX - 1, expiry_s: 5, user_flags: 6, value: Payload::Inline(&value) };
    let refused = RpcError::new(ErrorCode::NeedsLanding, "é".repeat(2_000));
    let results = vec![Ok(Reply::Found(found)), Err(refused.clone()), Ok(Reply::Absent)];
    let mut pieces = vec![];
    BatchAnswer::begin(9, 3, &mut pieces);
    pieces.extend_from_slice(&found.head());
    pieces.extend_from_slice(&value);
    BatchAnswer::push_error(refused.code, &refused.text, &mut pieces);
    BatchAnswer::push(&results[2], &mut pieces);
    let mut whole = vec![];
    Answer { id: 9, result: Ok(Reply::Batch(results)) }.encode(&mut whole);
    assert_eq!(pieces, whole);
    // A single one has an id before it, and nothing else.
    let mut whole = vec![];
    Answer { id: 9, result: Ok(Reply::Found(found)) }.encode(&mut whole);
    assert_eq!(whole, [&9_u64.to_le_bytes(), &found.head()[..], &value].concat());
}
