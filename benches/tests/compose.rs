//! docker/compose.yml starts the load generator with words that it knows.

use clap::Parser;
use onesided_bench::cli::{Args, Command};

#[test]
fn compose_starts_a_run() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docker/compose.yml");
    let text = std::fs::read_to_string(path).expect("docker/compose.yml is there");
    let compose: serde_json::Value = serde_yaml_ng::from_str(&text).expect("YAML");
    let load = &compose["services"]["load"];
    let words = load["entrypoint"].as_array().expect("a program").iter();
    let words = words.chain(load["command"].as_array().expect("arguments"));
    let words = words.map(|word| word.as_str().expect("a word"));
    let args = Args::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(args.command, Command::Run(_)));
}
