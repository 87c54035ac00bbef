//! A nearly full store under all that makes it change: 4 writers with random lengths, short lives
//! and deletes, 4 readers that accept only what is whole, of its key, not over, and between what
//! had been acknowledged before and what had been begun after. Memory stays within its limit.
//!
//! 20 s; `SOAK_S=1800 cargo test --release -p onesided --test soak -- --nocapture` is the long
//! form. It prints how long operations took beside how late a thread was that only sleeps.

#[path = "common/children.rs"]
mod children;
#[path = "common/linearize/mod.rs"]
mod linearize;
#[path = "common/values.rs"]
mod values;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use children::{Daemon, ServerRole, role, stat};
use onesided::{Error, PutOptions, blocking};
use onesided_protocol::rpc::Ttl;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use values::{first_piece, piece};

const MEMORY_MIB: usize = 256;
/// Bytes of entries that writers keep, of the memory.
const FULL_PERCENT: usize = 85;
const WRITERS: usize = 4;
const READERS: usize = 4;
/// Keys of each writer; it changes only its own.
const KEYS: usize = 2_000;
/// A value may be seen so long after its time: it was made before the server was told of it.
const LATE_S: u64 = 10;
/// What a server process has beside the memory that it is told: code, staging memory, sessions.
const BESIDE_BYTES: u64 = 96 << 20;

#[derive(serde::Serialize, serde::Deserialize)]
struct Role(ServerRole);

/// Entry of the server's process: nothing to do in the parent.
#[test]
fn child() {
    if let Some(Role(server)) = role() {
        children::serve(server);
    }
}

/// What is known of a key: rounds count its writer's operations on it.
#[derive(Default)]
struct Known {
    /// Begun so far.
    begun: AtomicU64,
    /// Acknowledged: the round, and in the lowest bit whether the key has a value for good.
    acked: AtomicU64,
}

struct Soak {
    known: Vec<Known>,
    over: AtomicBool,
    began_s: u64,
    puts: AtomicU64,
    refused: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    longest_put_us: AtomicU64,
    longest_get_us: AtomicU64,
    latest_sleep_us: AtomicU64,
}

fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs()
}

fn key(number: usize) -> Vec<u8> {
    format!("soak-{number}").into_bytes()
}

/// Round, key and the end of its life in one number.
fn tag(round: u64, key: usize, end_s: u64) -> u64 {
    round << 36 | (key as u64) << 20 | end_s
}

fn untag(tag: u64) -> (u64, usize, u64) {
    (tag >> 36, (tag >> 20) as usize & 0xFFFF, tag & 0xF_FFFF)
}

impl Soak {
    fn timed<T>(&self, longest_us: &AtomicU64, body: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = body();
        longest_us.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        result
    }

    /// Keeps its keys' entries at its share of the memory.
    fn write(&self, table: &blocking::Table, writer: usize) {
        let mut random = SmallRng::seed_from_u64(writer as u64);
        let mut lens = vec![0_usize; KEYS];
        let share_bytes = (MEMORY_MIB << 20) / 100 * FULL_PERCENT / WRITERS;
        let mut sum_bytes = 0;
        while !self.over.load(Ordering::Relaxed) {
            let n = random.random_range(0..KEYS);
            // From 16 bytes to 1 MiB, each power of two as often; now and then a short one's time
            // is limited.
            let len_bytes = 2_f64.powf(random.random_range(4.0..20.0)) as usize;
            let fits = sum_bytes - lens[n] + len_bytes + 64 <= share_bytes;
            let ttl_s = if len_bytes < 65_536 { random.random_range(0..8) } else { 0 };
            let len_bytes = if fits && random.random_range(0..8) != 0 { len_bytes } else { 0 };
            let stored = self.change(table, writer * KEYS + n, len_bytes, ttl_s.min(3));
            sum_bytes -= lens[n];
            lens[n] = if stored { len_bytes + 64 } else { 0 };
            sum_bytes += lens[n];
        }
    }

    /// Puts a value, or deletes the key if it would be empty or is refused. Gives whether it has
    /// one now.
    fn change(&self, table: &blocking::Table, key_n: usize, len_bytes: usize, ttl_s: u64) -> bool {
        let known = &self.known[key_n];
        let mut stored = false;
        if len_bytes > 0 {
            let round = known.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let end_s = if ttl_s == 0 { 0 } else { now_s() - self.began_s + ttl_s + LATE_S };
            let value = piece(tag(round, key_n, end_s), len_bytes);
            let ttl = if ttl_s == 0 { Ttl::Never } else { Ttl::Seconds(ttl_s as u32) };
            let put = || table.put_with(key(key_n), &value, PutOptions::default().ttl(ttl));
            match self.timed(&self.longest_put_us, put) {
                Ok(_) => {
                    known.acked.store(round << 1 | u64::from(ttl_s == 0), Ordering::SeqCst);
                    self.puts.fetch_add(1, Ordering::Relaxed);
                    stored = true;
                }
                Err(Error::OutOfMemory(_)) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
                Err(error) => panic!("a put of {len_bytes} bytes: {error}"),
            }
        }
        if !stored {
            let round = known.begun.fetch_add(1, Ordering::SeqCst) + 1;
            table.delete(key(key_n)).expect("a delete");
            known.acked.store(round << 1, Ordering::SeqCst);
        }
        stored
    }

    fn read(&self, table: &blocking::Table, reader: usize) {
        let mut random = SmallRng::seed_from_u64(1_000 + reader as u64);
        while !self.over.load(Ordering::Relaxed) {
            let n = random.random_range(0..WRITERS * KEYS);
            let known = &self.known[n];
            let acked = known.acked.load(Ordering::SeqCst);
            let asked_s = now_s() - self.began_s;
            let got = self.timed(&self.longest_get_us, || table.get(key(n))).expect("a get");
            let begun = known.begun.load(Ordering::SeqCst);
            let Some(value) = got else {
                self.misses.fetch_add(1, Ordering::Relaxed);
                let gone = acked & 1 == 0 || begun > acked >> 1;
                assert!(gone, "key {n} is absent after round {} was acknowledged", acked >> 1);
                continue;
            };
            self.hits.fetch_add(1, Ordering::Relaxed);
            let Some((found, [])) = first_piece(&value) else {
                panic!("key {n}: {} bytes are torn", value.len());
            };
            let (round, of, end_s) = untag(found);
            assert_eq!(of, n, "a value of another key");
            assert!(end_s == 0 || asked_s <= end_s, "key {n} lives {} s too long", asked_s - end_s);
            let rounds = acked >> 1..=begun;
            assert!(rounds.contains(&round), "key {n}: round {round} is not in {rounds:?}");
        }
    }

    /// How late the machine is with a thread that does nothing.
    fn sleep(&self) {
        const NAP: Duration = Duration::from_millis(1);
        while !self.over.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(NAP);
            let late_us = began.elapsed().saturating_sub(NAP).as_micros() as u64;
            self.latest_sleep_us.fetch_max(late_us, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_nearly_full_store_goes_on() {
    if role::<Role>().is_some() {
        return;
    }
    let seconds = std::env::var("SOAK_S").map_or(20, |text| text.parse().expect("seconds"));
    let server = ServerRole { memory_mib: MEMORY_MIB, ..ServerRole::default() };
    let daemon = Daemon::start(server, Role);
    let client = daemon.builder().connect_blocking().expect("connects");
    let table = client.table("default").expect("the table");
    let soak = Soak {
        known: (0..WRITERS * KEYS).map(|_| Known::default()).collect(),
        over: AtomicBool::new(false),
        began_s: now_s(),
        puts: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        hits: AtomicU64::new(0),
        misses: AtomicU64::new(0),
        longest_put_us: AtomicU64::new(0),
        longest_get_us: AtomicU64::new(0),
        latest_sleep_us: AtomicU64::new(0),
    };
    let mut most_bytes = 0;
    std::thread::scope(|scope| {
        let mut threads = vec![scope.spawn(|| soak.sleep())];
        let (soak, table) = (&soak, &table);
        threads.extend((0..WRITERS).map(|n| scope.spawn(move || soak.write(table, n))));
        threads.extend((0..READERS).map(|n| scope.spawn(move || soak.read(table, n))));
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
            most_bytes = most_bytes.max(daemon.status_bytes("VmRSS"));
        }
        soak.over.store(true, Ordering::Relaxed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().is_ok()).collect();
        assert!(ended.iter().all(|&well| well), "{ended:?}");
    });
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (puts, refused) = (count(&soak.puts), count(&soak.refused));
    println!(
        "{seconds} s: {puts} puts, {refused} refused, {} hits, {} misses; longest put {} us, \
         get {} us, a sleeper was at most {} us late; {} MiB resident",
        count(&soak.hits),
        count(&soak.misses),
        count(&soak.longest_put_us),
        count(&soak.longest_get_us),
        count(&soak.latest_sleep_us),
        most_bytes >> 20,
    );
    for name in ["memory_log_live_bytes", "memory_log_dead_bytes", "memory_free_bytes"] {
        println!("{name} {}", stat(&client, name));
    }
    let names = ["moved_bytes", "written_bytes", "given_up", "waits", "longest_wait_us"];
    for name in names.into_iter().chain(["write_amplification_per_mille"]) {
        println!("cleaning_{name} {}", stat(&client, &format!("cleaning_{name}")));
    }
    assert!(puts > 100 && refused * 10 < puts, "{puts} puts, {refused} refused");
    assert!(count(&soak.hits) > puts, "readers were kept from reading");
    let most = (MEMORY_MIB as u64) << 20;
    assert!(most_bytes <= most + most / 33 + BESIDE_BYTES, "{most_bytes} bytes resident");
    drop((table, client));
    daemon.join();
}
