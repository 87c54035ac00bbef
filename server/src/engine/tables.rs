//! Making, changing and dropping tables.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onesided_protocol::LogAddr;
use onesided_protocol::control::{TableInfo, TableOptions, TableStatus, UpdateMode};
use onesided_protocol::layout::catalog::{
    TABLE_FLAG_CAS, TABLE_FLAG_EVICT, TABLE_FLAG_ORDERED, TableRecord,
};
use onesided_protocol::layout::line::{BUCKET_WORDS, LINE_WORDS};
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::Death;
use onesided_protocol::limits::{TABLE_NAME_MAX_BYTES, TABLES_MAX};
use onesided_protocol::rpc::{ErrorCode, RpcError};
use rand::Rng;
use rand::rngs::StdRng;

use super::bucket::header_at;
use super::clean::count;
use super::epoch::Memory;
use super::index::{Contents, IndexStatus, Segment, TABLE_MIN_BYTES, invalidate};
use super::log::Log;
use super::memory::BlockTotals;
use super::room::{Need, Wanted};
use super::table::{Refused, Table, with_room};
use super::{Engine, publish};

const SEGMENT_WORDS: usize = onesided_protocol::layout::line::INDEX_SEGMENT_BYTES / 8;
const _: () = assert!(SEGMENT_WORDS.is_multiple_of(BUCKET_WORDS));

/// The tables by name, and what dropped ones left behind.
pub(super) struct Tables {
    by_name: BTreeMap<String, Arc<Table>>,
    random: StdRng,
    last_id: u32,
    /// Records of the catalog that were never used.
    next_record: u32,
    /// Records that may be used again, longest unused first.
    free_records: VecDeque<u32>,
}

impl Tables {
    pub(super) fn new(random: StdRng) -> Self {
        Self {
            by_name: BTreeMap::new(),
            random,
            last_id: 0,
            next_record: 0,
            free_records: VecDeque::new(),
        }
    }

    fn get(&self, name: &str) -> Result<&Arc<Table>, RpcError> {
        self.by_name.get(name).ok_or_else(|| {
            let text = format!("there is no table {name:?}");
            RpcError::new(ErrorCode::NoSuchTable, text)
        })
    }

    /// The floors of all, this one having that.
    fn floors_with(&self, name: &str, floor_bytes: u64) -> u64 {
        let others = self.by_name.values().filter(|table| table.name() != name);
        let floors = others.map(|table| table.options().floor_bytes);
        floors.fold(floor_bytes, u64::saturating_add)
    }

    fn take_record(&mut self) -> Result<u32, RpcError> {
        if self.next_record < TABLES_MAX as u32 {
            self.next_record += 1;
            return Ok(self.next_record - 1);
        }
        self.free_records.pop_front().ok_or_else(|| {
            let text = format!(
                "{TABLES_MAX} tables exist, or were dropped a moment ago and are known to live \
                 sessions: drop one, or try again in some seconds"
            );
            RpcError::new(ErrorCode::TooLarge, text)
        })
    }
}

fn record_of(table: &Table) -> TableRecord {
    let info = table.info();
    let mut name = [0; TABLE_NAME_MAX_BYTES];
    name[..table.name().len()].copy_from_slice(table.name().as_bytes());
    TableRecord {
        id: info.id.into(),
        flags: flags_of(info.options).into(),
        directory: info.directory.0.into(),
        hash_seed: info.hash_seed.into(),
        secret: info.secret.into(),
        default_ttl_s: info.options.default_ttl_s.into(),
        name_len: (table.name().len() as u32).into(),
        quota_bytes: info.options.quota_bytes.into(),
        reserved: [0; 72],
        name,
        checksum: 0.into(),
    }
    .sealed()
}

fn flags_of(options: TableOptions) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    flag(options.update == UpdateMode::Cas, TABLE_FLAG_CAS)
        | flag(options.evict, TABLE_FLAG_EVICT)
        | flag(options.ordered, TABLE_FLAG_ORDERED)
}

fn check_options(options: TableOptions) -> Result<(), RpcError> {
    match options.contradiction() {
        None => Ok(()),
        Some(why) => Err(RpcError::new(ErrorCode::BadOption, why)),
    }
}

fn check_quota(quota_bytes: u64) -> Result<(), RpcError> {
    if !(1..=TABLE_MIN_BYTES).contains(&quota_bytes) {
        return Ok(());
    }
    let text = format!(
        "a quota of {quota_bytes} bytes: the table's index takes {TABLE_MIN_BYTES} before there is \
         any key; raise the quota, or leave it out"
    );
    Err(RpcError::new(ErrorCode::BadOption, text))
}

fn check_name(name: &str) -> Result<(), RpcError> {
    if name.contains(char::is_control) {
        let text = format!("a table's name, {name:?}, with control characters: leave them out");
        return Err(RpcError::new(ErrorCode::BadOption, text));
    }
    if (1..=TABLE_NAME_MAX_BYTES).contains(&name.len()) {
        return Ok(());
    }
    let text =
        format!("a table's name of {} bytes: it must have 1 to {TABLE_NAME_MAX_BYTES}", name.len());
    let code = if name.is_empty() { ErrorCode::BadOption } else { ErrorCode::TooLarge };
    Err(RpcError::new(code, text))
}

impl Engine {
    /// Makes a table.
    ///
    /// # Errors
    /// `TableExists`, `TooLarge` (name, number of tables), `BadOption`, `OutOfMemory`.
    pub fn create_table(&self, name: &str, options: TableOptions) -> Result<TableInfo, RpcError> {
        check_name(name)?;
        check_options(options)?;
        check_quota(options.quota_bytes)?;
        let mut tables = self.tables.lock();
        if tables.by_name.contains_key(name) {
            let text = format!("there is a table {name:?} already");
            return Err(RpcError::new(ErrorCode::TableExists, text));
        }
        self.promise_floors(tables.floors_with(name, options.floor_bytes))?;
        let seeds = (tables.random.random(), tables.random.random());
        let record = tables.take_record()?;
        let id = tables.last_id + 1;
        if options.update == UpdateMode::Cas {
            self.shared.pool.share();
        }
        let wanted = Wanted::to_read(id, TABLE_MIN_BYTES as usize, Need::Grow);
        let make = || {
            let made = Table::new(id, record, name, options, seeds, self.shared.clone());
            made.map_err(|error| Refused { error, wanted })
        };
        let make_room = |wanted, effort: &mut _| self.shared.make_room(None, wanted, effort);
        let table = match with_room(make, make_room) {
            Ok(table) => Arc::new(table),
            Err(error) => {
                tables.free_records.push_front(record);
                // Less than was promised before.
                self.promise_floors(tables.floors_with(name, 0))?;
                return Err(error);
            }
        };
        tables.last_id = id;
        self.shared.catalog.set_table(record, &record_of(&table));
        tables.by_name.insert(name.to_owned(), table.clone());
        self.list_by_id(&tables);
        Ok(table.info())
    }

    /// Sets all options of a table, but whether it is ordered and how it is updated.
    ///
    /// # Errors
    /// `NoSuchTable`; `BadOption` if one of these is another one, options contradict each other, or
    /// there is no memory for the floors of all; nothing was changed.
    pub fn alter_table(&self, name: &str, options: TableOptions) -> Result<TableInfo, RpcError> {
        let tables = self.tables.lock();
        let table = tables.get(name)?;
        let old = table.options();
        if (options.ordered, options.update) != (old.ordered, old.update) {
            let text = format!(
                "whether a table is ordered, and how it is updated, cannot be changed: make \
                 another table than {name:?} and copy its keys"
            );
            return Err(RpcError::new(ErrorCode::BadOption, text));
        }
        check_options(options)?;
        check_quota(options.quota_bytes)?;
        self.promise_floors(tables.floors_with(name, options.floor_bytes))?;
        table.set_options(options);
        self.set_floors(&tables);
        self.shared.catalog.change_table(table.index.record, &record_of(table));
        Ok(table.info())
    }

    /// What a client needs to read a table.
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn open_table(&self, name: &str) -> Result<TableInfo, RpcError> {
        self.tables.lock().get(name).map(|table| table.info())
    }

    /// All tables, by name.
    #[must_use]
    pub fn list_tables(&self) -> Vec<TableStatus> {
        self.tables_now().into_iter().map(|(table, _)| table).collect()
    }

    /// All tables, and how full their indexes are.
    #[must_use]
    pub fn tables_now(&self) -> Vec<(TableStatus, IndexStatus)> {
        let tables: Vec<_> = self.tables.lock().by_name.values().cloned().collect();
        let logs = self.shared.pool.logs();
        let log = |id| logs.get(&id).copied().unwrap_or_default();
        tables.iter().map(|table| table.status(log(table.id()))).collect()
    }

    /// Bytes that were written for clients, in tables that are gone too: it never goes back.
    pub(super) fn written_bytes(&self) -> u64 {
        // A table is among these or among those before.
        let tables = self.tables.lock();
        let now: u64 = tables.by_name.values().map(|table| table.log.appended_bytes()).sum();
        now + self.shared.cleaner.counts.written_before_bytes.load(Ordering::Relaxed)
    }

    /// Removes a table. Its log is free at once; what `holders`, the sessions that know the table,
    /// may still look at stays until [`Self::reclaim`].
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn drop_table(&self, name: &str, holders: Vec<u64>) -> Result<(), RpcError> {
        let (table, written_bytes) = {
            let mut tables = self.tables.lock();
            let table = tables.get(name)?.clone();
            // Less than was promised before.
            self.promise_floors(tables.floors_with(name, 0))?;
            tables.by_name.remove(name);
            self.list_by_id(&tables);
            let written_bytes = table.log.appended_bytes();
            count(&self.shared.cleaner.counts.written_before_bytes, written_bytes);
            (table, written_bytes)
        };
        self.shared.catalog.clear_table(table.index.record);
        table.end(written_bytes);
        if let Some(order) = &table.order {
            order.end(&table.shared, &table.account);
        }
        let (id, record, pieces) = (table.id(), table.index.record, table.index.pieces());
        let slabs = table.cells.slabs();
        let memory = Memory::Table { id, record, pieces, slabs };
        self.shared.epochs.retire(memory, Some(holders), self.clock_ns());
        Ok(())
    }

    /// A dropped table's place and index are free: no session can look at them any more.
    pub(super) fn free_table(
        &self,
        record: u32,
        pieces: Vec<(LogAddr, usize)>,
        slabs: Vec<LogAddr>,
    ) {
        slabs.into_iter().for_each(|slab| _ = self.shared.pool.give(slab));
        for (addr, len_bytes) in pieces {
            self.shared.meta.give(&self.shared.pool, addr, len_bytes);
        }
        self.tables.lock().free_records.push_back(record);
    }

    fn list_by_id(&self, tables: &Tables) {
        let mut by_id: Vec<_> = tables.by_name.values().cloned().collect();
        by_id.sort_by_key(|table| table.id());
        self.shared.cleaner.know(&by_id);
        self.by_id.store(Arc::new(by_id));
        self.set_floors(tables);
    }

    fn set_floors(&self, tables: &Tables) {
        let with_floor = tables.by_name.values().filter(|table| table.options().floor_bytes > 0);
        self.shared.pool.set_floors(with_floor.map(|table| Arc::clone(&table.account)).collect());
    }
}

impl Table {
    /// No operation begins any more, no miss can be proven, no entry is live, the log is free. So
    /// much of what was written is counted among what was written before.
    fn end(&self, counted_bytes: u64) {
        self.dropped.store(true, Ordering::Release);
        self.index.segments().for_each(|segment| self.end_segment(segment));
        self.log.close(&self.shared.pool, &self.account);
        self.kept.close(&self.shared.pool, &self.account);
        let uncounted_bytes = self.log.appended_bytes() - counted_bytes;
        count(&self.shared.cleaner.counts.written_before_bytes, uncounted_bytes);
    }

    fn end_segment(&self, segment: &Segment) {
        let pool = &self.shared.pool;
        let mut state = segment.state.lock();
        let base = pool.at(segment.addr);
        invalidate(base);
        let mut words = vec![0; SEGMENT_WORDS];
        base.read_words(&mut words);
        if self.is_cas() {
            for slot in super::split::slots(&words) {
                self.kill_shared(slot);
            }
            state.count = 0;
            return;
        }
        let slots = words.chunks_exact(LINE_WORDS).flat_map(|line| &line[1..]);
        for addr in slots.filter_map(|&word| Slot(word).addr()) {
            let at = pool.at(addr);
            let header = header_at(at);
            let len_bytes = header.padded_bytes();
            self.end_counter_of_dropped(addr, header);
            publish::kill(at, Death::Relocated);
            Log::release(pool, &self.account, addr, len_bytes);
        }
        state.count = 0;
        state.contents = Contents::default();
    }

    fn status(&self, log: BlockTotals) -> (TableStatus, IndexStatus) {
        let index = self.index.status();
        let rest_bytes = (self.log.rest_bytes() + self.kept.rest_bytes()) as u64;
        let evicted_for_quota = self.evicted_for_quota.load(Ordering::Relaxed);
        let table = TableStatus {
            name: self.name().to_owned(),
            id: self.id(),
            options: self.options(),
            keys: index.keys,
            live_bytes: log.live,
            log_bytes: log.log,
            index_bytes: self.account.index_bytes(),
            splits: self.index.splits.load(Ordering::Relaxed),
            dead_bytes: log.log.saturating_sub(log.live + rest_bytes),
            free_bytes: rest_bytes,
            written_bytes: self.log.appended_bytes(),
            moved_bytes: self.kept.appended_bytes(),
            expired_entries: self.expired.load(Ordering::Relaxed),
            // Each is looked at once: the difference of the two never goes back.
            evicted_entries: self.evicted_for_memory.load(Ordering::Relaxed) + evicted_for_quota,
            expiry_backlog: self.expiry_round.backlog(),
            payload_bytes: index.payload_bytes,
            padding_bytes: index.padding_bytes,
            evicted_for_quota,
        };
        (table, index)
    }
}
