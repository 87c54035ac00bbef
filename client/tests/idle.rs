//! A connection that nobody uses is closed; the session goes on, and the next operation connects
//! again without a failure. `ONESIDED_TEST_FABRIC=verbs` says to do it over RDMA, in a guest.

use std::time::{Duration, Instant};

use onesided::blocking::Client;
use onesided::{FabricChoice, FabricKind};
use onesided_protocol::control::FabricName;
use onesided_server::{Server, ServerConfig};

const LONG: Duration = Duration::from_secs(20);
const IDLE_MS: u64 = 300;

fn fabric() -> (FabricChoice, FabricName) {
    match std::env::var("ONESIDED_TEST_FABRIC").as_deref() {
        Ok("verbs") => (FabricChoice::Verbs, FabricName::Verbs),
        _ => (FabricChoice::Tcp, FabricName::Tcp),
    }
}

fn server(fabric: FabricName) -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        fabrics: vec![FabricName::Shm, fabric],
        ..ServerConfig::default()
    };
    Server::start(config).expect("starts")
}

fn connect(server: &Server, fabric: FabricChoice, idle_ms: u64) -> Client {
    let url = format!("onesided://{}", server.addr());
    let builder = onesided::Client::builder().url(url).fabric(fabric).idle_timeout_ms(idle_ms);
    builder.connect_blocking().expect("connected")
}

fn figure(server: &Server, name: &str) -> u64 {
    let stats = server.stats();
    stats.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// How often a client went on with its session over a new control connection.
fn resumed(server: &Server) -> u64 {
    let metrics = server.metrics();
    let counts =
        metrics.lines().find_map(|line| line.strip_prefix("onesided_sessions_resumed_total "));
    counts.expect("there is such a metric").parse::<f64>().expect("a number") as u64
}

#[track_caller]
fn awaits(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn who_does_nothing_costs_no_connection_and_notices_nothing() {
    let (choice, name) = fabric();
    let server = server(name);
    let client = connect(&server, choice, IDLE_MS);
    let of_fabric = format!("endpoints_{}", client.fabric());
    let table = client.table("default").expect("opens");
    for round in 1..=3 {
        table.put("k", format!("{round}")).expect("put");
        assert_eq!(figure(&server, &of_fabric), 1);
        awaits("it is not closed", || client.stats().idle_closes == round);
        awaits("the server keeps it", || figure(&server, &of_fabric) == 0);
        assert!(!client.stats().connected);
        // Several heartbeats later the session is there.
        assert_eq!(figure(&server, "sessions"), 1);
        // What needs no data path does not bring it back.
        assert!(!client.server_stats().expect("stats").is_empty());
        assert_eq!(figure(&server, &of_fabric), 0);
        match round {
            1 => drop(client.ping().expect("a ping")),
            2 => assert_eq!(table.get("k").expect("get").expect("there"), b"2"[..]),
            _ => drop(table.increment("n", 1).expect("increment")),
        }
        assert!(client.stats().connected);
    }
    let stats = client.stats();
    assert_eq!((stats.reconnects, stats.rpc_retries), (0, 0), "nothing was lost");
    assert_eq!(figure(&server, "sessions"), 1);
    // Where something may still be on its way the server ends the connection before the next one.
    assert_eq!(resumed(&server), if choice == FabricChoice::Verbs { 3 } else { 0 });
}

/// Connections that close at nearly every moment at which one could be used.
#[test]
fn nobody_hears_of_a_close_at_a_bad_moment() {
    let (choice, name) = fabric();
    let server = server(name);
    let client = connect(&server, choice, 1);
    let table = client.table("default").expect("opens");
    let rounds = if choice == FabricChoice::Verbs { 60 } else { 300 };
    for round in 1..=rounds {
        assert_eq!(table.increment("n", 1).expect("increment"), round);
        let value = table.get("n").expect("get").expect("there");
        assert_eq!(value, round.to_string().as_bytes()[..]);
        std::thread::sleep(Duration::from_micros(round as u64 * 37 % 2_500));
    }
    let stats = client.stats();
    assert!(stats.idle_closes > 5, "{stats:?}");
    assert_eq!(stats.reconnects, 0);
}

#[test]
fn shared_memory_stays_and_zero_means_never() {
    let (choice, name) = fabric();
    let server = server(name);
    let near = connect(&server, FabricChoice::Shm, 1);
    let never = connect(&server, choice, 0);
    for client in [&near, &never] {
        client.table("default").expect("opens").put("k", "v").expect("put");
    }
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(near.fabric(), FabricKind::Shm);
    for client in [near, never] {
        assert_eq!((client.stats().idle_closes, client.stats().connected), (0, true));
    }
}
