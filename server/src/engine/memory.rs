//! Regions and the blocks they are divided into.
//!
//! Regions are made on demand ([`make`]), up to the configured amount and to what the budget that
//! the engine may share with others has left; one that is free as a whole can be given back
//! ([`give_back`]). Of a region clients may write everything or nothing: what they write lies in
//! regions of its own, and free blocks are kept apart by that right ([`free`]).
//!
//! A block is an eighth of the
//! longest log segment and belongs to one table's log, or to the index ([`super::meta`]). Of the
//! free blocks the first is taken: what was in use before is used again before fresh memory is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use onesided_fabric::{Memory, Rights};
use onesided_protocol::LogAddr;
use onesided_protocol::layout::line::INDEX_SEGMENT_BYTES;
use onesided_protocol::limits::{REGION_BYTES, REGIONS_MAX};
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::Mutex;

use super::block::{Block, Sealed, Use};
use super::budget::{Budget, ShareId};
use super::catalog::Catalog;
use super::evict::Part;
use super::floor::Floors;
use super::huge::{HugePages, Steps};
use super::room::{Level, Marks, Need, Room, Wanted};
use super::spot::Spot;
use super::{EngineConfig, EngineError, MakeMemory};

mod free;
mod give_back;
mod left;
pub(super) mod lengths;
mod make;
mod map;
mod stretch;

pub use map::{CellUse, RegionMap};

use free::FreeBlocks;

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
    /// What clients may do to it.
    rights: Rights,
    blocks: Box<[Block]>,
    /// See [`HugePages::use_soon`].
    huge: Arc<Steps>,
    /// It is, or will be, given back: nothing is in it.
    retired: AtomicBool,
}

/// Bytes of blocks by use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BlockTotals {
    pub(super) log: u64,
    pub(super) live: u64,
    pub(super) meta: u64,
    pub(super) cells: u64,
    pub(super) free: u64,
    /// All blocks of regions that clients may write.
    pub(super) writable: u64,
    /// Of these, live entries and cells.
    pub(super) writable_taken: u64,
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
    /// See [`left`].
    first_writable_bytes: usize,
    budget: Arc<Budget>,
    share: ShareId,
    pub(super) floors: Floors,
    marks: Marks,
    /// By [`place_of`] the right.
    rooms: [Room; 2],
    /// See [`Self::share`].
    shares: AtomicBool,
    /// Segments sealed so far.
    sealed: AtomicU64,
    free: Mutex<FreeBlocks>,
}

fn place_of(rights: Rights) -> usize {
    match rights {
        Rights::ReadOnly => 0,
        Rights::ReadWrite => 1,
    }
}

impl Pool {
    pub(super) fn new(
        config: &EngineConfig,
        budget: Arc<Budget>,
        make_memory: MakeMemory,
        catalog: Arc<Catalog>,
    ) -> Result<Self, EngineError> {
        let (segment_bytes, region_bytes) = (config.segment_bytes, config.region_bytes);
        let (limit_bytes, regions) = lengths::check(config)?;
        let block_bytes = (segment_bytes / SEGMENT_BLOCKS).max(BLOCK_MIN_BYTES);
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
            first_writable_bytes: left::first_writable_bytes(limit_bytes, segment_bytes),
            share: budget.join(),
            budget,
            floors: Floors::default(),
            marks: Marks::new(segment_bytes / block_bytes, block_bytes),
            rooms: Default::default(),
            shares: AtomicBool::new(false),
            sealed: AtomicU64::new(0),
            free: Mutex::new(FreeBlocks::new(1)),
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

    /// What regions may be in all that clients only read.
    pub(super) fn most_to_read_bytes(&self) -> usize {
        self.limit_bytes - self.first_writable_bytes
    }

    /// Bytes of the longest run of blocks that a region may hold beside what stays free and an
    /// index.
    pub(super) fn run_max_bytes(&self) -> usize {
        let most_bytes = self.most_to_read_bytes();
        let all_blocks = most_bytes / self.block_bytes;
        let kept_bytes = self.kept_blocks(all_blocks) * self.block_bytes + INDEX_SEGMENT_BYTES;
        let kept_bytes = kept_bytes.next_multiple_of(self.block_bytes);
        let fits_bytes = most_bytes.saturating_sub(kept_bytes);
        fits_bytes.min(self.region_blocks * self.block_bytes)
    }

    pub(super) fn memory(&self, id: u32) -> Option<(Arc<Memory>, Rights)> {
        let region = self.regions.get(id as usize)?.get()?;
        let is_there = !region.retired.load(Ordering::Acquire);
        is_there.then(|| (Arc::clone(&region.memory), region.rights))
    }

    /// What clients may do to a region that was made.
    pub(super) fn rights(&self, id: u32) -> Rights {
        self.region(id).rights
    }

    /// See [`super::Engine::unpark_at_growth`].
    pub(super) fn unpark_at_growth(&self, thread: Option<Thread>) {
        self.free.lock().registrar = thread;
    }

    /// Puts a region into huge pages now, as far as the kernel lets it.
    pub(super) fn make_huge(&self, id: u32) {
        if let Some(region) = self.regions.get(id as usize).and_then(OnceLock::get) {
            self.huge.use_now(&region.memory, &region.huge);
        }
    }

    /// No region is put into huge pages any more.
    pub(super) fn end_huge(&self) {
        self.huge.end();
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

    /// The memory that an address that the engine made leads into.
    pub(super) fn memory_at(&self, addr: LogAddr) -> &Arc<Memory> {
        &self.region(addr.region()).memory
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

    /// Blocks that hold so many bytes.
    fn blocks_for(&self, len_bytes: usize) -> usize {
        len_bytes.div_ceil(self.block_bytes).max(1)
    }

    /// Takes adjacent blocks in one region, if enough stays free beside them.
    pub(super) fn take(&self, wanted: Wanted, use_: Use, owner: u32) -> Result<LogAddr, RpcError> {
        let Wanted { len_bytes, rights, .. } = wanted;
        let blocks = self.blocks_for(len_bytes);
        if blocks > self.region_blocks {
            let text = format!("{len_bytes} bytes do not fit into a region: store shorter values");
            return Err(RpcError::new(ErrorCode::TooLarge, text));
        }
        let mut free = self.free.lock();
        let first = loop {
            match self.find(&free, blocks, wanted) {
                Some(first) => break first,
                None => self.make_region(&mut free, wanted, blocks)?,
            }
        };
        let is_run = len_bytes > self.segment_bytes;
        let first = match use_ {
            Use::Log if !is_run => self.where_it_can_grow(&free, rights, first),
            _ => first,
        };
        let addr = self.addr(first);
        self.occupy(&mut free, addr, 0..blocks, use_, owner);
        Ok(addr)
    }

    /// Where a segment that could begin at `first` has room to grow to its full length, or to the
    /// greatest that there is: the rests of short segments, which no entry fits into, would be
    /// many.
    fn where_it_can_grow(&self, free: &FreeBlocks, rights: Rights, first: u32) -> u32 {
        self.longest_row(free, rights, self.segment_bytes / self.block_bytes).unwrap_or(first)
    }

    /// Whether so much died since a look for something to clean found nothing that another one is
    /// worth its time, or that look was for more than segments of which one of so many parts is
    /// dead. In regions of this right, or in any.
    pub(super) fn has_changed(&self, rights: Option<Rights>, dead_part: usize) -> bool {
        let bytes = (self.limit_bytes / LOOK_AGAIN_PART) as u64;
        self.rooms_of(rights).any(|room| room.has_died(bytes, dead_part))
    }

    /// There may be something to clean that was none before.
    pub(super) fn look_again(&self) {
        self.rooms.iter().for_each(Room::look_again);
    }

    /// A look for segments of which one of so many parts is dead found none.
    pub(super) fn nothing_to_gain(&self, rights: Option<Rights>, dead_part: usize) {
        self.rooms_of(rights).for_each(|room| room.nothing_to_gain(dead_part));
    }

    fn rooms_of(&self, rights: Option<Rights>) -> impl Iterator<Item = &Room> {
        let is_meant = move |place| rights.is_none_or(|rights| place_of(rights) == place);
        self.rooms.iter().enumerate().filter(move |(place, _)| is_meant(*place)).map(|(_, r)| r)
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
        let (owner, rights) = (self.block_of(addr).owner(), self.region(addr.region()).rights);
        let wanted = Wanted { owner, len_bytes: more_bytes, need, rights };
        let (old, more) = (len_bytes / self.block_bytes, more_bytes / self.block_bytes);
        let index = addr.offset_bytes() / self.block_bytes;
        let first = self.number(addr.region(), index + old);
        let mut free = self.free.lock();
        let fits =
            index + old + more <= self.region_blocks && self.leaves_enough(&free, more, wanted);
        let numbers = &free.of(rights).numbers;
        let is_free = |number| numbers.contains(&number) && !free.is_held(number);
        if !fits || !(first..first + more as u32).all(is_free) {
            return false;
        }
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
            self.huge.use_soon(&region.memory, &region.huge, start_bytes, len_bytes);
        }
        for i in part {
            free.of_mut(region.rights).numbers.remove(&self.number(addr.region(), index + i));
            region.blocks[index + i].occupy(i, use_, owner);
        }
        self.note_levels(free);
    }

    /// How much room there is in regions of this right.
    #[inline]
    pub(super) fn level(&self, rights: Rights) -> Level {
        self.rooms[place_of(rights)].get()
    }

    /// How much there is where it is shortest, and which regions these are.
    pub(super) fn shortest(&self) -> (Rights, Level) {
        let levels =
            [Rights::ReadWrite, Rights::ReadOnly].map(|rights| (rights, self.level(rights)));
        if levels[0].1 > levels[1].1 { levels[0] } else { levels[1] }
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

    /// Counts bytes as live in the segment at `addr`. `false`: it is free.
    #[must_use]
    pub(super) fn count(&self, addr: LogAddr, bytes: usize) -> bool {
        self.block_of(addr).count(bytes)
    }

    /// Whatever slots still point into the segment at `addr` counts no more: only where a rule is
    /// switched off.
    pub(super) fn forget_live(&self, addr: LogAddr) {
        self.block_of(addr).forget_live();
    }

    /// Bytes from any address to the end of the segment that it is in, if that is one of this
    /// table's, where clients may write.
    pub(super) fn log_room(&self, addr: LogAddr, owner: u32) -> Option<usize> {
        self.own_room(addr, owner, Use::Log)
    }

    /// Whether an address is that of a cell in memory of this table's for cells.
    pub(super) fn is_cell(&self, addr: LogAddr, owner: u32) -> bool {
        self.own_room(addr, owner, Use::Cells).is_some()
    }

    fn own_room(&self, addr: LogAddr, owner: u32, used_for: Use) -> Option<usize> {
        let region = self.regions.get(addr.region() as usize)?.get()?;
        let index = addr.offset_bytes() / self.block_bytes;
        let start = index.checked_sub(region.blocks.get(index)?.back())?;
        let block = region.blocks.get(start)?;
        let is_own = block.used_for() == used_for && block.owner() == owner;
        if !is_own || region.rights != Rights::ReadWrite || region.retired.load(Ordering::Acquire) {
            return None;
        }
        let end_bytes = (start + block.run()) * self.block_bytes;
        end_bytes.min(region.memory.len_bytes()).checked_sub(addr.offset_bytes())
    }

    /// As [`Self::add`], for an entry that has the run to itself.
    pub(super) fn add_alone(&self, addr: LogAddr, part: Part, bytes: usize) {
        let block = self.block_of(addr);
        block.close(part, bytes, self.sealed.fetch_add(1, Ordering::Relaxed));
        block.add(bytes);
    }

    /// Whether the entry at `addr` has a run to itself.
    pub(super) fn is_alone(&self, addr: LogAddr) -> bool {
        self.block_of(addr).run() * self.block_bytes > self.segment_bytes
    }

    /// The entry that has the run at `addr` to itself, and that the caller has pinned, is shorter
    /// than it was. Gives the bytes of the blocks behind it, which became free by it, or 0.
    #[must_use]
    pub(super) fn shorten_alone(&self, addr: LogAddr, old_bytes: usize, new_bytes: usize) -> usize {
        let block = self.block_of(addr);
        block.set_used(new_bytes);
        let is_free = block.sub(old_bytes - new_bytes);
        debug_assert!(!is_free, "the run at {addr:?} is pinned");
        let start = self.run_start(addr);
        let mut free = self.free.lock();
        let (old, new) = (block.run(), self.blocks_for(new_bytes));
        block.set_run(new);
        self.free_blocks(&mut free, addr.region(), start + new..start + old)
    }

    /// A pinned segment is of this part from now on, and the newest, without being copied.
    pub(super) fn reseal(&self, addr: LogAddr, part: Part, used_bytes: usize) {
        let sealed_as = self.sealed.fetch_add(1, Ordering::Relaxed);
        self.block_of(addr).close(part, used_bytes, sealed_as);
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
        self.rooms[place_of(self.region(addr.region()).rights)].note_dead(bytes);
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

    /// Pins the sealed segment that begins at `addr` for the cleaner; see [`Block::pin`]. `None`
    /// also if none begins there: since somebody saw it, another one may have come to lie across.
    pub(super) fn pin(&self, addr: LogAddr) -> Option<Sealed> {
        let region = self.region(addr.region());
        // Blocks in the middle of a run hold nothing.
        region.blocks[addr.offset_bytes() / self.block_bytes].pin(region.rights)
    }

    /// All sealed segments that hold something live, each as it was at some moment.
    pub(super) fn sealed(&self) -> impl Iterator<Item = (LogAddr, Sealed)> {
        self.live_regions().flat_map(|(id, region)| {
            let blocks = (0..).step_by(self.block_bytes).zip(&region.blocks);
            blocks.filter_map(move |(at, block)| {
                Some((LogAddr::new(id, at), block.sealed(region.rights)?))
            })
        })
    }

    /// Gives back the run that the block of `addr` belongs to, and says its bytes.
    pub(super) fn give(&self, addr: LogAddr) -> usize {
        let region = self.region(addr.region());
        let index = self.run_start(addr);
        let mut free = self.free.lock();
        let run = region.blocks[index].run();
        self.free_blocks(&mut free, addr.region(), index..index + run)
    }

    /// These blocks of a region are free from now on. Gives their bytes.
    fn free_blocks(&self, free: &mut FreeBlocks, id: u32, blocks: Range<usize>) -> usize {
        let region = self.region(id);
        let bytes = blocks.len() * self.block_bytes;
        for i in blocks {
            region.blocks[i].free();
            free.of_mut(region.rights).numbers.insert(self.number(id, i));
        }
        self.note_levels(free);
        bytes
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
        (free.made - free.retired, free.made_bytes(), free.retired_bytes)
    }

    /// Bytes in huge pages, and bytes for which the kernel refused them.
    pub(super) fn huge_bytes(&self) -> (u64, u64) {
        self.huge.bytes()
    }

    /// Adds up all blocks.
    pub(super) fn totals(&self) -> BlockTotals {
        let mut totals = BlockTotals::default();
        let len_bytes = self.block_bytes as u64;
        self.each_block(|rights, _, used, live| {
            let (sum, taken) = match used {
                Use::Free => (&mut totals.free, 0),
                Use::Meta | Use::Held => (&mut totals.meta, len_bytes),
                Use::Cells => (&mut totals.cells, len_bytes),
                Use::Log | Use::RunTail => (&mut totals.log, live),
            };
            *sum += len_bytes;
            if matches!(used, Use::Log | Use::RunTail) {
                totals.live += live;
            }
            if rights == Rights::ReadWrite {
                totals.writable += len_bytes;
                totals.writable_taken += taken;
            }
        });
        totals
    }

    /// Adds up the blocks of logs by their tables' ids.
    pub(super) fn logs(&self) -> BTreeMap<u32, BlockTotals> {
        let mut logs = BTreeMap::<u32, BlockTotals>::new();
        self.each_block(|_, owner, used, live| {
            if matches!(used, Use::Log | Use::RunTail) {
                let totals = logs.entry(owner).or_default();
                totals.log += self.block_bytes as u64;
                totals.live += live;
            }
        });
        logs
    }

    /// Rights of its region, owner, use and live bytes of every block, each at some moment: no
    /// more than its run has, whatever clients that may write there let slots point at.
    fn each_block(&self, mut each: impl FnMut(Rights, u32, Use, u64)) {
        for (_, region) in self.live_regions() {
            for block in &region.blocks {
                let (used, run_bytes) = (block.used_for(), block.run() * self.block_bytes);
                let live_bytes = block.live_bytes().min(run_bytes as u64);
                each(region.rights, block.owner(), used, live_bytes);
            }
        }
    }
}
