//! What clients count of their own reads and updates reaches the server's metrics, and stays there.

use std::time::{Duration, Instant};

use onesided::blocking::Client;
use onesided::{FabricChoice, FabricKind, Stats, TableOptions, UpdateMode};
use onesided_server::{Server, ServerConfig};

fn config() -> ServerConfig {
    ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        // Clients report every half second.
        session_lease_ms: 2_000,
        ..ServerConfig::default()
    }
}

fn start() -> Server {
    Server::start(config()).expect("the server starts")
}

fn connect(server: &Server) -> Client {
    Client::connect(format!("onesided://{}", server.addr())).expect("connects")
}

/// The sum over the tables of a name, or one table's.
fn metric(server: &Server, start: &str) -> u64 {
    let text = server.metrics();
    let lines = text.lines().filter_map(|line| line.strip_prefix(start)?.rsplit_once(' '));
    let values = lines.map(|(_, value)| value.parse::<f64>().expect("a number"));
    values.sum::<f64>() as u64
}

fn gets(path: &str, result: &str, table: &str) -> String {
    format!(
        "onesided_client_reported_gets_total{{tenant=\"default\",table=\"{table}\",path=\"{path}\",\
         result=\"{result}\"}}"
    )
}

#[track_caller]
fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_server_shows_what_clients_read_by_table() {
    let server = start();
    let client = connect(&server);
    client.create_table("other", TableOptions::default()).expect("made");
    let [one, two] = ["default", "other"].map(|name| client.table(name).expect("opened"));
    assert_eq!(client.fabric(), FabricKind::Shm);
    one.put("k", "v").expect("put");
    for _ in 0..1000 {
        assert!(one.get("k").expect("get").is_some());
    }
    for _ in 0..7 {
        assert!(two.get("nothing").expect("get").is_none());
    }
    let hits = gets("one_sided", "hit", "default");
    let misses = gets("one_sided", "miss", "other");
    eventually("hits and misses", || {
        (metric(&server, &hits), metric(&server, &misses)) == (1000, 7)
    });
    let stats: Stats = client.stats();
    let shown = |name: &str| metric(&server, &format!("onesided_client_reported_{name}"));
    assert_eq!(shown("reads_total"), stats.reads);
    assert_eq!(shown("read_bytes_total"), stats.read_bytes);
    let sampled: u64 = stats.get_latency.iter().sum();
    assert_eq!(shown("get_duration_seconds_count"), sampled);
    assert!((1..100).contains(&sampled), "one of 256 is timed, at random: {sampled}");
}

#[test]
fn what_was_read_is_told_when_tables_and_clients_go_at_once() {
    let server = start();
    let hits = gets("one_sided", "hit", "default");
    for round in 1..=5 {
        let client = connect(&server);
        let table = client.table("default").expect("opened");
        table.put("k", "v").expect("put");
        for _ in 0..10 {
            assert!(table.get("k").expect("get").is_some());
        }
        drop(table);
        assert_eq!(client.stats().one_sided_hits, 10, "it stays when the table goes");
        drop(client);
        eventually("the goodbye", || metric(&server, &hits) == round * 10);
    }
    eventually("no session is left", || server.metrics().contains("\nonesided_sessions 0\n"));
    assert_eq!(metric(&server, &hits), 50, "it stays when the session goes");
}

fn cas() -> TableOptions {
    TableOptions { update: UpdateMode::Cas, ..TableOptions::default() }
}

/// What the server shows of PUTs and counters of table `t`: one-sided, by RPC, done again.
fn updates_shown(server: &Server) -> [u64; 6] {
    let of = |name: &str, path: &str| {
        let name = format!("onesided_client_reported_{name}_total");
        metric(server, &format!("{name}{{tenant=\"default\",table=\"t\"{path}}}"))
    };
    let [alone, by_rpc] = [",path=\"one_sided\"", ",path=\"rpc\""];
    [
        of("puts", alone),
        of("puts", by_rpc),
        of("lost_swaps", ""),
        of("counter_operations", alone),
        of("counter_operations", by_rpc),
        of("counter_retries", ""),
    ]
}

#[test]
fn one_sided_updates_and_counters_are_told() {
    let server = start();
    let client = connect(&server);
    client.create_table("t", cas()).expect("made");
    let table = client.table("t").expect("opened");
    for n in 0..500u64 {
        table.put("k", n.to_le_bytes()).expect("put");
    }
    let counter = table.counter("c");
    for _ in 0..300 {
        counter.fetch_add(1).expect("added");
    }
    // Another one has changed it meanwhile: this handle has to look again.
    table.counter("c").set(7).expect("set");
    counter.set(9).expect("set");
    let stats = client.stats();
    let counted = [
        stats.one_sided_puts,
        stats.rpc_puts,
        stats.updates_lost,
        stats.counter_updates,
        stats.rpc_counters,
        stats.counter_retries,
    ];
    assert_eq!(stats.one_sided_puts + stats.rpc_puts, 500, "{stats:?}");
    assert!(stats.one_sided_puts > 0 && stats.rpc_puts > 0, "{stats:?}");
    assert!(stats.counter_updates >= 302 && stats.counter_retries > 0, "{stats:?}");
    eventually("updates", || updates_shown(&server) == counted);
    // The same sums by name, for `onesided stats` and `onesided top`.
    let told = |name: &str| {
        let stats = client.server_stats().expect("told");
        stats.into_iter().find(|(stat, _)| stat == name).map(|(_, value)| value)
    };
    assert_eq!(told("clients_reported_one_sided_puts"), Some(stats.one_sided_puts));
    assert_eq!(told("clients_reported_counter_atomics"), Some(stats.counter_updates));
    assert_eq!(told("clients_reported_counter_retries"), Some(stats.counter_retries));
    drop((counter, table, client));
    eventually("no session is left", || server.metrics().contains("\nonesided_sessions 0\n"));
    assert_eq!(updates_shown(&server), counted, "it stays when the session goes");
}

#[test]
fn a_lost_swap_is_told() {
    let server = start();
    let clients = [connect(&server), connect(&server)];
    clients[0].create_table("t", cas()).expect("made");
    let [one, two] = clients.each_ref().map(|client| client.table("t").expect("opened"));
    one.put("k", "by RPC").expect("put");
    // Each remembers the entry that the other one replaces next.
    for n in 0..20u64 {
        one.put("k", n.to_le_bytes()).expect("put");
        two.put("k", n.to_le_bytes()).expect("put");
    }
    let lost: u64 = clients.iter().map(|client| client.stats().updates_lost).sum();
    assert!(lost > 0);
    eventually("lost swaps", || updates_shown(&server)[2] == lost);
}

#[test]
fn a_first_get_is_no_retry() {
    let server = start();
    let client = connect(&server);
    let table = client.table("default").expect("opened");
    table.put("k", "v").expect("put");
    let cold = connect(&server);
    let other = cold.table("default").expect("opened");
    assert!(other.get("k").expect("get").is_some());
    let stats = cold.stats();
    assert_eq!((stats.one_sided_hits, stats.retries), (1, 0), "{stats:?}");
}

#[test]
fn room_for_cas_tables_is_told_from_the_rest() {
    let config = ServerConfig { region_bytes: 4 << 20, ..config() };
    let server = Server::start(config).expect("the server starts");
    let client = connect(&server);
    let of = |name: &str, regions: &str| {
        metric(&server, &format!("onesided_memory_{name}_bytes{{regions=\"{regions}\"}}"))
    };
    let taken = |regions: &str| of("reach", regions) - of("room", regions);
    let limit = metric(&server, "onesided_memory_limit_bytes");
    assert_eq!(of("reach", "read_only"), limit / 64 * 63, "the rest is left to others");
    assert!(!server.metrics().contains("regions=\"writable\""));
    client.create_table("t", cas()).expect("made");
    let table = client.table("t").expect("opened");
    let before = taken("read_only");
    const VALUES: u64 = 96;
    for n in 0..VALUES {
        table.put(n.to_le_bytes(), vec![7; 100_000]).expect("put");
    }
    assert!(taken("writable") >= VALUES * 100_000, "{}", server.metrics());
    assert!(taken("read_only") < before + (4 << 20), "{}", server.metrics());
    assert!(of("reach", "read_only") <= limit - VALUES * 100_000);
    for regions in ["read_only", "writable"] {
        assert!(of("room", regions) <= of("reach", regions));
    }
}

#[test]
fn reads_by_rpc_are_told_apart() {
    let server = start();
    let client = Client::builder()
        .url(format!("onesided://{}", server.addr()))
        .fabric(FabricChoice::Tcp)
        .connect_blocking()
        .expect("connects");
    let table = client.table("default").expect("opened");
    table.put("k", "v").expect("put");
    for _ in 0..600 {
        assert!(table.get("k").expect("get").is_some());
    }
    eventually("GETs by RPC", || metric(&server, &gets("rpc", "unknown", "default")) == 600);
    assert_eq!(metric(&server, "onesided_client_reported_reads_total"), 0);
    let sampled: u64 = client.stats().get_latency.iter().sum();
    assert!(sampled > 0, "GETs by RPC are timed too");
}

#[test]
fn a_client_that_is_told_not_to_reports_nothing() {
    let server = start();
    let url = format!("onesided://{}", server.addr());
    let client = Client::builder().url(url).report_reads(false).connect_blocking();
    let client = client.expect("connects");
    let table = client.table("default").expect("opened");
    table.put("k", "v").expect("put");
    for _ in 0..2000 {
        assert!(table.get("k").expect("get").is_some());
    }
    let stats = client.stats();
    assert_eq!(stats.one_sided_hits, 2000, "it counts for itself all the same");
    assert_eq!(stats.get_latency.iter().sum::<u64>(), 0);
    drop((table, client));
    eventually("no session is left", || server.metrics().contains("\nonesided_sessions 0\n"));
    assert!(!server.metrics().contains("onesided_client_reported_gets_total{"));
}
