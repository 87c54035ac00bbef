//! `onesided-bench` against a server in this process.

use std::process::Command;

use onesided_server::{Server, ServerConfig};

fn run(server: &Server, arguments: &[&str]) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_onesided-bench"))
        .env("ONESIDED_SERVER", format!("onesided://{}", server.addr()))
        .args(["--json", "--keys", "2000", "--seconds", "1"])
        .args(arguments)
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_run_says_what_happened() {
    let config = ServerConfig { listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    let server = Server::start(config).expect("the server starts");
    let mixed = run(&server, &["--threads", "2", "--get-percent", "50"]);
    assert_eq!(mixed["fabric"], "shm");
    for verb in ["get", "put"] {
        let verb = &mixed[verb];
        assert!(verb["ops"].as_u64() > Some(0), "{mixed}");
        let times = ["p50_us", "p99_us", "p999_us"].map(|name| verb[name].as_f64().expect(name));
        assert!(times[0] > 0.0 && times.is_sorted(), "{mixed}");
    }
    assert_eq!(mixed["absent"], 0);
    // PUTs cost the server something, and it can be seen.
    assert!(mixed["server_cpu_cores"].as_f64() > Some(0.0), "{mixed}");
    let reads = run(&server, &["--get-percent", "100", "--no-fill", "--prefill"]);
    assert_eq!((&reads["absent"], &reads["put"]["ops"]), (&0.into(), &0.into()));
    assert!(reads["one_sided_share"].as_f64() > Some(0.99), "{reads}");
    let asked = run(&server, &["--fabric", "tcp", "--no-fill", "--value-bytes", "5000"]);
    assert_eq!((&asked["fabric"], &asked["one_sided_share"]), (&"tcp".into(), &0.0.into()));
}

#[test]
fn mistakes_end_with_a_line() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("onesided://{}", free.local_addr().expect("its address"));
    drop(free);
    let output = Command::new(env!("CARGO_BIN_EXE_onesided-bench"))
        .args(["--server", &url])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("onesided-server"));
}
