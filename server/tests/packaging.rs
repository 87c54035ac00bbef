//! What is shipped beside the programs: containers, systemd's unit, the Debian package. No engine
//! runs here, so that the files are read: what they name has to be there.

use std::collections::BTreeSet;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

const SERVER: &str = env!("CARGO_BIN_EXE_onesided-server");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect(path)
}

fn yaml(path: &str) -> Vec<Value> {
    let text = read(path);
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).expect(path)).collect()
}

/// Instructions of the Dockerfile: the word and the rest, lines that go on joined.
fn instructions() -> Vec<(String, String)> {
    let text = read("docker/Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let split = |line: &str| {
        let (word, rest) = line.trim().split_once(' ').expect("an instruction");
        (word.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    lines.map(split).collect()
}

/// Whether an image is named with a version that does not move by itself.
fn is_pinned(image: &str) -> bool {
    let version = image.rsplit_once(':').map_or("", |(_, version)| version);
    version.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit())
        && version.contains('.')
}

#[test]
fn the_dockerfile_keeps_the_rules() {
    assert!(is_pinned("debian:12.12-slim") && !is_pinned("debian:latest") && !is_pinned("debian"));
    let all = instructions();
    let of = |word: &str| -> Vec<&str> {
        all.iter().filter(|(of, _)| of == word).map(|(_, rest)| rest.as_str()).collect()
    };
    let from = of("FROM");
    assert_eq!(from.len(), 2, "one stage builds, one is shipped");
    for image in from {
        assert!(is_pinned(image.split(' ').next().expect("an image")), "{image}");
    }
    assert_eq!(of("ADD"), Vec::<&str>::new(), "COPY says what it does");
    for run in of("RUN") {
        assert!(!run.contains("curl") && !run.contains("wget") && !run.contains("sudo"), "{run}");
        if run.contains("apt-get install") {
            assert!(run.contains("--no-install-recommends") && run.contains("rm -rf"), "{run}");
        }
    }
    let last_stage = all.iter().rposition(|(word, _)| word == "FROM").expect("a stage");
    let user = all[last_stage..].iter().find(|(word, _)| word == "USER").expect("a user");
    assert!(user.1.starts_with(|c: char| c.is_ascii_digit()) && !user.1.starts_with('0'));
    assert_eq!(of("HEALTHCHECK").len(), 1);
    assert!(all.last().is_some_and(|(word, _)| word == "CMD"));
}

#[test]
fn the_dockerfile_copies_what_there_is_and_builds_what_it_copies() {
    let sent: Vec<String> = read(".dockerignore")
        .lines()
        .filter_map(|line| line.strip_prefix('!').map(str::to_owned))
        .collect();
    let all = instructions();
    let built = all.iter().find(|(_, rest)| rest.starts_with("cargo build")).expect("a build");
    let bins: BTreeSet<&str> =
        built.1.split("--bin ").skip(1).map(|rest| rest.split(' ').next().expect("one")).collect();
    assert!(built.1.contains("--release --locked"), "{}", built.1);
    let mut shipped = BTreeSet::new();
    for (_, rest) in all.iter().filter(|(word, _)| word == "COPY") {
        let words: Vec<&str> = rest.split(' ').filter(|word| *word != "--from=build").collect();
        let (_, from) = words.split_last().expect("a place");
        for path in from {
            if let Some(bin) = path.strip_prefix("/src/target/release/") {
                shipped.insert(bin);
                continue;
            }
            assert!(root().join(path).exists(), "{path}");
            assert!(sent.iter().any(|sent| sent == path), "{path} is not in .dockerignore");
        }
    }
    assert_eq!(shipped, bins);
    let members = read("Cargo.toml");
    for bin in bins {
        let crates = ["server", "client", "benches"].map(|dir| read(&format!("{dir}/Cargo.toml")));
        let name = format!("name = \"{bin}\"");
        assert!(crates.iter().any(|text| text.contains(&name)), "no program {bin}");
    }
    for member in ["protocol", "fabric", "server", "client", "benches"] {
        assert!(members.contains(member) && sent.iter().any(|sent| sent == member), "{member}");
    }
}

/// Runs the server on flags, as far as reading them goes.
fn check_flags(flags: &[String]) -> Output {
    let known = |flag: &&String| !flag.contains("token-file");
    let flags: Vec<_> = flags.iter().filter(known).collect();
    let mut command = Command::new(SERVER);
    // Addresses that are open need a token, whose file is not here.
    let flags = flags.into_iter().map(|flag| flag.replace("0.0.0.0:", "127.0.0.1:"));
    command.args(flags).arg("check-config").output().expect("runs")
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.map(|text| text.as_str().expect("a text").to_owned()).collect()
}

#[test]
fn compose_names_files_and_flags_that_there_are() {
    let compose = &yaml("docker/compose.yml")[0];
    let services = compose["services"].as_object().expect("services");
    assert_eq!(services.len(), 4);
    for (name, service) in services {
        // serde_yaml leaves merge keys as they are.
        assert_eq!(service["<<"]["read_only"], true, "{name}");
        assert_eq!(texts(&service["<<"]["cap_drop"]), ["ALL"], "{name}");
        assert!(is_pinned(service["image"].as_str().expect("an image")), "{name}");
        for volume in texts(&service["volumes"]) {
            let from = volume.split(':').next().expect("a source");
            let is_there = match from.strip_prefix("../") {
                Some(path) => root().join(path).is_file(),
                None => compose["volumes"].get(from).is_some(),
            };
            assert!(is_there, "{name}: {volume}");
        }
        if let Some(on) = service["depends_on"].as_object() {
            assert!(on.keys().all(|other| services.contains_key(other)), "{name}");
        }
    }
    let output = check_flags(&texts(&services["server"]["command"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let build = &services["server"]["build"];
    assert!(root().join(build["dockerfile"].as_str().expect("a path")).is_file());
}

#[test]
fn the_kubernetes_manifest_has_no_rights_and_flags_that_there_are() {
    let documents = yaml("docker/kubernetes.yml");
    let [service, set] = &documents[..] else { panic!("{} documents", documents.len()) };
    assert_eq!((&service["kind"], &set["kind"]), (&"Service".into(), &"StatefulSet".into()));
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(service["spec"]["selector"], set["spec"]["template"]["metadata"]["labels"]);
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(texts(&security["capabilities"]["drop"]), ["ALL"]);
    assert!(is_pinned(container["image"].as_str().expect("an image")));
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let get = &container[probe]["httpGet"];
        assert!(["/healthz", "/readyz"].contains(&get["path"].as_str().expect(probe)), "{probe}");
        assert_eq!(get["port"], "admin");
    }
    let flags = texts(&container["args"]);
    let output = check_flags(&flags);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let help = Command::new(SERVER).arg("--help").output().expect("runs").stdout;
    let help = String::from_utf8_lossy(&help).into_owned();
    for flag in flags {
        let name = flag.split('=').next().expect("a flag");
        assert!(help.contains(&format!("{name} ")), "{flag}");
    }
}

/// Whether a program can be run; CI has to have it.
fn has(program: &str, package: &str) -> bool {
    let runs = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !runs {
        let text = format!("{program} is not there: apt install {package}");
        assert!(std::env::var_os("CI").is_none(), "{text}");
        println!("skipped: {text}");
    }
    runs
}

#[test]
fn systemd_finds_nothing_to_say_of_the_unit() {
    let unit = read("config/onesided-server.service");
    for line in ["Type=notify", "LimitMEMLOCK=infinity", "WatchdogSec=30s", "DynamicUser=yes"] {
        assert!(unit.lines().any(|there| there == line), "{line}");
    }
    if !has("systemd-analyze", "systemd") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("onesided-server.service");
    // As installed, but for the program's place; its page is not installed here.
    let here = unit.replace("/usr/bin/onesided-server", SERVER);
    let here = here.replace("Documentation=man:onesided-server(1)\n", "");
    std::fs::write(&path, here).expect("written");
    let analyze = |args: &[&str]| {
        let output = Command::new("systemd-analyze").args(args).arg(&path).output().expect("runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (is_right, text) = analyze(&["verify", "--recursive-errors=no"]);
    assert!(is_right && !text.contains("onesided-server.service:"), "{text}");
    // Tenths: what `systemd-analyze security` calls exposure, of 100.
    let (is_safe, text) = analyze(&["security", "--offline=yes", "--no-pager", "--threshold=25"]);
    assert!(is_safe, "{text}");
}

#[test]
fn a_supervisor_hears_that_it_is_ready_well_and_stopping() {
    let name = format!("onesided-packaging-{}", std::process::id());
    let addr = SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = UnixDatagram::bind_addr(&addr).expect("bound");
    listener.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let mut child = Command::new(SERVER)
        .args(["--listen", "127.0.0.1:0", "--admin", "off"])
        .env("NOTIFY_SOCKET", format!("@{name}"))
        .env("WATCHDOG_USEC", "200000")
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let next = || {
        let mut text = [0; 200];
        let len = listener.recv(&mut text).expect("a datagram");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let ready = next();
    assert!(ready.starts_with("READY=1\nSTATUS=clients connect to 127.0.0.1:"), "{ready}");
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    while next() != "STOPPING=1" {}
    assert!(child.wait().expect("ends").success());
}

#[test]
fn the_debian_package_has_all_its_files() {
    let manifest: toml::Value = toml::from_str(&read("server/Cargo.toml")).expect("TOML");
    let deb = &manifest["package"]["metadata"]["deb"];
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new(SERVER).arg("generate").arg(folder.path()).status().expect("runs");
    assert!(made.success());
    let page = std::fs::read_to_string(folder.path().join("onesided-server.1")).expect("a page");
    for part in [".TH onesided-server 1", "\\-\\-admin\\-token\\-file", "check\\-config"] {
        assert!(page.contains(part), "{part} is not in the manual page");
    }
    let completion = std::fs::read_to_string(folder.path().join("onesided-server.bash"));
    assert!(completion.expect("a completion").contains("--slow-request-ms"));
    // What the command makes is tested beside it.
    let made_elsewhere =
        ["*.1", "*.fish", "onesided.bash", "_onesided", "onesided-bench.bash", "_onesided-bench"];
    let mut places = BTreeSet::new();
    for asset in deb["assets"].as_array().expect("assets") {
        let text = |n: usize| asset[n].as_str().expect("a text");
        let (from, to) = (text(0), text(1));
        places.insert(to.to_owned());
        if let Some(name) = from.strip_prefix("../target/manuals/") {
            let is_there = folder.path().join(name).exists() || made_elsewhere.contains(&name);
            assert!(is_there, "nothing makes {name}");
        } else if let Some(bin) = from.strip_prefix("target/release/") {
            assert!(bin.starts_with("onesided"), "{from}");
            assert_eq!(text(2), "755");
        } else {
            let from = root().join("server").join(from);
            let files = match from.ends_with("*.md") || from.ends_with("*") {
                true => from.parent().is_some_and(std::path::Path::is_dir),
                false => from.is_file(),
            };
            assert!(files, "{}", from.display());
        }
    }
    let changelog = read("config/debian/changelog");
    let version = format!("onesided ({}-1) ", env!("CARGO_PKG_VERSION"));
    assert!(changelog.starts_with(&version), "config/debian/changelog is of another version");
    let conf = deb["conf-files"][0].as_str().expect("a path");
    assert!(places.contains(conf.trim_start_matches('/')), "{conf}");
    let unit = read("config/onesided-server.service");
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/"));
    let program = program.expect("a program").split(' ').next().expect("a path");
    assert!(places.contains("usr/bin/") && program == "usr/bin/onesided-server");
    assert!(unit.contains(&format!("--config {conf}")));
}
