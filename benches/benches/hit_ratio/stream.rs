//! What is asked for, in which order.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result};

use crate::common::data::{self, KEY_BYTES, VALUE_BYTES};
use crate::common::zipf::Zipf;

/// A GET, and how long the value is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    /// Number of the key.
    pub(crate) key: u64,
    /// Length of its value.
    pub(crate) value_bytes: u32,
}

/// All requests.
pub(crate) struct Stream {
    /// For the table's head.
    pub(crate) what: String,
    pub(crate) requests: Vec<Request>,
}

/// Requests that are sent together: each key once.
pub(crate) struct Batch {
    pub(crate) requests: Vec<Request>,
    /// Requests for a key that is in the batch already: they find what the first one found or put.
    pub(crate) repeated: usize,
}

impl Stream {
    /// Zipf 0.99 over pairs of ten times as many bytes.
    pub(crate) fn zipf(memory_bytes: u64, requests: u64) -> Self {
        let keys = memory_bytes * 10 / (KEY_BYTES + VALUE_BYTES) as u64;
        let mut zipf = Zipf::new(keys, 0.99, 1);
        let request = |_| Request { key: zipf.next(), value_bytes: VALUE_BYTES as u32 };
        let requests: Vec<_> = (0..requests).map(request).collect();
        let what =
            format!("{} requests, Zipf 0.99 over {keys} keys of 16+100 bytes", requests.len());
        Self { what, requests }
    }

    /// Lines of `key,value_bytes`.
    pub(crate) fn of_trace(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).context(path.display().to_string())?;
        let mut numbers = HashMap::new();
        let mut requests = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{}:{}: `{line}`", path.display(), number + 1);
            let (key, bytes) = line.split_once(',').with_context(place)?;
            let next = numbers.len() as u64;
            let key = *numbers.entry(key).or_insert(next);
            requests.push(Request { key, value_bytes: bytes.trim().parse().with_context(place)? });
        }
        let what = format!(
            "{} requests for {} keys of {}",
            requests.len(),
            numbers.len(),
            path.file_name().unwrap_or_default().display()
        );
        Ok(Self { what, requests })
    }

    /// Requests that are not counted.
    pub(crate) fn warm_up(&self) -> usize {
        self.requests.len() / 4
    }

    /// Groups of so many, and where each begins.
    pub(crate) fn batches(&self, len: usize) -> impl Iterator<Item = (usize, Batch)> {
        self.requests.chunks(len).enumerate().map(move |(number, chunk)| {
            let mut seen = HashSet::new();
            let requests: Vec<_> =
                chunk.iter().copied().filter(|request| seen.insert(request.key)).collect();
            let repeated = chunk.len() - requests.len();
            (number * len, Batch { requests, repeated })
        })
    }
}

/// A key as text, for memcached; all of the same length.
pub(crate) fn key(number: u64) -> Vec<u8> {
    let word = u64::from_le_bytes(data::key(number)[..8].try_into().unwrap_or_default());
    format!("{word:016x}").into_bytes()
}
