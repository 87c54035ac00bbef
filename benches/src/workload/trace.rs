//! Traces of caches: a CSV whose lines are timestamp in seconds, key, key size, value size, client,
//! operation, time to live in seconds; the layout of the public ones.

use std::collections::HashSet;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use twox_hash::XxHash3_64;

use super::keys::Key;
use super::operations::{Kind, Planned, Source, Step};
use crate::run::history::Verdicts;
use crate::target::{Operation, Outcome};

const FIELDS: usize = 7;
/// Longest value.
const VALUE_MAX_BYTES: u32 = 256 << 20;

/// One operation.
#[derive(Clone, Debug)]
struct Line {
    /// After the first one.
    at_s: f64,
    /// Where its key stands.
    key: (usize, usize),
    value_bytes: u32,
    ttl_s: u32,
    /// Number of its line in the file.
    number: u32,
    kind: Kind,
}

/// A trace in memory.
#[derive(Default, Debug)]
pub struct Trace {
    lines: Vec<Line>,
    /// All keys, one behind the other.
    keys: Vec<u8>,
}

/// A trace that is divided among threads. A key has one thread, so that its order stays.
#[derive(Debug)]
pub struct Parts {
    trace: Trace,
    /// Numbers of the lines of each thread.
    parts: Vec<Vec<usize>>,
}

impl Trace {
    /// Reads all of a file.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = std::fs::File::open(path).with_context(|| format!("opening {name}"))?;
        let mut trace = Self::default();
        for (number, line) in std::io::BufReader::new(file).lines().enumerate() {
            let line = line.with_context(|| format!("reading {name}"))?;
            let at = || format!("{name}, line {}: `{line}`", number + 1);
            // Comments, and a line that names the columns.
            if line.is_empty() || line.starts_with('#') || line.starts_with("timestamp") {
                continue;
            }
            trace.add(&line, number as u32 + 1).with_context(at)?;
        }
        ensure!(!trace.lines.is_empty(), "{name}: there is no operation in it");
        Ok(trace)
    }

    fn add(&mut self, line: &str, number: u32) -> Result<()> {
        // Keys may have commas in them.
        let (at_s, rest) = line.split_once(',').context("a trace has seven columns")?;
        let mut last: Vec<&str> = rest.rsplitn(FIELDS - 1, ',').collect();
        ensure!(last.len() == FIELDS - 1, "a trace has seven columns");
        last.reverse();
        let [key, key_bytes, value_bytes, _client, operation, ttl_s] = last[..] else {
            anyhow::bail!("a trace has seven columns");
        };
        let whole = |text: &str, what: &str| {
            text.trim().parse::<u32>().with_context(|| format!("{what} `{text}`: a whole number"))
        };
        let at_s: f64 = at_s.trim().parse().context("the timestamp is not a number of seconds")?;
        let key_bytes = whole(key_bytes, "key size")? as usize;
        let value_bytes = whole(value_bytes, "value size")?;
        ensure!(!key.is_empty() && key_bytes < 1 << 16, "a key has 1 to 65535 bytes");
        ensure!(value_bytes <= VALUE_MAX_BYTES, "a value has 256 MiB at most");
        ensure!(at_s.is_finite(), "the timestamp is not a number of seconds");
        let place = self.keys.len();
        self.keys.extend_from_slice(key.as_bytes());
        // Names are made anonymous, and shorter than they were.
        let padded = place + key_bytes.max(key.len());
        self.keys.resize(padded, b'_');
        let (kind, ttl_s) = (kind(operation.trim())?, whole(ttl_s, "ttl")?);
        self.lines.push(Line { at_s, key: (place, padded), value_bytes, ttl_s, number, kind });
        Ok(())
    }

    /// Operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Divides the first so many operations.
    #[must_use]
    pub fn split(mut self, operations: usize, threads: usize) -> Parts {
        self.lines.truncate(operations);
        let first_s = self.lines.first().map_or(0.0, |first| first.at_s);
        let mut parts = vec![vec![]; threads.max(1)];
        for (number, line) in self.lines.iter_mut().enumerate() {
            line.at_s = (line.at_s - first_s).max(0.0);
            let hash = XxHash3_64::oneshot(&self.keys[line.key.0..line.key.1]);
            let part = (hash % parts.len() as u64) as usize;
            parts[part].push(number);
        }
        Parts { trace: self, parts }
    }
}

/// What an operation of a cache is here: what writes, stores a value.
fn kind(operation: &str) -> Result<Kind> {
    match operation {
        "get" | "gets" => Ok(Kind::Read),
        "set" | "add" | "replace" | "cas" | "append" | "prepend" | "incr" | "decr" => {
            Ok(Kind::Insert)
        }
        "delete" => Ok(Kind::Delete),
        other => anyhow::bail!(
            "operation `{other}`: get, gets, set, add, replace, cas, append, prepend, incr, decr \
             or delete"
        ),
    }
}

impl Parts {
    /// Longest value.
    #[must_use]
    pub fn value_max_bytes(&self) -> usize {
        self.trace.lines.iter().map(|line| line.value_bytes as usize).max().unwrap_or(0)
    }

    /// All keys, with the numbers of their lines in the file.
    pub fn keys_by_line(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let key = |line: &Line| &self.trace.keys[line.key.0..line.key.1];
        self.trace.lines.iter().map(move |line| (line.number, key(line)))
    }

    /// How many different keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        let keys = &self.trace.keys;
        let all = self.trace.lines.iter().map(|line| &keys[line.key.0..line.key.1]);
        all.collect::<HashSet<_>>().len() as u64
    }
}

/// Operations of one thread.
pub struct Replay {
    parts: Arc<Parts>,
    thread: usize,
    next: usize,
    speed: Option<f64>,
    value: Vec<u8>,
}

impl Replay {
    /// Of a thread by its number; with a speed operations begin when the trace says.
    #[must_use]
    pub fn new(parts: &Arc<Parts>, thread: usize, speed: Option<f64>, seed: u64) -> Self {
        let mut value = vec![0; parts.value_max_bytes()];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut value);
        Self { parts: parts.clone(), thread, next: 0, speed, value }
    }

    fn line(&self, place: usize) -> Option<&Line> {
        self.parts.parts[self.thread].get(place).map(|number| &self.parts.trace.lines[*number])
    }
}

impl Source for Replay {
    fn begin_batch(&mut self) {}

    fn plan(&mut self, slot: &mut Planned) -> bool {
        let Some(kind) = self.line(self.next).map(|line| line.kind) else { return false };
        // The key stays where it is.
        slot.key = Key::default();
        (slot.kind, slot.number) = (kind, self.next as u64);
        self.next += 1;
        true
    }

    fn is_timed(&self) -> bool {
        self.speed.is_some()
    }

    fn due_ns(&mut self) -> Option<u64> {
        let speed = self.speed?;
        self.line(self.next).map(|line| (line.at_s / speed * 1e9) as u64)
    }

    fn operation<'a>(&'a self, slot: &'a Planned, _step: Step) -> Operation<'a> {
        let number = self.parts.parts[self.thread][slot.number as usize];
        let line = &self.parts.trace.lines[number];
        let key = &self.parts.trace.keys[line.key.0..line.key.1];
        match line.kind {
            Kind::Insert => {
                let value = &self.value[..line.value_bytes as usize];
                Operation::Insert { key, value, ttl_s: line.ttl_s }
            }
            Kind::Delete => Operation::Delete { key },
            _ => Operation::Read { key },
        }
    }

    fn answered(&self, _: &Planned, _: Step, _: Outcome<'_>, _: &mut Verdicts) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.csv");
        std::fs::write(&path, text).expect("a file");
        Trace::read(&path)
    }

    #[test]
    fn lines_become_operations() {
        let text = "timestamp,key,key_size,value_size,client,operation,ttl\n\
                    10,a,4,100,1,set,60\n10,b,1c,2,0,1,get,0\n11,a,4,0,2,delete,0\n";
        let text = text.replace("b,1c,2", "b,1c,4");
        let parts = Arc::new(read(&text).expect("it parses").split(3, 1));
        assert_eq!((parts.keys(), parts.value_max_bytes()), (2, 100));
        let mut replay = Replay::new(&parts, 0, Some(2.0), 1);
        let mut slot = Planned::default();
        assert_eq!(replay.due_ns(), Some(0));
        assert!(replay.plan(&mut slot));
        let Operation::Insert { key, value, ttl_s } = replay.operation(&slot, Step::First) else {
            panic!("not an insert");
        };
        assert_eq!((key, value.len(), ttl_s), (&b"a___"[..], 100, 60));
        assert!(replay.plan(&mut slot));
        assert_eq!(replay.operation(&slot, Step::First), Operation::Read { key: b"b,1c" });
        assert_eq!(replay.due_ns(), Some(500_000_000));
        assert!(replay.plan(&mut slot));
        assert_eq!(replay.operation(&slot, Step::First), Operation::Delete { key: b"a___" });
        assert!(!replay.plan(&mut slot) && replay.due_ns().is_none());
    }

    #[test]
    fn threads_divide_keys_and_keep_their_order() {
        let lines = (0..100).map(|n| format!("{n},k{},2,1,1,get,0\n", n % 10));
        let parts = read(&lines.collect::<String>()).expect("it parses").split(90, 3);
        assert_eq!(parts.parts.iter().map(Vec::len).sum::<usize>(), 90);
        assert!(parts.parts.iter().all(|part| part.is_sorted() && part.len() % 9 == 0));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("1,k,1,1,1,get\n", "seven columns"),
            ("1,k,1,1,1,steal,0\n", "operation `steal`"),
            ("1,k,x,1,1,get,0\n", "key size `x`"),
            ("1,k,1,-1,1,get,0\n", "value size `-1`"),
            ("x,k,1,1,1,get,0\n", "timestamp"),
            ("1,,1,1,1,get,0\n", "1 to 65535"),
            ("", "no operation"),
        ] {
            let error = format!("{:#}", read(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
        }
    }
}
