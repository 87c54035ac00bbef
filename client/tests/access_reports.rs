//! What a server is told of reads that it does not see.

use std::time::{Duration, Instant};

use onesided::blocking::Client;
use onesided::{FabricChoice, TableOptions};
use onesided_server::{Server, ServerConfig};

/// Fewer than a thread keeps while nobody tells of them, so that none is dropped.
const GETS: u64 = 4_000;

fn reported(client: &Client) -> u64 {
    let stats = client.server_stats().expect("stats");
    let name = "clients_reported_accesses";
    stats.into_iter().find_map(|(stat, value)| (stat == name).then_some(value)).expect(name)
}

/// GETs keys of a table, and says how many of these GETs the server heard of.
fn told(evict: bool, every: u32) -> u64 {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        // Heartbeats come four times as often.
        session_lease_ms: 2_000,
        ..ServerConfig::default()
    };
    let server = Server::start(config).expect("a server");
    let client = onesided::Client::builder()
        .url(format!("onesided://{}", server.addr()))
        .fabric(FabricChoice::Shm)
        .access_sample_every(every)
        .connect_blocking()
        .expect("a client");
    let options = TableOptions { evict, ..TableOptions::default() };
    let table = client.create_table("t", options).expect("a table");
    table.put("k", "v").expect("put");
    let pairs: Vec<_> = (0..10).map(|n| (format!("key {n}"), "v")).collect();
    table.put_many(&pairs).into_iter().for_each(|put| _ = put.expect("put"));
    let keys: Vec<_> = pairs.iter().map(|(key, _)| key).collect();
    for _ in 0..GETS / 20 {
        for key in &keys {
            table.get(key).expect("get").expect("there");
        }
        assert!(table.get_many(&keys).expect("get_many").iter().all(Option::is_some));
    }
    // With the next heartbeat at the latest. What is not to come does not come then either.
    let until = Instant::now() + Duration::from_secs(if evict && every == 1 { 20 } else { 2 });
    while reported(&client) < GETS && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    reported(&client)
}

#[test]
fn a_table_that_evicts_is_told_of_every_get_or_of_one_in_some() {
    assert_eq!(told(true, 1), GETS);
    let one_in_eight = told(true, 8);
    assert!((GETS / 16..GETS / 4).contains(&one_in_eight), "{one_in_eight} of {GETS}");
}

#[test]
fn others_are_told_of_none() {
    assert_eq!((told(true, 0), told(false, 1)), (0, 0));
}
