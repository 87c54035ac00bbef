//! What the command makes for packages, and `top` where there is no terminal.

use std::process::{Command, Stdio};

use onesided_server::{Server, ServerConfig};

const ONESIDED: &str = env!("CARGO_BIN_EXE_onesided");

#[test]
fn manual_pages_and_completions_are_made_without_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new(ONESIDED).arg("generate").arg(folder.path()).status().expect("runs");
    assert!(made.success());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    assert!(read("onesided.1").contains(".TH onesided 1"));
    for (page, part) in [
        ("onesided-put.1", "\\-\\-if\\-absent"),
        ("onesided-top.1", "\\-\\-every\\-ms"),
        ("onesided-doctor.1", "\\-\\-count"),
        ("onesided.bash", "--rdma-device"),
        ("onesided.fish", "doctor"),
        ("_onesided", "#compdef onesided"),
    ] {
        assert!(read(page).contains(part), "{part} is not in {page}");
    }
}

#[test]
fn top_without_a_terminal_says_so() {
    let config = ServerConfig { listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    let server = Server::start(config).expect("the server starts");
    let output = Command::new(ONESIDED)
        .args(["--server", &server.addr().to_string(), "top"])
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, b"", "nothing is drawn");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("a terminal") && text.contains("onesided stats"), "{text}");
}
