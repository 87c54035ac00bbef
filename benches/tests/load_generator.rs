//! `onesided-bench` as it is typed: against a server in this process, maps, and what is installed.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use onesided_server::{Server, ServerConfig};
use serde_json::Value;

#[allow(dead_code, unreachable_pub)]
#[path = "../benches/common/process.rs"]
mod process;

use process::Peer;

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onesided-bench"));
    command.env_remove("ONESIDED_SERVER").args(arguments).output().expect("it runs")
}

/// Its JSON, if it succeeds.
#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let output = program(&[arguments, &["--json"]].concat());
    let (stdout, stderr) =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).into();
    assert!(output.status.success(), "{arguments:?}: {stderr}{stdout}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What it says when it refuses.
#[track_caller]
fn refusal(arguments: &[&str]) -> String {
    let output = program(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn server() -> (Server, String) {
    // The figures of this process are those of its server.
    let listen = "127.0.0.1:0".to_owned();
    let config = ServerConfig { listen, own_process: true, ..ServerConfig::default() };
    let server = Server::start(config).expect("the server starts");
    let url = format!("onesided://{}", server.addr());
    (server, url)
}

/// All six workloads with verification; which of them the target cannot do.
#[track_caller]
fn all_workloads(url: &str) -> Vec<&'static str> {
    let mut unsupported = vec![];
    for workload in ["a", "b", "c", "d", "e", "f"] {
        let run = json(&[
            "run",
            "--workload",
            workload,
            "--target",
            url,
            "--records",
            "500",
            "--operations",
            "2000",
            "--threads",
            "2",
            "--pipeline",
            "4",
            "--verify",
        ]);
        if run["unsupported"] == "scan" {
            unsupported.push(workload);
            continue;
        }
        assert_eq!(run["verify"]["clean"], true, "{url} {workload}: {run:#}");
        assert!(run["verify"]["checked"].as_u64() >= Some(500), "{url} {workload}: {run:#}");
        let operations = run["operations"].as_object().expect("operations");
        let sum = |key: &str| operations.values().map(|one| one[key].as_u64().unwrap_or(0)).sum();
        let (count, failed): (u64, u64) = (sum("count"), sum("failed"));
        assert_eq!((count, failed), (2000, 0), "{url} {workload}: {run:#}");
    }
    unsupported
}

#[test]
fn all_workloads_are_right_against_a_server() {
    let (_server, url) = server();
    assert_eq!(all_workloads(&url), Vec::<&str>::new());
    assert_eq!(all_workloads(&format!("{url}?fabric=tcp")), Vec::<&str>::new());
}

#[test]
fn all_workloads_are_right_against_maps() {
    for url in ["map://", "map://?kind=dashmap"] {
        assert_eq!(all_workloads(url), ["e"], "a hash map has no order");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("lmdb://{}", folder.path().display());
    assert_eq!(all_workloads(&url), Vec::<&str>::new());
}

#[test]
fn all_workloads_are_right_against_redis() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
    command.arg("--dir").arg(folder.path());
    let Some(_peer) = peer(&mut command, &socket) else { return };
    let url = format!("redis+unix://{}", socket.display());
    assert_eq!(all_workloads(&url), ["e"]);
    let base = ["run", "-w", "c", "--target", &url, "--records", "1", "--operations", "1"];
    let notes = json(&base)["target_notes"].to_string();
    assert!(notes.contains("tells no NOT_FOUND"), "{notes}");
    let notes = json(&[&base[..], &["--verify"]].concat())["target_notes"].to_string();
    assert!(notes.contains("leaves absent records absent"), "{notes}");
}

#[test]
fn all_workloads_are_right_against_memcached() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let mut command = Command::new("memcached");
    command.args(["-m", "64", "-u", "root", "-s"]).arg(&socket);
    let Some(_peer) = peer(&mut command, &socket) else { return };
    assert_eq!(all_workloads(&format!("memcached+unix://{}", socket.display())), ["e"]);
}

/// Another store, if it is installed.
fn peer(command: &mut Command, socket: &Path) -> Option<Peer> {
    match Peer::start(command, || UnixStream::connect(socket).is_ok()) {
        Ok(peer) => Some(peer),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("left out: {} is not installed", command.get_program().display());
            assert!(std::env::var_os("CI").is_none(), "{text}");
            println!("{text}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_run_says_what_happened() {
    let (_server, url) = server();
    let base = ["run", "--target", &url, "--records", "2000", "--seconds", "1"];
    let mixed = json(&[&base[..], &["--threads", "2", "--workload", "a"]].concat());
    assert_eq!((&mixed["fabric"], &mixed["command"]), (&"shm".into(), &"run".into()));
    for kind in ["read", "update"] {
        let one = &mixed["operations"][kind];
        assert!(one["count"].as_u64() > Some(0) && one["failed"] == 0, "{mixed:#}");
        let names = ["p50_us", "p95_us", "p99_us", "p99_9_us", "p99_99_us", "max_us"];
        let times = names.map(|name| one[name].as_f64().expect(name));
        assert!(times[0] > 0.0 && times.is_sorted(), "{mixed:#}");
        assert!(one["mean_us"].as_f64() > Some(0.0), "{mixed:#}");
    }
    let throughput = mixed["throughput_ops_per_s"].as_f64().expect("a number");
    assert!(throughput > 0.0 && mixed["targets"][0]["throughput_ops_per_s"] == throughput);
    // Updates cost the server something, and it can be seen.
    assert!(mixed["server_cpu_seconds"].as_f64() > Some(0.0), "{mixed:#}");
    assert!(mixed["resident_bytes"].as_u64() > Some(0), "{mixed:#}");
    let workload_c = ["--workload", "c", "--no-fill"];
    let reads = json(&[&base[..], &workload_c, &["--prefill"]].concat());
    assert_eq!(reads["operations"]["read"]["failed"], 0);
    assert!(reads["one_sided_share"].as_f64() > Some(0.99), "{reads:#}");
    let asked = json(&[&base[..], &workload_c, &["--fabric", "tcp"]].concat());
    assert_eq!((&asked["fabric"], &asked["one_sided_share"]), (&"tcp".into(), &0.0.into()));
    let round_trips = asked["round_trips_per_op"].as_f64().expect("a number");
    assert!((0.9..1.2).contains(&round_trips), "{asked:#}");
    assert!(asked["bytes_per_op"].as_f64() > Some(1000.0), "{asked:#}");
    let pipelined =
        json(&[&base[..], &workload_c, &["--fabric", "tcp", "--pipeline", "16"]].concat());
    // Sixteen operations share a message.
    assert!(pipelined["round_trips_per_op"].as_f64() < Some(0.2), "{pipelined:#}");
    assert!(pipelined["rpcs_per_op"].as_f64() > Some(0.9), "{pipelined:#}");
    // Loads are no round trips.
    assert!(reads["round_trips_per_op"].as_f64() < Some(0.1), "{reads:#}");
    assert!(reads["one_sided_reads_per_op"].as_f64() > Some(0.9), "{reads:#}");
    assert!(reads["read_bytes_per_op"].as_f64() > Some(1000.0), "{reads:#}");
    assert!(reads["bytes_per_op"].as_f64() > Some(1000.0), "{reads:#}");
}

#[test]
fn a_run_says_how_updates_were_done() {
    let (_server, url) = server();
    let updates = ["-p", "readproportion=0", "-p", "updateproportion=1", "--value-size", "100"];
    let rest = ["--update", "cas", "--fabric", "shm", "--records", "500", "--operations", "4001"];
    let base = ["run", "-w", "a", "--target", &url, "--clients", "2"];
    let run = json(&[&base[..], &updates, &rest].concat());
    let figure = |name: &str| run[name].as_f64().expect(name);
    // All but what comes before the first lease.
    assert!((0.9..=1.0).contains(&figure("one_sided_puts_per_op")), "{run:#}");
    assert!(figure("round_trips_per_one_sided_put") >= 1.0, "{run:#}");
    assert!(run["updates_lost"].is_u64(), "{run:#}");
    let by_thread = &run["operations_by_thread"];
    assert_eq!((&by_thread["fewest"], &by_thread["most"]), (&2000.into(), &2001.into()));
    let asked = json(&[&base[..], &updates, &rest[2..], &["--clear"]].concat());
    assert_eq!(asked["one_sided_puts_per_op"], 0.0, "the table `default` is not of that mode");
    assert_eq!(asked["round_trips_per_one_sided_put"], Value::Null);
    let text = program(&[&base[..], &updates, &rest].concat()).stdout;
    let text = String::from_utf8(text).expect("text");
    for line in ["  PUTs without the server: ", "  a thread did 2000 to 2001 operations: "] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
    }
}

#[test]
fn text_has_ycsb_s_lines_and_a_table_and_files_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let [plot, file] = ["plot.svg", "run.json"].map(|name| folder.path().join(name));
    let output = program(&[
        "run",
        "--workload",
        "a",
        "--target",
        "null://",
        "--target",
        "map://",
        "--records",
        "100",
        "--operations",
        "5000",
        "-p",
        "hdrhistogram.percentiles=50,99,99.9",
        "--plot",
        plot.to_str().expect("a path"),
        "--json",
        file.to_str().expect("a path"),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    for line in [
        "[OVERALL], Throughput(ops/sec), ",
        "[READ], 99thPercentileLatency(us), ",
        "[UPDATE], 99.9PercentileLatency(us), ",
        "[READ], Return=OK, ",
        "| target",
        "| null",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
    }
    let svg = std::fs::read_to_string(plot).expect("a picture");
    assert_eq!(svg.matches("<polyline").count(), 4, "two charts of two lines");
    let json: Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    assert_eq!(json["targets"].as_array().map(Vec::len), Some(2));
    assert!(json["throughput_ops_per_s"].is_null(), "of two targets no one is at the top");
    assert_eq!(json["properties"]["readproportion"], "0.5");
    assert!(json["host"]["cores"].as_u64() > Some(0) && json["version"].is_string());
}

#[test]
fn an_open_loop_counts_from_the_intended_start() {
    let run = json(&[
        "run",
        "--workload",
        "c",
        "--target",
        "map://",
        "--records",
        "100",
        "--rate",
        "2000",
        "--operations",
        "1000",
        "--threads",
        "2",
    ]);
    let read = &run["operations"]["read"];
    assert_eq!(read["count"], 1000);
    let [intended, sent] = [&read["mean_us"], &read["from_send"]["mean_us"]];
    // Nothing is sent before it should be, so the one cannot be less than the other.
    assert!(intended.as_f64() >= sent.as_f64() && sent.as_f64() > Some(0.0), "{read:#}");
    // The last of 1000 operations begins 999/2000 s after the first.
    assert!(run["seconds"].as_f64() > Some(0.499), "{run:#}");
    assert!(run["throughput_ops_per_s"].as_f64() < Some(2003.0), "{run:#}");
}

#[test]
fn load_stores_what_a_run_finds_later() {
    let (_server, url) = server();
    let workload = ["--workload", "f", "--target", &url, "--records", "300", "--verify"];
    let load = json(&[&["load"][..], &workload].concat());
    assert_eq!(load["operations"]["insert"]["count"], 300);
    let run = ["--no-fill", "--operations", "1000", "--clients", "4"];
    let run = json(&[&["run"][..], &workload, &run].concat());
    assert_eq!(run["verify"]["clean"], true, "{run:#}");
    assert_eq!(run["operations"]["read"]["failed"], 0);
    // Records of another layout are no values of this workload.
    let other = ["--no-fill", "--operations", "10", "-p", "fieldlength=99"];
    let output = program(&[&["run"][..], &workload, &other].concat());
    assert_eq!(output.status.code(), Some(1), "values that nobody wrote are a failure");
}

#[test]
fn fields_of_many_lengths_are_right_too() {
    let (_server, url) = server();
    for url in [url.as_str(), "map://"] {
        let run = json(&[
            "run",
            "--workload",
            "f",
            "--target",
            url,
            "--records",
            "200",
            "--operations",
            "2000",
            "-p",
            "fieldlengthdistribution=zipfian",
            "-p",
            "minfieldlength=4",
            "--verify",
        ]);
        assert_eq!(run["verify"]["clean"], true, "{run:#}");
        assert_eq!(run["operations"]["read_modify_write"]["failed"], 0, "{run:#}");
    }
}

fn sample() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    root.join("config/traces/sample.csv").display().to_string()
}

#[test]
fn a_trace_is_replayed() {
    let (_server, url) = server();
    let all = json(&["replay", &sample(), "--target", &url, "--threads", "2"]);
    let count = |run: &Value, kind: &str| run["operations"][kind]["count"].as_u64().unwrap_or(0);
    let failed: u64 = ["read", "insert", "delete"]
        .map(|kind| all["operations"][kind]["failed"].as_u64().expect("all kinds are in it"))
        .iter()
        .sum();
    let done: u64 = ["read", "insert", "delete"].map(|kind| count(&all, kind)).iter().sum();
    // The trace deletes and reads only what is there.
    assert_eq!((done, failed), (600, 0), "{all:#}");
    let timed = json(&["replay", &sample(), "--target", "map://", "--speed", "20"]);
    assert!(timed["operations"]["read"]["from_send"]["p50_us"].as_f64() > Some(0.0));
    let few = json(&["replay", &sample(), "--target", "map://", "--operations", "100"]);
    assert_eq!(count(&few, "read") + count(&few, "insert") + count(&few, "delete"), 100);
}

#[test]
fn a_key_that_memcached_does_not_take_is_named_by_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv");
    std::fs::write(
        &path,
        "# a trace
0,short,5,1,1,set,0
1,long,251,1,1,set,0
",
    )
    .expect("written");
    let path = path.to_str().expect("a path");
    // Nobody needs to be there.
    let text = refusal(&["replay", path, "--target", "memcached://127.0.0.1:1"]);
    assert!(text.contains("line 3") && text.contains("long___") && text.contains("250"), "{text}");
    json(&["replay", path, "--target", "map://"]);
}

#[test]
fn halves_of_read_modify_writes_are_in_ycsb_s_lines() {
    let base = ["run", "-w", "f", "--target", "map://", "--records", "10"];
    let output = program(&[&base[..], &["--operations", "1000"]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    let count = |name: &str| -> u64 {
        let start = format!("[{name}], Operations, ");
        let found = text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    };
    // Every operation reads.
    assert_eq!(count("READ"), 1000);
    assert_eq!(count("UPDATE"), count("READ-MODIFY-WRITE"));
    assert!((1..1000).contains(&count("UPDATE")), "{text}");
}

#[test]
fn misses_of_a_trace_are_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, "0,a,1,10,1,get,0\n1,b,1,10,1,get,0\n").expect("written");
    let path = path.to_str().expect("a path");
    let run = json(&["replay", path, "--target", "map://"]);
    assert_eq!((&run["hit_ratio"], &run["operations"]["read"]["absent"]), (&0.0.into(), &2.into()));
    assert!(run["throughput_ops_per_s"].as_f64() > Some(0.0), "{run:#}");
    let text = program(&["replay", path, "--target", "map://"]).stdout;
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("0 failed") && text.contains("hit ratio of reads 0.00 %"), "{text}");
}

#[test]
fn wrong_input_ends_at_once_with_what_to_mend() {
    let run =
        |arguments: &[&str]| refusal(&[&["run", "--target", "null://"][..], arguments].concat());
    let cases: [(&[&str], &str); 16] = [
        (&["-p", "readproportion=-1"], "readproportion=-1"),
        (&["-p", "readproportion=0.5", "-p", "updateproportion=0.4"], "make them 1"),
        (&["-p", "readproportion=half"], "readproportion=half (-p): not a number"),
        (&["-p", "reedproportion=1"], "--allow-unknown"),
        (&["-p", "requestdistribution=gauss"], "uniform, zipfian, latest"),
        (&["-p", "recordcount=0"], "--records N"),
        (&["-p", "insertstart=99999", "-p", "insertcount=5"], "recordcount=100000"),
        (&["-p", "fieldlength=0"], "one byte at least"),
        (&["-p", "fieldlengthdistribution=uniform", "-p", "minfieldlength=101"], "minfieldlength"),
        (&["-p", "minscanlength=0"], "minscanlength=0"),
        (&["-p", "exponential.percentile=100", "-p", "requestdistribution=exponential"], "between"),
        (&["-p", "workload=site.ycsb.workloads.RestWorkload"], "only CoreWorkload"),
        (&["-p", "novalue"], "KEY=VALUE"),
        (&["--value-size", "normal:1-2"], "uniform:MIN-MAX"),
        (&["--workload", "g"], "nor a file"),
        (&["--threads", "4", "--clients", "2"], "--clients at least --threads"),
    ];
    for (arguments, expected) in cases {
        let text = run(arguments);
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    let text = refusal(&["replay", &sample(), "--target", "null://", "--operations", "601"]);
    assert!(text.contains("has 600"), "{text}");
    assert!(refusal(&["run", "--target", "ftp://x"]).contains("null://"));
}

#[test]
fn unknown_properties_can_be_allowed() {
    let base = ["run", "--target", "null://", "--operations", "10", "--records", "10"];
    json(&[&base[..], &["-p", "mine=1", "--allow-unknown"]].concat());
    let known = json(&[&base[..], &["-p", "measurementtype=hdrhistogram"]].concat());
    assert!(known["notes"][0].as_str().expect("a note").contains("measurementtype"));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("onesided://{}", free.local_addr().expect("its address"));
    drop(free);
    assert!(refusal(&["run", "--target", &url]).contains("onesided-server"));
}

#[test]
fn shipped_workloads_are_those_of_ycsb() {
    let expected = [
        ("a", "zipfian", [0.5, 0.5, 0.0, 0.0, 0.0]),
        ("b", "zipfian", [0.95, 0.05, 0.0, 0.0, 0.0]),
        ("c", "zipfian", [1.0, 0.0, 0.0, 0.0, 0.0]),
        ("d", "latest", [0.95, 0.0, 0.05, 0.0, 0.0]),
        ("e", "zipfian", [0.0, 0.0, 0.05, 0.95, 0.0]),
        ("f", "zipfian", [0.5, 0.0, 0.0, 0.0, 0.5]),
    ];
    for (letter, distribution, proportions) in expected {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let path = root.join(format!("config/workloads/workload{letter}"));
        let mut properties = onesided_bench::workload::properties::Properties::default();
        properties.read(&path).expect("it parses");
        let workload = onesided_bench::workload::spec::Workload::new(properties, false);
        let workload = workload.expect("a workload");
        let p = workload.proportions;
        let found = [p.read, p.update, p.insert, p.scan, p.read_modify_write];
        assert_eq!((letter, found), (letter, proportions));
        assert_eq!(workload.properties.get("requestdistribution"), Some(distribution));
        assert_eq!((workload.records, workload.operations), (1000, Some(1000)));
        assert_eq!((workload.record_max_bytes(), workload.ignored.len()), (1000, 0));
        assert!(!workload.whole_updates && !workload.naming.ordered);
        let scans = if letter == "e" { 100 } else { 1000 };
        assert_eq!(workload.scan_lengths.max(), scans);
    }
}

#[test]
fn manual_pages_and_completions_are_made() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(program(&["generate", folder.path().to_str().expect("a path")]).status.success());
    for (page, part) in [
        ("onesided-bench.1", ".TH onesided-bench 1"),
        ("onesided-bench-run.1", "\\-\\-value\\-size"),
        ("onesided-bench.bash", "--workload"),
        ("onesided-bench.fish", "replay"),
        ("_onesided-bench", "#compdef onesided-bench"),
    ] {
        let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
        assert!(text.contains(part), "{part} is not in {page}");
    }
}
