//! The examples do what they say.

#[path = "../examples/parameter_server.rs"]
mod parameter_server;
#[path = "../examples/sequence.rs"]
mod sequence;

use onesided_server::{Server, ServerConfig};

fn server() -> (Server, String) {
    let listen = "127.0.0.1:0".to_owned();
    let tables = vec!["counters".parse().expect("a name")];
    let memory_bytes = 64 << 20;
    let config = ServerConfig { listen, memory_bytes, tables, ..ServerConfig::default() };
    let server = Server::start(config).expect("starts");
    let url = format!("onesided://{}", server.addr());
    (server, url)
}

#[test]
fn sequence_numbers_are_unique_and_without_gaps() {
    let (_server, url) = server();
    for fabric in ["shm", "tcp"] {
        let url = format!("{url}?fabric={fabric}");
        let mut numbers = sequence::take(&url, 4, 500).expect("numbers");
        numbers.sort_unstable();
        let first = numbers[0];
        assert!(numbers.iter().zip(first..).all(|(&number, n)| number == n), "{fabric}");
        assert_eq!(numbers.len(), 2_000);
        assert_eq!(first, if fabric == "shm" { 0 } else { 2_000 }, "they go on where they were");
    }
}

#[test]
fn workers_learn_together() {
    let (_server, url) = server();
    let weights = parameter_server::learn(&url, 4).expect("learnt");
    for (found, right) in weights.iter().zip(parameter_server::LINE) {
        assert!((found - right).abs() < 0.05, "{weights:?}");
    }
}
