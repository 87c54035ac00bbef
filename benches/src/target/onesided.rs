//! onesided, over whatever fabric.

use std::collections::HashMap;

use anyhow::{Result, bail};
use onesided::blocking::{Client, Table};
use onesided::{
    BatchOp, BatchReply, Error, Expect, FabricKind, PutOptions, RegisteredBuffer, TableOptions,
    TableStatus, Ttl, UpdateMode, Value,
};
use parking_lot::Mutex;

use super::patch::patch;
use super::{Counters, Description, Operation, Options, Outcome, Session, Target, Usage};

/// Patient: what is measured may be slow to start.
const CONNECT_TIMEOUT_MS: u64 = 10_000;
/// Conditional writes in a row that others may get ahead of.
const ATTEMPTS: usize = 1000;

/// `onesided://HOST[:PORT][?fabric=NAME&rdma=POLICY&zero_copy_bytes=N]`.
pub(super) struct Onesided {
    url: String,
    options: Options,
    /// By number, also those that have no sessions any more: they have counted.
    clients: Mutex<HashMap<usize, Client>>,
}

impl Onesided {
    /// Connects once, so that a missing server is known at once.
    pub(super) fn open(url: &str, options: &Options) -> Result<Self> {
        let (url, options) = (url.to_owned(), options.clone());
        let onesided = Self { url, options, clients: Mutex::default() };
        onesided.client(0)?;
        Ok(onesided)
    }

    fn client(&self, number: usize) -> Result<Client> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(&number) {
            return Ok(client.clone());
        }
        let options = &self.options;
        let mut builder = onesided::Client::builder()
            .url(&self.url)
            .rdma_device(options.rdma_device.clone())
            .prefill(options.prefill)
            .connect_timeout_ms(CONNECT_TIMEOUT_MS);
        if let Some(fabric) = options.fabric {
            builder = builder.fabric(fabric);
        }
        if let Some(rdma) = options.rdma {
            builder = builder.rdma(rdma);
        }
        if let Some(bytes) = options.cache_bytes {
            builder = builder.cache_bytes(bytes);
        }
        let client = builder.connect_blocking()?;
        clients.insert(number, client.clone());
        Ok(client)
    }

    /// The table, made if it is not there.
    fn table(&self, client: &Client) -> Result<Table> {
        let name = &self.options.table;
        match client.table(name) {
            Err(Error::NoSuchTable(_)) => {
                let Options { ordered, update, .. } = self.options;
                let options = TableOptions { ordered, update, ..TableOptions::default() };
                Ok(client.create_table(name, options)?)
            }
            table => Ok(table?),
        }
    }
}

impl Onesided {
    /// Why no update is one-sided, though that was asked for.
    fn why_by_rpc(&self, client: &Client) -> Result<Option<String>> {
        let name = &self.options.table;
        if client.fabric() == FabricKind::Tcp {
            return Ok(Some("--update cas: over tcp every update is an RPC".to_owned()));
        }
        let tables = client.tables()?;
        let by_rpc = |table: &&TableStatus| table.options.update == UpdateMode::Rpc;
        let table = tables.iter().find(|table| table.name == *name).filter(by_rpc);
        Ok(table.map(|_| format!("--update cas: table `{name}` was made with update=rpc")))
    }
}

/// The value of one of the server's figures.
fn figure(stats: &[(String, u64)], wanted: &str) -> Option<u64> {
    stats.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value)
}

/// What the server uses. Nothing if a program embeds it: what that uses is not the server's.
fn used(stats: &[(String, u64)]) -> Option<Usage> {
    Some(Usage {
        process: figure(stats, "start_unix_ms")?,
        cpu_seconds: figure(stats, "process_cpu_ns")? as f64 / 1e9,
        resident_bytes: figure(stats, "process_resident_bytes")?,
    })
}

impl Target for Onesided {
    fn name(&self) -> String {
        let fabric = self.client(0).map(|client| client.fabric().to_string());
        format!("onesided {}", fabric.unwrap_or_default())
    }

    fn describe(&self) -> Result<Description> {
        let client = self.client(0)?;
        let transport = match client.fabric() {
            FabricKind::Shm => "shared memory",
            FabricKind::Verbs => "RDMA",
            _ => "TCP",
        };
        let mut notes = vec![format!("table `{}`", self.options.table)];
        notes.extend(client.stats().fallback.map(|why| format!("no better fabric: {why}")));
        if self.options.registered {
            notes.push("single GETs into registered buffers, single PUTs from them".to_owned());
        }
        if self.options.update == UpdateMode::Cas {
            notes.extend(self.why_by_rpc(&client)?);
        }
        Ok(Description {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fabric: client.fabric().to_string(),
            transport: transport.to_owned(),
            notes,
        })
    }

    fn session(&self, client: usize) -> Result<Box<dyn Session>> {
        let table = self.table(&self.client(client)?)?;
        let lent = self.options.registered.then(|| table.buffer(self.options.record_bytes));
        Ok(Box::new(OnesidedSession { table, lent, value: Vec::new(), patched: Vec::new() }))
    }

    fn shares_clients(&self) -> bool {
        true
    }

    fn usage(&self) -> Result<Option<Usage>> {
        Ok(used(&self.client(0)?.server_stats()?))
    }

    fn counters(&self) -> Counters {
        let mut sum = [0; 12];
        for client in self.clients.lock().values() {
            let stats = client.stats();
            let rpcs = [
                stats.rpc_gets,
                stats.rpc_puts,
                stats.rpc_deletes,
                stats.rpc_appends,
                stats.rpc_writes_at,
                stats.rpc_increments,
                stats.rpc_touches,
                stats.rpc_scans,
            ];
            // READs over shared memory are loads: nobody is waited for.
            let is_remote = client.fabric() == FabricKind::Verbs;
            let one_sided = stats.round_trips + stats.update_round_trips;
            let figures = [
                if is_remote { one_sided } else { 0 } + stats.rpc_messages,
                stats.read_bytes + stats.rpc_bytes,
                stats.gets,
                stats.one_sided_hits + stats.one_sided_misses,
                stats.reads,
                stats.read_bytes,
                stats.cache_hits,
                stats.retries,
                rpcs.iter().sum(),
                stats.one_sided_puts,
                stats.update_round_trips,
                stats.updates_lost,
            ];
            sum.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
        }
        let sum = sum.map(Some);
        let [round_trips, bytes, gets, one_sided, one_sided_reads, read_bytes, ..] = sum;
        let [.., cache_hits, retries, rpcs, one_sided_puts, update_round_trips, updates_lost] = sum;
        Counters {
            round_trips,
            bytes,
            gets,
            one_sided,
            one_sided_reads,
            read_bytes,
            cache_hits,
            retries,
            rpcs,
            one_sided_puts,
            update_round_trips,
            updates_lost,
        }
    }

    fn clear(&self) -> Result<()> {
        let client = self.client(0)?;
        let name = &self.options.table;
        let tables = client.tables()?;
        let Some(table) = tables.iter().find(|table| table.name == *name) else { return Ok(()) };
        client.drop_table(name)?;
        let ordered = table.options.ordered || self.options.ordered;
        client.create_table(name, TableOptions { ordered, ..table.options })?;
        Ok(())
    }
}

struct OnesidedSession {
    table: Table,
    /// Comes back from each operation.
    lent: Option<RegisteredBuffer>,
    value: Vec<u8>,
    patched: Vec<u8>,
}

impl Session for OnesidedSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        if let [operation] = batch {
            return self.execute_one(0, operation, answer);
        }
        let mut done = 0;
        let mut ops = Vec::with_capacity(batch.len());
        for (place, operation) in batch.iter().enumerate() {
            if let Some(op) = batch_op(operation) {
                ops.push(op);
                continue;
            }
            self.execute_many(done, &ops, answer)?;
            ops.clear();
            done = place + 1;
            self.execute_one(place, operation, answer)?;
        }
        self.execute_many(done, &ops, answer)
    }
}

/// The operation as one of a batch; what takes several calls is none.
fn batch_op<'a>(operation: &Operation<'a>) -> Option<BatchOp<'a>> {
    Some(match *operation {
        Operation::Read { key } => BatchOp::Get { key },
        Operation::Insert { key, value, ttl_s } => {
            BatchOp::Put { key, value, options: put_options(ttl_s) }
        }
        Operation::Update { key, bytes, whole: true, .. } => {
            BatchOp::Put { key, value: bytes, options: PutOptions::default() }
        }
        Operation::Update { key, offset, bytes, whole: false } => {
            BatchOp::WriteAt { key, offset: offset as u64, bytes }
        }
        Operation::Delete { key } => BatchOp::Delete { key },
        Operation::Replace { .. } | Operation::Scan { .. } => return None,
    })
}

fn put_options(ttl_s: u32) -> PutOptions {
    let ttl = if ttl_s == 0 { Ttl::TableDefault } else { Ttl::Seconds(ttl_s) };
    PutOptions { ttl, ..PutOptions::default() }
}

/// Tells what came of an operation.
fn tell<T>(
    place: usize,
    result: Result<T, Error>,
    outcome: impl FnOnce(&T) -> Outcome<'_>,
    answer: &mut dyn FnMut(usize, Outcome<'_>),
) {
    match result {
        Ok(result) => answer(place, outcome(&result)),
        Err(error) => answer(place, Outcome::Failed(&error.to_string())),
    }
}

fn batch_outcome(reply: &BatchReply) -> Outcome<'_> {
    match reply {
        BatchReply::Value(value) => found_or_absent(value),
        BatchReply::Stored(_) => Outcome::Done,
        BatchReply::Written(version) => done_or_absent(version.is_some()),
        BatchReply::Deleted(was_there) => done_or_absent(*was_there),
    }
}

fn found_or_absent(value: &Option<Value>) -> Outcome<'_> {
    value.as_deref().map_or(Outcome::Absent, Outcome::Found)
}

fn done_or_absent(was_there: bool) -> Outcome<'static> {
    if was_there { Outcome::Done } else { Outcome::Absent }
}

impl OnesidedSession {
    /// Operations that lie together in the batch, from this place on.
    fn execute_many(
        &mut self,
        first: usize,
        ops: &[BatchOp<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        if ops.is_empty() {
            return Ok(());
        }
        for (index, result) in self.table.batch(ops).into_iter().enumerate() {
            tell(first + index, result, batch_outcome, answer);
        }
        Ok(())
    }

    fn execute_one(
        &mut self,
        place: usize,
        operation: &Operation<'_>,
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        match *operation {
            Operation::Read { key } => self.read(place, key, answer),
            Operation::Insert { key, value, ttl_s } => {
                let stored = self.put(key, value, put_options(ttl_s));
                tell(place, stored, |()| Outcome::Done, answer);
            }
            Operation::Update { key, bytes, whole: true, .. } => {
                let stored = self.put(key, bytes, PutOptions::default());
                tell(place, stored, |()| Outcome::Done, answer);
            }
            Operation::Update { key, offset, bytes, whole: false } => {
                let written = self.table.write_at(key, offset as u64, bytes);
                tell(place, written, |version| done_or_absent(version.is_some()), answer);
            }
            Operation::Replace { key, .. } => match self.replace(key, operation) {
                Ok(true) => answer(place, Outcome::Done),
                Ok(false) => answer(place, Outcome::Absent),
                Err(error) => answer(place, Outcome::Failed(&error.to_string())),
            },
            Operation::Scan { from, limit } => self.scan(place, from, limit, answer),
            Operation::Delete { key } => {
                let deleted = self.table.delete(key);
                tell(place, deleted, |was| done_or_absent(*was), answer);
            }
        }
        Ok(())
    }

    /// A table that was not made with the option `ordered` cannot be scanned.
    fn scan(
        &mut self,
        place: usize,
        from: &[u8],
        limit: usize,
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) {
        match self.table.scan(from, limit) {
            Ok(records) => {
                for (key, value) in &records {
                    answer(place, Outcome::Record { key, value });
                }
                answer(place, Outcome::Scanned(records.len()));
            }
            Err(Error::BadOption(_)) => answer(place, Outcome::Unsupported),
            Err(error) => answer(place, Outcome::Failed(&error.to_string())),
        }
    }

    fn read(&mut self, place: usize, key: &[u8], answer: &mut dyn FnMut(usize, Outcome<'_>)) {
        let Some(lent) = self.lent.take() else {
            return tell(place, self.table.get(key), found_or_absent, answer);
        };
        let (lent, found) = self.table.get_into_registered(key, lent);
        match found {
            Ok(Some(_)) => answer(place, Outcome::Found(&lent)),
            Ok(None) => answer(place, Outcome::Absent),
            Err(error) => answer(place, Outcome::Failed(&error.to_string())),
        }
        self.lent = Some(lent);
    }

    fn put(&mut self, key: &[u8], value: &[u8], options: PutOptions) -> Result<(), Error> {
        let Some(mut lent) = self.lent.take() else {
            return self.table.put_with(key, value, options).map(drop);
        };
        lent.set_len(value.len());
        lent.copy_from_slice(value);
        let (lent, stored) = self.table.put_from_with(key, lent, options);
        self.lent = Some(lent);
        stored.map(drop)
    }

    /// Read, replace, write if it is still the same; whether it was there.
    fn replace(&mut self, key: &[u8], operation: &Operation<'_>) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            let Some(meta) = self.table.get_into(key, &mut self.value)? else { return Ok(false) };
            patch(operation, &self.value, &mut self.patched)?;
            let expect = Expect::Version(meta.version);
            let options = PutOptions { expect, ..PutOptions::default() };
            match self.table.put_with(key, &self.patched, options) {
                Ok(_) => return Ok(true),
                Err(Error::Unexpected(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("others wrote the record {ATTEMPTS} times in between")
    }
}
