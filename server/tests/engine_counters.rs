//! Counters: numbers in cells that stay where they are, and that say themselves when they end.

mod engine_support;

use std::sync::Arc;

use engine_support::device::{Device, Fate};
use engine_support::{RawReader, engine, small};
use onesided_fabric::Rights;
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::control::{Retired, TableOptions, UpdateMode};
use onesided_protocol::layout::cell::{self, ADD_MAX, NUMBER_MAX, NUMBER_MIN};
use onesided_protocol::layout::state::State;
use onesided_protocol::rpc::{CounterAction, ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::{Acknowledged, Cleaning, Counted, Engine, EngineConfig, Table};

fn table(engine: &Engine, options: TableOptions) -> Arc<Table> {
    let info = engine.create_table("t", options).expect("table");
    engine.table(info.id).expect("by id")
}

fn add(table: &Table, key: &str, by: i64) -> Result<i64, ErrorCode> {
    changed(table.counter(key.as_bytes(), CounterAction::Add { by }))
}

fn changed(done: Result<Counted, RpcError>) -> Result<i64, ErrorCode> {
    match done.map_err(|error| error.code)? {
        Counted::Changed { old, .. } => Ok(old),
        other => panic!("{other:?}"),
    }
}

/// Where a counter's cell is, and its number.
fn find(table: &Table, key: &str) -> Option<(LogAddr, i64)> {
    match table.counter(key.as_bytes(), CounterAction::Find).expect("found or not") {
        Counted::Absent => None,
        Counted::There { cell, number, .. } => Some((cell, number)),
        other => panic!("{other:?}"),
    }
}

/// What a client would read in a cell.
fn word(engine: &Engine, cell: LogAddr) -> u64 {
    let (memory, rights) = engine.region_with_rights(cell.region()).expect("a region");
    assert_eq!(rights, Rights::ReadWrite);
    memory.load(cell.offset_bytes()).expect("inside")
}

fn text(table: &Table, key: &str) -> Option<String> {
    let mut value = Vec::new();
    table.get(key.as_bytes(), &mut value)?;
    Some(String::from_utf8(value).expect("decimal"))
}

#[test]
fn a_counter_is_made_changed_read_and_ended() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    assert_eq!(find(&table, "c"), None);
    assert_eq!(add(&table, "c", 5), Ok(0));
    assert_eq!(add(&table, "c", -7), Ok(5));
    assert_eq!(table.increment(b"c", 10).expect("a counter").0, 8);
    assert_eq!(text(&table, "c").as_deref(), Some("8"));
    let swap = |expected, new| CounterAction::CompareSwap { expected, new };
    assert_eq!(changed(table.counter(b"c", swap(7, 1))), Ok(8));
    assert_eq!(changed(table.counter(b"c", swap(8, 1))), Ok(8));
    assert_eq!(changed(table.counter(b"c", CounterAction::Set { to: 40 })), Ok(1));
    let (cell, number) = find(&table, "c").expect("there");
    assert_eq!((number, cell::number(word(&engine, cell))), (40, Some(40)));
    assert_eq!(table.delete(b"c", Expect::Any), Ok(true));
    assert_eq!(cell::number(word(&engine, cell)), None, "whoever adds now is told");
    assert_eq!((find(&table, "c"), text(&table, "c")), (None, None));
    assert_eq!(add(&table, "c", 1), Ok(0), "it counts from 0 again");
    assert_ne!(find(&table, "c").expect("there").0, cell, "in another cell");
}

const CAS: TableOptions = TableOptions { update: UpdateMode::Cas, ..TableOptions::DEFAULT };

/// Counters and values of the same keys, in a table whose entries clients may replace.
#[test]
fn tables_that_clients_update_have_counters_too() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, CAS);
    for n in 0..50 {
        assert_eq!(add(&table, "c", 5), Ok(0));
        let (cell, _) = find(&table, "c").expect("there");
        assert_eq!(table.relocate(b"c"), Ok(true));
        while engine.clean() {}
        assert_eq!(add(&table, "c", -7), Ok(5));
        assert_eq!(find(&table, "c"), Some((cell, -2)), "it has not moved");
        assert_eq!(text(&table, "c").as_deref(), Some("-2"));
        match n % 2 {
            0 => assert_eq!(table.delete(b"c", Expect::Any), Ok(true)),
            _ => {
                table.put(b"c", b"text", Expect::Any, Ttl::Never, 0).expect("put");
                assert_eq!(add(&table, "c", 1), Err(ErrorCode::WrongType));
                assert_eq!(table.delete(b"c", Expect::Any), Ok(true));
            }
        }
        assert_eq!(cell::number(word(&engine, cell)), None, "whoever adds now is told");
    }
    add(&table, "c", 5).expect("made");
    let (cell, _) = find(&table, "c").expect("there");
    engine.drop_table("t", Vec::new()).expect("drop");
    assert_eq!(cell::number(word(&engine, cell)), None, "whoever adds now is told");
    assert_eq!(engine.cas_status().broken_keys, 0);
}

/// A client can make a counter's entry name any address: the server takes cells of this table only.
#[test]
fn no_entry_that_a_client_wrote_leads_out_of_its_table() {
    let (engine, _) = engine(small(4 << 20));
    let other = engine.create_table("other", TableOptions::default()).expect("table");
    let other = engine.table(other.id).expect("by id");
    add(&other, "theirs", 77).expect("made");
    let (theirs, _) = find(&other, "theirs").expect("there");
    let info = engine.create_table("t", CAS).expect("table");
    let (table, sums) =
        (engine.table(info.id).expect("by id"), ChecksumKey::new(info.secret, None));
    let key = "a key of 16 byte";
    for lie in [theirs.get(), 0, u64::MAX, 1, none_of(&engine)] {
        add(&table, key, 5).expect("made");
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        let addr = reader.slots_of(key.as_bytes())[0].addr().expect("it points");
        // Header, key, and the cell's address; padded.
        let mut bytes = [0; 64];
        let (memory, at) = (engine.region(addr.region()).expect("a region"), addr.offset_bytes());
        memory.read_bytes(at, &mut bytes).expect("inside");
        bytes[48..56].copy_from_slice(&lie.to_le_bytes());
        memory.store(at + 48, lie).expect("writable");
        memory.store(at, State::committed(sums.checksum(addr, &bytes))).expect("writable");
        assert_eq!(add(&table, key, 1), Err(ErrorCode::WrongType), "{lie:#x}");
        assert_eq!(table.delete(key.as_bytes(), Expect::Any), Ok(true), "{lie:#x}");
        assert_eq!(find(&other, "theirs"), Some((theirs, 77)));
    }
}

/// An address in a region that does not exist.
fn none_of(engine: &Engine) -> u64 {
    let none = (0..).find(|&region| engine.region(region).is_none()).expect("few regions");
    LogAddr::new(none, 0).get()
}

#[test]
fn what_ended_unheard_is_ended_once() {
    let (engine, _) = engine(small(4 << 20));
    let device = Device::new();
    engine.set_atomics(device.clone());
    let table = table(&engine, TableOptions::default());
    for by_put in [false, true] {
        assert_eq!(add(&table, "c", 5), Ok(0));
        let (cell, _) = find(&table, "c").expect("there");
        let end = || match by_put {
            false => table.delete(b"c", Expect::Any).map(|_| ()),
            true => table.put(b"c", b"text", Expect::Any, Ttl::Never, 0).map(|_| ()),
        };
        device.set(Fate::Unheard);
        assert_eq!(end().expect_err("whether it ended is unknown").code, ErrorCode::OutcomeUnknown);
        device.set(Fate::Done);
        end().expect("it goes");
        assert_eq!(cell::number(word(&engine, cell)), None, "whoever adds now is told");
        assert_eq!(table.delete(b"c", Expect::Any), Ok(by_put));
    }
}

#[test]
fn what_makes_a_counter_counts_already() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    let make = |key: &str, action| changed(table.counter(key.as_bytes(), action));
    assert_eq!(make("set", CounterAction::Set { to: -3 }), Ok(0));
    assert_eq!(make("met", CounterAction::CompareSwap { expected: 0, new: 9 }), Ok(0));
    assert_eq!(make("unmet", CounterAction::CompareSwap { expected: 1, new: 9 }), Ok(0));
    let texts = ["set", "met", "unmet"].map(|key| text(&table, key));
    assert_eq!(texts, [Some("-3".to_owned()), Some("9".to_owned()), None]);
}

#[test]
fn values_and_counters_do_not_pass_for_each_other() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    add(&table, "c", 5).expect("made");
    let (cell, _) = find(&table, "c").expect("there");
    let refused = [
        table.append(b"c", b"1").map(|_| ()),
        table.write_at(b"c", 0, b"1").map(|_| ()),
        table.touch(b"c", Ttl::Seconds(1)).map(|_| ()),
    ];
    for error in refused.map(|refused| refused.expect_err("it is a counter")) {
        assert!(error.code == ErrorCode::WrongType && error.text.contains("counter"), "{error}");
    }
    assert_eq!(text(&table, "c").as_deref(), Some("5"), "nothing was changed");
    table.put(b"c", b"value", Expect::Present, Ttl::Never, 0).expect("put in its place");
    assert_eq!(cell::number(word(&engine, cell)), None, "it has ended");
    assert_eq!(text(&table, "c").as_deref(), Some("value"));
    for action in [CounterAction::Find, CounterAction::Add { by: 1 }] {
        let error = table.counter(b"c", action).expect_err("it is none");
        assert_eq!(error.code, ErrorCode::WrongType);
    }
}

#[test]
fn numbers_stay_in_their_range() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    let set = |to| changed(table.counter(b"c", CounterAction::Set { to }));
    set(NUMBER_MAX - 5).expect("set");
    for by in [6, i64::MAX, 2 * ADD_MAX as i64, ADD_MAX as i64] {
        assert_eq!(add(&table, "c", by), Err(ErrorCode::WrongType), "{by}");
    }
    assert_eq!(add(&table, "c", 5), Ok(NUMBER_MAX - 5));
    assert_eq!(add(&table, "c", -3 * ADD_MAX as i64), Ok(NUMBER_MAX), "more than one step");
    assert_eq!(set(NUMBER_MIN), Ok(NUMBER_MAX - 3 * ADD_MAX as i64));
    assert_eq!(add(&table, "c", -1), Err(ErrorCode::WrongType));
    assert_eq!(set(NUMBER_MAX + 1), Err(ErrorCode::WrongType));
    assert_eq!(text(&table, "c"), Some(NUMBER_MIN.to_string()));
    assert_eq!(add(&table, "new", i64::MIN), Err(ErrorCode::WrongType));
    assert_eq!(find(&table, "new"), None);
    // A client adds to what it saw far from there.
    let (cell, _) = find(&table, "c").expect("there");
    let memory = engine.region(cell.region()).expect("a region");
    memory.fetch_add(cell.offset_bytes(), (-7_i64).cast_unsigned()).expect("inside");
    assert_eq!(add(&table, "c", -1), Err(ErrorCode::WrongType), "further");
    assert_eq!(add(&table, "c", 3), Ok(NUMBER_MIN - 7), "back");
    assert_eq!(add(&table, "c", i64::MAX), Err(ErrorCode::WrongType), "beyond the other limit");
    assert_eq!(text(&table, "c"), Some((NUMBER_MIN - 4).to_string()));
    assert_eq!(set(0), Ok(NUMBER_MIN - 4));
}

#[test]
fn cells_stay_where_they_are_while_entries_move_and_others_are_evicted() {
    for evict in [false, true] {
        let cleaning = Cleaning::Aggressive;
        let (engine, _) = engine(EngineConfig { cleaning, ..small(2 << 20) });
        let table = table(&engine, TableOptions { evict, ..TableOptions::default() });
        let names: Vec<String> = (0..200).map(|n| format!("counter-{n}")).collect();
        for (n, name) in (0..).zip(&names) {
            add(&table, name, n).expect("made");
        }
        let cells: Vec<_> = names.iter().map(|name| find(&table, name).expect("there")).collect();
        for n in 0..20_000_u32 {
            let key = (if evict { n } else { n % 500 }).to_be_bytes();
            table.put(&key, &[7; 200], Expect::Any, Ttl::Never, 0).expect("there is room");
            engine.clean();
        }
        assert!(engine.memory_status().cleaning.moved_entries > 200);
        for (name, before) in names.iter().zip(cells) {
            assert_eq!(find(&table, name), Some(before), "{name}, evict: {evict}");
        }
        let status = engine.memory_status();
        assert!(status.cells_bytes >= 200 * 16, "{status:?}");
        let sum = status.log_bytes + status.meta_bytes + status.cells_bytes + status.free_bytes;
        assert_eq!(sum, status.limit_bytes, "{status:?}");
    }
}

#[test]
fn cells_come_back_with_the_table_when_no_session_can_know_them() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    (0..1_000).for_each(|n| _ = add(&table, &n.to_string(), 1).expect("made"));
    let (cell, _) = find(&table, "7").expect("there");
    let session = 3;
    engine.drop_table("t", vec![session]).expect("dropped");
    assert_eq!(cell::number(word(&engine, cell)), None, "whoever adds now is told");
    let held = engine.memory_status();
    assert!(held.cells_bytes >= 16_000, "{held:?}");
    let mut acknowledged = Acknowledged {
        epoch: engine.epoch(),
        sessions: [(session, 0)].into(),
        ..Acknowledged::default()
    };
    engine.reclaim(&acknowledged);
    assert_eq!(engine.memory_status().cells_bytes, held.cells_bytes, "it may add still");
    acknowledged.sessions.insert(session, engine.epoch());
    engine.reclaim(&acknowledged);
    assert_eq!(engine.memory_status().cells_bytes, 0);
}

#[test]
fn a_refused_counter_leaves_nothing_behind() {
    let (engine, _) = engine(small(1 << 20));
    let table = table(&engine, TableOptions::default());
    let made = (0..).find(|n| add(&table, &format!("{n:0100}"), 1).is_err()).expect("finite");
    assert!(made > 500, "{made} counters in 1 MiB");
    let full = engine.memory_status();
    for n in made..made + 100 {
        assert_eq!(add(&table, &format!("{n:0100}"), 1), Err(ErrorCode::OutOfMemory));
    }
    let now = engine.memory_status();
    assert_eq!((now.cells_bytes, now.log_live_bytes), (full.cells_bytes, full.log_live_bytes));
    assert_eq!(add(&table, &format!("{:0100}", 5), 1), Ok(1), "those that are there go on");
    assert_eq!(engine.list_tables()[0].keys, made as u64);
}

#[test]
fn threads_lose_no_addition() {
    const THREADS: i64 = 8;
    const EACH: i64 = 2_000;
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    add(&table, "c", 0).expect("made");
    let (cell, _) = find(&table, "c").expect("there");
    let memory = engine.region(cell.region()).expect("a region");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, memory) = (&table, &memory);
            scope.spawn(move || {
                for n in 0..EACH {
                    // As a client over shm does, and by RPC.
                    match (thread + n) % 2 {
                        0 => _ = memory.fetch_add(cell.offset_bytes(), 1).expect("inside"),
                        _ => _ = add(table, "c", 1).expect("there"),
                    }
                }
            });
        }
    });
    assert_eq!(find(&table, "c"), Some((cell, THREADS * EACH)));
}

/// Counters that come and go, beside one that stays.
#[test]
fn cells_of_counters_that_have_gone_are_used_again() {
    let cleaning = Cleaning::Aggressive;
    let (engine, _) = engine(EngineConfig { cleaning, ..small(4 << 20) });
    let table = table(&engine, TableOptions::default());
    add(&table, "stays", 5).expect("made");
    let (session, mut acknowledged) = (3, 0);
    let mut most = 0;
    for n in 0..100_000_i64 {
        let key = n.to_string();
        assert_eq!(add(&table, &key, n), Ok(0));
        assert_eq!(add(&table, &key, 1), Ok(n));
        assert!(table.delete(key.as_bytes(), Expect::Any).expect("deleted"));
        // The session beats now and then, and acknowledges what it was told the time before.
        if n % 200 == 0 {
            let sessions = [(session, acknowledged)].into();
            let epoch = engine.epoch();
            engine.reclaim(&Acknowledged { epoch, sessions, ..Acknowledged::default() });
            (acknowledged, most) = (epoch, most.max(engine.memory_status().cells_bytes));
        }
    }
    assert!(most <= 16 << 10, "{most} bytes for 600 cells that wait at most");
    assert_eq!(find(&table, "stays").map(|(_, number)| number), Some(5));
}

#[test]
fn a_cell_is_another_counter_s_when_no_session_can_know_it() {
    let (engine, _) = engine(small(4 << 20));
    let table = table(&engine, TableOptions::default());
    let ended = |key: &str| {
        add(&table, key, 7).expect("made");
        let (cell, _) = find(&table, key).expect("there");
        table.delete(key.as_bytes(), Expect::Any).expect("deleted");
        cell
    };
    let next = |key: &str| {
        add(&table, key, 1).expect("made");
        find(&table, key).expect("there").0
    };
    let cell = ended("c");
    assert_ne!(next("not retired"), cell);
    engine.retire_cells();
    assert_eq!(engine.retired_after(0), (1, vec![Retired::Cells(table.id())]));
    let held = |sessions, adders| {
        engine.reclaim(&Acknowledged { epoch: engine.epoch(), sessions, adders });
        engine.has_retired()
    };
    let (knows, knows_no_more) = (|| [(3, 0)].into(), || [(3, 1)].into());
    assert!(held(knows(), [].into()), "a session may add to it");
    assert!(held(knows_no_more(), [(2, 0)].into()), "a process may");
    assert_ne!(next("it waits"), cell);
    assert_eq!(cell::number(word(&engine, cell)), None, "whoever adds now is told");
    assert!(!held(knows_no_more(), [].into()));
    assert_eq!(next("another"), cell);
    assert_eq!(word(&engine, cell), 1);
    // One whose table goes comes back with that.
    let cell = ended("last");
    engine.retire_cells();
    engine.drop_table("t", vec![]).expect("dropped");
    engine.reclaim(&Acknowledged::by_all());
    assert_eq!((engine.memory_status().cells_bytes, engine.has_retired()), (0, false), "{cell:?}");
}

/// Where clients can write entries they can let several name one cell.
#[test]
fn cells_that_clients_could_name_twice_are_used_once() {
    let (engine, _) = engine(small(4 << 20));
    let cas = TableOptions { update: UpdateMode::Cas, ..TableOptions::default() };
    let table = table(&engine, cas);
    add(&table, "c", 7).expect("made");
    table.delete(b"c", Expect::Any).expect("deleted");
    engine.retire_cells();
    assert!(!engine.has_retired());
}
