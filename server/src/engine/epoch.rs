//! Memory whose bytes do not prove themselves comes back only when no session can look at it.
//!
//! Whoever retires such memory (the index of a dropped table, a region) takes it out of all that
//! leads there, then raises the epoch. A session acknowledges an epoch when no operation that it
//! began before it learnt of it is under way; one that has ended is fenced: it reads nothing more,
//! or knows that what it read does not count. What was retired is free when all sessions that may
//! know it have acknowledged its epoch, or have ended.

use std::collections::{BTreeMap, VecDeque};

use onesided_protocol::LogAddr;
use onesided_protocol::control::Retired;
use onesided_protocol::limits::RETIRED_MAX;
use onesided_protocol::rules::{Rule, holds};
use parking_lot::Mutex;

use super::Engine;
use super::shrink::ShrinkingStatus;

const NS_PER_MS: u64 = 1_000_000;

/// The epoch, and what waits.
#[derive(Default)]
pub(super) struct Epochs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    /// By epoch, ascending.
    waiting: VecDeque<Waiting>,
    /// What came back, of what kind it ever is.
    over: ShrinkingStatus,
}

/// Retired memory.
struct Waiting {
    epoch: u64,
    since_ns: u64,
    /// The sessions that may know it; `None`: all of then.
    holders: Option<Vec<u64>>,
    memory: Memory,
}

impl Waiting {
    /// Whether a session has to acknowledge this.
    fn is_held_by(&self, session: u64, acknowledged: u64) -> bool {
        let knows = self.holders.as_ref().is_none_or(|holders| holders.contains(&session));
        self.epoch > acknowledged && knows
    }
}

/// What comes back.
pub(super) enum Memory {
    /// A dropped table's place in the catalog, the pieces of its index, and the slabs of its
    /// counters' cells.
    Table { id: u32, record: u32, pieces: Vec<(LogAddr, usize)>, slabs: Vec<LogAddr> },
    /// A region in which nothing is.
    Region { id: u32 },
    /// Cells of a table's counters that have ended.
    Cells { table: u32, cells: Vec<LogAddr> },
}

impl Memory {
    fn name(&self) -> Retired {
        match *self {
            Self::Table { id, .. } => Retired::Table(id),
            Self::Region { id } => Retired::Region(id),
            Self::Cells { table, .. } => Retired::Cells(table),
        }
    }
}

/// What sessions have acknowledged, at some moment.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// The engine's epoch before the sessions were looked at: later ones know nothing older.
    pub epoch: u64,
    /// The epoch that each live session has acknowledged, by its id.
    pub sessions: BTreeMap<u64, u64>,
    /// The same of sessions that are over, and whose process may still add to cells that it has
    /// mapped.
    pub adders: BTreeMap<u64, u64>,
}

impl Acknowledged {
    /// By all that live now, or ever will: there are none.
    #[must_use]
    pub fn by_all() -> Self {
        Self { epoch: u64::MAX, ..Self::default() }
    }

    fn frees(&self, waiting: &Waiting) -> bool {
        if !holds(Rule::RetiredWaits) {
            return true;
        }
        let adders = match waiting.memory {
            // What they read does not count, and what they write is not there.
            Memory::Table { .. } | Memory::Region { .. } => None,
            Memory::Cells { .. } => Some(&self.adders),
        };
        let mut all = self.sessions.iter().chain(adders.into_iter().flatten());
        waiting.epoch <= self.epoch
            && !all.any(|(&session, &epoch)| waiting.is_held_by(session, epoch))
    }
}

impl Epochs {
    /// Raises the epoch. Nothing leads to the memory any more, but for what `holders` know.
    pub(super) fn retire(&self, memory: Memory, holders: Option<Vec<u64>>, since_ns: u64) {
        let mut state = self.state.lock();
        state.epoch += 1;
        let epoch = state.epoch;
        state.waiting.push_back(Waiting { epoch, since_ns, holders, memory });
    }

    /// Takes out what nobody holds.
    pub(super) fn take_free(&self, acknowledged: &Acknowledged, now_ns: u64) -> Vec<Memory> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        let (free, keep): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|waiting| acknowledged.frees(waiting));
        state.waiting = keep;
        for waiting in &free {
            let waited_ms = now_ns.saturating_sub(waiting.since_ns) / NS_PER_MS;
            state.over.epochs_over += 1;
            state.over.longest_wait_ms = state.over.longest_wait_ms.max(waited_ms);
        }
        free.into_iter().map(|waiting| waiting.memory).collect()
    }

    /// Bytes of indexes that wait.
    pub(super) fn index_bytes(&self) -> usize {
        let state = self.state.lock();
        let pieces = state.waiting.iter().flat_map(|waiting| match &waiting.memory {
            Memory::Table { pieces, .. } => pieces.as_slice(),
            Memory::Region { .. } | Memory::Cells { .. } => &[],
        });
        pieces.map(|(_, len_bytes)| len_bytes).sum()
    }
}

impl Epochs {
    fn note_given_back(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.over.given_back_regions += 1;
        state.over.given_back_bytes += bytes as u64;
    }
}

impl Engine {
    pub(super) fn shrinking_status(&self) -> ShrinkingStatus {
        let state = self.shared.epochs.state.lock();
        ShrinkingStatus { epochs_waiting: state.waiting.len() as u64, ..state.over }
    }

    /// Raised whenever memory is retired.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epochs.state.lock().epoch
    }

    /// Whether memory waits until sessions acknowledge its epoch.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        !self.shared.epochs.state.lock().waiting.is_empty()
    }

    /// What was retired after an epoch and still waits, oldest first, and up to which epoch that
    /// is all.
    #[must_use]
    pub fn retired_after(&self, epoch: u64) -> (u64, Vec<Retired>) {
        let state = self.shared.epochs.state.lock();
        let mut after = state.waiting.iter().filter(|waiting| waiting.epoch > epoch).peekable();
        let (mut last, mut retired) = (state.epoch, Vec::new());
        while let Some(waiting) = after.next() {
            retired.push(waiting.memory.name());
            if retired.len() == RETIRED_MAX && after.peek().is_some() {
                last = waiting.epoch;
                break;
            }
        }
        (last, retired)
    }

    /// Since when (server's clock, ns) memory waits for this session, which has acknowledged
    /// `epoch`. `None`: none does.
    #[must_use]
    pub fn waits_for(&self, session: u64, epoch: u64) -> Option<u64> {
        let state = self.shared.epochs.state.lock();
        let mut waiting = state.waiting.iter();
        waiting.find(|waiting| waiting.is_held_by(session, epoch)).map(|waiting| waiting.since_ns)
    }

    /// Retires the cells of all counters that have ended, however few: a table by itself waits
    /// for more.
    pub fn retire_cells(&self) {
        let tables = self.by_id.load();
        tables.iter().for_each(|table| table.cells.retire(&self.shared, table.id()));
    }

    /// Frees what was retired and nobody holds any more.
    pub fn reclaim(&self, acknowledged: &Acknowledged) {
        for memory in self.shared.epochs.take_free(acknowledged, self.clock_ns()) {
            match memory {
                Memory::Table { record, pieces, slabs, .. } => {
                    self.free_table(record, pieces, slabs);
                }
                Memory::Region { id } => {
                    let bytes = self.shared.pool.give_back(id);
                    self.shared.epochs.note_given_back(bytes);
                }
                // If it was dropped meanwhile, its slabs wait for a later epoch.
                Memory::Cells { table, cells } => {
                    self.table(table).iter().for_each(|table| table.cells.give(&cells));
                }
            }
        }
    }
}
