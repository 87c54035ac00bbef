//! Regions and the blocks they are divided into.
//!
//! Regions are made on demand, up to the configured amount and to what the budget that the engine
//! may share with others has left; one that is free as a whole can be given back ([`give_back`]).
//! A block is an eighth of the
//! longest log segment and belongs to one table's log, or to the index ([`super::meta`]). Of the
//! free blocks the first is taken: what was in use before is used again before fresh memory is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use onesided_fabric::Memory;
use onesided_protocol::LogAddr;
use onesided_protocol::limits::{REGION_BYTES, REGIONS_MAX};
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::Mutex;

use super::block::{Block, Sealed, Use};
use super::budget::Budget;
use super::catalog::Catalog;
use super::evict::Part;
use super::huge::HugePages;
use super::room::{Level, Marks, Need, Room};
use super::spot::Spot;
use super::{EngineConfig, EngineError, MakeMemory};

mod give_back;
mod map;
mod stretch;

pub use map::{CellUse, RegionMap};

/// Shortest block: what lines and directories are aligned to.
const BLOCK_MIN_BYTES: usize = 1 << 10;
/// Blocks of the longest log segment: what a table's log has taken and not filled is at most a
/// block, while long entries still find most of a segment to lie in side by side.
const SEGMENT_BLOCKS: usize = 8;

/// Region ids are not used twice; of as much memory as there may be, regions can be made so often.
const LIVES: usize = 64;

/// When this part of the memory has died, another look for something to clean is worth its time.
const LOOK_AGAIN_PART: usize = 512;

struct Region {
    memory: Arc<Memory>,
    blocks: Box<[Block]>,
    /// See [`HugePages::use_soon`].
    huge_asked: AtomicU64,
    /// It is, or will be, given back: nothing is in it.
    retired: AtomicBool,
}

/// Bytes of blocks by use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BlockTotals {
    pub(super) log: u64,
    pub(super) live: u64,
    pub(super) meta: u64,
    pub(super) free: u64,
}

/// All regions but the catalog.
pub(super) struct Pool {
    regions: Box<[OnceLock<Region>]>,
    make_memory: MakeMemory,
    catalog: Arc<Catalog>,
    segment_bytes: usize,
    huge: HugePages,
    block_bytes: usize,
    region_blocks: usize,
    limit_bytes: usize,
    budget: Arc<Budget>,
    marks: Marks,
    room: Room,
    /// Segments sealed so far.
    sealed: AtomicU64,
    free: Mutex<FreeBlocks>,
}

#[derive(Default)]
struct FreeBlocks {
    /// Numbers of all free blocks.
    numbers: BTreeSet<u32>,
    /// Of these, nobody takes any: a row is being made.
    held: Range<u32>,
    /// Bytes of the regions that there are.
    made_bytes: usize,
    /// Regions made so far, the catalog and those that were given back included.
    made: u32,
    /// Those that were retired, and of them the bytes that sessions may still look at.
    retired: u32,
    retired_bytes: usize,
}

impl Pool {
    pub(super) fn new(
        config: &EngineConfig,
        budget: Arc<Budget>,
        make_memory: MakeMemory,
        catalog: Arc<Catalog>,
    ) -> Result<Self, EngineError> {
        let (segment_bytes, region_bytes) = (config.segment_bytes, config.region_bytes);
        let wrong = |text: String| Err(EngineError::Config(text));
        if segment_bytes < BLOCK_MIN_BYTES || !segment_bytes.is_power_of_two() {
            return wrong(format!("segment_bytes = {segment_bytes} is not a power of two >= 1024"));
        }
        if region_bytes > REGION_BYTES || region_bytes == 0 || region_bytes % segment_bytes != 0 {
            return wrong(format!(
                "region_bytes = {region_bytes} is not a multiple of segment_bytes = \
                 {segment_bytes} up to {REGION_BYTES}"
            ));
        }
        let block_bytes = (segment_bytes / SEGMENT_BLOCKS).max(BLOCK_MIN_BYTES);
        let limit_bytes = config.memory_bytes / segment_bytes * segment_bytes;
        let regions = 1 + limit_bytes.div_ceil(region_bytes);
        if regions > REGIONS_MAX || limit_bytes == 0 {
            return wrong(format!(
                "memory_bytes = {} must be at least one segment of {segment_bytes} bytes and at \
                 most {} regions of {region_bytes} bytes",
                config.memory_bytes,
                REGIONS_MAX - 1
            ));
        }
        Ok(Self {
            regions: (0..REGIONS_MAX.min(regions * LIVES)).map(|_| OnceLock::new()).collect(),
            make_memory,
            catalog,
            segment_bytes,
            huge: match config.huge_pages {
                true => HugePages::start().map_err(EngineError::Thread)?,
                false => HugePages::off(),
            },
            block_bytes,
            region_blocks: region_bytes / block_bytes,
            limit_bytes,
            budget,
            marks: Marks::new(segment_bytes / block_bytes, block_bytes),
            room: Room::default(),
            sealed: AtomicU64::new(0),
            free: Mutex::new(FreeBlocks { made: 1, ..FreeBlocks::default() }),
        })
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of the longest segment; a multiple of a block.
    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    pub(super) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Bytes of the longest run of blocks that a region may hold.
    pub(super) fn run_max_bytes(&self) -> usize {
        (self.region_blocks * self.block_bytes).min(self.limit_bytes)
    }

    pub(super) fn memory(&self, id: u32) -> Option<Arc<Memory>> {
        let region = self.regions.get(id as usize)?.get()?;
        (!region.retired.load(Ordering::Acquire)).then(|| Arc::clone(&region.memory))
    }

    fn region(&self, id: u32) -> &Region {
        match self.regions.get(id as usize).and_then(OnceLock::get) {
            Some(region) => region,
            None => panic!("the engine's own address is in region {id}, which was never made"),
        }
    }

    /// The place of an address that the engine made.
    #[inline]
    pub(super) fn at(&self, addr: LogAddr) -> Spot<'_> {
        Spot::new(&self.region(addr.region()).memory, addr.offset_bytes())
    }

    /// The block that the run at `addr` begins with.
    #[inline]
    fn block_of(&self, addr: LogAddr) -> &Block {
        &self.region(addr.region()).blocks[self.run_start(addr)]
    }

    /// Its index in its region.
    #[inline]
    fn run_start(&self, addr: LogAddr) -> usize {
        let index = addr.offset_bytes() / self.block_bytes;
        index - self.region(addr.region()).blocks[index].back()
    }

    fn number(&self, region: u32, block: usize) -> u32 {
        region * self.region_blocks as u32 + block as u32
    }

    fn addr(&self, number: u32) -> LogAddr {
        let (region, block) =
            (number / self.region_blocks as u32, number as usize % self.region_blocks);
        LogAddr::new(region, block * self.block_bytes)
    }

    /// Takes adjacent blocks of at least `len_bytes` in one region, if enough stays free beside
    /// them.
    pub(super) fn take(
        &self,
        len_bytes: usize,
        use_: Use,
        owner: u32,
        need: Need,
    ) -> Result<LogAddr, RpcError> {
        let blocks = len_bytes.div_ceil(self.block_bytes).max(1);
        if blocks > self.region_blocks {
            let text = format!("{len_bytes} bytes do not fit into a region: store shorter values");
            return Err(RpcError::new(ErrorCode::TooLarge, text));
        }
        let mut free = self.free.lock();
        let first = loop {
            match self.find(&free, blocks, need) {
                Some(first) => break first,
                None => self.make_regions(&mut free, blocks)?,
            }
        };
        let is_run = len_bytes > self.segment_bytes;
        let first = match use_ {
            Use::Log if !is_run => self.where_it_can_grow(&free, first),
            _ => first,
        };
        let addr = self.addr(first);
        self.occupy(&mut free, addr, 0..blocks, use_, owner);
        Ok(addr)
    }

    /// Where a segment that could begin at `first` has room to grow to its full length, if that is
    /// anywhere: the rests of short segments, which no entry fits into, would be many.
    fn where_it_can_grow(&self, free: &FreeBlocks, first: u32) -> u32 {
        self.find_row(free, self.segment_bytes / self.block_bytes).unwrap_or(first)
    }

    /// Whether so many bytes in a row could be taken now.
    pub(super) fn has_room(&self, len_bytes: usize, need: Need) -> bool {
        let blocks = len_bytes.div_ceil(self.block_bytes).max(1);
        let free = self.free.lock();
        self.left_bytes(&free) >= blocks * self.block_bytes
            || self.find(&free, blocks, need).is_some()
    }

    /// Whether so many bytes in a row might be taken if all logs were empty. Looks closely only for
    /// what is longer than a segment.
    pub(super) fn could_hold(&self, len_bytes: usize, need: Need) -> bool {
        if len_bytes <= self.segment_bytes {
            return true;
        }
        let all_blocks = self.limit_bytes / self.block_bytes;
        let meta_blocks = self.totals().meta as usize / self.block_bytes;
        let kept_blocks = meta_blocks + self.marks.floor(need, all_blocks);
        len_bytes.div_ceil(self.block_bytes) + kept_blocks <= all_blocks
    }

    /// Whether so much died since a look for something to clean found nothing that another one is
    /// worth its time.
    pub(super) fn has_changed(&self) -> bool {
        self.room.has_died((self.limit_bytes / LOOK_AGAIN_PART) as u64)
    }

    /// There may be something to clean that was none before.
    pub(super) fn look_again(&self) {
        self.room.look_again();
    }

    /// A look for something to clean found nothing.
    pub(super) fn nothing_to_gain(&self) {
        self.room.nothing_to_gain();
    }

    /// Lengthens the log segment at `addr` by `more_bytes`, a multiple of a block, if the blocks
    /// behind its `len_bytes` are free. The caller is the one that appends to it.
    pub(super) fn extend(
        &self,
        addr: LogAddr,
        len_bytes: usize,
        more_bytes: usize,
        need: Need,
    ) -> bool {
        let (old, more) = (len_bytes / self.block_bytes, more_bytes / self.block_bytes);
        let index = addr.offset_bytes() / self.block_bytes;
        let first = self.number(addr.region(), index + old);
        let mut free = self.free.lock();
        let fits =
            index + old + more <= self.region_blocks && self.leaves_enough(&free, more, need);
        let is_free = |number| free.numbers.contains(&number) && !free.held.contains(&number);
        if !fits || !(first..first + more as u32).all(is_free) {
            return false;
        }
        let owner = self.block_of(addr).owner();
        self.occupy(&mut free, addr, old..old + more, Use::Log, owner);
        true
    }

    /// Takes the blocks `part` of the run that begins at `addr`; it ends with them.
    fn occupy(
        &self,
        free: &mut FreeBlocks,
        addr: LogAddr,
        part: Range<usize>,
        use_: Use,
        owner: u32,
    ) {
        let region = self.region(addr.region());
        let index = addr.offset_bytes() / self.block_bytes;
        region.blocks[index].set_run(part.end);
        let start_bytes = (index + part.start) * self.block_bytes;
        let len_bytes = part.len() * self.block_bytes;
        if use_ != Use::Held {
            self.huge.use_soon(&region.memory, &region.huge_asked, start_bytes, len_bytes);
        }
        for i in part {
            free.numbers.remove(&self.number(addr.region(), index + i));
            region.blocks[index + i].occupy(i, use_, owner);
        }
        self.note_level(free);
    }

    /// Whether as much stays free without `blocks` as this need has to leave to others.
    fn leaves_enough(&self, free: &FreeBlocks, blocks: usize, need: Need) -> bool {
        free.numbers.len() >= blocks + self.marks.floor(need, free.made_bytes / self.block_bytes)
    }

    /// Says how much room there is: whoever changes the number of free blocks calls it.
    fn note_level(&self, free: &FreeBlocks) {
        let made_blocks = free.made_bytes / self.block_bytes;
        let grows = self.left_bytes(free) > 0;
        self.room.set(self.marks.level(free.numbers.len(), made_blocks, grows));
    }

    /// How much room there is.
    #[inline]
    pub(super) fn level(&self) -> Level {
        self.room.get()
    }

    /// So many free blocks in a row, in one region, if they may be taken.
    fn find(&self, free: &FreeBlocks, blocks: usize, need: Need) -> Option<u32> {
        if !self.leaves_enough(free, blocks, need) {
            return None;
        }
        self.find_row(free, blocks)
    }

    /// Makes the next region, if memory is left for one that holds that many blocks in a row.
    fn make_regions(&self, free: &mut FreeBlocks, blocks: usize) -> Result<(), RpcError> {
        let left_bytes = self.own_left_bytes(free);
        let most_bytes = left_bytes.min(self.region_blocks * self.block_bytes);
        let need_bytes = blocks * self.block_bytes;
        let id = free.made;
        // Where regions came and went so often that no number is left.
        let place = self.regions.get(id as usize).ok_or_else(|| self.full(free, need_bytes))?;
        let len_bytes = self.budget.take(most_bytes, need_bytes, self.segment_bytes);
        let len_bytes = len_bytes.ok_or_else(|| self.full(free, need_bytes))?;
        let name = format!("onesided-region-{id}");
        let memory = (self.make_memory)(&name, len_bytes).map_err(|error| {
            self.budget.give(len_bytes);
            let text = format!(
                "the system gave no memory for region {id} of {len_bytes} bytes: {error}; \
                 nothing was changed: lower --memory or free memory on the host"
            );
            RpcError::new(ErrorCode::OutOfMemory, text)
        })?;
        let count = len_bytes / self.block_bytes;
        let blocks = (0..count).map(|_| Block::default()).collect();
        let memory = Arc::new(memory);
        let (huge_asked, retired) = (AtomicU64::new(0), AtomicBool::new(false));
        let made = place.set(Region { memory, blocks, huge_asked, retired });
        debug_assert!(made.is_ok(), "region {id} was made twice");
        free.numbers.extend((0..count).map(|block| self.number(id, block)));
        free.made_bytes += len_bytes;
        free.made += 1;
        self.catalog.add_region(id, len_bytes);
        self.note_level(free);
        Ok(())
    }

    fn full(&self, free: &FreeBlocks, need_bytes: usize) -> RpcError {
        let limit_bytes = self.limit_bytes;
        let in_use_bytes = free.made_bytes - free.numbers.len() * self.block_bytes;
        let others_bytes = self.budget.taken_bytes() - free.made_bytes - free.retired_bytes;
        let own = limit_bytes < self.budget.limit_bytes() && self.own_left_bytes(free) < need_bytes;
        let (limit, raise) = match (own, others_bytes) {
            (true, _) => (format!("limit of the tenant {limit_bytes} bytes"), "that limit"),
            (false, 0) => (format!("limit {limit_bytes} bytes"), "--memory"),
            (false, _) => {
                let all_bytes = self.budget.limit_bytes();
                (format!("limit {all_bytes} bytes, other tenants hold {others_bytes}"), "--memory")
            }
        };
        let text = format!(
            "memory is full: {limit}, {in_use_bytes} in use, no {need_bytes} bytes in a row left; \
             nothing was changed: raise {raise}, delete keys or drop a table",
        );
        RpcError::new(ErrorCode::OutOfMemory, text)
    }

    /// The refusal of an entry of `len_bytes`.
    pub(super) fn refusal(&self, len_bytes: usize) -> RpcError {
        self.full(&self.free.lock(), len_bytes)
    }

    /// Marks a segment as the one that the log appends to.
    pub(super) fn activate(&self, addr: LogAddr) {
        self.block_of(addr).activate();
    }

    /// An entry of `bytes` is being written at `addr`: live, and nobody cleans there until
    /// [`Self::unpin`].
    #[inline]
    pub(super) fn add(&self, addr: LogAddr, bytes: usize) {
        self.block_of(addr).add(bytes);
    }

    /// As [`Self::add`], for an entry that has the run to itself.
    pub(super) fn add_alone(&self, addr: LogAddr, part: Part, bytes: usize) {
        let block = self.block_of(addr);
        block.close(part, bytes, self.sealed.fetch_add(1, Ordering::Relaxed));
        block.add(bytes);
    }

    /// Whether nothing in the active segment at `addr` is live or being written.
    pub(super) fn is_all_dead(&self, addr: LogAddr) -> bool {
        self.block_of(addr).is_all_dead()
    }

    /// Bytes that are live in the segment at `addr`.
    pub(super) fn live_bytes(&self, addr: LogAddr) -> usize {
        self.block_of(addr).live_bytes() as usize
    }

    /// Counts `bytes` of an entry at `addr` as dead. Gives the bytes of the blocks that became
    /// free by it, or 0.
    #[inline]
    pub(super) fn sub(&self, addr: LogAddr, bytes: usize) -> usize {
        self.room.note_dead(bytes);
        if self.block_of(addr).sub(bytes) { self.give(addr) } else { 0 }
    }

    /// What was to be done at `addr` is done. Gives the bytes that became free by it, or 0.
    #[inline]
    pub(super) fn unpin(&self, addr: LogAddr) -> usize {
        if self.block_of(addr).unpin() { self.give(addr) } else { 0 }
    }

    /// The log, which has put entries into `used_bytes` of the segment, appends no more to it.
    /// Gives the bytes that became free by it, or 0.
    pub(super) fn seal(&self, addr: LogAddr, part: Part, used_bytes: usize) -> usize {
        let block = self.block_of(addr);
        block.close(part, used_bytes, self.sealed.fetch_add(1, Ordering::Relaxed));
        if block.seal() { self.give(addr) } else { 0 }
    }

    /// Segments that were sealed so far.
    pub(super) fn sealed_so_far(&self) -> u64 {
        self.sealed.load(Ordering::Relaxed)
    }

    /// Pins a sealed segment for the cleaner; see [`Block::pin`].
    pub(super) fn pin(&self, addr: LogAddr) -> Option<Sealed> {
        self.block_of(addr).pin()
    }

    /// All sealed segments that hold something live, each as it was at some moment.
    pub(super) fn sealed(&self) -> impl Iterator<Item = (LogAddr, Sealed)> {
        self.live_regions().flat_map(|(id, region)| {
            let blocks = (0..).step_by(self.block_bytes).zip(&region.blocks);
            blocks.filter_map(move |(at, block)| Some((LogAddr::new(id, at), block.sealed()?)))
        })
    }

    /// Gives back the run that the block of `addr` belongs to, and says its bytes.
    pub(super) fn give(&self, addr: LogAddr) -> usize {
        let region = self.region(addr.region());
        let index = self.run_start(addr);
        let mut free = self.free.lock();
        let run = region.blocks[index].run();
        for i in index..index + run {
            region.blocks[i].free();
            free.numbers.insert(self.number(addr.region(), i));
        }
        self.note_level(&free);
        run * self.block_bytes
    }

    /// All regions that are not retired, with their ids.
    fn live_regions(&self) -> impl Iterator<Item = (u32, &Region)> {
        let regions = (0..).zip(&self.regions).skip(1);
        // They are made in order.
        let made = regions.map_while(|(id, region)| Some((id, region.get()?)));
        made.filter(|(_, region)| !region.retired.load(Ordering::Acquire))
    }

    /// Ids of regions are below this.
    pub(super) fn made(&self) -> u32 {
        self.free.lock().made
    }

    /// Regions that there are, the catalog included, and their bytes without it; and bytes of
    /// those that are retired and not given back yet.
    pub(super) fn regions(&self) -> (u32, usize, usize) {
        let free = self.free.lock();
        (free.made - free.retired, free.made_bytes, free.retired_bytes)
    }

    /// Bytes of the regions that may still be made.
    pub(super) fn unmade_bytes(&self) -> usize {
        self.left_bytes(&self.free.lock())
    }

    fn left_bytes(&self, free: &FreeBlocks) -> usize {
        let left_bytes = self.own_left_bytes(free);
        left_bytes.min(self.budget.left_bytes() / self.segment_bytes * self.segment_bytes)
    }

    /// As [`Self::left_bytes`], whatever others take.
    fn own_left_bytes(&self, free: &FreeBlocks) -> usize {
        self.limit_bytes - free.made_bytes - free.retired_bytes
    }

    /// Bytes in huge pages, and bytes for which the kernel refused them.
    pub(super) fn huge_bytes(&self) -> (u64, u64) {
        self.huge.bytes()
    }

    /// Adds up all blocks.
    pub(super) fn totals(&self) -> BlockTotals {
        let mut totals = BlockTotals::default();
        self.each_block(|_, used, live| match used {
            Use::Free => totals.free += self.block_bytes as u64,
            Use::Meta | Use::Held => totals.meta += self.block_bytes as u64,
            Use::Log | Use::RunTail => {
                totals.log += self.block_bytes as u64;
                totals.live += live;
            }
        });
        totals
    }

    /// Adds up the blocks of logs by their tables' ids.
    pub(super) fn logs(&self) -> BTreeMap<u32, BlockTotals> {
        let mut logs = BTreeMap::<u32, BlockTotals>::new();
        self.each_block(|owner, used, live| {
            if matches!(used, Use::Log | Use::RunTail) {
                let totals = logs.entry(owner).or_default();
                totals.log += self.block_bytes as u64;
                totals.live += live;
            }
        });
        logs
    }

    /// Owner, use and live bytes of every block, each at some moment.
    fn each_block(&self, mut each: impl FnMut(u32, Use, u64)) {
        for block in self.live_regions().flat_map(|(_, region)| &region.blocks) {
            each(block.owner(), block.used_for(), block.live_bytes());
        }
    }
}
