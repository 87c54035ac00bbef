//! A client's statistics in an application's registry.

use onesided::StatsCollector;
use onesided::blocking::Client;
use onesided_server::{Server, ServerConfig};
use prometheus::{Registry, TextEncoder};

fn text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).expect("text")
}

#[test]
fn an_application_shows_its_clients() {
    let listen = "127.0.0.1:0".to_owned();
    let server = Server::start(ServerConfig { listen, ..ServerConfig::default() }).expect("starts");
    let connect = || Client::connect(format!("onesided://{}", server.addr())).expect("connects");
    let (one, two) = (connect(), connect());
    let registry = Registry::new();
    let collector = |client: &Client, name| {
        Box::new(StatsCollector::new(client.as_async(), name).expect("a collector"))
    };
    registry.register(collector(&one, "one")).expect("registered");
    registry.register(collector(&two, "two")).expect("registered");
    assert!(registry.register(collector(&two, "two")).is_err(), "one name, one client");

    let table = one.table("default").expect("opened");
    table.put("k", "v").expect("put");
    for _ in 0..1000 {
        table.get("k").expect("get").expect("there");
    }
    let shown = text(&registry);
    for line in [
        "onesided_client_one_sided_hits_total{client=\"one\",fabric=\"shm\"} 1000",
        "onesided_client_one_sided_hits_total{client=\"two\",fabric=\"shm\"} 0",
        "onesided_client_rpc_puts_total{client=\"one\",fabric=\"shm\"} 1",
        "onesided_client_connected{client=\"two\",fabric=\"shm\"} 1",
        "# TYPE onesided_client_get_duration_seconds histogram",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    let sampled: u64 = one.stats().get_latency.iter().sum();
    let count = "onesided_client_get_duration_seconds_count{client=\"one\",fabric=\"shm\"}";
    assert!(shown.contains(&format!("{count} {sampled}\n")), "{shown}");
    drop(two);
    assert!(!text(&registry).contains("client=\"two\""), "a client that is gone is not kept");
}
