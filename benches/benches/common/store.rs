//! A server of its own with all pairs in it, and clients of it.

use anyhow::Result;
use onesided::FabricChoice;
use onesided::blocking::{Client, Table};

use super::data::{self, KEY_BYTES, VALUE_BYTES};
use super::process::ServerProcess;

/// Pairs of one `put_many` while filling.
const FILL_BATCH: u64 = 512;

/// Server process, client and table. The client goes first when it is dropped.
pub struct Store {
    /// On the table `default`.
    pub table: Table,
    /// Whose table it is.
    pub client: Client,
    /// The server.
    pub server: ServerProcess,
}

impl Store {
    /// An empty one.
    pub fn empty(fabric: FabricChoice) -> Result<Self> {
        let server = ServerProcess::start()?;
        let (client, table) = connect(&server.url, fabric)?;
        Ok(Self { table, client, server })
    }

    /// One with all pairs, whose client then gets the index ahead.
    pub fn filled(pairs: u64) -> Result<Self> {
        let empty = Self::empty(FabricChoice::Shm)?;
        fill(&empty.table, 0..pairs)?;
        // A new client: its prefill sees the index as it is now.
        let (client, table) = connect(&empty.server.url, FabricChoice::Shm)?;
        Ok(Self { table, client, server: empty.server })
    }
}

/// A client of a server, with prefill.
pub fn connect(url: &str, fabric: FabricChoice) -> Result<(Client, Table)> {
    let builder = onesided::Client::builder().url(url).fabric(fabric).prefill(true);
    let client = builder.connect_blocking()?;
    let table = client.table("default")?;
    Ok((client, table))
}

/// Stores the pairs of these numbers.
pub fn fill(table: &Table, range: std::ops::Range<u64>) -> Result<()> {
    let mut from = range.start;
    while from < range.end {
        let to = range.end.min(from + FILL_BATCH);
        put_many(table, from..to)?;
        from = to;
    }
    Ok(())
}

/// One `put_many` of the pairs of these numbers.
pub fn put_many(table: &Table, numbers: impl Iterator<Item = u64>) -> Result<()> {
    let pairs: Vec<([u8; KEY_BYTES], [u8; VALUE_BYTES])> =
        numbers.map(|index| (data::key(index), data::value(index))).collect();
    let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    for result in table.put_many(&pairs) {
        result?;
    }
    Ok(())
}
