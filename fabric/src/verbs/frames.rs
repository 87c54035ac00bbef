//! How messages travel in SENDs: in pieces of at most one receive buffer, told apart by their
//! immediate data; and the messages of the fabric itself.
//!
//! Immediate data: bit 31 says that it is the fabric's own; bits 24 to 30 are how many messages the
//! receiver may have unanswered from now on, 0 = nothing is said of it; the rest is how many bytes
//! of the message are still to come, this piece included.

use std::ops::Range;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::buffer::{Buffer, BufferPool};

const INTERNAL: u32 = 1 << 31;
const REST_BITS: u32 = 24;
const REST: u32 = (1 << REST_BITS) - 1;
/// Most messages that a peer can be told to leave unanswered.
pub(super) const GRANT_MAX: u32 = (INTERNAL - 1) >> REST_BITS;

/// The immediate data of a user's message of which so many bytes are to come, with a grant.
pub(super) fn immediate(rest_bytes: usize, grant: u32) -> u32 {
    rest_bytes as u32 & REST | grant.min(GRANT_MAX) << REST_BITS
}

/// The grant that came with a message; 0 if none did.
pub(super) fn grant(immediate: u32) -> u32 {
    immediate >> REST_BITS & GRANT_MAX
}

/// The immediate data of a [`Note`].
pub(super) const NOTE: u32 = INTERNAL | size_of::<Note>() as u32;

/// A message's pieces: immediate data and place of each.
pub(super) fn pieces(
    len_bytes: usize,
    piece_bytes: usize,
    grant: u32,
) -> impl Iterator<Item = (u32, Range<usize>)> {
    let count = len_bytes.div_ceil(piece_bytes).max(1);
    (0..count).map(move |number| {
        let start = number * piece_bytes;
        let end = len_bytes.min(start + piece_bytes);
        (immediate(len_bytes - start, grant), start..end)
    })
}

/// What a received piece came to.
#[derive(Debug)]
pub(super) enum Arrived {
    /// A user's message is whole.
    Message(Buffer),
    /// More is to come.
    Part,
    /// The fabric's own.
    Note(Note),
}

/// A peer does not keep the rules.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's messages are malformed: {0}; versions may be too far apart")]
pub(super) struct Malformed(pub(super) &'static str);

/// Puts the pieces of one peer together. Holds at most one message.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    partial: Option<Buffer>,
    /// Of `partial`, already there.
    filled_bytes: usize,
}

impl Assembly {
    /// Takes the next piece. A message of one piece is the receive buffer itself.
    ///
    /// # Errors
    /// When the peer's pieces do not fit together, or its message is too long.
    pub(super) fn take(
        &mut self,
        piece: Buffer,
        immediate: Option<u32>,
        max_bytes: usize,
        pool: &BufferPool,
    ) -> Result<Arrived, Malformed> {
        let immediate = immediate.ok_or(Malformed("no immediate data"))?;
        let rest_bytes = (immediate & REST) as usize;
        if immediate & INTERNAL != 0 {
            let note = Note::read_from_bytes(&piece).ok().filter(|_| rest_bytes == piece.len());
            return note.map(Arrived::Note).ok_or(Malformed("not a note of this version"));
        }
        if piece.len() > rest_bytes {
            return Err(Malformed("a piece is longer than its message"));
        }
        let Some(partial) = &mut self.partial else {
            if piece.len() == rest_bytes {
                return Ok(Arrived::Message(piece));
            }
            if rest_bytes > max_bytes {
                return Err(Malformed("a message is too long"));
            }
            if piece.is_empty() {
                return Err(Malformed("an empty piece"));
            }
            let mut partial = pool.get(rest_bytes);
            partial[..piece.len()].copy_from_slice(&piece);
            self.filled_bytes = piece.len();
            self.partial = Some(partial);
            return Ok(Arrived::Part);
        };
        if partial.len() - self.filled_bytes != rest_bytes || piece.is_empty() {
            return Err(Malformed("a piece does not fit its message"));
        }
        let end = self.filled_bytes + piece.len();
        partial[self.filled_bytes..end].copy_from_slice(&piece);
        self.filled_bytes = end;
        match self.partial.take_if(|partial| partial.len() == end) {
            Some(whole) => Ok(Arrived::Message(whole)),
            None => Ok(Arrived::Part),
        }
    }
}

/// A message of the fabric itself, about one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Note {
    /// One of [`ASK`], [`READ_ONLY`], [`READ_WRITE`], [`NOT_OFFERED`].
    pub(super) kind: U32,
    pub(super) region: U32,
    pub(super) addr: U64,
    pub(super) len_bytes: U64,
    pub(super) rkey: U32,
    pub(super) zero: U32,
}

/// Where is that region?
pub(super) const ASK: u32 = 1;
/// There it is, to be READ.
pub(super) const READ_ONLY: u32 = 2;
/// There it is, for everything.
pub(super) const READ_WRITE: u32 = 3;
/// It is not for you.
pub(super) const NOT_OFFERED: u32 = 4;

impl Note {
    /// One that says nothing but its kind.
    pub(super) fn short(kind: u32, region: u32) -> Self {
        let (addr, len_bytes, rkey, zero) = (U64::ZERO, U64::ZERO, U32::ZERO, U32::ZERO);
        Self { kind: U32::new(kind), region: U32::new(region), addr, len_bytes, rkey, zero }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 64;
    const MAX: usize = 1000;

    fn take(assembly: &mut Assembly, bytes: &[u8], imm: u32) -> Result<Arrived, Malformed> {
        let pool = BufferPool::new();
        assembly.take(pool.copy_of(bytes), Some(imm), MAX, &pool)
    }

    #[test]
    fn pieces_come_together_again() {
        let mut assembly = Assembly::default();
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, MAX] {
            let message: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut whole = None;
            for (imm, range) in pieces(len, PIECE, (len % 128) as u32) {
                assert_eq!(grant(imm), (len % 128) as u32);
                assert!(whole.is_none(), "{len}: a piece too many");
                match take(&mut assembly, &message[range], imm).unwrap() {
                    Arrived::Message(got) => whole = Some(got),
                    Arrived::Part => {}
                    Arrived::Note(note) => panic!("{note:?}"),
                }
            }
            assert_eq!(&whole.expect("whole")[..], message, "{len}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let bad = [
            vec![(10, immediate(9, 0))],
            vec![(10, immediate(MAX + 1, 0))],
            vec![(0, immediate(5, 0))],
            vec![(10, immediate(20, 0)), (11, immediate(10, 0))],
            vec![(10, immediate(20, 0)), (10, immediate(11, 0))],
            vec![(10, immediate(20, 0)), (0, immediate(10, 0))],
            vec![(10, NOTE)],
            vec![(size_of::<Note>(), NOTE + 1)],
        ];
        for pieces in bad {
            let mut assembly = Assembly::default();
            let last = pieces.iter().map(|(len, imm)| take(&mut assembly, &vec![7; *len], *imm));
            let last = last.last().unwrap();
            assert!(last.is_err(), "{pieces:?}: {last:?}");
        }
        let pool = BufferPool::new();
        let none = Assembly::default().take(pool.copy_of(b"x"), None, MAX, &pool);
        assert!(none.is_err());
    }

    #[test]
    fn a_note_between_two_pieces_disturbs_nothing() {
        let mut assembly = Assembly::default();
        assert!(matches!(take(&mut assembly, b"ab", immediate(4, 0)), Ok(Arrived::Part)));
        let note = Note::short(ASK, 7);
        let arrived = take(&mut assembly, note.as_bytes(), NOTE).unwrap();
        assert!(matches!(arrived, Arrived::Note(got) if got == note));
        let arrived = take(&mut assembly, b"cd", immediate(2, 0)).unwrap();
        assert!(matches!(arrived, Arrived::Message(got) if got[..] == *b"abcd"));
    }
}
