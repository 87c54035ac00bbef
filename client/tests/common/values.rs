//! Values that describe themselves: every byte follows from a number that is used once, so that a
//! reader can tell a whole value from a torn, foreign or reused one without knowing what was
//! written.
//!
//! A value is one or more pieces (appends add some): 8 bytes number, 4 bytes length of the whole
//! piece, 4 bytes check over both, then bytes from the number. A stamp may be written over the
//! first of those of a value.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

use crate::linearize::Content;

/// Shortest piece.
pub const PIECE_MIN_BYTES: usize = 16;
/// Set in the content of bytes that nobody ever wrote.
const NEVER_WRITTEN: u64 = 1 << 63;

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (x ^ x >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ x >> 29
}

fn check_of(piece: u64, len_bytes: u32) -> u32 {
    mix(piece ^ u64::from(len_bytes) << 40 ^ 0x0061_7365) as u32
}

/// The bytes of a piece: at least [`PIECE_MIN_BYTES`].
pub fn piece(number: u64, len_bytes: usize) -> Vec<u8> {
    let len_bytes = len_bytes.max(PIECE_MIN_BYTES);
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(len_bytes as u32).to_le_bytes());
    bytes.extend_from_slice(&check_of(number, len_bytes as u32).to_le_bytes());
    let mut word = mix(number);
    while bytes.len() < len_bytes {
        word = mix(word.wrapping_add(0x9E37_79B9_7F4A_7C15));
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Where a stamp is written.
pub const STAMP_OFFSET: usize = PIECE_MIN_BYTES;
/// Shortest piece that a stamp can be written into.
pub const STAMPABLE_MIN_BYTES: usize = STAMP_OFFSET + STAMP_BYTES;
const STAMP_BYTES: usize = 16;

/// The bytes of a stamp, for [`STAMP_OFFSET`].
pub fn stamp(number: u64) -> Vec<u8> {
    [number.to_le_bytes(), mix(!number).to_le_bytes()].concat()
}

/// The stamp of a value, and the value as it was before it.
fn unstamped(bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    let under = STAMP_OFFSET..STAMPABLE_MIN_BYTES;
    let found = bytes.get(under.clone())?;
    let stamped = u64::from_le_bytes(*found.first_chunk()?);
    if found != stamp(stamped) {
        return None;
    }
    let mut before = bytes.to_vec();
    before[under.clone()].copy_from_slice(&piece(number, STAMPABLE_MIN_BYTES)[under]);
    Some((stamped, before))
}

/// The number of the piece that `bytes` begin with, and the bytes behind it, if it is whole.
pub fn first_piece(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (check, _) = rest.split_first_chunk()?;
    let (number, len) = (u64::from_le_bytes(*number), u32::from_le_bytes(*len));
    if u32::from_le_bytes(*check) != check_of(number, len) || (len as usize) < PIECE_MIN_BYTES {
        return None;
    }
    let (whole, rest) = bytes.split_at_checked(len as usize)?;
    let mut word = mix(number);
    for chunk in whole[PIECE_MIN_BYTES..].chunks(8) {
        word = mix(word.wrapping_add(0x9E37_79B9_7F4A_7C15));
        if chunk != &word.to_le_bytes()[..chunk.len()] {
            return None;
        }
    }
    Some((number, rest))
}

/// What the checker calls these bytes; for bytes that are neither pieces nor a number, something
/// that no write has.
pub fn content_of(bytes: &[u8]) -> Content {
    let stamped = || {
        let (stamp, before) = unstamped(bytes)?;
        Some(parse(&before)?.stamped(stamp))
    };
    parse(bytes).or_else(stamped).unwrap_or_else(|| {
        let hash = bytes.iter().fold(bytes.len() as u64, |hash, &byte| mix(hash ^ u64::from(byte)));
        Content::Bytes(hash | NEVER_WRITTEN)
    })
}

/// Whether these are bytes that somebody wrote as a whole, as far as they themselves say.
pub fn is_whole(bytes: &[u8]) -> bool {
    parse(bytes).is_some()
}

fn parse(bytes: &[u8]) -> Option<Content> {
    if let Some((number, rest)) = first_piece(bytes) {
        return behind(Content::of(number), rest);
    }
    // A number, perhaps with pieces appended to it.
    (1..=bytes.len().min(20)).rev().find_map(|len| {
        let number = std::str::from_utf8(&bytes[..len]).ok()?.parse().ok()?;
        behind(Content::Number(number), &bytes[len..])
    })
}

fn behind(mut content: Content, mut rest: &[u8]) -> Option<Content> {
    while !rest.is_empty() {
        let (number, after) = first_piece(rest)?;
        content = content.appended(number);
        rest = after;
    }
    Some(content)
}
