//! The shipped configuration file, and what is refused.

use clap::Parser;
use onesided_server::ServerConfig;
use onesided_server::cli::Cli;
use onesided_server::config::HugePages;
use onesided_server::config::file::{self, FileConfig, LogFormat, Settings};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/server.toml");

fn shipped() -> String {
    std::fs::read_to_string(SHIPPED).expect("config/server.toml is there")
}

fn refused(text: &str) -> String {
    match file::parse(text).and_then(FileConfig::settings) {
        Ok(settings) => panic!("accepted: {settings:?}"),
        Err(error) => error,
    }
}

#[test]
fn the_shipped_file_says_the_defaults() {
    let settings = file::parse(&shipped()).and_then(FileConfig::settings).expect("parses");
    let log = "info".to_owned();
    let expected = Settings { server: ServerConfig::default(), log, log_format: LogFormat::Text };
    assert_eq!(settings, expected);
    let empty = file::parse("").and_then(FileConfig::settings).expect("parses");
    assert_eq!(empty, expected);
}

#[test]
fn the_shipped_file_has_every_key_once_with_a_comment() {
    let text = shipped();
    let lines: Vec<&str> = text.lines().collect();
    let keys = file::keys();
    assert!(keys.len() > 10, "{keys:?}");
    for key in keys {
        let start = format!("{key} =");
        let at: Vec<_> = (0..lines.len()).filter(|&n| lines[n].starts_with(&start)).collect();
        assert_eq!(at.len(), 1, "{key} must be in config/server.toml once");
        assert!(lines[at[0] - 1].starts_with('#'), "{key} has no comment");
    }
}

#[test]
fn unknown_keys_are_refused_by_name_with_line_and_suggestion() {
    let error = refused("listen = \"127.0.0.1:0\"\n\nmemmory = \"1GiB\"\n");
    assert_eq!(error, "line 3: unknown key `memmory`; did you mean `memory`?");
    let error = refused("zebra = 1\n");
    assert!(error.contains("line 1: unknown key `zebra`; known are:"), "{error}");
    assert!(error.contains("session_lease_ms"), "{error}");
}

#[test]
fn wrong_values_are_named() {
    for (text, parts) in [
        ("memory = \"1GB\"", ["memory", "GiB"]),
        ("memory = 5", ["line 1", "string"]),
        ("value_max = \"61MiB\"", ["value_max", "62914560"]),
        ("\ncredits = 0", ["credits", "1 to 64"]),
        ("fabrics = [\"smh\"]", ["smh", "did you mean `shm`?"]),
        ("rdma = \"yes\"", ["rdma: `yes`", "require, prefer, never"]),
        ("rdma_device = \"mlx5_0:x\"", ["rdma_device: `x`", "NAME[:PORT[:GID_INDEX]]"]),
        ("fabrics = [\"shm\"]\nrdma = \"require\"", ["rdma is require", "fabrics"]),
        ("fabrics = [\"verbs\"]\nrdma = \"never\"", ["rdma is never", "add shm or tcp"]),
        ("fabrics = []", ["fabrics", "at least one"]),
        ("tables = [\"t:tl=1\"]", ["tl", "did you mean `ttl`?"]),
        ("log_format = \"xml\"", ["line 1", "xml"]),
        ("huge_pages = \"on\"", ["line 1", "auto"]),
        ("token_file = \"/no/such/file\"", ["token_file", "/no/such/file"]),
        ("spin_us = 1\nlisten = \n", ["line 2", "value"]),
        ("listen = \"a\"\nlisten = \"b\"", ["line 2", "duplicate"]),
    ] {
        let error = refused(text);
        for part in parts {
            assert!(error.contains(part), "`{text}` gave `{error}`, without `{part}`");
        }
    }
}

#[test]
fn flags_win_over_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server.toml");
    std::fs::write(&path, "memory = \"2GiB\"\nrdma = \"never\"\ntables = [\"a\"]\nspin_us = 7\n")
        .expect("written");
    let token = dir.path().join("token");
    std::fs::write(&token, "secret\n").expect("written");
    let line = format!(
        "onesided-server --config {} --memory 3GiB --table b:ttl=5 --table c --fabric verbs,tcp \
         --rdma require --token-file {} --log-format json --value-max 1MiB \
         --max-sessions 9 --listen [::1]:0 \
         --log debug --huge-pages off",
        path.display(),
        token.display()
    );
    let cli = Cli::try_parse_from(line.split_whitespace()).expect("parses");
    let settings = cli.settings().expect("settings");
    let server = &settings.server;
    assert_eq!(server.memory_bytes, 3 << 30);
    let tables: Vec<_> = server.tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["b:ttl=5", "c"]);
    assert_eq!((server.spin_us, server.max_sessions, server.value_max_bytes), (7, 9, 1 << 20));
    assert_eq!((server.listen.as_str(), server.fabrics.len()), ("[::1]:0", 2));
    assert!(server.token.is_some());
    assert_eq!(server.rdma, onesided_fabric::Rdma::Require);
    assert_eq!((settings.log.as_str(), settings.log_format), ("debug", LogFormat::Json));
    assert_eq!(server.huge_pages, HugePages::Off);
}

#[test]
fn a_missing_file_is_named() {
    let cli = Cli::try_parse_from(["onesided-server", "--config", "/no/such.toml"]);
    let error = cli.expect("parses").settings().expect_err("must fail");
    assert!(error.contains("/no/such.toml"), "{error}");
}

#[test]
fn help_teaches() {
    let help = Cli::try_parse_from(["onesided-server", "--help"]).expect_err("help").to_string();
    for part in ["Examples:", "127.0.0.1:7411", "0.0.0.0:7411", "1GiB", "--table", "ttl=SECONDS"] {
        assert!(help.contains(part), "--help does not say {part}:\n{help}");
    }
}
