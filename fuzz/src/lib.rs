//! What the fuzz targets do with their bytes. protocol/tests/corpus.rs includes this file and
//! replays the corpus, mutations of it, and arbitrary bytes on the stable compiler.
//!
//! The oracle for messages is stronger than "no panic": what decodes, encodes to the same bytes.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a library for the fuzzer, a module for the test")]

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::{ChecksumKey, entry_checksum};
use onesided_protocol::control::{PeerVersions, ToClient, ToServer};
use onesided_protocol::hash::top_bits;
use onesided_protocol::layout::catalog::{CatalogHeader, DirectoryWord, RegionRecord, TableRecord};
use onesided_protocol::layout::entry::{COVERED_FROM, EntryHeader, HEADER_BYTES, Verdict, judge};
use onesided_protocol::layout::line::{self, LineHeader};
use onesided_protocol::layout::state::State;
use onesided_protocol::rpc::{Answer, Request};
use zerocopy::{FromBytes, IntoBytes};

/// A target: takes any bytes, panics when something is wrong.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 6] = [
    ("request", request),
    ("answer", answer),
    ("to_server", to_server),
    ("to_client", to_client),
    ("judge", judge_entry),
    ("catalog", catalog),
];

/// Requests.
pub fn request(bytes: &[u8]) {
    let _ = Request::peek_id(bytes);
    if let Ok(message) = Request::decode(bytes) {
        let mut again = vec![];
        message.encode(&mut again);
        assert!(again == bytes, "{message:?} has two encodings");
        let _ = message.op.is_mutation();
        assert_eq!(Request::peek_id(bytes), message.id);
    }
}

/// Answers.
pub fn answer(bytes: &[u8]) {
    if let Ok(message) = Answer::decode(bytes) {
        let mut again = vec![];
        message.encode(&mut again);
        assert!(again == bytes, "{message:?} has two encodings");
    }
}

/// Control messages to the server.
pub fn to_server(bytes: &[u8]) {
    let versions = PeerVersions::peek(bytes);
    let _ = versions.map(PeerVersions::in_common);
    if let Ok(message) = ToServer::decode(bytes) {
        let mut again = vec![];
        message.encode(&mut again);
        assert!(again == bytes, "{message:?} has two encodings");
        let hello = match message {
            ToServer::Hello(hello) => Some((hello.wire_min, hello.wire_max, hello.layout)),
            _ => None,
        };
        assert_eq!(hello, versions.map(|v| (v.wire_min, v.wire_max, v.layout)));
    }
}

/// Control messages to a client.
pub fn to_client(bytes: &[u8]) {
    if let Ok(message) = ToClient::decode(bytes) {
        let mut again = vec![];
        message.encode(&mut again);
        assert!(again == bytes, "{message:?} has two encodings");
    }
}

/// Bytes READ at an address: 8 bytes secret, 8 address, 1 length of the key, the key, and what
/// was READ.
pub fn judge_entry(bytes: &[u8]) {
    let Some((secret, rest)) = bytes.split_first_chunk::<8>() else { return };
    let Some((addr, rest)) = rest.split_first_chunk::<8>() else { return };
    let Some((&key_len, rest)) = rest.split_first() else { return };
    let Some((key, read)) = rest.split_at_checked(key_len.into()) else { return };
    let secret = u64::from_le_bytes(*secret);
    let Some(addr) = LogAddr::from_bits(u64::from_le_bytes(*addr)) else { return };
    check_verdict(secret, addr, read, key);
    // With the right checksum, what is behind it is reached too.
    let mut proven = read.to_vec();
    if let Some(header) = header_of(read)
        && let Some(covered) = read.get(COVERED_FROM..header.covered_to())
    {
        let state = State::committed(entry_checksum(secret, addr, covered));
        proven[..8].copy_from_slice(&state.to_le_bytes());
        let verdict = check_verdict(secret, addr, &proven, key);
        let valid = matches!(verdict, Verdict::Hit(_) | Verdict::Large { .. } | Verdict::OtherKey);
        assert!(valid, "a proven entry is {verdict:?}");
    }
}

fn header_of(read: &[u8]) -> Option<EntryHeader> {
    let words = read.get(COVERED_FROM..HEADER_BYTES)?.as_chunks::<8>().0;
    Some(EntryHeader::from_words(words.first_chunk::<3>()?.map(u64::from_le_bytes)))
}

fn check_verdict(secret: u64, addr: LogAddr, read: &[u8], key: &[u8]) -> Verdict {
    let verdict = judge(&ChecksumKey::new(secret, None), addr, read, key);
    let header = match verdict {
        Verdict::Hit(header) => {
            assert!(!header.is_large() && header.len_bytes() <= read.len());
            header
        }
        Verdict::Large { header, state } => {
            assert!(header.is_large());
            assert_eq!(state.to_le_bytes(), read[..8]);
            header
        }
        _ => return verdict,
    };
    let checksum = entry_checksum(secret, addr, &read[COVERED_FROM..header.covered_to()]);
    assert_eq!(State::committed(checksum).to_le_bytes(), read[..8]);
    assert_eq!(&read[header.key_offset()..header.value_offset()], key);
    verdict
}

/// Catalog records, directory words and index lines.
pub fn catalog(bytes: &[u8]) {
    if let Ok((header, _)) = CatalogHeader::read_from_prefix(bytes)
        && header.is_valid()
        && header.reserved == [0; 6]
    {
        let own = CatalogHeader::new(header.incarnation.get());
        assert_eq!(own.checksum, header.checksum);
    }
    if let Ok((record, _)) = RegionRecord::read_from_prefix(bytes)
        && record.is_valid()
        && record.rights.get() < 2
    {
        let (id, writable) = (record.id.get(), record.rights.get() == 1);
        let own = RegionRecord::new(id, writable, record.len_bytes.get(), record.descriptor);
        assert_eq!(own.as_bytes(), record.as_bytes());
    }
    if let Ok((record, _)) = TableRecord::read_from_prefix(bytes) {
        let sealed = record.sealed();
        assert!(sealed.is_valid());
        assert_eq!(record.is_valid(), sealed.as_bytes() == record.as_bytes());
    }
    for word in bytes.as_chunks::<8>().0 {
        any_word(u64::from_le_bytes(*word));
    }
}

/// What a reader does with a word before it knows whether it means anything.
fn any_word(word: u64) {
    let header = LineHeader(word);
    let _ = (header.covers(!header.prefix()), header.in_progress());
    assert!(header.covers(header.prefix()));
    assert!(line::tail_offset_bytes(header.overflow()).is_none_or(|offset| {
        (line::TAIL_OFFSET_BYTES..line::INDEX_SEGMENT_BYTES).contains(&offset)
    }));
    let directory = DirectoryWord(word);
    let _ = top_bits(header.prefix(), directory.depth());
    if let Some(addr) = directory.addr() {
        assert_eq!(LogAddr::new(addr.region(), addr.offset_bytes()), addr);
        assert_eq!(DirectoryWord::new(directory.depth(), addr).addr(), Some(addr));
    }
}
