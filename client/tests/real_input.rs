//! A big source tree goes in through the library, and a second process reads every byte of it
//! back one-sidedly while a third overwrites other keys.

#[path = "common/children.rs"]
mod children;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use children::*;
use onesided::{FabricChoice, FabricKind, blocking};
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

/// Enough of the tree for splits and reuse, and little enough for a slow machine.
const FILES_MAX: usize = 20_000;
const BYTES_MAX: usize = 256 << 20;
const BATCH: usize = 64;
/// Keys that come to the table while it is read.
const GROWTH: usize = 40_000;
/// Rounds of overwriting that the readers read through.
const ROUNDS: usize = 300;

#[derive(Serialize, Deserialize)]
enum Role {
    Server(ServerRole),
    Read { addr: SocketAddr, root: PathBuf, fabric: String },
    Overwrite { addr: SocketAddr },
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Server(role)) => serve(role),
        Some(Role::Read { addr, root, fabric }) => read(addr, &root, &fabric),
        Some(Role::Overwrite { addr }) => overwrite(addr),
    }
}

/// The sources of the crates this project is built from; without them, the project's own.
fn root() -> PathBuf {
    let home = |name| std::env::var_os(name).map(PathBuf::from);
    let cargo = home("CARGO_HOME").or_else(|| home("HOME").map(|home| home.join(".cargo")));
    let registry = cargo.map(|cargo| cargo.join("registry/src")).filter(|path| path.is_dir());
    registry.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
}

/// Keys, which are relative paths, and files: the same in every process.
fn tree(root: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let walk = WalkDir::new(root).sort_by_file_name().into_iter();
    // What is built meanwhile changes under the walk.
    let still =
        walk.filter_entry(|e| !["target", ".git"].iter().any(|name| e.file_name() == *name));
    for entry in still {
        let entry = entry.expect("readable");
        if !entry.file_type().is_file() {
            continue;
        }
        bytes += entry.metadata().expect("readable").len();
        if found.len() == scaled(FILES_MAX) || bytes > scaled(BYTES_MAX) as u64 {
            break;
        }
        let key = entry.path().strip_prefix(root).expect("below it");
        found.push((key.to_string_lossy().into_owned(), entry.into_path()));
    }
    found
}

fn load(table: &blocking::Table, files: &[(String, PathBuf)]) {
    for batch in files.chunks(BATCH) {
        let pairs: Vec<_> =
            batch.iter().map(|(key, path)| (key, std::fs::read(path).expect("readable"))).collect();
        for (result, (key, _)) in table.put_many(&pairs).into_iter().zip(batch) {
            result.unwrap_or_else(|error| panic!("{key}: {error}"));
        }
    }
}

/// Reads all of it, one by one and in batches, until the parent has had enough.
fn read(addr: SocketAddr, root: &Path, fabric: &str) {
    let choice = if fabric == "tcp" { FabricChoice::Tcp } else { one_sided() };
    let client = builder(addr).fabric(choice).connect_blocking().expect("connects");
    let table = client.table("default").expect("the table");
    let files = tree(root);
    let enough = Told::listen();
    let mut read = 0;
    for pass in 0.. {
        for batch in files.chunks(BATCH) {
            let keys: Vec<_> = batch.iter().map(|(key, _)| key).collect();
            let values = match pass % 2 {
                0 => keys.iter().map(|key| table.get(key).expect("a get")).collect(),
                _ => table.get_many(&keys).expect("gets"),
            };
            for (value, (key, path)) in values.iter().zip(batch) {
                let expected = std::fs::read(path).expect("readable");
                let value = value.as_ref().unwrap_or_else(|| panic!("{key} is missing"));
                assert!(value[..] == expected[..], "{key}: {} bytes differ", expected.len());
                read += 1;
            }
        }
        if enough.over() && pass > 0 {
            break;
        }
    }
    let stats = client.stats();
    match client.fabric() {
        FabricKind::Shm | FabricKind::Verbs => {
            assert_eq!(stats.one_sided_hits + stats.rpc_gets, read, "{stats:?}");
            assert!(stats.rpc_gets * 100 <= read, "most are not RPCs: {stats:?}");
        }
        _ => assert_eq!((stats.rpc_gets, stats.reads), (read, 0), "{stats:?}"),
    }
    tell("read", &format!("{read} over {}: {stats:?}", client.fabric()));
}

/// Grows the index, then overwrites and deletes keys of its own, so that memory is reused.
fn overwrite(addr: SocketAddr) {
    let client = builder(addr).fabric(one_sided()).connect_blocking().expect("connects");
    let table = client.table("default").expect("the table");
    let enough = Told::listen();
    let put = |pairs: &[(String, Vec<u8>)]| {
        table.put_many(pairs).into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
    };
    for burst in 0..scaled(GROWTH) / BATCH {
        let key = |n| format!("other/new/{}", burst * BATCH + n);
        put(&(0..BATCH).map(|n| (key(n), vec![7])).collect::<Vec<_>>());
    }
    let mut round = 0usize;
    while !enough.over() {
        // Ever other lengths: an address is reused by entries of other shapes.
        let value = |n: usize| vec![round as u8; (n * 7919 + round * 31) % 3000];
        put(&(0..BATCH).map(|n| (format!("other/{n}"), value(n))).collect::<Vec<_>>());
        table.put("other/large", vec![round as u8; 100_000 + round % 7 * 100_000]).expect("put");
        table.delete(format!("other/{}", round % BATCH)).expect("delete");
        round += 1;
        if round == scaled(ROUNDS) {
            tell("enough", "");
        }
    }
    tell("overwrote", &format!("{round} rounds"));
}

#[test]
fn a_source_tree_is_read_back_by_another_process() {
    let root = root();
    let files = tree(&root);
    assert!(files.len() > 100, "{} files below {}", files.len(), root.display());
    let len_bytes = |(_, path): &(String, PathBuf)| path.metadata().expect("readable").len();
    let longest = files.iter().map(len_bytes).max().unwrap_or_default();
    let daemon =
        Daemon::start(ServerRole { memory_mib: 1024, ..ServerRole::default() }, Role::Server);
    let client = daemon.builder().connect_blocking().expect("connects");
    let table = client.table("default").expect("the table");
    load(&table, &files);
    let reader = |fabric: &str| {
        let (root, fabric) = (root.clone(), fabric.to_owned());
        Process::spawn(&Role::Read { addr: daemon.addr, root, fabric })
    };
    let mut readers = [reader("one-sided"), reader("tcp")];
    let mut third = Process::spawn(&Role::Overwrite { addr: daemon.addr });
    third.hear("enough");
    readers.iter_mut().for_each(Process::say);
    for mut reader in readers {
        println!("{} files of up to {longest} bytes, read {}", files.len(), reader.hear("read"));
        reader.join();
    }
    third.say();
    println!("overwrote {}", third.hear("overwrote"));
    third.join();
    drop((table, client));
    daemon.join();
}
