//! Load that knows what each answer may be, while a fault strikes: a value is the last one that was
//! acknowledged, or one whose write was begun later, whole. Here the server is killed and starts
//! again; the guest tests `faults_*` run the same load beside faults of networks, devices and
//! hosts, told in the environment:
//!
//! - `FAULT_LOAD=NAME` runs it, against `ONESIDED_TEST_SERVER`, on keys that begin with the name,
//!   until the file `FAULT_UNTIL` exists;
//! - `FAULT_RDMA=require` asks for RDMA; otherwise it is preferred;
//! - `FAULT_RESTARTS=1`: the server may lose everything, once at a time.

#[path = "common/children.rs"]
mod children;
#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/values.rs"]
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use children::*;
use onesided::{Client, Error, FabricChoice, Rdma, blocking};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use values::{first_piece, piece};

const KEYS: usize = 64;
const LENGTHS: [usize; 4] = [16, 100, 1000, 30_000];
const OPERATION: Duration = Duration::from_secs(5);
/// Beyond the configured time, for an emulated machine under load.
const SLACK: Duration = Duration::from_secs(15);
/// A pause between two good answers that is worth a line.
const GAP: Duration = Duration::from_millis(400);
/// No load lasts longer.
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Serialize, Deserialize)]
enum Role {
    Server(ServerRole),
    Load(Load),
}

/// What a load is to do.
#[derive(Serialize, Deserialize)]
struct Load {
    name: String,
    server: SocketAddr,
    until: PathBuf,
    fabric: Option<bool>,
    may_restart: bool,
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Server(role)) => serve(role),
        Some(Role::Load(load)) => load.run(),
    }
}

/// The load that the environment asks for; nothing without.
#[test]
fn load_of_the_environment() {
    let var = |name: &str| std::env::var(name).ok();
    let Some(name) = var("FAULT_LOAD") else { return };
    let server = var("ONESIDED_TEST_SERVER").expect("ONESIDED_TEST_SERVER");
    Load {
        name,
        server: server.parse().expect("HOST:PORT"),
        until: var("FAULT_UNTIL").expect("FAULT_UNTIL").into(),
        fabric: Some(var("FAULT_RDMA").as_deref() == Some("require")),
        may_restart: var("FAULT_RESTARTS").is_some(),
    }
    .run();
}

/// What a key may hold. One thread alone writes and reads it.
#[derive(Clone, Copy, Default)]
struct Key {
    /// Nothing older may be seen any more.
    floor: u64,
    /// The last write that was begun.
    tried: u64,
    /// There is a value, for all this client knows.
    is_stored: bool,
    /// Reconnects before and after the last write that was acknowledged.
    stored_at: (u64, u64),
}

struct Run<'a> {
    load: &'a Load,
    client: blocking::Client,
    table: blocking::Table,
    keys: [Key; KEYS],
    /// Reconnects when this life of the server began, as far as known.
    life_began_at: u64,
    gets: u64,
    puts: u64,
    errors: u64,
    errors_before: u64,
    last_error: String,
    last_good: Instant,
    longest_gap: Duration,
    /// The fabric that was told of last.
    fabric: String,
}

impl Load {
    fn connect(&self) -> blocking::Client {
        let builder = Client::builder()
            .url(format!("onesided://{}", self.server))
            // An emulated machine may take seconds to run who is to answer.
            .connect_timeout_ms(20_000)
            .operation_timeout_ms(OPERATION.as_millis() as u64);
        let builder = match self.fabric {
            None => builder.fabric(one_sided()),
            Some(true) => builder.rdma(Rdma::Require),
            Some(false) => builder.fabric(FabricChoice::Auto),
        };
        builder.connect_blocking().expect("connects")
    }

    fn run(&self) {
        // What the library says is part of what the tests look at.
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr);
        let _set_by_another_test = lines.try_init();
        let client = self.connect();
        let table = client.table("default").expect("the table");
        let mut run = Run {
            load: self,
            client,
            table,
            keys: [Key::default(); KEYS],
            life_began_at: 0,
            gets: 0,
            puts: 0,
            errors: 0,
            errors_before: 0,
            last_error: String::new(),
            last_good: Instant::now(),
            longest_gap: Duration::ZERO,
            fabric: String::new(),
        };
        run.go();
    }
}

impl Run<'_> {
    fn go(&mut self) {
        let begin = Instant::now();
        let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
        println!("SEED={seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        for n in 0..KEYS {
            self.until_good(|run| run.put(n, 16));
        }
        self.report("ready");
        while !self.load.until.exists() {
            assert!(begin.elapsed() < LONGEST, "nobody ended the load");
            self.tell_of_fabric();
            for _ in 0..16 {
                let n = random.random_range(0..KEYS);
                let worked = match random.random_range(0..10) {
                    0..3 => self.put(n, LENGTHS[random.random_range(0..LENGTHS.len())]),
                    _ => self.get(n),
                };
                if !worked {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        for n in 0..KEYS {
            self.until_good(|run| run.get(n));
        }
        self.report("done");
    }

    fn until_good(&mut self, mut step: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + LONG;
        while !step(self) {
            assert!(Instant::now() < end, "it does not recover: {}", self.last_error);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn tell_of_fabric(&mut self) {
        let fabric = self.client.fabric().to_string();
        if fabric != self.fabric {
            tell("uses", &fabric);
            self.fabric = fabric;
        }
    }

    fn report(&self, word: &str) {
        let stats = self.client.stats();
        let rest = serde_json::json!({
            "load": self.load.name,
            "fabric": self.client.fabric().to_string(),
            "gets": self.gets,
            "puts": self.puts,
            "errors": self.errors,
            "longest_gap_ms": self.longest_gap.as_millis() as u64,
            "reconnects": stats.reconnects,
            "one_sided": stats.one_sided_hits,
            "fallback": stats.fallback,
            "last_error": self.last_error,
        });
        tell(word, &rest.to_string());
    }

    fn key(&self, n: usize) -> String {
        format!("{}-{n}", self.load.name)
    }

    fn put(&mut self, n: usize, len: usize) -> bool {
        self.keys[n].tried += 1;
        let turn = self.keys[n].tried;
        let value = piece((n as u64) << 48 | turn, len);
        let before = self.client.stats().reconnects;
        let put = self.timed(|run| run.table.put(run.key(n), value).map(|_| ()));
        let stored_at = (before, self.client.stats().reconnects);
        let key = &mut self.keys[n];
        if put.is_some() {
            *key = Key { floor: turn, is_stored: true, stored_at, ..*key };
            self.puts += 1;
        }
        put.is_some()
    }

    fn get(&mut self, n: usize) -> bool {
        let Some(got) = self.timed(|run| run.table.get(run.key(n))) else { return false };
        self.gets += 1;
        let Some(value) = got else {
            if self.keys[n].is_stored {
                assert!(self.load.may_restart, "a value was lost: key {n}");
                self.begin_life();
            }
            return true;
        };
        let Some((id, [])) = first_piece(&value) else { panic!("torn: {value:?}") };
        let (of, turn) = ((id >> 48) as usize, id & 0xffff_ffff_ffff);
        let key = &mut self.keys[n];
        assert_eq!(of, n, "another key's value");
        assert!((key.floor..=key.tried).contains(&turn), "{turn} of {}..={}", key.floor, key.tried);
        key.floor = turn;
        true
    }

    /// The server has lost everything: nothing that only its life before knew may be seen. A new
    /// life is reached by a new connection.
    fn begin_life(&mut self) {
        let now = self.client.stats().reconnects;
        assert!(now > self.life_began_at, "a value was lost without a restart");
        for key in &mut self.keys {
            let is_of_before = key.is_stored && key.stored_at.1 == self.life_began_at;
            if is_of_before && key.floor == key.tried {
                key.floor = key.tried + 1;
            }
            key.is_stored &= key.stored_at.0 >= now;
        }
        self.life_began_at = now;
    }

    /// The result of an operation, unless it failed in a way that faults excuse.
    fn timed<T>(&mut self, operation: impl FnOnce(&Self) -> Result<T, Error>) -> Option<T> {
        let start = Instant::now();
        let result = operation(self);
        let now = Instant::now();
        assert!(now - start < OPERATION + SLACK, "an operation took {:?}", now - start);
        match result {
            Ok(good) => {
                let gap = now - self.last_good;
                if gap > GAP {
                    self.longest_gap = self.longest_gap.max(gap);
                    let errors = self.errors - self.errors_before;
                    let fabric = self.client.fabric();
                    tell("gap", &format!("{} ms, {errors} errors, over {fabric}", gap.as_millis()));
                }
                (self.last_good, self.errors_before) = (now, self.errors);
                Some(good)
            }
            Err(error) => {
                let is_loss = matches!(error, Error::ConnectionLost(_) | Error::TimedOut { .. });
                assert!(is_loss || error.may_have_been_applied(), "{error}");
                self.last_error = error.to_string();
                self.errors += 1;
                None
            }
        }
    }
}

#[test]
fn answers_are_right_while_servers_are_killed() {
    let mut role = ServerRole::default();
    let mut daemon = Daemon::start(role.clone(), Role::Server);
    role.listen = daemon.addr;
    let folder = tempfile::tempdir().expect("a folder");
    let until = folder.path().join("over");
    let load = |name: &str, fabric| Load {
        name: name.to_owned(),
        server: daemon.addr,
        until: until.clone(),
        fabric,
        may_restart: true,
    };
    let loads = [load("one-sided", None), load("any", Some(false))];
    let mut loads = loads.map(|load| Process::spawn(&Role::Load(load)));
    loads.iter_mut().for_each(|load| println!("{}", load.hear("ready")));
    for _ in 0..3 {
        daemon.kill();
        daemon = Daemon::start(role.clone(), Role::Server);
        std::thread::sleep(Duration::from_millis(500));
    }
    std::fs::write(&until, "").expect("written");
    for mut load in loads {
        let done = load.hear("done");
        println!("{done}");
        let done: serde_json::Value = serde_json::from_str(&done).expect("JSON");
        assert!(done["reconnects"].as_u64() >= Some(1), "{done}");
        load.join();
    }
}
