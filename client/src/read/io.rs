//! READs of one GET: loads where the fabric can (shm), posted work requests where it cannot.

use onesided_fabric::{Buffer, RegionId, RemoteAddr};
use onesided_protocol::LogAddr;
use onesided_protocol::layout::catalog::CATALOG_REGION;
use onesided_protocol::layout::cell::{self, CELL_BYTES};
use onesided_protocol::layout::entry::HEADER_BYTES;

use super::lookup::Expired;
use super::regions::Regions;
use crate::core::{Connection, Deadline};
use crate::error::Error;
use crate::stats::Counts;

/// One connection, as the read path sees it.
#[derive(Clone, Copy)]
pub(crate) struct Io<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) regions: &'a Regions,
    pub(crate) counts: &'a Counts,
    /// When the operation must have ended; without one each READ has all the time of one.
    pub(crate) by: Option<&'a Deadline>,
}

/// Words that were READ, or the address turned out stale.
pub(crate) type Words = Option<Vec<u64>>;

impl Io<'_> {
    /// READs up to `len_bytes` (a multiple of 8) at a log address, clamped at the region's end.
    /// `None`: the address is outside what the server has, so it is stale.
    pub(crate) async fn read(&self, addr: LogAddr, len_bytes: usize) -> Result<Words, Error> {
        match self.place(addr, len_bytes).await? {
            Some((remote, len_bytes)) => self.read_at(remote, len_bytes).await.map(Some),
            None => Ok(None),
        }
    }

    /// Where that READ goes and how long it is.
    pub(crate) async fn place(
        &self,
        addr: LogAddr,
        len_bytes: usize,
    ) -> Result<Option<(RemoteAddr, usize)>, Error> {
        let mut region_bytes = self.regions.len_bytes(addr.region());
        if region_bytes == 0 {
            region_bytes = self.regions.learn(self, addr.region()).await?;
        }
        Ok(clamp(addr, len_bytes, region_bytes))
    }

    /// Where an address of a known region is; `None`: it is none, or an entry would not fit there.
    pub(crate) fn known_place(&self, addr: LogAddr) -> Option<RemoteAddr> {
        let region_bytes = self.regions.len_bytes(addr.region());
        clamp(addr, HEADER_BYTES, region_bytes).map(|(remote, _)| remote)
    }

    /// Where a counter's cell is. `None`: outside what the server has, so its address is stale.
    pub(crate) async fn cell(&self, addr: LogAddr) -> Result<Option<RemoteAddr>, Error> {
        if self.regions.len_bytes(addr.region()) == 0 {
            self.regions.learn(self, addr.region()).await?;
        }
        Ok(self.known_cell(addr))
    }

    /// As [`Self::cell`], in a region that is known.
    pub(crate) fn known_cell(&self, addr: LogAddr) -> Option<RemoteAddr> {
        let offset_bytes = addr.offset_bytes() as u64;
        let is_inside = offset_bytes + CELL_BYTES as u64 <= self.regions.len_bytes(addr.region());
        is_inside.then_some(RemoteAddr { region: RegionId(addr.region()), offset_bytes })
    }

    /// READs the number in a counter's cell. `None`: it is none, or the address is stale.
    pub(crate) async fn number(&self, addr: LogAddr) -> Result<Option<i64>, Error> {
        match self.cell(addr).await? {
            Some(remote) => Ok(cell::number(self.read_at(remote, CELL_BYTES).await?[0])),
            None => Ok(None),
        }
    }

    /// READs words of the catalog.
    pub(crate) async fn catalog(&self, offset: usize, words: usize) -> Result<Vec<u64>, Error> {
        let region = RegionId(CATALOG_REGION);
        self.read_at(RemoteAddr { region, offset_bytes: offset as u64 }, words * 8).await
    }

    /// READs inside a known region.
    pub(crate) async fn read_at(
        &self,
        remote: RemoteAddr,
        len_bytes: usize,
    ) -> Result<Vec<u64>, Error> {
        self.count(1, len_bytes);
        if self.connection.caps().reads_now {
            let mut words = vec![0; len_bytes / 8];
            if let Some(done) = self.connection.endpoint().read_now(remote, &mut words) {
                done.map_err(|error| self.connection.access_error(error))?;
                return Ok(words);
            }
        }
        let buffer = self.connection.read_one(remote, len_bytes, self.deadline()).await?;
        Ok(buffer.words()[..len_bytes / 8].to_vec())
    }

    /// READs bytes at any alignment inside a known region, straight to where they are wanted.
    pub(crate) async fn read_bytes(
        &self,
        remote: RemoteAddr,
        into: &mut [u8],
    ) -> Result<(), Error> {
        self.count(1, into.len());
        if let Some(done) = self.connection.endpoint().read_bytes_now(remote, into) {
            return done.map_err(|error| self.connection.access_error(error));
        }
        let buffer = self.connection.read_one(remote, into.len(), self.deadline()).await?;
        into.copy_from_slice(&buffer[..into.len()]);
        Ok(())
    }

    /// As [`Self::read_bytes`], into the whole length of a buffer that the READ owns until it is
    /// complete, also when this future is dropped.
    pub(crate) async fn read_buffer(
        &self,
        remote: RemoteAddr,
        mut into: Buffer,
    ) -> Result<Buffer, Error> {
        self.count(1, into.len());
        if let Some(done) = self.connection.endpoint().read_bytes_now(remote, &mut into) {
            done.map_err(|error| self.connection.access_error(error))?;
            return Ok(into);
        }
        self.connection.read_until(remote, into, self.deadline()).await
    }

    /// When a READ that begins now must have ended.
    pub(crate) fn deadline(&self) -> Deadline {
        self.by.copied().unwrap_or_else(|| self.connection.read_deadline())
    }

    pub(crate) fn attach(&self, region: RegionId, descriptor: &[u8]) -> Result<(), Error> {
        let attached = self.connection.endpoint().attach(region, descriptor);
        attached.map_err(|error| self.connection.attach_error(error))
    }

    /// Whether an expiry has passed on the server's clock.
    #[inline]
    pub(crate) fn expired(&self, expiry_s: u32) -> Expired {
        if expiry_s == 0 {
            return Expired::No;
        }
        let (now_ns, error_ns) = self.connection.server_now();
        Expired::at(expiry_s, now_ns, error_ns)
    }

    pub(crate) fn count(&self, reads: u64, bytes: usize) {
        self.counts.one_sided_read(reads, bytes as u64);
    }
}

/// A READ at `addr` that ends with the region at the latest; `None` if it begins beyond it.
#[inline]
pub(crate) fn clamp(
    addr: LogAddr,
    len_bytes: usize,
    region_bytes: u64,
) -> Option<(RemoteAddr, usize)> {
    let offset_bytes = addr.offset_bytes() as u64;
    let room =
        region_bytes.checked_sub(offset_bytes).filter(|&room| room >= HEADER_BYTES as u64)?;
    let len_bytes = len_bytes.min(room as usize);
    Some((RemoteAddr { region: RegionId(addr.region()), offset_bytes }, len_bytes))
}
