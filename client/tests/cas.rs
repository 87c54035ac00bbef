//! Tables of mode `cas` over shared memory: updates without the server, from one client and from
//! many.

#[path = "common/children.rs"]
mod children;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use children::{stat, until};
use onesided::{Error, Expect, FabricChoice, PutOptions, TableOptions, Ttl, UpdateMode, blocking};
use onesided_server::{Server, ServerConfig};

const CAS: TableOptions = TableOptions { update: UpdateMode::Cas, ..TableOptions::DEFAULT };

fn server() -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 256 << 20,
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

fn connect(server: &Server, fabric: FabricChoice) -> blocking::Client {
    children::builder(server.addr()).fabric(fabric).connect_blocking().expect("connects")
}

fn shm(server: &Server) -> blocking::Client {
    connect(server, FabricChoice::Shm)
}

#[test]
fn an_update_takes_no_server_and_one_round_trip_and_is_seen_by_all() {
    let server = server();
    let (client, other) = (shm(&server), connect(&server, FabricChoice::Tcp));
    let table = client.create_table("t", CAS).expect("table");
    let others = other.table("t").expect("the table");
    let first = table.put("k", "0").expect("an insert");
    for n in 1..=2_000_u64 {
        let version = table.put("k", n.to_string()).expect("an update");
        assert_eq!(version, first + n);
        if n % 100 == 0 {
            let value = table.get("k").expect("a get").expect("a value");
            assert_eq!((&*value, value.version()), (n.to_string().as_bytes(), version));
            let value = others.get("k").expect("a get").expect("a value");
            assert_eq!((&*value, value.version()), (n.to_string().as_bytes(), version));
        }
    }
    let stats = client.stats();
    assert_eq!(stats.one_sided_puts, 2_000, "{stats:?}");
    assert_eq!((stats.rpc_puts, stats.updates_lost), (1, 0), "{stats:?}");
    // The first one had to look where the entry is.
    assert_eq!(stats.update_round_trips, 2_000, "{stats:?}");
    assert!(stat(&client, "leases") <= 3);
    client.close();
    until("a goodbye gives its leases back", || match stat(&other, "leases") {
        0 => Ok(()),
        leases => Err(leases),
    });
    let value = others.get("k").expect("a get").expect("a value");
    assert_eq!(&*value, b"2000");
    assert_eq!(stat(&other, "cas_broken_keys"), 0);
    server.stop();
}

#[test]
fn conditions_flags_and_times_hold_one_sidedly_too() {
    let server = server();
    let client = shm(&server);
    let table = client.create_table("t", CAS).expect("table");
    let options = PutOptions::default;
    let refused = |result: Result<u64, Error>| assert!(matches!(result, Err(Error::Unexpected(_))));
    refused(table.put_with("k", "a", options().expect(Expect::Present)));
    let first = table.put_with("k", "a", options().expect(Expect::Absent)).expect("an insert");
    refused(table.put_with("k", "b", options().expect(Expect::Absent)));
    refused(table.put_with("k", "b", options().expect(Expect::Version(first + 1))));
    let second = table.put_with("k", "b", options().expect(Expect::Version(first)));
    assert_eq!(second.expect("as expected"), first + 1);
    refused(table.put_with("k", "c", options().expect(Expect::Version(first))));
    let flags = options().user_flags(77).ttl(Ttl::Seconds(1_000)).expect(Expect::Present);
    assert_eq!(table.put_with("k", "c", flags).expect("an update"), first + 2);
    let value = table.get("k").expect("a get").expect("a value");
    assert_eq!((&*value, value.user_flags()), (&b"c"[..], 77));
    assert!(value.expires_at().is_some());
    // What would be gone at once is, and so is its condition.
    table.put_with("k", "d", options().ttl(Ttl::Seconds(0))).expect("an update");
    assert!(table.get("k").expect("a get").is_none());
    refused(table.put_with("k", "e", options().expect(Expect::Present)));
    let again = table.put_with("k", "e", options().expect(Expect::Absent)).expect("an insert");
    assert!(again > first + 3);
    // Large values, and all else, go by RPC and meet the others.
    table.put("k", vec![1; 100_000]).expect("a large one");
    table.put("k", "f").expect("a short one");
    table.append("k", "g").expect("append");
    assert_eq!(&*table.get("k").expect("a get").expect("a value"), b"fg");
    assert!(table.delete("k").expect("delete"));
    assert!(table.put("k", "h").expect("an insert") > again);
    server.stop();
}

/// The time that values live where nothing else is said is the table's, also when an operator has
/// changed it since the client opened the table.
#[test]
fn a_changed_time_to_live_counts_for_who_has_opened_the_table_before() {
    let server = server();
    let client = shm(&server);
    let table = client.create_table("t", CAS).expect("table");
    table.put("k", "0").expect("an insert");
    for default_ttl_s in [1_000, 0] {
        let options = TableOptions { default_ttl_s, ..CAS };
        server.engine().alter_table("t", options).expect("altered");
        let before = client.stats().one_sided_puts;
        let mut puts = 0;
        until("the client learns of it", || {
            table.put("k", "1").expect("an update");
            puts += 1;
            let value = table.get("k").expect("a get").expect("a value");
            let expires = value.expires_at();
            if expires.is_some() == (default_ttl_s > 0) { Ok(()) } else { Err(expires) }
        });
        assert_eq!(client.stats().one_sided_puts - before, puts, "it does not ask the server");
    }
    server.stop();
}

/// Clients that replace one value over and over: each version is given once, and none is missing.
fn hot_key(clients: u64, updates: u64) {
    let server = server();
    let watcher = shm(&server);
    let table = watcher.create_table("t", CAS).expect("table");
    let first = table.put("hot", "0").expect("an insert");
    let over = AtomicBool::new(false);
    let server = &server;
    let all: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let value = table.get("hot").expect("a get").expect("it is always there");
                assert!(value.version() >= last, "{} after {last}", value.version());
                last = value.version();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let write = move |client: u64| {
            let connected = shm(server);
            let table = connected.table("t").expect("the table");
            let put = |n: u64| table.put("hot", format!("{client} {n}")).expect("an update");
            let versions: Vec<u64> = (0..updates).map(put).collect();
            let stats = connected.stats();
            assert_eq!(stats.one_sided_puts + stats.rpc_puts, updates);
            assert!(stats.one_sided_puts > 0, "{stats:?}");
            assert!(versions.is_sorted());
            versions
        };
        let writers: Vec<_> = (0..clients).map(|n| scope.spawn(move || write(n))).collect();
        let all: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        reader.join().expect("it ends");
        all.into_iter().map(|versions| versions.expect("it ends")).collect()
    });
    let given: BTreeSet<u64> = all.iter().flatten().copied().collect();
    assert_eq!(given.len() as u64, clients * updates, "a version was given twice");
    assert_eq!(given.last(), Some(&(first + clients * updates)), "an update was lost");
    let last = table.get("hot").expect("a get").expect("a value");
    assert_eq!(last.version(), first + clients * updates);
    assert_eq!(stat(&watcher, "cas_broken_keys"), 0);
    server.stop();
}

#[test]
fn one_to_sixteen_clients_on_one_key_lose_no_update() {
    for clients in [1, 2, 4, 16] {
        hot_key(clients, 1_600 / clients);
    }
}

/// Compare-and-set by version: a counter that every client adds to.
#[test]
fn compare_and_set_from_many_threads_is_exact() {
    const THREADS: u64 = 4;
    const ADDITIONS: u64 = 300;
    let server = server();
    let client = shm(&server);
    let table = client.create_table("t", CAS).expect("table");
    table.put("n", "0").expect("an insert");
    let lost = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ADDITIONS {
                    loop {
                        let value = table.get("n").expect("a get").expect("a value");
                        let number: u64 =
                            std::str::from_utf8(&value).expect("text").parse().expect("a number");
                        let expect = Expect::Version(value.version());
                        let options = PutOptions::default().expect(expect);
                        match table.put_with("n", (number + 1).to_string(), options) {
                            Ok(_) => break,
                            Err(Error::Unexpected(_)) => _ = lost.fetch_add(1, Ordering::Relaxed),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    let value = table.get("n").expect("a get").expect("a value");
    assert_eq!(&*value, (THREADS * ADDITIONS).to_string().as_bytes(), "{lost:?} lost");
    assert!(client.stats().one_sided_puts > 0);
    server.stop();
}

/// Full of values that are replaced all the time: what clients leave dead is cleaned.
#[test]
fn a_full_table_goes_on_for_ever() {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        // A region for what clients only read, and one for what they write.
        memory_bytes: 128 << 20,
        ..ServerConfig::default()
    };
    let server = Server::start(config).expect("the server starts");
    let client = shm(&server);
    let table = client.create_table("t", CAS).expect("table");
    let key = |n: u32| format!("key-{n}");
    // Until the first refusal, and then a little less than that.
    let mut keys = 0;
    while table.put(key(keys), [1; 16_000]).is_ok() {
        keys += 1;
    }
    let keys = keys * 3 / 4;
    (keys..keys * 2).for_each(|n| _ = table.delete(key(n)).expect("a delete"));
    for round in 0..6_u8 {
        for n in 0..keys {
            table.put(key(n), [round; 16_000]).expect("an update");
        }
    }
    for n in 0..keys {
        let value = table.get(key(n)).expect("a get").expect("a value");
        assert_eq!(&*value, [5; 16_000], "key {n}");
    }
    let stats = client.stats();
    assert!(stats.one_sided_puts > 0, "{stats:?}");
    assert_eq!(stat(&client, "cas_broken_keys"), 0);
    server.stop();
}

/// Callers that wait no longer, in the middle of asking for leases and giving them back.
#[tokio::test]
async fn updates_that_are_given_up_lose_no_leases() {
    let server = server();
    let watcher = shm(&server);
    let builder = children::builder(server.addr()).fabric(FabricChoice::Shm).spin_us(0);
    let client = builder.connect().await.expect("connects");
    let table = client.create_table("t", CAS).await.expect("table");
    table.put("k", "0").await.expect("an insert");
    let mut given_up = 0;
    while given_up < 60 {
        let mut put = Box::pin(table.put("k", [1; 1_000]));
        if put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            given_up += 1;
            drop(put);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    until("what was begun is done, and no lease is forgotten", || {
        let leases = stat(&watcher, "leases");
        if leases <= 3 { Ok(()) } else { Err(leases) }
    });
    let before = client.stats();
    for n in 0..1_000 {
        table.put("k", n.to_string()).await.expect("an update");
    }
    let after = client.stats();
    let one_sided = after.one_sided_puts - before.one_sided_puts;
    assert!(one_sided > 900, "{one_sided} of 1000");
    server.stop();
}
