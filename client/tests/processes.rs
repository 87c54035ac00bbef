//! Histories of many processes, over shm and tcp, with the index splitting under them and clients
//! being killed: linearizable per key, and nothing is left of the dead.

#[path = "common/children.rs"]
mod children;
#[path = "common/journal.rs"]
mod journal;
#[path = "common/linearize/mod.rs"]
mod linearize;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use children::*;
use journal::{Journal, STAMP_BYTES, STAMP_OFFSET, content, histories, now_ns, piece, stamp};
use linearize::{Content, Op, Ret};
use onesided::{
    Error, Expect, FabricChoice, FabricKind, PutOptions, TableOptions, UpdateMode, blocking,
};
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Name of the table that clients update.
const CAS: &str = "cas";
/// Few, so that many meet on each.
const KEYS: usize = 12;
const THREADS: u32 = 2;
const WORKERS: u32 = 4;
const VICTIMS: u32 = 6;
/// Operations of one thread, at most: what the checker can take.
const OPERATIONS_MAX: usize = 12_000;
const BURST: usize = 20;
/// Keys that come to the table meanwhile.
const FILLERS: usize = 150_000;

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
                let mut worker = Worker { table, random, journal, seen: [0; KEYS] };
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

fn key(n: usize) -> String {
    format!("shared-{n}")
}

struct Worker<'t> {
    table: &'t blocking::Table,
    random: SmallRng,
    journal: Journal,
    /// Versions to expect.
    seen: [u64; KEYS],
}

impl Worker<'_> {
    fn step(&mut self) {
        let n = self.random.random_range(0..KEYS);
        match self.random.random_range(0..100) {
            0..45 => self.get(n),
            45..55 => self.get_many(),
            55..70 => self.put(n, Expect::Any),
            70..75 => self.put_many(),
            75..85 => {
                let expect = self.expect(n);
                self.put(n, expect);
            }
            85..92 => self.delete(n, Expect::Any),
            92..95 => self.delete(n, Expect::Version(self.seen[n])),
            95..97 => self.stamp(n),
            _ => self.append(n),
        }
    }

    fn expect(&mut self, n: usize) -> Expect {
        match self.random.random_range(0..3) {
            0 => Expect::Absent,
            1 => Expect::Present,
            _ => Expect::Version(self.seen[n]),
        }
    }

    fn value(&mut self) -> (u64, Vec<u8>) {
        let id = self.journal.unique();
        let len = match self.random.random_range(0..20) {
            0 => self.random.random_range(16_000..60_000),
            _ => self.random.random_range(STAMP_BYTES..300),
        };
        (id, piece(id, len))
    }

    fn found(&mut self, n: usize, call: u32, at: u64, value: Option<onesided::Value>) {
        let ret = match value {
            None => Ret::Absent,
            Some(value) => {
                self.seen[n] = value.version();
                Ret::Value(content(&value), value.version())
            }
        };
        self.journal.answered_at(call, at, ret);
    }

    fn get(&mut self, n: usize) {
        let call = self.journal.calls(n, Op::Get);
        let value = self.table.get(key(n)).expect("a get");
        self.found(n, call, now_ns(), value);
    }

    fn get_many(&mut self) {
        let all: Vec<usize> = sample(&mut self.random, KEYS, 4).into_vec();
        let calls: Vec<u32> = all.iter().map(|&n| self.journal.calls(n, Op::Get)).collect();
        let keys: Vec<_> = all.iter().map(|&n| key(n)).collect();
        let values = self.table.get_many(&keys).expect("gets");
        let at = now_ns();
        for ((n, call), value) in all.into_iter().zip(calls).zip(values) {
            self.found(n, call, at, value);
        }
    }

    fn wrote(&mut self, n: usize, call: u32, at: u64, result: Result<u64, Error>) {
        match result {
            Ok(version) => {
                self.seen[n] = version;
                self.journal.answered_at(call, at, Ret::Version(version));
            }
            Err(Error::Unexpected(_)) => self.journal.answered_at(call, at, Ret::Refused),
            Err(error) => panic!("{error}"),
        }
    }

    fn put(&mut self, n: usize, expect: Expect) {
        let (id, value) = self.value();
        let op = Op::Put { content: Content::of(id), expect: model(expect), expiry_s: 0 };
        let call = self.journal.calls(n, op);
        let options = PutOptions::default().expect(expect);
        let result = self.table.put_with(key(n), value, options);
        self.wrote(n, call, now_ns(), result);
    }

    fn put_many(&mut self) {
        let mut calls = Vec::new();
        let mut pairs = Vec::new();
        for n in sample(&mut self.random, KEYS, 3) {
            let (id, value) = self.value();
            let expect = linearize::Expect::Any;
            let op = Op::Put { content: Content::of(id), expect, expiry_s: 0 };
            calls.push((n, self.journal.calls(n, op)));
            pairs.push((key(n), value));
        }
        let results = self.table.put_many(&pairs);
        let at = now_ns();
        for ((n, call), result) in calls.into_iter().zip(results) {
            self.wrote(n, call, at, result);
        }
    }

    fn append(&mut self, n: usize) {
        let (id, value) = self.value();
        let call = self.journal.calls(n, Op::Append { piece: id });
        let result = self.table.append(key(n), value);
        self.wrote(n, call, now_ns(), result);
    }

    fn stamp(&mut self, n: usize) {
        let id = self.journal.unique();
        let call = self.journal.calls(n, Op::Stamp { stamp: id });
        match self.table.write_at(key(n), STAMP_OFFSET, stamp(id)) {
            Ok(None) => self.journal.answered(call, Ret::Absent),
            Ok(Some(version)) => self.wrote(n, call, now_ns(), Ok(version)),
            Err(error) => panic!("{error}"),
        }
    }

    fn delete(&mut self, n: usize, expect: Expect) {
        let call = self.journal.calls(n, Op::Delete { expect: model(expect) });
        let ret = match self.table.delete_with(key(n), expect) {
            Ok(true) => Ret::Deleted,
            Ok(false) => Ret::Absent,
            Err(Error::Unexpected(_)) => Ret::Refused,
            Err(error) => panic!("{error}"),
        };
        self.journal.answered(call, ret);
    }
}

fn model(expect: Expect) -> linearize::Expect {
    match expect {
        Expect::Any => linearize::Expect::Any,
        Expect::Absent => linearize::Expect::Absent,
        Expect::Present => linearize::Expect::Present,
        Expect::Version(version) => linearize::Expect::Version(version),
    }
}

/// Inserts other keys, so that the index splits all the time.
fn fill(table: &blocking::Table) {
    for n in (0..scaled(FILLERS)).step_by(50) {
        let pairs: Vec<_> = (n..n + 50).map(|n| (format!("filler-{n}"), "x")).collect();
        table.put_many(&pairs).into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Workers until the table has grown, and victims that are killed in the middle of what they do.
fn record(daemon: &Daemon, table: &blocking::Table, directory: &Path, seed: u64) {
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
        scope.spawn(|| fill(table));
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
    // Over a device by `tools/guests/tests/cas_one.sh`.
    let asked_for = std::env::var_os("ONESIDED_TEST_CAS").is_some();
    if one_sided_kind() == FabricKind::Verbs && !asked_for {
        return;
    }
    many_processes(CAS);
}

fn many_processes(name: &str) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let role = ServerRole {
        session_lease_ms: patience_ms(3_000),
        memory_mib: 1024,
        ..ServerRole::default()
    };
    let daemon = Daemon::start(role, Role::Server);
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
    record(&daemon, &table, directory.path(), seed);
    let grown = stat(&client, "memory_index_bytes");
    let times = scaled(3).max(2) as u64;
    assert!(grown >= times * index_bytes, "the index was to split: {index_bytes} to {grown} bytes");

    let by_key = histories(directory.path());
    let total: usize = by_key.values().map(Vec::len).sum();
    let open = by_key.values().flatten().filter(|o| o.answer.is_none()).count();
    println!("{total} operations, {open} of the killed without an answer; index {grown} bytes");
    assert!(open > 0, "none was killed in the middle of a call");
    assert_eq!(by_key.len(), KEYS);
    for (n, history) in by_key {
        linearize::check(&history).unwrap_or_else(|failure| panic!("key {n}: {failure}"));
    }

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
