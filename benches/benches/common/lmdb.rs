//! LMDB with the same pairs.

use heed::types::Bytes;
use heed::{Database, Env, RoTxn, WithTls};
use onesided_bench::target::lmdb::open_directory;

use super::data;

/// A filled database in a directory of its own, removed when this is dropped.
pub struct Lmdb {
    env: Env<WithTls>,
    database: Database<Bytes, Bytes>,
    _directory: tempfile::TempDir,
}

impl Lmdb {
    /// Stores all pairs.
    pub fn filled(pairs: u64) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let (env, database) = open_directory(directory.path(), 4 << 30, true)?;
        let mut txn = env.write_txn()?;
        for index in 0..pairs {
            database.put(&mut txn, &data::key(index)[..], &data::value(index)[..])?;
        }
        txn.commit()?;
        Ok(Self { env, database, _directory: directory })
    }

    /// A read transaction.
    pub fn read(&self) -> heed::Result<RoTxn<'_, WithTls>> {
        self.env.read_txn()
    }

    /// The value, copied.
    pub fn get(&self, txn: &RoTxn<'_, WithTls>, key: &[u8]) -> heed::Result<Option<Vec<u8>>> {
        Ok(self.database.get(txn, key)?.map(<[u8]>::to_vec))
    }
}
