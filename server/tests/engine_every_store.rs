//! A reader that looks between any two stores of the engine: what it may see.

mod engine_support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use engine_support::{FakeClock, Raw, RawReader, small};
use onesided_fabric::Memory;
use onesided_fabric::mem::StoreHook;
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{Expect, Ttl};
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
    watch: Arc<Watch>,
    table: Arc<Table>,
}

impl World {
    fn new(config: EngineConfig) -> Self {
        let watch = Arc::new(Watch::default());
        let hook = watch.clone();
        let make = move |_: &str, len_bytes| Memory::hooked(len_bytes, hook.clone());
        let engine = Engine::new(config, Box::new(make), FakeClock::at_s(1_000)).expect("engine");
        // Watched until the process ends.
        let engine: &'static Engine = Box::leak(Box::new(engine));
        let info = engine.create_table("t", TableOptions::default()).expect("table");
        let reader = RawReader::open(engine, "t").expect("in the catalog");
        assert!(watch.reader.set(reader).is_ok());
        let table = engine.table(info.id).expect("by id");
        Self { watch, table }
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
        assert!(self.watch.looks.load(Ordering::Relaxed) >= 2, "nothing was watched");
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
        let look = move |reader: &RawReader<'static>| {
            let n = turn.fetch_add(1, Ordering::Relaxed) as u32 * 7 % next;
            assert_eq!(reader.value(&key(n)), n.to_le_bytes(), "key {n}");
        };
        world.watch(look, || world.put(&key(next), &next.to_le_bytes()));
    }
    assert!(world.table.info().directory.depth() >= 2);
}
