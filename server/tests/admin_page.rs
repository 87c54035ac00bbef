//! The admin port's page, and the map of regions that it shows.

mod common;

use std::io::{Read, Write};

use common::*;
use onesided_server::config::Token;
use onesided_server::{Server, ServerConfig};
use serde_json::Value;

fn with_admin() -> ServerConfig {
    ServerConfig { admin: Some("127.0.0.1:0".to_owned()), ..config() }
}

/// Head and body of an answer.
fn get(server: &Server, path: &str) -> (String, String) {
    let mut stream = dial(server.admin_addr().expect("an admin port"));
    let head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

fn json(server: &Server, path: &str) -> Value {
    serde_json::from_str(&get(server, path).1).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Bytes of memory by use, as /metrics says.
fn memory(server: &Server, of: &str) -> u64 {
    let start = format!("onesided_memory_bytes{{use=\"{of}\"}} ");
    let text = server.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(&start)).expect("a sample");
    line.parse().expect("a number")
}

#[test]
fn regions_are_shown_as_full_as_they_are() {
    let config = ServerConfig { region_bytes: 1 << 20, segment_bytes: 64 << 10, ..with_admin() };
    let server = start(config);
    let (_control, mut data) = connect(server.addr());
    for key in 0..100u64 {
        assert!(data.call(key + 1, put(&key.to_le_bytes(), &[7; 30_000])).is_ok());
    }
    let all = json(&server, "/api/v1/regions");
    let total = number(&all["total"]);
    let regions = all["regions"].as_array().expect("regions");
    assert_eq!((regions.len() as u64, &all["next_offset"]), (total, &Value::Null));
    assert!(total >= 3, "{total}");
    let mut sums = [0; 3];
    for region in regions {
        let cells = region["cells"].as_array().expect("cells");
        let len_bytes = cells.len() as u64 * number(&region["cell_bytes"]);
        assert!(cells.len() <= 64 && len_bytes >= number(&region["bytes"]), "{region}");
        for cell in cells {
            let [live, log, index] = [0, 1, 2].map(|n| number(&cell[n]));
            assert!(live <= log && log + index <= number(&region["cell_bytes"]), "{region}");
            sums = [sums[0] + live, sums[1] + log, sums[2] + index];
        }
    }
    let [live, log, index] = sums;
    let of = |of: &str| memory(&server, of);
    // A segment's live bytes are shared evenly by its blocks: less than a byte of each is lost.
    assert!(of("log_live") - live < 1000, "{live} of {}", of("log_live"));
    assert_eq!(log, of("log_live") + of("log_dead") + of("log_free"));
    assert_eq!(index, of("index") + of("index_held") + of("index_spare"));
    let second = json(&server, "/api/v1/regions?offset=1&limit=1");
    assert_eq!(second["regions"][0]["id"], regions[1]["id"]);
    assert_eq!(second["next_offset"], 2);
    let none = json(&server, "/api/v1/regions?offset=1000");
    assert_eq!(none["regions"].as_array().map(Vec::len), Some(0));
}

fn nonce_of(head: &str) -> String {
    let policy = head.lines().find(|line| line.starts_with("content-security-policy"));
    let policy = policy.expect("a policy");
    for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    let nonce = policy.split("script-src 'nonce-").nth(1).expect("a nonce");
    nonce.split('\'').next().expect("its end").to_owned()
}

#[test]
fn the_page_comes_without_a_token_and_runs_nothing_but_itself() {
    let token = Some(Token::new("secret").expect("a token"));
    let server = start(ServerConfig { admin_token: token, ..with_admin() });
    let [(one, page), (two, _)] = [get(&server, "/"), get(&server, "/")];
    assert!(one.starts_with("http/1.1 200") && one.contains("text/html; charset=utf-8"), "{one}");
    let nonce = nonce_of(&one);
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert_ne!(nonce, nonce_of(&two), "a new one for each answer");
    assert!(get(&server, "/metrics").0.starts_with("http/1.1 401"));
    assert!(get(&server, "/api/v1/regions").0.starts_with("http/1.1 401"));
}
