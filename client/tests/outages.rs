//! Servers that stop, restart, fall silent or refuse: every call ends, and mutations are applied
//! once or their outcome is said to be unknown.

#[path = "common/proxy.rs"]
mod proxy;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided::{Client, ClientBuilder, Error, FabricChoice, TableOptions};
use onesided_server::config::Token;
use onesided_server::{Server, ServerConfig};
use proxy::Proxy;

fn config() -> ServerConfig {
    ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 128 << 20,
        ..ServerConfig::default()
    }
}

fn server() -> Server {
    Server::start(config()).unwrap()
}

fn server_at(addr: SocketAddr) -> Server {
    Server::start(ServerConfig { listen: addr.to_string(), ..config() }).unwrap()
}

fn builder(url: impl Into<String>) -> ClientBuilder {
    Client::builder().url(url).connect_timeout_ms(500).silence_timeout_ms(500)
}

fn url(addr: SocketAddr) -> String {
    format!("onesided://{addr}")
}

/// What the server itself holds.
fn stored(server: &Server, key: &str) -> Option<Vec<u8>> {
    let info = server.engine().open_table("default").unwrap();
    let mut value = Vec::new();
    server.engine().table(info.id).unwrap().get(key.as_bytes(), &mut value).map(|_| value)
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} never happened");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_lost_is_given_again() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    let client = builder(proxy.url()).fabric(FabricChoice::Tcp).connect().await.unwrap();
    let table = client.table("default").await.unwrap();
    for round in 1..=5 {
        proxy.swallow_answers(true);
        let task = tokio::spawn({
            let table = table.clone();
            async move { table.increment("n", 1).await }
        });
        let applied = round.to_string().into_bytes();
        until("the increment", || stored(&server, "n").as_ref() == Some(&applied)).await;
        proxy.swallow_answers(false);
        proxy.cut();
        assert_eq!(task.await.unwrap().unwrap(), round, "applied once");
    }
    let stats = client.stats();
    assert!(stats.reconnects >= 5 && stats.rpc_retries >= 5, "{stats:?}");
}

#[tokio::test]
async fn who_does_nothing_hears_that_the_data_path_has_ended() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    let client = builder(proxy.url()).fabric(FabricChoice::Tcp).connect().await.unwrap();
    // The control connection is the first.
    proxy.cut_last();
    until("the next connection", || client.stats().reconnects == 1).await;
    until("its use", || client.stats().connected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_at_any_moment_apply_everything_once() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    let client = builder(proxy.url())
        .fabric(FabricChoice::Tcp)
        .operation_timeout_ms(60_000)
        .connect()
        .await
        .unwrap();
    let table = client.table("default").await.unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for pause in [3, 1, 7, 2, 11, 5].iter().cycle().take(60) {
                std::thread::sleep(Duration::from_millis(*pause));
                proxy.cut();
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut counted = 0;
        let (runtime, done) = (tokio::runtime::Handle::current(), &done);
        tokio::task::block_in_place(|| {
            runtime.block_on(async {
                while !done.load(Ordering::SeqCst) || counted == 0 {
                    let tasks: Vec<_> = (0..20)
                        .map(|_| {
                            let table = table.clone();
                            tokio::spawn(async move { table.increment("n", 1).await })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap().unwrap();
                        counted += 1;
                    }
                    let pairs: Vec<_> = (0..50).map(|n| (format!("k{n}"), "v")).collect();
                    for result in table.put_many(&pairs).await {
                        result.unwrap();
                    }
                }
                assert_eq!(table.increment("n", 0).await.unwrap(), counted);
            });
        });
    });
    assert!(client.stats().reconnects > 0);
}

#[tokio::test]
async fn a_restart_leaves_mutations_in_flight_unknown_and_everything_else_goes_on() {
    let server = server();
    let addr = server.addr();
    let proxy = Proxy::to(addr);
    let client = builder(proxy.url()).fabric(FabricChoice::Tcp).connect().await.unwrap();
    let table = client.table("default").await.unwrap();
    table.put("old", "1").await.unwrap();
    proxy.swallow_answers(true);
    let spawn = |key: &'static str| {
        let table = table.clone();
        tokio::spawn(async move { table.put(key, "2").await })
    };
    let put = spawn("k");
    until("the put", || stored(&server, "k").is_some()).await;
    let get = tokio::spawn({
        let table = table.clone();
        async move { table.get("old").await }
    });
    server.stop();
    drop(server);
    proxy.swallow_answers(false);
    // Down: nothing of this one can have left.
    until("the loss", || !client.stats().connected).await;
    let later = spawn("later");
    let server = server_at(addr);
    let outcome = put.await.unwrap();
    assert!(matches!(outcome, Err(Error::OutcomeUnknown { .. })), "{outcome:?}");
    assert_eq!(get.await.unwrap().unwrap(), None, "the new server has nothing");
    later.await.unwrap().unwrap();
    assert_eq!(stored(&server, "later").as_deref(), Some(&b"2"[..]));
    assert_eq!(stored(&server, "k"), None);
}

#[tokio::test]
async fn shm_clients_come_back_after_a_restart() {
    let mut server = server();
    let addr = server.addr();
    let client = builder(url(addr)).fabric(FabricChoice::Shm).connect().await.unwrap();
    let table = client.table("default").await.unwrap();
    for round in ["1", "2", "3"] {
        table.put("k", round).await.unwrap();
        assert_eq!(stored(&server, "k").as_deref(), Some(round.as_bytes()));
        server.stop();
        server = server_at(addr);
        assert_eq!(table.get("k").await.unwrap(), None);
    }
    assert_eq!(client.fabric(), onesided::FabricKind::Shm);
}

#[tokio::test]
async fn a_silent_server_ends_calls_in_time() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    let client = builder(proxy.url())
        .fabric(FabricChoice::Tcp)
        .operation_timeout_ms(700)
        .connect()
        .await
        .unwrap();
    let table = client.table("default").await.unwrap();
    table.put("k", "v").await.unwrap();
    proxy.stall(true);
    let start = Instant::now();
    let error = table.get("k").await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. } | Error::ConnectionLost(_)), "{error}");
    until("the loss", || !client.stats().connected).await;
    // Without a connection nothing leaves, so nothing is unknown.
    let error = table.put("k", "w").await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
    let error = client.tables().await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
    let error = client.ping().await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
    // Not a speed: that no wait is unbounded.
    assert!(start.elapsed() < Duration::from_secs(60));
    proxy.stall(false);
    until("the return", || client.stats().connected).await;
    assert_eq!(&table.get("k").await.unwrap().unwrap()[..], b"v");
}

#[tokio::test]
async fn a_mutation_without_an_answer_is_in_doubt() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    // Heartbeats are answered late enough that the data path's deadline comes first.
    let client = builder(proxy.url())
        .fabric(FabricChoice::Tcp)
        .operation_timeout_ms(300)
        .silence_timeout_ms(60_000)
        .connect()
        .await
        .unwrap();
    let table = client.table("default").await.unwrap();
    proxy.swallow_answers(true);
    let put = table.put("k", "v").await.unwrap_err();
    assert!(matches!(put, Error::OutcomeUnknown { .. }), "{put}");
    assert!(put.may_have_been_applied());
    let error = table.get("k").await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(!error.may_have_been_applied());
    assert_eq!(stored(&server, "k").as_deref(), Some(&b"v"[..]));
    assert!(put.to_string().contains("there was no answer within 300ms"), "{put}");
    let lost = tokio::spawn({
        let table = table.clone();
        async move { table.put("lost", "v").await }
    });
    until("the put", || stored(&server, "lost").is_some()).await;
    proxy.refuse(true);
    proxy.cut();
    let lost = lost.await.unwrap().unwrap_err();
    assert!(matches!(lost, Error::OutcomeUnknown { .. }), "{lost}");
    for text in [put.to_string(), lost.to_string()] {
        assert!(!text.contains("nothing was applied"), "{text}");
    }
}

#[test]
fn a_server_that_takes_nobody_in_says_so() {
    let few = ServerConfig { max_handshakes: 2, handshake_timeout_ms: 600_000, ..config() };
    let server = Server::start(few).unwrap();
    let connect = || std::net::TcpStream::connect(server.addr()).unwrap();
    // They say nothing.
    let _idle = [connect(), connect()];
    for _ in 0..40 {
        let builder = builder(url(server.addr())).connect_timeout_ms(30_000);
        let refused = builder.connect_blocking().unwrap_err();
        assert!(matches!(&refused, Error::Refused(_)), "{refused}");
        assert!(refused.to_string().contains("ServerFull"), "{refused}");
    }
}

#[tokio::test]
async fn without_reconnecting_a_loss_is_final() {
    for fabric in [FabricChoice::Tcp, FabricChoice::Shm] {
        let server = server();
        let client =
            builder(url(server.addr())).fabric(fabric).reconnect(false).connect().await.unwrap();
        let table = client.table("default").await.unwrap();
        server.stop();
        until("the loss", || !client.stats().connected).await;
        for error in [
            table.get("k").await.unwrap_err(),
            table.put("k", "v").await.unwrap_err(),
            client.tables().await.unwrap_err(),
            client.ping().await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::ConnectionLost(_)), "{fabric:?}: {error}");
        }
    }
}

#[tokio::test]
async fn reconnecting_gives_up_when_told_to() {
    let server = server();
    let client = builder(url(server.addr())).reconnect_timeout_ms(100).connect().await.unwrap();
    let table = client.table("default").await.unwrap();
    server.stop();
    // The call outlives the attempts: it ends when they do.
    let error = table.put("k", "v").await.unwrap_err();
    assert!(!matches!(error, Error::TimedOut { .. }), "{error}");
    until("giving up", || !client.stats().connected).await;
    assert!(matches!(table.get("k").await, Err(Error::ConnectionLost(_))));
}

#[test]
fn blocking_calls_survive_an_outage() {
    let server = server();
    let addr = server.addr();
    let client = builder(url(addr)).connect_blocking().unwrap();
    let table = client.table("default").unwrap();
    server.stop();
    let restart = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        server_at(addr)
    });
    // In the outage: it waits for the next server.
    assert_eq!(table.get("k").unwrap(), None);
    table.put("k", "v").unwrap();
    let server = restart.join().unwrap();
    assert_eq!(stored(&server, "k").as_deref(), Some(&b"v"[..]));
}

#[tokio::test]
async fn what_cannot_be_had_is_said_clearly() {
    let token = Some(Token::new("right").unwrap());
    let fabrics = vec![onesided_protocol::control::FabricName::Tcp];
    let server = Server::start(ServerConfig { token, fabrics, ..config() }).unwrap();
    let url = url(server.addr());
    let connect = |builder: ClientBuilder| async move { builder.connect().await };

    let wrong = connect(builder(&url).token("wrong")).await.unwrap_err();
    assert!(matches!(wrong, Error::Unauthorized(_)), "{wrong}");
    let none = connect(builder(&url)).await.unwrap_err();
    assert!(matches!(none, Error::Unauthorized(_)), "{none}");
    let right = builder(&url).token("right");
    let shm = connect(right.clone().fabric(FabricChoice::Shm)).await.unwrap_err();
    assert!(shm.to_string().contains("does not offer"), "{shm}");
    let verbs = connect(builder(format!("{url}?fabric=verbs")).token("right")).await.unwrap_err();
    assert!(matches!(verbs, Error::Fabric { fabric: "verbs", .. }), "{verbs}");
    let auto = connect(right).await.unwrap();
    assert_eq!(auto.fabric(), onesided::FabricKind::Tcp);
    // What cannot be sent is refused here, and costs no connection.
    let long = connect(builder(&url).token("t".repeat(300))).await.unwrap_err();
    assert!(matches!(long, Error::TooLarge(_)), "{long}");
    let name = "n".repeat(65);
    for long in [
        auto.table(&name).await.map(drop),
        auto.create_table(&name, TableOptions::default()).await.map(drop),
        auto.alter_table(&name, TableOptions::default()).await,
        auto.drop_table(&name).await,
    ] {
        assert!(matches!(long, Err(Error::TooLarge(_))), "{long:?}");
    }
    assert_eq!(auto.stats().reconnects, 0);

    let bad = connect(builder("http://x")).await.unwrap_err();
    assert!(matches!(bad, Error::BadUrl { .. }), "{bad}");
    let nobody = connect(builder("onesided://127.0.0.1:1")).await.unwrap_err();
    assert!(matches!(nobody, Error::Connect { .. }), "{nobody}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = self::url(silent.local_addr().unwrap());
    let silence = connect(builder(silent_url).connect_timeout_ms(100)).await.unwrap_err();
    assert!(matches!(silence, Error::Connect { .. }), "{silence}");
    let http = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let http_url = self::url(http.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = http.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_secs(1));
    });
    let http = connect(builder(http_url).connect_timeout_ms(10_000)).await.unwrap_err().to_string();
    assert!(http.contains("admin port") && !http.contains("running there?"), "{http}");
}

#[tokio::test]
async fn too_short_a_time_is_no_lost_connection() {
    let server = server();
    let client = builder(url(server.addr())).operation_timeout_ms(1).connect().await.unwrap();
    // Most of them wait for others longer than they may.
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.tables().await })
    };
    let mut late = 0;
    for answer in (0..1_000).map(|_| ask()).collect::<Vec<_>>() {
        if let Err(error) = answer.await.unwrap() {
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            late += 1;
        }
    }
    println!("{late} were late");
    assert_eq!(client.stats().reconnects, 0);
}

#[tokio::test]
async fn a_server_that_refuses_for_a_while_is_tried_again() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    let client = builder(proxy.url()).fabric(FabricChoice::Tcp).connect().await.unwrap();
    let table = client.table("default").await.unwrap();
    table.put("k", "v").await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    until("the loss", || !client.stats().connected).await;
    let get = tokio::spawn(async move { table.get("k").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.refuse(false);
    assert_eq!(&get.await.unwrap().unwrap().unwrap()[..], b"v");
}

#[tokio::test]
async fn administration_without_an_answer_is_in_doubt_only_if_it_was_sent() {
    let server = server();
    let proxy = Proxy::to(server.addr());
    let client = builder(proxy.url())
        .fabric(FabricChoice::Tcp)
        .operation_timeout_ms(300)
        .silence_timeout_ms(60_000)
        .connect()
        .await
        .unwrap();
    proxy.swallow_answers(true);
    let create = |name: &'static str| client.create_table(name, TableOptions::default());
    let error = create("sent").await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { what: "create table", .. }), "{error}");
    until("the table", || server.engine().open_table("sent").is_ok()).await;
    // The control connection still waits for that answer.
    let error = create("waiting").await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    proxy.swallow_answers(false);
    client.close().await;
}
