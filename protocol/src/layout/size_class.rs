//! Size classes: how many bytes to READ at an address. 8 bits: 64-byte steps up to 8 KiB, then
//! eight steps to each doubling.

use crate::limits::REGION_BYTES;

const STEP_BYTES: usize = 64;
const LINEAR: usize = 128;
const LINEAR_BYTES: usize = LINEAR * STEP_BYTES;
/// Number of the largest class that is used: a whole region.
pub const LAST: u8 = 231;

const _: () = assert!(bytes(LAST) == REGION_BYTES);
const _: () = assert!(bytes(127) == LINEAR_BYTES && bytes(0) == STEP_BYTES);

/// Bytes to READ for a class; classes that are never used count as the last.
#[inline]
#[must_use]
pub const fn bytes(class: u8) -> usize {
    let class = class as usize;
    if class < LINEAR {
        return (class + 1) * STEP_BYTES;
    }
    let class = if class > LAST as usize { LAST as usize } else { class } - LINEAR;
    let (doubling, eighth) = (class / 8, class % 8);
    (LINEAR_BYTES << doubling) / 8 * (9 + eighth)
}

/// The smallest class that holds `len_bytes`, or the last one.
#[inline]
#[must_use]
pub const fn of(len_bytes: usize) -> u8 {
    if len_bytes <= LINEAR_BYTES {
        return (len_bytes.saturating_sub(1) / STEP_BYTES) as u8;
    }
    if len_bytes >= REGION_BYTES {
        return LAST;
    }
    let doubling = ((len_bytes - 1) / LINEAR_BYTES).ilog2() as usize;
    let eighth_bytes = (LINEAR_BYTES << doubling) / 8;
    let eighth = (len_bytes - 1) / eighth_bytes - 8;
    (LINEAR + doubling * 8 + eighth) as u8
}
