//! Tenants: sessions that share a server and cannot reach each other's tables and bytes.

mod common;

use common::{Control, Data, PATIENCE, code, config, hello, put, start};
use onesided_fabric::{AttachError, Memory, RegionId, RemoteAddr, shm};
use onesided_protocol::control::{
    FabricName, Hello, TableOptions, TableStatus, ToClient, ToServer,
};
use onesided_protocol::layout::catalog::{CATALOG_BYTES, TABLE_RECORDS_OFFSET};
use onesided_protocol::rpc::{ErrorCode, Op, Reply};
use onesided_server::config::{TenantSpec, Token};
use onesided_server::{Server, ServerConfig};

const REGION_BYTES: usize = 1 << 20;
/// What red stores, and nobody else.
const RED: [u8; 1000] = [0x9d; 1000];

fn tenant(name: &str) -> TenantSpec {
    let token = Token::new(&format!("{name}'s token")).expect("a token");
    TenantSpec { token: Some(token), ..TenantSpec::new(name) }
}

/// `blue` may do what it likes; `red` may take 4 MiB, and not make tables.
fn shared() -> Server {
    let mut red = tenant("red");
    red.manage_tables = false;
    red.memory_bytes = Some(4 << 20);
    let tables = ["open", "default:tenant=blue", "default:tenant=red", "secret:tenant=red"];
    start(ServerConfig {
        region_bytes: REGION_BYTES,
        segment_bytes: 128 << 10,
        tables: tables.map(|text| text.parse().expect(text)).to_vec(),
        tenants: vec![tenant("blue"), red],
        ..config()
    })
}

fn enter(server: &Server, name: &str) -> Control {
    let token = format!("{name}'s token");
    Control::with(server.addr(), Hello { token, ..hello() }).expect("welcome")
}

fn data(server: &Server, control: &Control, table: u32) -> Data {
    Data::open(server.addr(), &control.welcome.ticket, table)
}

fn names(control: &mut Control) -> Vec<String> {
    let ToClient::Tables(tables) = control.ask(&ToServer::ListTables) else { panic!("no list") };
    tables.into_iter().map(|TableStatus { name, .. }| name).collect()
}

fn failure(control: &mut Control, message: &ToServer) -> ErrorCode {
    match control.ask(message) {
        ToClient::Failed(error) => error.code,
        other => panic!("{message:?} was answered with {other:?}"),
    }
}

#[test]
fn the_token_decides_and_a_wrong_one_is_nobody_s() {
    let server = shared();
    let mut open = Control::open(server.addr());
    assert_eq!(names(&mut open), ["open"]);
    assert_eq!(names(&mut enter(&server, "blue")), ["default"]);
    assert_eq!(names(&mut enter(&server, "red")), ["default", "secret"]);
    for token in ["x", "blue", "blue's toke", "blue's token "] {
        let refused = Control::with(server.addr(), Hello { token: token.to_owned(), ..hello() });
        assert_eq!(
            code(refused.map(|control| control.welcome)),
            ErrorCode::Unauthorized,
            "{token}"
        );
    }
}

#[test]
fn tables_of_others_do_not_exist() {
    let server = shared();
    let (mut blue, mut red) = (enter(&server, "blue"), enter(&server, "red"));
    let name = || "secret".to_owned();
    let options = TableOptions::default();
    for message in [
        ToServer::OpenTable { name: name() },
        ToServer::AlterTable { name: name(), options },
        ToServer::DropTable { name: name() },
    ] {
        assert_eq!(failure(&mut blue, &message), ErrorCode::NoSuchTable);
    }
    // One name and one number, and yet two tables.
    let ids = (blue.table("default"), red.table("default"));
    assert_eq!(ids.0, ids.1);
    let (mut blue_data, mut red_data) = (data(&server, &blue, ids.0), data(&server, &red, ids.1));
    assert!(matches!(blue_data.call(1, put(b"k", b"blue")), Ok(Reply::Done { .. })));
    assert!(matches!(red_data.call(1, put(b"k", b"red")), Ok(Reply::Done { .. })));
    assert_eq!(blue_data.get(b"k").as_deref(), Some(&b"blue"[..]));
    assert_eq!(red_data.get(b"k").as_deref(), Some(&b"red"[..]));
    // The number of a table that only red has.
    blue_data.table = red.table("secret");
    let get = Op::Get { key: b"k", landing: None };
    assert_eq!(code(blue_data.call(0, get)), ErrorCode::NoSuchTable);
    assert_eq!(code(blue_data.call(2, put(b"k", b"v"))), ErrorCode::NoSuchTable);

    // What one makes and drops is nothing to the other.
    let made = ToServer::CreateTable { name: name(), options };
    assert!(matches!(blue.ask(&made), ToClient::Table(_)));
    assert!(matches!(blue.ask(&ToServer::DropTable { name: name() }), ToClient::Done));
    assert!(matches!(blue.ask(&ToServer::DropTable { name: "default".into() }), ToClient::Done));
    assert!(names(&mut blue).is_empty());
    assert_eq!(names(&mut red), ["default", "secret"]);
    assert_eq!(red_data.get(b"k").as_deref(), Some(&b"red"[..]));
}

#[test]
fn who_may_not_manage_tables_is_told_so_and_uses_them() {
    let server = shared();
    let mut red = enter(&server, "red");
    let options = TableOptions { default_ttl_s: 1, ..TableOptions::default() };
    for message in [
        ToServer::CreateTable { name: "new".to_owned(), options },
        ToServer::AlterTable { name: "default".to_owned(), options },
        ToServer::DropTable { name: "default".to_owned() },
    ] {
        let ToClient::Failed(error) = red.ask(&message) else { panic!("{message:?}") };
        assert_eq!(error.code, ErrorCode::Unauthorized);
        assert!(error.text.contains("manage_tables"), "{}", error.text);
    }
    let table = red.table("default");
    assert!(data(&server, &red, table).call(1, put(b"k", b"v")).is_ok());
}

#[test]
fn a_session_is_resumed_by_its_own_tenant_only() {
    let server = shared();
    let blue = enter(&server, "blue");
    let resume = (blue.welcome.session, blue.welcome.resume_key);
    let take = |name: &str| {
        let token = format!("{name}'s token");
        Control::with(server.addr(), Hello { token, resume, ..hello() }).expect("welcome").welcome
    };
    let stolen = take("red");
    assert!(!stolen.resumed && stolen.session != blue.welcome.session);
    assert!(take("blue").resumed);
}

/// Fills red's memory, until it has more regions than others.
fn fill_red(server: &Server) -> u32 {
    let mut red = enter(server, "red");
    let table = red.table("secret");
    let mut data = data(server, &red, table);
    for n in 1.. {
        match data.call(n, put(&n.to_le_bytes(), &RED)) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.code, ErrorCode::OutOfMemory);
                assert!(error.text.contains("limit of the tenant"), "{}", error.text);
                break;
            }
        }
    }
    let regions = server.engine_of("red").expect("red").regions();
    assert!(regions > 4);
    regions
}

fn holds_red(bytes: &[u8]) -> bool {
    bytes.windows(32).any(|part| part == &RED[..32])
}

#[test]
fn over_shm_no_region_of_another_tenant_can_be_had() {
    let server = shared();
    let regions_of_red = fill_red(&server);
    let mut blue = enter(&server, "blue");
    let table = blue.table("default");
    assert!(data(&server, &blue, table).call(1, put(b"k", b"v")).is_ok());
    let offer = blue.welcome.fabrics.iter().find(|offer| offer.kind == FabricName::Shm);
    let blob = offer.expect("shm").blob.clone();
    let connected = shm::connect(&blob, &blue.ticket(), 5, PATIENCE).expect("connects");
    let own = server.engine_of("blue").expect("blue").regions();
    assert!(own < regions_of_red);
    for id in 0..regions_of_red + 3 {
        let region = RegionId(id);
        let attached = connected.endpoint.attach(region, &[]);
        if id >= own {
            assert!(matches!(attached, Err(AttachError::NotOffered(_))), "{id}: {attached:?}");
            continue;
        }
        attached.expect("its own");
        let bytes = if id == 0 { CATALOG_BYTES } else { REGION_BYTES };
        let mut bytes = vec![0; bytes];
        let remote = RemoteAddr { region, offset_bytes: 0 };
        connected.endpoint.read_bytes_now(remote, &mut bytes).expect("at once").expect("inside");
        assert!(!holds_red(&bytes), "region {id} holds red's bytes");
        if id == 0 {
            let records = &bytes[TABLE_RECORDS_OFFSET..];
            assert!(records.windows(7).any(|part| part == b"default"));
            assert!(!records.windows(6).any(|part| part == b"secret"), "red's table is listed");
            assert!(!records.windows(4).any(|part| part == b"open"), "another's table is listed");
        }
    }
    // The bytes are there for whom they are for.
    let red = server.engine_of("red").expect("red");
    let mut found =
        (1..regions_of_red).filter_map(|id| red.region(id)).map(|memory| whole(&memory));
    assert!(found.any(|bytes| holds_red(&bytes)));
}

fn whole(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len_bytes()];
    memory.read_bytes(0, &mut bytes).expect("whole");
    bytes
}

#[test]
fn figures_of_memory_are_the_tenant_s_and_one_that_is_full_stops_nobody() {
    let server = shared();
    let before = enter(&server, "blue").stat("memory_region_bytes");
    fill_red(&server);
    let (mut blue, mut red) = (enter(&server, "blue"), enter(&server, "red"));
    assert_eq!(blue.stat("memory_region_bytes"), before);
    // A 64th is left to what clients may write.
    let taken = (4 << 20) / 64 * 63;
    assert_eq!(red.stat("memory_region_bytes"), taken);
    let of_all: u64 = server
        .stats()
        .into_iter()
        .filter_map(|(name, value)| (name == "memory_region_bytes").then_some(value))
        .sum();
    assert_eq!(of_all, before * 2 + taken);
    let table = blue.table("default");
    let mut blue_data = data(&server, &blue, table);
    for n in 1..3000_u64 {
        assert!(blue_data.call(n, put(&n.to_le_bytes(), &[7; 1000])).is_ok(), "{n}");
    }
}
