//! The same API for threads without a runtime: the calling thread waits for its answer itself.

use std::time::Duration;

use onesided_fabric::FabricKind;
use onesided_protocol::control::{FabricOffer, TableOptions, TableStatus};
use onesided_protocol::rpc::{Expect, Ttl};

use crate::batch::{BatchOp, BatchReply};
use crate::core::{Deadline, block_on};
use crate::error::Error;
use crate::link::Link;
use crate::options::{ClientBuilder, PutOptions};
use crate::range::KeyRange;
use crate::read;
use crate::registered::RegisteredBuffer;
use crate::stats::Stats;
use crate::value::{Meta, Value, Version};

fn run<F: Future>(link: &Link, future: F) -> F::Output {
    block_on(|| link.current(), future)
}

impl ClientBuilder {
    /// Connects, blocking.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn connect_blocking(self) -> Result<Client, Error> {
        let (url, options) = self.into_parts()?;
        Ok(Client { inner: crate::Client::connect_now(&url, options)? })
    }
}

/// As [`crate::Client`], blocking.
#[derive(Clone, Debug)]
pub struct Client {
    inner: crate::Client,
}

impl Client {
    /// As [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).connect_blocking()
    }

    /// A builder, for options; its end is [`ClientBuilder::connect_blocking`].
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Ends the client, its clones and tables, and waits for the server to hear of it, 200 ms at
    /// most. A program that ends without this may leave a session behind that the server keeps
    /// until its lease is over.
    pub fn close(self) {
        self.inner.close_now();
    }

    /// As [`crate::Client::table`].
    ///
    /// # Errors
    /// As there.
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        Ok(Table { inner: run(self.inner.link(), self.inner.table(name))? })
    }

    /// As [`crate::Client::tables`].
    ///
    /// # Errors
    /// As there.
    pub fn tables(&self) -> Result<Vec<TableStatus>, Error> {
        run(self.inner.link(), self.inner.tables())
    }

    /// As [`crate::Client::create_table`].
    ///
    /// # Errors
    /// As there.
    pub fn create_table(&self, name: &str, options: TableOptions) -> Result<Table, Error> {
        Ok(Table { inner: run(self.inner.link(), self.inner.create_table(name, options))? })
    }

    /// As [`crate::Client::alter_table`].
    ///
    /// # Errors
    /// As there.
    pub fn alter_table(&self, name: &str, options: TableOptions) -> Result<(), Error> {
        run(self.inner.link(), self.inner.alter_table(name, options))
    }

    /// As [`crate::Client::drop_table`].
    ///
    /// # Errors
    /// As there.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        run(self.inner.link(), self.inner.drop_table(name))
    }

    /// As [`crate::Client::server_stats`].
    ///
    /// # Errors
    /// As there.
    pub fn server_stats(&self) -> Result<Vec<(String, u64)>, Error> {
        run(self.inner.link(), self.inner.server_stats())
    }

    /// As [`crate::Client::register`].
    ///
    /// # Errors
    /// As there.
    pub fn register(&self, capacity_bytes: usize) -> Result<RegisteredBuffer, Error> {
        run(self.inner.link(), self.inner.register(capacity_bytes))
    }

    /// As [`crate::Client::ping`].
    ///
    /// # Errors
    /// As there.
    pub fn ping(&self) -> Result<Duration, Error> {
        run(self.inner.link(), self.inner.ping())
    }

    /// As [`crate::Client::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// As [`crate::Client::fabric`].
    #[must_use]
    pub fn fabric(&self) -> FabricKind {
        self.inner.fabric()
    }

    /// As [`crate::Client::offers`].
    #[must_use]
    pub fn offers(&self) -> Vec<FabricOffer> {
        self.inner.offers()
    }

    /// The asynchronous client, on the same session.
    #[must_use]
    pub fn as_async(&self) -> &crate::Client {
        &self.inner
    }
}

/// As [`crate::Table`], blocking.
#[derive(Clone, Debug)]
pub struct Table {
    inner: crate::Table,
}

impl Table {
    fn run<F: Future>(&self, future: F) -> F::Output {
        run(self.inner.handle.link(), future)
    }

    /// As [`crate::Table::name`].
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::Table::get`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        let mut by = None;
        match self.get_now(&key, &mut by) {
            Some(value) => Ok(Some(value)),
            None => self.get_slowly(key.as_ref(), by),
        }
    }

    /// The first look, once for each type of keys: the length of a key is part of some.
    #[inline(never)]
    fn get_now(&self, key: &impl AsRef<[u8]>, by: &mut Option<Deadline>) -> Option<Value> {
        read::get_waiting(&self.inner.handle, key, by)
    }

    /// [`Self::get`] after the first look.
    #[inline(never)]
    fn get_slowly(&self, key: &[u8], by: Option<Deadline>) -> Result<Option<Value>, Error> {
        self.run(read::get_slowly(&self.inner.handle, key, read::Waited::Until(by)))
    }

    /// As [`crate::Table::get_into`].
    ///
    /// # Errors
    /// As there.
    pub fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        into: &mut Vec<u8>,
    ) -> Result<Option<Meta>, Error> {
        let key = key.as_ref();
        match read::get_into_now(&self.inner.handle, key, into) {
            Some(meta) => Ok(Some(meta)),
            None => self.run(self.inner.get_into(key, into)),
        }
    }

    /// As [`crate::Table::buffer`].
    #[must_use]
    pub fn buffer(&self, capacity_bytes: usize) -> RegisteredBuffer {
        self.inner.buffer(capacity_bytes)
    }

    /// As [`crate::Table::get_into_registered`].
    ///
    /// # Errors
    /// As there.
    pub fn get_into_registered(
        &self,
        key: impl AsRef<[u8]>,
        into: RegisteredBuffer,
    ) -> (RegisteredBuffer, Result<Option<Meta>, Error>) {
        self.run(self.inner.get_into_registered(key, into))
    }

    /// As [`crate::Table::get_many`].
    ///
    /// # Errors
    /// As there.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, Error> {
        match read::get_many_now(&self.inner.handle, keys) {
            Some((values, 0)) => Ok(values),
            now => self.run(read::get_many_after(&self.inner.handle, keys, now)),
        }
    }

    /// As [`crate::Table::keys`].
    ///
    /// # Errors
    /// As there.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.run(self.inner.keys())
    }

    /// As [`crate::Table::scan`].
    ///
    /// # Errors
    /// As there.
    pub fn scan(
        &self,
        from: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        self.run(self.inner.scan(from, limit))
    }

    /// As [`crate::Table::scan_prefix`].
    ///
    /// # Errors
    /// As there.
    pub fn scan_prefix(
        &self,
        prefix: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        self.run(self.inner.scan_prefix(prefix, limit))
    }

    /// As [`crate::Table::scan_range`].
    ///
    /// # Errors
    /// As there.
    pub fn scan_range(
        &self,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        self.run(self.inner.scan_range(range, limit))
    }

    /// As [`crate::Table::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Version, Error> {
        self.run(self.inner.put(key, value))
    }

    /// As [`crate::Table::put_with`].
    ///
    /// # Errors
    /// As there.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: PutOptions,
    ) -> Result<Version, Error> {
        self.run(self.inner.put_with(key, value, options))
    }

    /// As [`crate::Table::put_from`].
    ///
    /// # Errors
    /// As there.
    pub fn put_from(
        &self,
        key: impl AsRef<[u8]>,
        value: RegisteredBuffer,
    ) -> (RegisteredBuffer, Result<Version, Error>) {
        self.run(self.inner.put_from(key, value))
    }

    /// As [`crate::Table::put_from_with`].
    ///
    /// # Errors
    /// As there.
    pub fn put_from_with(
        &self,
        key: impl AsRef<[u8]>,
        value: RegisteredBuffer,
        options: PutOptions,
    ) -> (RegisteredBuffer, Result<Version, Error>) {
        self.run(self.inner.put_from_with(key, value, options))
    }

    /// As [`crate::Table::put_many`].
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<Version, Error>> {
        self.run(self.inner.put_many(pairs))
    }

    /// As [`crate::Table::batch`].
    pub fn batch(&self, ops: &[BatchOp<'_>]) -> Vec<Result<BatchReply, Error>> {
        self.run(self.inner.batch(ops))
    }

    /// As [`crate::Table::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.run(self.inner.delete(key))
    }

    /// As [`crate::Table::delete_with`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, expect: Expect) -> Result<bool, Error> {
        self.run(self.inner.delete_with(key, expect))
    }

    /// As [`crate::Table::append`].
    ///
    /// # Errors
    /// As there.
    pub fn append(&self, key: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> Result<Version, Error> {
        self.run(self.inner.append(key, bytes))
    }

    /// As [`crate::Table::write_at`].
    ///
    /// # Errors
    /// As there.
    pub fn write_at(
        &self,
        key: impl AsRef<[u8]>,
        offset: u64,
        bytes: impl AsRef<[u8]>,
    ) -> Result<Option<Version>, Error> {
        self.run(self.inner.write_at(key, offset, bytes))
    }

    /// As [`crate::Table::increment`].
    ///
    /// # Errors
    /// As there.
    pub fn increment(&self, key: impl AsRef<[u8]>, by: i64) -> Result<i64, Error> {
        self.run(self.inner.increment(key, by))
    }

    /// As [`crate::Table::counter`].
    #[must_use]
    pub fn counter(&self, key: impl AsRef<[u8]>) -> Counter {
        Counter { inner: self.inner.counter(key) }
    }

    /// As [`crate::Table::touch`].
    ///
    /// # Errors
    /// As there.
    pub fn touch(&self, key: impl AsRef<[u8]>, ttl: Ttl) -> Result<bool, Error> {
        self.run(self.inner.touch(key, ttl))
    }
}

/// As [`crate::Counter`], blocking.
#[derive(Debug)]
pub struct Counter {
    inner: crate::Counter,
}

impl Counter {
    /// As [`crate::Counter::MIN`].
    pub const MIN: i64 = crate::Counter::MIN;
    /// As [`crate::Counter::MAX`].
    pub const MAX: i64 = crate::Counter::MAX;

    fn run<F: Future>(&self, future: F) -> F::Output {
        run(self.inner.table().handle.link(), future)
    }

    /// As [`crate::Counter::key`].
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.inner.key()
    }

    /// As [`crate::Counter::fetch_add`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch_add(&self, by: i64) -> Result<i64, Error> {
        self.run(self.inner.fetch_add(by))
    }

    /// As [`crate::Counter::compare_and_swap`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_swap(&self, expected: i64, new: i64) -> Result<i64, Error> {
        self.run(self.inner.compare_and_swap(expected, new))
    }

    /// As [`crate::Counter::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self) -> Result<i64, Error> {
        match self.inner.read_now() {
            Some(number) => Ok(number),
            None => self.run(self.inner.read()),
        }
    }

    /// As [`crate::Counter::set`].
    ///
    /// # Errors
    /// As there.
    pub fn set(&self, to: i64) -> Result<(), Error> {
        self.run(self.inner.set(to))
    }
}
