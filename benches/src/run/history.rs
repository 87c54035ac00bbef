//! Verification: what a value that is read may be.
//!
//! A record has one writer, and one write at a time, so that versions of a field have an order.
//! A read may find any version from the last one that was acknowledged before it was sent, to
//! the last one that was issued before its answer was looked at.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use parking_lot::Mutex;

use crate::workload::record::{self, STAMPED_BYTES};
use crate::workload::spec::Workload;

/// Bits of a stamp that are the version; the others are this run's.
const VERSION_BITS: u32 = 32;
/// Fields whose versions are remembered, at most: 8 bytes each.
const FIELDS_MAX: u64 = 1 << 30;

/// Versions of every field of every record.
pub struct History {
    run: u32,
    fields: usize,
    layout: record::Layout,
    /// Number of the first record.
    first: u64,
    issued: Vec<AtomicU32>,
    acknowledged: Vec<AtomicU32>,
    /// Keys whose inserts were acknowledged, in their order; where there are scans.
    inserted: Option<Mutex<BTreeSet<Box<[u8]>>>>,
}

/// What was known of a record when an operation was chosen.
#[derive(Clone, Default)]
pub struct Known {
    /// The lowest version of each field that a read may find.
    floors: Vec<u32>,
    /// Of a scan: the first keys of its range that had been inserted, as many as it may give. Were
    /// one left out that comes later, one of these were missing too.
    keys: Vec<Box<[u8]>>,
}

/// What a look at one value has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It may be there.
    Right,
    /// Nobody has written this: torn, of another key, or of other fields.
    Wrong,
    /// It had been replaced before the read was sent, or it was not written yet.
    Stale,
}

impl History {
    /// Nothing is written yet. `run` tells this run's values from an earlier one's.
    pub fn of(workload: &Workload, run: u64) -> Result<Self> {
        let inserts = workload.expected_inserts();
        let records = workload.records - workload.insert_start + inserts;
        let fields = workload.layout.fields;
        let cells = records.saturating_mul(fields as u64);
        ensure!(
            cells <= FIELDS_MAX,
            "--verify remembers 8 bytes a field, and these are {cells} fields: take fewer records"
        );
        let versions = || (0..cells).map(|_| AtomicU32::new(0)).collect();
        let (issued, acknowledged) = (versions(), versions());
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let run = run ^ clock.map_or(0, |since| since.as_nanos() as u64);
        Ok(Self {
            run: (run ^ (run >> 32)) as u32 | 1,
            fields,
            layout: workload.layout,
            first: workload.insert_start,
            issued,
            acknowledged,
            inserted: (workload.proportions.scan > 0.0).then(Mutex::default),
        })
    }

    /// Where a field's versions are; `None` beyond what there is room for.
    fn cell(&self, number: u64, field: usize) -> Option<usize> {
        let record = number.checked_sub(self.first)? as usize;
        let cell = record.checked_mul(self.fields)?.checked_add(field)?;
        (cell < self.issued.len()).then_some(cell)
    }

    /// Stamp for a new version of a field.
    pub fn issue(&self, number: u64, field: usize) -> u64 {
        let cell = self.cell(number, field);
        let version = cell.map_or(1, |cell| 1 + self.issued[cell].fetch_add(1, Ordering::AcqRel));
        (u64::from(self.run) << VERSION_BITS) | u64::from(version)
    }

    /// Takes note of what is known of a record before something is sent.
    pub fn remember(&self, number: u64, known: &mut Known) {
        known.floors.clear();
        let floor = |field| {
            let cell = self.cell(number, field);
            cell.map_or(0, |cell| self.acknowledged[cell].load(Ordering::Acquire))
        };
        known.floors.extend((0..self.fields).map(floor));
    }

    /// Takes note of what a scan must find, before it is sent.
    pub fn remember_range(&self, from: &[u8], limit: usize, known: &mut Known) {
        known.keys.clear();
        if let Some(inserted) = &self.inserted {
            let inserted = inserted.lock();
            let range = inserted.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
            known.keys.extend(range.take(limit).cloned());
        }
    }

    /// The insert of a record was answered: from now on it is there.
    pub fn inserted(&self, key: &[u8]) {
        if let Some(inserted) = &self.inserted {
            inserted.lock().insert(key.into());
        }
    }

    /// Whether a write to a record has no answer (yet): another one must not be sent then, or the
    /// versions had no order. After a failed write nobody knows what will come of it.
    pub fn in_flight(&self, number: u64) -> bool {
        (0..self.fields).any(|field| {
            let cell = self.cell(number, field);
            let version = |of: &[AtomicU32]| cell.map(|cell| of[cell].load(Ordering::Acquire));
            version(&self.issued) != version(&self.acknowledged)
        })
    }

    /// The write of one field, or of all, was answered.
    pub fn acknowledge(&self, number: u64, field: Option<usize>) {
        let fields = field.map_or(0..self.fields, |field| field..field + 1);
        for cell in fields.filter_map(|field| self.cell(number, field)) {
            let issued = self.issued[cell].load(Ordering::Acquire);
            self.acknowledged[cell].store(issued, Ordering::Release);
        }
    }

    /// Judges a record that was read.
    pub fn check(&self, key: &[u8], number: u64, known: &Known, value: &[u8]) -> Found {
        let Some(fields) = self.layout.split(value) else { return Found::Wrong };
        for (field, bytes) in fields.into_iter().enumerate() {
            let Some(stamp) = record::stamp(bytes, key, field) else { return Found::Wrong };
            let Some(cell) = self.cell(number, field) else { continue };
            if bytes.len() < STAMPED_BYTES {
                continue;
            }
            let floor = known.floors.get(field).copied().unwrap_or(0);
            let (run, version) = ((stamp >> VERSION_BITS) as u32, stamp as u32);
            let issued = self.issued[cell].load(Ordering::Acquire);
            let may_be = if run == self.run {
                floor.max(1) <= version && version <= issued
            } else {
                floor == 0
            };
            if !may_be {
                return Found::Stale;
            }
        }
        Found::Right
    }

    /// Judges a record of a scan, of which only the key is known.
    fn check_content(&self, key: &[u8], value: &[u8]) -> Found {
        let Some(fields) = self.layout.split(value) else { return Found::Wrong };
        let proves_itself = |(field, bytes)| record::stamp(bytes, key, field).is_some();
        match fields.into_iter().enumerate().all(proves_itself) {
            true => Found::Right,
            false => Found::Wrong,
        }
    }
}

/// What the checks of a run have found.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Verdicts {
    /// Values that were looked at.
    pub checked: u64,
    /// Values that nobody wrote for this key.
    pub wrong: u64,
    /// Values that were replaced before, or not written yet.
    pub stale: u64,
    /// Records that were not there although they had been written; of a scan too.
    pub lost: u64,
    /// Scans that were out of order, began too early or gave too much.
    pub disordered: u64,
    /// Key before, of the scan that is under way.
    last: Vec<u8>,
    /// How many of the keys that it must find are before that.
    passed: usize,
}

impl Verdicts {
    /// Whether anything was found that must not be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong + self.stale + self.lost + self.disordered == 0
    }

    /// Adds those of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.stale += other.stale;
        self.lost += other.lost;
        self.disordered += other.disordered;
    }

    /// A value was looked at.
    pub fn add(&mut self, found: Found) {
        self.checked += 1;
        self.wrong += u64::from(found == Found::Wrong);
        self.stale += u64::from(found == Found::Stale);
    }

    /// A record was not there.
    pub fn add_absent(&mut self, known: &Known) {
        self.lost += u64::from(known.floors.iter().any(|floor| *floor > 0));
    }

    /// A record of a scan from a key.
    pub fn add_scanned(
        &mut self,
        history: &History,
        (from, known): (&[u8], &Known),
        key: &[u8],
        value: &[u8],
    ) {
        self.add(history.check_content(key, value));
        let after_last = self.last.is_empty() || self.last.as_slice() < key;
        self.disordered += u64::from(key < from || !after_last);
        self.last.clear();
        self.last.extend_from_slice(key);
        while let Some(expected) = known.keys.get(self.passed)
            && **expected <= *key
        {
            self.lost += u64::from(**expected != *key);
            self.passed += 1;
        }
    }

    /// A scan is over.
    pub fn end_scan(&mut self, known: &Known, records: usize, limit: usize) {
        self.disordered += u64::from(records > limit);
        // With room for more it has reached the end of all keys.
        let left_out = known.keys.len().saturating_sub(self.passed);
        self.lost += if records < limit { left_out as u64 } else { 0 };
        self.last.clear();
        self.passed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::properties::Properties;

    const KEY: &[u8] = b"user1";

    fn history(properties: &str) -> History {
        let mut all = Properties::default();
        let base = "recordcount=10\nfieldcount=2\nfieldlength=20\n";
        all.parse(&format!("{base}{properties}"), "test").expect("properties");
        History::of(&Workload::new(all, false).expect("a workload"), 1).expect("a history")
    }

    fn write(history: &History, known: &mut Known) -> Vec<u8> {
        history.remember(1, known);
        let mut record = vec![0; 40];
        for (field, bytes) in record.chunks_mut(20).enumerate() {
            record::fill(bytes, KEY, field, history.issue(1, field));
        }
        record
    }

    #[test]
    fn what_may_be_is_right_and_what_may_not_is_found() {
        let history = history("");
        let (mut writing, mut reading) = (Known::default(), Known::default());
        let first = write(&history, &mut writing);
        history.remember(1, &mut reading);
        // Sent, not acknowledged: a read may find it.
        assert_eq!(history.check(KEY, 1, &reading, &first), Found::Right);
        history.acknowledge(1, None);
        let second = write(&history, &mut writing);
        history.remember(1, &mut reading);
        for value in [&first, &second] {
            assert_eq!(history.check(KEY, 1, &reading, value), Found::Right);
        }
        history.acknowledge(1, None);
        // Sent before that: both may be. Sent after it: only the second.
        assert_eq!(history.check(KEY, 1, &reading, &first), Found::Right);
        history.remember(1, &mut reading);
        assert_eq!(history.check(KEY, 1, &reading, &first), Found::Stale);
        assert_eq!(history.check(KEY, 1, &reading, &second), Found::Right);
        // One field each of two writes, as the store may not mix them after the second is there.
        let mixed = [&first[..20], &second[20..]].concat();
        assert_eq!(history.check(KEY, 1, &reading, &mixed), Found::Stale);
    }

    #[test]
    fn foreign_values_are_found() {
        let history = history("");
        let mut known = Known::default();
        let value = write(&history, &mut known);
        assert_eq!(history.check(b"user2", 2, &known, &value), Found::Wrong);
        assert_eq!(history.check(KEY, 1, &known, &value[1..]), Found::Wrong);
        assert_eq!(
            history.check(KEY, 1, &known, &[&value[20..], &value[..20]].concat()),
            Found::Wrong
        );
        // Of this run, but a version that nobody has issued.
        let mut future = vec![0; 40];
        for (field, bytes) in future.chunks_mut(20).enumerate() {
            record::fill(bytes, KEY, field, (u64::from(history.run) << VERSION_BITS) | 9);
        }
        assert_eq!(history.check(KEY, 1, &known, &future), Found::Stale);
    }

    #[test]
    fn an_earlier_run_s_value_is_right_until_it_is_replaced() {
        let (earlier, history) = (history(""), history("zeropadding=1\n"));
        assert_ne!(earlier.run, history.run);
        let mut known = Known::default();
        let old = write(&earlier, &mut known);
        history.remember(1, &mut known);
        assert_eq!(history.check(KEY, 1, &known, &old), Found::Right);
        write(&history, &mut known);
        history.acknowledge(1, None);
        history.remember(1, &mut known);
        assert_eq!(history.check(KEY, 1, &known, &old), Found::Stale);
        let mut verdicts = Verdicts::default();
        verdicts.add_absent(&known);
        assert!(!verdicts.is_clean() && verdicts.lost == 1);
    }

    #[test]
    fn scans_have_an_order() {
        let history = history("fieldlength=4\n");
        let value = |key: &[u8]| {
            let mut record = vec![0; 8];
            let fields = record.chunks_mut(4).enumerate();
            fields.for_each(|(field, bytes)| record::fill(bytes, key, field, 0));
            record
        };
        let known = Known::default();
        let scan = |keys: &[&[u8]], limit| {
            let mut verdicts = Verdicts::default();
            for key in keys {
                verdicts.add_scanned(&history, (b"b", &known), key, &value(key));
            }
            verdicts.end_scan(&known, keys.len(), limit);
            (verdicts.checked, verdicts.wrong, verdicts.disordered)
        };
        assert_eq!(scan(&[b"b", b"c"], 2), (2, 0, 0));
        assert_eq!(scan(&[b"c", b"b"], 2), (2, 0, 1));
        assert_eq!(scan(&[b"a", b"b"], 2), (2, 0, 1));
        assert_eq!(scan(&[b"b", b"c"], 1), (2, 0, 1));
        let mut verdicts = Verdicts::default();
        verdicts.add_scanned(&history, (b"b", &known), b"c", &value(b"d"));
        assert_eq!(verdicts.wrong, 1);
    }

    #[test]
    fn what_a_scan_must_find_is_missed() {
        let history = history(
            "readproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\n",
        );
        for key in [b"a", b"c", b"e", b"g"] {
            history.inserted(key);
        }
        let lost = |keys: &[&[u8]], limit| {
            let (mut verdicts, mut known) = (Verdicts::default(), Known::default());
            history.remember_range(b"b", limit, &mut known);
            // Inserted while the scan is under way: it may be found or not.
            history.inserted(b"x");
            for key in keys {
                verdicts.add_scanned(&history, (b"b", &known), key, b"");
            }
            verdicts.end_scan(&known, keys.len(), limit);
            verdicts.lost
        };
        assert_eq!(lost(&[b"c", b"d", b"e"], 3), 0, "others may be between");
        assert_eq!(lost(&[b"c", b"e", b"g", b"x"], 9), 0);
        assert_eq!(lost(&[b"c", b"f"], 2), 1, "e is left out");
        assert_eq!(lost(&[b"c", b"e"], 9), 2, "g and x are left out");
        assert_eq!(lost(&[b"y", b"z"], 2), 2, "all that it may give come before");
        assert_eq!(lost(&[], 3), 3);
    }
}
