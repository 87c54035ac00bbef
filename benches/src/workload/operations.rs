//! The stream of operations of one thread.

use std::sync::Arc;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::distribution::Chooser;
use super::keys::{Key, Sequence};
use super::record;
use super::spec::Workload;
use crate::run::history::{History, Verdicts};
use crate::target::{Operation, Outcome};

/// Random bytes that values are taken from, beside the longest one: small enough for a cache.
const POOL_BYTES: usize = 64 << 10;

/// What kinds of operations are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A record is read.
    Read,
    /// A record, or a field of it, is written over.
    Update,
    /// A new record.
    Insert,
    /// Records in order.
    Scan,
    /// A read, then an update of the same record: one operation of two calls.
    ReadModifyWrite,
    /// A record is removed; only traces have it.
    Delete,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Update, Self::Insert, Self::Scan, Self::ReadModifyWrite, Self::Delete];

    /// As YCSB's lines call it.
    #[must_use]
    pub fn ycsb_name(self) -> &'static str {
        ["READ", "UPDATE", "INSERT", "SCAN", "READ-MODIFY-WRITE", "DELETE"][self as usize]
    }

    /// As JSON calls it.
    #[must_use]
    pub fn json_name(self) -> &'static str {
        ["read", "update", "insert", "scan", "read_modify_write", "delete"][self as usize]
    }
}

/// An operation that was chosen. It is filled in place and used again.
#[derive(Clone)]
pub struct Planned {
    /// What it is.
    pub kind: Kind,
    /// Of the record.
    pub key: Key,
    pub(super) number: u64,
    /// Which field an update writes; `None` = all of the record.
    field: Option<usize>,
    /// Where the bytes to write stand: in the arena, or else in the pool.
    in_arena: bool,
    from: usize,
    len: usize,
    /// Of a scan.
    limit: usize,
    /// With verification: what was known when it was chosen.
    known: crate::run::history::Known,
}

impl Default for Planned {
    fn default() -> Self {
        Self {
            kind: Kind::Read,
            key: Key::default(),
            number: 0,
            field: None,
            in_arena: false,
            from: 0,
            len: 0,
            limit: 0,
            known: crate::run::history::Known::default(),
        }
    }
}

/// Which of the calls of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The only one, or the read of a read-modify-write.
    First,
    /// The update of a read-modify-write.
    Second,
}

/// What the threads of a phase share.
pub struct Shared {
    /// What is to be done.
    pub workload: Workload,
    /// Numbers of records that a run inserts.
    pub inserts: Sequence,
    /// Numbers of records that are loaded before it.
    pub loads: Sequence,
    /// With verification: which versions there may be.
    pub history: Option<History>,
    chooser: Chooser,
    pool: Vec<u8>,
    seed: u64,
    threads: usize,
}

impl Shared {
    /// For so many threads. The same seed draws the same operations.
    pub fn new(workload: Workload, threads: usize, seed: u64) -> Result<Arc<Self>> {
        let mut pool = vec![0; POOL_BYTES + workload.record_max_bytes()];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut pool);
        let history = workload.verify.then(|| History::of(&workload, seed)).transpose()?;
        Ok(Arc::new(Self {
            inserts: Sequence::new(workload.records),
            loads: Sequence::new(workload.insert_start),
            chooser: workload.chooser()?,
            history,
            workload,
            pool,
            seed,
            threads: threads.max(1),
        }))
    }
}

/// What is to be done with records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Insert them.
    Load,
    /// What the proportions say.
    Run,
}

/// Operations of one thread.
pub struct Stream {
    shared: Arc<Shared>,
    phase: Phase,
    thread: usize,
    random: SmallRng,
    chooser: Chooser,
    /// Sums of the proportions: what is drawn below is that kind.
    below: [(f64, Kind); 4],
    /// Values that are made for this batch.
    arena: Vec<u8>,
}

impl Stream {
    /// Of a thread by its number.
    #[must_use]
    pub fn new(shared: &Arc<Shared>, phase: Phase, thread: usize) -> Self {
        let p = shared.workload.proportions;
        let below = [
            (p.read, Kind::Read),
            (p.read + p.update, Kind::Update),
            (p.read + p.update + p.insert, Kind::Insert),
            (p.read + p.update + p.insert + p.scan, Kind::Scan),
        ];
        // What is left over by rounding must not become a kind that was not asked for.
        let top = below.iter().rfind(|_| p.read_modify_write == 0.0).map_or(2.0, |last| last.0);
        let below = below.map(|(sum, kind)| if sum >= top { (2.0, kind) } else { (sum, kind) });
        let random = SmallRng::seed_from_u64(shared.seed.wrapping_add(1 + thread as u64));
        let (shared, chooser) = (shared.clone(), shared.chooser.clone());
        Self { shared, phase, thread, random, chooser, below, arena: Vec::new() }
    }

    /// Chooses an operation.
    #[inline]
    fn choose(&mut self, slot: &mut Planned) {
        slot.kind = self.choose_kind();
        slot.number = match (slot.kind, self.phase) {
            (Kind::Insert, Phase::Load) => self.shared.loads.take(),
            (Kind::Insert, Phase::Run) => self.shared.inserts.take(),
            _ => self.chooser.next(&mut self.random, self.shared.inserts.end()),
        };
        if let Some(history) = &self.shared.history {
            self.own(slot, history);
        }
        slot.key.name(slot.number, self.shared.workload.naming);
        match slot.kind {
            Kind::Update | Kind::ReadModifyWrite => self.choose_update(slot),
            Kind::Insert => self.choose_record(slot),
            Kind::Scan => {
                slot.limit = self.shared.workload.scan_lengths.next(&mut self.random) as usize;
                if let Some(history) = &self.shared.history {
                    history.remember_range(slot.key.as_bytes(), slot.limit, &mut slot.known);
                }
            }
            Kind::Read | Kind::Delete => {}
        }
        if let Some(history) = &self.shared.history {
            history.remember(slot.number, &mut slot.known);
        }
    }

    #[inline]
    fn choose_kind(&mut self) -> Kind {
        if self.phase == Phase::Load {
            return Kind::Insert;
        }
        let drawn: f64 = self.random.random();
        let found = self.below.iter().find(|(sum, _)| drawn < *sum);
        found.map_or(Kind::ReadModifyWrite, |(_, kind)| *kind)
    }

    /// With verification a record has one writer and one write at a time, so that its versions have
    /// an order: an update goes to a record of this thread beside the one that was drawn, and is a
    /// read if that has a write on its way.
    fn own(&self, slot: &mut Planned, history: &History) {
        if !matches!(slot.kind, Kind::Update | Kind::ReadModifyWrite) {
            return;
        }
        let threads = self.shared.threads as u64;
        let own = slot.number - slot.number % threads + self.thread as u64;
        let (first, end) = (self.shared.workload.insert_start, self.shared.inserts.end());
        let near = [Some(own), own.checked_sub(threads), own.checked_add(threads)];
        match near.into_iter().flatten().find(|number| (first..end).contains(number)) {
            Some(number) if !history.in_flight(number) => slot.number = number,
            _ => slot.kind = Kind::Read,
        }
    }

    #[inline]
    fn choose_update(&mut self, slot: &mut Planned) {
        let workload = &self.shared.workload;
        if workload.whole_updates {
            slot.field = None;
            return self.choose_record(slot);
        }
        let field = self.random.random_range(0..workload.layout.fields as u32) as usize;
        slot.field = Some(field);
        let len = workload.field_lengths.next(&mut self.random) as usize;
        match &self.shared.history {
            None => self.take_pool(slot, len),
            Some(history) => {
                let stamp = history.issue(slot.number, field);
                (slot.in_arena, slot.from, slot.len) = (true, self.arena.len(), len);
                self.arena.resize(slot.from + len, 0);
                record::fill(&mut self.arena[slot.from..], slot.key.as_bytes(), field, stamp);
            }
        }
    }

    /// Content for all of a record.
    #[inline]
    fn choose_record(&mut self, slot: &mut Planned) {
        let layout = self.shared.workload.layout;
        match layout.constant_bytes {
            Some(len) if self.shared.history.is_none() => {
                self.take_pool(slot, layout.fields * len);
            }
            _ => self.make_record(slot),
        }
    }

    fn make_record(&mut self, slot: &mut Planned) {
        let workload = &self.shared.workload;
        slot.in_arena = true;
        slot.from = self.arena.len();
        for field in 0..workload.layout.fields {
            let len = workload.field_lengths.next(&mut self.random) as usize;
            workload.layout.begin_field(&mut self.arena, len);
            let from = self.arena.len();
            self.arena.resize(from + len, 0);
            let bytes = &mut self.arena[from..];
            match &self.shared.history {
                Some(history) => {
                    let stamp = history.issue(slot.number, field);
                    record::fill(bytes, slot.key.as_bytes(), field, stamp);
                }
                None => {
                    let place = self.random.random_range(0..POOL_BYTES as u32) as usize;
                    bytes.copy_from_slice(&self.shared.pool[place..place + len]);
                }
            }
        }
        slot.len = self.arena.len() - slot.from;
    }

    /// Bytes that nobody looks at.
    #[inline]
    fn take_pool(&mut self, slot: &mut Planned, len: usize) {
        let from = self.random.random_range(0..POOL_BYTES as u32) as usize;
        (slot.in_arena, slot.from, slot.len) = (false, from, len);
    }

    fn bytes<'a>(&'a self, slot: &Planned) -> &'a [u8] {
        let place = if slot.in_arena { &self.arena } else { &self.shared.pool };
        &place[slot.from..slot.from + slot.len]
    }

    #[inline]
    fn update<'a>(&'a self, slot: &'a Planned) -> Operation<'a> {
        let (key, bytes) = (slot.key.as_bytes(), self.bytes(slot));
        match (slot.field, self.shared.workload.layout.constant_bytes) {
            (None, _) => Operation::Update { key, offset: 0, bytes, whole: true },
            (Some(field), Some(len)) => {
                Operation::Update { key, offset: field * len, bytes, whole: false }
            }
            (Some(field), None) => Operation::Replace { key, field, bytes },
        }
    }
}

/// Where operations come from.
pub trait Source: Send {
    /// What was planned before is over.
    fn begin_batch(&mut self);
    /// Plans one more operation of a batch; false if there is none left.
    fn plan(&mut self, slot: &mut Planned) -> bool;
    /// Whether the source itself says when operations begin.
    fn is_timed(&self) -> bool {
        false
    }
    /// When the next operation should begin, in ns after the start, if the source says so.
    fn due_ns(&mut self) -> Option<u64> {
        None
    }
    /// What is to be sent.
    fn operation<'a>(&'a self, slot: &'a Planned, step: Step) -> Operation<'a>;
    /// Takes note of an answer, and checks it if values are checked.
    fn answered(&self, slot: &Planned, step: Step, outcome: Outcome<'_>, verdicts: &mut Verdicts);
}

impl Source for Stream {
    fn begin_batch(&mut self) {
        self.arena.clear();
    }

    #[inline]
    fn plan(&mut self, slot: &mut Planned) -> bool {
        self.choose(slot);
        true
    }

    #[inline]
    fn operation<'a>(&'a self, slot: &'a Planned, step: Step) -> Operation<'a> {
        let key = slot.key.as_bytes();
        match (slot.kind, step) {
            (Kind::Update, _) | (Kind::ReadModifyWrite, Step::Second) => self.update(slot),
            (Kind::Insert, _) => Operation::Insert { key, value: self.bytes(slot), ttl_s: 0 },
            (Kind::Scan, _) => Operation::Scan { from: key, limit: slot.limit },
            (Kind::Delete, _) => Operation::Delete { key },
            (Kind::Read | Kind::ReadModifyWrite, _) => Operation::Read { key },
        }
    }

    #[inline]
    fn answered(&self, slot: &Planned, step: Step, outcome: Outcome<'_>, verdicts: &mut Verdicts) {
        if let Some(history) = &self.shared.history {
            match outcome {
                Outcome::Done => {
                    history.acknowledge(slot.number, slot_field(slot));
                    if slot.kind == Kind::Insert {
                        history.inserted(slot.key.as_bytes());
                    }
                }
                Outcome::Found(value) => {
                    let found = history.check(slot.key.as_bytes(), slot.number, &slot.known, value);
                    verdicts.add(found);
                }
                Outcome::Absent if step == Step::First => verdicts.add_absent(&slot.known),
                Outcome::Record { key, value } => {
                    let from = (slot.key.as_bytes(), &slot.known);
                    verdicts.add_scanned(history, from, key, value);
                }
                Outcome::Scanned(records) => {
                    verdicts.end_scan(&slot.known, records, slot.limit);
                }
                _ => {}
            }
        }
        // YCSB's way: an insert counts as there even if it failed.
        if slot.kind == Kind::Insert && self.phase == Phase::Run {
            self.shared.inserts.answered(slot.number);
        }
    }
}

fn slot_field(slot: &Planned) -> Option<usize> {
    if slot.kind == Kind::Insert { None } else { slot.field }
}
