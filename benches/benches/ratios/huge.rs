//! The map beside us with its memory in huge pages too, as the server's is: a process of its own,
//! because the allocator is told at its start.

use std::hint::black_box;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::common::measure::{Contestant, Figure, Time, in_turns};
use crate::gets::{Map, pair, walk, word};
use crate::report::Report;
use crate::{TURN, rounds};

const ROLE: &str = "ONESIDED_BENCH_HUGE_PEER";
/// Makes the allocator of glibc (2.35 and later) ask for huge pages.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// Measures and prints, if this process was started to.
pub(crate) fn measure_if_told(pairs: u64) -> bool {
    if std::env::var_os(ROLE).is_none() {
        return false;
    }
    let map: Map = (0..pairs).map(pair).collect();
    let figures = [singles::<true>(&map, pairs), singles::<false>(&map, pairs)];
    let medians = figures.as_flattened().iter().map(|figure| figure.median_ns.to_string());
    println!("{} {}", huge_bytes(), medians.collect::<Vec<_>>().join(" "));
    true
}

fn singles<const DEPENDENT: bool>(map: &Map, pairs: u64) -> [Figure; 2] {
    let mut buffer = Vec::new();
    let copied = walk::<DEPENDENT>(pairs, |key| {
        let value: Vec<u8> = map.get(&key[..]).expect("the key is there").to_vec();
        word(&black_box(value))
    });
    let reused = walk::<DEPENDENT>(pairs, |key| {
        buffer.clear();
        buffer.extend_from_slice(map.get(&key[..]).expect("the key is there"));
        word(black_box(&buffer))
    });
    let contestants = [
        Contestant::new("hashbrown in huge pages, a new Vec", copied),
        Contestant::new("hashbrown in huge pages, one buffer", reused),
    ];
    in_turns(contestants, rounds(), TURN, Time::Cpu)
}

/// What of this process's memory is in huge pages.
fn huge_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Lines for the map in huge pages beside what was measured of ours.
pub(crate) fn beside(report: &mut Report, dependent: Figure, independent: Figure) {
    eprintln!("hashbrown in huge pages");
    match peer() {
        Ok(times) => {
            for (what, ours, times) in [
                ("GET, dependent", dependent, &times[..2]),
                ("GET, independent", independent, &times[2..]),
            ] {
                let peers = ["copied to a new Vec", "copied to one buffer"];
                for (copied, &theirs) in peers.iter().zip(times) {
                    let peer = format!("hashbrown in huge pages, {copied}");
                    report.beside(what, ours, &peer, theirs);
                }
            }
        }
        Err(error) => report.not_measured("hashbrown in huge pages", &error.to_string()),
    }
}

/// Four times: dependent and independent, each copied to a new Vec and to one buffer.
fn peer() -> Result<[Figure; 4]> {
    let child = Command::new(std::env::current_exe()?)
        .arg("--bench")
        .env(ROLE, "1")
        .env(TUNABLES.0, TUNABLES.1)
        .stderr(std::process::Stdio::inherit())
        .output()?;
    let text = String::from_utf8(child.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    let huge_bytes = numbers.next().context("the process said nothing")??;
    // A million pairs take some 200 MB.
    ensure!(huge_bytes >= 1e6, "the system gave none: is transparent_hugepage/enabled `never`?");
    let mut figures = [Figure { median_ns: 0.0, min_ns: 0.0, max_ns: 0.0 }; 4];
    for figure in &mut figures {
        figure.median_ns = numbers.next().context("the process did not say all")??;
    }
    Ok(figures)
}
