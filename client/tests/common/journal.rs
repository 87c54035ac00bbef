//! Histories that several processes record, each thread into a file of its own: a line before the
//! call and a line after it, so that whoever is killed leaves what it had begun.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::linearize::{Content, Op, Operation, Ret};

/// How long what is short-lived lives: on the server's clock, which is cut to seconds.
pub(crate) const LIFE_S: u32 = 3;
/// How wrong a client may be about that clock: by half of the fastest round trip so far.
const CLOCK_ERROR_NS: u64 = 1_000_000_000;

/// Nanoseconds on the clock that all processes share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Serialize, Deserialize)]
enum Line {
    Called { n: u32, key: usize, at: u64, op: Op },
    Answered { n: u32, at: u64, ret: Ret },
}

/// One thread's part of the history.
pub(crate) struct Journal {
    file: File,
    client: u32,
    next: u32,
}

impl Journal {
    pub(crate) fn create(directory: &Path, client: u32) -> Self {
        let file = File::create_new(directory.join(client.to_string())).expect("a new file");
        Self { file, client, next: 0 }
    }

    /// A number that nobody else has, to write or append.
    pub(crate) fn unique(&self) -> u64 {
        u64::from(self.client) << 32 | u64::from(self.next)
    }

    /// A name for the end of something short-lived; nobody else has it.
    pub(crate) fn expiry(&self) -> u32 {
        (self.client + 1) << 20 | self.next & 0xF_FFFF
    }

    /// Before the call.
    pub(crate) fn calls(&mut self, key: usize, op: Op) -> u32 {
        let n = self.next;
        self.next += 1;
        self.write(&Line::Called { n, key, at: now_ns(), op });
        n
    }

    /// After it; never, if what it did is not known.
    pub(crate) fn answered(&mut self, n: u32, ret: Ret) {
        self.answered_at(n, now_ns(), ret);
    }

    pub(crate) fn answered_at(&mut self, n: u32, at: u64, ret: Ret) {
        self.write(&Line::Answered { n, at, ret });
    }

    fn write(&mut self, line: &Line) {
        let mut bytes = serde_json::to_vec(line).expect("JSON");
        bytes.push(b'\n');
        // One write: a kill comes before or after it.
        self.file.write_all(&bytes).expect("written");
    }
}

/// All journals of a directory together, by key.
pub(crate) fn histories(directory: &Path) -> HashMap<usize, Vec<Operation>> {
    let mut by_key: HashMap<usize, Vec<Operation>> = HashMap::new();
    for entry in directory.read_dir().expect("a directory") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let client = name.parse().expect("a number");
        let mut operations = HashMap::new();
        let text = std::fs::read_to_string(&path).expect("text");
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match serde_json::from_str(line).expect("a line") {
                Line::Called { n, key, at: call, op } => {
                    operations.insert(n, (key, Operation { client, call, answer: None, op }));
                }
                Line::Answered { n, at, ret } => {
                    operations.get_mut(&n).expect("called").1.answer = Some((at, ret));
                }
            }
        }
        for (key, operation) in operations.into_values() {
            let history = by_key.entry(key).or_default();
            history.extend(end_of(&operation));
            history.push(operation);
        }
    }
    by_key
}

/// When what an operation wrote ends, if it is short-lived: at an instant, the same one for all,
/// that is known within some seconds.
fn end_of(operation: &Operation) -> Option<Operation> {
    let (Op::Put { expiry_s, .. } | Op::Touch { expiry_s }) = operation.op else { return None };
    let (life_ns, second_ns) = (u64::from(LIFE_S) * 1_000_000_000, 1_000_000_000);
    let call = operation.call + life_ns - second_ns - CLOCK_ERROR_NS;
    let answer = match operation.answer {
        Some((at, Ret::Version(_) | Ret::Touched)) => {
            Some((at + life_ns + CLOCK_ERROR_NS, Ret::Ticked))
        }
        // Nothing was written.
        Some(_) => return None,
        None => None,
    };
    let end = Operation { call, answer, op: Op::Ends { expiry_s }, ..*operation };
    (expiry_s != 0).then_some(end)
}

const HEADER_BYTES: usize = 12;

fn body(id: u64, len: usize) -> impl Iterator<Item = u8> {
    let mut word = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len).map(move |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 24) as u8
    })
}

/// Bytes that say what they are: number, length, and a body that follows from the number.
pub(crate) fn piece(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(len as u32).to_le_bytes());
    bytes.extend(body(id, len));
    bytes
}

/// The numbers of the pieces that a value is made of. Panics if it was never written so.
pub(crate) fn pieces(mut value: &[u8]) -> Vec<u64> {
    let mut ids = Vec::new();
    while !value.is_empty() {
        let (header, rest) = value.split_at_checked(HEADER_BYTES).expect("a piece is whole");
        let id = u64::from_le_bytes(header[..8].try_into().expect("8 bytes"));
        let len = u32::from_le_bytes(header[8..].try_into().expect("4 bytes")) as usize;
        let (found, rest) = rest.split_at_checked(len).expect("a piece is whole");
        assert!(found.iter().copied().eq(body(id, len)), "piece {id} was never written so");
        ids.push(id);
        value = rest;
    }
    ids
}

/// Bytes in the body of a piece that a stamp is written over; what is stamped has no fewer.
pub(crate) const STAMP_BYTES: usize = 16;
/// Where a stamp is written.
pub(crate) const STAMP_OFFSET: u64 = HEADER_BYTES as u64;

/// The bytes of a stamp, for [`STAMP_OFFSET`].
pub(crate) fn stamp(id: u64) -> Vec<u8> {
    [id.to_le_bytes(), (!id).to_le_bytes()].concat()
}

/// What the checker calls this value.
pub(crate) fn content(value: &[u8]) -> Content {
    let (head, behind) = value.split_at(value.len().min(HEADER_BYTES + STAMP_BYTES));
    let (header, found) = head.split_at_checked(HEADER_BYTES).expect("a piece is whole");
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    if found.len() == STAMP_BYTES && found == stamp(word(found)) {
        let under: Vec<u8> = body(word(header), STAMP_BYTES).collect();
        return unstamped(&[header, &under, behind].concat()).stamped(word(found));
    }
    unstamped(value)
}

fn unstamped(value: &[u8]) -> Content {
    let ids = pieces(value);
    let (first, rest) = ids.split_first().expect("no value is empty");
    rest.iter().fold(Content::of(*first), |content, id| content.appended(*id))
}
