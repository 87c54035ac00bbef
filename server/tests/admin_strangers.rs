//! The admin port and whoever finds it: those who send nothing, too much or nonsense, by the
//! thousand. It answers the others meanwhile.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use common::*;
use onesided_server::config::Token;
use onesided_server::{Server, ServerConfig};

fn started() -> (Server, SocketAddr) {
    let server = start(ServerConfig { admin: Some("127.0.0.1:0".to_owned()), ..config() });
    let addr = server.admin_addr().expect("an admin port");
    (server, addr)
}

/// All that comes until the connection ends.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // It may be reset, if not all was read that was sent.
    let _reset = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn send(addr: SocketAddr, request: &[u8]) -> String {
    let mut stream = dial(addr);
    // It may be closed before all is sent.
    let _cut = stream.write_all(request);
    rest(&mut stream)
}

/// 0: it was closed without an answer.
fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).map_or(0, |status| status.parse().expect("a status"))
}

fn get(addr: SocketAddr, target: &str, headers: &str) -> String {
    let head = format!("GET {target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    send(addr, head.as_bytes())
}

fn answers(addr: SocketAddr) -> String {
    let answer = get(addr, "/metrics", "Host: localhost\r\n");
    assert_eq!(status(&answer), 200, "{answer}");
    answer
}

fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}")).parse().expect("a number")
}

#[test]
fn who_asks_nothing_keeps_nobody_out() {
    let (_server, addr) = started();
    let mut idle: Vec<_> = (0..200).map(|_| dial(addr)).collect();
    let text = answers(addr);
    let open = metric(&text, "onesided_admin_connections");
    assert!(open <= 64, "{open}");
    assert!(metric(&text, "onesided_admin_connections_displaced_total") >= 200 - 64);
    assert_eq!(rest(&mut idle[0]), "", "the oldest is closed");
    // One that came late is there, and may still ask.
    let mut last = idle.pop().expect("some");
    last.write_all(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").expect("sent");
    assert_eq!(status(&rest(&mut last)), 200);
}

#[test]
fn ten_thousand_connections_are_survived() {
    let (_server, addr) = started();
    let mut some = Vec::new();
    for n in 0..10_000 {
        let mut stream = dial(addr);
        match n % 3 {
            0 => {}
            1 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc").expect("sent"),
            // Nobody takes the answers.
            _ => {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent")
            }
        }
        some.push(stream);
        if some.len() == 200 {
            answers(addr);
            some.clear();
        }
    }
    drop(some);
    eventually("all are gone but the one that asks", || {
        metric(&answers(addr), "onesided_admin_connections") == 1
    });
}

#[test]
fn slow_ones_are_cut_off() {
    let (_server, addr) = started();
    let mut slow = dial(addr);
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").expect("sent");
    let mut silent = dial(addr);
    let closed = std::thread::spawn(move || {
        // More than the head may take; ends when the other side has closed.
        (0..600).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            slow.write_all(b"X-More: x\r\n").is_err()
        })
    });
    // After 10 s of silence, without a word or with one that says so.
    let answer = rest(&mut silent);
    assert!([0, 408].contains(&status(&answer)), "{answer}");
    assert!(closed.join().expect("ends"), "a head that never ends is cut off");
    answers(addr);
}

#[test]
fn nonsense_is_refused_in_few_words() {
    let (_server, addr) = started();
    let close = "Host: localhost\r\nConnection: close\r\n";
    let of = |line: &str, more: &str| format!("{line} HTTP/1.1\r\n{close}{more}\r\n");
    let long = "a".repeat(64 << 10);
    for (request, expected) in [
        (of("GET /../../etc/passwd", ""), &[404][..]),
        (of("GET /%2e%2e/%2e%2e/etc/passwd", ""), &[404]),
        (of("GET /metrics/../api/v1/status", ""), &[404]),
        (of("GET //metrics", ""), &[404]),
        (of("GET /metrics%00", ""), &[404]),
        (of("GET /api/v1/sessions?limit=1&limit=2", ""), &[400]),
        (of("GET /api/v1/sessions?after=99999999999999999999", ""), &[400]),
        (of("POST /metrics", "Content-Length: 99999999999\r\n"), &[405]),
        (of("PUT /api/v1/tables", "Transfer-Encoding: chunked\r\n"), &[405]),
        (of("DELETE /api/v1/tables", ""), &[405]),
        (of("OPTIONS /metrics", "Origin: http://evil.example\r\n"), &[405]),
        (of("TRACE /metrics", "X-Secret: echo\r\n"), &[405]),
        (of("CONNECT evil.example:80", ""), &[403, 404, 405, 400]),
        (of("GET /metrics", "Content-Length: 1\r\nContent-Length: 2\r\n"), &[0, 400]),
        (of("GET /metrics", &"X: y\r\n".repeat(100)), &[431]),
        (of("GET /metrics", &format!("X: {long}\r\n")), &[0, 400, 431]),
        (of(&format!("GET /{long}"), ""), &[0, 400, 414, 431]),
        (of("GET /metrics", "Host: evil.example\r\n"), &[403]),
        (of("GET http://localhost@evil.example/metrics", ""), &[403]),
        (of("GET http://evil.example/metrics", ""), &[403]),
        ("GET /metrics HTTP/1.0\r\n\r\n".to_owned(), &[403]),
        ("GET /metrics HTTP/9.9\r\n\r\n".to_owned(), &[0, 400, 505]),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), &[0, 400, 505]),
        ("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}\r\n\r\n".to_owned(), &[0, 400]),
        ("\r\n\r\n\r\n\r\nxyz\r\n\r\n".to_owned(), &[0, 400]),
    ] {
        let answer = send(addr, request.as_bytes());
        let start: String = request.chars().take(200).collect();
        assert!(expected.contains(&status(&answer)), "{start}: {answer}");
        assert!(answer.len() < 1000, "{start}: {answer}");
        let told = answer.to_ascii_lowercase();
        for word in ["echo", "root:", "uptime", "access-control-allow"] {
            assert!(!told.contains(word), "{start}: {answer}");
        }
    }
    let text = answers(addr);
    assert!(metric(&text, "onesided_admin_requests_refused_total{reason=\"host\"}") >= 4);
}

#[test]
fn a_head_alone_and_requests_in_a_row_are_answered() {
    let (_server, addr) = started();
    let head =
        send(addr, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let (head, body) = head.split_once("\r\n\r\n").expect("a head");
    assert_eq!((status(head), body), (200, ""));
    let mut row = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    row += "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(send(addr, row.as_bytes()).matches("HTTP/1.1 200").count(), 101);
}

#[test]
fn tokens_that_are_nearly_right_are_wrong() {
    let server = start(ServerConfig {
        admin: Some("127.0.0.1:0".to_owned()),
        admin_token: Some(Token::new("secret").expect("a token")),
        ..config()
    });
    let addr = server.admin_addr().expect("an admin port");
    let many = "secret ".repeat(1000);
    let wrong = [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearersecret\r\n",
        "Authorization: Bearer secret secret\r\n",
        "Authorization: Bearer \"secret\"\r\n",
        "Authorization: Bearer SECRET\r\n",
        "Authorization: Basic OnNlY3JldA==\r\n",
        "Authorization: Bearer wrong\r\nAuthorization: Bearer secret\r\n",
        "Cookie: token=secret\r\n",
        "X-Authorization: Bearer secret\r\n",
        &format!("Authorization: Bearer {many}\r\n"),
    ];
    for header in wrong {
        for path in ["/metrics", "/api/v1/status", "/api/v1/sessions", "/nothing", "/../metrics"] {
            let answer = get(addr, path, header);
            assert_eq!(status(&answer), 401, "{header}{path}: {answer}");
            assert!(answer.len() < 1000 && !answer.contains("secret"), "{answer}");
        }
    }
    assert_eq!(status(&get(addr, "/metrics?token=secret", "")), 401, "not in an address");
    let right = get(addr, "/metrics", "Host: any.example\r\nAuthorization: bearer secret\r\n");
    let refused = metric(&right, "onesided_admin_requests_refused_total{reason=\"token\"}");
    assert_eq!(refused, wrong.len() as u64 * 5 + 1);
    // Who has no token may know that it lives.
    for path in ["/healthz", "/readyz", "/"] {
        let answer = get(addr, path, "");
        assert_eq!(status(&answer), 200, "{path}");
        assert!(!answer.contains("onesided_") || path == "/", "{answer}");
    }
}
