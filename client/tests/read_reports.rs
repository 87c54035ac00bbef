//! What clients count of their own reads reaches the server's metrics, and stays there.

use std::time::{Duration, Instant};

use onesided::blocking::Client;
use onesided::{FabricChoice, FabricKind, Stats, TableOptions};
use onesided_server::{Server, ServerConfig};

fn start() -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        // Heartbeats come four times as often.
        session_lease_ms: 400,
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
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
