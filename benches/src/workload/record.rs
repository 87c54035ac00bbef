//! What stands in a record. Fields of constant length stand one after the other; where lengths
//! differ, each has its length before it (4 bytes, little-endian).

use twox_hash::XxHash3_64;

/// Of a length prefix.
const PREFIX_BYTES: usize = 4;
/// Shortest field with a stamp; shorter ones have the same content always.
pub const STAMPED_BYTES: usize = 16;
const STAMP_BYTES: usize = 8;

/// How fields stand in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// How many; at least one.
    pub fields: usize,
    /// Length of each, if it is the same for all of them.
    pub constant_bytes: Option<usize>,
}

impl Layout {
    /// Adds a field's length to a record, where the layout has one.
    pub fn begin_field(self, record: &mut Vec<u8>, len: usize) {
        if self.constant_bytes.is_none() {
            // Lengths of fields are bounded far below 4 GiB.
            record.extend_from_slice(&(len as u32).to_le_bytes());
        }
    }

    /// Length of a record of fields of these lengths.
    #[must_use]
    pub fn record_bytes(self, field_bytes: usize) -> usize {
        let prefix = if self.constant_bytes.is_none() { PREFIX_BYTES } else { 0 };
        self.fields * (prefix + field_bytes)
    }

    /// The fields of a record; `None` if it is none of this layout.
    #[must_use]
    pub fn split(self, record: &[u8]) -> Option<Vec<&[u8]>> {
        let mut fields = Vec::with_capacity(self.fields);
        let mut rest = record;
        for _ in 0..self.fields {
            let field;
            (field, rest) = match self.constant_bytes {
                Some(len) => rest.split_at_checked(len)?,
                None => take_field(rest)?,
            };
            fields.push(field);
        }
        rest.is_empty().then_some(fields)
    }
}

/// The first field of what has length prefixes, and what is behind it.
fn take_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (prefix, rest) = bytes.split_first_chunk::<PREFIX_BYTES>()?;
    rest.split_at_checked(u32::from_le_bytes(*prefix) as usize)
}

/// Copies a record with length prefixes to `out`, with another field in the place of one. False if
/// it has no such field; `out` is of no use then.
pub fn replace_field(record: &[u8], field: usize, bytes: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut before = record;
    for _ in 0..field {
        let Some((_, rest)) = take_field(before) else { return false };
        before = rest;
    }
    let Some((_, after)) = take_field(before) else { return false };
    out.extend_from_slice(&record[..record.len() - before.len()]);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(after);
    true
}

/// Content that proves itself: it follows from key, number of the field, length and stamp.
pub fn fill(field: &mut [u8], key: &[u8], number: usize, stamp: u64) {
    let stamp = if field.len() < STAMPED_BYTES { 0 } else { stamp };
    let mut words = Words::new(key, number, field.len(), stamp);
    let rest = if field.len() < STAMPED_BYTES {
        field
    } else {
        let (first, rest) = field.split_at_mut(STAMP_BYTES);
        first.copy_from_slice(&stamp.to_le_bytes());
        rest
    };
    for chunk in rest.chunks_mut(8) {
        chunk.copy_from_slice(&words.next()[..chunk.len()]);
    }
}

/// The stamp of a field that `fill` has made for this key and number (0 if it is too short for
/// one); `None` if it was made otherwise, or is torn.
#[must_use]
pub fn stamp(field: &[u8], key: &[u8], number: usize) -> Option<u64> {
    let (stamp, rest) = match field.split_first_chunk::<STAMP_BYTES>() {
        Some((stamp, rest)) if field.len() >= STAMPED_BYTES => (u64::from_le_bytes(*stamp), rest),
        _ => (0, field),
    };
    let mut words = Words::new(key, number, field.len(), stamp);
    let same = rest.chunks(8).all(|chunk| words.next()[..chunk.len()] == *chunk);
    same.then_some(stamp)
}

/// Bytes that follow from what a field is (splitmix64).
struct Words(u64);

impl Words {
    fn new(key: &[u8], number: usize, len: usize, stamp: u64) -> Self {
        let seed = XxHash3_64::oneshot_with_seed(((number as u64) << 32) ^ len as u64, key);
        Self(seed ^ stamp.wrapping_mul(0x9FB2_1C65_1E98_DF25))
    }

    fn next(&mut self) -> [u8; 8] {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_prove_themselves() {
        for len in [1, 7, 15, 16, 17, 100, 1000] {
            let mut field = vec![0; len];
            fill(&mut field, b"key", 3, 77);
            let expected = if len < STAMPED_BYTES { 0 } else { 77 };
            assert_eq!(stamp(&field, b"key", 3), Some(expected));
            // A field of one byte may look like another's.
            if len >= 7 {
                assert_eq!(stamp(&field, b"kez", 3), None);
                assert_eq!(stamp(&field, b"key", 4), None);
                assert_eq!(stamp(&field[1..], b"key", 3), None);
            }
            for place in 0..len {
                field[place] ^= 1;
                assert_eq!(stamp(&field, b"key", 3), None, "byte {place} of {len}");
                field[place] ^= 1;
            }
        }
    }

    #[test]
    fn halves_of_two_writes_are_noticed() {
        let (mut old, mut new) = (vec![0; 100], vec![0; 100]);
        fill(&mut old, b"key", 0, 1);
        fill(&mut new, b"key", 0, 2);
        for cut in 1..93 {
            let torn = [&new[..cut], &old[cut..]].concat();
            assert_eq!(stamp(&torn, b"key", 0), None, "torn at {cut}");
        }
    }

    #[test]
    fn a_field_is_replaced_by_one_of_another_length() {
        let layout = Layout { fields: 3, constant_bytes: None };
        let mut record = vec![];
        for field in [&b"one"[..], b"", b"three"] {
            layout.begin_field(&mut record, field.len());
            record.extend_from_slice(field);
        }
        let mut out = vec![];
        assert!(replace_field(&record, 1, b"second", &mut out));
        assert_eq!(layout.split(&out), Some(vec![&b"one"[..], b"second", b"three"]));
        assert!(replace_field(&record, 2, b"", &mut out));
        assert_eq!(layout.split(&out), Some(vec![&b"one"[..], b"", b""]));
        assert!(!replace_field(&record, 3, b"", &mut out));
        assert!(!replace_field(&record[..5], 1, b"", &mut out));
        assert_eq!(layout.split(&record[..record.len() - 1]), None);
    }

    #[test]
    fn constant_fields_have_no_prefix() {
        let layout = Layout { fields: 2, constant_bytes: Some(2) };
        assert_eq!(layout.split(b"aabb"), Some(vec![&b"aa"[..], b"bb"]));
        assert_eq!((layout.split(b"aab"), layout.split(b"aabbc")), (None, None));
        assert_eq!(layout.record_bytes(2), 4);
    }
}
