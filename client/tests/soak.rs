//! A nearly full store under all that makes it change: 4 writers with values of 1 byte to 1 MiB,
//! short lives and deletes, 4 readers that accept only what is whole, of its key, not over, and
//! what a register may give: not older than what was acknowledged before or read before, nor newer
//! than what has begun. Now and then it ebbs until regions go back to the system, and flows again.
//! Memory stays within its limit.
//!
//! 20 s and a few for the ebb. The long form, which also holds memory and stalls to their limits:
//! `SOAK_S=1800 SOAK_MIB=2048 cargo test --release -p onesided --test soak -- --nocapture`. It
//! prints how long operations took beside how late a thread was that only sleeps. Where other
//! programs keep the processors busy, the kernel takes long to make huge pages, and holds a lock
//! meanwhile that servers wait for: `SOAK_HUGE_PAGES=0` measures without.

#[path = "common/children.rs"]
mod children;
#[path = "common/linearize/mod.rs"]
mod linearize;
mod soak_support;
#[path = "common/values.rs"]
mod values;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use children::{Daemon, LONG, ServerRole, role, stat};
use onesided::{Error, PutOptions, blocking};
use onesided_protocol::rpc::Ttl;
use onesided_server::config::HugePages;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use soak_support::{Kind, Known, PIECE_MIN_BYTES, Times, value};

/// Bytes of entries that writers keep, of the memory; and when it ebbs.
const FULL_PERCENT: usize = 90;
const EBB_PERCENT: usize = 40;
const WRITERS: usize = 4;
const READERS: usize = 4;
/// What a server process has beside the memory that it is told: code, staging memory, sessions.
const BESIDE_BYTES: u64 = 96 << 20;
/// With so much memory that is within 3 % of it.
const LARGE_MIB: usize = 2_048;
/// A run of so many seconds is somebody's who looks at its figures.
const LONG_RUN_S: u64 = 600;
/// What is too long a stall then.
const STALL_MS: u64 = 100;
/// It ebbs once in so many seconds, in short runs in their middle.
const TIDE_S: u64 = 300;

#[derive(serde::Serialize, serde::Deserialize)]
struct Role(ServerRole);

/// Entry of the server's process: nothing to do in the parent.
#[test]
fn child() {
    if let Some(Role(server)) = role() {
        children::serve(server);
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn key(number: usize) -> Vec<u8> {
    format!("soak-{number}").into_bytes()
}

struct Soak {
    memory_mib: usize,
    /// Of each writer; it changes only its own.
    keys: usize,
    known: Vec<Known>,
    percent: AtomicUsize,
    over: AtomicBool,
    puts: AtomicU64,
    refused: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    times: Times,
}

impl Soak {
    fn new(memory_mib: usize, seconds: u64) -> Self {
        let keys = 2_000 * memory_mib / 256;
        Self {
            memory_mib,
            keys,
            known: (0..WRITERS * keys).map(|_| Known::default()).collect(),
            percent: AtomicUsize::new(FULL_PERCENT),
            over: AtomicBool::new(false),
            puts: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            times: Times::new(2 * seconds + LONG.as_secs()),
        }
    }

    fn share_bytes(&self) -> usize {
        (self.memory_mib << 20) / 100 * self.percent.load(Ordering::Relaxed) / WRITERS
    }

    /// Keeps its keys' entries at its share of the memory.
    fn write(&self, table: &blocking::Table, writer: usize) {
        let mut random = SmallRng::seed_from_u64(writer as u64);
        let mut lens = vec![0_usize; self.keys];
        let mut sum_bytes = 0;
        while !self.over.load(Ordering::Relaxed) {
            let n = random.random_range(0..self.keys);
            // From 1 byte to 1 MiB, each power of two as often; now and then a short one's time
            // is limited, if it can tell which it is.
            let len_bytes = 2_f64.powf(random.random_range(0.0..20.0)) as usize;
            let fits = sum_bytes - lens[n] + len_bytes + 64 <= self.share_bytes();
            let may_end = (PIECE_MIN_BYTES..65_536).contains(&len_bytes);
            let ttl_s = if may_end { random.random_range(0..8).min(3) } else { 0 };
            let len_bytes = if fits && random.random_range(0..8) != 0 { len_bytes } else { 0 };
            let stored = self.change(table, writer * self.keys + n, len_bytes, ttl_s);
            sum_bytes -= lens[n];
            lens[n] = if stored { len_bytes + 64 } else { 0 };
            sum_bytes += lens[n];
        }
    }

    /// Puts a value, or deletes the key if it would be empty or is refused. Gives whether it has
    /// one now.
    fn change(&self, table: &blocking::Table, key_n: usize, len_bytes: usize, ttl_s: u64) -> bool {
        let known = &self.known[key_n];
        if len_bytes > 0 {
            let round = known.begin();
            let bytes = value(key_n, round, ttl_s == 0, len_bytes);
            let ttl = if ttl_s == 0 { Ttl::Never } else { Ttl::Seconds(ttl_s as u32) };
            let put = || table.put_with(key(key_n), &bytes, PutOptions::default().ttl(ttl));
            match self.times.timed(Kind::Put, put) {
                Ok(_) => {
                    known.has_put(round, ttl_s);
                    self.puts.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(Error::OutOfMemory(_)) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
                Err(error) => panic!("a put of {len_bytes} bytes: {error}"),
            }
        }
        let round = known.begin();
        self.times.timed(Kind::Put, || table.delete(key(key_n))).expect("a delete");
        known.has_deleted(round);
        false
    }

    fn read(&self, table: &blocking::Table, reader: usize) {
        let mut random = SmallRng::seed_from_u64(1_000 + reader as u64);
        while !self.over.load(Ordering::Relaxed) {
            let n = random.random_range(0..self.known.len());
            let before = self.known[n].before();
            let got = self.times.timed(Kind::Get, || table.get(key(n))).expect("a get");
            let counter = if got.is_some() { &self.hits } else { &self.misses };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Err(wrong) = self.known[n].check(n, &before, got.as_ref()) {
                panic!("{wrong}");
            }
        }
    }

    /// How late the machine is with a thread that does nothing.
    fn sleep(&self) {
        const NAP: Duration = Duration::from_millis(1);
        while !self.over.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(NAP);
            self.times.note(Kind::Control, began.elapsed().saturating_sub(NAP));
        }
    }
}

/// The server from outside.
struct Watch<'a> {
    daemon: &'a Daemon,
    client: &'a blocking::Client,
    most_resident_bytes: u64,
    /// Of live entries and the index, in thousandths of the memory.
    most_used: u64,
    /// Bytes of regions that went back to the system.
    gone_bytes: u64,
}

impl Watch<'_> {
    fn look(&mut self, is_over: &dyn Fn() -> bool) {
        std::thread::sleep(Duration::from_millis(200));
        if !is_over() {
            let resident_bytes = self.daemon.status_bytes("VmRSS");
            self.most_resident_bytes = self.most_resident_bytes.max(resident_bytes);
            let used = ["memory_log_live_bytes", "memory_meta_bytes"];
            let used: u64 = used.iter().map(|name| stat(self.client, name)).sum();
            let limit = stat(self.client, "memory_limit_bytes");
            self.most_used = self.most_used.max(used * 1_000 / limit);
        }
    }

    /// Looks for so long.
    fn go_on(&mut self, time: Duration, is_over: &dyn Fn() -> bool) {
        let end = Instant::now() + time;
        while Instant::now() < end && !is_over() {
            self.look(is_over);
        }
    }

    /// Until regions have gone back to the system.
    fn ebb(&mut self, is_over: &dyn Fn() -> bool) {
        let before = stat(self.client, "memory_region_bytes");
        let end = Instant::now() + LONG;
        while !is_over() {
            self.look(is_over);
            let [there, retired] =
                ["memory_region_bytes", "memory_retired_bytes"].map(|name| stat(self.client, name));
            if there < before && retired == 0 {
                self.gone_bytes += before - there;
                return;
            }
            assert!(Instant::now() < end, "nothing goes: {there} and {retired} of {before} bytes");
        }
    }
}

#[test]
fn a_nearly_full_store_goes_on() {
    if role::<Role>().is_some() {
        return;
    }
    let seconds = setting("SOAK_S", 20);
    let soak = Soak::new(setting("SOAK_MIB", 256) as usize, seconds);
    let server = ServerRole {
        memory_mib: soak.memory_mib,
        region_mib: 16,
        shrink_after_s: 2,
        huge_pages: match setting("SOAK_HUGE_PAGES", 1) {
            0 => HugePages::Off,
            _ => HugePages::Auto,
        },
        ..ServerRole::default()
    };
    let daemon = Daemon::start(server, Role);
    let client = daemon.builder().connect_blocking().expect("connects");
    let table = client.table("default").expect("the table");
    let mut watch = Watch {
        daemon: &daemon,
        client: &client,
        most_resident_bytes: 0,
        most_used: 0,
        gone_bytes: 0,
    };
    std::thread::scope(|scope| {
        let mut threads = vec![scope.spawn(|| soak.sleep())];
        let (soak, table) = (&soak, &table);
        threads.extend((0..WRITERS).map(|n| scope.spawn(move || soak.write(table, n))));
        threads.extend((0..READERS).map(|n| scope.spawn(move || soak.read(table, n))));
        let is_over = || threads.iter().any(|thread| thread.is_finished());
        let tides = (seconds / TIDE_S).max(1);
        for _ in 0..tides {
            let half = Duration::from_secs(seconds / tides) / 2;
            watch.go_on(half, &is_over);
            soak.percent.store(EBB_PERCENT, Ordering::Relaxed);
            watch.ebb(&is_over);
            soak.percent.store(FULL_PERCENT, Ordering::Relaxed);
            watch.go_on(half, &is_over);
        }
        soak.over.store(true, Ordering::Relaxed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().is_ok()).collect();
        assert!(ended.iter().all(|&well| well), "{ended:?}");
    });
    verdict(&soak, seconds, &watch);
    drop((table, client));
    daemon.join();
}

fn verdict(soak: &Soak, seconds: u64, watch: &Watch<'_>) {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (puts, refused) = (count(&soak.puts), count(&soak.refused));
    let (hits, misses) = (count(&soak.hits), count(&soak.misses));
    let limit_bytes = (soak.memory_mib as u64) << 20;
    println!("{seconds} s: {puts} puts, {refused} refused, {hits} hits, {misses} misses");
    println!("{}", soak.times.line());
    for kind in [Kind::Put, Kind::Get] {
        println!("worst {kind:?}, (second, ms beyond the control): {:?}", soak.times.worst(kind));
    }
    println!(
        "at most {:.1} % used, {} MiB resident of {} MiB ({:.1} %), {} MiB of regions went back",
        watch.most_used as f64 / 10.0,
        watch.most_resident_bytes >> 20,
        soak.memory_mib,
        watch.most_resident_bytes as f64 * 100.0 / limit_bytes as f64,
        watch.gone_bytes >> 20,
    );
    for name in ["memory_log_live_bytes", "memory_log_dead_bytes", "memory_free_bytes"] {
        println!("{name} {}", stat(watch.client, name));
    }
    let names = ["moved_bytes", "written_bytes", "given_up", "waits", "longest_wait_us"];
    for name in names.into_iter().chain(["write_amplification_per_mille"]) {
        println!("cleaning_{name} {}", stat(watch.client, &format!("cleaning_{name}")));
    }
    assert!(puts > 100 && refused * 10 < puts, "{puts} puts, {refused} refused");
    assert!(hits > puts, "readers were kept from reading");
    assert!(watch.gone_bytes > 0, "no region went back");
    let beside_bytes = if soak.memory_mib < LARGE_MIB { BESIDE_BYTES } else { 0 };
    let most_bytes = limit_bytes + limit_bytes * 3 / 100 + beside_bytes;
    let resident_bytes = watch.most_resident_bytes;
    assert!(resident_bytes <= most_bytes, "{resident_bytes} bytes resident of {limit_bytes}");
    if seconds >= LONG_RUN_S {
        let beyond_ms = [Kind::Put, Kind::Get].map(|kind| soak.times.beyond_ms(kind));
        assert!(beyond_ms.iter().all(|&ms| ms <= STALL_MS), "stalls of {beyond_ms:?} ms");
    }
}
