//! What is known of a key that one writer changes: enough to tell whether what a reader got is
//! linearizable. A round is one operation of its writer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use onesided::Value;

use crate::values::{first_piece, piece};

pub(crate) use crate::values::PIECE_MIN_BYTES;

/// Clocks of two processes of one host may be so far apart: the server's never steps back.
const CLOCK_ERROR_S: u64 = 1;
const KEY_BITS: u32 = 17;

/// A round, and whether what it left stays until the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    round: u64,
    stays: bool,
}

impl Seen {
    fn of(word: u64) -> Self {
        Self { round: word >> 1, stays: word & 1 == 1 }
    }

    fn word(self) -> u64 {
        self.round << 1 | u64::from(self.stays)
    }
}

/// What is known of a key.
#[derive(Default)]
pub(crate) struct Known {
    /// Rounds begun so far.
    begun: AtomicU64,
    /// The last acknowledged [`Seen`]; it stays if it put a value for good.
    acked: AtomicU64,
    /// The greatest [`Seen`] that a reader got.
    seen: AtomicU64,
    /// The last acknowledged round whose value is not for good (upper half), and the second from
    /// which on nobody may get it.
    ends: AtomicU64,
}

/// What was known before a read.
pub(crate) struct Before {
    acked: Seen,
    seen: Seen,
    asked_s: u64,
}

fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs()
}

fn tag(key: usize, seen: Seen) -> u64 {
    seen.round << (KEY_BITS + 1) | (key as u64) << 1 | u64::from(seen.stays)
}

/// The bytes of a round's value: they say what they are, if there are enough of them.
pub(crate) fn value(key: usize, round: u64, stays: bool, len_bytes: usize) -> Vec<u8> {
    let mut bytes = piece(tag(key, Seen { round, stays }), len_bytes);
    if len_bytes < PIECE_MIN_BYTES {
        // From the end: the check is there.
        bytes.drain(..PIECE_MIN_BYTES - len_bytes);
    }
    bytes
}

impl Known {
    pub(crate) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A value was acknowledged just now; `ttl_s` 0: for good.
    pub(crate) fn has_put(&self, round: u64, ttl_s: u64) {
        if ttl_s > 0 {
            self.ends.store(round << 32 | (now_s() + ttl_s) & 0xFFFF_FFFF, Ordering::SeqCst);
        }
        let stays = ttl_s == 0;
        self.acked.store(Seen { round, stays }.word(), Ordering::SeqCst);
    }

    pub(crate) fn has_deleted(&self, round: u64) {
        self.acked.store(Seen { round, stays: false }.word(), Ordering::SeqCst);
    }

    pub(crate) fn before(&self) -> Before {
        let of = |word: &AtomicU64| Seen::of(word.load(Ordering::SeqCst));
        Before { acked: of(&self.acked), seen: of(&self.seen), asked_s: now_s() }
    }

    /// Whether a reader who knew `before` may have got this. `Err` says why not.
    pub(crate) fn check(
        &self,
        key: usize,
        before: &Before,
        got: Option<&Value>,
    ) -> Result<(), String> {
        let begun = self.begun.load(Ordering::SeqCst);
        let newest = before.acked.max(before.seen);
        let Some(value) = got else {
            let may_be_gone = !newest.stays || begun > newest.round;
            let text = || format!("key {key}: absent, but round {} stays", newest.round);
            return may_be_gone.then_some(()).ok_or_else(text);
        };
        // A delete leaves nothing that could be got.
        let rounds = newest.round..=begun;
        let found = whose(key, value, rounds.clone()).ok_or_else(|| {
            let (len, head) = (value.len(), &value[..value.len().min(32)]);
            format!("key {key}: {len} bytes {head:02x?}.. are torn, foreign or not of {rounds:?}")
        })?;
        self.seen.fetch_max(found.word(), Ordering::SeqCst);
        let ends = self.ends.load(Ordering::SeqCst);
        let (round, end_s) = (ends >> 32, ends & 0xFFFF_FFFF);
        if round == found.round && before.asked_s > end_s + CLOCK_ERROR_S {
            let late_s = before.asked_s - end_s;
            return Err(format!("key {key}: got {late_s} s after its time was over"));
        }
        Ok(())
    }
}

/// The round that wrote these bytes, if it is one of those.
fn whose(key: usize, bytes: &[u8], rounds: std::ops::RangeInclusive<u64>) -> Option<Seen> {
    if bytes.len() < PIECE_MIN_BYTES {
        // Such short ones are put for good.
        let round = rounds.rev().find(|&round| value(key, round, true, bytes.len()) == bytes)?;
        return Some(Seen { round, stays: true });
    }
    let (tag, []) = first_piece(bytes)? else { return None };
    let (round, of) = (tag >> (KEY_BITS + 1), tag >> 1 & ((1 << KEY_BITS) - 1));
    let is_one = of == key as u64 && rounds.contains(&round);
    is_one.then_some(Seen { round, stays: tag & 1 == 1 })
}
