//! Connecting over a real RDMA device: run in a guest (`tools/guests/test verbs_setup`). Without
//! `ONESIDED_VERBS=1` each test says that it did not run.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{
    ConnectError, ConnectOptions, Connected, Limits, Listener, Options, VerbsError, connect,
};
use onesided_fabric::{
    Admission, BufferPool, Completion, CompletionQueue, Endpoint, Memory, Opcode, Outcome, Refused,
    RegionId, RemoteAddr, Rights, WorkRequest,
};
use parking_lot::Mutex;

const TIMEOUT: Duration = Duration::from_secs(20);
const BLOB_BYTES: usize = 512;

/// Whether there is a device to test with.
fn has_device() -> bool {
    let has = std::env::var_os("ONESIDED_VERBS").is_some();
    if !has {
        eprintln!("DID NOT RUN: needs an RDMA device and ONESIDED_VERBS=1, as tools/guests/test");
    }
    has
}

/// Lets in who has one of its tickets, each once.
struct Gate {
    tickets: Mutex<HashMap<[u8; 32], u64>>,
    memory: Arc<Memory>,
}

impl Gate {
    fn new() -> Arc<Self> {
        let memory = Memory::private(1 << 16).expect("memory");
        for word in 0..1024 {
            memory.store(word * 8, word as u64 * 3).expect("inside");
        }
        Arc::new(Self { tickets: Mutex::default(), memory: Arc::new(memory) })
    }

    fn ticket(&self, number: u64) -> [u8; 32] {
        let mut ticket = [0x5a; 32];
        ticket[..8].copy_from_slice(&number.to_le_bytes());
        self.tickets.lock().insert(ticket, number);
        ticket
    }
}

impl Admission for Gate {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        let known = self.tickets.lock().remove(ticket);
        known.ok_or_else(|| Refused("unknown or used ticket".to_owned()))
    }

    fn region(&self, _context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        (region == RegionId(1)).then(|| (Arc::clone(&self.memory), Rights::ReadOnly))
    }
}

/// A listener whose completions a thread takes: it answers each message with the same bytes.
struct Server {
    gate: Arc<Gate>,
    listener: Listener,
    cq: Arc<dyn CompletionQueue>,
    seen: Arc<Seen>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    connected: Mutex<Vec<u64>>,
    disconnected: Mutex<Vec<(u64, String)>>,
    stop: AtomicBool,
}

impl Server {
    fn start(options: &Options, limits: Limits) -> Self {
        let gate = Gate::new();
        let (listener, cq) =
            Listener::start(options, 0, limits, Arc::clone(&gate) as _).expect("a listener");
        let seen = Arc::<Seen>::default();
        let (queue, told) = (Arc::clone(&cq), Arc::clone(&seen));
        let thread = Some(std::thread::spawn(move || echo(&*queue, &told)));
        Self { gate, listener, cq, seen, thread }
    }

    fn blob(&self) -> Vec<u8> {
        self.listener.blob(BLOB_BYTES)
    }

    fn connect(&self, number: u64) -> Result<Connected, ConnectError> {
        let ticket = self.gate.ticket(number);
        connect(&self.blob(), &ticket, number, TIMEOUT, &ConnectOptions::default())
    }

    #[track_caller]
    fn awaits(&self, what: &str, is_so: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so(&self.seen) {
            let (connected, ended) = (&self.seen.connected, &self.seen.disconnected);
            let late =
                || format!("{what}: {:?} connected, {:?} ended", connected.lock(), ended.lock());
            assert!(Instant::now() < deadline, "{}", late());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Release);
        self.cq.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server's thread");
        }
    }
}

fn echo(queue: &dyn CompletionQueue, seen: &Seen) {
    let mut peers: HashMap<u64, Arc<dyn Endpoint>> = HashMap::new();
    let mut completions = Vec::new();
    while !seen.stop.load(Ordering::Acquire) {
        queue.poll(&mut completions, 64);
        for Completion { context, outcome, .. } in completions.drain(..) {
            match outcome {
                Outcome::Connected(endpoint) => {
                    peers.insert(context, endpoint);
                    seen.connected.lock().push(context);
                }
                Outcome::Received(message) => {
                    let op = Opcode::Send { message };
                    let mut chain = VecDeque::from([WorkRequest { id: 0, signaled: false, op }]);
                    let _closed = peers[&context].post(&mut chain);
                }
                Outcome::Disconnected(reason) => {
                    peers.remove(&context);
                    seen.disconnected.lock().push((context, reason));
                }
                _ => {}
            }
        }
        queue.wait(Duration::from_millis(200));
    }
}

/// The next completion that comes.
#[track_caller]
fn next(cq: &dyn CompletionQueue) -> Completion {
    let mut out = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while cq.poll(&mut out, 1) == 0 {
        assert!(Instant::now() < deadline, "no completion");
        cq.wait(Duration::from_millis(100));
    }
    out.remove(0)
}

/// Posts one request and returns what becomes of it.
#[track_caller]
fn does(peer: &Connected, op: Opcode) -> Outcome {
    let mut chain = VecDeque::from([WorkRequest { id: 1, signaled: true, op }]);
    peer.endpoint.post(&mut chain).expect("posted");
    next(&*peer.cq).outcome
}

/// A message comes back, and a READ brings what is there.
#[track_caller]
fn works(peer: &Connected) {
    let pool = BufferPool::new();
    let sent = does(peer, Opcode::Send { message: pool.copy_of(b"hello") });
    let mut outcomes = vec![sent, next(&*peer.cq).outcome];
    outcomes.sort_by_key(|outcome| matches!(outcome, Outcome::Received(_)));
    assert!(matches!(&outcomes[0], Outcome::Sent(_)), "{outcomes:?}");
    assert!(matches!(&outcomes[1], Outcome::Received(m) if m[..] == *b"hello"), "{outcomes:?}");
    peer.endpoint.attach(RegionId(1), &[]).expect("attached");
    let remote = RemoteAddr { region: RegionId(1), offset_bytes: 80 };
    match does(peer, Opcode::Read { remote, into: pool.get(16) }) {
        Outcome::Read(bytes) => assert_eq!(bytes.words(), [30, 33]),
        other => panic!("{other:?}"),
    }
}

/// Objects of one kind that user processes have on RDMA devices.
fn objects(kind: &str) -> usize {
    let shown = Command::new("rdma").args(["resource", "show", kind]).output().expect("rdma");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    text.lines().filter(|line| line.contains(" pid ")).count()
}

/// All counts, once they are `wanted`, or as they were at the end.
fn settles(wanted: &[usize; 3]) -> [usize; 3] {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let counts = ["qp", "mr", "cm_id"].map(objects);
        if counts == *wanted || Instant::now() > deadline {
            return counts;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_connects_works_and_leaves() {
    if !has_device() {
        return;
    }
    let server = Server::start(&Options::default(), Limits::default());
    let peer = server.connect(7).expect("connected");
    works(&peer);
    server.awaits("connected", |seen| *seen.connected.lock() == [7]);
    peer.endpoint.close();
    assert!(matches!(next(&*peer.cq).outcome, Outcome::Disconnected(_)));
    server.awaits("disconnected", |seen| seen.disconnected.lock().len() == 1);
    assert!(peer.endpoint.is_closed());
    let text = peer.via.clone();
    assert!(text.contains(&server.listener.choice().device), "{text}");
}

#[test]
fn a_server_that_stops_is_noticed() {
    if !has_device() {
        return;
    }
    let server = Server::start(&Options::default(), Limits::default());
    let peers = [1, 2, 3].map(|number| server.connect(number).expect("connected"));
    // Of one that it has not heard of yet it hears no end either.
    server.awaits("three peers", |seen| seen.connected.lock().len() == 3);
    server.listener.stop();
    for peer in &peers {
        match next(&*peer.cq).outcome {
            Outcome::Disconnected(reason) => assert!(!reason.is_empty()),
            other => panic!("{other:?}"),
        }
    }
    server.awaits("three ends", |seen| seen.disconnected.lock().len() == 3);
    let error = server.connect(4).expect_err("nobody listens").to_string();
    assert!(error.contains("nobody listens"), "{error}");
}

#[test]
fn a_ticket_is_good_once_and_a_refusal_says_why() {
    if !has_device() {
        return;
    }
    let server = Server::start(&Options::default(), Limits::default());
    let before = ["qp", "mr", "cm_id"].map(objects);
    let options = ConnectOptions::default();
    let refused = connect(&server.blob(), &[9; 32], 1, TIMEOUT, &options);
    match refused {
        Err(ConnectError::Refused(text)) => assert_eq!(text, "unknown or used ticket"),
        other => panic!("{other:?}"),
    }
    let ticket = server.gate.ticket(1);
    let peer = connect(&server.blob(), &ticket, 1, TIMEOUT, &options).expect("connected");
    let again = connect(&server.blob(), &ticket, 1, TIMEOUT, &options);
    assert!(matches!(again, Err(ConnectError::Refused(_))), "{again:?}");
    works(&peer);
    drop(peer);
    assert_eq!(settles(&before)[0], before[0], "queue pairs");
}

#[test]
fn two_hundred_connections_leave_nothing_behind() {
    if !has_device() {
        return;
    }
    let server = Server::start(&Options::default(), Limits::default());
    // What is made once is made now.
    works(&server.connect(1000).expect("connected"));
    server.awaits("the end", |seen| seen.disconnected.lock().len() == 1);
    let mut before = ["qp", "mr", "cm_id"].map(objects);
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(20));
        before = ["qp", "mr", "cm_id"].map(objects);
    }
    for number in 0..200 {
        let peer = server.connect(number).expect("connected");
        if number % 20 == 0 {
            works(&peer);
        }
    }
    server.awaits("all ends", |seen| seen.disconnected.lock().len() == 201);
    let after = settles(&before);
    eprintln!("queue pairs, regions, ids: {before:?} before, {after:?} after");
    assert_eq!((after[0], after[2]), (before[0], before[2]), "queue pairs and ids");
    assert!(after[1] <= before[1] + 2, "regions: {} after {}", after[1], before[1]);
}

#[test]
fn at_the_limit_a_client_hears_that_the_server_is_full() {
    if !has_device() {
        return;
    }
    let server =
        Server::start(&Options::default(), Limits { max_endpoints: 2, ..Limits::default() });
    let first = server.connect(1).expect("connected");
    let second = server.connect(2).expect("connected");
    let full = server.connect(3);
    assert!(matches!(full, Err(ConnectError::Full(_))), "{full:?}");
    works(&first);
    works(&second);
    drop(first);
    server.awaits("an end", |seen| seen.disconnected.lock().len() == 1);
    works(&server.connect(4).expect("there is room again"));
}

#[test]
fn a_listener_that_stops_leaves_no_client_hanging() {
    if !has_device() {
        return;
    }
    for round in 0..5 {
        let server = Server::start(&Options::default(), Limits::default());
        let connected = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let server = &server;
                    scope.spawn(move || {
                        let mut made = 0;
                        while made < 1000 {
                            match server.connect(client * 1000 + made) {
                                Ok(_) => made += 1,
                                Err(_) => break,
                            }
                        }
                        made
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(100 + 70 * round));
            server.listener.stop();
            clients.into_iter().map(|client| client.join().expect("a client")).sum::<u64>()
        });
        eprintln!("round {round}: {connected} connections before the stop");
    }
}

/// A descriptor of a listener that is not there.
fn blob_of(address: Ipv4Addr) -> Vec<u8> {
    let mut blob = vec![1, 0, 0, 32, 0, 0, 1, 24, 0, 0x48, 0x55, 0, 1, 4];
    blob.extend_from_slice(&address.octets());
    blob
}

#[test]
fn a_host_that_does_not_answer_takes_no_longer_than_allowed() {
    if !has_device() {
        return;
    }
    let begin = Instant::now();
    let timeout = Duration::from_secs(3);
    let blob = blob_of(Ipv4Addr::new(10, 77, 0, 99));
    let error = connect(&blob, &[0; 32], 0, timeout, &ConnectOptions::default());
    let error = error.expect_err("nobody is there").to_string();
    assert!(error.contains("10.77.0.99:18517"), "it names the address: {error}");
    assert!(begin.elapsed() < timeout + TIMEOUT, "bounded: {:?}", begin.elapsed());
    eprintln!("after {:?}: {error}", begin.elapsed());
    let options = ConnectOptions::default();
    let elsewhere = connect(&blob_of(Ipv4Addr::new(192, 0, 2, 1)), &[0; 32], 0, timeout, &options);
    eprintln!("{}", elsewhere.expect_err("no route"));
}

#[test]
fn each_address_of_this_host_will_do() {
    if !has_device() {
        return;
    }
    let all = Server::start(&Options::default(), Limits::default());
    let addresses = all.listener.choice().addresses.clone();
    eprintln!("{addresses:?}");
    assert!(addresses[0].is_ipv4() && addresses.iter().any(IpAddr::is_ipv6), "{addresses:?}");
    let last = addresses.last().expect("some");
    assert!(matches!(last, IpAddr::V6(v6) if v6.is_unicast_link_local()), "{addresses:?}");
    drop(all);
    for address in addresses {
        let options = Options { address: Some(address), ..Options::default() };
        let server = Server::start(&options, Limits::default());
        assert_eq!(server.listener.choice().addresses, [address]);
        let peer = server.connect(1).expect("connected");
        assert!(peer.via.contains(&address.to_string()), "{}", peer.via);
        works(&peer);
        let ticket = server.gate.ticket(2);
        let choice = options.clone();
        let from_it = ConnectOptions { choice, ..ConnectOptions::default() };
        let peer = connect(&server.blob(), &ticket, 2, TIMEOUT, &from_it).expect("connected");
        works(&peer);
    }
}

#[test]
fn what_was_asked_for_and_is_missing_is_an_error() {
    if !has_device() {
        return;
    }
    let start = |options: &Options| {
        let started = Listener::start(options, 0, Limits::default(), Gate::new());
        started.map(|_| ()).expect_err("no such thing")
    };
    let device = Options { device: Some("mlx5_9".to_owned()), ..Options::default() };
    let error = start(&device);
    assert!(matches!(error, VerbsError::NoSuchDevice { .. }), "{error}");
    assert!(error.to_string().contains("rxe0"), "{error}");
    let index = Options { gid_index: Some(200), ..Options::default() };
    let error = start(&index).to_string();
    assert!(error.contains("no GID 200") && error.contains("RoCE v2"), "the table: {error}");
    let options = ConnectOptions { choice: device, ..ConnectOptions::default() };
    let error = connect(&blob_of(Ipv4Addr::LOCALHOST), &[0; 32], 0, TIMEOUT, &options);
    assert!(matches!(error, Err(ConnectError::Host(_))), "{error:?}");
}

/// Two hosts: the first listens, the others connect; files in `SHARED` tell them of each other.
#[test]
fn other_hosts_connect() {
    let several = std::env::var("HOSTS").is_ok_and(|hosts| hosts != "1");
    if !has_device() || !several {
        eprintln!("DID NOT RUN: needs two guests");
        return;
    }
    let shared = PathBuf::from(std::env::var_os("SHARED").expect("SHARED"));
    let begin = Instant::now();
    let families = ["10.77.0.1", "fd77::1"];
    if std::env::var("HOST_ID").as_deref() == Ok("1") {
        let servers = families.map(|address| {
            let address = Some(address.parse().expect(address));
            Server::start(&Options { address, ..Options::default() }, Limits::default())
        });
        for (i, server) in servers.iter().enumerate() {
            let mut bytes = server.gate.ticket(1).to_vec();
            bytes.extend(server.blob());
            std::fs::write(shared.join(format!("new{i}")), bytes).expect("written");
            std::fs::rename(shared.join(format!("new{i}")), shared.join(format!("blob{i}")))
                .expect("renamed");
        }
        for server in &servers {
            server.awaits("the other host's end", |seen| seen.disconnected.lock().len() == 1);
        }
        return;
    }
    for i in 0..families.len() {
        let file = shared.join(format!("blob{i}"));
        while !file.exists() {
            assert!(begin.elapsed() < 3 * TIMEOUT, "the first host has no listener");
            std::thread::sleep(Duration::from_millis(50));
        }
        let bytes = std::fs::read(file).expect("read");
        let (ticket, blob) = bytes.split_first_chunk().expect("a ticket");
        let peer = connect(blob, ticket, 1, TIMEOUT, &ConnectOptions::default());
        let peer = peer.expect("connected");
        works(&peer);
        eprintln!("{}", peer.via);
    }
}
