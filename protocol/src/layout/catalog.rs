//! Catalog: what region 0 tells a session about the server's other regions and its tables.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`CatalogHeader`] |
//! | [`REGION_RECORDS_OFFSET`] | [`REGIONS_MAX`] records of [`RegionRecord`], by region id |
//! | [`TABLE_RECORDS_OFFSET`] | [`TABLES_MAX`] records of [`TableRecord`], by slot |

use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::addr::{ADDR_MASK, LogAddr};
use super::slot::CLASS_SHIFT;
use crate::limits::{LAYOUT_VERSION, REGIONS_MAX, TABLE_NAME_MAX_BYTES, TABLES_MAX};

/// "ONESIDED", read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ONESIDED");
/// Where the region records begin.
pub const REGION_RECORDS_OFFSET: usize = 64;
/// Where the table records begin.
pub const TABLE_RECORDS_OFFSET: usize =
    REGION_RECORDS_OFFSET + REGIONS_MAX * size_of::<RegionRecord>();
/// Bytes of the catalog.
pub const CATALOG_BYTES: usize = TABLE_RECORDS_OFFSET + TABLES_MAX * size_of::<TableRecord>();
/// Region id of the catalog.
pub const CATALOG_REGION: u32 = 0;

/// Offset of the clock word in the catalog: the server's Unix time in ns at its last tick.
pub const CLOCK_OFFSET: usize = 24;
/// Offset of the word with the number of regions (low half) in the catalog.
pub const COUNTS_OFFSET: usize = 32;
/// Offset of the epoch word: it changes whenever a record does.
pub const EPOCH_OFFSET: usize = 40;
/// Offset of the directory word in a table record.
pub const DIRECTORY_OFFSET: usize = 8;

const _: () = assert!(size_of::<CatalogHeader>() == 64);
const _: () = assert!(size_of::<RegionRecord>() == 64);
const _: () = assert!(size_of::<TableRecord>() == 192);
const _: () = assert!(std::mem::offset_of!(CatalogHeader, clock_ns) == CLOCK_OFFSET);
const _: () = assert!(std::mem::offset_of!(CatalogHeader, regions) == COUNTS_OFFSET);
const _: () = assert!(std::mem::offset_of!(CatalogHeader, epoch) == EPOCH_OFFSET);
const _: () = assert!(std::mem::offset_of!(TableRecord, directory) == DIRECTORY_OFFSET);

/// Start of the catalog. The checksum covers the first 24 bytes; the words after them change.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CatalogHeader {
    /// [`MAGIC`].
    pub magic: U64,
    /// [`LAYOUT_VERSION`].
    pub layout_version: U16,
    /// 0.
    pub reserved: [u8; 6],
    /// Random number of this server life.
    pub incarnation: U64,
    /// Unix time of the server in ns at its last tick; never steps back.
    pub clock_ns: U64,
    /// Regions that exist, the catalog included; ids are below this.
    pub regions: U32,
    /// 0.
    pub reserved2: U32,
    /// Changes whenever a record does.
    pub epoch: U64,
    /// 0.
    pub reserved3: U64,
    /// Of the first 24 bytes.
    pub checksum: U64,
}

impl CatalogHeader {
    /// The header of a new server life.
    #[must_use]
    pub fn new(incarnation: u64) -> Self {
        let mut header = Self {
            magic: MAGIC.into(),
            layout_version: LAYOUT_VERSION.into(),
            reserved: [0; 6],
            incarnation: incarnation.into(),
            clock_ns: 0.into(),
            regions: 0.into(),
            reserved2: 0.into(),
            epoch: 0.into(),
            reserved3: 0.into(),
            checksum: 0.into(),
        };
        header.checksum = record_checksum(&header.as_bytes()[..CLOCK_OFFSET]).into();
        header
    }

    /// Whether magic, version and checksum are right.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.magic.get() == MAGIC
            && self.layout_version.get() == LAYOUT_VERSION
            && self.checksum.get() == record_checksum(&self.as_bytes()[..CLOCK_OFFSET])
    }
}

/// One region. All zero until it exists; written once.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionRecord {
    /// Its id, the number of this record.
    pub id: U32,
    /// 0 = read-only, 1 = writable by clients.
    pub rights: U32,
    /// Its length.
    pub len_bytes: U64,
    /// What each fabric needs to reach it; opaque here (verbs: address and rkey; shm: nothing,
    /// the descriptor comes over the Unix socket).
    pub descriptor: [u8; 40],
    /// Of the bytes before.
    pub checksum: U64,
}

impl RegionRecord {
    /// A record.
    #[must_use]
    pub fn new(id: u32, writable: bool, len_bytes: u64, descriptor: [u8; 40]) -> Self {
        let mut record = Self {
            id: id.into(),
            rights: u32::from(writable).into(),
            len_bytes: len_bytes.into(),
            descriptor,
            checksum: 0.into(),
        };
        record.checksum = record_checksum(&record.as_bytes()[..56]).into();
        record
    }

    /// Offset of a region's record in the catalog.
    #[must_use]
    pub const fn offset(id: u32) -> usize {
        REGION_RECORDS_OFFSET + id as usize * size_of::<Self>()
    }

    /// Whether the checksum is right (an all-zero record's is not).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.checksum.get() == record_checksum(&self.as_bytes()[..56])
    }
}

/// Of [`TableRecord::flags`]: update mode `cas`.
pub const TABLE_FLAG_CAS: u32 = 1 << 0;
/// Of [`TableRecord::flags`]: the server keeps the keys in order.
pub const TABLE_FLAG_ORDERED: u32 = 1 << 1;
/// Of [`TableRecord::flags`]: entries may go when memory is full.
pub const TABLE_FLAG_EVICT: u32 = 1 << 2;

/// One table. The checksum covers all but the directory word, which changes as the index grows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TableRecord {
    /// Never used twice in a server life; 0 = no table in this slot.
    pub id: U32,
    /// Bit 0: [`TABLE_FLAG_CAS`]. Bit 1: [`TABLE_FLAG_ORDERED`]. Bit 2: [`TABLE_FLAG_EVICT`].
    /// Others 0.
    pub flags: U32,
    /// See [`DirectoryWord`].
    pub directory: U64,
    /// Seed of the key hash.
    pub hash_seed: U64,
    /// Seed of the entry checksum: drawn anew at every start.
    pub secret: U64,
    /// Seconds, 0 = none.
    pub default_ttl_s: U32,
    /// Bytes of the name.
    pub name_len: U32,
    /// Bytes that the table may take, 0 = no limit of its own.
    pub quota_bytes: U64,
    /// 0.
    pub reserved: [u8; 72],
    /// UTF-8, zero-padded.
    pub name: [u8; TABLE_NAME_MAX_BYTES],
    /// Of all bytes but the directory word and this.
    pub checksum: U64,
}

impl TableRecord {
    /// Offset of a slot's record in the catalog.
    #[must_use]
    pub const fn offset(slot: u32) -> usize {
        TABLE_RECORDS_OFFSET + slot as usize * size_of::<Self>()
    }

    /// The record with its checksum set.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.checksum = self.own_checksum().into();
        self
    }

    /// Whether the checksum is right.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.checksum.get() == self.own_checksum()
    }

    fn own_checksum(&self) -> u64 {
        let mut copy = *self;
        copy.directory = 0.into();
        copy.checksum = 0.into();
        record_checksum(copy.as_bytes())
    }
}

/// A word that names a directory, or in a directory an index segment: bits 49..42 depth, bits
/// 41..0 address. 0 = nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryWord(pub u64);

impl DirectoryWord {
    /// From depth (global for a directory, local for a segment) and address.
    #[must_use]
    pub fn new(depth: u8, addr: LogAddr) -> Self {
        Self(u64::from(depth) << CLASS_SHIFT | addr.get())
    }

    /// The depth.
    #[inline]
    #[must_use]
    pub fn depth(self) -> u8 {
        (self.0 >> CLASS_SHIFT) as u8
    }

    /// The address, unless the word is 0.
    #[inline]
    #[must_use]
    pub fn addr(self) -> Option<LogAddr> {
        LogAddr::from_bits(self.0 & ADDR_MASK)
    }
}

fn record_checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(MAGIC, bytes)
}
