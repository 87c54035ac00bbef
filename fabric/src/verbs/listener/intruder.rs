//! Peers that were let in, and reach with made-up keys and addresses for what they were not given.
//! They need a device: see `tools/guests/tests/verbs_setup.sh`.

use std::collections::{HashMap, VecDeque};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::hostile::{Raw, TIMEOUT, has_device, ticket};
use super::*;
use crate::buffer::BufferPool;
use crate::endpoint::Refused;
use crate::mem::Memory;
use crate::verbs::ffi::flight::Target;
use crate::verbs::ffi::pd::Access;
use crate::verbs::frames::{Note, READ_WRITE};
use crate::verbs::regions::{Use, describe};
use crate::verbs::setup::client_pd;
use crate::verbs::{ConnectOptions, Connected, connect};
use crate::work::{Opcode, Outcome, RegionId, RemoteAddr, Rights, WorkError, WorkRequest};

const REGION_BYTES: usize = 64 << 10;
const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;
/// What buffers hold that nothing may be READ into.
const BLANK: u8 = 0xee;
const READABLE: u32 = 1;
const WRITABLE: u32 = 2;
/// The region under whose number intruders post what they made up.
const FORGED: RegionId = RegionId(7);

/// Two regions full of a secret, for each of two tenants; everybody is let in.
struct Vault {
    regions: [HashMap<u32, (Arc<Memory>, Rights)>; 2],
}

/// Peers of higher numbers are the second tenant's.
const SECOND: u64 = 100;

fn tenant_of(context: u64) -> usize {
    usize::from(context >= SECOND)
}

impl Admission for Vault {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        Ok(ticket[0].into())
    }

    fn domain(&self, context: u64) -> Option<u32> {
        Some(tenant_of(context) as u32)
    }

    fn region(&self, context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        self.regions[tenant_of(context)].get(&region.0).cloned()
    }
}

fn secret_memory() -> Arc<Memory> {
    let memory = Memory::private(REGION_BYTES).expect("memory");
    for at in (0..REGION_BYTES).step_by(8) {
        memory.store(at, SECRET).expect("inside");
    }
    Arc::new(memory)
}

fn is_untouched(memory: &Memory) -> bool {
    (0..REGION_BYTES).step_by(8).all(|at| memory.load(at) == Ok(SECRET))
}

/// Ends that the server has heard of, by context.
type Ends = Arc<Mutex<Vec<(u64, String)>>>;

struct Host {
    vault: Arc<Vault>,
    listener: Listener,
    ends: Ends,
    over: Arc<AtomicBool>,
    pollers: Vec<JoinHandle<()>>,
}

impl Host {
    fn start() -> Self {
        let region = |number, rights| (number, (secret_memory(), rights));
        let regions = || [region(READABLE, Rights::ReadOnly), region(WRITABLE, Rights::ReadWrite)];
        let regions = [HashMap::from(regions()), HashMap::from(regions())];
        let vault = Arc::new(Vault { regions });
        let admission = Arc::clone(&vault) as Arc<dyn Admission>;
        let limits = Limits::default();
        let (listener, queues) =
            Listener::start_domains(&Options::default(), 0, limits, admission, 2).expect("starts");
        let (ends, over) = (Ends::default(), Arc::new(AtomicBool::new(false)));
        let poller = |cq: Arc<dyn CompletionQueue>| {
            let (ends, over) = (Arc::clone(&ends), Arc::clone(&over));
            std::thread::spawn(move || poll_until(&*cq, &over, &ends))
        };
        let pollers = queues.into_iter().map(poller).collect();
        Self { vault, listener, ends, over, pollers }
    }

    fn is_untouched(&self) -> bool {
        let all = self.vault.regions.iter().flat_map(HashMap::values);
        all.into_iter().all(|(memory, _)| is_untouched(memory))
    }

    fn good(&self, number: u8) -> Connected {
        let options = ConnectOptions::default();
        let blob = self.listener.blob(512);
        let good = connect(&blob, &ticket(number), 0, TIMEOUT, &options).expect("connects");
        good.endpoint.attach(RegionId(READABLE), &[]).expect("offered");
        good
    }

    /// A peer that was let in and may know anything.
    fn intruder(&self, number: u8) -> Raw {
        let address = SocketAddr::new(self.listener.choice.addresses[0], self.listener.port);
        let raw = Raw::request(address, &self.listener.hello.request(&ticket(number)));
        assert!(matches!(raw.answer().happened, Happened::Established), "it is let in");
        raw.link.established();
        // Until it is limited, only what is registered stands in its way.
        let begin = Instant::now();
        while !self.links(number).iter().all(|link| link.tx.lock().granted.is_limited()) {
            assert!(begin.elapsed() < TIMEOUT, "peer {number} may do anything");
            std::thread::sleep(Duration::from_millis(1));
        }
        raw
    }

    /// The server's ends of the connections of peer `number`.
    fn links(&self, number: u8) -> Vec<Arc<Link>> {
        let queues = self.listener.watching.queues.iter().filter_map(Weak::upgrade);
        let links = queues.flat_map(|queue| queue.links());
        links.filter(|link| link.context == u64::from(number)).collect()
    }

    /// Where a region is, as the server tells peer `number` when it asks.
    fn told(&self, number: u8, region: u32) -> Target {
        let raw = self.intruder(number);
        raw.link.attach(RegionId(region)).expect("offered");
        let at = RemoteAddr { region: RegionId(region), offset_bytes: 0 };
        raw.link.tx.lock().regions.target(at, 8, Use::Read).expect("told")
    }
}

fn poll_until(cq: &dyn CompletionQueue, over: &AtomicBool, ends: &Ends) {
    let (mut out, mut peers) = (vec![], vec![]);
    while !over.load(Ordering::Acquire) {
        cq.wait(Duration::from_millis(20));
        cq.poll(&mut out, 64);
        for completion in out.drain(..) {
            match completion.outcome {
                Outcome::Connected(peer) => peers.push(peer),
                Outcome::Disconnected(why) => ends.lock().push((completion.context, why)),
                _ => {}
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for poller in self.pollers.drain(..) {
            let _panicked = poller.join();
        }
    }
}

/// A place that the intruder makes up: everything from `addr` on, for everything.
fn forged(addr: u64, rkey: u32) -> Note {
    let mut note = Note::short(READ_WRITE, FORGED.0);
    note.addr.set(addr);
    note.len_bytes.set(1 << 20);
    note.rkey.set(rkey);
    note
}

fn remote() -> RemoteAddr {
    RemoteAddr { region: FORGED, offset_bytes: 0 }
}

fn blank(len_bytes: usize) -> crate::buffer::Buffer {
    let mut buffer = BufferPool::new().get(len_bytes);
    buffer.fill(BLANK);
    buffer
}

fn read(len_bytes: usize) -> Opcode {
    Opcode::Read { remote: remote(), into: blank(len_bytes) }
}

/// Posts one request; what came of it.
fn outcome(raw: &Raw, op: Opcode) -> Outcome {
    let mut chain = VecDeque::from([WorkRequest { id: 1, signaled: true, op }]);
    raw.link.post(&mut chain).expect("posted");
    let mut out = vec![];
    let deadline = Instant::now() + TIMEOUT;
    while out.is_empty() {
        assert!(Instant::now() < deadline, "it completes");
        raw.queue.wait(Duration::from_millis(20));
        raw.queue.poll(&mut out, 1);
    }
    out.remove(0).outcome
}

/// A neighbour reads what it may, whatever the intruder does.
fn neighbour_reads(good: &Connected) {
    let at = RemoteAddr { region: RegionId(READABLE), offset_bytes: 4096 };
    let op = Opcode::Read { remote: at, into: blank(64) };
    let mut chain = VecDeque::from([WorkRequest { id: 9, signaled: true, op }]);
    good.endpoint.post(&mut chain).expect("posted");
    let mut out = vec![];
    let deadline = Instant::now() + TIMEOUT;
    while out.is_empty() {
        assert!(Instant::now() < deadline, "it completes");
        good.cq.wait(Duration::from_millis(20));
        good.cq.poll(&mut out, 1);
    }
    match &out[0].outcome {
        Outcome::Read(bytes) => assert!(bytes.words().iter().all(|&word| word == SECRET)),
        other => panic!("the neighbour: {other:?}"),
    }
}

/// One attempt by a peer of its own: it must bring no byte, change nothing, and end that peer.
fn fails(host: &Host, number: u8, what: &str, note: &Note, op: Opcode) {
    let raw = host.intruder(number);
    raw.link.tx.lock().regions.put(note).expect("it may believe what it likes");
    match outcome(&raw, op) {
        Outcome::Failed(_, Some(bytes)) => {
            assert!(bytes.iter().all(|&byte| byte == BLANK), "{what}: bytes arrived");
        }
        Outcome::Failed(_, None) => {}
        other => panic!("{what}: {other:?}"),
    }
    assert!(host.is_untouched(), "{what}");
    drop(raw);
    let begin = Instant::now();
    while !host.ends.lock().iter().any(|(context, _)| *context == u64::from(number)) {
        assert!(begin.elapsed() < TIMEOUT, "{what}: the server keeps its connection");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn made_up_keys_and_addresses_give_no_bytes_and_harm_nobody() {
    if !has_device() {
        return;
    }
    let host = Host::start();
    let neighbour = host.good(1);
    neighbour_reads(&neighbour);
    let Target { addr, rkey } = host.told(8, READABLE);
    let end = addr + REGION_BYTES as u64;
    let mut number = 10;
    let mut attempt = |what: &str, addr: u64, rkey: u32, op: Opcode| {
        number += 1;
        fails(&host, number, what, &forged(addr, rkey), op);
        neighbour_reads(&neighbour);
    };
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..12 {
        attempt("a random rkey", addr, random.random(), read(64));
    }
    for bit in [0, 1, 7, 8, 9, 31] {
        attempt("an rkey that is nearly right", addr, rkey ^ 1 << bit, read(64));
    }
    for (what, at, len_bytes) in [
        ("behind the region", end, 64),
        ("across its end", end - 8, 64),
        ("before it", addr - 64, 64),
        ("across its beginning", addr - 8, 64),
        ("nowhere", 0, 64),
        ("at the end of all addresses", u64::MAX - (1 << 20), 64),
        ("more than it is long", addr, REGION_BYTES + 8),
    ] {
        attempt(what, at, rkey, read(len_bytes));
    }
    let from = || blank(64);
    attempt("a WRITE", addr, rkey, Opcode::Write { remote: remote(), from: from() });
    attempt("an addition", addr, rkey, Opcode::FetchAdd { remote: remote(), add: 1 });
    let swap = Opcode::CompareSwap { remote: remote(), expected: SECRET, new: 0 };
    attempt("a swap", addr, rkey, swap);
    // With what the server tells everybody it is let in.
    let raw = host.intruder(9);
    raw.link.tx.lock().regions.put(&forged(addr, rkey)).expect("so it is");
    assert!(matches!(outcome(&raw, read(64)), Outcome::Read(_)), "attempts reach the device");
    println!("{} attempts failed, each within the connection that made it", number - 10);
}

#[test]
fn another_session_s_memory_cannot_be_read_through_the_server() {
    if !has_device() {
        return;
    }
    let host = Host::start();
    let neighbour = host.good(1);
    let lent = secret_memory();
    neighbour.endpoint.lend(&lent).expect("lent");
    neighbour_reads(&neighbour);
    // On one host both use one device, so that the key is one of that device.
    let raw = host.intruder(2);
    let device = raw.id.device().expect("a device").expect("a device");
    let pd = client_pd(&device).expect("a domain");
    let theirs =
        describe(&pd, u64::MAX, RegionId(0), &lent, Access::RemoteWrite).expect("registered");
    drop(raw);
    let stolen = forged(theirs.addr.get(), theirs.rkey.get());
    let write = Opcode::Write { remote: remote(), from: blank(64) };
    for (number, op) in [(3, read(64)), (4, write)] {
        fails(&host, number, "memory lent by another session", &stolen, op);
        assert!(is_untouched(&lent));
        neighbour_reads(&neighbour);
    }
}

#[test]
fn another_tenant_s_true_keys_and_addresses_give_no_bytes() {
    if !has_device() {
        return;
    }
    let host = Host::start();
    let (first, second) = (1, SECOND as u8 + 1);
    let neighbours = [host.good(first), host.good(second)];
    let mut number = 10;
    for (tenant, other) in [(0, SECOND as u8), (SECOND as u8, 0)] {
        for region in [READABLE, WRITABLE] {
            let Target { addr, rkey } = host.told(tenant + 8, region);
            let true_place = forged(addr, rkey);
            let write = Opcode::Write { remote: remote(), from: blank(64) };
            let add = Opcode::FetchAdd { remote: remote(), add: 1 };
            for op in [read(64), read(REGION_BYTES), write, add] {
                number += 1;
                fails(&host, other + number, "another tenant's true key", &true_place, op);
                neighbours.iter().for_each(neighbour_reads);
            }
            // It is the place, and its own tenant reads there: only the domain stood in between.
            number += 1;
            let own = host.intruder(tenant + number);
            own.link.tx.lock().regions.put(&true_place).expect("so it is");
            match outcome(&own, read(64)) {
                Outcome::Read(bytes) => assert!(bytes.words().iter().all(|&word| word == SECRET)),
                other => panic!("its own tenant: {other:?}"),
            }
        }
    }
    println!("true keys of another tenant: no bytes");
}

#[test]
fn a_queue_pair_allows_no_more_than_its_session_was_granted() {
    if !has_device() {
        return;
    }
    let host = Host::start();
    let neighbour = host.good(1);
    // Registered for everything, since one session of this tenant may do everything there.
    let Target { addr, rkey } = host.told(8, WRITABLE);
    let place = forged(addr, rkey);
    let write = || Opcode::Write { remote: remote(), from: blank(64) };
    fails(&host, 11, "a WRITE without the right", &place, write());
    let add = Opcode::FetchAdd { remote: remote(), add: 1 };
    fails(&host, 12, "an addition without the right", &place, add);
    neighbour_reads(&neighbour);
    // Who is granted the region may.
    let granted = host.intruder(13);
    granted.link.attach(RegionId(WRITABLE)).expect("offered");
    granted.link.tx.lock().regions.put(&place).expect("so it is");
    assert!(matches!(outcome(&granted, write()), Outcome::Written(_)), "a granted WRITE");
    assert!(!host.is_untouched());
}

/// A peer may ask, be answered and write before the thread that accepted it comes to limit it.
#[test]
fn who_limits_a_peer_late_takes_nothing_back() {
    if !has_device() {
        return;
    }
    let host = Host::start();
    let granted = host.intruder(5);
    granted.link.attach(RegionId(WRITABLE)).expect("offered");
    host.links(5).iter().for_each(|link| link.established());
    let region = RegionId(WRITABLE);
    let remote = RemoteAddr { region, offset_bytes: 0 };
    let write = Opcode::Write { remote, from: blank(64) };
    let written = outcome(&granted, write);
    assert!(matches!(written, Outcome::Written(_)), "{written:?}");
    assert!(!host.is_untouched());
    assert_eq!(*host.ends.lock(), []);
}

/// A device that has put a queue pair into error tells nobody why; what is posted is flushed.
#[test]
fn a_queue_pair_that_its_device_has_ended_is_given_up() {
    if !has_device() {
        return;
    }
    let host = Host::start();
    let raw = host.intruder(6);
    raw.link.attach(RegionId(READABLE)).expect("offered");
    raw.link.tx.lock().queue.qp().expect("open").to_error().expect("the device ends it");
    let remote = RemoteAddr { region: RegionId(READABLE), offset_bytes: 0 };
    let read = Opcode::Read { remote, into: blank(64) };
    let mut chain = VecDeque::from([WorkRequest { id: 1, signaled: true, op: read }]);
    raw.link.post(&mut chain).expect("posted");
    let (mut out, deadline) = (vec![], Instant::now() + TIMEOUT);
    while out.len() < 2 {
        assert!(Instant::now() < deadline, "it is given up: {out:?}");
        raw.queue.wait(Duration::from_millis(20));
        raw.queue.poll(&mut out, 8);
    }
    assert!(matches!(out[0].outcome, Outcome::Failed(WorkError::Flushed, Some(_))), "{out:?}");
    match &out[1].outcome {
        Outcome::Disconnected(why) => assert!(why.contains("by itself"), "{why}"),
        other => panic!("{other:?}"),
    }
}
