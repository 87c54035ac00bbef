//! Writes the catalog, region 0.

use std::sync::Arc;

use onesided_fabric::{Memory, Rights};
use onesided_protocol::layout::catalog::{
    CATALOG_BYTES, CATALOG_REGION, CLOCK_OFFSET, COUNTS_OFFSET, CatalogHeader, DIRECTORY_OFFSET,
    DirectoryWord, EPOCH_OFFSET, RegionRecord, TableRecord,
};
use zerocopy::IntoBytes;

use super::spot::Spot;
use super::{EngineError, MakeMemory};

/// Bytes after which a table record's checksum stands.
const TABLE_CHECKSUM_OFFSET: usize = size_of::<TableRecord>() - 8;
/// The catalog's memory is whole pages.
const PAGE_BYTES: usize = 4096;

/// The catalog. Records may be read at any time: a checksum is stored after, and cleared before,
/// what it covers.
pub(super) struct Catalog {
    memory: Arc<Memory>,
}

impl Catalog {
    pub(super) fn new(incarnation: u64, make_memory: &MakeMemory) -> Result<Self, EngineError> {
        let len_bytes = CATALOG_BYTES.next_multiple_of(PAGE_BYTES);
        let memory = make_memory("onesided-catalog", len_bytes, Rights::ReadOnly)
            .map_err(|source| EngineError::Memory { what: "the catalog", len_bytes, source })?;
        let catalog = Self { memory: Arc::new(memory) };
        catalog.at(0).write(CatalogHeader::new(incarnation).as_bytes());
        catalog.add_region(CATALOG_REGION, len_bytes, Rights::ReadOnly);
        Ok(catalog)
    }

    pub(super) fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    fn at(&self, offset_bytes: usize) -> Spot<'_> {
        Spot::new(&self.memory, offset_bytes)
    }

    /// Something changed: clients look again.
    fn bump(&self) {
        self.at(EPOCH_OFFSET).add(1);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.at(EPOCH_OFFSET).load()
    }

    pub(super) fn set_clock(&self, unix_ns: u64) {
        self.at(CLOCK_OFFSET).store(unix_ns);
    }

    /// Adds the record of region `id`; ids come in order.
    pub(super) fn add_region(&self, id: u32, len_bytes: usize, rights: Rights) {
        let writable = rights == Rights::ReadWrite;
        let record = RegionRecord::new(id, writable, len_bytes as u64, [0; 40]);
        self.at(RegionRecord::offset(id)).write(record.as_bytes());
        self.at(COUNTS_OFFSET).store(u64::from(id) + 1);
        self.bump();
    }

    /// Makes a region's record zero: nobody who looks learns of it any more.
    pub(super) fn clear_region(&self, id: u32) {
        let at = self.at(RegionRecord::offset(id));
        at.plus(size_of::<RegionRecord>() - 8).store(0);
        at.write(&[0; size_of::<RegionRecord>() - 8]);
        self.bump();
    }

    /// Writes a new table's record.
    pub(super) fn set_table(&self, slot: u32, record: &TableRecord) {
        let directory = DirectoryWord(record.directory.get());
        self.at(TableRecord::offset(slot) + DIRECTORY_OFFSET).store(directory.0);
        self.change_table(slot, record);
    }

    /// Writes all of a table's record but the directory word, which only the index changes.
    pub(super) fn change_table(&self, slot: u32, record: &TableRecord) {
        let at = self.at(TableRecord::offset(slot));
        let bytes = record.as_bytes();
        let after_directory = DIRECTORY_OFFSET + 8;
        at.plus(TABLE_CHECKSUM_OFFSET).store(0);
        at.write(&bytes[..DIRECTORY_OFFSET]);
        at.plus(after_directory).write(&bytes[after_directory..TABLE_CHECKSUM_OFFSET]);
        at.plus(TABLE_CHECKSUM_OFFSET).store(record.checksum.get());
        self.bump();
    }

    /// Makes a table's record zero.
    pub(super) fn clear_table(&self, slot: u32) {
        let at = self.at(TableRecord::offset(slot));
        at.plus(TABLE_CHECKSUM_OFFSET).store(0);
        at.write(&[0; TABLE_CHECKSUM_OFFSET]);
        self.bump();
    }

    /// Points a table at another directory.
    pub(super) fn set_directory(&self, slot: u32, word: DirectoryWord) {
        self.at(TableRecord::offset(slot) + DIRECTORY_OFFSET).store(word.0);
        self.bump();
    }
}
