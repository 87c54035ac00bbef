//! Memory and descriptors of the process: one test at a time.

mod common;

use std::io::Write;

use common::shm::Shm;
use common::*;
use onesided_protocol::control::{Heartbeat, PURPOSE_CONTROL, ToClient, ToServer};
use onesided_protocol::rpc::{ErrorCode, Op, Reply};
use onesided_server::ServerConfig;
use parking_lot::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn two_thousand_connections() {
    let _alone = ALONE.lock();
    let limited = ServerConfig { max_handshakes: 200, handshake_timeout_ms: 1_000, ..config() };
    let server = start(limited);
    let (mut control, mut good) = connect(server.addr());
    assert!(good.call(1, put(b"k", b"v")).is_ok());
    let before_bytes = rss_bytes();
    let mut held = Vec::new();
    for n in 0..2_000 {
        let mut stream = dial(server.addr());
        if n % 4 == 0 {
            let _closed_already = stream.write_all(&preamble(PURPOSE_CONTROL)[..n % 9]);
        }
        held.push(stream);
        if n % 100 == 0 {
            assert_eq!(good.get(b"k").as_deref(), Some(&b"v"[..]), "after {n} connections");
            let alive = control.ask(&ToServer::Heartbeat(Heartbeat::default()));
            assert!(matches!(alive, ToClient::Alive { .. }));
        }
    }
    let words: Vec<_> = held.into_iter().map(last_words).collect();
    let full = words.iter().filter(|word| **word == Some(ErrorCode::ServerFull)).count();
    assert!(full > 0, "there is a limit, and it is told");
    eventually("nothing is left of them", || control.stat("control_connections") == 1);
    assert_eq!(good.get(b"k").as_deref(), Some(&b"v"[..]));
    assert!(Control::with(server.addr(), hello()).is_ok(), "and new clients are welcome");
    let grown_bytes = rss_bytes().saturating_sub(before_bytes);
    assert!(grown_bytes < 64 << 20, "{grown_bytes} bytes more");
}

#[test]
fn descriptors_of_tcp_clients_come_back() {
    let _alone = ALONE.lock();
    let server = start(config());
    let (mut control, mut good) = connect(server.addr());
    good.ping();
    let before = descriptors();
    for _ in 0..100 {
        let (mut other, mut data) = connect(server.addr());
        data.ping();
        other.ask(&ToServer::Goodbye);
    }
    eventually("descriptors come back", || descriptors() <= before);
    assert_eq!(control.stat("sessions"), 1);
}

#[test]
fn descriptors_of_shm_clients_come_back() {
    let _alone = ALONE.lock();
    let server = start(config());
    let mut good = Shm::open(&server);
    assert!(good.call(1, put(b"k", b"v")).is_ok());
    let before = descriptors();
    for _ in 0..50 {
        let mut client = Shm::open(&server);
        assert_eq!(client.call(0, Op::Ping), Ok(Reply::Pong));
        client.control.ask(&ToServer::Goodbye);
    }
    eventually("descriptors come back", || descriptors() <= before);
    assert_eq!(good.control.stat("endpoints_shm"), 1);
    assert_eq!(good.control.stat("sessions"), 1);
}

#[test]
fn huge_pages_are_asked_for_as_memory_comes_into_use() {
    use onesided_server::config::HugePages;
    let _alone = ALONE.lock();
    for (huge_pages, steps) in [(HugePages::Auto, 2), (HugePages::Off, 0)] {
        let server = start(ServerConfig { huge_pages, memory_bytes: 64 << 20, ..config() });
        let (mut control, mut good) = connect(server.addr());
        assert!(good.call(1, put(b"k", b"v")).is_ok());
        // Index and log are in the first step; two more are ready. The kernel may refuse both.
        let mut asked =
            || control.stat("memory_huge_bytes") + control.stat("memory_huge_refused_bytes");
        eventually("both are answered", || asked() == steps * (2 << 20));
        assert_eq!(good.get(b"k").as_deref(), Some(&b"v"[..]));
        assert_eq!(asked(), steps * (2 << 20), "and no more");
    }
}
