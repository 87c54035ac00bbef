//! Slots: 8 bytes in the index that hint where a key's entry is.

use super::addr::{ADDR_BITS, LogAddr};

/// Bits of the size class, above the address.
pub const CLASS_SHIFT: u32 = ADDR_BITS;
/// Bits of the fingerprint, above the size class.
pub const FINGERPRINT_SHIFT: u32 = ADDR_BITS + 8;

const _: () = assert!(FINGERPRINT_SHIFT + 14 == 64);

/// | bits | meaning |
/// |---|---|
/// | 63..50 | fingerprint |
/// | 49..42 | size class: bytes to READ |
/// | 41..0 | log address; 0 = the slot is empty |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot(pub u64);

impl Slot {
    /// No entry.
    pub const EMPTY: Self = Self(0);

    /// A slot that points.
    #[inline]
    #[must_use]
    pub fn new(fingerprint: u16, class: u8, addr: LogAddr) -> Self {
        let fingerprint = u64::from(fingerprint & 0x3FFF) << FINGERPRINT_SHIFT;
        Self(fingerprint | u64::from(class) << CLASS_SHIFT | addr.get())
    }

    /// Whether it points nowhere.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.addr().is_none()
    }

    /// 14 bits of the key's hash.
    #[inline]
    #[must_use]
    pub fn fingerprint(self) -> u16 {
        (self.0 >> FINGERPRINT_SHIFT) as u16
    }

    /// Size class of the entry.
    #[inline]
    #[must_use]
    pub fn class(self) -> u8 {
        (self.0 >> CLASS_SHIFT) as u8
    }

    /// Where the entry is, if anywhere.
    #[inline]
    #[must_use]
    pub fn addr(self) -> Option<LogAddr> {
        LogAddr::from_bits(self.0)
    }
}
