//! A reader that looks between any two stores of the engine: what it may see.

mod engine_support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use engine_support::{FakeClock, Raw, RawReader, small};
use onesided_fabric::Memory;
use onesided_fabric::mem::StoreHook;
use onesided_protocol::control::TableOptions;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_protocol::rules::{Rule, without};
use onesided_server::engine::{Engine, EngineConfig, Table};

type Look = Box<dyn Fn(&RawReader<'static>) + Send>;

/// Lets a look happen before each store.
#[derive(Default)]
struct Watch {
    reader: OnceLock<RawReader<'static>>,
    look: Mutex<Option<Look>>,
    looks: AtomicUsize,
}

impl StoreHook for Watch {
    fn before_store(&self) {
        let look = self.look.lock().expect("no look panicked");
        if let (Some(look), Some(reader)) = (&*look, self.reader.get()) {
            look(reader);
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct World {
    engine: &'static Engine,
    watch: Arc<Watch>,
    table: Arc<Table>,
}

impl World {
    fn new(config: EngineConfig) -> Self {
        let watch = Arc::new(Watch::default());
        let hook = watch.clone();
        let make = move |_: &str, len_bytes, _| Memory::hooked(len_bytes, hook.clone());
        let engine = Engine::new(config, Box::new(make), FakeClock::at_s(1_000)).expect("engine");
        // Watched until the process ends.
        let engine: &'static Engine = Box::leak(Box::new(engine));
        let info = engine.create_table("t", TableOptions::default()).expect("table");
        let reader = RawReader::open(engine, "t").expect("in the catalog");
        assert!(watch.reader.set(reader).is_ok());
        let table = engine.table(info.id).expect("by id");
        Self { engine, watch, table }
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.table.put(key, value, Expect::Any, Ttl::Never, 0).expect("put");
    }

    /// Runs `change`, and `look` before each of its stores and at the end. Gives how often.
    fn watch(&self, look: impl Fn(&RawReader<'static>) + Send + 'static, change: impl FnOnce()) {
        self.watch.looks.store(0, Ordering::Relaxed);
        *self.watch.look.lock().expect("free") = Some(Box::new(look));
        change();
        let look = self.watch.look.lock().expect("free").take().expect("as set");
        look(self.watch.reader.get().expect("set"));
        assert!(self.watch.looks.load(Ordering::Relaxed) >= 1, "nothing was watched");
    }
}

/// What the looks of one change saw, in order and without repeats.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Option<Vec<u8>>>>>);

impl Seen {
    /// Notes a proven answer; a client that has none yet looks again.
    fn note(&self, raw: Raw) {
        let answer = match raw {
            Raw::Hit(_, value) => Some(value),
            Raw::Miss => None,
            Raw::Unproven => return,
        };
        let mut seen = self.0.lock().expect("no look panicked");
        if seen.last() != Some(&answer) {
            seen.push(answer);
        }
    }

    fn all(&self) -> Vec<Option<Vec<u8>>> {
        self.0.lock().expect("no look panicked").clone()
    }
}

fn looks_at(world: &World, key: &'static [u8], change: impl FnOnce()) -> Vec<Option<Vec<u8>>> {
    let seen = Seen::default();
    let notes = seen.clone();
    world.watch(move |reader| notes.note(reader.get(key)), change);
    seen.all()
}

fn values() -> [(Vec<u8>, Vec<u8>); 2] {
    [(b"old".to_vec(), b"a newer one".to_vec()), (vec![1; 20_000], vec![2; 30_000])]
}

#[test]
fn a_reader_sees_an_insert_an_update_and_a_delete_take_effect_once() {
    let world = World::new(small(16 << 20));
    for (old, new) in values() {
        let seen = looks_at(&world, b"k", || world.put(b"k", &old));
        assert_eq!(seen, [None, Some(old.clone())]);
        let seen = looks_at(&world, b"k", || world.put(b"k", &new));
        assert_eq!(seen, [Some(old), Some(new.clone())]);
        let seen = looks_at(&world, b"k", || {
            assert!(world.table.relocate(b"k").expect("relocate"));
        });
        assert_eq!(seen, [Some(new.clone())]);
        let seen = looks_at(&world, b"k", || {
            assert!(world.table.delete(b"k", Expect::Any).expect("delete"));
        });
        assert_eq!(seen, [Some(new), None]);
    }
}

#[test]
fn reuse_of_an_address_at_once_is_never_seen_as_an_answer() {
    let world = World::new(small(16 << 20));
    world.put(b"other", &[9; 900]);
    for n in 0..60_u8 {
        let seen = looks_at(&world, b"k", || world.put(b"k", &[n; 900]));
        let before = n.checked_sub(1).map(|n| vec![n; 900]);
        assert_eq!(seen, [before, Some(vec![n; 900])], "update {n}");
    }
}

#[test]
fn no_key_is_missed_at_any_store_of_a_split() {
    let config = EngineConfig { split_load_percent: 2, ..small(16 << 20) };
    let world = World::new(config);
    let key = |n: u32| format!("key {n}").into_bytes();
    // Up to the split load, so that the next key splits the segment, and on to further splits.
    (0..143).for_each(|n| world.put(&key(n), &n.to_le_bytes()));
    for next in [143_u32, 144, 290, 600] {
        (144..next).for_each(|n| world.put(&key(n), &n.to_le_bytes()));
        let turn = AtomicUsize::new(0);
        let behind = RawReader::open(world.engine, "t").expect("in the catalog").freeze();
        let look = move |reader: &RawReader<'static>| {
            let n = turn.fetch_add(1, Ordering::Relaxed) as u32 * 7 % next;
            assert_eq!(reader.value(&key(n)), n.to_le_bytes(), "key {n}");
            // Who still knows the directory of before looks again, but misses nothing.
            assert_ne!(behind.get(&key(n)), Raw::Miss, "key {n}");
        };
        world.watch(look, || world.put(&key(next), &next.to_le_bytes()));
    }
    assert!(world.table.info().directory.depth() >= 2);
}

/// Clients of one key that remember every slot that ever was, and one that looks afresh.
#[derive(Default)]
struct Clients {
    slots: Vec<Slot>,
    newest: u64,
    contradictions: Vec<String>,
}

impl Clients {
    /// All of them at one instant: none may contradict another, or what was seen before.
    fn look(&mut self, reader: &RawReader<'static>, key: &[u8]) {
        let fresh = reader.get(key);
        for slot in reader.slots_of(key) {
            if !self.slots.contains(&slot) {
                self.slots.push(slot);
            }
        }
        let remembered = self.slots.iter().map(|&slot| reader.follow(slot, key));
        let answers: Vec<Raw> = remembered.chain([fresh]).collect();
        let versions = answers.iter().filter_map(|raw| match raw {
            Raw::Hit(header, _) => Some(header.version),
            Raw::Miss | Raw::Unproven => None,
        });
        let versions: Vec<u64> = versions.collect();
        let missed = answers.contains(&Raw::Miss);
        let differ = versions.iter().any(|version| version != &versions[0]);
        let stale = versions.iter().any(|&version| version < self.newest);
        if differ || stale || (missed && !versions.is_empty()) {
            let newest = self.newest;
            self.contradictions.push(format!("{versions:?}, miss {missed}, seen {newest}"));
        }
        self.newest = versions.into_iter().chain([self.newest]).max().unwrap_or(0);
    }
}

fn contradictions(off: Option<Rule>) -> Vec<String> {
    let world = World::new(small(16 << 20));
    let clients = Arc::new(Mutex::new(Clients::default()));
    for round in 0..24_usize {
        let lookers = clients.clone();
        let look = move |reader: &RawReader<'static>| {
            lookers.lock().expect("no look panicked").look(reader, b"k");
        };
        let change = || match round % 6 {
            // Four entries to a segment: places come back.
            0 | 1 | 3 | 5 => world.put(b"k", &[round as u8; 900]),
            2 => assert!(world.table.relocate(b"k").expect("relocate")),
            _ => assert!(world.table.delete(b"k", Expect::Any).expect("delete")),
        };
        world.watch(look, || without(off, change));
    }
    let clients = clients.lock().expect("no look panicked");
    clients.contradictions.clone()
}

#[test]
fn remembered_slots_never_contradict_and_without_a_rule_they_do() {
    assert_eq!(contradictions(None), [""; 0]);
    for rule in [
        Rule::Pending,
        Rule::InsertPointsFirst,
        Rule::MarkBeforePublish,
        Rule::CleanMarks,
        Rule::DeleteMarks,
    ] {
        assert!(!contradictions(Some(rule)).is_empty(), "nobody noticed that {rule:?} was off");
    }
}
