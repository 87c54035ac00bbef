//! Regions: what this side has registered for its peers, and what a peer has told of its own.

use std::sync::Arc;

use super::ffi::error::VerbsError;
use super::ffi::flight::Target;
use super::ffi::keys::target;
use super::ffi::pd::{Access, Pd};
use super::frames::{Malformed, Note, READ_ONLY, READ_WRITE};
use crate::loads::MAX_REGIONS;
use crate::mem::{AccessError, Memory};
use crate::work::{RegionId, RemoteAddr};

/// Registers a region's memory for peers of this domain, once however many ask, and describes it
/// for one.
///
/// # Errors
/// When it cannot be registered: most often the limit on locked memory; or it is longer than
/// `max_bytes`, what the device takes as one piece.
pub(super) fn describe(
    pd: &Arc<Pd>,
    max_bytes: u64,
    region: RegionId,
    memory: &Memory,
    access: Access,
) -> Result<Note, VerbsError> {
    let len_bytes = memory.len_bytes();
    if len_bytes as u64 > max_bytes {
        return Err(VerbsError::Choice(format!(
            "{} registers at most {max_bytes} bytes as one piece (max_mr_size), and region {} has \
             {len_bytes}: a server that starts while the device is there makes shorter ones",
            pd.device().name(),
            region.0
        )));
    }
    let target = target(pd, memory, access)?;
    let kind = if access == Access::RemoteRead { READ_ONLY } else { READ_WRITE };
    let mut note = Note::short(kind, region.0);
    note.addr.set(target.addr);
    note.len_bytes.set(len_bytes as u64);
    note.rkey.set(target.rkey);
    Ok(note)
}

#[derive(Clone, Copy, Debug)]
struct Region {
    addr: u64,
    len_bytes: u64,
    rkey: u32,
    writable: bool,
}

/// What a peer has told of its regions, by number.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<Option<Region>>);

/// What an operation does to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Read,
    Write,
    /// CAS or FAA.
    Atomic,
}

impl Regions {
    pub(super) fn has(&self, region: RegionId) -> bool {
        matches!(self.0.get(region.0 as usize), Some(Some(_)))
    }

    /// Keeps what a peer has told.
    ///
    /// # Errors
    /// When it makes no sense, or says otherwise than before.
    pub(super) fn put(&mut self, note: &Note) -> Result<(), Malformed> {
        let place = note.region.get() as usize;
        let (addr, len_bytes) = (note.addr.get(), note.len_bytes.get());
        if place >= MAX_REGIONS || addr.checked_add(len_bytes).is_none() {
            return Err(Malformed("a region that cannot be"));
        }
        if self.0.len() <= place {
            self.0.resize(place + 1, None);
        }
        let (rkey, writable) = (note.rkey.get(), note.kind.get() == READ_WRITE);
        self.0[place] = Some(Region { addr, len_bytes, rkey, writable });
        Ok(())
    }

    /// Forgets a region: nothing is posted into it any more.
    pub(super) fn remove(&mut self, region: RegionId) {
        if let Some(place) = self.0.get_mut(region.0 as usize) {
            *place = None;
        }
    }

    /// Where the device finds `len_bytes` at `at`.
    ///
    /// # Errors
    /// When it is outside, or the right is missing: nothing may be posted then.
    pub(super) fn target(
        &self,
        at: RemoteAddr,
        len_bytes: usize,
        usage: Use,
    ) -> Result<Target, AccessError> {
        let region = self.0.get(at.region.0 as usize).and_then(Option::as_ref);
        let region = region.ok_or(AccessError::NotAttached(at.region.0))?;
        let (offset_bytes, len_bytes) = (at.offset_bytes, len_bytes as u64);
        if usage == Use::Atomic && !offset_bytes.is_multiple_of(8) {
            return Err(AccessError::Misaligned(offset_bytes));
        }
        if offset_bytes > region.len_bytes || len_bytes > region.len_bytes - offset_bytes {
            let region_bytes = region.len_bytes;
            return Err(AccessError::OutOfBounds { offset_bytes, len_bytes, region_bytes });
        }
        if usage != Use::Read && !region.writable {
            return Err(AccessError::ReadOnly);
        }
        Ok(Target { addr: region.addr + offset_bytes, rkey: region.rkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(region: u32, offset_bytes: u64) -> RemoteAddr {
        RemoteAddr { region: RegionId(region), offset_bytes }
    }

    fn note(kind: u32, region: u32, addr: u64, len_bytes: u64) -> Note {
        let mut note = Note::short(kind, region);
        note.addr.set(addr);
        note.len_bytes.set(len_bytes);
        note.rkey.set(77);
        note
    }

    #[test]
    fn nothing_outside_a_region_has_a_target() {
        let mut regions = Regions::default();
        regions.put(&note(READ_ONLY, 3, 1 << 20, 4096)).unwrap();
        regions.put(&note(READ_WRITE, 5, 1 << 30, 4096)).unwrap();
        let target = regions.target(at(3, 4088), 8, Use::Read).unwrap();
        assert_eq!((target.addr, target.rkey), ((1 << 20) + 4088, 77));
        for (offset, len) in [(4089, 8), (4096, 1), (u64::MAX, 8), (0, 4097), (1 << 63, 1)] {
            let refused = regions.target(at(5, offset), len, Use::Read).unwrap_err();
            assert!(matches!(refused, AccessError::OutOfBounds { region_bytes: 4096, .. }));
        }
        for region in [0, 4, 6, u32::MAX] {
            let refused = regions.target(at(region, 0), 8, Use::Read).unwrap_err();
            assert_eq!(refused, AccessError::NotAttached(region));
        }
        for usage in [Use::Write, Use::Atomic] {
            let refused = regions.target(at(3, 0), 8, usage).unwrap_err();
            assert_eq!(refused, AccessError::ReadOnly);
            regions.target(at(5, 0), 8, usage).unwrap();
        }
        let refused = regions.target(at(5, 4), 8, Use::Atomic).unwrap_err();
        assert_eq!(refused, AccessError::Misaligned(4));
    }

    #[test]
    fn a_region_that_cannot_be_is_refused() {
        let mut regions = Regions::default();
        assert!(regions.put(&note(READ_WRITE, MAX_REGIONS as u32, 0, 1)).is_err());
        assert!(regions.put(&note(READ_WRITE, 1, u64::MAX, 2)).is_err());
        assert!(!regions.has(RegionId(1)));
    }
}
