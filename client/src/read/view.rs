//! What a client knows of one table on one connection: its directory and its bucket cache.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use onesided_fabric::{Caps, RegionId, RemoteAddr, carryless_fold};
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::control::TableInfo;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::addr::UNIT_BYTES;
use onesided_protocol::layout::catalog::{DirectoryWord, TableRecord};
use onesided_protocol::layout::line::{BUCKET_BYTES, bucket_offset_bytes};
use onesided_protocol::limits::DEPTH_MAX;
use zerocopy::{FromBytes, IntoBytes};

use super::cache::{BucketCache, CacheBudget};
use super::io::Io;
use super::regions::Regions;
use crate::core::Connection;
use crate::error::Error;

/// Directory words in one READ.
const WORDS_PER_READ: usize = 8192;

/// A table on one connection. Another connection, or the table made anew, is another view.
///
/// A directory only ever doubles, so there is at most one map for each depth, made once and kept
/// as long as the view: a GET finds the current one with two loads, without a lock, a count or
/// a fence that would keep the processor from overlapping it with the next GET.
pub(crate) struct TableView {
    pub(crate) info: TableInfo,
    /// What its entries are checked with.
    pub(crate) sums: ChecksumKey,
    pub(super) regions: Regions,
    /// The cache is to be filled ahead, and nobody has begun.
    to_prefill: AtomicBool,
    maps: [OnceLock<IndexMap>; DEPTH_MAX as usize + 1],
    /// Depth of the current map; [`NO_MAP`] before the first.
    depth: AtomicU8,
    budget: Arc<CacheBudget>,
}

const NO_MAP: u8 = u8::MAX;

/// One directory of the table and the buckets cached under it.
pub(crate) struct IndexMap {
    directory: DirectoryWord,
    /// By how much a hash is shifted right, after one bit, to be an index into `words`.
    shift: u32,
    words: Box<[AtomicU64]>,
    pub(crate) cache: BucketCache,
}

/// Where a key's bucket is, as far as this map knows.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) directory_index: usize,
    pub(crate) bucket: usize,
    /// Address of the bucket.
    pub(crate) addr: LogAddr,
    /// Address of its segment.
    pub(crate) segment: LogAddr,
}

/// How a refresh went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refreshed {
    /// Look again.
    Yes,
    /// The table's record is not there any more: ask the server.
    TableGone,
}

impl TableView {
    /// Where a READ is a load, the index itself is as near as a cache, and never stale: there is
    /// none then.
    pub(crate) fn new(connection: &Connection, info: &TableInfo) -> Self {
        let options = connection.options();
        let budget = match connection.caps() {
            Caps { one_sided: true, reads_now: false, .. } => connection.cache_budget().clone(),
            _ => CacheBudget::new(0),
        };
        Self {
            info: info.clone(),
            sums: ChecksumKey::new(info.secret, carryless_fold()),
            regions: Regions::new(),
            to_prefill: AtomicBool::new(options.prefill),
            maps: std::array::from_fn(|_| OnceLock::new()),
            depth: AtomicU8::new(NO_MAP),
            budget,
        }
    }

    /// Whether the caller is to fill the cache ahead: true once, if that was asked for.
    pub(super) fn begins_prefill(&self) -> bool {
        self.to_prefill.load(Ordering::Relaxed) && self.to_prefill.swap(false, Ordering::Relaxed)
    }

    /// No READ that is placed from now on is in this region. Whether one could be until now.
    pub(crate) fn forget_region(&self, id: u32) -> bool {
        self.regions.forget(id)
    }

    /// The current map, unless there is none yet.
    #[inline(always)]
    pub(crate) fn map(&self) -> Option<&IndexMap> {
        self.maps.get(usize::from(self.depth.load(Ordering::Acquire)))?.get()
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.info.hash_seed, key)
    }

    /// Learns from the server's memory where the bucket of `hash` is now.
    pub(crate) async fn refresh(&self, io: &Io<'_>, hash: KeyHash) -> Result<Refreshed, Error> {
        // The catalog itself must be attached before its first READ.
        io.regions.learn(io, 0).await?;
        let offset = TableRecord::offset(self.info.slot);
        let words = io.catalog(offset, size_of::<TableRecord>() / 8).await?;
        let Ok(record) = TableRecord::read_from_bytes(words.as_bytes()) else {
            return Ok(Refreshed::Yes);
        };
        // The checksum may be missing for a while: the options are being changed, which says
        // nothing of the directory. Its word and the id are whole, and no other table gets this
        // record as long as a session knows this one.
        if record.id.get() != self.info.id {
            return Ok(Refreshed::TableGone);
        }
        let directory = DirectoryWord(record.directory.get());
        match self.map() {
            Some(map) if map.directory == directory => map.refresh_word(io, hash).await?,
            old => {
                if let Some(new) = self.read_map(io, directory, old).await? {
                    self.make_current(new);
                }
            }
        }
        Ok(Refreshed::Yes)
    }

    fn make_current(&self, map: IndexMap) {
        let depth = map.directory.depth();
        // Another thread may have been faster with the same depth; its map is as good.
        let _kept = self.maps[usize::from(depth)].set(map);
        let deeper = |now: u8| (now == NO_MAP || now < depth).then_some(depth);
        let _deepest = self.depth.fetch_update(Ordering::AcqRel, Ordering::Acquire, deeper);
    }

    async fn read_map(
        &self,
        io: &Io<'_>,
        directory: DirectoryWord,
        old: Option<&IndexMap>,
    ) -> Result<Option<IndexMap>, Error> {
        let depth = directory.depth();
        let Some(addr) = directory.addr().filter(|_| depth <= DEPTH_MAX) else { return Ok(None) };
        let count = 1usize << depth;
        let Some((remote, len_bytes)) = io.place(addr, (count * 8).max(64)).await? else {
            return Ok(None);
        };
        if len_bytes < count * 8 {
            return Ok(None);
        }
        let mut words = Vec::with_capacity(count);
        while words.len() < count {
            let n = (count - words.len()).min(WORDS_PER_READ);
            let offset_bytes = remote.offset_bytes + words.len() as u64 * 8;
            let chunk = io.read_at(RemoteAddr { offset_bytes, ..remote }, n * 8).await?;
            words.extend(chunk.into_iter().map(AtomicU64::new));
        }
        let cache = BucketCache::new(depth, &self.budget);
        if let Some(old) = old {
            cache.take_over(depth, &old.cache, old.directory.depth());
        }
        let shift = u64::BITS - 1 - u32::from(depth);
        Ok(Some(IndexMap { directory, shift, words: words.into(), cache }))
    }
}

impl IndexMap {
    /// Number of words of the directory.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Where the bucket of `hash` is, unless this map knows nothing yet.
    #[inline(always)]
    pub(crate) fn place(&self, hash: KeyHash) -> Option<Place> {
        let directory_index = (hash.0 >> 1 >> self.shift) as usize;
        debug_assert_eq!(directory_index, hash.directory_index(self.directory.depth()));
        self.place_of(directory_index, hash.bucket())
    }

    /// Where a bucket under a directory word is.
    #[inline(always)]
    pub(crate) fn place_of(&self, directory_index: usize, bucket: usize) -> Option<Place> {
        const BUCKET_UNITS: u64 = (BUCKET_BYTES / UNIT_BYTES) as u64;
        let word = DirectoryWord(self.words.get(directory_index)?.load(Ordering::Relaxed));
        let segment = word.addr()?;
        debug_assert_eq!(bucket_offset_bytes(bucket) / UNIT_BYTES, bucket * BUCKET_UNITS as usize);
        let addr = LogAddr::from_bits(segment.get() + bucket as u64 * BUCKET_UNITS)?;
        Some(Place { directory_index, bucket, addr, segment })
    }

    async fn refresh_word(&self, io: &Io<'_>, hash: KeyHash) -> Result<(), Error> {
        let index = hash.directory_index(self.directory.depth());
        let Some(addr) = self.directory.addr() else { return Ok(()) };
        let offset_bytes = addr.offset_bytes() as u64 + index as u64 * 8;
        let remote = RemoteAddr { region: RegionId(addr.region()), offset_bytes };
        let word = io.read_at(remote, 8).await?;
        self.words[index].store(word[0], Ordering::Relaxed);
        Ok(())
    }
}
