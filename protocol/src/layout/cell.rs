//! Counters: an entry with [`FLAG_COUNTER`](super::entry::FLAG_COUNTER) has as its value the log
//! address of a cell, 8 bytes that never move. Clients add to it by FAA and change it by CAS.
//!
//! A cell's word is a number, two's complement. Whoever deletes the counter, or replaces it by
//! an ordinary value, first adds [`DELETED`]: then the word is no number any more, and an addition
//! that comes later changes nothing that anybody reads. Numbers lie within a quarter of all words
//! around 0, so that later additions do not make one of it again: it would take [`ADD_MAX`]
//! added 2^29 times by clients that do not look at what they are told.

use super::addr::LogAddr;

/// Bytes of a cell.
pub const CELL_BYTES: usize = 8;
/// Least number of a counter.
pub const NUMBER_MIN: i64 = -(1 << 61);
/// Greatest number of a counter.
pub const NUMBER_MAX: i64 = (1 << 61) - 1;
/// What may be added, or taken off, one-sidedly at a time; more by RPC.
pub const ADD_MAX: u64 = 1 << 32;
/// Added to a cell to delete its counter.
pub const DELETED: u64 = 1 << 63;

/// See [`is_near_a_limit`]: 2^28 times [`ADD_MAX`] from the limits.
const NEAR_A_LIMIT: u64 = 1 << 60;

/// Words from minus this on and below this are numbers: half of all.
const LIVE: i64 = 1 << 62;

/// The number in a cell; `None`: its counter was deleted.
#[inline]
#[must_use]
pub fn number(word: u64) -> Option<i64> {
    let number = word.cast_signed();
    (-LIVE..LIVE).contains(&number).then_some(number)
}

/// Whether a counter may hold this.
#[inline]
#[must_use]
pub fn is_in_range(number: i64) -> bool {
    (NUMBER_MIN..=NUMBER_MAX).contains(&number)
}

/// Whether an addition may make one number of another. Where [`is_near_a_limit`] was asked too
/// late, what was there is beyond the range: then it may be made to be less so.
#[inline]
#[must_use]
pub fn may_become(old: i64, new: i64) -> bool {
    (old.min(NUMBER_MIN)..=old.max(NUMBER_MAX)).contains(&new)
}

/// Whether a number is so far out that nothing is added one-sidedly any more, which takes effect
/// whatever it leads to: the server is asked, and compares and swaps.
#[inline]
#[must_use]
pub fn is_near_a_limit(number: i64) -> bool {
    number.unsigned_abs() >= NEAR_A_LIMIT
}

/// A counter's value in its entry.
#[must_use]
pub fn to_value(cell: LogAddr) -> [u8; CELL_BYTES] {
    cell.get().to_le_bytes()
}

/// The cell that a counter's value names; `None` if it names none.
#[inline]
#[must_use]
pub fn from_value(value: &[u8]) -> Option<LogAddr> {
    let word = u64::from_le_bytes(value.try_into().ok()?);
    LogAddr::from_bits(word).filter(|addr| addr.get() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_is_no_number_whatever_was_there_and_is_added_later() {
        let far = i64::try_from(ADD_MAX).expect("small") << 29;
        for held in [NUMBER_MIN, -1, 0, 1, NUMBER_MAX] {
            let word = held.cast_unsigned();
            assert_eq!(number(word), Some(held));
            let deleted = word.wrapping_add(DELETED);
            for later in [-far, -1, 0, 1, far - 1] {
                assert_eq!(number(deleted.wrapping_add_signed(later)), None, "{held} {later}");
            }
        }
        assert!(is_in_range(NUMBER_MIN) && !is_in_range(NUMBER_MIN - 1));
        assert!(is_in_range(NUMBER_MAX) && !is_in_range(NUMBER_MAX + 1));
    }

    #[test]
    fn nothing_leads_further_out_and_all_leads_back() {
        let beyond = NUMBER_MAX + 9;
        for new in [NUMBER_MIN, 0, NUMBER_MAX, beyond - 1, beyond] {
            assert!(may_become(beyond, new), "{new}");
        }
        for new in [NUMBER_MIN - 1, beyond + 1, i64::MAX] {
            assert!(!may_become(beyond, new), "{new}");
        }
        for old in [NUMBER_MIN, 0, NUMBER_MAX] {
            assert!([NUMBER_MIN, 0, NUMBER_MAX].into_iter().all(|new| may_become(old, new)));
            assert!(!may_become(old, NUMBER_MIN - 1) && !may_become(old, NUMBER_MAX + 1));
        }
        let near = 1 << 60;
        assert!(is_near_a_limit(near) && is_near_a_limit(-near) && is_near_a_limit(i64::MIN));
        assert!(!is_near_a_limit(near - 1) && !is_near_a_limit(1 - near) && !is_near_a_limit(0));
    }

    #[test]
    fn a_value_names_its_cell_and_nothing_else_does() {
        let cell = LogAddr::new(7, 4096);
        assert_eq!(from_value(&to_value(cell)), Some(cell));
        for wrong in [&[0; 8][..], &[1; 7], &[1; 9], &[0xFF; 8]] {
            assert_eq!(from_value(wrong), None);
        }
    }
}
