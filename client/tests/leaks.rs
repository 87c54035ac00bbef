//! A client that is dropped leaves neither threads nor descriptors.

use std::time::{Duration, Instant};

use onesided::{FabricChoice, blocking};
use onesided_server::{Server, ServerConfig};

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

fn descriptors_and_threads() -> (usize, usize) {
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn dropped_clients_leave_nothing() {
    let listen = "127.0.0.1:0".to_owned();
    let config = ServerConfig { listen, memory_bytes: 64 << 20, ..ServerConfig::default() };
    let server = Server::start(config).unwrap();
    let url = format!("onesided://{}", server.addr());
    let use_one = |fabric| {
        let client =
            blocking::Client::builder().url(&url).fabric(fabric).connect_blocking().unwrap();
        let table = client.table("default").unwrap();
        drop(client);
        // The table keeps the session.
        table.put("k", "v").unwrap();
        assert_eq!(&table.get("k").unwrap().unwrap()[..], b"v");
    };
    let settled = |at_most: (usize, usize)| {
        let start = Instant::now();
        loop {
            let (fds, threads) = descriptors_and_threads();
            if fds <= at_most.0 && threads <= at_most.1 {
                return;
            }
            let left = format!("{fds} of {}, {threads} of {}", at_most.0, at_most.1);
            assert!(start.elapsed() < Duration::from_secs(20), "descriptors, threads: {left}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let at_first = descriptors_and_threads();
    for fabric in [FabricChoice::Tcp, FabricChoice::Shm] {
        // What the server keeps for the next one may come into being now.
        use_one(fabric);
    }
    std::thread::sleep(Duration::from_millis(500));
    let (fds, threads) = descriptors_and_threads();
    let bound = (fds.max(at_first.0), threads.max(at_first.1));
    for _ in 0..20 {
        use_one(FabricChoice::Tcp);
        use_one(FabricChoice::Shm);
    }
    settled(bound);
}
