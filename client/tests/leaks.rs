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

/// Descriptors, and threads, that the server may have more of after forty clients than before the
/// first: its runtime keeps threads for blocking work, as many as were busy at once. What each
/// client of a fabric left would be twenty.
const SERVER_KEEPS: usize = 8;

fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
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
            let names = thread_names();
            let late = start.elapsed() > Duration::from_secs(20);
            assert!(!late, "descriptors, threads: {left}: {names:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let (fds, threads) = descriptors_and_threads();
    for _ in 0..20 {
        use_one(FabricChoice::Tcp);
        use_one(FabricChoice::Shm);
    }
    settled((fds + SERVER_KEEPS, threads + SERVER_KEEPS));
}
