//! Bytes become messages: memory follows what has arrived, never what was announced.
//!
//! Each endpoint may keep the beginning of a message. To keep more it reserves the message's whole
//! length in what all endpoints share: so those that have begun can end, and others wait.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::buffer::{Buffer, BufferPool};

pub(super) const HEADER_BYTES: usize = 4;
/// Up to so many bytes of an unfinished message, and what one read brings, are kept without asking.
pub(super) const FREE_BYTES: usize = 64 << 10;
/// Who has reserved room that others wait for has to send this in each round of looking.
const ROUND_MIN_BYTES: usize = 256 << 10;
/// What an idle endpoint may keep for its next unfinished message.
const KEPT_BYTES: usize = 1024;
const SMALLEST_BYTES: usize = 64;

/// The stream cannot be understood any more; it is closed with this text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadStream {
    #[error("the peer announced a message of {len_bytes} bytes; at most {max_bytes} are allowed")]
    TooLong { len_bytes: usize, max_bytes: usize },
}

/// Memory that the unfinished messages of all endpoints share.
#[derive(Debug)]
pub(super) struct Budget {
    used_bytes: AtomicUsize,
    limit_bytes: usize,
}

impl Budget {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { used_bytes: AtomicUsize::new(0), limit_bytes }
    }

    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn reserve(&self, bytes: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn refund(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The unfinished message of one endpoint, its header included.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    partial: Vec<u8>,
    /// All of its length, or 0.
    reserved_bytes: usize,
    /// How much of it was there in the last round of looking, if it was reserved by then.
    looked_bytes: Option<usize>,
    /// Length of the message that came last.
    last_bytes: usize,
}

impl Assembler {
    /// How long the next message may be, as far as that can be foreseen, if it begins with the next
    /// byte.
    pub(super) fn foreseen_bytes(&self) -> Option<usize> {
        self.partial.is_empty().then_some(self.last_bytes)
    }

    /// Takes one message from the front of `bytes`, together with what came earlier. `None`: all
    /// of `bytes` was taken and no message is whole yet.
    pub(super) fn next(
        &mut self,
        bytes: &mut &[u8],
        max_bytes: usize,
        budget: &Budget,
        pool: &BufferPool,
    ) -> Result<Option<Buffer>, BadStream> {
        if self.partial.is_empty()
            && let Some(len) = frame_len(bytes, max_bytes)?
            && let Some((frame, rest)) = bytes.split_at_checked(len)
        {
            *bytes = rest;
            self.last_bytes = len - HEADER_BYTES;
            return Ok(Some(pool.copy_of(&frame[HEADER_BYTES..])));
        }
        loop {
            let frame = frame_len(&self.partial, max_bytes)?;
            if frame == Some(self.partial.len()) {
                let message = pool.copy_of(&self.partial[HEADER_BYTES..]);
                self.last_bytes = message.len();
                self.finished(budget);
                return Ok(Some(message));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let target = frame.unwrap_or(HEADER_BYTES);
            let n = bytes.len().min(target - self.partial.len());
            self.make_room(n, target);
            let (now, rest) = bytes.split_at(n);
            self.partial.extend_from_slice(now);
            *bytes = rest;
        }
    }

    /// Doubles as bytes arrive, up to what the message needs.
    fn make_room(&mut self, n: usize, target: usize) {
        let (needed, there) = (self.partial.len() + n, self.partial.capacity());
        if needed > there {
            let grown = needed.max(2 * there).min(target).max(SMALLEST_BYTES);
            self.partial.reserve_exact(grown - self.partial.len());
        }
    }

    /// Whether more of the unfinished message may be read: `false` if there is no room for it.
    pub(super) fn may_go_on(&mut self, budget: &Budget) -> bool {
        if !self.needs_room() {
            return true;
        }
        let Some(header) = self.partial.first_chunk::<HEADER_BYTES>() else { return true };
        let bytes = HEADER_BYTES + u32::from_le_bytes(*header) as usize;
        let reserved = budget.reserve(bytes);
        self.reserved_bytes = if reserved { bytes } else { 0 };
        reserved
    }

    /// Whether it has to reserve room before more may be read.
    pub(super) fn needs_room(&self) -> bool {
        self.partial.len() > FREE_BYTES && self.reserved_bytes == 0
    }

    /// One round of looking: whether it has reserved room and hardly anything has come since the
    /// last one.
    pub(super) fn is_stalled(&mut self) -> bool {
        if self.reserved_bytes == 0 {
            return false;
        }
        let now_bytes = self.partial.len();
        let before = self.looked_bytes.replace(now_bytes);
        before.is_some_and(|before| now_bytes < before + ROUND_MIN_BYTES)
    }

    fn finished(&mut self, budget: &Budget) {
        self.partial.clear();
        if self.partial.capacity() > KEPT_BYTES {
            self.release(budget);
        }
    }

    /// Gives everything back: the endpoint is dead.
    pub(super) fn release(&mut self, budget: &Budget) {
        self.partial = Vec::new();
        self.looked_bytes = None;
        budget.refund(std::mem::take(&mut self.reserved_bytes));
    }
}

/// Length of the frame at the front, header included, once the header is there.
fn frame_len(bytes: &[u8], max_bytes: usize) -> Result<Option<usize>, BadStream> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let len_bytes = u32::from_le_bytes(*header) as usize;
    if len_bytes > max_bytes {
        return Err(BadStream::TooLong { len_bytes, max_bytes });
    }
    Ok(Some(HEADER_BYTES + len_bytes))
}

/// Appends a frame.
pub(super) fn append(out: &mut Vec<u8>, message: &[u8]) {
    // Posting refuses what does not fit in 32 bits (`Limits::check`).
    out.extend_from_slice(&(message.len() as u32).to_le_bytes());
    out.extend_from_slice(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for message in messages {
            append(&mut out, message);
        }
        out
    }

    #[test]
    fn any_cut_gives_the_same_messages() {
        let messages: Vec<Vec<u8>> =
            [0usize, 1, 3, 4, 5, 64, 65, 3000, 0, 9].map(|n| vec![n as u8; n]).to_vec();
        let bytes = stream(&messages);
        let (budget, pool) = (Budget::new(1 << 16), BufferPool::new());
        for cut in [1, 2, 3, 4, 5, 7, 63, 64, 1000, bytes.len()] {
            let mut assembler = Assembler::default();
            let mut got = Vec::new();
            for mut part in bytes.chunks(cut) {
                while let Some(m) = assembler.next(&mut part, 3000, &budget, &pool).unwrap() {
                    got.push(m.to_vec());
                }
            }
            assert_eq!(got, messages, "cut {cut}");
            assembler.release(&budget);
            assert_eq!(budget.used_bytes(), 0, "cut {cut}");
        }
    }

    #[test]
    fn announced_lengths_take_no_memory() {
        let (budget, pool) = (Budget::new(1 << 30), BufferPool::new());
        let mut assembler = Assembler::default();
        let announced = (1u32 << 29).to_le_bytes();
        assert!(assembler.next(&mut &announced[..], 1 << 29, &budget, &pool).unwrap().is_none());
        assert!(assembler.next(&mut &[1u8; 100][..], 1 << 29, &budget, &pool).unwrap().is_none());
        assert!(assembler.may_go_on(&budget));
        assert_eq!(budget.used_bytes(), 0);
        assert!(assembler.partial.capacity() < 1024, "{}", assembler.partial.capacity());
        for len in [1001u32, 1 << 31, u32::MAX] {
            let error = Assembler::default()
                .next(&mut &len.to_le_bytes()[..], 1000, &budget, &pool)
                .unwrap_err();
            assert_eq!(error, BadStream::TooLong { len_bytes: len as usize, max_bytes: 1000 });
        }
    }

    #[test]
    fn the_budget_bounds_all_endpoints_together() {
        let (budget, pool) = (Budget::new(200_000), BufferPool::new());
        let whole = stream(&[vec![7; 120_000]]);
        let (begin, rest) = whole.split_at(FREE_BYTES + 1);
        let (mut begin, mut same) = (begin, begin);
        let (mut first, mut second) = (Assembler::default(), Assembler::default());
        let mut free = &whole[..FREE_BYTES];
        let mut third = Assembler::default();
        for (assembler, bytes) in
            [(&mut first, &mut begin), (&mut second, &mut same), (&mut third, &mut free)]
        {
            assert!(assembler.next(bytes, 130_000, &budget, &pool).unwrap().is_none());
        }
        assert!(first.may_go_on(&budget) && first.may_go_on(&budget));
        assert_eq!(budget.used_bytes(), whole.len(), "all of it, once");
        assert!(!second.may_go_on(&budget));
        assert!(third.may_go_on(&budget), "short ones ask for nothing");
        assert!(!first.is_stalled() && first.is_stalled() && !second.is_stalled());
        let message = first.next(&mut { rest }, 130_000, &budget, &pool).unwrap();
        assert_eq!(message.map(|message| message.len()), Some(120_000));
        assert!(second.may_go_on(&budget));
        assert!(!first.is_stalled() && !second.is_stalled());
        second.release(&budget);
        third.release(&budget);
        assert_eq!(budget.used_bytes(), 0);
    }
}
