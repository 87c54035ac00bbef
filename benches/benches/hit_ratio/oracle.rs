//! What could be reached by somebody who knows the future (Belady): of what is there, what is
//! asked for latest goes first.

use std::collections::{BTreeSet, HashMap};

use crate::common::data::KEY_BYTES;
use crate::stream::Stream;

/// The share of requests that find their value, the warm-up not counted. Keys and values take
/// their own bytes and nothing else, so no cache of this size reaches it. (With values of different
/// lengths it is close to a bound, and not one: the best choice is then a hard problem.)
pub(crate) fn hits(stream: &Stream, memory_bytes: u64) -> f64 {
    let requests = &stream.requests;
    let mut next_use = vec![usize::MAX; requests.len()];
    let mut last = HashMap::new();
    for (at, request) in requests.iter().enumerate().rev() {
        if let Some(later) = last.insert(request.key, at) {
            next_use[at] = later;
        }
    }
    let mut there: HashMap<u64, usize> = HashMap::new();
    let mut by_next_use: BTreeSet<(usize, u64)> = BTreeSet::new();
    let (mut used_bytes, mut found) = (0, 0);
    let bytes: HashMap<u64, u64> = requests
        .iter()
        .map(|request| (request.key, KEY_BYTES as u64 + u64::from(request.value_bytes)))
        .collect();
    for (at, request) in requests.iter().enumerate() {
        match there.insert(request.key, next_use[at]) {
            Some(known) => {
                by_next_use.remove(&(known, request.key));
                found += usize::from(at >= stream.warm_up());
            }
            None => used_bytes += bytes[&request.key],
        }
        by_next_use.insert((next_use[at], request.key));
        while used_bytes > memory_bytes
            && let Some((_, key)) = by_next_use.pop_last()
        {
            there.remove(&key);
            used_bytes -= bytes[&key];
        }
    }
    found as f64 / (requests.len() - stream.warm_up()).max(1) as f64
}
