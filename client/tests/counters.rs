//! Counters against the real server: over shm, where a change is a few instructions, and over tcp,
//! where the server does it.

use onesided::blocking::{Client, Counter, Table};
use onesided::{Error, TableOptions, UpdateMode};
use onesided_server::{Server, ServerConfig};

fn server() -> Server {
    let listen = "127.0.0.1:0".to_owned();
    let config = ServerConfig { listen, memory_bytes: 64 << 20, ..ServerConfig::default() };
    Server::start(config).expect("starts")
}

fn client(server: &Server, fabric: &str) -> Client {
    Client::connect(format!("onesided://{}?fabric={fabric}", server.addr())).expect("connected")
}

fn on_both(body: impl Fn(&Server, &Client, &Table, &str)) {
    for fabric in ["shm", "tcp"] {
        let server = server();
        let client = client(&server, fabric);
        let table = client.table("default").expect("the table");
        body(&server, &client, &table, fabric);
    }
}

#[test]
fn a_counter_counts_and_every_way_to_read_it_agrees() {
    on_both(|_, _, table, fabric| {
        let counter = table.counter("c");
        assert_eq!(counter.get().expect("none yet"), 0);
        assert_eq!(table.get("c").expect("looked"), None, "looking makes none: {fabric}");
        assert_eq!(counter.fetch_add(5).expect("added"), 0);
        assert_eq!(counter.fetch_add(-7).expect("added"), 5);
        assert_eq!(counter.compare_and_swap(3, 9).expect("compared"), -2);
        assert_eq!(counter.compare_and_swap(-2, 9).expect("swapped"), -2);
        assert_eq!(counter.compare_and_swap(i64::MIN, 1).expect("compared"), 9);
        counter.set(40).expect("set");
        assert_eq!(counter.get().expect("there"), 40);
        assert_eq!(table.counter("c").get().expect("there"), 40, "by another handle");
        assert_eq!(table.increment("c", 2).expect("a counter"), 42);
        let value = table.get("c").expect("looked").expect("there");
        assert_eq!(&value[..], b"42");
        let mut into = Vec::new();
        let meta = table.get_into("c", &mut into).expect("looked").expect("there");
        assert_eq!((&into[..], meta.version), (&b"42"[..], value.version()));
        table.put("v", "ordinary").expect("put");
        let many = table.get_many(&["v", "c", "none"]).expect("looked");
        let many: Vec<_> = many.iter().map(|value| value.as_deref()).collect();
        assert_eq!(many, [Some(&b"ordinary"[..]), Some(b"42"), None]);
        let buffer = table.buffer(100);
        let (buffer, got) = table.get_into_registered("c", buffer);
        assert_eq!((&buffer[..], got.expect("looked").is_some()), (&b"42"[..], true));
    });
}

/// A key of a table whose entries clients replace is a value now and a counter then.
#[test]
fn values_that_clients_replace_and_counters_take_turns() {
    let server = server();
    let (client, other) = (client(&server, "shm"), client(&server, "tcp"));
    let options = TableOptions { update: UpdateMode::Cas, ..TableOptions::default() };
    let table = client.create_table("cas", options).expect("made");
    let others = other.table("cas").expect("the table");
    let counter = table.counter("k");
    for n in 0..100_i64 {
        assert_eq!(counter.fetch_add(n).expect("made"), 0);
        assert_eq!(counter.fetch_add(1).expect("added"), n);
        assert_eq!(
            &others.get("k").expect("looked").expect("there")[..],
            (n + 1).to_string().as_bytes()
        );
        (0..3).for_each(|_| _ = table.put("k", "text").expect("put"));
        let error = counter.fetch_add(1).expect_err("it is none any more");
        assert!(matches!(error, Error::WrongType(_)), "{error}");
        assert_eq!(&others.get("k").expect("looked").expect("there")[..], b"text");
        assert!(others.delete("k").expect("deleted"));
    }
    let stats = client.stats();
    assert!(stats.counter_updates >= 100 && stats.one_sided_puts >= 100, "{stats:?}");
}

#[test]
fn what_is_no_counter_and_what_is_out_of_range_is_refused() {
    on_both(|_, _, table, _| {
        table.put("v", "5").expect("put");
        let is_none = |error: Error| assert!(matches!(error, Error::WrongType(_)), "{error}");
        let ordinary = table.counter("v");
        is_none(ordinary.fetch_add(1).expect_err("an ordinary value"));
        is_none(ordinary.get().expect_err("an ordinary value"));
        is_none(ordinary.set(1).expect_err("an ordinary value"));
        let counter = table.counter("c");
        counter.set(Counter::MAX).expect("set");
        for by in [1, i64::MAX, 1 << 40] {
            is_none(counter.fetch_add(by).expect_err("too much"));
        }
        assert_eq!(counter.get().expect("there"), Counter::MAX, "nothing was added");
        is_none(counter.set(Counter::MAX + 1).expect_err("too much"));
        is_none(counter.compare_and_swap(0, Counter::MIN - 1).expect_err("too much"));
        assert_eq!(counter.fetch_add(-(1 << 50)).expect("in steps"), Counter::MAX);
    });
}

/// What is refused was never there: not for others, and not for a moment.
#[test]
fn nobody_sees_an_addition_that_is_refused() {
    const FAR: i64 = Counter::MAX - 5;
    let server = server();
    let clients = ["shm", "shm", "tcp"].map(|fabric| client(&server, fabric));
    let counters = clients.each_ref().map(|client| {
        let counter = client.table("default").expect("the table").counter("c");
        counter.set(FAR).expect("set");
        counter
    });
    let [refused, reads, asks] = &counters;
    std::thread::scope(|scope| {
        let adder = scope.spawn(|| {
            for _ in 0..20_000 {
                let error = refused.fetch_add(6).expect_err("too much");
                assert!(matches!(error, Error::WrongType(_)), "{error}");
            }
        });
        while !adder.is_finished() {
            assert_eq!(reads.get().expect("there"), FAR);
            assert_eq!(asks.fetch_add(0).expect("there"), FAR);
        }
    });
    assert_eq!(refused.fetch_add(5).expect("it fits"), FAR);
}

/// Who could not know that it would lead beyond the range adds all the same.
#[test]
fn an_addition_beyond_the_range_that_was_not_foreseen_counts() {
    let server = server();
    let clients = [(); 2].map(|()| client(&server, "shm"));
    let [late, other] = clients.each_ref().map(|client| {
        let table = client.table("default").expect("the table");
        table.counter("c")
    });
    (0..2).for_each(|n| assert_eq!(late.fetch_add(1).expect("made, and found"), n));
    other.set(Counter::MAX).expect("set");
    assert_eq!(late.fetch_add(7).expect("it saw 2"), Counter::MAX);
    for counter in [&late, &other] {
        let error = counter.fetch_add(1).expect_err("beyond the range");
        assert!(matches!(error, Error::WrongType(_)), "{error}");
        assert_eq!(counter.get().expect("there"), Counter::MAX + 7);
    }
    assert_eq!(other.fetch_add(-2).expect("it leads back"), Counter::MAX + 7);
    let swapped = other.compare_and_swap(Counter::MAX + 5, 3).expect("swapped");
    assert_eq!((swapped, late.get().expect("there")), (Counter::MAX + 5, 3));
    late.set(-4).expect("set");
    let before = clients[0].stats();
    assert_eq!(late.fetch_add(1).expect("added"), -4);
    let after = clients[0].stats();
    assert_eq!(after.counter_updates - before.counter_updates, 1);
    assert_eq!(after.rpc_counters, before.rpc_counters, "without the server again");
}

#[test]
fn who_has_a_deleted_counter_s_place_is_told() {
    on_both(|server, _, table, _| {
        let counter = table.counter("c");
        counter.fetch_add(4).expect("made");
        counter.fetch_add(1).expect("found, and added");
        let others = client(server, "tcp").table("default").expect("the table");
        assert!(others.delete("c").expect("deleted"));
        assert_eq!(table.get("c").expect("looked"), None);
        assert_eq!(counter.get().expect("none"), 0);
        assert_eq!(counter.fetch_add(3).expect("made again"), 0);
        assert_eq!(&table.get("c").expect("looked").expect("there")[..], b"3");
        others.put("c", "text").expect("put in its place");
        let error = counter.fetch_add(1).expect_err("it is none any more");
        assert!(matches!(error, Error::WrongType(_)), "{error}");
        assert_eq!(&table.get("c").expect("looked").expect("there")[..], b"text");
    });
}

#[test]
fn a_counter_of_a_table_that_was_made_anew_begins_anew() {
    on_both(|server, client, _, _| {
        let table = client.create_table("t", TableOptions::default()).expect("made");
        let counter = table.counter("c");
        counter.fetch_add(4).expect("made");
        counter.fetch_add(1).expect("found, and added");
        let other = self::client(server, "tcp");
        other.drop_table("t").expect("dropped");
        other.create_table("t", TableOptions::default()).expect("made again");
        assert_eq!(counter.fetch_add(2).expect("in the new table"), 0);
        assert_eq!(counter.get().expect("there"), 2);
    });
}

#[test]
fn a_change_is_one_round_trip_and_no_request() {
    let server = server();
    let client = client(&server, "shm");
    let counter = client.table("default").expect("the table").counter("c");
    // Made by the server, then found.
    (0..2).for_each(|n| assert_eq!(counter.fetch_add(1).expect("added"), n));
    let before = client.stats();
    let requests = |server: &Server| {
        let stats = server.stats().into_iter();
        stats.filter(|(name, _)| name.starts_with("rpc")).map(|(_, n)| n).sum::<u64>()
    };
    let served = requests(&server);
    for n in 2..1_002 {
        assert_eq!(counter.fetch_add(1).expect("added"), n);
    }
    counter.set(7).expect("set");
    assert_eq!(counter.compare_and_swap(7, 8).expect("swapped"), 7);
    let after = client.stats();
    assert_eq!(after.counter_updates - before.counter_updates, 1_002);
    assert_eq!(after.counter_round_trips - before.counter_round_trips, 1_002);
    assert_eq!(after.counter_retries, before.counter_retries);
    assert_eq!(after.rpc_counters, before.rpc_counters);
    assert_eq!(requests(&server), served);
    assert_eq!(counter.get().expect("there"), 8);
}

/// Clients of both fabrics, some with handles of their own, and gets meanwhile that never go back.
#[test]
fn no_addition_is_lost_and_none_is_done_twice() {
    const EACH: i64 = 300;
    let server = server();
    let fabrics = ["shm", "shm", "tcp", "shm"];
    std::thread::scope(|scope| {
        for fabric in fabrics {
            let server = &server;
            scope.spawn(move || {
                let client = client(server, fabric);
                let table = client.table("default").expect("the table");
                let counter = table.counter("c");
                let mut seen = -1;
                for _ in 0..EACH {
                    let old = counter.fetch_add(1).expect("added");
                    assert!(old > seen, "{old} after {seen}");
                    let value = table.get("c").expect("looked").expect("there");
                    let value: i64 = std::str::from_utf8(&value).unwrap().parse().expect("decimal");
                    assert!(value > old, "{value} after an addition to {old}");
                    seen = value - 1;
                }
            });
        }
    });
    let counter = client(&server, "shm").table("default").expect("the table").counter("c");
    assert_eq!(counter.get().expect("there"), EACH * fabrics.len() as i64);
}

#[test]
fn without_one_sided_updates_the_server_is_asked() {
    let server = server();
    let client = client(&server, "tcp");
    let counter = client.table("default").expect("the table").counter("c");
    (0..10).for_each(|n| assert_eq!(counter.fetch_add(1).expect("added"), n));
    let stats = client.stats();
    assert_eq!((stats.counter_updates, stats.rpc_counters), (0, 10));
}

/// `ADDS=625000 cargo test --release -p onesided --test counters sixteen -- --nocapture` adds ten
/// million times.
#[test]
fn sixteen_threads_of_four_clients_lose_nothing() {
    let each: i64 = std::env::var("ADDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let server = server();
    let clients: Vec<_> = (0..4).map(|_| client(&server, "shm")).collect();
    let begin = std::time::Instant::now();
    std::thread::scope(|scope| {
        for client in clients.iter().cycle().take(16) {
            scope.spawn(|| {
                let counter = client.table("default").expect("the table").counter("c");
                (0..each).for_each(|_| _ = counter.fetch_add(1).expect("added"));
            });
        }
    });
    let took = begin.elapsed();
    let counter = clients[0].table("default").expect("the table").counter("c");
    assert_eq!(counter.get().expect("there"), 16 * each);
    println!("{} additions, {took:?}", 16 * each);
}
