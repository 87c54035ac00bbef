//! The regions that a connection knows: a READ is posted only inside one of these.

use std::sync::atomic::{AtomicU64, Ordering};

use onesided_fabric::RegionId;
use onesided_protocol::layout::catalog::{
    CATALOG_BYTES, CATALOG_REGION, COUNTS_OFFSET, RegionRecord,
};
use onesided_protocol::limits::REGIONS_MAX;
use onesided_protocol::rules::{Rule, holds};
use zerocopy::{FromBytes, IntoBytes};

use super::io::Io;
use crate::error::Error;

/// Lengths of the known regions by id, 0 = not known.
pub(crate) struct Regions {
    lens: Box<[AtomicU64]>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self { lens: std::iter::repeat_with(AtomicU64::default).take(REGIONS_MAX).collect() }
    }

    /// Length of a known region, else 0.
    #[inline]
    pub(crate) fn len_bytes(&self, id: u32) -> u64 {
        self.lens.get(id as usize).map_or(0, |len| len.load(Ordering::Acquire))
    }

    /// The server takes this region away. Whether it was known.
    pub(crate) fn forget(&self, id: u32) -> bool {
        if !holds(Rule::RetiredIsForgotten) {
            return false;
        }
        self.lens.get(id as usize).is_some_and(|len| len.swap(0, Ordering::AcqRel) != 0)
    }

    /// Length of a region, attached now if the server has it; 0 if it has none of this id: the
    /// address that named it is stale.
    pub(crate) async fn learn(&self, io: &Io<'_>, id: u32) -> Result<u64, Error> {
        let known = self.len_bytes(id);
        if known != 0 || id as usize >= self.lens.len() {
            return Ok(known);
        }
        if self.len_bytes(CATALOG_REGION) == 0 {
            io.attach(RegionId(CATALOG_REGION), &[])?;
            self.lens[CATALOG_REGION as usize].store(CATALOG_BYTES as u64, Ordering::Release);
        }
        let counts = io.catalog(COUNTS_OFFSET, 1).await?;
        if id >= counts[0] as u32 {
            return Ok(self.len_bytes(id));
        }
        let words = io.catalog(RegionRecord::offset(id), size_of::<RegionRecord>() / 8).await?;
        match RegionRecord::read_from_bytes(words.as_bytes()) {
            Ok(record) if record.is_valid() && record.id.get() == id => {
                io.attach(RegionId(id), &record.descriptor)?;
                self.lens[id as usize].store(record.len_bytes.get(), Ordering::Release);
                Ok(record.len_bytes.get())
            }
            // Torn, or not written yet: the next round looks again.
            _ => Ok(0),
        }
    }
}
