//! Golden bytes of every control message, written down by hand, both ways.

mod common;

use common::{assert_hex, hex};
use onesided_protocol::control::{
    FabricName, FabricOffer, Heartbeat, Hello, PREAMBLE_MAGIC, PURPOSE_CONTROL, PURPOSE_DATA,
    PeerVersions, Retired, TableCounts, TableInfo, TableOptions, TableStatus, ToClient, ToServer,
    UpdateMode, Welcome,
};
use onesided_protocol::layout::catalog::DirectoryWord;
use onesided_protocol::rpc::{ErrorCode, RpcError};

const OPTIONS: TableOptions = TableOptions {
    default_ttl_s: 3_600,
    quota_bytes: 1 << 30,
    floor_bytes: 1 << 20,
    evict: true,
    ordered: false,
    update: UpdateMode::Cas,
};

#[test]
fn preamble() {
    let bytes = [&PREAMBLE_MAGIC[..], &[PURPOSE_CONTROL], &[PURPOSE_DATA]].concat();
    assert_hex("preamble", &bytes, "6f6e657369646564 01 02");
}

fn counts() -> Box<TableCounts> {
    Box::new(TableCounts {
        one_sided_hits: 1,
        one_sided_misses: 2,
        rpc_gets: 3,
        reads: 4,
        round_trips: 5,
        cache_hits: 6,
        retries: 7,
        forward_hops: 8,
        checksum_failures: 9,
        read_bytes: 128,
        latency: std::array::from_fn(|bucket| 0x20 + bucket as u64),
        latency_ns: 0x10,
        one_sided_puts: 0x40,
        rpc_puts: 0x41,
        lost_swaps: 0x42,
        counter_atomics: 0x43,
        rpc_counters: 0x44,
        counter_retries: 0x45,
    })
}

fn to_server() -> Vec<(&'static str, ToServer, &'static str)> {
    let hello = Hello {
        wire_min: 1,
        wire_max: 0x0203,
        layout: 1,
        token: "secret".into(),
        resume: (0x0102_0304_0506_0708, 0x1112_1314_1516_1718),
    };
    let name = || "users".to_owned();
    vec![
        (
            "hello",
            ToServer::Hello(hello),
            "01
             0100 0302 0100         # wire versions, layout
             06000000 736563726574  # token
             0807060504030201 1817161514131211",
        ),
        ("heartbeat", ToServer::Heartbeat(Heartbeat { epoch: 6 }), "02 0600000000000000"),
        ("ticket", ToServer::Ticket, "03"),
        ("open", ToServer::OpenTable { name: name() }, "04 05000000 7573657273"),
        (
            "create",
            ToServer::CreateTable { name: name(), options: OPTIONS },
            "05 05000000 7573657273 100e0000 0000004000000000 0000100000000000 01 00 01",
        ),
        (
            "alter",
            ToServer::AlterTable { name: name(), options: OPTIONS },
            "06 05000000 7573657273 100e0000 0000004000000000 0000100000000000 01 00 01",
        ),
        ("drop", ToServer::DropTable { name: name() }, "07 05000000 7573657273"),
        ("list", ToServer::ListTables, "08"),
        ("stats", ToServer::Stats, "09"),
        ("goodbye", ToServer::Goodbye, "0a"),
        (
            "accessed",
            ToServer::Accessed { table: 7, hashes: vec![0x0102_0304_0506_0708, 9] },
            "0b 07000000 02000000 0807060504030201 0900000000000000",
        ),
        (
            "counted",
            ToServer::Counted { table: 7, counts: counts() },
            "0c 07000000
             0100000000000000 0200000000000000 0300000000000000  # hits, misses, by RPC
             0400000000000000 0500000000000000 0600000000000000  # READs, round trips, cache
             0700000000000000 0800000000000000 0900000000000000  # retries, hops, checksums
             8000000000000000 1000000000000000                   # bytes, ns
             2000000000000000 2100000000000000 2200000000000000 2300000000000000
             2400000000000000 2500000000000000 2600000000000000 2700000000000000
             2800000000000000 2900000000000000 2a00000000000000 2b00000000000000
             2c00000000000000 2d00000000000000 2e00000000000000 2f00000000000000
             3000000000000000 3100000000000000
             4000000000000000 4100000000000000 4200000000000000  # PUTs, by RPC, lost swaps
             4300000000000000 4400000000000000 4500000000000000  # counters, by RPC, retries",
        ),
    ]
}

#[test]
fn every_message_to_the_server() {
    let mut seen = [false; 12];
    for (what, message, golden) in to_server() {
        // No wildcard: a new message does not compile until it is here, and fails until it has
        // golden bytes.
        seen[match &message {
            ToServer::Hello(_) => 0,
            ToServer::Heartbeat(_) => 1,
            ToServer::Ticket => 2,
            ToServer::OpenTable { .. } => 3,
            ToServer::CreateTable { .. } => 4,
            ToServer::AlterTable { .. } => 5,
            ToServer::DropTable { .. } => 6,
            ToServer::ListTables => 7,
            ToServer::Stats => 8,
            ToServer::Goodbye => 9,
            ToServer::Accessed { .. } => 10,
            ToServer::Counted { .. } => 11,
        }] = true;
        let mut bytes = vec![];
        message.encode(&mut bytes);
        assert_hex(what, &bytes, golden);
        assert_eq!(ToServer::decode(&hex(golden)), Ok(message), "{what}");
    }
    assert_eq!(seen, [true; 12]);
}

const WELCOME: &str = "
    01
    0100              # wire version
    0800000000000000  # session
    0900000000000000  # resume key
    01                # resumed
    0a00000000000000  # applied sequence
    eeffc000efbeadde  # incarnation
    0b00000000000000  # clock
    0c00000000000000  # catalog epoch
    10270000          # lease 10,000 ms
    e8030000          # heartbeat 1,000 ms
    40000000          # credits
    00000002          # value max 32 MiB
    000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f  # ticket
    03
    01 02000000 2f73  # shm
    02 01000000 ff    # verbs
    03 00000000       # tcp";

fn welcome() -> Welcome {
    let offer = |kind, blob: &[u8]| FabricOffer { kind, blob: blob.to_vec() };
    Welcome {
        wire: 1,
        session: 8,
        resume_key: 9,
        resumed: true,
        applied_sequence: 10,
        incarnation: 0xDEAD_BEEF_00C0_FFEE,
        clock_ns: 11,
        catalog_epoch: 12,
        lease_ms: 10_000,
        heartbeat_ms: 1_000,
        credits: 64,
        value_max_bytes: 32 << 20,
        ticket: std::array::from_fn(|i| i as u8),
        fabrics: vec![
            offer(FabricName::Shm, b"/s"),
            offer(FabricName::Verbs, &[0xFF]),
            offer(FabricName::Tcp, &[]),
        ],
    }
}

fn alive() -> ToClient {
    let retired = vec![Retired::Table(7), Retired::Region(0x0102), Retired::Cells(5)];
    ToClient::Alive { clock_ns: 0x0102_0304_0506_0708, catalog_epoch: 3, epoch: 4, retired }
}

fn table_status() -> TableStatus {
    TableStatus {
        name: "users".into(),
        id: 17,
        options: OPTIONS,
        keys: 1,
        live_bytes: 2,
        log_bytes: 3,
        index_bytes: 4,
        splits: 5,
        dead_bytes: 6,
        free_bytes: 7,
        written_bytes: 8,
        moved_bytes: 9,
        expired_entries: 10,
        evicted_entries: 11,
        expiry_backlog: 12,
        payload_bytes: 13,
        padding_bytes: 14,
        evicted_for_quota: 15,
    }
}

fn to_client() -> Vec<(&'static str, ToClient, &'static str)> {
    let info = TableInfo {
        id: 17,
        slot: 2,
        hash_seed: 0x0123_4567_89AB_CDEF,
        secret: 0xFEED_FACE_CAFE_BEEF,
        directory: DirectoryWord(0x0000_1400_0081_0000),
        options: OPTIONS,
        updates_over: Some(FabricName::Verbs),
    };
    let failed = RpcError::new(ErrorCode::NoSuchTable, "no");
    vec![
        ("welcome", ToClient::Welcome(Box::new(welcome())), WELCOME),
        (
            "alive",
            alive(),
            "02 0807060504030201 0300000000000000 0400000000000000
             03000000 01 07000000 02 02010000 03 05000000",
        ),
        (
            "ticket",
            ToClient::Ticket([0xAB; 32]),
            "03 abababababababababababababababababababababababababababababababab",
        ),
        (
            "table",
            ToClient::Table(info),
            "04 11000000 02000000 efcdab8967452301 efbefecacefaedfe 0000810000140000
             100e0000 0000004000000000 0000100000000000 01 00 01 02",
        ),
        (
            "tables",
            ToClient::Tables(vec![table_status()]),
            "05 01000000
             05000000 7573657273 11000000 100e0000 0000004000000000 0000100000000000 01 00 01
             0100000000000000 0200000000000000 0300000000000000 0400000000000000
             0500000000000000 0600000000000000 0700000000000000 0800000000000000
             0900000000000000 0a00000000000000 0b00000000000000 0c00000000000000
             0d00000000000000 0e00000000000000 0f00000000000000",
        ),
        ("no tables", ToClient::Tables(vec![]), "05 00000000"),
        (
            "stats",
            ToClient::Stats(vec![("gets".into(), 7), ("é".into(), u64::MAX)]),
            "06 02000000
             04000000 67657473 0700000000000000
             02000000 c3a9 ffffffffffffffff",
        ),
        ("done", ToClient::Done, "07"),
        ("failed", ToClient::Failed(failed), "08 0500 02000000 6e6f"),
    ]
}

#[test]
fn every_message_to_a_client() {
    let mut seen = [false; 8];
    for (what, message, golden) in to_client() {
        seen[match &message {
            ToClient::Welcome(_) => 0,
            ToClient::Alive { .. } => 1,
            ToClient::Ticket(_) => 2,
            ToClient::Table(_) => 3,
            ToClient::Tables(_) => 4,
            ToClient::Stats(_) => 5,
            ToClient::Done => 6,
            ToClient::Failed(_) => 7,
        }] = true;
        let mut bytes = vec![];
        message.encode(&mut bytes);
        assert_hex(what, &bytes, golden);
        assert_eq!(ToClient::decode(&hex(golden)), Ok(message), "{what}");
    }
    assert_eq!(seen, [true; 8]);
}

fn golden_table() -> &'static str {
    to_client().into_iter().find(|(what, ..)| *what == "table").expect("it is there").2
}

#[test]
fn refused_control_messages() {
    let to_server = ["", "00", "0b", "ff", "03 00", "04 41000000", "04 01000000 ff", "05 00000000"];
    for golden in to_server {
        assert!(ToServer::decode(&hex(golden)).is_err(), "{golden}");
    }
    let to_client = [
        "",
        "00",
        "09",
        "07 00",
        "03 ab",
        "05 01000000",
        "05 01040000",
        "06 01040000",
        "06 ffffffff",
        "08 1400 00000000",
    ];
    for golden in to_client {
        assert!(ToClient::decode(&hex(golden)).is_err(), "{golden}");
    }
    let info = golden_table();
    // Offsets: update mode byte 55, the fabric of updates byte 56.
    for (offset, value) in [(55, 2), (56, 4)] {
        let mut other = hex(info);
        other[offset] = value;
        assert!(ToClient::decode(&other).is_err(), "byte {offset} = {value}");
    }
    let welcome = hex(WELCOME);
    // Offsets: `resumed` is byte 19, the number of fabrics byte 100, the first kind byte 101.
    for (offset, value) in [(19, 2), (100, 9), (101, 0), (101, 4)] {
        let mut other = welcome.clone();
        other[offset] = value;
        assert!(ToClient::decode(&other).is_err(), "byte {offset} = {value}");
    }
}

/// What a server can do for a client of another release: name both sides' versions, whatever
/// the rest of the hello is.
#[test]
fn versions_of_any_hello() {
    let versions = |golden: &str| PeerVersions::peek(&hex(golden));
    let newer = versions("01 0200 0500 0300 99ff").expect("a hello");
    assert_eq!((newer.wire_min, newer.wire_max, newer.layout), (2, 5, 3));
    assert_eq!(newer.in_common(), None);
    assert_eq!(versions("02 0200 0500 0300"), None, "no hello");
    assert_eq!(versions("01 0200 0500 03"), None, "too short");
    assert_eq!(versions(""), None);

    let common = |wire_min, wire_max| PeerVersions { wire_min, wire_max, layout: 1 }.in_common();
    assert_eq!(common(1, 1), Some(1));
    assert_eq!(common(0, 9), Some(1));
    assert_eq!(common(0, 0), None);
    assert_eq!(common(2, 9), None);
    assert_eq!(common(9, 1), None, "a range that is empty");
}
