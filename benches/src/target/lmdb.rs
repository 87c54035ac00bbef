//! LMDB: a B-tree in a file that is mapped into this process.

#![allow(unsafe_code)]

use std::ops::Bound;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithTls};

use super::patch::{patch, write_at};
use super::{Counters, Description, Operation, Outcome, Session, Target, Usage};

/// Beside each record: key and tree.
const RECORD_OVERHEAD_BYTES: u64 = 128;
/// Smallest map; it is no memory, only what the file may grow to.
const MAP_MIN_BYTES: u64 = 1 << 30;

/// `lmdb://PATH[?sync=true&map_bytes=N]`.
pub(super) struct Lmdb {
    env: Env<WithTls>,
    database: Database<Bytes, Bytes>,
    path: PathBuf,
    sync: bool,
}

impl Lmdb {
    /// Opens, or makes, the directory of what follows the scheme, for so many records.
    pub(super) fn open(rest: &str, records: u64, record_bytes: usize) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() {
            bail!("lmdb://PATH needs the path of a directory");
        }
        // Pages are half full after splits, and old versions live on while they are read.
        let wanted = records.saturating_mul(record_bytes as u64 + RECORD_OVERHEAD_BYTES);
        let mut map_bytes = wanted.saturating_mul(3).max(MAP_MIN_BYTES);
        let mut sync = false;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sync", value)) => sync = value.parse().context("sync= true or false")?,
                Some(("map_bytes", value)) => {
                    map_bytes = value.parse().context("map_bytes= a number of bytes")?;
                }
                _ => bail!("`{pair}` is no option; there are `sync` and `map_bytes`"),
            }
        }
        let path = PathBuf::from(path);
        let (env, database) = open_directory(&path, map_bytes, sync)
            .with_context(|| format!("LMDB at {}", path.display()))?;
        Ok(Self { env, database, path, sync })
    }
}

/// Environment and database of a directory, which is made if it is not there; the one that it is in
/// has to be. Without `sync` the
/// system writes when it likes: what is measured is not the disk.
///
/// # Errors
/// When the directory cannot be made, or LMDB cannot open it.
pub fn open_directory(
    path: &Path,
    map_bytes: u64,
    sync: bool,
) -> Result<(Env<WithTls>, Database<Bytes, Bytes>)> {
    if !path.is_dir() {
        std::fs::create_dir(path)?;
    }
    let page = rustix::param::page_size() as u64;
    let map_bytes = map_bytes.next_multiple_of(page);
    let mut options = EnvOpenOptions::new();
    options.map_size(usize::try_from(map_bytes)?).max_readers(1024);
    if !sync {
        // SAFETY: unsafe is what these flags do to the data when the machine stops; they have no
        // say in memory.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC) };
    }
    // SAFETY: opening maps a file, which must be changed by LMDB alone while it is mapped. It is
    // kept by LMDB's lock, which is not switched off, and is a directory that the user gave for
    // this database; heed refuses to open it twice with different options.
    let env = unsafe { options.open(path) }?;
    let mut txn = env.write_txn()?;
    let database = env.create_database(&mut txn, None)?;
    txn.commit()?;
    Ok((env, database))
}

impl Target for Lmdb {
    fn name(&self) -> String {
        "lmdb".to_owned()
    }

    fn describe(&self) -> Result<Description> {
        let disk = match self.sync {
            true => "each commit is on the disk",
            false => "the system writes to the disk when it likes (NO_SYNC)",
        };
        let notes = vec![
            format!("in {}; {disk}", self.path.display()),
            "each call is a transaction, with all operations of its batch".to_owned(),
            "times to live are ignored".to_owned(),
        ];
        Ok(Description {
            version: heed::lmdb_version().string.to_owned(),
            transport: "none".to_owned(),
            notes,
            ..Description::default()
        })
    }

    fn session(&self, _client: usize) -> Result<Box<dyn Session>> {
        Ok(Box::new(LmdbSession {
            env: self.env.clone(),
            database: self.database,
            record: Vec::new(),
        }))
    }

    fn usage(&self) -> Result<Option<Usage>> {
        Ok(None)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn clear(&self) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        self.database.clear(&mut txn)?;
        Ok(txn.commit()?)
    }
}

struct LmdbSession {
    env: Env<WithTls>,
    database: Database<Bytes, Bytes>,
    record: Vec<u8>,
}

impl Session for LmdbSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        let reads =
            |op: &Operation<'_>| matches!(op, Operation::Read { .. } | Operation::Scan { .. });
        if batch.iter().all(reads) {
            let txn = self.env.read_txn()?;
            for (place, operation) in batch.iter().enumerate() {
                self.read(&txn, place, operation, answer)?;
            }
            return Ok(());
        }
        let mut txn = self.env.write_txn()?;
        let mut written = Vec::with_capacity(batch.len());
        for (place, operation) in batch.iter().enumerate() {
            if reads(operation) {
                self.read(&txn, place, operation, answer)?;
            } else {
                let outcome = write(self.database, &mut self.record, &mut txn, operation);
                written.push((place, outcome));
            }
        }
        txn.commit().context("commit")?;
        for (place, outcome) in written {
            match outcome {
                Ok(true) => answer(place, Outcome::Done),
                Ok(false) => answer(place, Outcome::Absent),
                Err(error) => answer(place, Outcome::Failed(&format!("{error:#}"))),
            }
        }
        Ok(())
    }
}

impl LmdbSession {
    fn read(
        &self,
        txn: &RoTxn<'_>,
        place: usize,
        operation: &Operation<'_>,
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        match *operation {
            Operation::Read { key } => match self.database.get(txn, key) {
                Ok(Some(value)) => answer(place, Outcome::Found(value)),
                Ok(None) => answer(place, Outcome::Absent),
                Err(error) => answer(place, Outcome::Failed(&error.to_string())),
            },
            Operation::Scan { from, limit } => {
                let mut records = 0;
                let range = (Bound::Included(from), Bound::<&[u8]>::Unbounded);
                for pair in self.database.range(txn, &range)?.take(limit) {
                    let (key, value) = pair?;
                    answer(place, Outcome::Record { key, value });
                    records += 1;
                }
                answer(place, Outcome::Scanned(records));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the record was there, if it had to be.
fn write(
    database: Database<Bytes, Bytes>,
    record: &mut Vec<u8>,
    txn: &mut heed::RwTxn<'_>,
    operation: &Operation<'_>,
) -> Result<bool> {
    match *operation {
        Operation::Insert { key, value, .. }
        | Operation::Update { key, bytes: value, whole: true, .. } => {
            database.put(txn, key, value).map_err(full)?;
            Ok(true)
        }
        Operation::Update { key, .. } | Operation::Replace { key, .. } => {
            let Some(old) = database.get(txn, key)? else { return Ok(false) };
            match *operation {
                Operation::Update { offset, bytes, .. } => {
                    record.clear();
                    record.extend_from_slice(old);
                    write_at(record, offset, bytes);
                }
                _ => patch(operation, old, record)?,
            }
            database.put(txn, key, record).map_err(full)?;
            Ok(true)
        }
        Operation::Delete { key } => Ok(database.delete(txn, key)?),
        Operation::Read { .. } | Operation::Scan { .. } => Ok(true),
    }
}

fn full(error: heed::Error) -> anyhow::Error {
    match error {
        heed::Error::Mdb(heed::MdbError::MapFull) => anyhow!("the map is full: ?map_bytes=N"),
        error => error.into(),
    }
}
