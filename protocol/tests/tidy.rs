//! What can be counted about this tree, so that nobody argues about it (CONTRIBUTING.md). Needs
//! the whole workspace around it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const FILE_MAX_LINES: usize = 600;
const FUNCTION_MAX_LINES: usize = 70;
const LINE_MAX_CHARS: usize = 100;
/// Where unsafe code is: raw memory that others write, raw memory of work requests, instructions
/// that not every processor has, a child with a memory map of its own, the C libraries, and where
/// LMDB is opened.
const UNSAFE_PLACES: [&str; 8] = [
    "fabric/src/mem.rs",
    "fabric/src/mem/block.rs",
    "fabric/src/mem/fold.rs",
    "fabric/src/mem/huge.rs",
    "fabric/src/mem/lines.rs",
    "fabric/src/mem/pages.rs",
    "fabric/src/verbs/ffi/",
    "benches/src/target/lmdb.rs",
];
/// Made by a program, never by hand.
const GENERATED: [&str; 2] =
    ["fabric/src/verbs/ffi/sys/bindings.rs", "fabric/src/verbs/ffi/sys/cm_bindings.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Text files of the tree: path from the root, and content.
fn files(extensions: &[&str]) -> Vec<(String, String)> {
    let mut all = vec![];
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                // What cargo builds; sources may lie in a folder of that name, too.
                let is_built =
                    name == "target" && !path.parent().is_some_and(|p| p.ends_with("src"));
                if !is_built && ![".git", "corpus", "artifacts"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if extensions.iter().any(|end| name.ends_with(end)) {
                let text = fs::read_to_string(&path).expect("a text");
                let relative = path.strip_prefix(root()).expect("below the root");
                let relative = relative.display().to_string();
                if !GENERATED.contains(&relative.as_str()) {
                    all.push((relative, text));
                }
            }
        }
    }
    all.sort();
    assert!(!all.is_empty(), "no files that end in {extensions:?}");
    all
}

#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn files_are_short() {
    let lens = files(&[".rs"]).into_iter().map(|(path, text)| (path, text.lines().count()));
    let found: Vec<String> = lens
        .filter(|(_, len)| *len > FILE_MAX_LINES)
        .map(|(path, len)| format!("{path}: {len}"))
        .collect();
    none("files of more than 600 lines", &found);
}

#[test]
fn lines_are_short() {
    let mut found = vec![];
    for (path, text) in files(&[".rs"]) {
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_MAX_CHARS {
                found.push(format!("{path}:{}", number + 1));
            }
        }
    }
    none("lines of more than 100 characters", &found);
}

/// Whether a line begins a function, in a tree that rustfmt has formatted.
fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let modifiers = ["pub", "async", "const", "unsafe", "extern", "\"C\""];
    let first = words.find(|word| {
        !modifiers.contains(word) && !word.starts_with("pub(") && !word.ends_with(')')
    });
    first == Some("fn")
}

/// Lines of each function, by the line on which it begins.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = vec![];
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| begins_function(line)) {
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let body = &lines[number..];
        let one_line = line.ends_with(['}', ';']);
        let len = body.iter().position(|line| **line == end || one_line).unwrap_or(0) + 1;
        all.push((number + 1, len));
    }
    all
}

#[test]
fn functions_are_short() {
    let long = format!("fn a() {{\n{}}}\npub(super) async fn b() {{\n}}\n", "    x;\n".repeat(80));
    assert_eq!(functions(&long), [(1, 82), (83, 2)], "the measure itself");

    let mut found = vec![];
    for (path, text) in files(&[".rs"]) {
        for (line, len) in functions(&text) {
            if len > FUNCTION_MAX_LINES {
                found.push(format!("{path}:{line}: {len} lines"));
            }
        }
    }
    none("functions of more than 70 lines", &found);
}

/// Line numbers of unsafe code, comments and strings not counted.
fn unsafe_lines(text: &str) -> Vec<usize> {
    let is_code = |line: &str| {
        let code = line.split("//").next().unwrap_or("");
        ["{", "impl", "fn", "extern", "trait"].iter().any(|next| {
            code.split_once(&format!("unsafe {next}"))
                .is_some_and(|(before, _)| before.matches('"').count() % 2 == 0)
        })
    };
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| is_code(line)).map(|(number, _)| number).collect()
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why() {
    let mut found = vec![];
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for (path, text) in files(&[".rs"]) {
        let lines: Vec<&str> = text.lines().collect();
        for number in unsafe_lines(&text) {
            let before = &lines[number.saturating_sub(12)..=number];
            let says_why =
                before.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"));
            used.extend(UNSAFE_PLACES.iter().filter(|place| path.starts_with(**place)));
            if !UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
                found.push(format!("{path}:{}: unsafe code in this file", number + 1));
            } else if !says_why {
                found.push(format!("{path}:{}: no SAFETY reason", number + 1));
            }
        }
    }
    none("unsafe", &found);
    for place in UNSAFE_PLACES {
        assert!(used.contains(place), "{place} needs no exception");
    }
}

#[test]
fn unsafe_code_is_forbidden_elsewhere() {
    let mut found = vec![];
    for package in metadata()["packages"].as_array().expect("packages") {
        if package["source"].is_string() || package["name"] == "onesided-fabric" {
            continue;
        }
        for target in package["targets"].as_array().expect("targets") {
            let kind = target["kind"][0].as_str().expect("a kind");
            let path = target["src_path"].as_str().expect("a path");
            let text = fs::read_to_string(path).expect(path);
            let is_shipped = ["lib", "bin"].contains(&kind);
            // One of its files opens LMDB, and says so; the lint denies the others.
            let opens_lmdb = package["name"] == "onesided-bench" && kind == "lib";
            let level =
                if opens_lmdb { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
            if is_shipped && !text.contains(level) {
                found.push(format!("{} {kind}", package["name"]));
            }
        }
    }
    none("crates without forbid(unsafe_code)", &found);
}

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("its JSON")
}

/// The arrows of docs/ARCHITECTURE.md.
#[test]
fn arrows_between_crates() {
    const ARROWS: [(&str, &[&str], &[&str]); 5] = [
        ("onesided-protocol", &[], &[]),
        ("onesided-fabric", &[], &[]),
        ("onesided-server", &["onesided-fabric", "onesided-protocol"], &[]),
        ("onesided", &["onesided-fabric", "onesided-protocol"], &["onesided-server"]),
        ("onesided-bench", &["onesided"], &["onesided-server"]),
    ];
    let metadata = metadata();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        if package["source"].is_string() {
            continue;
        }
        let arrow = ARROWS.iter().find(|arrow| arrow.0 == name);
        let (_, always, in_tests) = arrow.unwrap_or_else(|| panic!("{name} has no arrows here"));
        seen.insert(name);
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = dependency["name"].as_str().expect("a name");
            let is_dev = dependency["kind"] == "dev";
            let allowed = always.contains(&to) || is_dev && in_tests.contains(&to);
            // In tests protocol's and fabric's users may name them too.
            let leaf = ["onesided-protocol", "onesided-fabric"].contains(&to);
            let allowed = allowed || is_dev && leaf && !always.is_empty();
            assert!(allowed || !to.starts_with("onesided"), "{name} must not depend on {to}");
        }
    }
    assert_eq!(seen.len(), ARROWS.len());
}

/// Whether a licence expression can be met by permissive licences alone.
fn is_permissive(expression: &str) -> bool {
    const PERMISSIVE: [&str; 11] = [
        "MIT",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Zlib",
        "0BSD",
        "CC0-1.0",
        "Unlicense",
        "Unicode-3.0",
    ];
    expression.replace('/', " OR ").split(" AND ").all(|part| {
        let part = part.trim().trim_matches(['(', ')']);
        part.split(" OR ").any(|licence| PERMISSIVE.contains(&licence.trim()))
    })
}

/// Packages that are built into what is shipped: reached without dev-dependencies.
fn shipped(metadata: &Value) -> BTreeSet<String> {
    let ids = |value: &Value| {
        let ids = value.as_array().expect("ids").iter();
        ids.map(|id| id.as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| (node["id"].as_str().expect("an id"), node))
        .collect();
    let mut open = ids(&metadata["workspace_members"]);
    let mut all = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !all.insert(id.clone()) {
            continue;
        }
        for edge in nodes[id.as_str()]["deps"].as_array().expect("deps") {
            let kinds = edge["dep_kinds"].as_array().expect("kinds");
            if kinds.iter().any(|kind| kind["kind"] != "dev") {
                open.push(edge["pkg"].as_str().expect("an id").to_owned());
            }
        }
    }
    all
}

#[test]
fn licences_are_permissive() {
    assert!(is_permissive("(MIT OR Apache-2.0) AND Unicode-3.0") && is_permissive("Unlicense/MIT"));
    assert!(!is_permissive("GPL-3.0") && !is_permissive("MIT AND GPL-2.0") && !is_permissive(""));

    let metadata = metadata();
    let shipped = shipped(&metadata);
    assert!(shipped.len() > 20, "{} packages", shipped.len());
    let mut found = vec![];
    for package in metadata["packages"].as_array().expect("packages") {
        let licence = package["license"].as_str().unwrap_or("");
        if shipped.contains(package["id"].as_str().expect("an id")) && !is_permissive(licence) {
            found.push(format!("{}: {licence:?}", package["name"]));
        }
    }
    none("licences", &found);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut found = vec![];
    let mut count = 0;
    for (path, text) in files(&[".md"]) {
        let folder = root().join(&path).parent().expect("a folder").to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or("");
            if target.contains("://") || file.is_empty() {
                continue;
            }
            count += 1;
            if !folder.join(file).exists() {
                found.push(format!("{path}: {target}"));
            }
        }
    }
    none("dead links", &found);
    assert!(count > 5, "{count} links seen");
}

#[test]
fn readme_begins_with_its_two_commands() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let commands: Vec<&str> =
        readme.lines().take(25).filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(
        commands
            .starts_with(&["cargo run --release --bin onesided-server", "cargo test --workspace"]),
        "{commands:?}"
    );
    for puts_and_gets in ["onesided put ", "onesided get "] {
        assert!(commands.iter().any(|command| command.contains(puts_and_gets)), "{commands:?}");
    }
}

/// Nothing of the machine that something was written on.
#[test]
fn no_paths_or_hosts_of_a_machine() {
    let folders = ["work", "root", "home"].map(|folder| format!("/{folder}/"));
    let ends = [".rs", ".md", ".toml", ".sh", "run", "Dockerfile"];
    let mut found = vec![];
    for (path, text) in files(&ends) {
        for (number, line) in text.lines().enumerate() {
            if folders.iter().any(|folder| line.contains(folder)) {
                found.push(format!("{path}:{}: {line}", number + 1));
            }
        }
    }
    for (path, text) in files(&["Cargo.lock"]) {
        let crates_io = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
        let other = text.lines().filter(|line| line.starts_with("source") && *line != crates_io);
        found.extend(other.map(|line| format!("{path}: {line}")));
    }
    if root().join(".cargo").exists() {
        found.push(".cargo: settings of a machine".into());
    }
    none("paths and hosts", &found);
}
