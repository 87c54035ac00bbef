//! Golden bytes of what is read without asking, written down by hand, both ways.

mod common;

use common::{assert_hex, hex};
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::layout::catalog::{CatalogHeader, DirectoryWord, RegionRecord, TableRecord};
use onesided_protocol::layout::entry::{
    EntryHeader, FLAG_COUNTER, FLAG_LARGE, Verdict, judge, prefix_bytes,
};
use onesided_protocol::layout::line::{self, LineHeader};
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::{Death, State};
use zerocopy::{FromBytes, IntoBytes};

const SECRET: u64 = 0xFEED_FACE_CAFE_BEEF;

/// Region 3, 256 bytes from its start: 3 << 22 | 16.
fn sums(secret: u64) -> ChecksumKey {
    ChecksumKey::new(secret, None)
}

fn addr() -> LogAddr {
    LogAddr::new(3, 256)
}

const CATALOG_HEADER: &str = "
    4f4e455349444544  # magic: ONESIDED
    0200 000000000000  # layout version 2, reserved
    eeffc000efbeadde  # incarnation
    1500000000000000  # clock
    02000000 00000000  # regions, reserved
    0900000000000000  # epoch
    0000000000000000  # reserved
    dabe3425fee8c3c9  # checksum";

#[test]
fn catalog_header() {
    let mut header = CatalogHeader::new(0xDEAD_BEEF_00C0_FFEE);
    header.clock_ns = 21.into();
    header.regions = 2.into();
    header.epoch = 9.into();
    assert_hex("catalog header", header.as_bytes(), CATALOG_HEADER);

    let bytes = hex(CATALOG_HEADER);
    let read = CatalogHeader::read_from_bytes(&bytes).unwrap();
    assert!(read.is_valid());
    assert_eq!(read.incarnation.get(), 0xDEAD_BEEF_00C0_FFEE);
    assert_eq!((read.clock_ns.get(), read.regions.get(), read.epoch.get()), (21, 2, 9));
    for covered in 0..24 {
        let mut other = bytes.clone();
        other[covered] ^= 1;
        assert!(!CatalogHeader::read_from_bytes(&other).unwrap().is_valid(), "byte {covered}");
    }
}

const REGION_RECORD: &str = "
    07000000 01000000  # id, rights: writable
    0000000400000000  # 64 MiB
    101112131415161718191a1b1c1d1e1f2021222324252627
    28292a2b2c2d2e2f3031323334353637  # descriptor
    f7e17ac2f435129c  # checksum";

#[test]
fn region_record() {
    let descriptor: [u8; 40] = std::array::from_fn(|i| 0x10 + i as u8);
    let record = RegionRecord::new(7, true, 64 << 20, descriptor);
    assert_hex("region record", record.as_bytes(), REGION_RECORD);

    let bytes = hex(REGION_RECORD);
    let read = RegionRecord::read_from_bytes(&bytes).unwrap();
    assert!(read.is_valid());
    assert_eq!((read.id.get(), read.rights.get(), read.len_bytes.get()), (7, 1, 64 << 20));
    assert_eq!(read.descriptor, descriptor);
    for byte in 0..64 {
        let mut other = bytes.clone();
        other[byte] ^= 0x80;
        assert!(!RegionRecord::read_from_bytes(&other).unwrap().is_valid(), "byte {byte}");
    }
    assert!(!RegionRecord::read_from_bytes(&[0; 64]).unwrap().is_valid(), "no record yet");
}

const TABLE_RECORD: &str = "
    11000000 02000000  # id, flags: ordered
    0000810000140000  # directory: depth 5, region 2, 1 MiB
    efcdab8967452301  # hash seed
    efbefecacefaedfe  # secret
    100e0000 07000000  # ttl 3600 s, length of the name
    0000000000010000  # quota 1 TiB
    0000000000000000 0000000000000000 0000000000000000  # reserved
    0000000000000000 0000000000000000 0000000000000000
    0000000000000000 0000000000000000 0000000000000000
    64656661756c7400 0000000000000000 0000000000000000 0000000000000000  # name
    0000000000000000 0000000000000000 0000000000000000 0000000000000000
    fb7fdb64eeb7f631  # checksum";

#[test]
fn table_record() {
    let bytes = hex(TABLE_RECORD);
    let read = TableRecord::read_from_bytes(&bytes).unwrap();
    assert!(read.is_valid());
    assert_eq!((read.id.get(), read.flags.get()), (17, 2));
    assert_eq!((read.hash_seed.get(), read.secret.get()), (0x0123_4567_89AB_CDEF, SECRET));
    assert_eq!((read.default_ttl_s.get(), read.quota_bytes.get()), (3_600, 1 << 40));
    assert_eq!(&read.name[..read.name_len.get() as usize], b"default");
    let directory = DirectoryWord(read.directory.get());
    assert_eq!(directory.depth(), 5);
    assert_eq!(directory.addr(), Some(LogAddr::new(2, 1 << 20)));

    let mut name = [0; 64];
    name[..7].copy_from_slice(b"default");
    let written = TableRecord {
        id: 17.into(),
        flags: 2.into(),
        directory: DirectoryWord::new(5, LogAddr::new(2, 1 << 20)).0.into(),
        hash_seed: 0x0123_4567_89AB_CDEF.into(),
        secret: SECRET.into(),
        default_ttl_s: 3_600.into(),
        name_len: 7.into(),
        quota_bytes: (1 << 40).into(),
        reserved: [0; 72],
        name,
        checksum: 0.into(),
    };
    assert_hex("table record", written.sealed().as_bytes(), TABLE_RECORD);

    for byte in 0..192 {
        let mut other = bytes.clone();
        other[byte] ^= 1;
        let valid = TableRecord::read_from_bytes(&other).unwrap().is_valid();
        assert_eq!(valid, (8..16).contains(&byte), "only the directory word may change: {byte}");
    }
}

#[test]
fn directory_word() {
    let word = DirectoryWord::new(22, LogAddr::new(0xF_FFFF, (64 << 20) - 16));
    assert_hex("directory word", &word.0.to_le_bytes(), "ff ff ff ff ff 5b 00 00");
    assert_eq!(word.depth(), 22);
    assert_eq!(word.addr().unwrap().get(), (1 << 42) - 1);
    assert_eq!(DirectoryWord(0).addr(), None);
}

#[test]
fn line_header() {
    let header = LineHeader::new(0x0201, 3, 64, 0xA000_0000);
    assert_hex("line header", &header.0.to_le_bytes(), "01 02 03 40 00 00 00 a0");
    assert_eq!((header.version(), header.depth(), header.overflow()), (0x0201, 3, 64));
    assert_eq!(header.prefix(), 0xA000_0000);
    assert!(header.in_progress() && !header.with_version(0x0202).in_progress());
    assert_eq!(header.with_version(0x0202).0, 0xA000_0000_4003_0202);
    assert_eq!(header.with_overflow(1).0, 0xA000_0000_0103_0201);
    assert!(header.covers(0xBFFF_FFFF) && !header.covers(0xC000_0000));
    assert!(LineHeader::new(0, 0, 0, 0).covers(u32::MAX));
    // A depth that no server writes must not make a reader panic.
    assert!(LineHeader(u64::MAX).covers(u32::MAX) && !LineHeader(u64::MAX).covers(0));
}

#[test]
fn line() {
    let words = [0xA000_0000_4003_0202, 1, 0, 3, 0, 5, 0, 7];
    assert_eq!(line::header(&words).version(), 0x0202);
    let slots: Vec<u64> = line::slots(&words).map(|slot| slot.0).collect();
    assert_eq!(slots, [1, 0, 3, 0, 5, 0, 7]);
    assert_eq!(line::bucket_offset_bytes(511), 65_408);
    assert_eq!(line::tail_offset_bytes(0), None);
    assert_eq!(line::tail_offset_bytes(1), Some(65_536));
    assert_eq!(line::tail_offset_bytes(64), Some(69_568));
    assert_eq!(line::tail_offset_bytes(65), None);
}

#[test]
fn slot() {
    let slot = Slot::new(0x2ABC, 0x81, addr());
    assert_hex("slot", &slot.0.to_le_bytes(), "10 00 c0 00 00 04 f2 aa");
    assert_eq!((slot.fingerprint(), slot.class(), slot.addr()), (0x2ABC, 0x81, Some(addr())));
    assert_eq!(Slot::new(0xFFFF, 0, addr()).fingerprint(), 0x3FFF, "14 bits");
    assert!(Slot::EMPTY.is_empty() && Slot(0xFFFF_FC00_0000_0000).is_empty() && !slot.is_empty());
}

#[test]
fn log_address() {
    assert_eq!(addr().get(), 0xC0_0010);
    assert_eq!((addr().region(), addr().offset_bytes()), (3, 256));
    assert_eq!(LogAddr::from_bits(0), None);
    assert_eq!(LogAddr::from_bits(!((1 << 42) - 1)), None, "the high bits are not an address");
    assert_eq!(LogAddr::from_bits(u64::MAX).map(LogAddr::get), Some((1 << 42) - 1));
}

#[test]
fn state_words() {
    let words = [
        ("pending", State::pending(0x1234), "34 12 00 00 00 00 00 00"),
        ("never written", State::pending(0), "00 00 00 00 00 00 00 00"),
        ("committed", State::committed(0x1234), "34 12 00 00 00 00 00 40"),
        ("committed, 62 bits", State::committed(u64::MAX), "ff ff ff ff ff ff ff 7f"),
        ("forwarded", State::forwarded(0x81, addr()), "10 00 c0 00 00 04 02 80"),
        ("deleted", State::dead(Death::Deleted), "01 00 00 00 00 00 00 c0"),
        ("expired", State::dead(Death::Expired), "02 00 00 00 00 00 00 c0"),
        ("evicted", State::dead(Death::Evicted), "03 00 00 00 00 00 00 c0"),
        ("relocated", State::dead(Death::Relocated), "04 00 00 00 00 00 00 c0"),
    ];
    for (what, word, golden) in words {
        assert_hex(what, &word.to_le_bytes(), golden);
    }
    assert_eq!(State::decode(0x1234), State::Pending(0x1234));
    assert_eq!(State::decode(0x4000_0000_0000_1234), State::Committed(0x1234));
    assert_eq!(State::decode(0x8002_0400_00C0_0010), State::Forwarded(0x81, Some(addr())));
    assert_eq!(State::decode(0x8002_0400_0000_0000), State::Forwarded(0x81, None));
    assert_eq!(State::decode(0xC000_0000_0000_0003), State::Dead(3));
}

const SMALL_ENTRY: &str = "
    f8a105492c13d243  # committed
    8877665544332211  # version
    05000000 0300 0000  # lengths of value and key, flags
    3d4c5b6a d4c3b2a1  # expiry, user flags
    6b6579 76616c7565  # key and value: 40 bytes, padded to 48
    0000000000000000";

#[test]
fn small_entry() {
    let bytes = hex(SMALL_ENTRY);
    let header = EntryHeader {
        version: 0x1122_3344_5566_7788,
        value_len: 5,
        key_len: 3,
        flags: 0,
        expiry_s: 0x6A5B_4C3D,
        user_flags: 0xA1B2_C3D4,
    };
    assert_eq!(judge(&sums(SECRET), addr(), &bytes, b"key"), Verdict::Hit(header));
    assert_eq!(&bytes[header.value_offset()..header.len_bytes()], b"value");
    assert_eq!((header.len_bytes(), header.padded_bytes()), (40, 48));
    assert_hex(
        "small prefix",
        &prefix_bytes(&header, 99, b"key"),
        "0000000000000000 8877665544332211 05000000 0300 0000 3d4c5b6a d4c3b2a1 6b6579",
    );
    assert_eq!(judge(&sums(SECRET), addr(), &bytes, b"kez"), Verdict::OtherKey);
    assert_eq!(judge(&sums(SECRET ^ 1), addr(), &bytes, b"key"), Verdict::Unproven);
    assert_eq!(judge(&sums(SECRET), LogAddr::new(3, 272), &bytes, b"key"), Verdict::Unproven);
}

const LARGE_ENTRY: &str = "
    2b463b708e677663  # committed
    8877665544332211  # version
    01400000 0300 0100  # lengths of value (16,385) and key, flags: large
    00000000 00000000  # expiry, user flags
    0807060504030201  # append number
    6b6579  # key";

#[test]
fn large_entry() {
    let bytes = hex(LARGE_ENTRY);
    let header = EntryHeader {
        version: 0x1122_3344_5566_7788,
        value_len: 16_385,
        key_len: 3,
        flags: FLAG_LARGE,
        expiry_s: 0,
        user_flags: 0,
    };
    let state = 0x6376_678E_703B_462B;
    assert_eq!(judge(&sums(SECRET), addr(), &bytes, b"key"), Verdict::Large { header, state });
    assert_eq!((header.value_offset(), header.padded_bytes()), (43, 16_432));
    let prefix = prefix_bytes(&header, 0x0102_0304_0506_0708, b"key");
    assert_hex(
        "large prefix",
        &prefix,
        "0000000000000000 8877665544332211 01400000 0300 0100 00000000 00000000
         0807060504030201 6b6579",
    );
    for byte in 8..bytes.len() {
        let mut other = bytes.clone();
        other[byte] ^= 1;
        let verdict = judge(&sums(SECRET), addr(), &other, b"key");
        assert_eq!(verdict, Verdict::Unproven, "byte {byte}");
    }
}

#[test]
fn flags() {
    assert_eq!((FLAG_LARGE, FLAG_COUNTER), (1, 2));
}
