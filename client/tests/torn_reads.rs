//! One writer overwrites values of 1 to 100 KiB as fast as it can, in so little memory that
//! addresses recur at once; readers in this and another process accept only whole values that do
//! not go back in time. The same readers without the checksum, or without the second look at a
//! large value's state word, must find a torn one: else this would prove nothing.

#[path = "common/children.rs"]
mod children;
#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/values.rs"]
mod values;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use children::{
    LONG, Process, builder, fabrics, one_sided, one_sided_kind, other_host, patience_ms, role,
    scaled, tell, told,
};
use onesided::{Value, blocking};
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_protocol::rules::{Rule, without};
use onesided_server::engine::{Cleaning, Engine, Table};
use onesided_server::{Server, ServerConfig};
use serde::{Deserialize, Serialize};
use values::{first_piece, piece};

/// Reads of each of the two processes.
const READS: usize = 550_000;
/// From another host, which is emulated, one of so many: there each takes milliseconds.
const OTHER_HOST_PART: usize = 10;
/// Reads of a weakened reader, at most.
const WEAKENED_READS_MAX: u64 = 5_000_000;
/// Keys with values of 1 to 2 KiB; one more has the large ones.
const SMALL: u64 = 3;
const LARGE_KEY: u64 = SMALL;

#[derive(Serialize, Deserialize)]
enum Role {
    Read {
        addr: SocketAddr,
        reads: u64,
    },
    /// For readers of another host: `tools/guests/tests/suites_two.sh`.
    Write {
        listen: String,
        cleaning: Cleaning,
    },
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Read { addr, reads }) => {
            let table = open(addr);
            tell("ready", "");
            told();
            match read(&table, reads, key_of) {
                Ok(()) => tell("read", ""),
                Err(torn) => panic!("{torn}"),
            }
        }
        Some(Role::Write { listen, cleaning }) => {
            with_own_writer(&listen, cleaning, |_| while told() {});
        }
    }
}

fn open(addr: SocketAddr) -> blocking::Table {
    let client = builder(addr).fabric(one_sided()).connect_blocking().expect("connects");
    assert_eq!(client.fabric(), one_sided_kind());
    client.table("default").expect("the table")
}

/// Whether entries move all the while, too, and their segments are used again.
fn server(listen: &str, cleaning: Cleaning) -> Server {
    let config = ServerConfig {
        listen: listen.to_owned(),
        memory_bytes: 8 << 20,
        // The index has the first one; values are in others, so that those can go.
        region_bytes: 256 << 10,
        segment_bytes: 4 << 10,
        fabrics: fabrics(),
        cleaning,
        // An emulated host may stand still for half a minute: that is not tested here.
        session_lease_ms: patience_ms(30_000),
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

fn key(number: u64) -> [u8; 1] {
    [b'a' + number as u8]
}

/// Of which key the read number `n` is: mostly small ones.
fn key_of(n: u64) -> u64 {
    if n.is_multiple_of(64) { LARGE_KEY } else { n % SMALL }
}

/// Overwrites until it is over, without the way over RPC, which is a thousand times longer than
/// what it does to memory: the pieces of each key have ascending numbers.
fn overwrite(table: &Table, over: &AtomicBool) -> u64 {
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let (of, len) = match number % 16 {
            0 => (LARGE_KEY, 17_000 + number * 7_919 % 85_000),
            _ => (number % SMALL, 1_024 + number * 31 % 1_024),
        };
        put(table, of, &piece(number, len as usize));
    }
    number
}

/// One region after the other goes back to the system, as fast as clients let it; at least one.
/// Gives how many did.
fn leave_regions(engine: &Engine, over: &AtomicBool) -> u64 {
    let end = Instant::now() + LONG;
    loop {
        let status = engine.memory_status();
        if over.load(Ordering::Relaxed) && status.shrinking.given_back_regions > 0 {
            return status.shrinking.given_back_regions;
        }
        assert!(!over.load(Ordering::Relaxed) || Instant::now() < end, "{status:?}");
        if status.retired_bytes == 0 {
            engine.leave_region();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn put(table: &Table, of: u64, value: &[u8]) {
    table.put(&key(of), value, Expect::Any, Ttl::Never, 0).expect("a put");
}

/// Reads whole values only, none older than one read before.
fn read(table: &blocking::Table, reads: u64, key_of: impl Fn(u64) -> u64) -> Result<(), String> {
    let mut newest = [(0, 0); SMALL as usize + 1];
    let mut buffer = table.buffer(128 << 10);
    for n in 0..reads {
        let of = key_of(n);
        // Every second large one straight into a buffer of ours.
        let (owned, meta) = if of == LARGE_KEY && n / 64 % 2 == 0 {
            let got;
            (buffer, got) = table.get_into_registered(key(of), buffer);
            (None, got.expect("a get"))
        } else {
            let value = table.get(key(of)).expect("a get");
            let meta = value.as_ref().map(Value::meta);
            (value, meta)
        };
        let Some(meta) = meta else {
            return Err(format!("read {n}: key {of} was absent, but it always has a value"));
        };
        let bytes = owned.as_deref().unwrap_or(&buffer);
        let Some((number, [])) = first_piece(bytes) else {
            return Err(format!("read {n}: {} bytes of key {of} are torn", bytes.len()));
        };
        let (before, now) = (&mut newest[of as usize], (number, meta.version));
        if now < *before {
            return Err(format!("read {n}: key {of} went from {before:?} back to {now:?}"));
        }
        *before = now;
    }
    Ok(())
}

/// A server, a writer that goes on all the while, and every key with a value: of this process, or
/// on another host, which was told the same of cleaning.
fn with_writer<T>(cleaning: Cleaning, body: impl FnOnce(SocketAddr) -> T) -> T {
    match other_host() {
        Some(addr) => body(addr),
        None => with_own_writer("127.0.0.1:0", cleaning, body),
    }
}

fn with_own_writer<T>(listen: &str, cleaning: Cleaning, body: impl FnOnce(SocketAddr) -> T) -> T {
    // One at a time: on two cores the writer would hardly run.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let server = server(listen, cleaning);
    let addr = server.addr();
    let info = server.engine().open_table("default").expect("the table");
    let table = server.engine().table(info.id).expect("the table");
    (0..=SMALL).for_each(|of| put(&table, of, &piece(0, 1024)));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| overwrite(&table, &over));
        let leaver = (cleaning == Cleaning::Aggressive)
            .then(|| scope.spawn(|| leave_regions(server.engine(), &over)));
        let result = {
            let _also_if_it_panics = Over(&over);
            body(addr)
        };
        if let Some(leaver) = leaver {
            let left = leaver.join().expect("it leaves regions");
            println!("{left} regions went back to the system");
        }
        let writes = writer.join().expect("the writer");
        println!("{writes} values were overwritten");
        assert!(writes > 100, "only {writes}");
        result
    })
}

#[test]
fn a_million_reads_are_whole_while_their_values_are_overwritten() {
    whole_reads(Cleaning::Auto, READS);
}

#[test]
fn reads_are_whole_while_their_values_are_overwritten_and_moved_and_regions_go() {
    whole_reads(Cleaning::Aggressive, READS / 2);
}

fn whole_reads(cleaning: Cleaning, reads: usize) {
    with_writer(cleaning, |addr| {
        let part = if other_host().is_some() { OTHER_HOST_PART } else { 1 };
        let reads = scaled(reads / part) as u64;
        let mut other = Process::spawn(&Role::Read { addr, reads });
        other.hear("ready");
        other.say();
        let client = builder(addr).fabric(one_sided()).connect_blocking().expect("connects");
        let table = client.table("default").expect("the table");
        if let Err(torn) = read(&table, reads, key_of) {
            panic!("{torn}");
        }
        let stats = client.stats();
        println!("{reads} reads, twice; here {stats:?}");
        assert_eq!(stats.gets, reads, "{stats:?}");
        assert!(stats.one_sided_hits > reads / 2, "{stats:?}");
        other.hear("read");
        other.join();
    });
}

fn is_noticed(rule: Rule, key_of: impl Fn(u64) -> u64) {
    let torn = with_writer(Cleaning::Auto, |addr| {
        let table = open(addr);
        without(Some(rule), || read(&table, WEAKENED_READS_MAX, key_of))
    });
    println!("{rule:?} off: {}", torn.expect_err("a torn value is noticed"));
}

#[test]
fn without_the_checksum_a_torn_value_is_returned() {
    is_noticed(Rule::Checksum, |n| n % SMALL);
}

#[test]
fn without_the_second_look_a_torn_large_value_is_returned() {
    is_noticed(Rule::LargeReadsStateAgain, |_| LARGE_KEY);
}
