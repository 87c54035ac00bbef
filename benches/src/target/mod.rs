//! What is measured: stores behind one small interface, so that one loop drives them all.

mod embedded;
pub mod lmdb;
mod map;
mod memcached;
mod null;
mod onesided;
mod patch;
mod redis;
mod url;
mod usage;
mod wire;

use ::onesided::{FabricChoice, Rdma, RdmaDevice, UpdateMode};
use anyhow::Result;

pub use embedded::Embedded;
pub use url::{URLS, check_key, open};

/// One operation on one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// All of a record: `Found` or `Absent`.
    Read {
        /// Of the record.
        key: &'a [u8],
    },
    /// Stores a record, also over one of the same key: `Done`.
    Insert {
        /// Of the record.
        key: &'a [u8],
        /// All of it.
        value: &'a [u8],
        /// Seconds after which it may be gone; 0 = never.
        ttl_s: u32,
    },
    /// Writes over a part of a record: `Done`, or `Absent`.
    Update {
        /// Of the record.
        key: &'a [u8],
        /// Where the bytes begin in it; 0 if `whole`.
        offset: usize,
        /// They take the place of as many.
        bytes: &'a [u8],
        /// `bytes` are all of the record. Such an update may store what was absent.
        whole: bool,
    },
    /// Puts another field, perhaps of another length, in the place of one of a record whose fields
    /// have length prefixes (`record::replace_field`): read, replace, write if it is still the
    /// same, again if not. `Done`, or `Absent`.
    Replace {
        /// Of the record.
        key: &'a [u8],
        /// Number of the field, from 0.
        field: usize,
        /// The new field.
        bytes: &'a [u8],
    },
    /// Records in the order of their keys: a `Record` for each, then `Scanned`.
    Scan {
        /// The first key, or the place where it would be.
        from: &'a [u8],
        /// How many records at most.
        limit: usize,
    },
    /// `Done`, or `Absent`.
    Delete {
        /// Of the record.
        key: &'a [u8],
    },
}

/// What came of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// The record that was read.
    Found(&'a [u8]),
    /// There is no record of this key.
    Absent,
    /// Written, or deleted.
    Done,
    /// One of the records of a scan. `Scanned` of the same place follows the last of them.
    Record {
        /// Of the record.
        key: &'a [u8],
        /// All of it.
        value: &'a [u8],
    },
    /// The scan is over; so many records were there.
    Scanned(usize),
    /// The target cannot do this at all.
    Unsupported,
    /// It did not succeed; others may.
    Failed(&'a str),
}

/// What a thread talks through; not shared.
pub trait Session: Send {
    /// All of `batch` outstanding at once (pipelining; a batch of one is a plain call). Tells
    /// `answer` of each, by its place in the batch, in any order. An error means that the session
    /// is of no use any more.
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()>;
}

/// A store that can be measured.
pub trait Target: Send + Sync {
    /// As the tables name it: kind and transport.
    fn name(&self) -> String;
    /// For the report.
    fn describe(&self) -> Result<Description>;
    /// What one thread talks through. Sessions of one `client` share a connection if
    /// `shares_clients`, else each has its own.
    fn session(&self, client: usize) -> Result<Box<dyn Session>>;
    /// Whether threads can share a connection.
    fn shares_clients(&self) -> bool {
        false
    }
    /// What the server used up to now; `None` if nobody knows (a server elsewhere), or there is no
    /// server.
    fn usage(&self) -> Result<Option<Usage>>;
    /// Of all sessions up to now, also of those that are gone.
    fn counters(&self) -> Counters;
    /// Removes all records of a run before, if that can be done at once.
    fn clear(&self) -> Result<()>;
}

/// What a target is.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Description {
    /// Of the store.
    pub version: String,
    /// Which fabric onesided chose; else empty.
    pub fabric: String,
    /// How bytes come to the server: shared memory, Unix socket, TCP, RDMA, none.
    pub transport: String,
    /// What the report has to say about how it does operations.
    pub notes: Vec<String>,
}

/// What a server used since it started.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// Which process that is, by its number or its start: another one after a restart.
    pub process: u64,
    /// User and system.
    pub cpu_seconds: f64,
    /// Memory now, shared memory included.
    pub resident_bytes: u64,
}

/// Counted by the client side; `None` where that has no meaning.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Messages whose answer was waited for, and READs but those over shared memory.
    pub round_trips: Option<u64>,
    /// Bytes both ways.
    pub bytes: Option<u64>,
    /// GETs, of which `one_sided` were answered without the server's CPU.
    pub gets: Option<u64>,
    /// See `gets`.
    pub one_sided: Option<u64>,
    /// One-sided READs.
    pub one_sided_reads: Option<u64>,
    /// Bytes of these.
    pub read_bytes: Option<u64>,
    /// GETs whose bucket was cached.
    pub cache_hits: Option<u64>,
    /// GETs that had to look again.
    pub retries: Option<u64>,
    /// Requests that the server answered.
    pub rpcs: Option<u64>,
    /// PUTs that were done without the server's CPU.
    pub one_sided_puts: Option<u64>,
    /// Round trips of these before they returned; over shared memory, compare-and-swaps.
    pub update_round_trips: Option<u64>,
    /// Compare-and-swaps of theirs that others were faster than.
    pub updates_lost: Option<u64>,
}

impl Counters {
    /// What was counted after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |after: Option<u64>, before: Option<u64>| {
            after.map(|after| after.saturating_sub(before.unwrap_or(0)))
        };
        Self {
            round_trips: less(self.round_trips, before.round_trips),
            bytes: less(self.bytes, before.bytes),
            gets: less(self.gets, before.gets),
            one_sided: less(self.one_sided, before.one_sided),
            one_sided_reads: less(self.one_sided_reads, before.one_sided_reads),
            read_bytes: less(self.read_bytes, before.read_bytes),
            cache_hits: less(self.cache_hits, before.cache_hits),
            retries: less(self.retries, before.retries),
            rpcs: less(self.rpcs, before.rpcs),
            one_sided_puts: less(self.one_sided_puts, before.one_sided_puts),
            update_round_trips: less(self.update_round_trips, before.update_round_trips),
            updates_lost: less(self.updates_lost, before.updates_lost),
        }
    }
}

/// How to open targets; most of it is for onesided.
#[derive(Clone, Debug)]
pub struct Options {
    /// Without it the URL decides.
    pub fabric: Option<FabricChoice>,
    /// Without it the URL decides.
    pub rdma: Option<Rdma>,
    /// Of this host.
    pub rdma_device: RdmaDevice,
    /// Table of onesided.
    pub table: String,
    /// GET into registered buffers and PUT from them.
    pub registered: bool,
    /// Bound of the bucket cache in bytes.
    pub cache_bytes: Option<usize>,
    /// Read the index ahead when a session is opened.
    pub prefill: bool,
    /// Sessions make room for records of this length.
    pub record_bytes: usize,
    /// How many records there will be.
    pub records: u64,
    /// Records are going to be scanned: a table that is made is ordered.
    pub ordered: bool,
    /// How entries are updated in a table that is made.
    pub update: UpdateMode,
    /// Values are going to be checked: an update of a part must not make a record of that part.
    pub verify: bool,
    /// For peers by RESP and memcached's protocol: the server's process, if it cannot be found.
    pub server_pid: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fabric: None,
            rdma: None,
            rdma_device: RdmaDevice::default(),
            table: "default".to_owned(),
            registered: false,
            cache_bytes: None,
            prefill: false,
            record_bytes: 1000,
            records: 1000,
            ordered: false,
            update: UpdateMode::Rpc,
            verify: false,
            server_pid: None,
        }
    }
}
