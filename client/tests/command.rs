//! The command `onesided`: subcommands, exit codes, JSON, odd values, mistakes.

mod command_support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use command_support::{Bed, binary};

#[test]
fn put_get_del() {
    let bed = Bed::new();
    let version: u64 = bed.run(["put", "greeting", "hello"]).text().trim().parse().expect("number");
    assert!(version > 0);
    bed.run(["get", "greeting"]).prints(b"hello");
    bed.run(["del", "greeting"]).prints(b"");
    bed.run(["del", "greeting"]).code(1);
    let gone = bed.run(["get", "greeting"]);
    gone.code(1);
    assert!(gone.0.stdout.is_empty() && gone.0.stderr.is_empty());
}

#[test]
fn every_fabric_that_can_be_had() {
    let bed = Bed::new();
    for fabric in ["auto", "shm", "tcp"] {
        bed.run(["--fabric", fabric, "put", "key", fabric]).code(0);
        bed.run(["get", "key", "--fabric", fabric]).prints(fabric.as_bytes());
        let said = bed.run(["--json", "--fabric", fabric, "ping", "--count", "3"]).json();
        assert_eq!(said["fabric"], if fabric == "auto" { "shm" } else { fabric });
        assert_eq!(said["count"], 3);
        assert!(said["min_us"].as_f64() <= said["median_us"].as_f64());
        assert!(said["median_us"].as_f64() <= said["max_us"].as_f64());
    }
    bed.run(["--fabric", "verbs", "get", "key"]).fails(2, "verbs");
}

#[test]
fn rdma_required_preferred_or_left_alone() {
    let bed = Bed::new();
    let said = bed.run(["--json", "--rdma", "never", "ping", "--count", "1"]).json();
    assert_eq!((&said["fabric"], said["fallback"].is_null()), (&"shm".into(), true));
    bed.run(["--rdma", "never", "--fabric", "verbs", "ping"]).fails(2, "rdma=never forbids it");
    bed.run(["--rdma", "maybe", "ping"]).code(2);
    // The figures come over the control connection, and may be quicker than the server's taking up
    // of the other one, or its noticing that the last command's has ended.
    let asked = || bed.run(["--json", "stats"]).json();
    let one = |stats: &serde_json::Value| stats["server"]["endpoints_shm"] == 1;
    let stats = (0..500).map(|_| asked()).find(one).expect("this connection is counted");
    assert_eq!(stats["client"]["fabric"], "shm");
    if stats["server"]["fabric_verbs_offered"] == 0 {
        bed.run(["--rdma", "require", "ping"]).fails(2, "does not offer it");
    }
}

#[test]
fn values_of_any_bytes() {
    let bed = Bed::new();
    let odd = [0, 255, b'\n', b'\r', 0, 128];
    bed.run_with_stdin(&["put", "odd"], &odd).code(0);
    bed.run(["get", "odd"]).prints(&odd);
    bed.run(["put", "empty", ""]).code(0);
    bed.run(["get", "empty"]).prints(b"");
    bed.run(["put", "minus", "-5"]).code(0);
    bed.run(["get", "minus"]).prints(b"-5");
    std::fs::write(bed.path("file"), odd).expect("written");
    bed.run(["put", "from-file", "--file", "file"]).code(0);
    bed.run(["get", "from-file"]).prints(&odd);
    let key = OsStr::from_bytes(b"\xff\xfe key");
    bed.run([OsStr::new("put"), key, OsStr::new("value")]).code(0);
    bed.run([OsStr::new("get"), key]).prints(b"value");
}

#[test]
fn ten_megabytes_by_stdin() {
    let bed = Bed::new();
    let big: Vec<u8> =
        (0..10_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for fabric in ["shm", "tcp"] {
        bed.run_with_stdin(&["--fabric", fabric, "put", fabric, "-"], &big).code(0);
        bed.run(["--fabric", fabric, "get", fabric]).prints(&big);
    }
    let too_big = vec![7; 33 << 20];
    bed.run_with_stdin(&["put", "too-big", "-"], &too_big).fails(2, "too large");
}

#[test]
fn conditions() {
    let bed = Bed::new();
    bed.run(["put", "k", "1", "--if-present"]).fails(1, "not met");
    let first = bed.run(["put", "k", "1", "--if-absent"]).text();
    bed.run(["put", "k", "2", "--if-absent"]).fails(1, "not met");
    let second = bed.run(["put", "k", "2", "--if-version", first.trim()]).text();
    bed.run(["put", "k", "3", "--if-version", first.trim()]).fails(1, "not met");
    bed.run(["put", "k", "3", "--if-present"]).code(0);
    bed.run(["del", "k", "--if-version", second.trim()]).fails(1, "not met");
    bed.run(["get", "k"]).prints(b"3");
    bed.run(["put", "k", "v", "--if-absent", "--if-present"]).code(2);
}

#[test]
fn metadata_and_expiry() {
    let bed = Bed::new();
    let version = bed.run(["put", "k", "v", "--flags", "9", "--ttl", "1000"]).text();
    let got = bed.run(["get", "k", "--meta"]);
    got.prints(b"v");
    let stderr = got.stderr();
    assert!(stderr.contains(&format!("version {}", version.trim())), "{stderr}");
    assert!(stderr.contains("flags 9") && !stderr.contains("never"), "{stderr}");
    bed.run(["put", "k", "v"]).code(0);
    assert!(bed.run(["get", "k", "--meta"]).stderr().contains("expires_unix_s never"));
    bed.run(["put", "brief", "v", "--ttl", "1"]).code(0);
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    bed.run(["get", "brief"]).code(1);
}

#[test]
fn increments() {
    let bed = Bed::new();
    bed.run(["incr", "n"]).prints(b"1\n");
    bed.run(["incr", "n", "41"]).prints(b"42\n");
    bed.run(["incr", "n", "-50"]).prints(b"-8\n");
    bed.run(["get", "n"]).prints(b"-8");
    bed.run(["put", "word", "abc"]).code(0);
    bed.run(["incr", "word"]).fails(2, "number");
    for (by, is) in [("5", "5\n"), ("-7", "-2\n"), ("0", "-2\n")] {
        bed.run(["--table", "counters", "incr", "n", by]).prints(is.as_bytes());
    }
    bed.run(["--table", "counters", "get", "n"]).prints(b"-2");
}

/// What dump wrote of counters, load makes counters of; whatever was there meanwhile.
#[test]
fn counters_come_back() {
    let bed = Bed::new();
    let counters = |args: &[&str]| bed.run([&["--table", "counters"], args].concat());
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("a path");
    for (key, by) in [("a", "5"), ("b", "-9"), ("c", "7")] {
        counters(&["incr", key, by]).code(0);
    }
    counters(&["put", "text", "007"]).code(0);
    counters(&["dump", dir]).code(0);
    counters(&["del", "a"]).code(0);
    counters(&["put", "b", "something else"]).code(0);
    counters(&["incr", "c"]).prints(b"8\n");
    counters(&["load", "--verify", dir]).code(0);
    for (key, is) in [("a", "6\n"), ("b", "-8\n"), ("c", "8\n")] {
        counters(&["incr", key]).prints(is.as_bytes());
    }
    counters(&["incr", "text"]).fails(2, "counter");
}

#[test]
fn names_of_tables_are_text_for_a_terminal() {
    let bed = Bed::new();
    for name in ["a\nb", "\x1b[31mred", "a\u{9b}b"] {
        bed.run(["tables", "create", name]).fails(2, "control characters");
    }
    bed.run(["tables", "create", "grün 1"]).code(0);
}

#[test]
fn json_for_programs() {
    let bed = Bed::new();
    assert!(bed.run(["--json", "put", "k", "v"]).json()["version"].is_u64());
    let got = bed.run(["--json", "get", "k"]).json();
    assert_eq!((&got["key"], &got["value"]), (&"k".into(), &"v".into()));
    assert!(got["version"].is_u64() && got["flags"] == 0 && got["expires_unix_s"].is_null());
    bed.run_with_stdin(&["put", "b"], b"\xff\x01").code(0);
    assert_eq!(bed.run(["--json", "get", "b"]).json()["value_hex"], "ff01");
    assert_eq!(bed.run(["--json", "incr", "n", "3"]).json()["number"], 3);
    assert_eq!(bed.run(["--json", "del", "k"]).json()["deleted"], true);
    let absent = bed.run(["--json", "get", "k"]);
    absent.code(1);
    assert!(absent.0.stdout.is_empty());
    let stats = bed.run(["--json", "stats"]).json();
    assert!(stats["server"].as_object().is_some_and(|names| names.len() > 10));
    assert_eq!(stats["client"]["fabric"], "shm");
}

#[test]
fn stats_for_people() {
    let bed = Bed::new();
    let text = bed.run(["stats"]).text();
    assert!(text.contains("server onesided://127.0.0.1:"), "{text}");
    assert!(text.contains("this client") && text.contains("one_sided_hits"), "{text}");
}

#[test]
fn tables() {
    let bed = Bed::new();
    bed.run(["tables", "create", "cache:ttl=60,quota=64MiB"]).prints(b"created cache\n");
    bed.run(["tables", "create", "cache"]).fails(2, "exists");
    bed.run(["tables", "create", "other:evict,noeviction"]).fails(2, "both");
    bed.run(["tables", "create", "other:floor=2TiB"]).fails(2, "floors");
    bed.run(["--table", "cache", "put", "k", "v"]).code(0);
    bed.run(["get", "k"]).code(1);
    assert!(!bed.run(["--table", "cache", "get", "k", "--meta"]).stderr().contains("never"));
    bed.run(["tables", "alter", "cache:ttl=0"]).prints(b"altered cache\n");
    let list = bed.run(["--json", "tables", "list"]).json();
    let cache = list.as_array().expect("a list").iter().find(|table| table["name"] == "cache");
    let cache = cache.expect("it is there");
    assert_eq!((&cache["default_ttl_s"], &cache["quota_bytes"]), (&0.into(), &(64 << 20).into()));
    assert_eq!((&cache["keys"], &cache["evict"]), (&1.into(), &false.into()));
    bed.run(["tables", "alter", "cache:floor=1MiB"]).prints(b"altered cache\n");
    let list = bed.run(["--json", "tables", "list"]).json();
    let cache = list.as_array().expect("a list").iter().find(|table| table["name"] == "cache");
    assert_eq!(cache.expect("it is there")["floor_bytes"], 1 << 20);
    bed.run(["tables", "alter", "cache:evict"]).prints(b"altered cache\n");
    let all = ["evicted", "by quota", "moved", "dead", "payload", "padding", "given back to the"];
    for words in [&["tables", "list", "--detail"][..], &["tables", "--detail"]] {
        let detail = bed.run(words).text();
        assert!(all.iter().all(|part| detail.contains(part)), "{detail}");
    }
    for words in [&["tables", "list"][..], &["tables"]] {
        let text = bed.run(words).text();
        assert!(text.starts_with("table") && text.contains("default"), "{text}");
        assert!(!text.contains("padding"), "{text}");
    }
    bed.run(["tables", "--detail", "drop", "cache"]).fails(2, "--detail");
    assert!(bed.run(["tables", "--json", "list"]).json().is_array());
    bed.run(["tables", "drop", "cache"]).fails(2, "--yes");
    bed.run(["tables", "drop", "cache", "--yes"]).prints(b"dropped cache\n");
    bed.run(["--table", "cache", "get", "k"]).fails(2, "no such table");
    bed.run(["tables", "drop", "cache", "--yes"]).fails(2, "tables list");
    bed.run(["tables", "alter", "absent:ttl=1"]).fails(2, "absent");
    bed.run(["tables", "create", "x:colour=red"]).fails(2, "colour");
    bed.run(["tables", "create", "x:ttl=1,ttl=2"]).fails(2, "given twice");
    bed.run(["tables", "create", &"x".repeat(65)]).fails(2, "too large: a table's name of 65");
    for nothing in ["default", "default:", "default:,"] {
        bed.run(["tables", "alter", nothing]).fails(2, "write default:option=value");
    }
    for command in ["create", "alter", "drop"] {
        let help = bed.run(["tables", command, "--help"]).text();
        assert!(!help.contains("--detail"), "{help}");
    }
    let warned = bed.run(["tables", "create", "x:quota=512 gib"]);
    warned.prints(b"created x\n");
    assert!(warned.stderr().contains("above the server's memory"), "{}", warned.stderr());
}

#[test]
fn scan() {
    let bed = Bed::new();
    bed.run(["scan"]).fails(2, "not ordered");
    bed.run(["tables", "create", "o:ordered"]).prints(b"created o\n");
    bed.run(["tables", "alter", "o:ttl=600"]).prints(b"altered o\n");
    bed.run(["tables", "alter", "default:ordered"]).fails(2, "cannot be changed");
    let list = bed.run(["tables", "list"]).text();
    assert!(list.contains("ordered"), "{list}");
    bed.run(["--table", "o", "scan"]).prints(b"");
    let url = format!("onesided://{}", bed.server.addr());
    let client = onesided::Client::builder().url(url).connect_blocking().expect("connected");
    let table = client.table("o").expect("the table");
    let pairs: Vec<_> = (0..250).map(|n| (format!("k{n:03}"), "v\t1")).collect();
    table.put_many(&pairs).into_iter().for_each(|put| assert!(put.is_ok()));
    table.put("a", "1").expect("stored");
    bed.run(["--table", "o", "scan", "--limit", "2"]).prints(b"a\t1\nk000\tv\\t1\n");
    bed.run(["--table", "o", "scan", "k248", "--keys"]).prints(b"k248\nk249\n");
    let all = bed.run(["--table", "o", "scan", "--prefix", "k", "--keys", "--limit", "0"]).text();
    assert!(all.lines().count() == 250 && all.lines().is_sorted(), "{all}");
    let page = bed.run(["--table", "o", "scan", "k1", "--keys", "--limit", "150"]).text();
    assert_eq!((page.lines().count(), page.lines().next()), (150, Some("k100")));
    let json = bed.run(["--json", "--table", "o", "scan", "--limit", "1"]).json();
    assert_eq!((&json["key"], &json["value"]), (&"a".into(), &"1".into()));
    bed.run(["--json", "--table", "o", "scan", "--limit", "1", "--keys"])
        .prints(b"{\"key\":\"a\"}\n");
}

#[test]
fn mistakes_get_one_line_that_says_what_to_do() {
    let bed = Bed::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address").to_string();
    drop(free);
    bed.run(["--server", &address, "get", "k"]).fails(2, "onesided-server");
    bed.run(["--server", "onesided://", "get", "k"]).fails(2, "host");
    bed.run(["--server", "http://x", "get", "k"]).fails(2, "onesided://");
    bed.run(["--token-file", "absent", "get", "k"]).fails(2, "absent");
    bed.run(["--token-file", "/dev/null", "get", "k"]).fails(2, "/dev/null is empty");
    bed.run(["put", "k", "--file", "absent"]).fails(2, "absent");
    bed.run(["load", "absent"]).fails(2, "not a directory");
    for usage in
        [&["frobnicate"][..], &[], &["get"], &["incr", "k", "much"], &["put", "k", "--ttl"]]
    {
        let ran = bed.run(usage);
        ran.code(2);
        assert!(ran.stderr().contains("--help"), "{}", ran.stderr());
    }
}

#[test]
fn commands_leave_no_sessions_behind() {
    let bed = Bed::new();
    for _ in 0..30 {
        bed.run(["get", "absent"]).code(1);
    }
    let stats = bed.server.stats();
    let sessions = stats.iter().find(|(name, _)| name == "sessions").expect("counted");
    // Goodbye is waited for, but not for ever.
    assert!(sessions.1 <= 3, "{} sessions wait for the end of their lease", sessions.1);
}

#[test]
fn a_silent_server_is_an_error_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address").to_string();
    let start = std::time::Instant::now();
    let output = Command::new(binary())
        .args(["--server", &address, "--timeout-ms", "300", "get", "k"])
        .output()
        .expect("the command runs");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr).trim_end().lines().count(), 1);
    assert!(start.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let bed = Bed::new();
    bed.run_with_stdin(&["put", "big"], &vec![b'x'; 4 << 20]).code(0);
    let mut child = bed
        .command()
        .args(["get", "big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_examples_of_the_help_run() {
    let bed = Bed::new();
    let help = bed.run(["--help"]).text();
    let examples: Vec<&str> =
        help.lines().filter(|line| line.starts_with("  ") && line.contains("onesided ")).collect();
    let examples: Vec<&str> =
        examples.iter().skip_while(|line| !line.contains("put greeting")).copied().collect();
    assert!(examples.len() >= 11, "{help}");
    std::fs::create_dir_all(bed.path("photos/deep")).expect("made");
    std::fs::write(bed.path("photos/deep/one.jpg"), b"not really").expect("written");
    for example in examples {
        let path = format!("{}:/usr/bin:/bin", binary().parent().expect("a directory").display());
        let output = Command::new("sh")
            .args(["-ec", example])
            .env("PATH", path)
            .env("ONESIDED_SERVER", bed.server.addr().to_string())
            .current_dir(bed.directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("sh runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {stderr}");
    }
    assert_eq!(std::fs::read(bed.path("copy/deep/one.jpg")).expect("dumped"), b"not really");
    for command in ["put", "get", "del", "incr", "load", "dump", "tables", "stats", "ping"] {
        assert!(help.contains(&format!("  {command} ")), "{command} is not in {help}");
        bed.run([command, "--help"]).code(0);
    }
}
