//! A table, and how operations on it outlive a connection.

mod open;

use std::cell::RefCell;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use onesided_fabric::{Buffer, Line};
use onesided_protocol::control::{Retired, TableInfo, ToClient, ToServer};
use onesided_protocol::rpc::{Expect, Op, Payload, Ttl};

use thread_local::ThreadLocal;

use crate::accesses::{Accesses, Sampler};
use crate::batch::{self, BatchOp, BatchReply};
use crate::client::LinkGuard;
use crate::core::{Begun, Connection, Deadline, TimedOut};
use crate::error::Error;
use crate::link::Link;
use crate::options::PutOptions;
use crate::range::KeyRange;
use crate::read;
use crate::registered::RegisteredBuffer;
use crate::retire::Retirement;
use crate::rpc;
use crate::stats::{Counter, Shard};
use crate::update;
use crate::value::{Meta, Value, Version};

pub(crate) use open::OpenTable;

/// What one thread has of a table, so that a GET looks in one place.
struct Seen {
    /// What it saw last in `current`; good as long as it is usable, since `current` changes only
    /// after that.
    open: Option<Arc<OpenTable>>,
    /// Its counters, and whether it looks at anything just now.
    shard: Arc<Shard>,
    own: Own,
}

/// What one thread has to itself.
pub(crate) struct Own {
    /// Its counters.
    pub(crate) shard: Arc<Shard>,
    /// Where an entry is READ to whose value is wanted elsewhere.
    pub(crate) scratch: Vec<Line>,
    /// The same where a device READs it; short.
    pub(crate) landing: Buffer,
    /// What it tells the server of its reads.
    pub(crate) sampler: Sampler,
}

/// A table by name, on whatever connection there is.
pub(crate) struct TableHandle {
    name: String,
    link: Arc<Link>,
    current: ArcSwapOption<OpenTable>,
    seen: ThreadLocal<RefCell<Seen>>,
    accesses: Arc<Accesses>,
    opening: tokio::sync::Mutex<()>,
}

impl TableHandle {
    /// Calls `then` with what the current connection knows, if it is usable. Cheap enough for
    /// every GET: no lock, no count, no fence.
    #[inline(always)]
    pub(crate) fn with_now<T>(
        &self,
        then: impl FnOnce(&OpenTable, &mut Own) -> Option<T>,
    ) -> Option<T> {
        let seen = self.seen.get_or(|| RefCell::new(self.first_look()));
        let Seen { open, shard, own } = &mut *seen.try_borrow_mut().ok()?;
        // In none yet: the cell is not borrowed.
        let _look = shard.look();
        if !open.as_ref().is_some_and(|open| open.is_usable()) {
            *open = self.usable();
            own.sampler.set_told_every(open.as_ref().map_or(0, |open| open.sample_every()));
        }
        then(open.as_ref()?, own)
    }

    #[cold]
    fn first_look(&self) -> Seen {
        let shard = Arc::clone(self.accesses.counts().shard());
        let sampler = Sampler::new(&self.accesses);
        Seen {
            open: None,
            shard: Arc::clone(&shard),
            own: Own { shard, scratch: Vec::new(), landing: Buffer::default(), sampler },
        }
    }

    #[cold]
    fn usable(&self) -> Option<Arc<OpenTable>> {
        self.current.load_full().filter(|open| open.is_usable())
    }

    /// The table on a live connection, opened (again) if need be.
    pub(crate) async fn open(&self, by: Deadline) -> Result<Arc<OpenTable>, Error> {
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let ticker = &self.link.shared().ticker;
        let turn = ticker.timed(by, self.opening.lock()).await;
        let _turn = turn.map_err(|TimedOut| Error::TimedOut { what: by.what, after: by.after })?;
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let name = self.name.clone();
        // Until the link knows of it, so that it can be told that the table was dropped.
        let _begun = self.link.shared().operations.begin();
        let catalog_epoch = self.link.catalog_epoch();
        let (answer, connection) = self.link.ask(ToServer::OpenTable { name }, by).await?;
        let ToClient::Table(info) = answer else {
            return Err(Error::BadAnswer("the answer to opening a table is none"));
        };
        self.accesses.set_table(info.id);
        let before = self.current.load_full();
        let before = before.as_deref();
        let open = Arc::new(OpenTable::new(connection, info, self.accesses.counts(), before));
        self.link.opened(&open);
        if self.link.catalog_epoch() != catalog_epoch {
            // Its options may have changed since, and it was not there to learn that.
            open.mark_stale();
        }
        self.current.store(Some(Arc::clone(&open)));
        Ok(open)
    }

    /// Whether PUTs of keys that are there may do without the server.
    #[inline]
    fn is_updated_one_sidedly(&self) -> bool {
        self.current.load().as_ref().is_some_and(|open| open.updates.is_some())
    }

    /// An operation that READs begins, and is over when what is returned is dropped. What it looks
    /// at must be usable after this call.
    pub(crate) fn begin(&self) -> Arc<Begun> {
        self.link.shared().operations.begin()
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn deadline(&self, what: &'static str) -> Deadline {
        Deadline::after(what, self.link.shared().options.operation_timeout)
    }

    pub(crate) fn count(&self, counter: Counter, n: usize) {
        self.accesses.counts().add(counter, n as u64);
    }
}

/// A table. Cloning is cheap; all clones share one bucket cache.
#[derive(Clone)]
pub struct Table {
    pub(crate) handle: Arc<TableHandle>,
    _guard: Arc<LinkGuard>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("name", &self.handle.name).finish_non_exhaustive()
    }
}

impl Table {
    pub(crate) fn new(name: &str, guard: &Arc<LinkGuard>) -> Self {
        let handle = TableHandle {
            name: name.to_owned(),
            link: Arc::clone(guard.link()),
            current: ArcSwapOption::empty(),
            seen: ThreadLocal::new(),
            accesses: Accesses::new(guard.link()),
            opening: tokio::sync::Mutex::new(()),
        };
        Self { handle: Arc::new(handle), _guard: Arc::clone(guard) }
    }

    /// A table on a connection without threads, for simulations.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn from_parts(
        connection: &Arc<Connection>,
        name: &str,
        info: TableInfo,
    ) -> Result<Self, Error> {
        let guard = LinkGuard::fixed(connection)?;
        let table = Self::new(name, &guard);
        let counts = table.handle.accesses.counts();
        let open = Arc::new(OpenTable::new(Arc::clone(connection), info, counts, None));
        table.handle.link.opened(&open);
        table.handle.current.store(Some(open));
        Ok(table)
    }

    /// The connection after the one before, for simulations, as [`Self::from_parts`]: calls that
    /// wait for one go on. To be called again while it is the newest one: it answers calls that
    /// have come to wait since.
    pub fn go_on(&self, connection: &Arc<Connection>, info: &TableInfo) {
        let link = self.handle.link();
        if !link.current().is_some_and(|current| Arc::ptr_eq(&current, connection)) {
            link.install(Arc::clone(connection));
        }
        while let Some(job) = link.next_job() {
            let table = ToClient::Table(info.clone());
            // Whoever asked may have gone.
            let _gone = job.answer.send(Ok((table, Arc::clone(connection))));
        }
    }

    /// The server has retired memory: for simulations, as [`Self::from_parts`]. What is returned
    /// says when that may be acknowledged.
    #[must_use]
    pub fn retire(
        &self,
        connection: &Arc<Connection>,
        epoch: u64,
        retired: Vec<Retired>,
    ) -> Retirement {
        Retirement::begin(self.handle.link(), connection, epoch, retired)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// The value of `key`, or `None`. On a one-sided fabric the server's CPU takes no part.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] and [`Error::TimedOut`], and [`Error::NoSuchTable`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        read::get(&self.handle, key.as_ref()).await
    }

    /// As [`Self::get`], into the caller's buffer, which can be used again and again: what it held
    /// is replaced, also where there is no value; then it is left empty.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        into: &mut Vec<u8>,
    ) -> Result<Option<Meta>, Error> {
        read::get_into(&self.handle, key.as_ref(), into).await
    }

    /// A buffer for [`Self::get_into_registered`] and [`Self::put_from`], empty, with room for
    /// `capacity_bytes` at least. It is registered at its first use; [`crate::Client::register`]
    /// does so at once.
    #[must_use]
    pub fn buffer(&self, capacity_bytes: usize) -> RegisteredBuffer {
        RegisteredBuffer { buffer: self.handle.link.shared().lendable(capacity_bytes) }
    }

    /// As [`Self::get`], into a buffer that a device can write into: a large value goes straight
    /// from the server's memory to where the caller wants it. The buffer comes back with the
    /// answer, its length that of the value; without a value it is empty.
    ///
    /// It is given by value since a READ owns it until the device has completed it. If this future
    /// is dropped before, the buffer is lost to the caller and goes back to the client's memory
    /// when it is safe. After an error of the connection it may be another one of the same length.
    ///
    /// # Errors
    /// As [`Self::get`]; [`Error::BufferTooSmall`] says how long a buffer the value needs.
    pub async fn get_into_registered(
        &self,
        key: impl AsRef<[u8]>,
        into: RegisteredBuffer,
    ) -> (RegisteredBuffer, Result<Option<Meta>, Error>) {
        read::get_into_registered(&self.handle, key.as_ref(), into).await
    }

    /// The values of `keys`, in their order. The READs of all keys go behind one doorbell.
    ///
    /// # Errors
    /// As [`Self::get`]; one failure fails all.
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, Error> {
        read::get_many(&self.handle, keys).await
    }

    /// All keys, by READing the whole index: a key that is there during the whole call is in the
    /// result, one that comes or goes meanwhile may be. For backups and `dump`; needs a fabric
    /// with one-sided READs.
    ///
    /// # Errors
    /// [`Error::Fabric`] where there are none, and as [`Self::get`].
    pub async fn keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        read::keys(&self.handle).await
    }

    /// Of an ordered table the first `limit` pairs of key and value from the key `from` on, in the
    /// order of the keys' bytes. Fewer: there are no others. The server gives keys, page by page;
    /// on a one-sided fabric its CPU takes no part in reading the values.
    ///
    /// A key that is there during the whole call is in the result, exactly once; one that comes
    /// or goes meanwhile may be. Each value was current at some moment of the call, and all
    /// together at none: others may write meanwhile. Pairs of one call are in memory together:
    /// [`Self::scan_range`] goes on behind the last key. A scan is no use of its keys for tables
    /// that evict.
    ///
    /// # Errors
    /// [`Error::BadOption`] if the table is not ordered; as [`Self::get`].
    pub async fn scan(
        &self,
        from: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        self.scan_range(&KeyRange::all().from(from), limit).await
    }

    /// As [`Self::scan`], the keys that begin with `prefix`.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub async fn scan_prefix(
        &self,
        prefix: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        self.scan_range(&KeyRange::prefix(prefix), limit).await
    }

    /// As [`Self::scan`], the keys of a range.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub async fn scan_range(
        &self,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        read::scan(&self.handle, range, limit).await
    }

    /// Stores a value; returns its version.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`]; [`Error::OutcomeUnknown`] when it may have been
    /// stored, and the others when it was not.
    pub async fn put(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Version, Error> {
        self.put_with(key, value, PutOptions::default()).await
    }

    /// As [`Self::put`], with options.
    ///
    /// # Errors
    /// As [`Self::put`], and [`Error::Unexpected`] when `options.expect` was not met.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: PutOptions,
    ) -> Result<Version, Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        if self.handle.is_updated_one_sidedly()
            && let Some(version) = update::put(&self.handle, key, value, options).await?
        {
            return Ok(version);
        }
        self.handle.count(Counter::RpcPuts, 1);
        let PutOptions { ttl, user_flags, expect } = options;
        let value = Payload::Inline(value);
        let op = Op::Put { key, value, expect, ttl, user_flags };
        rpc::call(&self.handle, "put", &op, rpc::version).await
    }

    /// Stores what a buffer holds and gives it back with the answer. Over RDMA, and from
    /// `zero_copy_bytes` on, the server fetches it from the buffer itself: nothing is copied on
    /// this side.
    ///
    /// It is given by value since the server may READ it until it has answered. If this future is
    /// dropped before, the buffer is lost to the caller and goes back to the client's memory when
    /// it is safe. After [`Error::TimedOut`] and [`Error::OutcomeUnknown`] it may be another one of
    /// the same length, empty.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn put_from(
        &self,
        key: impl AsRef<[u8]>,
        value: RegisteredBuffer,
    ) -> (RegisteredBuffer, Result<Version, Error>) {
        self.put_from_with(key, value, PutOptions::default()).await
    }

    /// As [`Self::put_from`], with options.
    ///
    /// # Errors
    /// As [`Self::put_with`].
    pub async fn put_from_with(
        &self,
        key: impl AsRef<[u8]>,
        value: RegisteredBuffer,
        options: PutOptions,
    ) -> (RegisteredBuffer, Result<Version, Error>) {
        rpc::put_from(&self.handle, key.as_ref(), value, options).await
    }

    /// Stores many values, pipelined behind one doorbell; one result for each, in order. They are
    /// not atomic together.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<Version, Error>> {
        self.handle.count(Counter::RpcPuts, pairs.len());
        let ops: Vec<Op<'_>> = pairs.iter().map(|(k, v)| rpc::plain_put(k, v)).collect();
        rpc::call_many(&self.handle, "put_many", ops, rpc::version).await
    }

    /// Performs operations of several kinds in as few round trips as can be; one result for each,
    /// in order. Those on one key are done in their order, others in any. They are not atomic
    /// together. [`Error::OutcomeUnknown`] to a GET: what it gave was lost, and an operation behind
    /// it may have written its key.
    pub async fn batch(&self, ops: &[BatchOp<'_>]) -> Vec<Result<BatchReply, Error>> {
        batch::batch(&self.handle, ops).await
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.delete_with(key, Expect::Any).await
    }

    /// Removes a key if `expect` is met; whether it was there.
    ///
    /// # Errors
    /// As [`Self::put`], and [`Error::Unexpected`].
    pub async fn delete_with(&self, key: impl AsRef<[u8]>, expect: Expect) -> Result<bool, Error> {
        self.handle.count(Counter::RpcDeletes, 1);
        let op = Op::Delete { key: key.as_ref(), expect };
        rpc::call(&self.handle, "delete", &op, rpc::deleted).await
    }

    /// Adds bytes to the end of a value, an absent one being empty; returns the new version.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn append(
        &self,
        key: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<Version, Error> {
        self.handle.count(Counter::RpcAppends, 1);
        let op = Op::Append { key: key.as_ref(), value: Payload::Inline(bytes.as_ref()) };
        rpc::call(&self.handle, "append", &op, rpc::version).await
    }

    /// Replaces bytes of a value from `offset` (in bytes) on; returns the new version. A shorter
    /// value grows, a gap is filled with zeros; no bytes change nothing but the version. Time to
    /// live and user flags stay. `None`: there is no such key, and none was made.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::TooLarge`] when the value would grow beyond the server's limit.
    pub async fn write_at(
        &self,
        key: impl AsRef<[u8]>,
        offset: u64,
        bytes: impl AsRef<[u8]>,
    ) -> Result<Option<Version>, Error> {
        self.handle.count(Counter::RpcWritesAt, 1);
        let (key, value) = (key.as_ref(), Payload::Inline(bytes.as_ref()));
        let op = Op::WriteAt { key, offset_bytes: offset, value };
        rpc::call(&self.handle, "write_at", &op, rpc::version_if_present).await
    }

    /// Adds to a decimal number, an absent one being 0; returns what it is now.
    ///
    /// # Errors
    /// As [`Self::put`], and [`Error::WrongType`].
    pub async fn increment(&self, key: impl AsRef<[u8]>, by: i64) -> Result<i64, Error> {
        self.handle.count(Counter::RpcIncrements, 1);
        let op = Op::Increment { key: key.as_ref(), by };
        rpc::call(&self.handle, "increment", &op, rpc::number).await
    }

    /// The counter of a key. Nothing is asked before its first use; any number of clients may
    /// have it.
    #[must_use]
    pub fn counter(&self, key: impl AsRef<[u8]>) -> crate::Counter {
        crate::Counter::new(self.clone(), key.as_ref())
    }

    /// Gives a key another time to live; whether it was there.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn touch(&self, key: impl AsRef<[u8]>, ttl: Ttl) -> Result<bool, Error> {
        self.handle.count(Counter::RpcTouches, 1);
        let op = Op::Touch { key: key.as_ref(), ttl };
        rpc::call(&self.handle, "touch", &op, rpc::touched).await
    }
}
