//! Histories of many processes, over shm and tcp, with the index splitting under them and clients
//! being killed: linearizable per key, and nothing is left of the dead.

#[path = "common/children.rs"]
mod children;
#[path = "common/journal.rs"]
mod journal;
#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/tide.rs"]
mod tide;
#[path = "common/worker.rs"]
mod worker;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use children::*;
use journal::{Journal, histories};
use onesided::{FabricChoice, FabricKind, TableOptions, UpdateMode, blocking};
use onesided_server::config::Cleaning;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use worker::{KEYS, SHORT_LIVED, Worker, key};

/// Name of the table that clients update.
const CAS: &str = "cas";
const THREADS: u32 = 2;
const WORKERS: u32 = 4;
const VICTIMS: u32 = 6;
/// Operations of one thread, at most: what the checker can take.
const OPERATIONS_MAX: usize = 12_000;
const BURST: usize = 20;
/// Keys that come to the table meanwhile; fewer where all of them move all the time.
const FILLERS: usize = 150_000;
const FILLERS_MOVING: usize = 30_000;
/// So many are too many for an index's first segment.
const SPLITTING: usize = 5_000;

#[derive(Serialize, Deserialize)]
enum Role {
    Server(ServerRole),
    Work(Work),
}

#[derive(Clone, Serialize, Deserialize)]
struct Work {
    addr: SocketAddr,
    is_tcp: bool,
    table: String,
    directory: PathBuf,
    /// Of its first thread.
    client: u32,
    seed: u64,
    /// To be killed: never at rest.
    is_victim: bool,
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Server(role)) => serve(role),
        Some(Role::Work(role)) => work(&role),
    }
}

fn connect(addr: SocketAddr, is_tcp: bool) -> blocking::Client {
    let fabric = if is_tcp { FabricChoice::Tcp } else { one_sided() };
    builder(addr).fabric(fabric).connect_blocking().expect("connects")
}

/// Operations at random until the parent has enough of them.
fn work(role: &Work) {
    let client = connect(role.addr, role.is_tcp);
    let table = client.table(&role.table).expect("the table");
    let enough = Told::listen();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, enough) = (&table, &enough);
            scope.spawn(move || {
                let number = role.client + thread;
                let random = SmallRng::seed_from_u64(role.seed ^ u64::from(number));
                let journal = Journal::create(&role.directory, number);
                let mut worker = Worker::new(table, random, journal).has_short_lived();
                for n in 0..scaled(OPERATIONS_MAX) / BURST {
                    if enough.over() {
                        break;
                    }
                    (0..BURST).for_each(|_| worker.step());
                    if n == 2 && thread == 0 {
                        tell("working", "");
                    }
                    if !role.is_victim {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
    });
    if !role.is_tcp {
        let stats = client.stats();
        let updates = stats.one_sided_puts > 0;
        assert_eq!(updates, role.table == CAS, "{stats:?}");
        // Where slots lag GETs ask, more or fewer.
        let most = if updates { u64::MAX } else { stats.one_sided_hits };
        assert!(most > stats.rpc_gets, "GETs are one-sided: {stats:?}");
    }
    // A victim stays to be killed.
    while !enough.over() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Inserts other keys, so that the index splits all the time.
fn fill(table: &blocking::Table, fillers: usize) {
    for n in (0..scaled(fillers)).step_by(50) {
        let pairs: Vec<_> = (n..n + 50).map(|n| (format!("filler-{n}"), "x")).collect();
        table.put_many(&pairs).into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Workers until the table has grown, and victims that are killed in the middle of what they do.
fn record(
    daemon: &Daemon,
    table: &blocking::Table,
    fillers: usize,
    (directory, seed): (&Path, u64),
) {
    let spawn = |number: u32| {
        let (addr, directory) = (daemon.addr, directory.to_owned());
        let client = number * THREADS;
        let is_victim = number >= WORKERS;
        let table = table.name().to_owned();
        let is_tcp = number % 2 == 1;
        let work = Work { addr, is_tcp, table, directory, client, seed, is_victim };
        Process::spawn(&Role::Work(work))
    };
    let mut workers: Vec<_> = (0..WORKERS).map(spawn).collect();
    workers.iter_mut().for_each(|worker| drop(worker.hear("working")));
    std::thread::scope(|scope| {
        scope.spawn(|| fill(table, fillers));
        let mut random = SmallRng::seed_from_u64(seed);
        for number in 0..VICTIMS {
            let mut victim = spawn(WORKERS + number);
            victim.hear("working");
            std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
            victim.kill();
        }
    });
    workers.iter_mut().for_each(Process::say);
    workers.into_iter().for_each(Process::join);
}

/// All that is short-lived ends, whatever its key had before.
fn outlive(client: &blocking::Client, name: &str, (directory, seed): (&Path, u64)) {
    let table = &client.table(name).expect("the table");
    let journal = Journal::create(directory, (WORKERS + VICTIMS) * THREADS);
    let mut worker = Worker::new(table, SmallRng::seed_from_u64(seed), journal);
    let all = KEYS..KEYS + SHORT_LIVED;
    for n in all.clone() {
        worker.put_short_lived(n);
        worker.get(n);
    }
    until("they end", || {
        match all.clone().find(|&n| table.get(key(n)).expect("a GET").is_some()) {
            None => Ok(()),
            lives => Err(lives),
        }
    });
    all.for_each(|n| worker.get(n));
}

/// What the server keeps open, but for the memory of regions.
fn descriptors(daemon: &Daemon, client: &blocking::Client) -> u64 {
    match daemon.process() {
        Some(_) => daemon.descriptors() as u64 - stat(client, "memory_regions"),
        None => 0,
    }
}

#[test]
fn histories_of_many_processes_are_linearizable_and_the_killed_leave_nothing() {
    many_processes("default");
}

/// The same with clients that update entries by themselves, beside those that ask.
#[test]
fn so_they_are_where_clients_update_and_no_lease_is_left() {
    if clients_update() {
        many_processes(CAS);
    }
}

/// And while the cleaner moves what clients update, and regions come and go.
#[test]
fn so_they_are_where_clients_update_and_all_entries_move() {
    if clients_update() {
        linearizable(moving(), CAS, FILLERS_MOVING);
    }
}

/// Over a device it takes a guest of its own: `tools/guests/tests/cas_one.sh`.
fn clients_update() -> bool {
    one_sided_kind() != FabricKind::Verbs || std::env::var_os("ONESIDED_TEST_CAS").is_some()
}

fn many_processes(name: &str) {
    let role = ServerRole {
        session_lease_ms: patience_ms(3_000),
        memory_mib: 1024,
        ..ServerRole::default()
    };
    linearizable(role, name, FILLERS);
}

/// The same while the cleaner moves all entries all the time, and regions come and go.
#[test]
fn they_are_while_all_entries_move_and_regions_go() {
    linearizable(moving(), "default", FILLERS_MOVING);
}

fn moving() -> ServerRole {
    ServerRole {
        session_lease_ms: patience_ms(3_000),
        memory_mib: 128,
        region_mib: 1,
        cleaning: Cleaning::Aggressive,
        shrink_after_s: 1,
        ..ServerRole::default()
    }
}

/// Every key's is linearizable, and some of the killed were in the middle of a call.
fn check_histories(directory: &Path) {
    let by_key = histories(directory);
    let total: usize = by_key.values().map(Vec::len).sum();
    let open = by_key.values().flatten().filter(|o| o.answer.is_none()).count();
    println!("{total} operations, {open} of the killed without an answer");
    assert!(open > 0, "none was killed in the middle of a call");
    assert_eq!(by_key.len(), KEYS + SHORT_LIVED);
    for (n, history) in by_key {
        linearize::check(&history).unwrap_or_else(|failure| panic!("key {n}: {failure}"));
    }
}

fn linearizable(role: ServerRole, name: &str, fillers: usize) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let regions_go = role.shrink_after_s == 1;
    let daemon = Daemon::start(role, Role::Server);
    if regions_go && daemon.process().is_none() {
        // A server on another host was told what all tests want, and has their keys.
        return;
    }
    let client = connect(daemon.addr, false);
    let options = TableOptions { update: UpdateMode::Cas, ..TableOptions::default() };
    let table = match name {
        CAS => client.create_table(CAS, options),
        name => client.table(name),
    };
    let table = table.expect("the table");
    // What the server keeps for the next one comes into being.
    drop(connect(daemon.addr, true));
    drop(connect(daemon.addr, false));
    // A device's connection with itself, by which a server changes words.
    let asks = connect(daemon.addr, true);
    let counter = asks.table(name).expect("the table").counter("first");
    // The first makes it; the second changes a word.
    (0..2).for_each(|_| _ = counter.fetch_add(1).expect("added"));
    drop((counter, asks));
    let at_rest = || {
        let one_sided = format!("endpoints_{}", one_sided_kind());
        ["sessions", one_sided.as_str(), "endpoints_tcp", "control_connections"]
            .map(|name| stat(&client, name))
    };
    let rest = |what: &str| {
        until(what, || match at_rest() {
            [1, 1, 0, 1] => Ok(()),
            more => Err(more),
        });
    };
    rest("only this client is left");
    let before = descriptors(&daemon, &client);
    let index_bytes = stat(&client, "memory_index_bytes");

    let directory = tempfile::tempdir().expect("a directory");
    let work = || record(&daemon, &table, fillers, (directory.path(), seed));
    match regions_go {
        true => tide::while_regions_go(&client, &table, work),
        false => work(),
    }
    outlive(&connect(daemon.addr, false), name, (directory.path(), seed));
    let grown = stat(&client, "memory_index_bytes");
    if scaled(fillers) >= SPLITTING {
        let times = scaled(3).max(2) as u64;
        let text = "the index was to split";
        assert!(grown >= times * index_bytes, "{text}: {index_bytes} to {grown} bytes");
    }

    check_histories(directory.path());
    println!("index {grown} bytes");

    rest("the sessions of the killed end");
    until("their leases are taken back", || match stat(&client, "leases") {
        0 => Ok(()),
        leases => Err(leases),
    });
    assert_eq!(stat(&client, "cas_broken_keys"), 0);
    until("their descriptors are closed", || match descriptors(&daemon, &client) {
        now if now <= before => Ok(()),
        now => Err((now, before)),
    });
    drop((table, client));
    daemon.join();
}
