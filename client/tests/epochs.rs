//! The client's side of epochs: what the server retires is looked at no more, then acknowledged,
//! while threads go on with one-sided reads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onesided::{Error, FabricChoice, TableOptions, blocking};
use onesided_server::{Server, ServerConfig};

const PATIENCE: Duration = Duration::from_secs(90);
/// Long enough for a busy machine: no session may end here for want of a heartbeat.
const LEASE_MS: u32 = 6_000;
const READERS: usize = 3;

fn server() -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        session_lease_ms: LEASE_MS,
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

fn connect(server: &Server, fabric: FabricChoice) -> blocking::Client {
    let url = format!("onesided://{}", server.addr());
    let builder = blocking::Client::builder().url(url).fabric(fabric);
    builder.connect_blocking().expect("connects")
}

fn stat(client: &blocking::Client, name: &str) -> u64 {
    let stats = client.server_stats().expect("stats");
    stats.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Says that it is over when it is dropped: readers that go on would hide a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads keys of a table that is dropped meanwhile, and made again: values are there, or the table
/// is not. A miss would be a lie. Gives the hits.
fn read(table: &blocking::Table, keys: usize, over: &AtomicBool) -> u64 {
    let mut hits = 0;
    for n in (0..keys).cycle() {
        match table.get(key(n)) {
            Ok(Some(value)) => {
                assert_eq!(value.as_ref(), key(n).as_slice());
                hits += 1;
            }
            Ok(None) => panic!("key {n} is said to be absent"),
            Err(Error::NoSuchTable(_)) => return hits,
            Err(error) => panic!("{error}"),
        }
        if over.load(Ordering::Relaxed) {
            return hits;
        }
    }
    hits
}

fn key(n: usize) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// While threads read without a pause, tables go and their memory is used again.
#[test]
fn dropped_tables_give_their_index_back_under_readers() {
    let server = server();
    let clients = [(); 2].map(|()| connect(&server, FabricChoice::Auto));
    let other = connect(&server, FabricChoice::Tcp);
    let (over, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    let reading = AtomicUsize::new(0);
    let stays = other.table("default").expect("the table");
    (0..500).for_each(|n| _ = stays.put(key(n), key(n)).expect("a put"));
    std::thread::scope(|scope| {
        let stays = clients[0].table("default").expect("the table");
        let (over, hits, reading, clients) = (&over, &hits, &reading, &clients);
        scope.spawn(move || hits.fetch_add(read(&stays, 500, over), Ordering::Relaxed));
        let _also_if_it_panics = Over(over);
        for round in 1..=6 {
            other.create_table("short", TableOptions::default()).expect("made");
            let short = other.table("short").expect("the table");
            (0..100).for_each(|n| _ = short.put(key(n), key(n)).expect("a put"));
            let readers: Vec<_> = (0..READERS)
                .map(|n| {
                    let table = clients[n % 2].table("short").expect("the table");
                    scope.spawn(move || {
                        let first = table.get(key(0)).expect("it is there").is_some();
                        reading.fetch_add(1, Ordering::Relaxed);
                        u64::from(first) + read(&table, 100, over)
                    })
                })
                .collect();
            eventually("all read", || reading.load(Ordering::Relaxed) == round * READERS);
            std::thread::sleep(Duration::from_millis(20));
            other.drop_table("short").expect("dropped");
            let ended = readers.into_iter().map(|reader| reader.join().expect("a reader"));
            assert!(ended.sum::<u64>() > 0);
            eventually("its index comes back", || stat(&other, "memory_quarantined_bytes") == 0);
        }
    });
    assert!(hits.load(Ordering::Relaxed) > 1_000);
    assert_eq!(stat(&other, "sessions_fenced"), 0);
    assert_eq!(stat(&other, "sessions"), 3);
    assert!(clients.iter().all(|client| client.stats().reconnects == 0));
}

/// Regions go back to the system while clients read what was in them.
#[test]
fn regions_go_back_under_readers() {
    const KEYS: usize = 2_000;
    let server = Server::start(ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        region_bytes: 4 << 20,
        session_lease_ms: LEASE_MS,
        shrink_after_s: 1,
        ..ServerConfig::default()
    })
    .expect("the server starts");
    let clients = [(); 2].map(|()| connect(&server, FabricChoice::Auto));
    let tables = clients.each_ref().map(|client| client.table("default").expect("the table"));
    let long = vec![7; 12_000];
    (0..KEYS).for_each(|n| _ = tables[0].put(key(n), key(n)).expect("a put"));
    (0..KEYS).for_each(|n| _ = tables[0].put([b"x", &key(n)[..]].concat(), &long).expect("a put"));
    let before = stat(&clients[0], "memory_region_bytes");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (over, [table, again]) = (&over, &tables);
        let readers = [table, again, again].map(|t| scope.spawn(move || read(t, KEYS, over)));
        for n in 0..KEYS {
            table.delete([b"x", &key(n)[..]].concat()).expect("deleted");
        }
        eventually("most of the memory is given back", || {
            let bytes = ["memory_region_bytes", "memory_retired_bytes"];
            let [there, retired] = bytes.map(|name| stat(&clients[0], name));
            there <= before / 2 && retired == 0
        });
        over.store(true, Ordering::Relaxed);
        let hits: u64 = readers.into_iter().map(|reader| reader.join().expect("a reader")).sum();
        assert!(hits > 1_000, "{hits} hits");
    });
    assert_eq!(stat(&clients[0], "sessions_fenced"), 0);
    assert!(clients.iter().all(|client| client.stats().reconnects == 0));
    let mapped = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    let regions = mapped.lines().filter(|line| line.contains("onesided-region")).count();
    // The server's mapping of each, and those of two clients.
    assert!(regions <= 3 * before as usize / 2 / (4 << 20), "{regions} mappings of regions");
}

/// An idle client acknowledges too, and so does one that has no one-sided reads.
#[test]
fn clients_that_do_nothing_hold_nothing() {
    let server = server();
    let clients = [FabricChoice::Auto, FabricChoice::Tcp].map(|fabric| connect(&server, fabric));
    let tables = clients.each_ref().map(|client| client.table("default").expect("the table"));
    assert!(tables.iter().all(|table| matches!(table.get("nothing"), Ok(None))));
    clients[1].drop_table("default").expect("dropped");
    assert!(tables.iter().all(|table| matches!(table.get("a"), Err(Error::NoSuchTable(_)))));
    eventually("it comes back", || stat(&clients[1], "memory_quarantined_bytes") == 0);
    assert_eq!((stat(&clients[1], "sessions"), stat(&clients[1], "sessions_fenced")), (2, 0));
}
