//! Message rings in a session's memory: fixed slots, one producer side, one consumer side.
//!
//! | bytes | what | written by |
//! |---|---|---|
//! | 0 | client's futex word | both |
//! | 64 | client sleeps | client |
//! | 128 | requests consumed | server |
//! | 192 | answers consumed | client |
//! | 256 | not 0: the session is over | server |
//! | 4096 | request ring | client |
//! | after it | response ring | server |
//!
//! A slot is a header word, sequence number in the high and length in the low half, then the
//! message. Sequence numbers count messages from 1, so a slot of the lap before cannot pass for a
//! new one. The memory is made for one session and used for no other.

use super::Limits;
use crate::buffer::{Buffer, BufferPool};
use crate::mem::{AccessError, Memory};

pub(super) const CLIENT_FUTEX: usize = 0;
pub(super) const CLIENT_SLEEPS: usize = 64;
const REQUESTS_CONSUMED: usize = 128;
const RESPONSES_CONSUMED: usize = 192;
pub(super) const FENCED: usize = 256;
const RINGS: usize = 4096;
const HEADER_BYTES: usize = 8;

/// Sizes of a session's rings. Comes from the server over the socket, never from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) credits: usize,
    pub(super) max_message_bytes: usize,
}

impl Geometry {
    pub(super) fn of(limits: &Limits) -> Self {
        Self { credits: limits.credits, max_message_bytes: limits.max_message_bytes }
    }

    /// Whether a listener can have said this.
    pub(super) fn is_sane(&self) -> bool {
        (1..=4_096).contains(&self.credits) && (8..=1 << 20).contains(&self.max_message_bytes)
    }

    fn slot_bytes(&self) -> usize {
        (HEADER_BYTES + self.max_message_bytes).next_multiple_of(64)
    }

    pub(super) fn session_bytes(&self) -> usize {
        (RINGS + 2 * self.credits * self.slot_bytes()).next_multiple_of(4096)
    }

    fn requests(self) -> Ring {
        Ring { geometry: self, at: RINGS, consumed_at: REQUESTS_CONSUMED }
    }

    fn responses(self) -> Ring {
        let at = RINGS + self.credits * self.slot_bytes();
        Ring { geometry: self, at, consumed_at: RESPONSES_CONSUMED }
    }

    /// The server's ends: it produces answers and consumes requests.
    pub(super) fn server_ends(self) -> (Producer, Consumer) {
        (Producer::new(self.responses()), Consumer::new(self.requests()))
    }

    /// The client's ends.
    pub(super) fn client_ends(self) -> (Producer, Consumer) {
        (Producer::new(self.requests()), Consumer::new(self.responses()))
    }
}

#[derive(Clone, Copy)]
struct Ring {
    geometry: Geometry,
    at: usize,
    consumed_at: usize,
}

impl Ring {
    fn slot(&self, index: u64) -> usize {
        let slot = (index % self.geometry.credits as u64) as usize;
        self.at + slot * self.geometry.slot_bytes()
    }
}

/// Sequence half of a header word.
fn sequence(index: u64) -> u64 {
    u64::from((index as u32).wrapping_add(1)) << 32
}

/// What is wrong with a ring; its session must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RingError {
    #[error("the peer wrote a message header that cannot be ({0:#x})")]
    Header(u64),
    #[error("the peer says it consumed {0} messages, which cannot be")]
    Consumed(u64),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// The sending end.
pub(super) struct Producer {
    ring: Ring,
    next: u64,
    consumed: u64,
}

impl Producer {
    fn new(ring: Ring) -> Self {
        Self { ring, next: 0, consumed: 0 }
    }

    /// Puts a message (no longer than the ring's messages) into the next slot; false when the
    /// ring is full.
    pub(super) fn push(&mut self, memory: &Memory, message: &Buffer) -> Result<bool, RingError> {
        let credits = self.ring.geometry.credits as u64;
        if self.next - self.consumed >= credits {
            let consumed = memory.load(self.ring.consumed_at)?;
            if consumed > self.next || consumed < self.consumed {
                return Err(RingError::Consumed(consumed));
            }
            self.consumed = consumed;
            if self.next - self.consumed >= credits {
                return Ok(false);
            }
        }
        let slot = self.ring.slot(self.next);
        self.write(memory, slot + HEADER_BYTES, message)?;
        memory.store(slot, sequence(self.next) | message.len() as u64)?;
        self.next += 1;
        Ok(true)
    }

    /// Copies the message, without what the buffer holds beyond its length.
    fn write(&self, memory: &Memory, at: usize, message: &Buffer) -> Result<(), AccessError> {
        let whole = message.len() / 8;
        memory.write_words(at, &message.words()[..whole])?;
        if let Some(&last) = message.words().get(whole) {
            let mask = (1u64 << (message.len() % 8 * 8)) - 1;
            memory.write_words(at + whole * 8, &[last & mask])?;
        }
        Ok(())
    }
}

/// The receiving end.
pub(super) struct Consumer {
    ring: Ring,
    next: u64,
}

impl Consumer {
    fn new(ring: Ring) -> Self {
        Self { ring, next: 0 }
    }

    /// The length of the next message, if there is one.
    fn peek(&self, memory: &Memory) -> Result<Option<usize>, RingError> {
        let header = memory.load(self.ring.slot(self.next))?;
        let len_bytes = (header & u64::from(u32::MAX)) as usize;
        let found = header & !u64::from(u32::MAX);
        if found == sequence(self.next) && len_bytes <= self.ring.geometry.max_message_bytes {
            return Ok(Some(len_bytes));
        }
        let credits = self.ring.geometry.credits as u64;
        let before = if self.next < credits { 0 } else { sequence(self.next - credits) };
        if found == before && found != sequence(self.next) {
            return Ok(None);
        }
        Err(RingError::Header(header))
    }

    /// Whether [`Self::pop`] would do more than say that there is nothing.
    pub(super) fn has_input(&self, memory: &Memory) -> bool {
        !matches!(self.peek(memory), Ok(None))
    }

    /// Takes the next message out. [`Self::publish`] gives its slot back.
    pub(super) fn pop(
        &mut self,
        memory: &Memory,
        pool: &BufferPool,
    ) -> Result<Option<Buffer>, RingError> {
        let Some(len_bytes) = self.peek(memory)? else { return Ok(None) };
        let mut message = pool.get(len_bytes);
        memory.read_words(self.ring.slot(self.next) + HEADER_BYTES, message.words_mut())?;
        self.next += 1;
        Ok(Some(message))
    }

    /// Lets the producer reuse the slots of what was popped.
    pub(super) fn publish(&self, memory: &Memory) -> Result<(), RingError> {
        Ok(memory.store(self.ring.consumed_at, self.next)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Rights;

    fn ring(credits: usize, max: usize) -> (Memory, Producer, Consumer, BufferPool) {
        let geometry = Geometry { credits, max_message_bytes: max };
        let memory = Memory::shared("ring", geometry.session_bytes(), Rights::ReadWrite);
        let (producer, _) = geometry.client_ends();
        let (_, consumer) = geometry.server_ends();
        (memory.expect("memory"), producer, consumer, BufferPool::new())
    }

    #[test]
    fn every_length_goes_round_many_laps() {
        let (memory, mut tx, mut rx, pool) = ring(3, 100);
        for round in 0..1000usize {
            let len = round % 101;
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + round) as u8).collect();
            assert!(tx.push(&memory, &pool.copy_of(&bytes)).expect("sound"));
            let got = rx.pop(&memory, &pool).expect("sound").expect("there");
            assert_eq!(&got[..], &bytes[..], "round {round}");
            rx.publish(&memory).expect("sound");
            assert!(rx.pop(&memory, &pool).expect("sound").is_none());
        }
    }

    #[test]
    fn full_until_published() {
        let (memory, mut tx, mut rx, pool) = ring(2, 8);
        let message = pool.copy_of(b"x");
        assert!(tx.push(&memory, &message).expect("sound"));
        assert!(tx.push(&memory, &message).expect("sound"));
        assert!(!tx.push(&memory, &message).expect("sound"));
        assert!(rx.pop(&memory, &pool).expect("sound").is_some());
        assert!(!tx.push(&memory, &message).expect("sound"));
        rx.publish(&memory).expect("sound");
        assert!(tx.push(&memory, &message).expect("sound"));
    }

    #[test]
    fn a_message_carries_nothing_of_its_buffers_past() {
        let (memory, mut tx, _, pool) = ring(2, 64);
        let mut message = pool.copy_of(&[0xAA; 64]);
        message.set_len(9);
        assert!(tx.push(&memory, &message).expect("sound"));
        assert_eq!(memory.load(RINGS + 16).expect("inside"), 0xAA);
        assert_eq!(memory.load(RINGS + 24).expect("inside"), 0);
    }

    #[test]
    fn impossible_headers_and_indices_are_errors() {
        let (memory, mut tx, mut rx, pool) = ring(2, 64);
        let bad = [5, 65 | sequence(0), u64::MAX, sequence(1) | 8, sequence(0) | 0xffff_ffff];
        for header in bad.into_iter().filter(|&h| h != 5) {
            memory.store(RINGS, header).expect("inside");
            assert_eq!(rx.pop(&memory, &pool).unwrap_err(), RingError::Header(header));
        }
        // A length without a sequence number is an unwritten slot still.
        memory.store(RINGS, 5).expect("inside");
        assert!(rx.pop(&memory, &pool).expect("sound").is_none());
        let message = pool.copy_of(b"x");
        assert!(tx.push(&memory, &message).expect("sound"));
        assert!(tx.push(&memory, &message).expect("sound"));
        memory.store(REQUESTS_CONSUMED, 3).expect("inside");
        assert_eq!(tx.push(&memory, &message).unwrap_err(), RingError::Consumed(3));
    }
}
