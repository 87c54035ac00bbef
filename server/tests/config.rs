//! The shipped configuration file, and what is refused.

use clap::Parser;
use onesided_protocol::control::FabricName;
use onesided_server::ServerConfig;
use onesided_server::cli::Cli;
use onesided_server::config::file::{self, FileConfig, LogFormat, Settings};
use onesided_server::config::{ADMIN_DEFAULT, CasOver, HugePages};

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
    // What only the daemon has by default.
    let admin = Some(ADMIN_DEFAULT.to_owned());
    let tables = ["default", "counters"].map(|name| name.parse().expect("a name")).to_vec();
    let server = ServerConfig { admin, tables, own_process: true, ..ServerConfig::default() };
    let expected = Settings { server, log, log_format: LogFormat::Text };
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
    for key in keys.into_iter().filter(|key| key != "tenant") {
        let start = format!("{key} =");
        let at: Vec<_> = (0..lines.len()).filter(|&n| lines[n].starts_with(&start)).collect();
        assert_eq!(at.len(), 1, "{key} must be in config/server.toml once");
        assert!(lines[at[0] - 1].starts_with('#'), "{key} has no comment");
    }
}

/// The tenant of the shipped file, which is commented out.
fn shipped_tenant() -> String {
    let text = shipped();
    let lines = text.lines().skip_while(|line| *line != "# [[tenant]]");
    lines.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_shows_a_tenant_with_every_key() {
    let text = shipped_tenant();
    let parsed = file::parse(&text).expect("parses without its comments");
    let [tenant] = &parsed.tenant.expect("a tenant")[..] else { panic!("one tenant") };
    let serde_json::Value::Object(keys) = serde_json::to_value(tenant).expect("keys") else {
        panic!("an object")
    };
    for (key, value) in keys {
        assert!(!value.is_null(), "the shipped tenant does not show {key}");
    }
    assert!(refused(&text).contains("/etc/onesided/blue.token"), "its token file is not here");
}

#[test]
fn tenants_come_from_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    for name in ["blue", "red", "too"] {
        std::fs::write(path(name), format!("{name}'s token")).expect("written");
    }
    std::fs::write(path("same"), "red's token").expect("written");
    let tenant = |name: &str, token: &str, rest: &str| {
        format!("[[tenant]]\nname = \"{name}\"\ntoken_file = \"{}\"\n{rest}\n", path(token))
    };
    let blue = tenant("blue", "blue", "memory = \"64MiB\"\nmanage_tables = false");
    let red = tenant("red", "red", "");
    let tables = "tables = [\"a\", \"a:tenant=blue,ttl=3\"]\n";
    let text = format!("{tables}{blue}{red}[[tenant]]\nname = \"default\"\nmemory = \"1GiB\"\n");
    let settings = file::parse(&text).and_then(FileConfig::settings).expect("settings");
    let server = settings.server;
    let names: Vec<_> = server.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["blue", "red", "default"]);
    let blue_is = &server.tenants[0];
    assert_eq!((blue_is.memory_bytes, blue_is.manage_tables), (Some(64 << 20), false));
    assert!(blue_is.token.is_some() && server.token.is_none());
    let tables: Vec<_> = server.tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["a", "a:tenant=blue,ttl=3"]);

    let with_token = format!("token_file = \"{}\"\n", path("too"));
    let default = tenant("default", "blue", "");
    for (text, parts) in [
        (tenant("blue", "blue", "memmory = \"1\""), ["line 4", "did you mean `memory`?"]),
        ("[[tenant]]\nmemory = \"1GiB\"".to_owned(), ["no name", "add name"]),
        ("[[tenant]]\nname = \"x\"".to_owned(), ["tenant `x`", "set token_file"]),
        (tenant("a b", "blue", ""), ["tenant `a b`", "letters, digits"]),
        (tenant("blue", "no", ""), ["tenant `blue`", "cannot read"]),
        (tenant("blue", "blue", "memory = \"2GiB\""), ["tenant `blue`: memory is 2GiB", "1GiB"]),
        (tenant("blue", "blue", "memory = \"1GB\""), ["tenant `blue`: memory", "GiB"]),
        (format!("{blue}{blue}"), ["tenant `blue`", "given twice"]),
        (format!("{default}{default}"), ["tenant `default`", "given twice"]),
        (format!("{with_token}{default}"), ["tenant `default`", "leave one out"]),
        (format!("{red}{}", tenant("blue", "same", "")), ["`red` and `blue`", "same token"]),
        (format!("tables = [\"t:tenant=bleu\"]\n{blue}"), ["table `t`", "did you mean `blue`?"]),
        ("tables = [\"t\", \"t:ttl=1\"]".to_owned(), ["table `t`", "given twice"]),
        (format!("memory = \"100MiB\"\n{red}"), ["with 2 tenants", "at least 128MiB"]),
        ("tables = [\"t:quota=1KiB\"]".to_owned(), ["quota of table `t` is 1KiB", "index"]),
    ] {
        let error = refused(&text);
        for part in parts {
            assert!(error.contains(part), "`{text}` gave `{error}`, without `{part}`");
        }
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
        ("rdma_mtu = \"1500\"", ["rdma_mtu: `1500`", "1024"]),
        ("rdma_device = \"mlx5_0:x\"", ["rdma_device: `x`", "NAME[:PORT[:GID_INDEX]]"]),
        ("fabrics = [\"shm\"]\nrdma = \"require\"", ["rdma is require", "fabrics"]),
        ("fabrics = [\"verbs\"]\nrdma = \"never\"", ["rdma is never", "add shm or tcp"]),
        ("cas_over = \"tcp\"", ["line 1", "verbs"]),
        ("fabrics = [\"tcp\"]\ncas_over = \"shm\"", ["cas_over is shm", "add it"]),
        ("rdma = \"never\"\ncas_over = \"verbs\"", ["cas_over is verbs", "rdma forbids"]),
        ("fabrics = []", ["fabrics", "at least one"]),
        ("tables = [\"t:tl=1\"]", ["tl", "did you mean `ttl`?"]),
        ("evict = true\ntables = [\"t\"]", ["evict", "no table `default`"]),
        ("cleaning = \"on\"", ["line 1", "aggressive"]),
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
         --rdma require --rdma-mtu 1024 --token-file {} --log-format json --value-max 1MiB \
         --max-sessions 9 --listen [::1]:0 \
         --log debug --huge-pages off --cas-over verbs",
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
    assert_eq!((server.cas_over, server.updates_over()), (CasOver::Verbs, Some(FabricName::Verbs)));
    assert_eq!(server.rdma, onesided_fabric::Rdma::Require);
    assert_eq!(server.rdma_mtu.bytes(), Some(1024));
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
