//! What the engine's tests share: a clock that they set, and a reader that knows nothing but
//! memory, as a client does.

#![allow(dead_code, reason = "every test uses a part of it")]

pub(crate) mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onesided_fabric::Memory;
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::catalog::{
    CATALOG_BYTES, CatalogHeader, DirectoryWord, RegionRecord, TableRecord,
};
use onesided_protocol::layout::entry::{EntryHeader, Verdict, judge};
use onesided_protocol::layout::line::{
    BUCKET_BYTES, LINE_BYTES, LineHeader, TAIL_LINES, bucket_offset_bytes, slots, tail_offset_bytes,
};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::limits::{HOPS_MAX, ROUNDS_MAX};
use onesided_server::engine::{Clock, Engine, EngineConfig, MakeMemory};
use zerocopy::FromBytes;

/// A clock that stands still until a test moves it.
pub(crate) struct FakeClock(pub(crate) AtomicU64);

impl FakeClock {
    pub(crate) fn at_s(seconds: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(seconds * 1_000_000_000)))
    }

    pub(crate) fn advance_s(&self, seconds: u64) {
        self.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn unix_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) fn private_memory() -> MakeMemory {
    Box::new(|_, len_bytes, _| Memory::private(len_bytes))
}

pub(crate) fn engine(config: EngineConfig) -> (Arc<Engine>, Arc<FakeClock>) {
    let clock = FakeClock::at_s(1_000_000);
    let engine = Engine::new(config, private_memory(), clock.clone()).expect("engine");
    (engine, clock)
}

/// Short segments, so that memory is reused soon.
pub(crate) fn small(memory_bytes: usize) -> EngineConfig {
    EngineConfig { memory_bytes, segment_bytes: 4096, seed: 7, ..EngineConfig::default() }
}

/// What a raw read found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Raw {
    Hit(EntryHeader, Vec<u8>),
    Miss,
    /// No answer within the rounds: a client would ask by RPC.
    Unproven,
}

/// Reads a table from the memory of its regions alone: catalog, directory, bucket, entry.
pub(crate) struct RawReader<'a> {
    engine: &'a Engine,
    catalog: Arc<Memory>,
    record: TableRecord,
    record_offset: usize,
    /// The directory as a client knows it that does not look at the record again.
    known: Option<DirectoryWord>,
}

fn record<T: FromBytes>(memory: &Memory, offset: usize) -> T {
    let mut bytes = vec![0; size_of::<T>()];
    memory.read_bytes(offset, &mut bytes).expect("inside the catalog");
    T::read_from_bytes(&bytes).expect("as long as the record")
}

impl<'a> RawReader<'a> {
    /// Finds the table in the catalog by its name.
    pub(crate) fn open(engine: &'a Engine, name: &str) -> Option<Self> {
        let catalog = engine.region(0)?;
        assert!(catalog.len_bytes() >= CATALOG_BYTES);
        let header: CatalogHeader = record(&catalog, 0);
        assert!(header.is_valid() && header.incarnation.get() == engine.incarnation());
        for id in 0..header.regions.get() {
            let region: RegionRecord = record(&catalog, RegionRecord::offset(id));
            let Some(memory) = engine.region(id) else {
                assert!(!region.is_valid(), "a region that is given back has no record");
                continue;
            };
            assert!(region.is_valid() && region.id.get() == id);
            assert_eq!(region.len_bytes.get(), memory.len_bytes() as u64);
        }
        (0..1024).find_map(|slot| {
            let record_offset = TableRecord::offset(slot);
            let record: TableRecord = record(&catalog, record_offset);
            let found = &record.name[..record.name_len.get() as usize];
            (record.is_valid() && record.id.get() != 0 && found == name.as_bytes()).then(|| Self {
                engine,
                catalog: catalog.clone(),
                record,
                record_offset,
                known: None,
            })
        })
    }

    /// `None`: there is no such place. Where memory was used again, what was a state word may be a
    /// part of a value, which looks like any address.
    fn bytes(&self, addr: LogAddr, len_bytes: usize) -> Option<Vec<u8>> {
        let region = self.engine.region(addr.region())?;
        let len_bytes = len_bytes.min(region.len_bytes().checked_sub(addr.offset_bytes())?);
        let mut bytes = vec![0; len_bytes];
        region.read_bytes(addr.offset_bytes(), &mut bytes).expect("inside the region");
        Some(bytes)
    }

    fn line(&self, segment: LogAddr, offset: usize) -> [u64; 8] {
        let region = self.engine.region(segment.region()).expect("region of a segment");
        let mut words = [0; 8];
        region.read_words(segment.offset_bytes() + offset, &mut words).expect("a line");
        words
    }

    /// The same, but it never looks at the table's record again.
    pub(crate) fn freeze(self) -> Self {
        Self { known: Some(self.directory()), ..self }
    }

    /// The directory word of the record, as it is now.
    pub(crate) fn directory(&self) -> DirectoryWord {
        if let Some(known) = self.known {
            return known;
        }
        DirectoryWord(self.catalog.load(self.record_offset + 8).expect("in the catalog"))
    }

    fn segment(&self, hash: KeyHash) -> LogAddr {
        let directory = self.directory();
        let at = directory.addr().expect("a directory");
        let offset = at.offset_bytes() + hash.directory_index(directory.depth()) * 8;
        let word = self.engine.region(at.region()).expect("region").load(offset).expect("word");
        DirectoryWord(word).addr().expect("a segment")
    }

    fn lines(&self, segment: LogAddr, hash: KeyHash) -> Vec<[u64; 8]> {
        let offset = bucket_offset_bytes(hash.bucket());
        const { assert!(BUCKET_BYTES == 2 * LINE_BYTES) };
        let mut lines = vec![self.line(segment, offset), self.line(segment, offset + LINE_BYTES)];
        let mut next = LineHeader(lines[0][0]).overflow();
        while let Some(offset) = tail_offset_bytes(next) {
            assert!(lines.len() <= 2 + TAIL_LINES, "a chain without end");
            lines.push(self.line(segment, offset));
            next = LineHeader(lines[lines.len() - 1][0]).overflow();
        }
        lines
    }

    /// Follows one slot. `None`: look again; `Some(None)`: a valid entry of another key.
    fn entry(&self, slot: Slot, key: &[u8]) -> Option<Option<(EntryHeader, Vec<u8>)>> {
        let (mut class, mut addr) = (slot.class(), slot.addr()?);
        let sums = ChecksumKey::new(self.record.secret.get(), None);
        for _ in 0..=HOPS_MAX {
            let bytes = self.bytes(addr, size_class::bytes(class))?;
            let header = match judge(&sums, addr, &bytes, key) {
                Verdict::Hit(header) => header,
                Verdict::Large { header, state } => {
                    let again = self.bytes(addr, 8)?;
                    if again != state.to_le_bytes() {
                        return None;
                    }
                    header
                }
                Verdict::Forwarded(next_class, next) => {
                    (class, addr) = (next_class, next);
                    continue;
                }
                Verdict::OtherKey => return Some(None),
                Verdict::Dead | Verdict::Unproven => return None,
            };
            let value = bytes[header.value_offset()..header.len_bytes()].to_vec();
            return Some(Some((header, value)));
        }
        None
    }

    /// The slots that match the key now.
    pub(crate) fn slots_of(&self, key: &[u8]) -> Vec<Slot> {
        let hash = KeyHash::of(self.record.hash_seed.get(), key);
        let lines = self.lines(self.segment(hash), hash);
        let matching = lines.iter().flat_map(slots);
        matching.filter(|s| s.fingerprint() == hash.fingerprint() && !s.is_empty()).collect()
    }

    /// What a client finds that remembers a slot and looks no further.
    pub(crate) fn follow(&self, slot: Slot, key: &[u8]) -> Raw {
        match self.entry(slot, key) {
            Some(Some((header, value))) => Raw::Hit(header, value),
            _ => Raw::Unproven,
        }
    }

    /// One GET.
    pub(crate) fn get(&self, key: &[u8]) -> Raw {
        let hash = KeyHash::of(self.record.hash_seed.get(), key);
        'round: for _ in 0..ROUNDS_MAX {
            let segment = self.segment(hash);
            let lines = self.lines(segment, hash);
            let matching = lines.iter().flat_map(slots);
            let matching = matching.filter(|s| s.fingerprint() == hash.fingerprint());
            let mut collided = false;
            for slot in matching.filter(|slot| !slot.is_empty()) {
                match self.entry(slot, key) {
                    Some(Some((header, value))) => return Raw::Hit(header, value),
                    Some(None) => collided = true,
                    None => continue 'round,
                }
            }
            let headers: Vec<_> = lines.iter().map(|line| line[0]).collect();
            let again: Vec<_> = self.lines(segment, hash).iter().map(|line| line[0]).collect();
            let proven = headers
                .iter()
                .all(|&h| !LineHeader(h).in_progress() && LineHeader(h).covers(hash.prefix()));
            if headers == again && proven && !collided {
                return Raw::Miss;
            }
        }
        Raw::Unproven
    }

    /// The value, which must be there.
    pub(crate) fn value(&self, key: &[u8]) -> Vec<u8> {
        match self.get(key) {
            Raw::Hit(_, value) => value,
            other => panic!("key {:?}: {other:?}", String::from_utf8_lossy(key)),
        }
    }
}
