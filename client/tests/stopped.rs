//! Clients that are stopped (SIGSTOP) in the middle of what they do, for longer than their lease,
//! while the regions that they look at are emptied, given back and made anew: when they go on,
//! nothing wrong is read, and their histories are linearizable.

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
use std::path::PathBuf;
use std::time::Duration;

use children::*;
use journal::{Journal, histories};
use onesided::blocking;
use onesided_server::config::Cleaning;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use worker::{KEYS, Worker};

const STOPS: usize = 3;
const WORKERS: u32 = 3;
const THREADS: u32 = 2;
/// Operations of one thread, at most: what the checker can take.
const OPERATIONS_MAX: usize = 10_000;
const BURST: usize = 10;

#[derive(Serialize, Deserialize)]
enum Role {
    Server(ServerRole),
    Work { addr: SocketAddr, directory: PathBuf, client: u32, seed: u64 },
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Server(role)) => serve(role),
        Some(Role::Work { addr, directory, client, seed }) => work(addr, directory, client, seed),
    }
}

fn connect(addr: SocketAddr) -> blocking::Client {
    builder(addr).fabric(one_sided()).connect_blocking().expect("connects")
}

/// Operations at random until the parent has enough of them.
fn work(addr: SocketAddr, directory: PathBuf, client: u32, seed: u64) {
    let table = connect(addr).table("default").expect("the table");
    let enough = Told::listen();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, enough, directory) = (&table, &enough, &directory);
            scope.spawn(move || {
                let number = client + thread;
                let random = SmallRng::seed_from_u64(seed ^ u64::from(number));
                let journal = Journal::create(directory, number);
                let mut worker = Worker::new(table, random, journal).may_fail();
                for n in 0..OPERATIONS_MAX / BURST {
                    if enough.over() {
                        break;
                    }
                    (0..BURST).for_each(|_| worker.step());
                    if n == 2 && thread == 0 {
                        tell("working", "");
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
    while !enough.over() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.id() as i32).expect("a process");
    kill_process(pid, signal).expect("it runs");
}

#[test]
fn the_stopped_read_nothing_wrong_afterwards() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let server = ServerRole {
        session_lease_ms: patience_ms(1_000),
        memory_mib: 64,
        region_mib: 1,
        cleaning: Cleaning::Aggressive,
        shrink_after_s: 1,
        ..ServerRole::default()
    };
    let daemon = Daemon::start(server, Role::Server);
    let client = connect(daemon.addr);
    let table = client.table("default").expect("the table");
    let directory = tempfile::tempdir().expect("a directory");
    let spawn = |number: u32| {
        let (addr, directory) = (daemon.addr, directory.path().to_owned());
        Process::spawn(&Role::Work { addr, directory, client: number * THREADS, seed })
    };
    let mut workers: Vec<_> = (0..WORKERS).map(spawn).collect();
    workers.iter_mut().for_each(|worker| drop(worker.hear("working")));
    let mut random = SmallRng::seed_from_u64(seed);
    let sessions = || stat(&client, "sessions");
    for n in 0..STOPS {
        std::thread::sleep(Duration::from_micros(random.random_range(0..50_000)));
        let (stopped, before) = (&workers[n % workers.len()], sessions());
        signal(stopped, Signal::STOP);
        until("its session ends", || match sessions() {
            now if now < before => Ok(()),
            now => Err((now, before)),
        });
        // What it looked at goes, and other memory comes.
        tide::one(&client, &table);
        signal(stopped, Signal::CONT);
        until("it has a session again", || match sessions() {
            now if now >= before => Ok(()),
            now => Err((now, before)),
        });
    }
    workers.iter_mut().for_each(Process::say);
    workers.into_iter().for_each(Process::join);
    let by_key = histories(directory.path());
    let all = || by_key.values().flatten();
    let (total, open) = (all().count(), all().filter(|o| o.answer.is_none()).count());
    println!("{total} operations, {open} without an answer; {} regions", tide::given_back(&client));
    assert!(total > 500, "{total} operations");
    assert_eq!(by_key.len(), KEYS);
    for (n, history) in by_key {
        linearize::check(&history).unwrap_or_else(|failure| panic!("key {n}: {failure}"));
    }
    drop((table, client));
    daemon.join();
}
