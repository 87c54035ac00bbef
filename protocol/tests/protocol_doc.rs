//! docs/PROTOCOL.md says the same numbers as the code.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::path::Path;

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::entry_checksum;
use onesided_protocol::control::{FabricName, PREAMBLE_MAGIC, ToClient, ToServer};
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::catalog::{self, CatalogHeader, RegionRecord, TableRecord};
use onesided_protocol::layout::{entry, line, size_class};
use onesided_protocol::limits::{LAYOUT_VERSION, WIRE_VERSION_MAX, WIRE_VERSION_MIN};
use onesided_protocol::rpc::{ErrorCode, Op, Request};

/// Rows of the tables below each heading, without their head.
fn tables() -> BTreeMap<String, Vec<Vec<String>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/PROTOCOL.md");
    let text = fs::read_to_string(path).expect("docs/PROTOCOL.md");
    let mut all = BTreeMap::<String, Vec<Vec<String>>>::new();
    let (mut heading, mut in_body) = (String::new(), false);
    for line in text.lines() {
        if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim().to_owned();
        }
        in_body = line.starts_with("|---") || in_body && line.starts_with('|');
        if in_body && !line.starts_with("|---") {
            let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
            all.entry(heading.clone()).or_default().push(cells.collect());
        }
    }
    all
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// The first word of the last cell that matters: the name of a field.
fn name(cell: &str) -> &str {
    cell.split([':', ';', ',', ' ']).next().unwrap_or("")
}

/// (offset, size) by name of field; also that fields touch and fill `size`.
#[track_caller]
fn fields(rows: &[Vec<String>], size: usize) -> BTreeMap<String, (usize, usize)> {
    let mut end = 0;
    let mut all = BTreeMap::new();
    for row in rows {
        let (offset, len) = (number(&row[0]) as usize, number(&row[1]) as usize);
        assert_eq!(offset, end, "{row:?} does not begin where the one before ends");
        end = offset + len;
        all.insert(row[2].clone(), (offset, len));
    }
    assert_eq!(end, size, "the table does not fill the layout");
    all
}

macro_rules! check_offsets {
    ($tables:expr, $title:literal, $type:ty: $($field:ident),+) => {{
        let fields = fields(&$tables[$title], size_of::<$type>());
        $(
            let stated = fields.iter().find(|(text, _)| name(text) == stringify!($field));
            let stated = stated.unwrap_or_else(|| panic!("no {}", stringify!($field)));
            assert_eq!(stated.1.0, offset_of!($type, $field), "{}", stringify!($field));
        )+
        let named = [$(stringify!($field)),+].len();
        assert_eq!(fields.len(), named, "fields of {}", $title);
    }};
}

#[test]
fn catalog_tables() {
    let tables = tables();
    check_offsets!(tables, "Catalog header", CatalogHeader: magic, layout_version, reserved,
        incarnation, clock_ns, regions, reserved2, epoch, reserved3, checksum);
    check_offsets!(tables, "Region record", RegionRecord: id, rights, len_bytes, descriptor,
        checksum);
    check_offsets!(tables, "Table record", TableRecord: id, flags, directory, hash_seed, secret,
        default_ttl_s, name_len, quota_bytes, reserved, name, checksum);
    let whole = fields(&tables["Catalog: region 0"], catalog::CATALOG_BYTES);
    let offsets: Vec<usize> = whole.values().map(|field| field.0).collect();
    assert!(offsets.contains(&catalog::REGION_RECORDS_OFFSET));
    assert!(offsets.contains(&catalog::TABLE_RECORDS_OFFSET));
}

#[test]
fn entry_table() {
    let fields = fields(&tables()["Entry"], entry::LARGE_HEADER_BYTES);
    let offset = |field: &str| {
        fields.iter().find(|(text, _)| text.starts_with(field)).map(|(_, place)| place.0)
    };
    for (field, constant) in [
        ("state word", entry::STATE_OFFSET),
        ("version", entry::VERSION_OFFSET),
        ("value length", entry::VALUE_LEN_OFFSET),
        ("key length", entry::KEY_LEN_OFFSET),
        ("flags", entry::FLAGS_OFFSET),
        ("expiry", entry::EXPIRY_OFFSET),
        ("user flags", entry::USER_FLAGS_OFFSET),
        ("append number", entry::APPEND_NUMBER_OFFSET),
    ] {
        assert_eq!(offset(field), Some(constant), "{field}");
    }
}

/// Bits of every word touch and cover it; the golden tests hold them to the code.
#[test]
fn bit_tables_are_whole() {
    let tables = tables();
    for (title, top) in [
        ("Log address", 41),
        ("Directory word", 63),
        ("Line header", 63),
        ("Slot", 63),
        ("State word", 63),
        ("Hash, placement, checksum", 63),
    ] {
        let mut next = Some(top);
        for row in &tables[title] {
            let (high, low) = row[0].split_once("..").expect("bits");
            assert_eq!(Some(number(high)), next, "{title}: {row:?}");
            next = number(low).checked_sub(1);
        }
        assert_eq!(next, None, "{title} ends above bit 0");
    }
}

/// One bit set in each field of the tables is seen by its accessor and by no other.
#[test]
fn bit_tables_are_the_codes() {
    use onesided_protocol::layout::line::LineHeader;
    use onesided_protocol::layout::slot::Slot;
    let tables = tables();
    let mask = |row: &[String]| {
        let (high, low) = row[0].split_once("..").expect("bits");
        let (high, low) = (number(high), number(low));
        (u64::MAX >> (63 - high)) & (u64::MAX << low)
    };
    for row in &tables["Line header"] {
        let header = LineHeader(mask(row));
        let seen = [
            ("prefix", header.prefix() == u32::MAX),
            ("overflow", header.overflow() == u8::MAX),
            ("depth", header.depth() == u8::MAX),
            ("version", header.version() == u16::MAX),
        ];
        for (field, is_set) in seen {
            assert_eq!(is_set, field == name(&row[1]), "{row:?}");
        }
    }
    for row in &tables["Slot"] {
        let slot = Slot(mask(row));
        let addr = slot.addr().map(LogAddr::get) == Some((1 << 42) - 1);
        let seen = [
            ("fingerprint", slot.fingerprint() == 0x3FFF),
            ("size", slot.class() == 255),
            ("log", addr),
        ];
        for (field, is_set) in seen {
            assert_eq!(is_set, field == name(&row[1]), "{row:?}");
        }
    }
    for row in &tables["Hash, placement, checksum"] {
        let hash = KeyHash(mask(row));
        let seen = [
            ("prefix", hash.prefix() == u32::MAX),
            ("bucket", hash.bucket() == line::BUCKETS - 1),
            ("fingerprint", hash.fingerprint() == 0x3FFF),
        ];
        for (field, is_set) in seen {
            assert_eq!(is_set, field == name(&row[1]), "{row:?}");
        }
    }
}

#[test]
fn size_class_table() {
    let rows = &tables()["Size classes"];
    assert!(rows.len() >= 6);
    for row in rows {
        let class = u8::try_from(number(&row[0])).expect("8 bits");
        assert_eq!(size_class::bytes(class) as u64, number(&row[1]), "class {class}");
    }
}

#[test]
fn vectors() {
    let rows = &tables()["Vectors"];
    assert!(rows.len() >= 11);
    for row in rows {
        let bytes = common::pattern(number(&row[0]) as usize);
        assert_eq!(KeyHash::of(0, &bytes).0, number(&row[1]), "{row:?}");
        assert_eq!(KeyHash::of(0x0123_4567_89AB_CDEF, &bytes).0, number(&row[2]), "{row:?}");
        if !row[3].is_empty() {
            let addr = LogAddr::new(3, 256);
            let checksum = entry_checksum(0xFEED_FACE_CAFE_BEEF, addr, &bytes);
            assert_eq!(checksum, number(&row[3]), "{row:?}");
        }
    }
}

#[test]
fn error_codes() {
    let stated: Vec<(u64, String)> =
        tables()["Errors"].iter().map(|row| (number(&row[0]), row[1].clone())).collect();
    let coded: Vec<(u64, String)> =
        ErrorCode::ALL.iter().map(|&code| (code as u64, format!("{code:?}"))).collect();
    assert_eq!(stated, coded);
}

/// A kind that is listed is known to the decoder, and one beyond the list is not.
#[test]
fn kinds() {
    let tables = tables();
    let known = |result: Result<(), onesided_protocol::DecodeError>| {
        use onesided_protocol::DecodeError::Unknown;
        !matches!(result, Err(Unknown { field: "message" | "operation" | "reply", .. }))
    };
    let request = |kind: u8| [&[0; 24][..], &[kind]].concat();
    let answer = |kind: u8| [&[0; 8][..], &[kind]].concat();
    let both = &tables["Requests and answers"];
    let replies = both.iter().rposition(|row| number(&row[0]) == 0).expect("replies begin at 0");
    type Decoder<'d> = (&'d [Vec<String>], &'d dyn Fn(u8) -> bool);
    let decoders: [Decoder<'_>; 4] = [
        (&tables["To the server"], &|kind| known(ToServer::decode(&[kind]).map(drop))),
        (&tables["To a client"], &|kind| known(ToClient::decode(&[kind]).map(drop))),
        (&both[..replies], &|kind| known(Request::decode(&request(kind)).map(drop))),
        (&both[replies..], &|kind| {
            known(onesided_protocol::rpc::Answer::decode(&answer(kind)).map(drop))
        }),
    ];
    for (rows, is_known) in decoders {
        let listed: Vec<u64> = rows.iter().map(|row| number(&row[0])).collect();
        for kind in 0..=u8::MAX {
            assert_eq!(is_known(kind), listed.contains(&u64::from(kind)), "{rows:?}: {kind}");
        }
    }
    assert_eq!((replies, both.len() - replies), (14, 13), "operations, replies");
    assert_eq!((FabricName::Shm as u8, FabricName::Verbs as u8, FabricName::Tcp as u8), (1, 2, 3));
    assert_eq!(&PREAMBLE_MAGIC, b"onesided");
    assert!(!Op::Ping.is_mutation());
}

#[test]
fn versions() {
    let tables = tables();
    let rows = &tables["Versions, and what other releases see"];
    let range = |row: usize| (number(&rows[row][1]), number(&rows[row][2]));
    assert_eq!(range(0), (u64::from(WIRE_VERSION_MIN), u64::from(WIRE_VERSION_MAX)));
    assert_eq!(range(1), (u64::from(LAYOUT_VERSION), u64::from(LAYOUT_VERSION)));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/PROTOCOL.md");
    let text = fs::read_to_string(path).expect("docs/PROTOCOL.md");
    assert!(text.contains(&format!("\nLayout version {LAYOUT_VERSION}. ")), "below *Layout*");
}

#[test]
fn limits() {
    let source = include_str!("../src/limits.rs");
    let rows = &tables()["Limits"];
    let stated: BTreeMap<&str, u64> =
        rows.iter().map(|row| (row[0].as_str(), number(&row[1]))).collect();
    let names = source.lines().filter_map(|line| line.strip_prefix("pub const "));
    let names = names.filter(|line| !line.starts_with("fn "));
    let names: Vec<&str> = names.filter_map(|line| line.split(':').next()).collect();
    assert_eq!(names.len(), rows.len(), "{names:?}");
    for name in names {
        assert_eq!(stated.get(name).copied(), Some(value_of(name)), "{name}");
    }
}

/// A new limit does not pass until it is here and in the table.
fn value_of(name: &str) -> u64 {
    use onesided_protocol::limits::*;
    macro_rules! values {
        ($($limit:ident),+) => {
            match name {
                $(stringify!($limit) => $limit as u64,)+
                other => panic!("{other} is not in this test"),
            }
        };
    }
    values!(
        DEFAULT_PORT,
        LAYOUT_VERSION,
        WIRE_VERSION_MIN,
        WIRE_VERSION_MAX,
        KEY_MAX_BYTES,
        VALUE_MAX_DEFAULT_BYTES,
        VALUE_MAX_BYTES,
        STAGING_SPARE_BYTES,
        LENT_BUFFERS_MAX,
        LARGE_VALUE_BYTES,
        REGION_BYTES,
        REGIONS_MAX,
        SEGMENT_BYTES,
        TABLES_MAX,
        TABLE_NAME_MAX_BYTES,
        DEPTH_MAX,
        ROUNDS_MAX,
        HOPS_MAX,
        MUTATIONS_IN_FLIGHT_MAX,
        BATCH_MAX,
        SCAN_KEYS_MAX,
        LEASES_MAX,
        INLINE_MAX_BYTES,
        MESSAGE_OVERHEAD_BYTES,
        CONTROL_REQUEST_MAX_BYTES,
        ACCESSES_MAX,
        RETIRED_MAX,
        SESSION_REQUEST_MAX_BYTES,
        CONTROL_FRAME_MAX_BYTES,
        STAT_NAME_MAX_BYTES,
        STATS_MAX,
        TOKEN_MAX_BYTES,
        FABRIC_BLOB_MAX_BYTES,
        FABRICS_MAX,
        ERROR_TEXT_MAX_BYTES,
        TICKET_BYTES,
        APPEND_MAX_BYTES
    )
}
