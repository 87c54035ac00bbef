//! The control connection: TCP, one per client. It begins with a preamble of 8 bytes magic, then
//! one byte that says what the connection is for; a data connection's ticket follows at once,
//! and its frames belong to the fabric. On a control connection frames follow: a 4-byte length,
//! then one [`ToServer`] or [`ToClient`]. Every [`ToServer`] gets exactly one answer, in order.

use crate::codec::{DecodeError, Reader, Write};
use crate::latency::LATENCY_BUCKETS;
use crate::layout::catalog::DirectoryWord;
use crate::limits::{
    ACCESSES_MAX, FABRIC_BLOB_MAX_BYTES, FABRICS_MAX, RETIRED_MAX, STAT_NAME_MAX_BYTES, STATS_MAX,
    TABLE_NAME_MAX_BYTES, TABLES_MAX, TICKET_BYTES, TOKEN_MAX_BYTES, WIRE_VERSION_MAX,
    WIRE_VERSION_MIN,
};
use crate::rpc::RpcError;

mod codec;
mod options;

/// First 8 bytes of every connection to the server's port.
pub const PREAMBLE_MAGIC: [u8; 8] = *b"onesided";
/// The ninth: a control connection.
pub const PURPOSE_CONTROL: u8 = 1;
/// The ninth: the data connection of the tcp fabric; the ticket follows.
pub const PURPOSE_DATA: u8 = 2;

/// Kind of [`ToServer::Hello`].
const HELLO: u8 = 1;

/// From a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToServer {
    /// First of all.
    Hello(Hello),
    /// Still here; asks for the clock and the catalog's epoch.
    Heartbeat(Heartbeat),
    /// What was done with a table since the client said so last. An unknown table is no error.
    Counted {
        /// Id of the table.
        table: u32,
        /// Since the last report.
        counts: Box<TableCounts>,
    },
    /// Keys of a table that were read one-sidedly: a sample. An unknown table is no error.
    Accessed {
        /// Id of the table.
        table: u32,
        /// Hashes of the keys, at most [`ACCESSES_MAX`].
        hashes: Vec<u64>,
    },
    /// A ticket for one more fabric connection.
    Ticket,
    /// What a client needs to read a table.
    OpenTable {
        /// Its name.
        name: String,
    },
    /// Make a table.
    CreateTable {
        /// Its name.
        name: String,
        /// Its options.
        options: TableOptions,
    },
    /// Change a table's options; all of them are set.
    AlterTable {
        /// Its name.
        name: String,
        /// Its options.
        options: TableOptions,
    },
    /// Remove a table and all that is in it.
    DropTable {
        /// Its name.
        name: String,
    },
    /// All tables.
    ListTables,
    /// The server's counters.
    Stats,
    /// End of the session: nothing of it needs to be kept.
    Goodbye,
}

/// From the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToClient {
    /// To a hello.
    Welcome(Box<Welcome>),
    /// To a heartbeat.
    Alive {
        /// The server's Unix time in ns.
        clock_ns: u64,
        /// Changes when a table or region does.
        catalog_epoch: u64,
        /// The newest epoch that this answer tells of.
        epoch: u64,
        /// What was retired after the epoch that the session has acknowledged, oldest first; at
        /// most [`RETIRED_MAX`].
        retired: Vec<Retired>,
    },
    /// To [`ToServer::Ticket`].
    Ticket([u8; TICKET_BYTES]),
    /// To open, create and alter.
    Table(TableInfo),
    /// To list.
    Tables(Vec<TableStatus>),
    /// To stats: names and values.
    Stats(Vec<(String, u64)>),
    /// To drop, goodbye and a report of accesses or counts.
    Done,
    /// It failed; after a hello the connection is closed.
    Failed(RpcError),
}

/// Opens a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Oldest wire version that the client speaks.
    pub wire_min: u16,
    /// Newest wire version that the client speaks.
    pub wire_max: u16,
    /// Layout version that the client reads.
    pub layout: u16,
    /// Authenticates; empty = none.
    pub token: String,
    /// The session to go on with: its id and resume key; 0 and 0 for a new one.
    pub resume: (u64, u64),
}

/// The versions at the start of a hello. Their place is fixed for ever, so that a server can name
/// both sides' versions to a client whose hello it cannot read as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerVersions {
    /// Oldest wire version that the client speaks.
    pub wire_min: u16,
    /// Newest wire version that the client speaks.
    pub wire_max: u16,
    /// Layout version that the client reads.
    pub layout: u16,
}

impl PeerVersions {
    /// Reads them off a hello of any version; `None` if it is no hello.
    #[must_use]
    pub fn peek(frame: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(frame);
        let is_hello = reader.u8("message").ok()? == HELLO;
        let mut next = || reader.u16("version").ok();
        let versions = Self { wire_min: next()?, wire_max: next()?, layout: next()? };
        is_hello.then_some(versions)
    }

    /// The newest wire version that this build speaks too.
    #[must_use]
    pub fn in_common(self) -> Option<u16> {
        let newest = self.wire_max.min(WIRE_VERSION_MAX);
        (newest >= self.wire_min.max(WIRE_VERSION_MIN)).then_some(newest)
    }
}

/// The session that was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Wire version to speak: the newest in common.
    pub wire: u16,
    /// Session id.
    pub session: u64,
    /// Secret with which this session can be resumed on another connection.
    pub resume_key: u64,
    /// Whether it is the session that the client asked to resume: answers to earlier sequence
    /// numbers are still known.
    pub resumed: bool,
    /// Highest sequence number of a mutation that the session has applied.
    pub applied_sequence: u64,
    /// Random number of the server life.
    pub incarnation: u64,
    /// The server's Unix time in ns.
    pub clock_ns: u64,
    /// Changes when a table or region does.
    pub catalog_epoch: u64,
    /// The session lives this long without a heartbeat.
    pub lease_ms: u32,
    /// The client should send a heartbeat this often.
    pub heartbeat_ms: u32,
    /// Requests that may be outstanding on the data path.
    pub credits: u32,
    /// Longest value.
    pub value_max_bytes: u32,
    /// For one fabric connection.
    pub ticket: [u8; TICKET_BYTES],
    /// What the server can be reached by, best first.
    pub fabrics: Vec<FabricOffer>,
}

/// One way to reach the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FabricOffer {
    /// Which fabric.
    pub kind: FabricName,
    /// Only that fabric reads this.
    pub blob: Vec<u8>,
}

/// Fabrics by their number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FabricName {
    /// Shared memory of one host.
    Shm = 1,
    /// RC queue pairs.
    Verbs = 2,
    /// A data connection to the same port.
    Tcp = 3,
}

/// A client is still here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heartbeat {
    /// No operation of the client, also none of a thread that was stopped in it, can look any more
    /// at what was retired up to this epoch; 0 before it was told of any.
    pub epoch: u64,
}

/// Memory whose bytes do not prove themselves and that no operation may begin to look at. It comes
/// back when all sessions have acknowledged the epoch that it was retired in, or have ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Retired {
    /// The directory and index segments of the table of this id, which was dropped.
    Table(u32),
    /// The region of this id: a READ of it may soon cost the connection.
    Region(u32),
    /// Cells of counters that have ended, of the table of this id: those that are found from now on
    /// may be at their places.
    Cells(u32),
}

/// What a client has counted of a table: the server cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCounts {
    /// GETs answered one-sidedly with a value, each key of a batch counted.
    pub one_sided_hits: u64,
    /// GETs answered one-sidedly with a miss.
    pub one_sided_misses: u64,
    /// GETs that asked by RPC.
    pub rpc_gets: u64,
    /// One-sided READs.
    pub reads: u64,
    /// Times that a READ or a batch of READs was waited for.
    pub round_trips: u64,
    /// Rounds that began with a cached bucket.
    pub cache_hits: u64,
    /// Rounds that had to look again.
    pub retries: u64,
    /// Forwards followed.
    pub forward_hops: u64,
    /// Checksums that did not fit.
    pub checksum_failures: u64,
    /// Bytes of the READs.
    pub read_bytes: u64,
    /// Sampled GETs by how long they took: buckets of [`crate::latency`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// How long they took together, in ns.
    pub latency_ns: u64,
    /// PUTs that replaced an entry without the server.
    pub one_sided_puts: u64,
    /// PUTs that asked by RPC, each pair of a batch counted.
    pub rpc_puts: u64,
    /// Compare-and-swaps of one-sided PUTs that somebody else was faster than.
    pub lost_swaps: u64,
    /// Atomic operations on counters without the server.
    pub counter_atomics: u64,
    /// Changes of counters, and searches for them, that asked by RPC.
    pub rpc_counters: u64,
    /// Of the atomic operations, those that had to be done again.
    pub counter_retries: u64,
}

impl TableCounts {
    /// Everything, in the order of the message: events of reads, bytes, ns, samples by bucket,
    /// events of writes.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self {
            one_sided_hits,
            one_sided_misses,
            rpc_gets,
            reads,
            round_trips,
            cache_hits,
            retries,
            forward_hops,
            checksum_failures,
            read_bytes,
            latency,
            latency_ns,
            one_sided_puts,
            rpc_puts,
            lost_swaps,
            counter_atomics,
            rpc_counters,
            counter_retries,
        } = self;
        let events = [one_sided_hits, one_sided_misses, rpc_gets, reads, round_trips];
        let hints = [cache_hits, retries, forward_hops, checksum_failures];
        let puts = [one_sided_puts, rpc_puts, lost_swaps];
        let counters = [counter_atomics, rpc_counters, counter_retries];
        let reads = events.into_iter().chain(hints).chain([read_bytes, latency_ns]).chain(latency);
        reads.chain(puts).chain(counters)
    }

    /// Those that are numbers of events, samples included.
    pub fn events_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.all_mut().enumerate().filter(|(n, _)| !(9..11).contains(n)).map(|(_, count)| count)
    }

    /// Adds what was counted elsewhere. What peers claim may be anything.
    pub fn add(&mut self, more: &Self) {
        let mut more = *more;
        self.all_mut().zip(more.all_mut()).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (mut since, mut earlier) = (*self, *earlier);
        since.all_mut().zip(earlier.all_mut()).for_each(|(n, was)| *n = n.wrapping_sub(*was));
        since
    }
}

/// What can be set for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOptions {
    /// Seconds; 0 = values live for ever unless said otherwise.
    pub default_ttl_s: u32,
    /// Bytes that entries and index may take; 0 = up to the server's memory.
    pub quota_bytes: u64,
    /// Bytes that entries and index may take whatever other tables do, and that eviction leaves
    /// them; 0 = none.
    pub floor_bytes: u64,
    /// When memory is full: whether entries may go to make room for others (`evict`), or what would
    /// make it fuller is refused (`noeviction`).
    pub evict: bool,
    /// Whether the server keeps its keys in order, for scans. Fixed when the table is made.
    pub ordered: bool,
    /// Who may change what is there. Fixed when the table is made.
    pub update: UpdateMode,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TableOptions {
    /// What a table has where nothing else is said.
    pub const DEFAULT: Self = Self {
        default_ttl_s: 0,
        quota_bytes: 0,
        floor_bytes: 0,
        evict: false,
        ordered: false,
        update: UpdateMode::Rpc,
    };

    /// Why no table can have these options together, if none can.
    #[must_use]
    pub fn contradiction(&self) -> Option<&'static str> {
        if self.quota_bytes != 0 && self.floor_bytes > self.quota_bytes {
            return Some(
                "the floor is above the table's quota; take a lower one or a higher quota",
            );
        }
        match self.update {
            UpdateMode::Rpc => None,
            UpdateMode::Cas if self.ordered => Some(
                "update=cas and ordered: what clients write themselves the server learns of \
                 later, and a scan must not miss it; leave one of them out",
            ),
            UpdateMode::Cas if self.evict => Some(
                "update=cas and evict: what the server does not see written it cannot tell warm \
                 from cold; leave one of them out",
            ),
            UpdateMode::Cas => None,
        }
    }
}

/// How entries of a table are updated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum UpdateMode {
    /// The server does it, when it is asked by RPC.
    #[default]
    Rpc = 0,
    /// Clients do it themselves by WRITE and compare-and-swap, where their fabric lets them.
    Cas = 1,
}

impl UpdateMode {
    /// Its name in options of tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Cas => "cas",
        }
    }

    /// The mode of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Rpc, Self::Cas].into_iter().find(|mode| mode.name() == name)
    }
}

/// What a client needs to read a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// Id; never used twice in a server life.
    pub id: u32,
    /// Number of its record in the catalog.
    pub slot: u32,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Seed of the entry checksum.
    pub secret: u64,
    /// Where its directory is now.
    pub directory: DirectoryWord,
    /// Its options.
    pub options: TableOptions,
    /// Whether this session may change counters, and entries of a table of mode
    /// [`UpdateMode::Cas`], one-sidedly over this fabric; `None`: over none.
    pub updates_over: Option<FabricName>,
}

/// A table as people see it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableStatus {
    /// Its name.
    pub name: String,
    /// Id.
    pub id: u32,
    /// Its options.
    pub options: TableOptions,
    /// Keys, expired ones that nobody has met included.
    pub keys: u64,
    /// Bytes of live entries, headers and padding included.
    pub live_bytes: u64,
    /// Bytes of log segments.
    pub log_bytes: u64,
    /// Bytes of index segments and directory.
    pub index_bytes: u64,
    /// Splits so far.
    pub splits: u64,
    /// Of the log, bytes of entries that are dead, and rests too short for an entry.
    pub dead_bytes: u64,
    /// Of the log, what nothing was put into yet.
    pub free_bytes: u64,
    /// Bytes of entries that were written for clients so far.
    pub written_bytes: u64,
    /// Bytes of entries that cleaning has copied so far.
    pub moved_bytes: u64,
    /// Entries that were removed so far because their time was over.
    pub expired_entries: u64,
    /// Live entries that were removed so far because memory, or the table's quota, was full.
    pub evicted_entries: u64,
    /// Entries whose time was over that the last round through the table found; a round takes a
    /// minute.
    pub expiry_backlog: u64,
    /// Of the live bytes, those of keys and values; headers and padding are the rest. Where clients
    /// write entries themselves it is about.
    pub payload_bytes: u64,
    /// Of the live bytes, those that fill entries up to multiples of 16.
    pub padding_bytes: u64,
    /// Of the evicted entries, those that went because the table was over its quota.
    pub evicted_for_quota: u64,
}
