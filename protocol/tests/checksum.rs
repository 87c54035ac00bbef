//! How good the checksum of short entries is: what changes is noticed, and what it gives is even.

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::{ChecksumKey, SHORT_MAX_BYTES};

/// A fixed sequence of numbers.
struct Draw(u64);

impl Draw {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        let word = (self.0 ^ self.0 >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        word ^ word >> 32
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.word().to_le_bytes()).take(len).collect()
    }
}

fn addr(units: u64) -> LogAddr {
    LogAddr::from_bits((units % (1 << 42)) | (1 << 22)).expect("no null")
}

const LENGTHS: [usize; 6] = [32, 48, 64, 160, 240, SHORT_MAX_BYTES];

#[test]
fn every_bit_counts_also_of_address_and_secret() {
    let mut draw = Draw(1);
    for len in LENGTHS {
        for mut bytes in [vec![0; len], vec![0xFF; len], draw.bytes(len)] {
            let (secret, at) = (draw.word(), draw.word() >> 22);
            let key = ChecksumKey::new(secret, None);
            let whole = key.checksum(addr(at), &bytes);
            for bit in 64..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(key.checksum(addr(at), &bytes), whole, "bit {bit} of {len} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in (0..42).filter(|&bit| bit != 22) {
                assert_ne!(key.checksum(addr(at ^ 1 << bit), &bytes), whole, "address {bit}");
            }
            for bit in 0..64 {
                let other = ChecksumKey::new(secret ^ 1 << bit, None);
                assert_ne!(other.checksum(addr(at), &bytes), whole, "secret, bit {bit}");
            }
            bytes[..8].fill(0xAB);
            assert_eq!(key.checksum(addr(at), &bytes), whole, "the state word is not covered");
        }
    }
}

/// Words lost, doubled, exchanged, or of another entry at the same place: what tearing does.
#[test]
fn every_tear_counts() {
    let mut draw = Draw(2);
    for round in 0..200 {
        let len = LENGTHS[round % LENGTHS.len()];
        let key = ChecksumKey::new(draw.word(), None);
        let at = addr(draw.word() >> 22);
        // Values that differ little are the common case.
        let old: Vec<u8> = match round % 3 {
            0 => draw.bytes(len),
            1 => (0..len).map(|i| (i / 8) as u8).collect(),
            _ => [draw.bytes(8), vec![0; len - 8]].concat(),
        };
        let mut new = old.clone();
        new[8..].chunks_mut(8).for_each(|word| word[round % 8] ^= 1 << (round % 7));
        let (old_sum, new_sum) = (key.checksum(at, &old), key.checksum(at, &new));
        assert_ne!(old_sum, new_sum);
        for a in 1..len / 8 {
            let mut torn = old.clone();
            torn[a * 8..a * 8 + 8].copy_from_slice(&new[a * 8..a * 8 + 8]);
            assert_ne!(key.checksum(at, &torn), old_sum, "word {a} of {len} bytes");
            let mut half = old.clone();
            half[a * 8..].copy_from_slice(&new[a * 8..]);
            assert!(a == 1 || key.checksum(at, &half) != new_sum, "from word {a} of {len} bytes");
            for b in 1..a {
                let mut swapped = old.clone();
                swapped.copy_within(b * 8..b * 8 + 8, a * 8);
                swapped[b * 8..b * 8 + 8].copy_from_slice(&old[a * 8..a * 8 + 8]);
                if swapped != old {
                    assert_ne!(key.checksum(at, &swapped), old_sum, "words {a} and {b}");
                }
            }
        }
    }
}

/// Over secrets, each bit of an entry changes each bit of its checksum half of the time.
#[test]
fn a_bit_changes_half_of_the_checksum() {
    const ROUNDS: u32 = 400;
    let mut draw = Draw(3);
    let mut bytes = draw.bytes(160);
    let keys: Vec<_> = (0..ROUNDS).map(|_| ChecksumKey::new(draw.word(), None)).collect();
    let sums: Vec<_> = keys.iter().map(|key| key.checksum(addr(9), &bytes)).collect();
    for bit in (64..160 * 8).step_by(13) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut changed = [0_u32; 62];
        for (key, sum) in keys.iter().zip(&sums) {
            let change = key.checksum(addr(9), &bytes) ^ sum;
            (0..62).for_each(|i| changed[i] += (change >> i & 1) as u32);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
        let total: u32 = changed.iter().sum();
        // Six standard deviations, and seven of all of them together.
        for (i, &changed) in changed.iter().enumerate() {
            assert!(changed.abs_diff(ROUNDS / 2) < 60, "bit {bit} changes bit {i} {changed} times");
        }
        assert!(total.abs_diff(ROUNDS * 31) < 600, "bit {bit} changes {total} bits");
    }
}
