//! Clients of several tenants of one server: the same names, and each sees its own values only. In
//! a guest over RDMA, where each tenant has a protection domain, see
//! `tools/guests/tests/suites_one.sh`.

#[path = "common/children.rs"]
mod children;

use children::{builder, fabrics, one_sided, one_sided_kind};
use onesided::{Error, FabricChoice, TableOptions, blocking};
use onesided_server::config::{TenantSpec, Token};
use onesided_server::{Server, ServerConfig};

const NAMES: [&str; 3] = ["default", "blue", "red"];

fn server() -> Server {
    let token = |name: &str| Some(Token::new(&format!("of {name}")).expect("a token"));
    let tenant = |name: &str| TenantSpec { token: token(name), ..TenantSpec::new(name) };
    let tables = ["default", "default:tenant=blue", "default:tenant=red"];
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 512 << 20,
        fabrics: fabrics(),
        tables: tables.map(|text| text.parse().expect(text)).to_vec(),
        tenants: vec![tenant("blue"), tenant("red")],
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

fn client(server: &Server, name: &str, fabric: FabricChoice) -> blocking::Client {
    let token = if name == "default" { String::new() } else { format!("of {name}") };
    builder(server.addr()).token(token).fabric(fabric).connect_blocking().expect("connects")
}

/// Nobody else's, and as long as one that has to be fetched from the client.
fn value(name: &str, n: usize) -> Vec<u8> {
    let len = if n.is_multiple_of(10) { 100_000 + n } else { 100 };
    format!("{n} of {name}, ").into_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn each_tenant_reads_what_it_wrote_under_the_same_names() {
    let server = server();
    for fabric in [FabricChoice::Tcp, one_sided()] {
        let clients = NAMES.map(|name| client(&server, name, fabric));
        let tables = clients.each_ref().map(|client| client.table("default").expect("opens"));
        // Taking turns, so that all are written and read at one time.
        for n in 0..50 {
            for (name, table) in NAMES.iter().zip(&tables) {
                table.put(format!("{n}"), value(name, n)).expect("a put");
            }
        }
        for n in 0..50 {
            for (name, table) in NAMES.iter().zip(&tables) {
                let found = table.get(format!("{n}")).expect("a get").expect("a value");
                assert!(found[..] == value(name, n), "{n} of {name} over {fabric:?}");
            }
        }
        if fabric != FabricChoice::Tcp {
            let one_sided = clients.iter().map(|client| client.stats().one_sided_hits);
            assert!(one_sided.into_iter().all(|gets| gets >= 50), "they read by themselves");
            assert!(clients.iter().all(|client| client.fabric() == one_sided_kind()));
        }
    }
}

#[test]
fn what_one_makes_and_drops_the_others_do_not_see() {
    let server = server();
    let [default, blue, red] = NAMES.map(|name| client(&server, name, one_sided()));
    let secret = blue.create_table("secret", TableOptions::default()).expect("made");
    secret.put("k", "v").expect("a put");
    for other in [&default, &red] {
        assert!(matches!(other.table("secret"), Err(Error::NoSuchTable(_))));
        assert!(matches!(other.drop_table("secret"), Err(Error::NoSuchTable(_))));
        let names: Vec<_> = other.tables().expect("a list").into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["default"]);
    }
    let table = red.table("default").expect("opens");
    table.put("k", "red").expect("a put");
    blue.drop_table("default").expect("its own");
    assert!(matches!(blue.table("default"), Err(Error::NoSuchTable(_))));
    assert_eq!(table.get("k").expect("a get").as_deref(), Some(&b"red"[..]));
    let wrong = builder(server.addr()).token("of blu").connect_blocking();
    assert!(matches!(wrong, Err(Error::Unauthorized(_))));
}
