//! The admin port: what it shows, whom it answers, and what it does not let anybody do.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use common::*;
use onesided_protocol::control::{TableCounts, TableOptions, ToClient, ToServer};
use onesided_server::config::{ADMIN_DEFAULT, Token};
use onesided_server::{Server, ServerConfig, StartError, metrics};

fn with_admin() -> ServerConfig {
    ServerConfig { admin: Some("127.0.0.1:0".to_owned()), ..config() }
}

struct Response {
    status: u16,
    head: String,
    body: String,
}

fn send(addr: SocketAddr, request: &str) -> Response {
    let mut stream = dial(addr);
    stream.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    Response { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

fn ask(addr: SocketAddr, path: &str, headers: &str) -> Response {
    send(addr, &format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
}

fn get(server: &Server, path: &str) -> Response {
    ask(server.admin_addr().expect("an admin port"), path, "Host: localhost\r\n")
}

fn json(server: &Server, path: &str) -> serde_json::Value {
    let response = get(server, path);
    assert_eq!(response.status, 200, "{}", response.body);
    serde_json::from_str(&response.body).expect("JSON")
}

/// Samples by their name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    let all: Vec<_> = lines.map(sample).collect();
    let by_name: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(by_name.len(), all.len(), "a series is there twice");
    by_name
}

#[test]
fn metrics_count_what_was_done() {
    let server = start(with_admin());
    let (mut control, mut data) = connect(server.addr());
    assert!(data.call(1, put(b"k", b"v")).is_ok());
    for _ in 0..3 {
        data.ping();
    }
    let table = control.table("default");
    let counts = TableCounts {
        one_sided_hits: 5,
        one_sided_misses: 2,
        reads: 14,
        read_bytes: 2048,
        latency: std::array::from_fn(|bucket| u64::from(bucket < 2)),
        latency_ns: 300,
        one_sided_puts: 11,
        rpc_puts: 1,
        lost_swaps: 3,
        counter_atomics: 17,
        rpc_counters: 4,
        counter_retries: 2,
        ..TableCounts::default()
    };
    let report = ToServer::Counted { table, counts: Box::new(counts) };
    assert_eq!(control.ask(&report), ToClient::Done);
    let unknown = ToServer::Counted { table: table + 1, counts: Box::new(counts) };
    assert_eq!(control.ask(&unknown), ToClient::Done);

    let response = get(&server, "/metrics");
    assert_eq!(response.status, 200);
    assert!(response.head.contains("content-type: text/plain; version=0.0.4"), "{}", response.head);
    let samples = samples(&response.body);
    let of_table = "tenant=\"default\",table=\"default\"";
    let name = "onesided_client_reported_gets_total";
    let counters = "onesided_client_reported_counter_operations_total";
    for (sample, expected) in [
        ("onesided_rpcs_total{operation=\"put\",result=\"ok\"}".to_owned(), 1.0),
        ("onesided_rpcs_total{operation=\"ping\",result=\"ok\"}".to_owned(), 3.0),
        ("onesided_rpc_duration_seconds_count{operation=\"ping\"}".to_owned(), 3.0),
        ("onesided_rpc_duration_seconds_bucket{operation=\"put\",le=\"+Inf\"}".to_owned(), 1.0),
        (format!("{name}{{{of_table},path=\"one_sided\",result=\"hit\"}}"), 5.0),
        (format!("{name}{{{of_table},path=\"one_sided\",result=\"miss\"}}"), 2.0),
        (format!("onesided_client_reported_reads_total{{{of_table}}}"), 14.0),
        (format!("onesided_client_reported_get_duration_seconds_count{{{of_table}}}"), 2.0),
        (format!("onesided_client_reported_get_duration_seconds_sum{{{of_table}}}"), 3e-7),
        (format!("onesided_client_reported_puts_total{{{of_table},path=\"one_sided\"}}"), 11.0),
        (format!("onesided_client_reported_puts_total{{{of_table},path=\"rpc\"}}"), 1.0),
        (format!("onesided_client_reported_lost_swaps_total{{{of_table}}}"), 3.0),
        (format!("{counters}{{{of_table},path=\"one_sided\"}}"), 17.0),
        (format!("{counters}{{{of_table},path=\"rpc\"}}"), 4.0),
        (format!("onesided_client_reported_counter_retries_total{{{of_table}}}"), 2.0),
        ("onesided_client_reports_total".to_owned(), 1.0),
        ("onesided_sessions".to_owned(), 1.0),
        ("onesided_endpoints{fabric=\"tcp\"}".to_owned(), 1.0),
        (format!("onesided_table_keys{{{of_table}}}"), 1.0),
        ("onesided_admin_connections".to_owned(), 1.0),
    ] {
        assert_eq!(samples.get(&sample), Some(&expected), "{sample}\n{}", response.body);
    }
    let parts = samples.iter().filter(|(name, _)| name.starts_with("onesided_memory_bytes{"));
    let sum: f64 = parts.map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, samples["onesided_memory_limit_bytes"]);
    assert!(samples["onesided_thread_cpu_seconds_total{role=\"poll_tcp\"}"] > 0.0);
}

#[test]
fn every_metric_shown_is_declared_with_its_labels() {
    let server = start(with_admin());
    let (_control, mut data) = connect(server.addr());
    data.ping();
    let text = get(&server, "/metrics").body;
    let declared: BTreeMap<_, _> = metrics::all().map(|metric| (metric.name, metric)).collect();
    assert_eq!(declared.len(), metrics::all().count(), "a name is declared twice");
    let mut shown = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert_eq!(declared[name].kind.to_string(), kind);
            shown.insert(name);
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().expect("a name");
            let ends = ["", "_bucket", "_sum", "_count"];
            let metric = ends.iter().find_map(|end| declared.get(name.strip_suffix(end)?));
            let metric = metric.unwrap_or_else(|| panic!("{line}"));
            let labels = line.split_once('{').map_or("", |(_, rest)| rest);
            let names: Vec<_> =
                labels.split("\",").filter_map(|pair| pair.split_once('=')).collect();
            let names = names.iter().map(|(name, _)| *name).filter(|name| *name != "le");
            assert_eq!(names.collect::<Vec<_>>(), metric.labels, "{line}");
        }
    }
    // What needs a device, what nobody reported yet, and what is this test's own is not there.
    let missing = declared.keys().filter(|name| !shown.contains(*name));
    for name in missing {
        let needs = ["onesided_verbs_", "onesided_client_reported_", "process_"];
        assert!(needs.iter().any(|start| name.starts_with(start)), "{name} is not shown");
    }
}

#[test]
fn a_server_tells_of_its_process_only_if_that_is_its_own() {
    let names = |own_process| {
        let server = start(ServerConfig { own_process, ..with_admin() });
        let text = get(&server, "/metrics").body;
        let of_process = text.lines().filter(|line| line.starts_with("process_")).count();
        let roles = text.matches("onesided_thread_cpu_seconds_total{").count();
        let is_other = text.contains("{role=\"other\"}");
        let stats = server.stats();
        let in_stats = stats.iter().filter(|(name, _)| name.starts_with("process_")).count();
        let process = json(&server, "/api/v1/status")["process"]["cpu_s"].is_null();
        assert!(roles >= 4, "{text}");
        (of_process, is_other, in_stats, process)
    };
    assert_eq!(names(false), (0, false, 0, true), "the test's own process");
    assert_eq!(names(true), (7, true, 5, false));
}

#[test]
fn the_api_tells_of_sessions_and_tables_by_pages() {
    let server = start(with_admin());
    let mut sessions: Vec<_> = (0..7).map(|_| Control::open(server.addr())).collect();
    for n in 0..3 {
        let (name, options) = (format!("t{n}"), TableOptions::default());
        let made = sessions[0].ask(&ToServer::CreateTable { name, options });
        assert!(matches!(made, ToClient::Table(_)));
    }
    let ids = |page: &serde_json::Value| {
        let sessions = page["sessions"].as_array().expect("a list").clone();
        sessions.iter().map(|session| session["id"].as_u64().expect("an id")).collect::<Vec<_>>()
    };
    let first = json(&server, "/api/v1/sessions?limit=4");
    assert_eq!((ids(&first).len(), first["total"].as_u64()), (4, Some(7)));
    let after = first["next_after"].as_u64().expect("there are more");
    let second = json(&server, &format!("/api/v1/sessions?limit=4&after={after}"));
    assert_eq!((ids(&second).len(), second["next_after"].as_u64()), (3, None));
    assert!(ids(&second).iter().all(|id| *id > after));
    assert_eq!(first["sessions"][0]["tables"], 3);
    let peer = first["sessions"][0]["peer"].as_str().expect("where it comes from");
    assert!(peer.parse::<SocketAddr>().is_ok_and(|peer| peer.ip().is_loopback()), "{peer}");
    let tables = json(&server, "/api/v1/tables?offset=1&limit=2");
    assert_eq!((&tables["total"], &tables["next_offset"]), (&4.into(), &3.into()));
    let first = &tables["tables"][0];
    assert_eq!(first["name"], "t0");
    // As `onesided tables list --json` has them.
    for name in ["free_bytes", "expiry_backlog", "ordered", "dead_bytes", "evicted_entries"] {
        assert!(!first[name].is_null(), "{name}");
    }
    assert!(json(&server, "/api/v1/sessions?limit=999999999").is_object());
    for path in ["/api/v1/sessions?limit=x", "/api/v1/sessions?before=1", "/api/v1/tables?limit=-1"]
    {
        assert_eq!(get(&server, path).status, 400, "{path}");
    }
    let status = json(&server, "/api/v1/status");
    assert_eq!((&status["ready"], &status["sessions"]["now"]), (&true.into(), &7.into()));
    assert_eq!(status["fabrics"]["tcp"], true);
    let all =
        ["/metrics", "/api/v1/status", "/api/v1/sessions", "/api/v1/tables", "/api/v1/regions"];
    let secret = sessions[0].welcome.resume_key.to_string();
    assert!(all.iter().all(|path| !get(&server, path).body.contains(&secret)));
}

#[test]
fn it_answers_this_host_and_no_page_that_pretends_to_be_it() {
    let server = start(with_admin());
    let addr = server.admin_addr().expect("an admin port");
    let port = addr.port();
    let hosts = [format!("127.0.0.1:{port}"), "localhost".to_owned(), format!("[::1]:{port}")];
    for host in hosts {
        let response = ask(addr, "/api/v1/status", &format!("Host: {host}\r\n"));
        assert_eq!(response.status, 200, "{host}");
        for header in ["cache-control: no-store", "x-content-type-options: nosniff"] {
            assert!(response.head.contains(header), "{}", response.head);
        }
    }
    for host in
        ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "10.0.0.1"]
    {
        let response = ask(addr, "/api/v1/status", &format!("Host: {host}\r\n"));
        assert_eq!(response.status, 403, "{host}");
        assert!(!response.body.contains("uptime"));
    }
    let absolute = "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\
                    Connection: close\r\n\r\n";
    assert_eq!(send(addr, absolute).status, 403);
    assert_eq!(ask(addr, "/healthz", "Host: anything\r\n").body, "ok\n");
    assert_eq!(ask(addr, "/readyz", "Host: anything\r\n").status, 200);
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Length: 0\r\n\r\n";
    let refused = send(addr, post);
    assert_eq!((refused.status, refused.body.contains("only GET")), (405, true));
    assert_eq!(get(&server, "/etc/passwd").status, 404);
}

#[test]
fn other_hosts_need_the_token() {
    let open = |listen: &str, token: Option<&str>| ServerConfig {
        admin: Some(listen.to_owned()),
        admin_token: token.map(|token| Token::new(token).expect("a token")),
        ..config()
    };
    let refused = Server::start(open("0.0.0.0:0", None)).expect_err("no token");
    assert!(refused.to_string().contains("admin_token_file"), "{refused}");
    let server = start(open("0.0.0.0:0", Some("secret")));
    let port = server.admin_addr().expect("an admin port").port();
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let with = |header: &str| ask(addr, "/metrics", &format!("Host: any.example\r\n{header}"));
    for wrong in ["", "secre", "secret1", "Secret"] {
        assert_eq!(with(&format!("Authorization: Bearer {wrong}\r\n")).status, 401, "{wrong}");
    }
    let none = with("");
    assert!(none.status == 401 && none.head.contains("www-authenticate: bearer"), "{}", none.head);
    assert_eq!(with("Authorization: Basic secret\r\n").status, 401);
    assert_eq!(with("Authorization: bearer secret\r\n").status, 200);
    assert_eq!(ask(addr, "/healthz", "Host: x\r\n").status, 200, "supervisors have no token");
}

#[test]
fn a_taken_port_is_an_error_unless_it_is_the_default() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = taken.local_addr().expect("an address").to_string();
    let refused = Server::start(ServerConfig { admin: Some(addr.clone()), ..config() });
    match refused.expect_err("taken") {
        StartError::Admin { listen, .. } => assert_eq!(listen, addr),
        other => panic!("{other}"),
    }
    // Whoever else has it on this machine serves as well.
    let _taken = TcpListener::bind(ADMIN_DEFAULT);
    let server = start(ServerConfig { admin: Some(ADMIN_DEFAULT.to_owned()), ..config() });
    assert_eq!(server.admin_addr(), None);
    connect(server.addr()).1.ping();
}

/// docs/METRICS.md as the table declares it.
fn documented() -> String {
    let head = "# Metrics\n\n\
        What `/metrics` of the admin port shows (`--admin`, default 127.0.0.1:7412), in the text \
        format of Prometheus. The table\nis made from the one in the code \
        (`server/src/metrics/table`); a test holds it to that, and says how to write it anew.\n\n\
        Times are in seconds and sizes in bytes. Metrics named `client_reported` are what clients \
        tell of their own one-sided\nreads and updates, in which the server takes no part: sums \
        of what came with heartbeats, cut to what is possible, kept\nwhen a client goes. No label \
        is a client's; tables have the labels `tenant` and `table`, the first 64 of a server's \
        life\none of their own, all others `table=\"other\"` without a tenant.\n\n\
        | metric | kind | labels | what it says |\n|---|---|---|---|\n";
    let rows = metrics::all().map(|metric| {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (metric.name, metric.kind, metric.help);
        format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
    });
    std::iter::once(head.to_owned()).chain(rows).collect()
}

/// `WRITE_METRICS_DOC=1` writes it.
#[test]
fn the_document_has_every_metric_and_no_other() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/METRICS.md");
    if std::env::var_os("WRITE_METRICS_DOC").is_some() {
        std::fs::write(path, documented()).expect("written");
    }
    let text = std::fs::read_to_string(path).expect("docs/METRICS.md is there");
    for (is, should) in text.lines().zip(documented().lines()) {
        assert_eq!(is, should, "docs/METRICS.md differs from the table: set WRITE_METRICS_DOC=1");
    }
    assert_eq!(text, documented());
}

#[test]
fn names_and_helps_follow_the_conventions() {
    for metric in metrics::all() {
        let counts = metric.kind == metrics::Kind::Counter;
        assert_eq!(metric.name.ends_with("_total"), counts, "{metric:?}");
        let ours = metric.name.starts_with("onesided_") || metric.name.starts_with("process_");
        let good = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(ours && metric.name.chars().all(good), "{metric:?}");
        let wrong_units = ["_ms", "_us", "_ns", "_kib", "_mib", "_percent"];
        assert!(wrong_units.iter().all(|unit| !metric.name.contains(unit)), "{metric:?}");
        assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '|']), "{metric:?}");
    }
}
