//! Size classes, and what [`judge`] must and must never say.

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::{ChecksumKey, entry_checksum};
use onesided_protocol::layout::entry::{
    self, COVERED_FROM, EntryHeader, FLAG_LARGE, Verdict, first_read_bytes, judge_plain,
    prefix_bytes,
};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::state::State;
use onesided_protocol::limits::{KEY_MAX_BYTES, LARGE_VALUE_BYTES, REGION_BYTES};
use proptest::prelude::*;

fn holds_least(len: usize) {
    let class = size_class::of(len);
    assert!(size_class::bytes(class) >= len, "class {class} does not hold {len}");
    assert!(class == 0 || size_class::bytes(class - 1) < len, "class {class} for {len}");
}

#[test]
fn size_classes_are_least_and_inverse() {
    for len in 1..=(16 << 10) {
        holds_least(len);
    }
    for class in 0..=size_class::LAST {
        let edge = size_class::bytes(class);
        assert_eq!(size_class::of(edge), class);
        for len in edge.saturating_sub(65).max(1)..=(edge + 65).min(REGION_BYTES) {
            holds_least(len);
        }
        assert_eq!(edge % 64, 0);
    }
    assert_eq!(size_class::of(0), 0);
    assert_eq!(size_class::of(REGION_BYTES + 1), size_class::LAST);
    assert_eq!(size_class::of(usize::MAX), size_class::LAST);
    for unused in size_class::LAST..=u8::MAX {
        assert_eq!(size_class::bytes(unused), REGION_BYTES);
    }
}

#[test]
fn size_classes_waste_little() {
    for class in 129..=size_class::LAST {
        let (edge, before) = (size_class::bytes(class), size_class::bytes(class - 1));
        assert!(edge > before && (edge - before) * 8 <= before, "class {class}");
    }
}

/// For every key length: what is read first holds all of any small entry, and header and key of
/// any large one.
#[test]
fn first_read_is_enough() {
    for key_len in 0..=KEY_MAX_BYTES {
        let least_small = entry::padded_bytes(key_len, 0);
        let most_small = entry::padded_bytes(key_len, LARGE_VALUE_BYTES);
        let (from, to) = (size_class::of(least_small), size_class::of(most_small));
        for class in from..=to {
            let class_bytes = size_class::bytes(class);
            assert_eq!(first_read_bytes(class_bytes, key_len), class_bytes, "key {key_len}");
        }
        let least_large = size_class::of(entry::padded_bytes(key_len, LARGE_VALUE_BYTES + 1));
        for class in [least_large, least_large + 1, least_large + 9, size_class::LAST] {
            let class_bytes = size_class::bytes(class);
            let read = first_read_bytes(class_bytes, key_len);
            assert!(read >= entry::LARGE_HEADER_BYTES + key_len, "key {key_len}, class {class}");
            assert!(read <= class_bytes, "never beyond the class");
            assert_eq!(read % 8, 0);
        }
    }
}

#[test]
fn a_long_value_is_not_read_first() {
    assert_eq!(first_read_bytes(size_class::bytes(size_class::of(1 << 20)), 16), 56);
}

/// An entry as the server would write it, committed.
#[derive(Clone, Debug)]
struct Entry {
    secret: u64,
    addr: LogAddr,
    key: Vec<u8>,
    header: EntryHeader,
    bytes: Vec<u8>,
}

fn entry(secret: u64, addr: LogAddr, key: &[u8], value: &[u8], append_number: u64) -> Entry {
    let large = entry::is_large(value.len());
    let header = EntryHeader {
        version: append_number.wrapping_mul(3),
        value_len: value.len() as u32,
        key_len: key.len() as u16,
        flags: if large { FLAG_LARGE } else { 0 },
        expiry_s: 7,
        user_flags: append_number as u32,
    };
    let mut bytes = prefix_bytes(&header, append_number, key);
    bytes.extend_from_slice(value);
    bytes.resize(header.padded_bytes(), 0);
    let checksum = entry_checksum(secret, addr, &bytes[COVERED_FROM..header.covered_to()]);
    bytes[..8].copy_from_slice(&State::committed(checksum).to_le_bytes());
    Entry { secret, addr, key: key.to_vec(), header, bytes }
}

/// The verdict; what decides the common case must agree with it.
fn judge(secret: u64, addr: LogAddr, bytes: &[u8], key: &[u8]) -> Verdict {
    let sums = ChecksumKey::new(secret, None);
    let verdict = entry::judge(&sums, addr, bytes, key);
    let plain = match verdict {
        Verdict::Hit(header) if header.flags == 0 => Some(header),
        _ => None,
    };
    assert_eq!(judge_plain(&sums, addr, bytes, key), plain);
    verdict
}

fn judged(of: &Entry, bytes: &[u8]) -> Verdict {
    judge(of.secret, of.addr, bytes, &of.key)
}

fn is_answer(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Hit(_) | Verdict::Large { .. })
}

fn an_addr() -> impl Strategy<Value = LogAddr> {
    (1_u32..1 << 20, 0_usize..1 << 22).prop_map(|(region, unit)| LogAddr::new(region, unit * 16))
}

/// Mostly short ones, and some beyond the edge to large.
fn a_value() -> impl Strategy<Value = Vec<u8>> {
    let long = (LARGE_VALUE_BYTES - 20..LARGE_VALUE_BYTES + 20).prop_map(|len| vec![0x5A; len]);
    prop_oneof![8 => prop::collection::vec(any::<u8>(), 0..300), 2 => long]
}

fn an_entry() -> impl Strategy<Value = Entry> {
    (any::<u64>(), an_addr(), prop::collection::vec(any::<u8>(), 0..80), a_value(), any::<u64>())
        .prop_map(|(secret, addr, key, value, number)| entry(secret, addr, &key, &value, number))
}

proptest! {
    #[test]
    fn a_whole_entry_is_an_answer(of in an_entry(), more in 0_usize..64) {
        let mut read = of.bytes.clone();
        read.extend(vec![0xEE; more]);
        match judged(&of, &read) {
            Verdict::Hit(header) => prop_assert!(!header.is_large() && header == of.header),
            Verdict::Large { header, state } => {
                prop_assert!(header.is_large() && header == of.header);
                prop_assert_eq!(&state.to_le_bytes()[..], &of.bytes[..8]);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn one_covered_bit_changed_is_no_answer(of in an_entry(), at in any::<prop::sample::Index>()) {
        let bit = at.index(of.header.covered_to() * 8);
        let mut read = of.bytes.clone();
        read[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!is_answer(judged(&of, &read)), "bit {}", bit);
    }

    #[test]
    fn one_covered_word_changed_is_no_answer(
        of in an_entry(), at in any::<prop::sample::Index>(), word in any::<[u8; 8]>(),
    ) {
        let from = at.index(of.header.covered_to().div_ceil(8)) * 8;
        let to = (from + 8).min(of.header.covered_to());
        let mut read = of.bytes.clone();
        read[from..to].copy_from_slice(&word[..to - from]);
        prop_assume!(read != of.bytes);
        prop_assert!(!is_answer(judged(&of, &read)), "word at {}", from);
    }

    /// Address reuse: any mix, word by word, of two entries that stood at one place is one of
    /// the two or no answer.
    #[test]
    fn a_mix_of_two_entries_is_no_answer(
        of in an_entry(), value in a_value(), number in any::<u64>(), mix in any::<u64>(),
    ) {
        let other = entry(of.secret, of.addr, &of.key, &value, number);
        let len = of.bytes.len().max(other.bytes.len());
        let padded = |entry: &Entry| {
            let mut bytes = entry.bytes.clone();
            bytes.resize(len, 0);
            bytes
        };
        let (old, new) = (padded(&of), padded(&other));
        let mut read = old.clone();
        for word in 0..len / 8 {
            if mix.rotate_left(word as u32 * 7) & 1 == 1 {
                let range = word * 8..word * 8 + 8;
                read[range.clone()].copy_from_slice(&new[range]);
            }
        }
        let one_of_them = [&of, &other].iter().any(|entry| {
            read[..entry.header.covered_to()] == entry.bytes[..entry.header.covered_to()]
        });
        prop_assert_eq!(is_answer(judged(&of, &read)), one_of_them);
    }

    #[test]
    fn cut_short_is_no_answer(of in an_entry(), at in any::<prop::sample::Index>()) {
        let cut = at.index(of.header.covered_to());
        prop_assert_eq!(judged(&of, &of.bytes[..cut]), Verdict::Unproven);
    }

    #[test]
    fn another_place_is_no_answer(of in an_entry(), addr in an_addr()) {
        prop_assume!(addr != of.addr);
        prop_assert_eq!(judge(of.secret, addr, &of.bytes, &of.key), Verdict::Unproven);
    }

    #[test]
    fn another_secret_is_no_answer(of in an_entry(), secret in any::<u64>()) {
        prop_assume!(secret != of.secret);
        prop_assert_eq!(judge(secret, of.addr, &of.bytes, &of.key), Verdict::Unproven);
    }

    #[test]
    fn another_key_is_named_so(of in an_entry(), key in prop::collection::vec(any::<u8>(), 0..80)) {
        prop_assume!(key != of.key);
        prop_assert_eq!(judge(of.secret, of.addr, &of.bytes, &key), Verdict::OtherKey);
    }

    #[test]
    fn any_other_state_is_no_answer(of in an_entry(), state in any::<u64>()) {
        prop_assume!(state.to_le_bytes() != of.bytes[..8]);
        let mut read = of.bytes.clone();
        read[..8].copy_from_slice(&state.to_le_bytes());
        let verdict = judged(&of, &read);
        match State::decode(state) {
            State::Forwarded(class, Some(addr)) => {
                prop_assert_eq!(verdict, Verdict::Forwarded(class, addr));
            }
            State::Dead(_) => prop_assert_eq!(verdict, Verdict::Dead),
            _ => prop_assert_eq!(verdict, Verdict::Unproven),
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_answer(
        secret in any::<u64>(), addr in an_addr(),
        read in prop::collection::vec(any::<u8>(), 0..300),
        key in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        prop_assert!(!is_answer(judge(secret, addr, &read, &key)));
    }

    #[test]
    fn headers_come_back(words in any::<[u64; 3]>()) {
        let header = EntryHeader::from_words(words);
        prop_assert_eq!(header.to_words(), words);
        prop_assert!(header.covered_to() <= header.padded_bytes());
        prop_assert!(header.len_bytes() <= header.padded_bytes());
    }
}

/// Every word of one entry of each kind, exhaustively.
#[test]
fn every_word_counts() {
    let addr = LogAddr::new(1, 16);
    for value_len in [0, 1, 100, LARGE_VALUE_BYTES, LARGE_VALUE_BYTES + 1] {
        let of = entry(42, addr, b"the key", &vec![7; value_len], 5);
        assert!(is_answer(judged(&of, &of.bytes)));
        for byte in 0..of.header.covered_to() {
            let mut read = of.bytes.clone();
            read[byte] ^= 0x40;
            assert!(!is_answer(judged(&of, &read)), "byte {byte} of {value_len}");
        }
    }
}
