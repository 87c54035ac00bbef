//! Every target does the same operations with the same outcomes. Redis and memcached are started
//! here, where they are installed.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onesided_bench::target::{Embedded, Operation, Options, Outcome, Session, Target, open};
use onesided_server::{Server, ServerConfig};

/// An outcome with bytes of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Found(Vec<u8>),
    Absent,
    Done,
    Records(Vec<(Vec<u8>, Vec<u8>)>),
    Unsupported,
    Failed(String),
}

/// What came of each of a batch; each is told of once.
fn execute(session: &mut dyn Session, batch: &[Operation<'_>]) -> Vec<Told> {
    let mut told: Vec<Option<Told>> = vec![None; batch.len()];
    let mut records = vec![vec![]; batch.len()];
    let executed = session.execute(batch, &mut |place, outcome| {
        let one = match outcome {
            Outcome::Record { key, value } => {
                return records[place].push((key.to_vec(), value.to_vec()));
            }
            Outcome::Scanned(count) => {
                let records = std::mem::take(&mut records[place]);
                assert_eq!(records.len(), count);
                Told::Records(records)
            }
            Outcome::Found(value) => Told::Found(value.to_vec()),
            Outcome::Absent => Told::Absent,
            Outcome::Done => Told::Done,
            Outcome::Unsupported => Told::Unsupported,
            Outcome::Failed(text) => Told::Failed(text.to_owned()),
        };
        assert_eq!(told[place].replace(one), None, "told twice");
    });
    executed.expect("the session works");
    told.into_iter().map(|one| one.expect("told of each")).collect()
}

fn read(key: &[u8]) -> Operation<'_> {
    Operation::Read { key }
}

fn insert<'a>(key: &'a [u8], value: &'a [u8]) -> Operation<'a> {
    Operation::Insert { key, value, ttl_s: 0 }
}

fn update<'a>(key: &'a [u8], offset: usize, bytes: &'a [u8]) -> Operation<'a> {
    Operation::Update { key, offset, bytes, whole: false }
}

fn found(value: &[u8]) -> Told {
    Told::Found(value.to_vec())
}

/// The suite.
fn conforms(target: &dyn Target) {
    let name = target.name();
    target.clear().expect("cleared");
    let mut session = target.session(0).expect("a session");
    let session = &mut *session;
    one_by_one(&name, session);
    in_batches(&name, session);
    of_any_length(&name, session);
    scans(&name, session);
    let mut other = target.session(1).expect("another session");
    assert_eq!(execute(&mut *other, &[insert(b"shared", b"1")]), [Told::Done], "{name}");
    assert_eq!(execute(session, &[read(b"shared")]), [found(b"1")], "{name}");
    many_at_once(&name, target);
    target.clear().expect("cleared");
    assert_eq!(execute(session, &[read(b"shared")]), [Told::Absent], "{name}");
    assert!(!target.describe().expect("a description").transport.is_empty());
    if let Some(usage) = target.usage().expect("usage") {
        assert!(usage.cpu_seconds > 0.0 && usage.resident_bytes > 1 << 20, "{name}: {usage:?}");
    }
}

fn one_by_one(name: &str, session: &mut dyn Session) {
    let whole = Operation::Update { key: b"k", offset: 0, bytes: b"abcdef", whole: true };
    for (operation, right) in [
        (read(b"k"), Told::Absent),
        (Operation::Delete { key: b"k" }, Told::Absent),
        (insert(b"k", b"0123456789"), Told::Done),
        (read(b"k"), found(b"0123456789")),
        (update(b"k", 3, b"xyz"), Told::Done),
        (read(b"k"), found(b"012xyz6789")),
        (whole, Told::Done),
        (read(b"k"), found(b"abcdef")),
        (insert(b"k", b""), Told::Done),
        (read(b"k"), found(b"")),
        (Operation::Delete { key: b"k" }, Told::Done),
        (read(b"k"), Told::Absent),
        (Operation::Insert { key: b"ttl", value: b"v", ttl_s: 1000 }, Told::Done),
        (Operation::Insert { key: b"ttl", value: b"w", ttl_s: 90 * 86_400 }, Told::Done),
        (read(b"ttl"), found(b"w")),
    ] {
        assert_eq!(execute(session, &[operation]), [right], "{name}: {operation:?}");
    }
}

/// Operations of one batch are done in their order where they are on one key.
fn in_batches(name: &str, session: &mut dyn Session) {
    let batch = [
        insert(b"a", b"aaaa"),
        insert(b"b", b"bbbb"),
        read(b"a"),
        update(b"a", 0, b"1"),
        read(b"a"),
        update(b"a", 1, b"2"),
        update(b"b", 2, b"3"),
        read(b"a"),
        Operation::Delete { key: b"a" },
        read(b"a"),
        insert(b"a", b"new"),
        read(b"b"),
        read(b"a"),
        read(b"none"),
    ];
    let right = [
        Told::Done,
        Told::Done,
        found(b"aaaa"),
        Told::Done,
        found(b"1aaa"),
        Told::Done,
        Told::Done,
        found(b"12aa"),
        Told::Done,
        Told::Absent,
        Told::Done,
        found(b"bb3b"),
        found(b"new"),
        Told::Absent,
    ];
    assert_eq!(execute(session, &batch), right, "{name}");
    assert_eq!(execute(session, &[]), [], "{name}");
}

/// Records of many lengths, more in a batch than any buffer on the way takes.
fn of_any_length(name: &str, session: &mut dyn Session) {
    let lens = [1, 100, 4_000, 5_000, 70_000, 300_000, 900_000];
    let records: Vec<Vec<u8>> = lens.iter().map(|&len| vec![len as u8; len]).collect();
    let keys: Vec<String> = lens.iter().map(|len| format!("long-{len}")).collect();
    let pairs = || keys.iter().zip(&records);
    let writes = || pairs().map(|(key, record)| insert(key.as_bytes(), record));
    let reads = || keys.iter().map(|key| read(key.as_bytes()));
    let updates = || keys.iter().map(|key| update(key.as_bytes(), 0, b"!"));
    let batch: Vec<Operation<'_>> =
        writes().chain(reads()).chain(updates()).chain(reads()).chain(writes()).collect();
    let told = execute(session, &batch);
    for (place, record) in records.iter().enumerate() {
        let at = |part: usize| &told[part * lens.len() + place];
        let len = lens[place];
        assert!(
            *at(0) == Told::Done && *at(2) == Told::Done && *at(4) == Told::Done,
            "{name} {len}"
        );
        assert!(*at(1) == found(record), "{name}: {len} bytes");
        let patched = [b"!", &record[1..]].concat();
        assert!(*at(3) == Told::Found(patched), "{name}: {len} bytes, patched");
    }
}

/// All records of the prefix in order, or nothing at all.
fn scans(name: &str, session: &mut dyn Session) {
    let keys: Vec<String> = (0..40).map(|number| format!("scan-{number:02}")).collect();
    let inserts: Vec<Operation<'_>> =
        keys.iter().rev().map(|key| insert(key.as_bytes(), key.as_bytes())).collect();
    execute(session, &inserts);
    let scan = Operation::Scan { from: b"scan-05x", limit: 10 };
    match &execute(session, &[scan])[..] {
        [Told::Unsupported] => {}
        [Told::Records(records)] => {
            let keys = keys[6..16].iter().map(String::as_bytes);
            let right: Vec<_> = keys.map(|key| (key.to_vec(), key.to_vec())).collect();
            assert_eq!(*records, right, "{name}");
        }
        told => panic!("{name}: {told:?}"),
    }
}

/// Updates of parts by several sessions: none is lost.
fn many_at_once(name: &str, target: &dyn Target) {
    const THREADS: usize = 4;
    const ROUNDS: usize = 50;
    let mut session = target.session(0).expect("a session");
    let record = [0; THREADS];
    assert_eq!(execute(&mut *session, &[insert(b"parts", &record)]), [Told::Done]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut session = target.session(thread).expect("a session");
                for round in 1..=ROUNDS {
                    let bytes = [round as u8];
                    let told = execute(&mut *session, &[update(b"parts", thread, &bytes); 3]);
                    assert_eq!(told, [Told::Done, Told::Done, Told::Done], "{name}");
                }
            });
        }
    });
    let right = found(&[ROUNDS as u8; THREADS]);
    assert_eq!(execute(&mut *session, &[read(b"parts")]), [right], "{name}");
}

fn options() -> Options {
    Options { record_bytes: 1 << 20, records: 1000, ..Options::default() }
}

fn conforms_at(url: &str) {
    let target = open(url, &options()).unwrap_or_else(|error| panic!("{error:#}"));
    conforms(&*target);
}

fn server() -> Server {
    let config = ServerConfig { listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    Server::start(config).expect("the server starts")
}

#[test]
fn onesided_over_shared_memory_and_tcp() {
    let server = server();
    for fabric in ["shm", "tcp"] {
        let url = format!("onesided://{}?fabric={fabric}", server.addr());
        let target = open(&url, &options()).expect("it opens");
        conforms(&*target);
        assert_eq!(target.name(), format!("onesided {fabric}"));
        let counters = target.counters();
        assert_eq!(counters.one_sided > Some(0), fabric == "shm", "{counters:?}");
        assert!(counters.rpcs > Some(0) && counters.round_trips > Some(0), "{counters:?}");
    }
}

#[test]
fn onesided_with_registered_buffers_and_a_table_of_its_own() {
    let server = server();
    let options = Options { registered: true, table: "own".to_owned(), ..options() };
    let target = open(&format!("onesided://{}", server.addr()), &options).expect("it opens");
    conforms(&*target);
}

#[test]
fn onesided_with_a_server_of_its_own() {
    let options = Options { table: "own".to_owned(), ..options() };
    let embedded = match Embedded::start(&options) {
        Ok(embedded) => embedded,
        // Tests of this package alone do not build it.
        Err(error) => {
            let error = format!("{error:#}");
            assert!(error.contains("put onesided-server beside"), "{error}");
            return println!("left out: {error}");
        }
    };
    conforms(&*open(embedded.url(), &options).expect("it opens"));
    let url = embedded.url().to_owned();
    drop(embedded);
    assert!(open(&url, &options).is_err(), "it has ended");
}

#[test]
fn maps_of_this_process() {
    conforms_at("map://");
    conforms_at("map://?kind=dashmap");
}

#[test]
fn lmdb_in_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    conforms_at(&format!("lmdb://{}", directory.path().join("new").display()));
}

/// A server of somebody else's, ended when this is dropped.
struct Peer(Child);

impl Peer {
    /// `None`: it is not installed, which is said.
    fn start(command: &mut Command, is_up: impl Fn() -> bool) -> Option<Self> {
        let child = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let text =
                    format!("left out: {} is not installed", command.get_program().display());
                assert!(std::env::var_os("CI").is_none(), "{text}");
                println!("{text}");
                return None;
            }
            Err(error) => panic!("{}: {error}", command.get_program().display()),
        };
        let peer = Self(child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_up() {
            assert!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _ended_already = self.0.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[test]
fn redis_over_both_sockets() {
    let directory = tempfile::tempdir().expect("a directory");
    let (port, socket) = (free_port(), directory.path().join("socket"));
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--unixsocket"])
        .arg(&socket)
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(directory.path());
    let up = || listens(port) && answers(&socket);
    let Some(_peer) = Peer::start(&mut command, up) else { return };
    conforms_at(&format!("redis://127.0.0.1:{port}"));
    let url = format!("redis+unix://{}", socket.display());
    conforms_at(&url);
    // Where values are checked, an update of a part must not make a record of that part.
    let checked = Options { verify: true, ..Options::default() };
    let target = open(&url, &checked).expect("it opens");
    conforms(&*target);
    let mut session = target.session(0).expect("a session");
    let told = execute(&mut *session, &[update(b"gone", 3, b"xyz"), read(b"gone")]);
    assert_eq!(told, [Told::Absent, Told::Absent]);
}

#[test]
fn memcached_over_both_sockets() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let port = free_port();
    let memcached = || {
        let mut command = Command::new("memcached");
        command.args(["-m", "256", "-u", "root"]);
        command
    };
    let mut by_tcp = memcached();
    by_tcp.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
    let Some(_tcp) = Peer::start(&mut by_tcp, || listens(port)) else { return };
    let mut by_unix = memcached();
    by_unix.arg("-s").arg(&socket);
    let Some(_unix) = Peer::start(&mut by_unix, || answers(&socket)) else { return };
    conforms_at(&format!("memcached://127.0.0.1:{port}"));
    conforms_at(&format!("memcached+unix://{}", socket.display()));
}

#[test]
fn memcached_s_limit_of_connections_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let mut command = Command::new("memcached");
    command.args(["-m", "64", "-u", "root", "-t", "1", "-c", "32", "-s"]).arg(&socket);
    let Some(_peer) = Peer::start(&mut command, || answers(&socket)) else { return };
    let url = format!("memcached+unix://{}", socket.display());
    let target = open(&url, &Options::default()).expect("it opens");
    let mut sessions = vec![];
    let refused = (0..64).find_map(|client| match target.session(client) {
        Ok(session) => {
            sessions.push(session);
            None
        }
        Err(error) => Some(format!("{error:#}")),
    });
    let text = refused.expect("beyond the limit");
    assert!(text.contains("its limit is 32 connections") && text.contains("-c N"), "{text}");
    let told = execute(&mut *sessions[0], &[insert(b"k", b"v"), read(b"k")]);
    assert_eq!(told, [Told::Done, found(b"v")], "the others are served");
}
