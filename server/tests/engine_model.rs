//! Random operations against a map, checked through the engine and through memory alone.

mod engine_support;

use std::collections::HashMap;

use engine_support::{FakeClock, Raw, RawReader, engine, small};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
use onesided_server::engine::Table;
use proptest::prelude::*;

const DEFAULT_TTL_S: u32 = 50;

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, value: Vec<u8>, expect: Want, ttl: Ttl, flags: u32 },
    Delete { key: u8, expect: Want },
    Append { key: u8, more: Vec<u8> },
    WriteAt { key: u8, offset: u16, bytes: Vec<u8> },
    Increment { key: u8, by: i64 },
    Touch { key: u8, ttl: Ttl },
    Relocate { key: u8 },
    Wait { seconds: u8 },
}

/// An [`Expect`] that can name the version that is there.
#[derive(Clone, Copy, Debug)]
enum Want {
    Any,
    Absent,
    Present,
    Current,
    Older,
}

#[derive(Clone, PartialEq, Debug)]
struct Entry {
    value: Vec<u8>,
    version: u64,
    expiry_s: u64,
    flags: u32,
}

struct Model {
    entries: HashMap<u8, Entry>,
    /// Greatest version that each key ever had.
    seen: HashMap<u8, u64>,
    now_s: u64,
}

fn name(key: u8) -> Vec<u8> {
    // Lengths on both sides of a word, and the empty key.
    b"a-key-with-a-tail"[..usize::from(key) % 18].iter().copied().chain(tag(key)).collect()
}

fn tag(key: u8) -> Option<u8> {
    (key != 0).then_some(key)
}

impl Model {
    fn get(&mut self, key: u8) -> Option<Entry> {
        let now_s = self.now_s;
        let entry = self.entries.get(&key)?;
        if entry.expiry_s != 0 && now_s >= entry.expiry_s {
            self.entries.remove(&key);
            return None;
        }
        Some(entry.clone())
    }

    fn expect(&mut self, key: u8, want: Want) -> (Expect, bool) {
        let version = self.get(key).map(|entry| entry.version);
        let older = version.unwrap_or(1_000).wrapping_sub(1);
        match want {
            Want::Any => (Expect::Any, true),
            Want::Absent => (Expect::Absent, version.is_none()),
            Want::Present => (Expect::Present, version.is_some()),
            Want::Current => (Expect::Version(version.unwrap_or(5)), version.is_some()),
            Want::Older => (Expect::Version(older), false),
        }
    }

    fn expiry(&self, ttl: Ttl) -> u64 {
        match ttl {
            Ttl::Never => 0,
            Ttl::Seconds(seconds) => self.now_s + u64::from(seconds),
            Ttl::TableDefault => self.now_s + u64::from(DEFAULT_TTL_S),
        }
    }

    fn store(&mut self, key: u8, version: u64, value: Vec<u8>, expiry_s: u64, flags: u32) {
        let before = self.get(key).map(|entry| entry.version);
        if let Some(before) = before {
            assert_eq!(version, before + 1, "an update adds 1");
        }
        let seen = self.seen.insert(key, version).unwrap_or(0);
        assert!(version > seen, "version {version} given again, {seen} was given before");
        self.entries.insert(key, Entry { value, version, expiry_s, flags });
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, RpcError>) -> ErrorCode {
    result.expect_err("must be refused").code
}

fn apply(table: &Table, clock: &FakeClock, model: &mut Model, step: Step) {
    match step {
        Step::Wait { seconds } => {
            clock.advance_s(u64::from(seconds));
            model.now_s += u64::from(seconds);
        }
        Step::Put { key, value, expect, ttl, flags } => {
            let (expect, met) = model.expect(key, expect);
            let result = table.put(&name(key), &value, expect, ttl, flags);
            if met {
                let expiry_s = model.expiry(ttl);
                model.store(key, result.expect("put"), value, expiry_s, flags);
            } else {
                assert_eq!(code(result), ErrorCode::Unexpected);
            }
        }
        Step::Delete { key, expect } => {
            let (expect, met) = model.expect(key, expect);
            let result = table.delete(&name(key), expect);
            if met {
                let was_there = model.get(key).is_some();
                assert_eq!(result.expect("delete"), was_there);
                model.entries.remove(&key);
            } else {
                assert_eq!(code(result), ErrorCode::Unexpected);
            }
        }
        Step::Append { key, more } => {
            let version = table.append(&name(key), &more).expect("append");
            let (mut value, expiry_s, flags) = kept(model, key);
            value.extend_from_slice(&more);
            model.store(key, version, value, expiry_s, flags);
        }
        Step::WriteAt { key, offset, bytes } => write_at(table, model, key, offset, &bytes),
        Step::Increment { key, by } => increment(table, model, key, by),
        Step::Touch { key, ttl } => {
            let version = table.touch(&name(key), ttl).expect("touch");
            let old = model.get(key);
            assert_eq!(version.is_some(), old.is_some());
            if let (Some(version), Some(old)) = (version, old) {
                let expiry_s = model.expiry(ttl);
                model.store(key, version, old.value, expiry_s, old.flags);
            }
        }
        Step::Relocate { key } => {
            assert_eq!(table.relocate(&name(key)).expect("relocate"), model.get(key).is_some());
        }
    }
}

fn kept(model: &mut Model, key: u8) -> (Vec<u8>, u64, u32) {
    match model.get(key) {
        Some(old) => (old.value, old.expiry_s, old.flags),
        None => (Vec::new(), model.expiry(Ttl::TableDefault), 0),
    }
}

fn write_at(table: &Table, model: &mut Model, key: u8, offset: u16, bytes: &[u8]) {
    let version = table.write_at(&name(key), offset.into(), bytes).expect("write_at");
    let old = model.get(key);
    assert_eq!(version.is_some(), old.is_some());
    let (Some(version), Some(mut old)) = (version, old) else { return };
    for (at, &byte) in (usize::from(offset)..).zip(bytes) {
        if at >= old.value.len() {
            old.value.resize(at + 1, 0);
        }
        old.value[at] = byte;
    }
    model.store(key, version, old.value, old.expiry_s, old.flags);
}

fn increment(table: &Table, model: &mut Model, key: u8, by: i64) {
    let result = table.increment(&name(key), by);
    let absent = model.get(key).is_none();
    let (value, expiry_s, flags) = kept(model, key);
    let text = String::from_utf8(value).ok().filter(|text| text.len() <= 20);
    let old = if absent { Some(0) } else { text.and_then(|text| text.parse().ok()) };
    match old.and_then(|old: i64| old.checked_add(by)) {
        Some(sum) => {
            let (number, version) = result.expect("increment");
            assert_eq!(number, sum);
            model.store(key, version, sum.to_string().into_bytes(), expiry_s, flags);
        }
        None => assert_eq!(code(result), ErrorCode::WrongType),
    }
}

/// Every key, as the engine gives it and as memory shows it.
fn compare(table: &Table, reader: &RawReader<'_>, model: &mut Model) {
    for key in 0..=u8::MAX {
        let expected = model.get(key);
        let mut value = vec![1, 2, 3];
        let got = table.get(&name(key), &mut value);
        assert_eq!(got.map(|got| got.version), expected.as_ref().map(|e| e.version));
        let Some(expected) = expected else { continue };
        let got = got.expect("compared");
        assert_eq!((&value, got.user_flags), (&expected.value, expected.flags));
        assert_eq!(u64::from(got.expiry_s), expected.expiry_s);
        match reader.get(&name(key)) {
            Raw::Hit(header, value) => {
                assert_eq!((header.version, value), (expected.version, expected.value));
                assert_eq!(u64::from(header.expiry_s), expected.expiry_s);
            }
            other => panic!("key {key} from memory: {other:?}"),
        }
    }
}

fn a_key() -> impl Strategy<Value = u8> {
    prop_oneof![4 => 0..6_u8, 1 => any::<u8>()]
}

fn a_value() -> impl Strategy<Value = Vec<u8>> {
    let text = (-50..50_i64).prop_map(|n| n.to_string().into_bytes());
    let of = |lens: std::ops::Range<usize>| {
        (any::<u8>(), lens).prop_map(|(byte, len): (u8, usize)| vec![byte; len])
    };
    let extreme = prop_oneof![Just(i64::MAX), Just(i64::MIN)];
    let extreme = extreme.prop_map(|n| n.to_string().into_bytes());
    prop_oneof![
        4 => text,
        1 => extreme,
        6 => of(0..300),
        2 => of(16_300..16_500),
        1 => of(17_000..40_000),
    ]
}

fn a_want() -> impl Strategy<Value = Want> {
    use Want::{Absent, Any, Current, Older, Present};
    prop_oneof![
        4 => Just(Any),
        1 => Just(Absent),
        1 => Just(Present),
        1 => Just(Current),
        1 => Just(Older),
    ]
}

fn a_ttl() -> impl Strategy<Value = Ttl> {
    prop_oneof![Just(Ttl::TableDefault), Just(Ttl::Never), (0..40_u32).prop_map(Ttl::Seconds)]
}

fn a_step() -> impl Strategy<Value = Step> {
    let put = (a_key(), a_value(), a_want(), a_ttl(), any::<u32>())
        .prop_map(|(key, value, expect, ttl, flags)| Step::Put { key, value, expect, ttl, flags });
    let by = prop_oneof![-9..9_i64, Just(i64::MAX)];
    prop_oneof![
        8 => put,
        3 => (a_key(), a_want()).prop_map(|(key, expect)| Step::Delete { key, expect }),
        2 => (a_key(), a_value()).prop_map(|(key, more)| Step::Append { key, more }),
        2 => (a_key(), prop_oneof![0..400_u16, any::<u16>()], a_value())
            .prop_map(|(key, offset, bytes)| Step::WriteAt { key, offset, bytes }),
        2 => (a_key(), by).prop_map(|(key, by)| Step::Increment { key, by }),
        1 => (a_key(), a_ttl()).prop_map(|(key, ttl)| Step::Touch { key, ttl }),
        2 => a_key().prop_map(|key| Step::Relocate { key }),
        1 => (1..30_u8).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_engine_is_a_map(steps in prop::collection::vec(a_step(), 1..250)) {
        let (engine, clock) = engine(small(64 << 20));
        let options = TableOptions { default_ttl_s: DEFAULT_TTL_S, ..TableOptions::default() };
        let info = engine.create_table("t", options).expect("table");
        let table = engine.table(info.id).expect("by id");
        let reader = RawReader::open(&engine, "t").expect("in the catalog");
        let now_s = engine.clock_ns() / 1_000_000_000;
        let mut model = Model { entries: HashMap::new(), seen: HashMap::new(), now_s };
        for step in steps {
            apply(&table, &clock, &mut model, step);
        }
        compare(&table, &reader, &mut model);
        // What is dead was given back: nothing but what lives, and one segment being filled.
        let live = engine.memory_status().log_live_bytes;
        for key in 0..=u8::MAX {
            table.delete(&name(key), Expect::Any).expect("delete");
        }
        let status = engine.memory_status();
        prop_assert!(live == 0 || status.log_live_bytes < live);
        prop_assert_eq!(status.log_live_bytes, 0);
        prop_assert!(status.log_bytes <= 4096);
    }
}
