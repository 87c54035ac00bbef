//! The storage engine: tables whose index and log lie in memory that clients read by themselves.
//!
//! No sockets, no clock and no randomness of its own. Method order: [`Engine::new`] or
//! [`Engine::within`], [`Engine::create_table`], then operations on [`Engine::table`];
//! [`Engine::tick`] now and then; after [`Engine::drop_table`], [`Engine::reclaim`] when sessions
//! have acknowledged what they were told ([`Engine::retired_after`]), or have ended.
//!
//! Locks, in the order in which one thread may take them: the names of tables; the region that is
//! being left; the cleaner's work; the tables that it knows; one index segment, and the one that it
//! is being split into; the directory of an index; a log, or what an ordered table's keys take; the
//! metadata pieces; the free blocks; the budget.

mod account;
mod ahead;
mod block;
mod bucket;
mod budget;
mod cas;
mod catalog;
mod cells;
mod change;
mod clean;
mod counter;
mod epoch;
mod evict;
mod expire;
mod floor;
mod get;
mod header;
mod heat;
mod huge;
mod in_place;
mod index;
mod log;
mod memory;
mod meta;
mod order;
mod publish;
mod room;
mod shrink;
mod split;
mod spot;
pub(crate) mod status;
mod table;
mod tables;
mod time;
mod words;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::Thread;

use arc_swap::ArcSwap;
use onesided_fabric::{Memory, Rights};
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::catalog::CATALOG_REGION;
use onesided_protocol::limits::{
    REGION_BYTES, SEGMENT_BYTES, VALUE_MAX_BYTES, VALUE_MAX_DEFAULT_BYTES,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use budget::Budget;
pub use cas::CasStatus;
pub(crate) use change::rewritten_bytes;
pub use clean::{Cleaning, CleaningStatus};
pub use counter::Counted;
pub use epoch::Acknowledged;
pub use index::IndexStatus;
pub(crate) use index::TABLE_MIN_BYTES;
pub use memory::{CellUse, RegionMap};
pub use order::ScanRange;
pub use shrink::ShrinkingStatus;
pub use status::MemoryStatus;
pub(crate) use status::Reach;
pub use table::{Stored, Table};

use cas::Cas;
use catalog::Catalog;
use clean::{Cleaner, CleanerThread};
use epoch::Epochs;
use memory::Pool;
use meta::Meta;
use shrink::Shrinking;
use tables::Tables;
use words::Words;

/// How to size and seed an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Bytes for entries and indexes of all tables, if the engine's budget has them; the catalog's
    /// 1.2 MiB are not among them.
    pub memory_bytes: usize,
    /// Length of a region, a multiple of `segment_bytes` up to 64 MiB.
    pub region_bytes: usize,
    /// Longest log segment: a power of two from 1 KiB. Short ones are reused sooner.
    pub segment_bytes: usize,
    /// Longest value.
    pub value_max_bytes: usize,
    /// Incarnation, secrets and hash seeds are drawn from it.
    pub seed: u64,
    /// Per cent of its slots that an index segment fills before it splits, 1 to 100.
    pub split_load_percent: u8,
    /// Whether to try for huge pages of shared memory, by a thread of the engine's own.
    pub huge_pages: bool,
    /// When entries are moved together, so that segments become free.
    pub cleaning: Cleaning,
    /// Whether a thread of the engine's own does that; without it whoever writes does, when room
    /// is short, and [`Engine::clean`].
    pub cleaner_thread: bool,
    /// Regions that were too many for so long go back to the system ([`Engine::shrink`]); 0: never.
    pub shrink_after_s: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            region_bytes: REGION_BYTES,
            segment_bytes: SEGMENT_BYTES,
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
            seed: 0,
            split_load_percent: 78,
            huge_pages: false,
            cleaning: Cleaning::Auto,
            cleaner_thread: false,
            shrink_after_s: 60,
        }
    }
}

/// Makes zeroed memory of a name and length, which peers may access with these rights: private,
/// shared, or watched by a simulation.
pub type MakeMemory = Box<dyn Fn(&str, usize, Rights) -> std::io::Result<Memory> + Send + Sync>;

/// The server's clock.
pub trait Clock: Send + Sync {
    /// Unix time in ns; never steps back. 0 s counts as no time: start later.
    fn unix_ns(&self) -> u64;
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A value of the configuration cannot be.
    #[error("configuration: {0}")]
    Config(String),
    /// The system gave no memory.
    #[error("no memory for {what} ({len_bytes} bytes): {source}; free memory on the host")]
    Memory {
        /// What for.
        what: &'static str,
        /// How much.
        len_bytes: usize,
        /// Why.
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What all tables use.
pub(crate) struct Shared {
    pool: Pool,
    meta: Meta,
    catalog: Arc<Catalog>,
    clock: Arc<dyn Clock>,
    /// The next append number of a large entry.
    append_numbers: AtomicU64,
    value_max_bytes: usize,
    split_load_percent: u8,
    cleaner: Cleaner,
    words: Words,
    epochs: Epochs,
    shrink_after_s: u32,
    shrinking: Shrinking,
    /// What clients write.
    cas: Cas,
}

/// The engine of one tenant in one server life.
pub struct Engine {
    incarnation: u64,
    shared: Arc<Shared>,
    /// By id, ascending: for the hot path.
    by_id: ArcSwap<Vec<Arc<Table>>>,
    tables: Mutex<Tables>,
    _cleaner: Option<CleanerThread>,
}

impl Engine {
    /// An engine without tables, with all its memory to itself.
    ///
    /// # Errors
    /// When a value of the configuration cannot be, or there is no memory for the catalog.
    pub fn new(
        config: EngineConfig,
        make_memory: MakeMemory,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, EngineError> {
        let budget = Budget::new(config.memory_bytes);
        Self::within(budget, config, make_memory, clock)
    }

    /// An engine without tables, which takes its regions out of a budget that others share.
    ///
    /// # Errors
    /// When a value of the configuration cannot be, or there is no memory for the catalog.
    pub fn within(
        budget: Arc<Budget>,
        config: EngineConfig,
        make_memory: MakeMemory,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, EngineError> {
        check(&config)?;
        let mut random = StdRng::seed_from_u64(config.seed);
        let incarnation = random.random();
        let catalog = Arc::new(Catalog::new(incarnation, &make_memory)?);
        let shared = Arc::new(Shared {
            pool: Pool::new(&config, budget, make_memory, catalog.clone())?,
            meta: Meta::default(),
            catalog,
            clock,
            append_numbers: AtomicU64::new(1),
            value_max_bytes: config.value_max_bytes,
            split_load_percent: config.split_load_percent,
            cleaner: Cleaner::new(config.cleaning),
            words: Words::default(),
            epochs: Epochs::default(),
            shrink_after_s: config.shrink_after_s,
            shrinking: Shrinking::default(),
            cas: Cas::default(),
        });
        let tables = Mutex::new(Tables::new(random));
        let cleaner = match config.cleaner_thread && config.cleaning != Cleaning::Off {
            true => Some(CleanerThread::start(&shared).map_err(EngineError::Thread)?),
            false => None,
        };
        let by_id = ArcSwap::default();
        let engine = Self { incarnation, shared, by_id, tables, _cleaner: cleaner };
        engine.tick();
        Ok(Arc::new(engine))
    }

    /// The random number of this server life.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Changes whenever a record of the catalog does.
    #[must_use]
    pub fn catalog_epoch(&self) -> u64 {
        self.shared.catalog.epoch()
    }

    /// The server's Unix time in ns.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.shared.clock.unix_ns()
    }

    /// Stores the time in the catalog.
    pub fn tick(&self) {
        self.shared.catalog.set_clock(self.clock_ns());
    }

    /// A region by its id; the catalog is region 0.
    #[must_use]
    pub fn region(&self, id: u32) -> Option<Arc<Memory>> {
        self.region_with_rights(id).map(|(memory, _)| memory)
    }

    /// As [`Self::region`], and what its peers may do to it at most.
    #[must_use]
    pub fn region_with_rights(&self, id: u32) -> Option<(Arc<Memory>, Rights)> {
        if id == CATALOG_REGION {
            return Some((self.shared.catalog.memory(), Rights::ReadOnly));
        }
        self.shared.pool.memory(id)
    }

    /// A device is about to pin all pages of a region: it is put into huge ones first, where they
    /// are wanted. Gives the region, and what peers may do to it; `None`: there is none of this id
    /// (any more).
    #[must_use]
    pub fn region_for_device(&self, id: u32) -> Option<(Arc<Memory>, Rights)> {
        let region = self.region_with_rights(id)?;
        if id != CATALOG_REGION {
            self.shared.pool.make_huge(id);
        }
        Some(region)
    }

    /// Nobody is to wait for huge pages any more: the server ends.
    pub(crate) fn end_huge_pages(&self) {
        self.shared.pool.end_huge();
    }

    /// This thread is unparked whenever a region was made. There is one such thread at most, the
    /// last that was named.
    pub fn unpark_at_growth(&self, thread: Option<Thread>) {
        self.shared.pool.unpark_at_growth(thread);
    }

    /// Ids of regions are below this; some may have been given back.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.shared.pool.made()
    }

    /// Keys with these hashes were read one-sidedly, as a client says. An unknown table is none.
    pub fn note_accesses(&self, table: u32, hashes: &[u64]) {
        if let Some(table) = self.table(table) {
            hashes.iter().for_each(|&hash| table.heat.note(KeyHash(hash)));
        }
    }

    /// Lets the heat of keys grow old, in tables that evict. To be called every second or so.
    pub fn tend_heat(&self) {
        self.by_id.load_full().iter().for_each(|table| table.tend_heat());
    }

    /// Whether [`Self::tend_heat`] has something to do.
    #[must_use]
    pub fn has_heat(&self) -> bool {
        self.by_id.load().iter().any(|table| table.heat.is_on())
    }

    /// A table by its id.
    #[must_use]
    pub fn table(&self, id: u32) -> Option<Arc<Table>> {
        let by_id = self.by_id.load();
        let at = by_id.binary_search_by_key(&id, |table| table.id()).ok()?;
        by_id.get(at).cloned()
    }
}

/// Looks for values that cannot be.
pub(crate) fn check(config: &EngineConfig) -> Result<(), EngineError> {
    memory::lengths::check(config)?;
    if !(1..=100).contains(&config.split_load_percent) {
        let text = format!("split_load_percent = {} is not 1 to 100", config.split_load_percent);
        return Err(EngineError::Config(text));
    }
    if config.value_max_bytes > VALUE_MAX_BYTES {
        let text = format!(
            "value_max_bytes = {} is above {VALUE_MAX_BYTES}: an entry must fit into a region",
            config.value_max_bytes
        );
        return Err(EngineError::Config(text));
    }
    Ok(())
}
