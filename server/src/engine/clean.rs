//! Cleaning: segments in which much is dead are emptied, so that they become free.
//!
//! The emptiest sealed segment is walked from its start, entry by entry. What its slot still
//! points at is copied, exactly like an update (design.md 5, [`super::publish`]), or removed if its
//! time is over; then the segment is free at once, because what readers find there proves itself
//! or does not. Nobody but the cleaner looks at entries without coming from a slot, and it only
//! looks where all are written: a segment that is appended to is never a candidate, and neither is
//! one with a pin ([`super::block`]); its own pin keeps the segment from being reused under it.
//!
//! One segment is in work at a time, and whoever holds [`Cleaner::work`] goes on with it: the
//! cleaner's thread ([`CleanerThread`]) ahead of need; every writer a little when room is short;
//! and a writer that found none until there is some. How short it is says [`super::room`].

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use onesided_fabric::Rights;
use onesided_protocol::LogAddr;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::block::Sealed;
use super::evict::{Coldest, Plan, Thinning};
use super::room::Level;
use super::table::Table;
use super::{Engine, Shared};

mod counts;
mod help;
mod leave;
mod oldest;
mod row;
mod thread;
mod walk;

pub use counts::CleaningStatus;

pub(super) use counts::count;
pub(super) use help::Effort;
pub(super) use thread::CleanerThread;

use counts::Counts;
use oldest::Oldest;
use walk::{Batch, Walk};

/// When entries are moved together, so that segments become free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cleaning {
    /// When memory runs short and something is to gain.
    #[default]
    Auto,
    /// All the time, the oldest segments first, whether or not it gains anything. For tests.
    Aggressive,
    /// Never: a segment is free when all in it are dead.
    Off,
}

/// Candidates that one look at all segments finds, at least; and which part of all segments.
const CANDIDATES_MIN: usize = 64;
const CANDIDATES_PART: usize = 64;
/// As [`Choice::dead_part`], where entries may go.
const EVICTING_DEAD_PART: usize = 4;
/// What cleans.
pub(super) struct Cleaner {
    pub(super) mode: Cleaning,
    /// By id.
    tables: Mutex<BTreeMap<u32, Weak<Table>>>,
    work: Mutex<Work>,
    pub(super) counts: Counts,
    waker: thread::Waker,
}

/// The segment in work, and what comes next.
#[derive(Default)]
struct Work {
    walk: Option<Walk>,
    /// The best one last. Only hints: they have changed since.
    candidates: Vec<LogAddr>,
    /// What comes when there is none, of tables that may lose entries.
    oldest: Oldest,
    batch: Batch,
    /// Looks at all segments for candidates, so far.
    looks: u64,
}

/// Which segments may be emptied.
#[derive(Clone, Copy)]
struct Choice {
    /// Those of one table only.
    owner: Option<u32>,
    /// Those in regions of one right only.
    rights: Option<Rights>,
    /// At least this part of the entries, one of so many bytes, is dead; 0: any.
    dead_part: usize,
    /// If there is none: the oldest of a table that may lose entries.
    may_evict: bool,
    /// Then all in it go, not only the cold ones.
    spares_none: bool,
    /// The table that room is made for, which may lose what it has itself, whatever its floor;
    /// 0: for any.
    wanted_by: u32,
}

impl Choice {
    fn is_meant(&self, sealed: &Sealed) -> bool {
        self.owner.is_none_or(|owner| owner == sealed.owner)
            && self.rights.is_none_or(|rights| rights == sealed.rights)
    }

    fn admits(&self, sealed: &Sealed) -> bool {
        let dead_bytes = sealed.used_bytes.saturating_sub(sealed.live_bytes);
        let worth_it = self.dead_part == 0 || dead_bytes * self.dead_part >= sealed.used_bytes;
        worth_it && self.is_meant(sealed)
    }
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The segment is not done yet.
    Goes,
    /// It is, and so many bytes became free.
    Emptied(usize),
    /// There is none worth it.
    Nothing,
}

impl Cleaner {
    pub(super) fn new(mode: Cleaning) -> Self {
        Self {
            mode,
            tables: Mutex::default(),
            work: Mutex::default(),
            counts: Counts::default(),
            waker: thread::Waker::default(),
        }
    }

    /// These are the tables.
    pub(super) fn know(&self, tables: &[Arc<Table>]) {
        let known = tables.iter().map(|table| (table.id(), Arc::downgrade(table))).collect();
        *self.tables.lock() = known;
    }

    /// The table of an id; a dropped one is none.
    fn table(&self, id: u32) -> Weak<Table> {
        self.tables.lock().get(&id).cloned().unwrap_or_default()
    }

    /// What is worth it, when there is so much room in regions of this right, or of any.
    fn choice(&self, rights: Option<Rights>, level: Level) -> Choice {
        let dead_part = match (self.mode, level) {
            (Cleaning::Aggressive, _) => 0,
            (_, Level::Ample | Level::Low) => 16,
            (_, Level::Short) => 32,
            (_, Level::Full) => 64,
        };
        // Tables that may lose entries have none where clients write.
        let may_evict = level >= Level::Short && rights != Some(Rights::ReadWrite);
        Choice { owner: None, rights, dead_part, may_evict, spares_none: false, wanted_by: 0 }
    }

    /// As [`Self::choice`], of all segments; entries go only where that makes the room that is
    /// short.
    fn choice_of_all(&self, shared: &Shared, level: Level) -> Choice {
        let may_evict = shared.pool.level(Rights::ReadOnly) >= Level::Short;
        Choice { may_evict, ..self.choice(None, level) }
    }
}

impl Work {
    /// Goes on with the segment in work, or begins the next, for about so many bytes of entries.
    fn go_on(&mut self, shared: &Shared, choice: Choice, budget_bytes: usize) -> Step {
        if self.walk.is_none() {
            self.walk = self.begin(shared, choice);
        }
        let Some(walk) = &mut self.walk else { return Step::Nothing };
        let until = walk.next_bytes.saturating_add(budget_bytes);
        while walk.next_bytes < walk.used_bytes.min(until) {
            if walk.batch(shared, &mut self.batch).is_err() {
                // No room for a copy. What is left stays where it is.
                count(&shared.cleaner.counts.given_up, 1);
                walk.next_bytes = walk.used_bytes;
            }
        }
        if walk.next_bytes < walk.used_bytes {
            return Step::Goes;
        }
        let freed_bytes = self.walk.take().map_or(0, |walk| walk.end(shared));
        count(&shared.cleaner.counts.segments, 1);
        count(&shared.cleaner.counts.freed_bytes, freed_bytes as u64);
        Step::Emptied(freed_bytes)
    }

    /// Goes on with the segment in work, if there is one, to its end.
    fn finish(&mut self, shared: &Shared) {
        // What is in work is done whatever the choice.
        let choice = shared.cleaner.choice(None, Level::Ample);
        while self.walk.is_some() {
            self.go_on(shared, choice, usize::MAX);
        }
    }

    /// Empties a segment, with none in work.
    fn empty(&mut self, shared: &Shared, walk: Walk) {
        debug_assert!(self.walk.is_none(), "a segment in work would stay pinned");
        self.walk = Some(walk);
        self.finish(shared);
    }

    /// Pins the best segment.
    fn begin(&mut self, shared: &Shared, choice: Choice) -> Option<Walk> {
        if let Some(walk) = self.next(shared, choice) {
            return Some(walk);
        }
        let Choice { rights, dead_part, .. } = choice;
        let is_due = shared.pool.has_changed(rights, dead_part);
        if shared.cleaner.mode == Cleaning::Aggressive || is_due {
            self.look(shared, choice);
            if let Some(walk) = self.next(shared, choice) {
                return Some(walk);
            }
            if choice.owner.is_none() {
                shared.pool.nothing_to_gain(rights, dead_part);
            }
        }
        if !choice.may_evict {
            return None;
        }
        let mut walk = self.oldest.next(shared, choice.owner, choice.wanted_by)?;
        if choice.spares_none {
            let is_alone = shared.pool.is_alone(walk.segment);
            let (plan, coldest, for_quota) = (Plan::Thin, Coldest::ALL, choice.owner.is_some());
            walk.evicts = Some(Thinning { plan, coldest, is_alone, for_quota });
        }
        Some(walk)
    }

    fn next(&mut self, shared: &Shared, choice: Choice) -> Option<Walk> {
        while let Some(segment) = self.candidates.pop() {
            let walk = Walk::pin(shared, segment, None, |sealed| {
                choice.admits(sealed) && is_worth_it(shared, sealed)
            });
            if walk.is_some() {
                return walk;
            }
        }
        None
    }

    /// How often all segments were looked at so far.
    fn looks(&self) -> u64 {
        self.looks + self.oldest.looks
    }

    /// Looks at all segments for the best ones.
    fn look(&mut self, shared: &Shared, choice: Choice) {
        self.looks += 1;
        let pool = &shared.pool;
        let segment_bytes = pool.segment_bytes();
        let aggressive = shared.cleaner.mode == Cleaning::Aggressive;
        let fits = |sealed: &Sealed| aggressive || sealed.used_bytes <= segment_bytes;
        // Live bytes of a thousand, or the age.
        let rank = |sealed: &Sealed| match aggressive {
            true => sealed.sealed_as,
            false => (sealed.live_bytes * 1_000 / sealed.used_bytes.max(1)) as u64,
        };
        let wanted = |sealed: &Sealed| fits(sealed) && choice.admits(sealed);
        best(shared, &mut self.candidates, wanted, rank);
    }
}

/// Whether what is dead in a segment makes enough room: where entries may go, the cold ones make
/// more.
fn is_worth_it(shared: &Shared, sealed: &Sealed) -> bool {
    let dead_bytes = sealed.used_bytes.saturating_sub(sealed.live_bytes);
    dead_bytes * EVICTING_DEAD_PART >= sealed.used_bytes
        || !shared
            .cleaner
            .table(sealed.owner)
            .upgrade()
            .is_some_and(|table| table.may_lose(sealed.used_bytes, 0))
}

/// The sealed segments of the lowest rank, the lowest one last.
fn best(
    shared: &Shared,
    into: &mut Vec<LogAddr>,
    wanted: impl Fn(&Sealed) -> bool,
    rank: impl Fn(&Sealed) -> u64,
) {
    let all = shared.pool.sealed().filter(|(_, sealed)| wanted(sealed));
    let mut all: Vec<_> = all.map(|(addr, sealed)| (rank(&sealed), addr)).collect();
    let most = CANDIDATES_MIN.max(all.len() / CANDIDATES_PART);
    if all.len() > most {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    into.clear();
    into.extend(all.into_iter().map(|(_, addr)| addr));
}

impl Engine {
    /// Cleans a segment, if one is worth it, or goes on with the one in work. `false`: there was
    /// none. For engines without a cleaner's thread.
    pub fn clean(&self) -> bool {
        let shared = &*self.shared;
        let choice = shared.cleaner.choice_of_all(shared, Level::Short);
        shared.cleaner.work.lock().go_on(shared, choice, usize::MAX) != Step::Nothing
    }
}
