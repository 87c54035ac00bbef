//! Every limit, at it and one beyond; and what the limits must be to fit together.

use onesided_protocol::DecodeError;
use onesided_protocol::control::{
    FabricName, FabricOffer, Hello, Retired, TableOptions, TableStatus, ToClient, ToServer, Welcome,
};
use onesided_protocol::layout::{catalog, entry, line, size_class};
use onesided_protocol::limits::*;
use onesided_protocol::rpc::{
    Answer, ErrorCode, Expect, Op, Payload, Reply, Request, RpcError, Ttl,
};

fn request(op: Op<'_>) -> Vec<u8> {
    let mut bytes = vec![];
    Request { id: 1, sequence: 1, table: 1, op }.encode(&mut bytes);
    bytes
}

fn to_server(message: &ToServer) -> Vec<u8> {
    let mut bytes = vec![];
    message.encode(&mut bytes);
    bytes
}

fn to_client(message: &ToClient) -> Vec<u8> {
    let mut bytes = vec![];
    message.encode(&mut bytes);
    bytes
}

#[track_caller]
fn too_long<T: std::fmt::Debug>(result: Result<T, DecodeError>, len: usize, max: usize) {
    match result {
        Err(DecodeError::TooLong { len_bytes, max_bytes, .. }) => {
            assert_eq!((len_bytes, max_bytes), (len as u64, max));
        }
        other => panic!("{len} beyond {max} is not refused as too long: {other:?}"),
    }
}

#[test]
fn key() {
    let key = vec![b'k'; KEY_MAX_BYTES + 1];
    let ops = |key| {
        [
            Op::Get { key, landing: None },
            Op::Put {
                key,
                value: Payload::Inline(b""),
                expect: Expect::Any,
                ttl: Ttl::Never,
                user_flags: 0,
            },
            Op::Delete { key, expect: Expect::Any },
            Op::Append { key, value: Payload::Inline(b"") },
            Op::WriteAt { key, offset_bytes: 0, value: Payload::Inline(b"") },
            Op::Increment { key, by: 1 },
            Op::Touch { key, ttl: Ttl::Never },
            Op::Batch(vec![Op::Get { key, landing: None }]),
        ]
    };
    for op in ops(&key[..KEY_MAX_BYTES]) {
        assert!(Request::decode(&request(op)).is_ok());
    }
    for op in ops(&key) {
        too_long(Request::decode(&request(op)), KEY_MAX_BYTES + 1, KEY_MAX_BYTES);
    }
}

#[test]
fn value() {
    let value = vec![0; VALUE_MAX_BYTES + 1];
    let append = |value| request(Op::Append { key: b"k", value: Payload::Inline(value) });
    assert!(Request::decode(&append(&value[1..])).is_ok());
    too_long(Request::decode(&append(&value)), VALUE_MAX_BYTES + 1, VALUE_MAX_BYTES);
}

#[test]
fn batch() {
    let batch = |count| request(Op::Batch(vec![Op::Ping; count]));
    assert!(Request::decode(&batch(BATCH_MAX)).is_ok());
    too_long(Request::decode(&batch(BATCH_MAX + 1)), BATCH_MAX + 1, BATCH_MAX);

    let replies = |count| {
        let mut bytes = vec![];
        Answer { id: 1, result: Ok(Reply::Batch(vec![Ok(Reply::Pong); count])) }.encode(&mut bytes);
        bytes
    };
    assert!(Answer::decode(&replies(BATCH_MAX)).is_ok());
    too_long(Answer::decode(&replies(BATCH_MAX + 1)), BATCH_MAX + 1, BATCH_MAX);
}

#[test]
fn table_name() {
    let options = TableOptions::default();
    let messages = |name: &str| {
        let name = || name.to_owned();
        [
            ToServer::OpenTable { name: name() },
            ToServer::CreateTable { name: name(), options },
            ToServer::AlterTable { name: name(), options },
            ToServer::DropTable { name: name() },
        ]
    };
    for message in messages(&"n".repeat(TABLE_NAME_MAX_BYTES)) {
        assert!(ToServer::decode(&to_server(&message)).is_ok());
    }
    let (len, max) = (TABLE_NAME_MAX_BYTES + 1, TABLE_NAME_MAX_BYTES);
    for message in messages(&"n".repeat(len)) {
        too_long(ToServer::decode(&to_server(&message)), len, max);
    }
    let tables = |len| to_client(&ToClient::Tables(vec![status(len)]));
    assert!(ToClient::decode(&tables(max)).is_ok());
    too_long(ToClient::decode(&tables(len)), len, max);
}

fn hello(token_len: usize) -> Vec<u8> {
    let token = "t".repeat(token_len);
    to_server(&ToServer::Hello(Hello {
        wire_min: 1,
        wire_max: 1,
        layout: 1,
        token,
        resume: (0, 0),
    }))
}

#[test]
fn token() {
    assert!(ToServer::decode(&hello(TOKEN_MAX_BYTES)).is_ok());
    let beyond = ToServer::decode(&hello(TOKEN_MAX_BYTES + 1));
    too_long(beyond, TOKEN_MAX_BYTES + 1, TOKEN_MAX_BYTES);
}

fn status(name_len: usize) -> TableStatus {
    TableStatus { name: "n".repeat(name_len), id: 1, ..TableStatus::default() }
}

#[test]
fn tables_and_stats() {
    let tables = |count| to_client(&ToClient::Tables(vec![status(1); count]));
    assert!(ToClient::decode(&tables(TABLES_MAX)).is_ok());
    too_long(ToClient::decode(&tables(TABLES_MAX + 1)), TABLES_MAX + 1, TABLES_MAX);

    let stats =
        |count, name_len| to_client(&ToClient::Stats(vec![("s".repeat(name_len), 1); count]));
    assert!(ToClient::decode(&stats(STATS_MAX, 1)).is_ok());
    too_long(ToClient::decode(&stats(STATS_MAX + 1, 1)), STATS_MAX + 1, STATS_MAX);
    assert!(ToClient::decode(&stats(1, STAT_NAME_MAX_BYTES)).is_ok());
    let beyond = STAT_NAME_MAX_BYTES + 1;
    too_long(ToClient::decode(&stats(1, beyond)), beyond, STAT_NAME_MAX_BYTES);
}

fn welcome(fabrics: usize, blob_len: usize) -> Vec<u8> {
    let offer = FabricOffer { kind: FabricName::Shm, blob: vec![0; blob_len] };
    to_client(&ToClient::Welcome(Box::new(Welcome {
        wire: 1,
        session: 1,
        resume_key: 1,
        resumed: false,
        applied_sequence: 0,
        incarnation: 1,
        clock_ns: 1,
        catalog_epoch: 1,
        lease_ms: 1,
        heartbeat_ms: 1,
        credits: 1,
        value_max_bytes: 1,
        ticket: [0; TICKET_BYTES],
        fabrics: vec![offer; fabrics],
    })))
}

#[test]
fn fabrics() {
    assert!(ToClient::decode(&welcome(FABRICS_MAX, FABRIC_BLOB_MAX_BYTES)).is_ok());
    too_long(ToClient::decode(&welcome(FABRICS_MAX + 1, 0)), FABRICS_MAX + 1, FABRICS_MAX);
    let (len, max) = (FABRIC_BLOB_MAX_BYTES + 1, FABRIC_BLOB_MAX_BYTES);
    too_long(ToClient::decode(&welcome(1, len)), len, max);
}

#[test]
fn accesses() {
    let report = |hashes: usize| {
        let report = ToServer::Accessed { table: 1, hashes: vec![0; hashes] };
        ToServer::decode(&to_server(&report))
    };
    assert!(report(ACCESSES_MAX).is_ok());
    too_long(report(ACCESSES_MAX + 1), ACCESSES_MAX + 1, ACCESSES_MAX);
}

#[test]
fn retired() {
    let alive = |count: usize| {
        let retired = vec![Retired::Region(7); count];
        to_client(&ToClient::Alive { clock_ns: 1, catalog_epoch: 2, epoch: 3, retired })
    };
    assert!(alive(RETIRED_MAX).len() <= CONTROL_FRAME_MAX_BYTES);
    assert!(ToClient::decode(&alive(RETIRED_MAX)).is_ok());
    too_long(ToClient::decode(&alive(RETIRED_MAX + 1)), RETIRED_MAX + 1, RETIRED_MAX);
}

#[test]
fn error_text() {
    let max = ERROR_TEXT_MAX_BYTES;
    let cut = RpcError::new(ErrorCode::Internal, "e".repeat(max + 1));
    assert_eq!(cut.text.len(), max);
    let at_a_letter = RpcError::new(ErrorCode::Internal, format!("e{}", "é".repeat(max)));
    assert_eq!(at_a_letter.text.len(), max - 1, "no half letter");

    // A text that was not cut when it was made is cut when it travels.
    let long = RpcError { code: ErrorCode::Internal, text: "e".repeat(max + 1) };
    let ToClient::Failed(read) =
        ToClient::decode(&to_client(&ToClient::Failed(long))).expect("it was cut")
    else {
        panic!("not the error");
    };
    assert_eq!(read.text.len(), max);

    let claimed = [&[8, 17, 0][..], &(max as u32 + 1).to_le_bytes(), &vec![b'e'; max + 1]].concat();
    too_long(ToClient::decode(&claimed), max + 1, max);
}

/// Frames of the greatest messages fit the limits of frames, so that no peer is cut off for
/// saying what it may say.
#[test]
fn frames_hold_the_longest_messages() {
    assert!(hello(TOKEN_MAX_BYTES).len() <= CONTROL_REQUEST_MAX_BYTES);
    let alter = ToServer::AlterTable {
        name: "n".repeat(TABLE_NAME_MAX_BYTES),
        options: TableOptions::default(),
    };
    assert!(to_server(&alter).len() <= CONTROL_REQUEST_MAX_BYTES);

    let accessed = ToServer::Accessed { table: 1, hashes: vec![0; ACCESSES_MAX] };
    assert!(to_server(&accessed).len() <= SESSION_REQUEST_MAX_BYTES);

    let tables = to_client(&ToClient::Tables(vec![status(TABLE_NAME_MAX_BYTES); TABLES_MAX]));
    let stats = vec![("s".repeat(STAT_NAME_MAX_BYTES), 1); STATS_MAX];
    let stats = to_client(&ToClient::Stats(stats));
    for frame in [tables, stats, welcome(FABRICS_MAX, FABRIC_BLOB_MAX_BYTES)] {
        assert!(frame.len() <= CONTROL_FRAME_MAX_BYTES, "{} bytes", frame.len());
    }
}

#[test]
fn entries_fit_a_region() {
    assert!(entry::padded_bytes(KEY_MAX_BYTES, VALUE_MAX_BYTES) <= REGION_BYTES);
    assert!(entry::padded_bytes(KEY_MAX_BYTES, LARGE_VALUE_BYTES) <= SEGMENT_BYTES);
    assert!(size_class::bytes(size_class::LAST) == REGION_BYTES);
    const { assert!(catalog::CATALOG_BYTES <= REGION_BYTES) };
    const { assert!(8 << DEPTH_MAX <= REGION_BYTES, "a directory is in one region") };
    assert_eq!(REGION_BYTES % SEGMENT_BYTES, 0);
    assert_eq!(line::INDEX_SEGMENT_BYTES, 68 << 10);
    assert!(u16::try_from(KEY_MAX_BYTES).is_ok() && u32::try_from(VALUE_MAX_BYTES).is_ok());
}

#[test]
fn large_begins_above_16_kib() {
    assert!(!entry::is_large(LARGE_VALUE_BYTES));
    assert!(entry::is_large(LARGE_VALUE_BYTES + 1));
    assert_eq!(entry::padded_bytes(0, LARGE_VALUE_BYTES), 16_416);
    assert_eq!(entry::padded_bytes(0, LARGE_VALUE_BYTES + 1), 16_432);
}
