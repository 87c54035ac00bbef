//! Scans of ordered tables against the real server, over tcp and shm.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use onesided::blocking::{Client, Table};
use onesided::{Error, FabricChoice, KeyRange, PutOptions, TableOptions, Ttl, Value};
use onesided_server::{Server, ServerConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ORDERED: TableOptions = TableOptions { ordered: true, ..TableOptions::DEFAULT };

fn server(memory_bytes: usize) -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes,
        segment_bytes: 128 << 10,
        ..ServerConfig::default()
    };
    Server::start(config).expect("a server")
}

fn connect(server: &Server, fabric: FabricChoice) -> Client {
    let url = format!("onesided://{}", server.addr());
    Client::builder().url(url).fabric(fabric).connect_blocking().expect("connected")
}

fn on_both(memory_bytes: usize, body: impl Fn(&Client, &Table, FabricChoice)) {
    for fabric in [FabricChoice::Shm, FabricChoice::Tcp] {
        let server = server(memory_bytes);
        let client = connect(&server, fabric);
        let table = client.create_table("ordered", ORDERED).expect("made");
        body(&client, &table, fabric);
    }
}

fn text(pairs: &[(Vec<u8>, Value)]) -> Vec<(&str, &str)> {
    let text = |bytes| std::str::from_utf8(bytes).expect("text");
    pairs.iter().map(|(key, value)| (text(key), text(value))).collect()
}

#[test]
fn from_a_key_by_prefix_and_page_by_page() {
    on_both(64 << 20, |_, table, _| {
        assert!(table.scan("", 10).expect("a scan").is_empty());
        for (key, value) in [("b", "2"), ("a", "1"), ("user:2", "y"), ("user:1", "x"), ("z", "9")] {
            table.put(key, value).expect("stored");
        }
        let all = table.scan("", 100).expect("a scan");
        let expected = [("a", "1"), ("b", "2"), ("user:1", "x"), ("user:2", "y"), ("z", "9")];
        assert_eq!(text(&all), expected);
        assert_eq!(text(&table.scan("b", 2).expect("a scan")), expected[1..3]);
        assert_eq!(text(&table.scan("ba", 2).expect("a scan")), expected[2..4]);
        assert!(table.scan("zz", 2).expect("a scan").is_empty());
        assert!(table.scan("", 0).expect("a scan").is_empty());
        assert_eq!(text(&table.scan_prefix("user:", 9).expect("a scan")), expected[2..4]);
        let range = KeyRange::prefix("user:").after("user:1");
        assert_eq!(text(&table.scan_range(&range, 9).expect("a scan")), expected[3..4]);
        let range = KeyRange::all().after("z");
        assert!(table.scan_range(&range, 9).expect("a scan").is_empty());
        assert!(table.delete("b").expect("deleted"));
        assert_eq!(table.scan("", 9).expect("a scan").len(), 4);
    });
}

/// Values of every kind, many pages, expired ones among them.
#[test]
fn a_scan_is_the_map_in_order() {
    on_both(256 << 20, |client, table, fabric| {
        let random = &mut SmallRng::seed_from_u64(3);
        let mut model = BTreeMap::new();
        for n in 0..3_000_u32 {
            let key = random.random_range(0..1_000_000_u32).to_string();
            let len = match n % 100 {
                0 => 40_000,
                1..20 => 2_000,
                _ => 60,
            };
            let value: Vec<u8> = (0..len).map(|at| (at as u32 ^ n) as u8).collect();
            let ttl = if n % 10 == 0 { Ttl::Seconds(0) } else { Ttl::Never };
            table.put_with(&key, &value, PutOptions::default().ttl(ttl)).expect("stored");
            match ttl {
                Ttl::Never => drop(model.insert(key.into_bytes(), value)),
                _ => drop(model.remove(key.as_bytes())),
            }
        }
        let before = client.stats();
        for (from, limit) in [("", usize::MAX), ("5", 1_000), ("77", 1), ("9", 5_000)] {
            let met = table.scan(from, limit).expect("a scan");
            let expected = model.range(from.as_bytes().to_vec()..).take(limit);
            let met = met.iter().map(|(key, value)| (key.clone(), value.to_vec()));
            assert!(met.eq(expected.map(|(key, value)| (key.clone(), value.clone()))), "{from}");
        }
        let prefix = table.scan_prefix("42", usize::MAX).expect("a scan");
        assert_eq!(prefix.len(), model.keys().filter(|key| key.starts_with(b"42")).count());
        let stats = client.stats();
        let asked = stats.rpc_gets - before.rpc_gets;
        match fabric {
            FabricChoice::Shm => assert!(asked < 300, "{asked} values were asked for"),
            _ => assert!(asked as usize > model.len()),
        }
        assert!(stats.rpc_scans > before.rpc_scans);
    });
}

#[test]
fn what_cannot_be_scanned_says_why_and_long_keys_can() {
    on_both(64 << 20, |client, table, _| {
        let plain = client.table("default").expect("the table");
        let error = plain.scan("", 1).expect_err("not ordered");
        assert!(matches!(&error, Error::BadOption(text) if text.contains("ordered")), "{error}");
        let error = client.alter_table("default", ORDERED).expect_err("too late");
        assert!(matches!(&error, Error::BadOption(text) if text.contains("another")), "{error}");
        let error = table.scan(vec![0; 65_536], 1).expect_err("too long");
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        // The longest keys come, one by one.
        let long: Vec<_> = (0..3).map(|n| vec![n; 65_535]).collect();
        long.iter().for_each(|key| assert!(table.put(key, "v").is_ok()));
        let met = table.scan("", 9).expect("a scan");
        assert!(met.iter().map(|(key, _)| key).eq(&long));
        let range = KeyRange::all().after(&long[1]);
        assert_eq!(table.scan_range(&range, 9).expect("a scan").len(), 1);
        let server_side = client.server_stats().expect("statistics");
        assert!(server_side.iter().any(|(name, n)| name == "rpc_scan_failed" && *n > 0));
    });
}

/// The number that a value was made from, if it is whole.
fn number_of(value: &[u8]) -> Option<u32> {
    let number = u32::from_le_bytes(*value.first_chunk()?);
    value[4..].iter().all(|&byte| byte == number as u8).then_some(number)
}

fn value(number: u32, len: usize) -> Vec<u8> {
    let mut value = vec![number as u8; len];
    value[..4].copy_from_slice(&number.to_le_bytes());
    value
}

/// Beside writers, in memory so short that segments are cleaned all the time: every key that stays
/// is met once and in order, no value is torn, and none is older than the call.
#[test]
fn beside_writers_scans_meet_what_stays_as_it_is_now() {
    const STAYING: u32 = 300;
    on_both(8 << 20, |client, table, fabric| {
        let key = |n: u32| format!("{n:06}");
        let floor: Vec<_> = (0..STAYING).map(|_| std::sync::atomic::AtomicU32::new(1)).collect();
        for n in 0..STAYING {
            table.put(key(n * 2), value(1, 2_000)).expect("stored");
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 2.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    for n in 0..STAYING {
                        table.put(key(n * 2), value(turn, 2_000)).expect("stored");
                        floor[n as usize].store(turn, Ordering::Release);
                        table.put(key(n * 2 + 1), value(turn, 900)).expect("stored");
                        assert!(table.delete(key(n * 2 + 1)).expect("deleted"));
                    }
                }
            });
            for _ in 0..if fabric == FabricChoice::Shm { 100 } else { 20 } {
                let before: Vec<u32> = floor.iter().map(|n| n.load(Ordering::Acquire)).collect();
                let met = table.scan("", usize::MAX).expect("a scan");
                assert!(met.is_sorted_by(|(a, _), (b, _)| a < b));
                let mut staying = 0;
                for (key, value) in &met {
                    let turn = number_of(value).expect("a whole value");
                    let n: u32 = std::str::from_utf8(key).expect("text").parse().expect("a number");
                    if n.is_multiple_of(2) {
                        staying += 1;
                        assert!(turn >= before[n as usize / 2], "key {n} is stale");
                    }
                }
                assert_eq!(staying, STAYING);
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(client.server_stats().expect("the session lives"));
    });
}

/// What goes while a scan is under way is left out; nothing of it is torn.
#[test]
fn beside_eviction_scans_are_in_order_and_whole() {
    let server = server(8 << 20);
    let client = connect(&server, FabricChoice::Shm);
    let options = TableOptions { evict: true, ..ORDERED };
    let table = client.create_table("cache", options).expect("made");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if done.load(Ordering::Relaxed) && n > 30_000 {
                    break;
                }
                let stored =
                    table.put(format!("{:08}", u64::from(n) * 7_919 % 1_000_003), value(n, 700));
                stored.unwrap_or_else(|error| panic!("{n}: {error}"));
            }
        });
        for n in 0..100_u32 {
            let from = format!("{:08}", n * 10_000);
            let met = table.scan(&from, 500).expect("a scan");
            assert!(met.is_sorted_by(|(a, _), (b, _)| a < b));
            assert!(met.iter().all(|(_, value)| number_of(value).is_some()));
        }
        done.store(true, Ordering::Relaxed);
    });
    let evicted = client.tables().expect("tables");
    assert!(evicted.iter().any(|table| table.evicted_entries > 1_000));
}
