//! Hello, token, tickets, leases, tables, the end.

mod common;

use std::time::Duration;

use common::*;
use onesided_protocol::control::{
    FabricName, Heartbeat, Hello, TableCounts, TableOptions, ToClient, ToServer,
};
use onesided_protocol::limits::TICKET_BYTES;
use onesided_protocol::rpc::{ErrorCode, Op, Reply};
use onesided_server::config::{TableSpec, Token};
use onesided_server::{Server, ServerConfig, StartError};

#[test]
fn hello_opens_a_session() {
    let server = start(config());
    let first = Control::open(server.addr()).welcome;
    let second = Control::open(server.addr()).welcome;
    assert!(second.session > first.session);
    assert_ne!(second.ticket, first.ticket);
    assert_eq!(second.incarnation, server.engine().incarnation());
    let kinds: Vec<_> = first.fabrics.iter().map(|offer| offer.kind).collect();
    assert_eq!(kinds, [FabricName::Shm, FabricName::Tcp]);
    assert!(!first.resumed);
    assert!(first.heartbeat_ms * 3 < first.lease_ms);
}

#[test]
fn other_versions_are_refused_and_both_named() {
    let server = start(config());
    let refused = |hello| Control::with(server.addr(), hello).err().expect("refused");
    let error = refused(Hello { wire_min: 900, wire_max: 901, ..hello() });
    assert_eq!(error.code, ErrorCode::Version);
    assert!(error.text.contains("900 to 901") && error.text.contains("1 to 1"), "{}", error.text);
    let error = refused(Hello { layout: 77, ..hello() });
    assert_eq!(error.code, ErrorCode::Version);
    assert!(error.text.contains("layout 77"), "{}", error.text);
    let wide = Hello { wire_min: 0, wire_max: u16::MAX, ..hello() };
    assert_eq!(Control::with(server.addr(), wide).expect("in common").welcome.wire, 1);
}

#[test]
fn tokens() {
    let token = Some(Token::new("open sesame").expect("valid"));
    let server = start(ServerConfig { token, ..config() });
    let with = |server: &Server, token: &str| {
        Control::with(server.addr(), Hello { token: token.to_owned(), ..hello() })
    };
    for wrong in ["", "open", "open sesame!", "open sesamE"] {
        let error = with(&server, wrong).err().expect("refused");
        assert_eq!(error.code, ErrorCode::Unauthorized);
        assert!(!error.text.contains("sesame"), "{}", error.text);
    }
    let mut control = with(&server, "open sesame").expect("welcome");
    assert_eq!(control.stat("hellos_refused"), 4);
    let open = start(config());
    assert!(with(&open, "anything").is_ok(), "a token that nobody asks for does no harm");
}

#[test]
fn tickets_are_good_once_and_for_a_while() {
    let server = start(ServerConfig { ticket_lease_ms: 2_000, ..config() });
    let (mut control, mut data) = connect(server.addr());
    data.ping();
    let used = control.welcome.ticket;
    assert!(Data::open(server.addr(), &used, 1).is_closed());
    assert!(Data::open(server.addr(), &[7; TICKET_BYTES], 1).is_closed());
    let fresh = control.ticket();
    let mut second = Data::open(server.addr(), &fresh, data.table);
    second.ping();
    let late = control.ticket();
    std::thread::sleep(Duration::from_millis(2_100));
    assert!(Data::open(server.addr(), &late, 1).is_closed());
    assert_eq!(control.stat("tickets_refused"), 3);
    data.ping();
}

/// A client that connects and ends at once: the server may read its data connection last.
#[test]
fn a_ticket_whose_session_is_over_is_late_and_not_refused() {
    let server = start(config());
    let mut gone = Control::open(server.addr());
    let ticket = gone.welcome.ticket;
    assert_eq!(gone.ask(&ToServer::Goodbye), ToClient::Done);
    let mut other = Control::open(server.addr());
    eventually("the session is over", || other.stat("sessions") == 1);
    assert!(Data::open(server.addr(), &ticket, 1).is_closed());
    assert_eq!(other.stat("tickets_refused"), 0);
    assert!(Data::open(server.addr(), &ticket, 1).is_closed());
    assert_eq!(other.stat("tickets_refused"), 1, "it was shown twice");
}

#[test]
fn a_session_has_few_endpoints() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    data.ping();
    let mut more = Vec::new();
    for _ in 0..7 {
        let ticket = control.ticket();
        let mut data = Data::open(server.addr(), &ticket, data.table);
        data.ping();
        more.push(data);
    }
    let ticket = control.ticket();
    assert!(Data::open(server.addr(), &ticket, 1).is_closed());
    more.pop();
    eventually("the endpoint goes", || control.stat("endpoints_tcp") == 7);
    let ticket = control.ticket();
    Data::open(server.addr(), &ticket, 1).ping();
}

#[test]
fn a_session_without_heartbeats_ends_and_one_with_them_goes_on() {
    let server = start(ServerConfig { session_lease_ms: 1_000, ..config() });
    let (mut control, mut data) = connect(server.addr());
    let table = control.table("default");
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(300));
        let counts = Box::new(TableCounts { reads: 1, ..TableCounts::default() });
        assert_eq!(control.ask(&ToServer::Counted { table, counts }), ToClient::Done);
        assert!(matches!(
            control.ask(&ToServer::Heartbeat(Heartbeat::default())),
            ToClient::Alive { .. }
        ));
        data.ping();
    }
    assert!(data.is_closed(), "the endpoint closes with its session");
    assert_eq!(control.last_word(), ErrorCode::Unauthorized);
    let mut other = Control::open(server.addr());
    assert_eq!(other.stat("sessions"), 1);
    eventually("the endpoint is gone", || other.stat("endpoints_tcp") == 0);
    assert_eq!(other.stat("clients_reported_reads"), 6, "counts outlive the session");
    let again = Control::resume(server.addr(), &control.welcome);
    assert!(!again.welcome.resumed, "an ended session cannot be resumed");
}

#[test]
fn resuming_needs_the_key_and_replaces_the_old_connection() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    data.ping();
    let mut wrong = control.welcome.clone();
    wrong.resume_key ^= 1;
    assert!(!Control::resume(server.addr(), &wrong).welcome.resumed);
    let resumed = Control::resume(server.addr(), &control.welcome).welcome;
    assert!(resumed.resumed);
    assert_eq!(resumed.session, control.welcome.session);
    assert!(data.is_closed(), "endpoints of before are closed");
    assert_eq!(control.last_word(), ErrorCode::Unauthorized);
}

#[test]
fn goodbye_ends_the_session_at_once() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    data.ping();
    assert_eq!(control.ask(&ToServer::Goodbye), ToClient::Done);
    assert!(data.is_closed());
    assert_eq!(Control::open(server.addr()).stat("sessions"), 1);
}

#[test]
fn a_full_server_says_so() {
    let server = start(ServerConfig { max_sessions: 2, ..config() });
    let first = Control::open(server.addr());
    let mut second = Control::open(server.addr());
    let error = Control::with(server.addr(), hello()).err().expect("refused");
    assert_eq!(error.code, ErrorCode::ServerFull);
    assert!(error.text.contains("max_sessions"), "{}", error.text);
    assert!(Control::resume(server.addr(), &first.welcome).welcome.resumed);
    assert_eq!(second.ask(&ToServer::Goodbye), ToClient::Done);
    assert!(Control::with(server.addr(), hello()).is_ok());
}

#[test]
fn clients_that_end_without_a_word_keep_nobody_out() {
    let server = start(ServerConfig { max_sessions: 2, ..config() });
    let mut stays = Control::open(server.addr());
    for _ in 0..10 {
        let (control, mut data) = connect(server.addr());
        data.ping();
        drop((control, data));
        eventually("the server notices", || {
            stays.stat("control_connections") == 1 && stays.stat("endpoints_tcp") == 0
        });
    }
    assert_eq!(stays.stat("sessions"), 2);
    let resumed = Control::resume(server.addr(), &stays.welcome).welcome;
    assert!(resumed.resumed, "who is connected keeps the session");
}

#[test]
fn tables_come_and_go() {
    let options =
        TableOptions { default_ttl_s: 60, quota_bytes: 8 << 20, ..TableOptions::default() };
    let spec = TableSpec { options, ..TableSpec::new("first") };
    let server = start(ServerConfig { tables: vec![spec], ..config() });
    let mut control = Control::open(server.addr());
    let ToClient::Tables(tables) = control.ask(&ToServer::ListTables) else { panic!("no list") };
    assert_eq!(tables.len(), 1);
    assert_eq!((tables[0].name.as_str(), tables[0].options), ("first", options));
    let name = "second".to_owned();
    let create = ToServer::CreateTable { name: name.clone(), options: TableOptions::default() };
    let ToClient::Table(made) = control.ask(&create) else { panic!("not made") };
    let ToClient::Failed(error) = control.ask(&create) else { panic!("made twice") };
    assert_eq!(error.code, ErrorCode::TableExists);
    let alter = ToServer::AlterTable { name: name.clone(), options };
    let ToClient::Table(altered) = control.ask(&alter) else { panic!("not altered") };
    assert_eq!((altered.id, altered.options), (made.id, options));
    let ticket = control.welcome.ticket;
    let mut data = Data::open(server.addr(), &ticket, made.id);
    assert!(data.call(1, put(b"k", b"v")).is_ok());
    let drop = ToServer::DropTable { name: name.clone() };
    assert_eq!(control.ask(&drop), ToClient::Done);
    assert_eq!(code(data.call(2, put(b"k", b"w"))), ErrorCode::NoSuchTable);
    for gone in [drop, ToServer::OpenTable { name }] {
        let ToClient::Failed(error) = control.ask(&gone) else { panic!("{gone:?}") };
        assert_eq!(error.code, ErrorCode::NoSuchTable);
    }
    let ToClient::Table(again) = control.ask(&create) else { panic!("not made again") };
    assert_ne!(again.id, made.id, "ids are not reused");
    data.table = again.id;
    assert_eq!(data.get(b"k"), None);
}

#[test]
fn memory_of_a_dropped_table_waits_for_the_sessions_that_knew_it() {
    let server = start(config());
    let (mut old, mut data) = connect(server.addr());
    assert!(data.call(1, put(b"k", b"v")).is_ok());
    let mut stranger = Control::open(server.addr());
    let mut young = Control::open(server.addr());
    young.table("default");
    assert_eq!(stranger.ask(&ToServer::DropTable { name: "default".to_owned() }), ToClient::Done);
    let kept = stranger.stat("memory_quarantined_bytes");
    assert!(kept > 0);
    assert_eq!(old.ask(&ToServer::Goodbye), ToClient::Done);
    assert_eq!(stranger.stat("memory_quarantined_bytes"), kept, "one session knew it still");
    assert_eq!(young.ask(&ToServer::Goodbye), ToClient::Done);
    assert_eq!(stranger.stat("memory_quarantined_bytes"), 0, "who never opened it does not count");
}

#[test]
fn a_session_that_stays_does_not_keep_tables_that_it_never_opened() {
    let server = start(config());
    let mut stays = Control::open(server.addr());
    stays.table("default");
    // More than there are records for tables.
    for n in 0..1_100 {
        let name = "short".to_owned();
        let create = ToServer::CreateTable { name: name.clone(), options: TableOptions::default() };
        let mut control = Control::open(server.addr());
        let created = control.ask(&create);
        assert!(matches!(created, ToClient::Table(_)), "table {n}: {created:?}");
        assert_eq!(control.ask(&ToServer::DropTable { name }), ToClient::Done);
        assert_eq!(control.ask(&ToServer::Goodbye), ToClient::Done);
    }
    assert_eq!(stays.stat("memory_quarantined_bytes"), 0);
}

#[test]
fn stopping_with_open_connections() {
    let server = start(config());
    let (mut control, mut data) = connect(server.addr());
    let idle = dial(server.addr());
    data.ping();
    server.stop();
    server.stop();
    assert!(data.is_closed());
    assert!(exchange(&mut control.stream, &ToServer::Stats).is_err());
    drop(idle);
    // The same port at once.
    let again = start(ServerConfig { listen: server.addr().to_string(), ..config() });
    assert_eq!(again.addr(), server.addr());
    let stale = Control::resume(again.addr(), &control.welcome).welcome;
    assert!(!stale.resumed);
    assert_ne!(stale.incarnation, control.welcome.incarnation);
}

#[test]
fn a_taken_port_is_named() {
    let server = start(config());
    let listen = server.addr().to_string();
    match Server::start(ServerConfig { listen: listen.clone(), ..config() }) {
        Err(error @ StartError::Listen { .. }) => assert!(error.to_string().contains(&listen)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_without_shm() {
    let server = start(ServerConfig { fabrics: vec![FabricName::Tcp], ..config() });
    let (control, mut data) = connect(server.addr());
    assert_eq!(control.welcome.fabrics.len(), 1);
    assert_eq!(data.call(0, Op::Ping), Ok(Reply::Pong));
}
