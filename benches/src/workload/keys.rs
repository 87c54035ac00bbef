//! Names of records, and which numbers there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Zeros that a key may be padded to, at most.
pub const PADDING_MAX: usize = 100;
const PREFIX: &[u8] = b"user";
/// A number has 19 digits at most.
const KEY_MAX: usize = PREFIX.len() + PADDING_MAX;

/// 64-bit FNV-1a over the number's 8 bytes, lowest first, without its sign: YCSB's hash.
#[inline]
#[must_use]
pub fn fnv_hash(number: u64) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for octet in number.to_le_bytes() {
        hash = (hash ^ u64::from(octet)).wrapping_mul(1_099_511_628_211);
    }
    // Java's abs: the one number without a positive counterpart stays what it is.
    (hash as i64).wrapping_abs() as u64
}

/// How numbers become names.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// The number itself, not its hash.
    pub ordered: bool,
    /// Digits at least, at most [`PADDING_MAX`].
    pub zero_padding: usize,
}

/// The name of a record, in a place that is used again.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: usize,
}

impl Default for Key {
    fn default() -> Self {
        let mut bytes = [b'0'; KEY_MAX];
        bytes[..PREFIX.len()].copy_from_slice(PREFIX);
        Self { bytes, len: PREFIX.len() }
    }
}

impl Key {
    /// Makes it the name of a number.
    #[inline]
    pub fn name(&mut self, number: u64, naming: Naming) {
        let number = if naming.ordered { number } else { fnv_hash(number) };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        let begin = PREFIX.len() + naming.zero_padding.saturating_sub(digits.len());
        self.bytes[PREFIX.len()..begin].fill(b'0');
        self.bytes[begin..begin + digits.len()].copy_from_slice(digits);
        self.len = begin + digits.len();
    }

    /// As it is stored.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Numbers of records: handed out to who inserts, and seen by who chooses a key once they and all
/// before them are stored.
#[derive(Debug)]
pub struct Sequence {
    next: AtomicU64,
    /// All below are stored.
    end: AtomicU64,
    /// Stored ones of which one before is not.
    ahead: Mutex<BinaryHeap<Reverse<u64>>>,
}

impl Sequence {
    /// The first number that it hands out.
    #[must_use]
    pub fn new(first: u64) -> Self {
        let (next, end) = (AtomicU64::new(first), AtomicU64::new(first));
        Self { next, end, ahead: Mutex::default() }
    }

    /// A number for an insert.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// All numbers below have been answered.
    #[inline]
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// An insert has been answered.
    pub fn answered(&self, number: u64) {
        let mut ahead = self.ahead.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ahead.push(Reverse(number));
        let mut end = self.end.load(Ordering::Relaxed);
        while ahead.peek() == Some(&Reverse(end)) {
            ahead.pop();
            end += 1;
        }
        self.end.store(end, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64, ordered: bool, zero_padding: usize) -> String {
        let mut key = Key::default();
        // What was there before must not show.
        key.name(u64::MAX >> 1, Naming { ordered: true, zero_padding: PADDING_MAX });
        key.name(number, Naming { ordered, zero_padding });
        String::from_utf8(key.as_bytes().to_vec()).expect("ASCII")
    }

    #[test]
    fn names_are_those_of_ycsb() {
        // Keys that a run of YCSB prints for its first records.
        assert_eq!(name(0, false, 1), "user6284781860667377211");
        assert_eq!(name(1, false, 1), "user8517097267634966620");
        assert_eq!(name(5, true, 1), "user5");
        assert_eq!(name(5, true, 8), "user00000005");
        assert_eq!(name(1234, true, 2), "user1234");
        assert_eq!(name(7, true, PADDING_MAX).len(), PREFIX.len() + PADDING_MAX);
    }

    #[test]
    fn a_sequence_shows_no_gap() {
        let sequence = Sequence::new(10);
        let taken: Vec<u64> = (0..4).map(|_| sequence.take()).collect();
        assert_eq!((taken, sequence.end()), (vec![10, 11, 12, 13], 10));
        sequence.answered(11);
        sequence.answered(13);
        assert_eq!(sequence.end(), 10);
        sequence.answered(10);
        assert_eq!(sequence.end(), 12);
        sequence.answered(12);
        assert_eq!(sequence.end(), 14);
    }
}
