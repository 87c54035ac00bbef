//! What the fuzzer does, on the stable compiler: its corpus, mutations of the corpus, and
//! arbitrary bytes, through the same functions.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use targets::{TARGETS, Target};

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|file| file.expect("a file").path())
        .map(|path| (path.display().to_string(), fs::read(&path).expect("its bytes")))
        .collect();
    files.sort();
    files
}

#[test]
fn the_corpus_passes() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 4, "corpus of {name} has {} files", files.len());
        for (_, bytes) in files {
            target(&bytes);
        }
    }
}

/// So that the corpus leads the fuzzer into the messages, and not only to refusals.
#[test]
fn the_corpus_decodes() {
    use onesided_protocol::control::{ToClient, ToServer};
    use onesided_protocol::rpc::{Answer, Request};
    let decodes = |name: &str, ok: fn(&[u8]) -> bool| {
        corpus(name).iter().filter(|(_, bytes)| ok(bytes)).count()
    };
    assert!(decodes("request", |bytes| Request::decode(bytes).is_ok()) >= 10);
    assert!(decodes("answer", |bytes| Answer::decode(bytes).is_ok()) >= 8);
    assert!(decodes("to_server", |bytes| ToServer::decode(bytes).is_ok()) >= 10);
    assert!(decodes("to_client", |bytes| ToClient::decode(bytes).is_ok()) >= 8);
}

/// Every truncation and every single-bit change of every file.
#[test]
fn neighbours_of_the_corpus_pass() {
    for (name, target) in TARGETS {
        for (_, bytes) in corpus(name) {
            for len in 0..bytes.len() {
                target(&bytes[..len]);
            }
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                target(&other);
            }
        }
    }
}

fn a_target() -> impl Strategy<Value = (&'static str, Target)> {
    prop::sample::select(&TARGETS[..])
}

/// One change: cut out, insert, overwrite with an extreme, or double.
fn mutate(bytes: &mut Vec<u8>, kind: u8, at: usize, value: u32) {
    let at = at % (bytes.len() + 1);
    match kind % 4 {
        0 => drop(bytes.splice(at..(at + 1 + value as usize % 4).min(bytes.len()).max(at), [])),
        1 => drop(bytes.splice(at..at, value.to_le_bytes())),
        2 => {
            let extremes = [0, 1, 0x7FFF_FFFF, 0x8000_0000, u32::MAX, 1_024, 1_025, 65_536];
            let extreme: u32 = extremes[value as usize % extremes.len()];
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&extreme.to_le_bytes()[..end - at]);
        }
        _ => bytes.extend_from_within(at..),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_bytes_pass(
        (_, target) in a_target(), bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        target(&bytes);
    }

    #[test]
    fn mutated_messages_pass(
        (name, target) in a_target(),
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec(any::<(u8, u16, u32)>(), 1..6),
    ) {
        let files = corpus(name);
        let mut bytes = files[file.index(files.len())].1.clone();
        for (kind, at, value) in changes {
            mutate(&mut bytes, kind, at.into(), value);
        }
        target(&bytes);
    }
}
