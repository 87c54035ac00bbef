//! `onesided load` and `onesided dump`: trees there and back, and names that would lead elsewhere.

mod command_support;

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use command_support::Bed;

/// A tree of `count` files from empty to 100 KB, with odd names; the same one every time.
fn make_tree(root: &Path, count: usize) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for number in 0..count {
        let name = match number % 4 {
            0 => format!("top {number}.txt"),
            1 => format!("a/b-{}/c{number}", number % 7),
            2 => format!("\u{e4}\u{f6}/{number}"),
            _ => format!(".hidden/{}/.{number}", number % 3),
        };
        let len = [0, 1, 63, 64, 1_000, 4_096, 20_000, 100_000][number % 8];
        let bytes = (0..len).map(|at| (at * 31 + number * 7) as u8).collect();
        files.insert(name, bytes);
    }
    for (name, bytes) in &files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, bytes).expect("written");
    }
    files
}

fn read_tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = walkdir::WalkDir::new(root).into_iter().map(|entry| entry.expect("an entry"));
    let files = entries.filter(|entry| entry.file_type().is_file());
    files
        .map(|entry| {
            let name = entry.path().strip_prefix(root).expect("below");
            let name = name.to_str().expect("text").to_owned();
            (name, std::fs::read(entry.path()).expect("read"))
        })
        .collect()
}

#[test]
fn a_tree_there_and_back() {
    let bed = Bed::new();
    let files = make_tree(&bed.path("tree"), 400);
    symlink("/etc/passwd", bed.path("tree/link")).expect("linked");
    symlink("/etc", bed.path("tree/directory-link")).expect("linked");
    let loaded = bed.run(["--json", "load", "tree", "--verify"]).json();
    let bytes: usize = files.values().map(Vec::len).sum();
    assert_eq!((&loaded["files"], &loaded["bytes"]), (&400.into(), &bytes.into()));
    assert_eq!((&loaded["skipped"], &loaded["failed"]), (&2.into(), &0.into()));
    assert_eq!(loaded["verified"], 400);
    let dumped = bed.run(["--json", "dump", "copy", "--jobs", "3"]).json();
    assert_eq!((&dumped["files"], &dumped["bytes"]), (&400.into(), &bytes.into()));
    assert!(read_tree(&bed.path("copy")) == files);
    // Again, over what lies there, with longer and shorter files.
    std::fs::write(bed.path("copy/top 0.txt"), b"longer than nothing").expect("written");
    bed.run(["dump", "copy"]).code(0);
    assert!(read_tree(&bed.path("copy")) == files);
}

#[test]
fn over_tcp_with_a_list() {
    let bed = Bed::new();
    let files = make_tree(&bed.path("tree"), 50);
    let text = bed.run(["--fabric", "tcp", "load", "tree", "--verify"]).text();
    assert!(text.starts_with("50 files, ") && text.contains("MB/s"), "{text}");
    bed.run(["--fabric", "tcp", "dump", "copy"]).fails(2, "--keys-from");
    let list: String = files.keys().map(|name| format!("{name}\n")).collect();
    std::fs::write(bed.path("list"), &list).expect("written");
    bed.run(["--fabric", "tcp", "dump", "copy", "--keys-from", "list"]).code(0);
    assert!(read_tree(&bed.path("copy")) == files);
    bed.run_with_stdin(&["dump", "other", "--keys-from", "-"], list.as_bytes()).code(0);
    assert!(read_tree(&bed.path("other")) == files);
}

#[test]
fn keys_that_are_not_there_are_named() {
    let bed = Bed::new();
    bed.run(["put", "here", "v"]).code(0);
    let ran = bed.run_with_stdin(&["dump", "copy", "--keys-from", "-"], b"here\nnot-here\n");
    ran.code(1);
    assert!(ran.stderr().contains("\"not-here\": absent"), "{}", ran.stderr());
    assert_eq!(read_tree(&bed.path("copy")).len(), 1);
}

#[test]
fn hostile_keys_stay_inside() {
    let bed = Bed::new();
    symlink(bed.directory.path(), bed.path("outside")).expect("linked");
    std::fs::create_dir(bed.path("copy")).expect("made");
    symlink("..", bed.path("copy/up")).expect("linked");
    let hostile =
        ["../evil", "/tmp/onesided-evil", "a/../../evil", "a//evil", "./evil", "evil/", "up/evil"];
    for key in hostile {
        bed.run(["put", key, "evil"]).code(0);
    }
    bed.run(["put", "", "evil"]).code(0);
    bed.run(["put", "good/one", "fine"]).code(0);
    let ran = bed.run(["dump", "copy"]);
    ran.code(2);
    let stderr = ran.stderr();
    for key in hostile {
        assert!(stderr.contains(&format!("\"{key}\": ")), "{key} is not in {stderr}");
    }
    assert_eq!(stderr.lines().count(), hostile.len() + 1, "{stderr}");
    assert!(stderr.contains("symbolic link") && stderr.contains("absolute path"), "{stderr}");
    let files = read_tree(&bed.path("copy"));
    assert_eq!(files, BTreeMap::from([("good/one".to_owned(), b"fine".to_vec())]));
    assert!(!bed.path("evil").exists() && !Path::new("/tmp/onesided-evil").exists());
}

#[test]
fn failures_name_the_file_and_the_load_goes_on() {
    let bed = Bed::new();
    let files = make_tree(&bed.path("tree"), 20);
    // Longer than the server's longest value, sparse.
    let huge = std::fs::File::create(bed.path("tree/a/huge")).expect("made");
    huge.set_len(33 << 20).expect("long");
    let ran = bed.run(["load", "tree"]);
    ran.code(2);
    let stderr = ran.stderr();
    assert!(stderr.contains("tree/a/huge") && stderr.contains("too large"), "{stderr}");
    assert!(ran.text().contains("20 files") && ran.text().contains("1 failed"), "{}", ran.text());
    assert_eq!(files.len(), 20);
    let ran = bed.run(["load", "tree", "--verify"]);
    ran.code(2);
    // Once: what was not stored is not compared.
    assert_eq!(ran.stderr().matches("tree/a/huge").count(), 1, "{}", ran.stderr());
    let text = ran.text();
    assert!(text.contains("20 read back equal") && !text.contains("NOT EQUAL"), "{text}");
    let stopped = bed.run(["load", "tree", "--stop-on-error", "--jobs", "1"]);
    stopped.code(2);
    assert!(stopped.text().contains("not tried"), "{}", stopped.text());
}
