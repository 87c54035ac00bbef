//! A store with a table that clients update, and a client that does so by writing memory.

use std::sync::Arc;

use onesided_fabric::Memory;
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::control::{TableInfo, TableOptions, UpdateMode};
use onesided_protocol::layout::entry::{EntryHeader, prefix_bytes};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::state::State;
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_server::engine::{Engine, EngineConfig, Table};

use crate::engine_support::{RawReader, engine};

pub(crate) const CAS: TableOptions =
    TableOptions { update: UpdateMode::Cas, ..TableOptions::DEFAULT };

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) table: Arc<Table>,
    pub(crate) info: TableInfo,
}

impl World {
    pub(crate) fn new(config: EngineConfig) -> Self {
        let (engine, _) = engine(config);
        let info = engine.create_table("t", CAS).expect("table");
        Self { table: engine.table(info.id).expect("by id"), engine, info }
    }

    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> u64 {
        self.table.put(key, value, Expect::Any, Ttl::Never, 0).expect("put")
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        let mut value = Vec::new();
        let stored = self.table.get(key, &mut value)?;
        Some((value, stored.version))
    }

    pub(crate) fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get(key).map(|(value, _)| value)
    }

    pub(crate) fn broken(&self) -> u64 {
        self.engine.cas_status().broken_keys
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.engine.list_tables().iter().map(|table| table.log_bytes).sum()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.engine.list_tables().iter().map(|table| table.live_bytes).sum()
    }

    /// What is told of the memory adds up.
    pub(crate) fn assert_sums(&self) {
        let status = self.engine.memory_status();
        let log_bytes = status.log_live_bytes + status.log_dead_bytes + status.log_free_bytes;
        assert_eq!(log_bytes, status.log_bytes, "{status:?}");
        let in_use = status.log_bytes + status.meta_bytes + status.cells_bytes;
        assert_eq!(in_use + status.free_bytes + status.retired_bytes, status.limit_bytes);
        for table in self.engine.list_tables() {
            let sum = table.live_bytes + table.dead_bytes + table.free_bytes;
            assert_eq!(sum, table.log_bytes, "{table:?}");
        }
    }

    pub(crate) fn slot_addr(&self, key: &[u8]) -> LogAddr {
        let reader = RawReader::open(&self.engine, "t").expect("in the catalog");
        reader.slots_of(key)[0].addr().expect("it points")
    }
}

/// A lease, and what a client does with it.
pub(crate) struct Writer<'a> {
    pub(crate) world: &'a World,
    pub(crate) session: u64,
    pub(crate) addr: LogAddr,
    pub(crate) len_bytes: usize,
    pub(crate) used_bytes: usize,
    pub(crate) sums: ChecksumKey,
}

/// A key's newest entry.
#[derive(Clone, Copy)]
pub(crate) struct Newest {
    pub(crate) addr: LogAddr,
    pub(crate) word: u64,
    pub(crate) version: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(world: &'a World, session: u64) -> Self {
        Self::try_new(world, session, 4096).expect("there is memory")
    }

    pub(crate) fn try_new(world: &'a World, session: u64, wanted_bytes: usize) -> Option<Self> {
        let leased = world.engine.lease(session, world.info.id, wanted_bytes);
        let (addr, len_bytes) = leased.ok()?;
        let sums = ChecksumKey::new(world.info.secret, None);
        Some(Self { world, session, addr, len_bytes, used_bytes: 0, sums })
    }

    pub(crate) fn memory(&self, addr: LogAddr) -> Arc<Memory> {
        self.world.engine.region(addr.region()).expect("a region")
    }

    pub(crate) fn word(&self, addr: LogAddr) -> u64 {
        self.memory(addr).load(addr.offset_bytes()).expect("inside")
    }

    pub(crate) fn header(&self, addr: LogAddr) -> EntryHeader {
        let mut words = [0; 3];
        self.memory(addr).read_words(addr.offset_bytes() + 8, &mut words).expect("inside");
        EntryHeader::from_words(words)
    }

    /// The key's newest entry, from its slot on.
    pub(crate) fn newest(&self, key: &[u8]) -> Newest {
        let mut addr = self.world.slot_addr(key);
        loop {
            match State::decode(self.word(addr)) {
                State::Forwarded(_, next) => addr = next.expect("an address"),
                _ => {
                    let (word, version) = (self.word(addr), self.header(addr).version);
                    return Newest { addr, word, version };
                }
            }
        }
    }

    pub(crate) fn place(&mut self, len_bytes: usize) -> Option<LogAddr> {
        if self.used_bytes + len_bytes > self.len_bytes {
            return None;
        }
        let addr = LogAddr::new(self.addr.region(), self.addr.offset_bytes() + self.used_bytes);
        self.used_bytes += len_bytes;
        Some(addr)
    }

    /// Writes a pending entry. Gives its words pending and committed, and its length.
    pub(crate) fn write(
        &mut self,
        header: EntryHeader,
        key: &[u8],
        value: &[u8],
    ) -> Option<(LogAddr, u64, u64, usize)> {
        let len_bytes = header.padded_bytes();
        let addr = self.place(len_bytes)?;
        let mut bytes = prefix_bytes(&header, 0, key);
        bytes.extend_from_slice(value);
        bytes.resize(len_bytes, 0);
        let sum = self.sums.checksum(addr, &bytes);
        bytes[..8].copy_from_slice(&State::pending(sum).to_le_bytes());
        self.memory(addr).write_bytes(addr.offset_bytes(), &bytes).expect("inside");
        Some((addr, State::pending(sum), State::committed(sum), len_bytes))
    }

    pub(crate) fn swap(&self, addr: LogAddr, expected: u64, new: u64) -> bool {
        let found = self.memory(addr).compare_swap(addr.offset_bytes(), expected, new);
        found.expect("inside") == expected
    }

    /// An update, up to a step: 1 written, 2 linked, 3 committed.
    pub(crate) fn update(&mut self, key: &[u8], value: &[u8], steps: usize) -> Option<u64> {
        let newest = self.newest(key);
        self.update_from(newest, key, value, steps).map(|newest| newest.version)
    }

    /// As [`Self::update`], of an entry that is known to be the newest one.
    pub(crate) fn update_from(
        &mut self,
        newest: Newest,
        key: &[u8],
        value: &[u8],
        steps: usize,
    ) -> Option<Newest> {
        let header = EntryHeader {
            version: newest.version + 1,
            value_len: value.len() as u32,
            key_len: key.len() as u16,
            ..EntryHeader::default()
        };
        let (addr, pending, committed, len_bytes) = self.write(header, key, value)?;
        let forward = State::forwarded(size_class::of(len_bytes), addr);
        if steps >= 2 {
            assert!(self.swap(newest.addr, newest.word, forward), "nobody else is there");
        }
        if steps >= 3 {
            assert!(self.swap(addr, pending, committed));
        }
        Some(Newest { addr, word: committed, version: header.version })
    }

    pub(crate) fn seal(self) {
        assert!(self.world.engine.seal(self.session, self.addr));
    }
}
