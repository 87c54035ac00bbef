//! Entries: header, key, value. What changes in place while an entry is live changes its checksum
//! or append number too, and the state word is pending meanwhile.

use super::addr::{LogAddr, UNIT_BYTES};
use super::size_class;
use super::state::State;
use crate::checksum::ChecksumKey;
use crate::limits::{KEY_MAX_BYTES, LARGE_VALUE_BYTES};

/// Where the state word is.
pub const STATE_OFFSET: usize = 0;
/// Where the version is.
pub const VERSION_OFFSET: usize = STATE_OFFSET + 8;
/// Where the value's length is.
pub const VALUE_LEN_OFFSET: usize = VERSION_OFFSET + 8;
/// Where the key's length is.
pub const KEY_LEN_OFFSET: usize = VALUE_LEN_OFFSET + 4;
/// Where the flags are.
pub const FLAGS_OFFSET: usize = KEY_LEN_OFFSET + 2;
/// Where the expiry is.
pub const EXPIRY_OFFSET: usize = FLAGS_OFFSET + 2;
/// Where the user's flags are.
pub const USER_FLAGS_OFFSET: usize = EXPIRY_OFFSET + 4;
/// Bytes of the header of an entry that is not large.
pub const HEADER_BYTES: usize = USER_FLAGS_OFFSET + 4;
/// Where the append number of a large entry is.
pub const APPEND_NUMBER_OFFSET: usize = HEADER_BYTES;
/// Bytes of the header of a large entry.
pub const LARGE_HEADER_BYTES: usize = APPEND_NUMBER_OFFSET + 8;
/// The checksum covers from here.
pub const COVERED_FROM: usize = VERSION_OFFSET;

const _: () = assert!(HEADER_BYTES == 32 && LARGE_HEADER_BYTES == 40);

/// Entry flag: the header has an append number and the checksum does not cover the value.
pub const FLAG_LARGE: u16 = 1 << 0;
/// Entry flag: the value is the address of a counter cell.
pub const FLAG_COUNTER: u16 = 1 << 1;

/// What an entry says about itself, its state word excepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryHeader {
    /// Token of compare-and-set; never the same twice for a key.
    pub version: u64,
    /// Length of the value in bytes.
    pub value_len: u32,
    /// Length of the key in bytes.
    pub key_len: u16,
    /// [`FLAG_LARGE`], [`FLAG_COUNTER`].
    pub flags: u16,
    /// Seconds on the server's clock (Unix time), 0 = never.
    pub expiry_s: u32,
    /// The user's own.
    pub user_flags: u32,
}

impl EntryHeader {
    /// From words 1 to 3 of the entry.
    #[inline]
    #[must_use]
    pub fn from_words(words: [u64; 3]) -> Self {
        Self {
            version: words[0],
            value_len: words[1] as u32,
            key_len: (words[1] >> 32) as u16,
            flags: (words[1] >> 48) as u16,
            expiry_s: words[2] as u32,
            user_flags: (words[2] >> 32) as u32,
        }
    }

    /// Words 1 to 3 of the entry.
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; 3] {
        let lens =
            u64::from(self.value_len) | u64::from(self.key_len) << 32 | u64::from(self.flags) << 48;
        [self.version, lens, u64::from(self.expiry_s) | u64::from(self.user_flags) << 32]
    }

    /// Whether it is read in three steps.
    #[inline]
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.flags & FLAG_LARGE != 0
    }

    /// Whether its value is the address of a cell: see [`super::cell`].
    #[inline]
    #[must_use]
    pub fn is_counter(&self) -> bool {
        self.flags & FLAG_COUNTER != 0
    }

    /// Where the key begins.
    #[inline]
    #[must_use]
    pub fn key_offset(&self) -> usize {
        if self.is_large() { LARGE_HEADER_BYTES } else { HEADER_BYTES }
    }

    /// Where the value begins.
    #[inline]
    #[must_use]
    pub fn value_offset(&self) -> usize {
        self.key_offset() + usize::from(self.key_len)
    }

    /// Bytes up to the end of the value.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.value_offset() + self.value_len as usize
    }

    /// Where the covered bytes end: with the padding, or with the key of a large entry.
    #[inline]
    #[must_use]
    pub fn covered_to(&self) -> usize {
        if self.is_large() { self.value_offset() } else { self.padded_bytes() }
    }

    /// Bytes that the entry takes in the log.
    #[inline]
    #[must_use]
    pub fn padded_bytes(&self) -> usize {
        self.len_bytes().next_multiple_of(UNIT_BYTES)
    }
}

/// Whether a value of this length makes a large entry.
#[inline]
#[must_use]
pub const fn is_large(value_len: usize) -> bool {
    value_len > LARGE_VALUE_BYTES
}

/// Bytes that an entry with this key and value takes in the log.
#[must_use]
pub const fn padded_bytes(key_len: usize, value_len: usize) -> usize {
    let header = if is_large(value_len) { LARGE_HEADER_BYTES } else { HEADER_BYTES };
    (header + key_len + value_len).next_multiple_of(UNIT_BYTES)
}

/// Bytes to READ first at an entry of this size class: the whole of it, or header and key of a
/// large one, whose class says only how much there is in all. The longest entry with this key
/// that is not large decides, by its class: above 8 KiB a class may be an eighth longer than
/// the entry.
#[inline]
#[must_use]
pub fn first_read_bytes(class_bytes: usize, key_len: usize) -> usize {
    // The common case without arithmetic: no entry of these classes is large.
    if class_bytes <= LARGE_VALUE_BYTES {
        return class_bytes;
    }
    let longest_small = padded_bytes(key_len, LARGE_VALUE_BYTES);
    if class_bytes <= size_class::bytes(size_class::of(longest_small)) {
        return class_bytes;
    }
    (LARGE_HEADER_BYTES + key_len.min(KEY_MAX_BYTES)).next_multiple_of(8)
}

/// What READ bytes say about the entry at `addr`, for a reader that looks for `key`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the key's entry, whole and current when its state word was read. The value is in the
    /// same bytes at [`EntryHeader::value_offset`].
    Hit(EntryHeader),
    /// It is the key's entry and large: READ the value, then the state word again, which must
    /// still be `state`.
    Large {
        /// The header.
        header: EntryHeader,
        /// The state word that must not have changed.
        state: u64,
    },
    /// Replaced by the entry at this address.
    Forwarded(u8, LogAddr),
    /// A valid entry of another key: fingerprints collide.
    OtherKey,
    /// Valid once and gone.
    Dead,
    /// Pending, torn, reused or never an entry: look again.
    Unproven,
}

/// Decides by the state word, the checksum and the key (design.md 4, step 3). `bytes` are what
/// was READ at `addr`, possibly longer than the entry, possibly torn, possibly anything.
#[inline(always)]
#[must_use]
pub fn judge(sums: &ChecksumKey, addr: LogAddr, bytes: &[u8], key: &[u8]) -> Verdict {
    use crate::rules::{Rule, holds};
    let Some((words, _)) = bytes.as_chunks::<8>().0.split_first_chunk::<4>() else {
        return Verdict::Unproven;
    };
    let [state, header @ ..] = words.map(u64::from_le_bytes);
    let checksum = match State::decode(state) {
        State::Committed(checksum) => checksum,
        State::Forwarded(class, Some(next)) => return Verdict::Forwarded(class, next),
        State::Dead(_) => return Verdict::Dead,
        State::Forwarded(_, None) | State::Pending(_) => return Verdict::Unproven,
    };
    let header = EntryHeader::from_words(header);
    let Some(entry) = bytes.get(..header.covered_to()) else {
        return Verdict::Unproven;
    };
    if holds(Rule::Checksum) && sums.checksum(addr, entry) != checksum {
        return Verdict::Unproven;
    }
    // Inside `entry`, so inside `bytes`.
    if bytes.get(header.key_offset()..header.value_offset()) != Some(key) {
        return Verdict::OtherKey;
    }
    if header.is_large() { Verdict::Large { header, state } } else { Verdict::Hit(header) }
}

/// As [`judge`], only for the common case, in few instructions: the header if the entry is a hit
/// without flags (not large, no counter); `None` leaves it to [`judge`].
#[inline(always)]
#[must_use]
pub fn judge_plain(
    sums: &ChecksumKey,
    addr: LogAddr,
    bytes: &[u8],
    key: &[u8],
) -> Option<EntryHeader> {
    use crate::rules::{Rule, holds};
    let (blocks, _) = bytes.as_chunks::<16>();
    let (header_blocks, _) = blocks.split_first_chunk::<2>()?;
    let words = header_blocks.as_flattened().as_chunks().0;
    let [state, version, lens, times] =
        [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes);
    // Flags above the key's length: both are compared at once.
    if lens >> 32 != key.len() as u64 || key.len() > KEY_MAX_BYTES {
        return None;
    }
    let header = EntryHeader::from_words([version, lens, times]);
    let len_bytes = HEADER_BYTES + key.len() + header.value_len as usize;
    // `div_ceil`, in fewer instructions: a length is far from the largest number.
    let blocks = blocks.get(..(len_bytes + UNIT_BYTES - 1) >> UNIT_BYTES.ilog2())?;
    if holds(Rule::Checksum) {
        if state != State::committed(sums.of_blocks(addr, blocks)) {
            return None;
        }
    } else if !matches!(State::decode(state), State::Committed(_)) {
        return None;
    }
    is_key(&blocks[2..], key).then_some(header)
}

const _: () = assert!(UNIT_BYTES == 16 && HEADER_BYTES == 32);

/// Whether the blocks begin with the key: one of a block's length without a call.
#[inline(always)]
fn is_key(blocks: &[[u8; 16]], key: &[u8]) -> bool {
    match (blocks.first(), <&[u8; 16]>::try_from(key)) {
        // By words: as they were stored.
        (Some(block), Ok(key)) => {
            let [a, b] = [block, key].map(|bytes| [0, 1].map(|i| bytes.as_chunks::<8>().0[i]));
            a.map(u64::from_le_bytes) == b.map(u64::from_le_bytes)
        }
        _ => blocks.as_flattened().starts_with(key),
    }
}

/// The bytes of an entry up to its value, state word left 0: header (with `append_number` if
/// large), then key.
#[must_use]
pub fn prefix_bytes(header: &EntryHeader, append_number: u64, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(header.value_offset());
    bytes.extend_from_slice(&[0; 8]);
    for word in header.to_words() {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    if header.is_large() {
        bytes.extend_from_slice(&append_number.to_le_bytes());
    }
    bytes.extend_from_slice(key);
    bytes
}
