//! `rdma = require | prefer | never` against a server that seems to be on another host and to have
//! RDMA: a middleman changes what its welcome offers. Here no offer of verbs can be followed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onesided::{Client, Error, FabricChoice, FabricKind, Rdma, blocking};
use onesided_protocol::control::{FabricName, FabricOffer, PURPOSE_DATA, ToClient};
use onesided_server::{Server, ServerConfig};

const LONG: Duration = Duration::from_secs(20);

/// One test at a time: what one counts in the log of this process no other one says.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn server() -> Server {
    let listen = "127.0.0.1:0".to_owned();
    let config = ServerConfig { listen, memory_bytes: 64 << 20, ..ServerConfig::default() };
    Server::start(config).expect("starts")
}

/// Passes connections on; welcomes offer shm of another host, verbs, and what else there was.
struct Middleman {
    addr: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    /// It changes nothing any more.
    honest: Arc<AtomicBool>,
}

impl Middleman {
    fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let addr = listener.local_addr().expect("an address");
        let open = Arc::<Mutex<Vec<TcpStream>>>::default();
        let honest = Arc::<AtomicBool>::default();
        let (to, kept, changes_nothing) = (server.addr(), Arc::clone(&open), Arc::clone(&honest));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                kept.lock().unwrap().push(client.try_clone().expect("a descriptor"));
                // The server may be gone: the client sees its connection close.
                let honest = changes_nothing.load(Ordering::Relaxed);
                let _ended = std::thread::spawn(move || pass_on(client, to, honest));
            }
        });
        Self { addr, open, honest }
    }

    fn url(&self, query: &str) -> String {
        format!("onesided://{}{query}", self.addr)
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _closed_already = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(mut client: TcpStream, to: SocketAddr, honest: bool) -> std::io::Result<()> {
    let mut server = TcpStream::connect(to)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let mut preamble = vec![0; onesided_protocol::control::PREAMBLE_MAGIC.len() + 1];
    client.read_exact(&mut preamble)?;
    server.write_all(&preamble)?;
    let (mut from, mut into) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ended = std::io::copy(&mut from, &mut into);
        let _closed_already = into.shutdown(Shutdown::Both);
    });
    let passed = match preamble.last() {
        Some(&PURPOSE_DATA) => std::io::copy(&mut server, &mut client).map(|_| ()),
        _ if honest => std::io::copy(&mut server, &mut client).map(|_| ()),
        _ => answers(&mut server, &mut client),
    };
    let _closed_already = client.shutdown(Shutdown::Both);
    passed
}

fn answers(server: &mut TcpStream, client: &mut TcpStream) -> std::io::Result<()> {
    loop {
        let mut len = [0; 4];
        server.read_exact(&mut len)?;
        let mut frame = vec![0; u32::from_le_bytes(len) as usize];
        server.read_exact(&mut frame)?;
        if let Ok(ToClient::Welcome(mut welcome)) = ToClient::decode(&frame) {
            for offer in &mut welcome.fabrics {
                if offer.kind == FabricName::Shm {
                    // Another boot id.
                    offer.blob[1..37].fill(b'0');
                }
            }
            welcome.fabrics.retain(|offer| offer.kind != FabricName::Verbs);
            let blob = b"no queue pair".to_vec();
            welcome.fabrics.insert(1, FabricOffer { kind: FabricName::Verbs, blob });
            frame.clear();
            ToClient::Welcome(welcome).encode(&mut frame);
        }
        client.write_all(&(frame.len() as u32).to_le_bytes())?;
        client.write_all(&frame)?;
    }
}

fn connect(url: String, rdma: Option<Rdma>) -> Result<blocking::Client, Error> {
    let builder = Client::builder().url(url).connect_timeout_ms(10_000);
    match rdma {
        Some(rdma) => builder.rdma(rdma).connect_blocking(),
        None => builder.connect_blocking(),
    }
}

/// What the library logs in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn count(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches(text).count()
    }
}

#[test]
fn prefer_falls_back_with_one_warning_that_says_why() {
    let _alone = alone();
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    lines.init();
    let server = server();
    let middleman = Middleman::before(&server);
    let client = connect(middleman.url(""), None).expect("tcp");
    let table = client.table("default").expect("opens");
    table.put("k", "v").expect("put");
    let stats = client.stats();
    assert_eq!((client.fabric(), stats.fabric.as_str()), (FabricKind::Tcp, "tcp"));
    let why = stats.fallback.expect("a reason");
    let (shm, verbs) = why.split_once("; verbs: ").expect("both reasons");
    assert!(shm.starts_with("shm: ") && shm.contains("another host"), "{why}");
    assert!(!verbs.is_empty(), "{why}");
    assert_eq!(log.count("; verbs: "), 1);
    for round in 1..=3 {
        middleman.cut();
        let start = Instant::now();
        while client.stats().reconnects < round {
            assert!(start.elapsed() < LONG, "it does not come back");
            std::thread::sleep(Duration::from_millis(5));
        }
        table.put("k", "v").expect("put");
    }
    assert_eq!(log.count("; verbs: "), 1, "told once");
    assert!(log.count("connected again fabric=\"tcp\"") >= 3, "and the fabric in use each time");
}

/// While a thread works over tcp, what kept the better fabric away goes: the client finds out, and
/// nothing fails.
#[test]
fn a_fallback_does_not_last_for_ever() {
    let _alone = alone();
    let server = server();
    let middleman = Middleman::before(&server);
    let builder = Client::builder().url(middleman.url("")).better_fabric_retry_ms(20);
    let client = builder.connect_blocking().expect("tcp");
    assert_eq!(client.fabric(), FabricKind::Tcp);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let works = scope.spawn(|| {
            let table = client.table("default").expect("opens");
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                let number = table.increment("n", 1).expect("no failure");
                count += 1;
                assert_eq!(number, count, "applied once");
                let value = table.get("n").expect("get").expect("there");
                assert_eq!(value, count.to_string().as_bytes()[..]);
            }
            count
        });
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(client.fabric(), FabricKind::Tcp);
        middleman.honest.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while client.fabric() != FabricKind::Shm {
            assert!(start.elapsed() < LONG, "it stays with tcp");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        done.store(true, Ordering::Relaxed);
        assert!(works.join().expect("no failure") > 0);
    });
    let stats = client.stats();
    assert_eq!((stats.fabric_upgrades, stats.reconnects, stats.fallback), (1, 0, None));
}

#[test]
fn require_fails_with_the_reason() {
    let _alone = alone();
    let server = server();
    let middleman = Middleman::before(&server);
    for (url, rdma) in
        [(middleman.url(""), Some(Rdma::Require)), (middleman.url("?rdma=require"), None)]
    {
        match connect(url, rdma) {
            Err(Error::Fabric { fabric: "verbs", reason }) => assert!(!reason.is_empty()),
            other => panic!("{other:?}"),
        }
    }
    // Also on the server's own host: shared memory is no verbs.
    let nearby = format!("onesided://{}", server.addr());
    if !server.fabrics().contains(&FabricName::Verbs) {
        let error = connect(nearby, Some(Rdma::Require)).expect_err("no verbs").to_string();
        assert!(error.contains("does not offer it"), "{error}");
    }
}

#[test]
fn never_does_not_try_it() {
    let _alone = alone();
    let server = server();
    let middleman = Middleman::before(&server);
    let client = connect(middleman.url("?rdma=require"), Some(Rdma::Never)).expect("tcp");
    let why = client.stats().fallback.expect("shm is told");
    assert!(why.starts_with("shm: ") && !why.contains("verbs:"), "{why}");
    let nearby = connect(format!("onesided://{}?rdma=never", server.addr()), None).expect("shm");
    assert_eq!((nearby.fabric(), nearby.stats().fallback), (FabricKind::Shm, None));
}

#[test]
fn a_device_that_was_asked_for_and_is_missing_is_an_error() {
    let _alone = alone();
    let server = server();
    let url = format!("onesided://{}", server.addr());
    let device = || "no_such_device".parse().expect("a name");
    let builder = || Client::builder().url(&url).rdma_device(device());
    for builder in [builder(), builder().rdma(Rdma::Prefer), builder().rdma(Rdma::Require)] {
        match builder.connect_blocking() {
            Err(Error::Fabric { fabric: "verbs", reason }) => {
                assert!(reason.contains("that was asked for"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mtu = "256".parse().expect("an MTU");
    let error = Client::builder().url(&url).rdma_mtu(mtu).connect_blocking();
    if !server.fabrics().contains(&FabricName::Verbs) {
        assert!(
            matches!(error, Err(Error::Fabric { fabric: "verbs", .. })),
            "no path without RDMA"
        );
    }
    // Where verbs is ruled out nobody asks for a device.
    for builder in [builder().rdma(Rdma::Never), builder().fabric(FabricChoice::Tcp)] {
        assert!(builder.connect_blocking().is_ok());
    }
}

#[test]
fn contradictions_are_refused_before_anybody_is_asked() {
    let _alone = alone();
    for (fabric, rdma) in [
        (FabricChoice::Verbs, Rdma::Never),
        (FabricChoice::Shm, Rdma::Require),
        (FabricChoice::Tcp, Rdma::Require),
    ] {
        let builder = Client::builder().url("onesided://192.0.2.1").fabric(fabric).rdma(rdma);
        let error = builder.connect_blocking().expect_err("refused").to_string();
        assert!(error.contains(&format!("rdma={rdma} forbids it")), "{error}");
    }
}
