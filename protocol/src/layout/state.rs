//! The state word: the entry's first 8 bytes, the one place where an update takes effect.

use super::addr::LogAddr;
use super::slot::CLASS_SHIFT;
use crate::checksum::CHECKSUM_MASK;

/// Bits 63..62 say which of the four it is.
pub const KIND_SHIFT: u32 = 62;

/// Why an entry is dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Death {
    /// A client deleted it.
    Deleted = 1,
    /// Its time was over.
    Expired = 2,
    /// Memory was needed.
    Evicted = 3,
    /// It was given up before it was committed, or its table was dropped.
    Relocated = 4,
}

/// A decoded state word.
///
/// | kind | bits 63..62 | bits 61..0 |
/// |---|---|---|
/// | pending | 00 | the checksum, or 0: never written |
/// | committed | 01 | the checksum |
/// | forwarded | 10 | 49..42 size class and 41..0 address of the entry that replaced it |
/// | dead | 11 | reason |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Not an answer to anybody.
    Pending(u64),
    /// The entry is current if the checksum is right.
    Committed(u64),
    /// Replaced; `None` if the address is not one.
    Forwarded(u8, Option<LogAddr>),
    /// Gone.
    Dead(u64),
}

impl State {
    /// What a word says.
    #[inline]
    #[must_use]
    pub fn decode(word: u64) -> Self {
        let low = word & CHECKSUM_MASK;
        match word >> KIND_SHIFT {
            0 => Self::Pending(low),
            1 => Self::Committed(low),
            2 => Self::Forwarded((low >> CLASS_SHIFT) as u8, LogAddr::from_bits(low)),
            _ => Self::Dead(low),
        }
    }

    /// The word of a pending entry.
    #[inline]
    #[must_use]
    pub fn pending(checksum: u64) -> u64 {
        checksum & CHECKSUM_MASK
    }

    /// The word of a committed entry.
    #[inline]
    #[must_use]
    pub fn committed(checksum: u64) -> u64 {
        1 << KIND_SHIFT | checksum & CHECKSUM_MASK
    }

    /// The word of an entry that another one replaced.
    #[inline]
    #[must_use]
    pub fn forwarded(class: u8, addr: LogAddr) -> u64 {
        2 << KIND_SHIFT | u64::from(class) << CLASS_SHIFT | addr.get()
    }

    /// The word of a dead entry.
    #[inline]
    #[must_use]
    pub fn dead(reason: Death) -> u64 {
        3 << KIND_SHIFT | reason as u64
    }
}
