//! The files for Prometheus and Grafana, against Prometheus itself (Debian's package): it scrapes a
//! server under load, and every query of the dashboard gets data.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided::blocking::Client;
use onesided_server::{Server, ServerConfig};
use serde_json::Value;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn config_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("config")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(config_folder().join(path)).expect(path)
}

/// Whether Prometheus is there; CI has to have it.
fn is_installed() -> bool {
    let installed = |name: &str| Command::new(name).arg("--version").output().is_ok();
    if installed("prometheus") && installed("promtool") {
        return true;
    }
    let text = "prometheus and promtool are not there: apt install prometheus";
    assert!(std::env::var_os("CI").is_none(), "{text}");
    println!("skipped: {text}");
    false
}

#[track_caller]
fn promtool(args: &[&str], stdin: &str) {
    let mut child = Command::new("promtool")
        .args(args)
        .current_dir(config_folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    child.stdin.take().expect("piped").write_all(stdin.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ends");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "promtool {args:?}: {text}");
}

#[test]
fn promtool_finds_nothing_to_say() {
    if !is_installed() {
        return;
    }
    promtool(&["check", "config", "prometheus.yml"], "");
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts.test.yml"], "");
    let server = start();
    promtool(&["check", "metrics"], &server.metrics());
}

/// Name and query of every alert.
fn alerts() -> Vec<(String, String)> {
    let rules: Value = serde_yaml_ng::from_str(&read("alerts.yml")).expect("YAML");
    let groups = rules["groups"].as_array().expect("groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules"));
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    rules.map(|rule| (text(&rule["alert"]), text(&rule["expr"]))).collect()
}

#[test]
fn every_alert_has_a_test_of_both_ways() {
    let tests: Value = serde_yaml_ng::from_str(&read("alerts.test.yml")).expect("YAML");
    let tests = tests["tests"].as_array().expect("tests");
    let alerts = alerts();
    assert!(alerts.len() >= 10);
    for (name, _) in alerts {
        let of_it = tests.iter().flat_map(|test| test["alert_rule_test"].as_array().expect("some"));
        let of_it = of_it.filter(|test| test["alertname"] == *name);
        let fires = of_it.map(|test| test["exp_alerts"].as_array().is_some_and(|a| !a.is_empty()));
        let mut fires: Vec<bool> = fires.collect();
        fires.sort_unstable();
        assert_eq!(fires, [false, true], "{name}: one test of each way");
    }
}

/// Words of a query that begin as a metric of ours does.
fn metrics_in(query: &str) -> Vec<&str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("onesided_") || word.starts_with("process_");
    words.filter(ours).collect()
}

fn is_declared(word: &str) -> bool {
    let ends = ["", "_bucket", "_sum", "_count"];
    onesided_server::metrics::all()
        .any(|metric| ends.iter().any(|end| word.strip_suffix(end) == Some(metric.name)))
}

/// Title and query of every panel, and of every annotation.
fn dashboard_queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("grafana/onesided.json")).expect("JSON");
    let mut queries = Vec::new();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push((text(&panel["title"]), text(&target["expr"])));
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().expect("annotations") {
        queries.push((text(&annotation["name"]), text(&annotation["expr"])));
    }
    queries
}

#[test]
fn queries_name_metrics_that_there_are() {
    let mut seen = 0;
    for (name, query) in alerts().into_iter().chain(dashboard_queries()) {
        for word in metrics_in(&query) {
            assert!(is_declared(word), "{name}: no metric {word}");
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen}");
}

#[test]
fn the_dashboard_is_one_that_grafana_can_take() {
    let dashboard: Value = serde_json::from_str(&read("grafana/onesided.json")).expect("JSON");
    let source: Value = serde_yaml_ng::from_str(&read("grafana/datasource.yml")).expect("YAML");
    let uid = &source["datasources"][0]["uid"];
    let (mut ids, mut places) = (Vec::new(), Vec::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        ids.push(panel["id"].as_u64().expect("an id"));
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        let cells = (at("y")..at("y") + at("h"))
            .flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)));
        places.extend(cells);
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(&target["datasource"]["uid"], uid, "{}", panel["title"]);
        }
    }
    let [all_ids, all_places] = [ids.len(), places.len()];
    ids.sort_unstable();
    ids.dedup();
    places.sort_unstable();
    places.dedup();
    assert_eq!([ids.len(), places.len()], [all_ids, all_places], "no id and no place twice");
}

fn start() -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        admin: Some("127.0.0.1:0".to_owned()),
        memory_bytes: 64 << 20,
        // As the daemon's: what is asked of the process is there.
        own_process: true,
        // Clients report every half second.
        session_lease_ms: 2_000,
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

/// Prometheus, ended when dropped.
struct Prometheus {
    child: Child,
    addr: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// With config/prometheus.yml, but for the server's address and how often it asks.
    fn start(server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let admin = server.admin_addr().expect("an admin port");
        let config = read("prometheus.yml");
        let fast = config
            .replace("127.0.0.1:7412", &admin.to_string())
            .replace("scrape_interval: 5s", "scrape_interval: 1s")
            .replace("evaluation_interval: 15s", "evaluation_interval: 1s");
        assert!(fast.contains(&admin.to_string()) && fast.matches(" 1s").count() == 2);
        std::fs::write(folder.path().join("prometheus.yml"), fast).expect("written");
        std::fs::write(folder.path().join("alerts.yml"), read("alerts.yml")).expect("written");
        // Free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let addr = free.expect("a port");
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={addr}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        Self { child, addr, _folder: folder }
    }

    /// What it answers; `None` while it does not.
    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
    }

    /// Series of a query's answer.
    fn query(&self, query: &str) -> Vec<Value> {
        let mut escaped = String::new();
        for byte in query.bytes() {
            match byte.is_ascii_alphanumeric() {
                true => escaped.push(byte.into()),
                false => escaped += &format!("%{byte:02X}"),
            }
        }
        let answer = self.ask(&format!("/api/v1/query?query={escaped}")).unwrap_or_default();
        let error = &answer["error"];
        assert!(error.is_null(), "{query}: {error}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    #[track_caller]
    fn wait(&self, query: &str) {
        let start = Instant::now();
        while self.query(query).is_empty() {
            assert!(start.elapsed() < PATIENCE, "no data: {query}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended itself.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn load(client: &Client, stop: &AtomicBool) {
    let table = client.table("default").expect("opened");
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let key = (n % 5000).to_le_bytes();
        if n.is_multiple_of(8) {
            table.put(key, [7; 100]).expect("put");
        } else {
            table.get(key).expect("get");
        }
        if n.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Queries that need what a test without a device does not have, or a restart.
fn may_be_empty(query: &str) -> bool {
    query.contains("onesided_verbs_") || query.starts_with("changes(")
}

#[test]
fn every_query_gets_data_from_a_server_under_load() {
    if !is_installed() {
        return;
    }
    let server = start();
    let client = Client::connect(format!("onesided://{}", server.addr())).expect("connects");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| load(&client, &stop));
        // Whatever happens, the loader ends.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask_all(&server)));
        stop.store(true, Ordering::Relaxed);
        loader.join().expect("the load");
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ask_all(server: &Server) {
    let prometheus = Prometheus::start(server);
    prometheus.wait("up{job=\"onesided\"} == 1");
    prometheus.wait("sum(rate(onesided_client_reported_gets_total{path=\"one_sided\"}[5s])) > 0");
    // Sampled: one GET of 256.
    prometheus.wait("sum(rate(onesided_client_reported_get_duration_seconds_count[5s])) > 0");
    let mut asked = 0;
    for (title, query) in dashboard_queries() {
        let query = query.replace("$__rate_interval", "10s").replace("$instance", ".*");
        let series = prometheus.query(&query);
        assert!(!series.is_empty() || may_be_empty(&query), "{title}: no data: {query}");
        let values = series.iter().map(|one| one["value"][1].as_str().expect("a value"));
        let numbers = values.filter(|value| *value != "NaN").count();
        assert!(numbers > 0 || may_be_empty(&query), "{title}: no number: {query}");
        asked += 1;
    }
    assert!(asked > 50, "{asked}");
    for (name, query) in alerts() {
        assert!(prometheus.query(&query).is_empty(), "{name} is true of a server that is well");
    }
    // As Prometheus itself sees its rules.
    let start = Instant::now();
    let unhealthy = |rules: &Value| {
        let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        let healths: Vec<_> = rules.iter().map(|rule| rule["health"].to_string()).collect();
        healths.is_empty() || healths.iter().any(|health| health != "\"ok\"")
    };
    while prometheus.ask("/api/v1/rules").as_ref().is_none_or(unhealthy) {
        assert!(start.elapsed() < PATIENCE, "rules are not evaluated");
        std::thread::sleep(Duration::from_millis(200));
    }
}
