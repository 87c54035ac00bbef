//! What `onesided-bench` does when something is wrong: at once if it can, else beside the rest.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use onesided::TableOptions;
use onesided_server::Server;
use onesided_server::config::{ServerConfig, TableSpec};
use serde_json::Value;

const SMALL: [&str; 5] = ["run", "--records", "1000", "--operations", "1000"];

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
    command.env_remove("ONESIDED_SERVER").args(SMALL).args(arguments).output().expect("it runs")
}

/// What it says when it refuses, before it has measured anything.
#[track_caller]
fn refusal(arguments: &[&str]) -> String {
    let output = program(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn targets_and_files_are_probed_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = format!("redis://{}", free.local_addr().expect("its address"));
    drop(free);
    // The first target would leave its records there.
    let first = format!("lmdb://{}", path("db"));
    let json = path("run.json");
    let text = refusal(&["--target", &first, "--target", &gone, "--json", &json]);
    assert!(text.contains(&gone["redis://".len()..]), "{text}");
    assert!(!folder.path().join("run.json").exists(), "a probe leaves nothing");
    for flag in ["--json", "--plot"] {
        let nowhere = path("no/such/file");
        let text = refusal(&["--target", &format!("lmdb://{}", path("other")), flag, &nowhere]);
        assert!(text.contains(flag) && text.contains(&nowhere), "{text}");
    }
    assert!(!folder.path().join("other").exists(), "files come first");
}

#[test]
fn a_target_that_fails_later_does_not_take_the_others_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    // Too small for the records.
    let full = format!("lmdb://{}?map_bytes=65536", folder.path().join("db").display());
    let file = folder.path().join("run.json");
    let file_name = file.display().to_string();
    let output = program(&["--target", &full, "--target", "map://", "--json", &file_name]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(&full), "{stderr}");
    let text = String::from_utf8(output.stdout).expect("text");
    let failed = format!("| {full} ");
    let row = text.lines().find(|line| line.starts_with(&failed)).expect("a row of the table");
    assert!(row.contains(" failed |"), "{text}");
    assert!(text.contains("  failed: ") && text.contains("[OVERALL]"), "{text}");
    let json: Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    let targets = json["targets"].as_array().expect("targets");
    assert_eq!(targets.len(), 2);
    let why = targets[0]["error"].as_str().expect("why");
    assert!(text.contains(why) && stderr.contains(why), "{why}");
    assert!(targets[1]["error"].is_null(), "{json:#}");
    assert!(targets[1]["throughput_ops_per_s"].as_f64() > Some(0.0), "{json:#}");
}

#[test]
fn records_that_are_not_there_are_an_answer_but_not_to_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = format!("lmdb://{}", folder.path().join("db").display());
    let target = ["--target", &target, "--workload", "c"];
    let run = |more: &[&str]| program(&[&["--no-fill"], &target[..], more].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let nothing = run(&[]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("of 64 records"), "{}", text(&nothing.stderr));
    // Whole records are stored as if they were new.
    let updates = ["--value-size", "9", "-p", "readproportion=0", "-p", "updateproportion=1"];
    assert_eq!(run(&updates).status.code(), Some(0));
    assert_eq!(program(&target).status.code(), Some(0), "it stores them");
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
    command.args(["run", "--records", "2000", "--operations", "1000", "--no-fill"]);
    let uniform = ["-p", "requestdistribution=uniform"];
    let half = command.args(target).args(uniform).output().expect("it runs");
    assert_eq!(half.status.code(), Some(0));
    let row = text(&half.stdout);
    let row = row.lines().find(|line| line.starts_with("| lmdb")).expect("a row");
    assert!(row.contains("% found no record"), "{row}");
}

#[test]
fn an_operation_that_fails_is_no_success() {
    let options = TableOptions { quota_bytes: 1 << 20, ..TableOptions::default() };
    let tables = vec![TableSpec { options, ..TableSpec::new("full") }];
    let listen = "127.0.0.1:0".to_owned();
    let config = ServerConfig { listen, tables, admin: None, ..ServerConfig::default() };
    let server = Server::start(config).expect("a server");
    let url = format!("onesided://{}", server.addr());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
    command.env_remove("ONESIDED_SERVER").args(["load", "-w", "a", "--records", "4000"]);
    let output = command.args(["--target", &url, "--table", "full"]).output().expect("it runs");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(output.status.code(), Some(1), "{stderr}{stdout}");
    assert!(stderr.contains(" failed: out of memory"), "{stderr}");
    let row = stdout.lines().find(|line| line.starts_with("| onesided")).expect("a row");
    let operations = row.split('|').nth(2).expect("a cell");
    assert!(operations.contains("% failed") && !operations.contains("100.00 %"), "{row}");
}

#[test]
fn null_cannot_be_verified() {
    let text = refusal(&["--verify", "--target", "map://", "--target", "null://"]);
    assert!(text.contains("null://") && text.contains("--verify"), "{text}");
}

#[test]
fn a_process_that_is_no_use_is_refused() {
    let own = std::process::id().to_string();
    let text = refusal(&["--target", "map://", "--server-pid", &own]);
    assert!(text.contains("only memcached"), "{text}");
    let memcached = ["--target", "memcached://127.0.0.1:1", "--server-pid"];
    let text = refusal(&[&memcached[..], &[&own]].concat());
    assert!(text.contains("not memcached"), "{text}");
    let text = refusal(&[&memcached[..], &["4294967295"]].concat());
    assert!(text.contains("no such process"), "{text}");
}

#[test]
fn a_short_run_is_drawn_and_many_targets_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().join("run.svg");
    let targets = ["--target", "map://"].repeat(8);
    let plot_name = plot.display().to_string();
    let output = program(&[&targets[..], &["--plot", &plot_name]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let svg = std::fs::read_to_string(plot).expect("a picture");
    let mut styles = vec![];
    for line in svg.lines().filter(|line| line.starts_with("<polyline")) {
        let (points, style) = line["<polyline points=\"".len()..].split_once('"').expect("points");
        assert!(points.split(' ').count() > 1, "one point is no line: {line}");
        let style = style.split_once("/>").expect("its end").0;
        styles.push(style.to_owned());
    }
    assert_eq!(styles.len(), 16, "two charts of eight lines");
    styles.sort();
    styles.dedup();
    assert_eq!(styles.len(), 8, "{styles:?}");
}

#[test]
fn who_reads_only_a_part_of_it_is_no_failure() {
    for format in [&["--json"][..], &[]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
        command.env_remove("ONESIDED_SERVER").args(SMALL).args(["--target", "map://"]);
        command.args(format).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !stderr.contains("panicked"), "{format:?}: {stderr}");
    }
}

#[test]
fn what_was_measured_before_a_signal_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("db");
    let first = format!("lmdb://{}", db.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
    command.env_remove("ONESIDED_SERVER").stdout(Stdio::piped());
    command.args(["run", "--records", "10", "--duration", "10m", "--json"]);
    let mut child = command.args(["--target", &first, "--target", "map://"]).spawn().expect("it");
    // Made by the probe, when signals are listened to.
    while !db.exists() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(128 + 15));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let targets = json["targets"].as_array().expect("targets");
    assert!(targets.len() == 1 && targets[0]["error"].is_null(), "{json:#}");
    assert!(json["seconds"].as_f64() < Some(600.0), "{json:#}");
    let notes = json["notes"].as_array().expect("notes");
    assert!(notes.iter().any(|note| note.as_str().unwrap_or("").contains("interrupted")));
}

#[test]
fn what_was_measured_before_the_server_went_is_told() {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        admin: None,
        own_process: true,
        ..ServerConfig::default()
    };
    let server = Server::start(config).expect("a server");
    let url = format!("onesided://{}?fabric=tcp", server.addr());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
    command.env_remove("ONESIDED_SERVER").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(["run", "-w", "c", "--records", "100", "--duration", "3s", "--json"]);
    let child = command.args(["--target", &url]).spawn().expect("it runs");
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_get = |figure: &(String, u64)| figure.0 == "rpc_get_ok" && figure.1 > 0;
    while !server.stats().iter().any(is_get) {
        assert!(Instant::now() < deadline, "no GET: {:?}", server.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    server.stop();
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let why = json["targets"][0]["error"].as_str().expect("why");
    assert!(stderr.contains(why), "{stderr}");
    let reads = &json["operations"]["read"];
    let [all, failed] = ["count", "failed"].map(|name| reads[name].as_u64().expect("a count"));
    assert!(failed < all, "{json:#}");
}
