//! The same keys and values for everybody: 16-byte keys, 100-byte values, uniform, fixed seed.

/// Pairs unless `ONESIDED_BENCH_KEYS` says otherwise.
const PAIRS_DEFAULT: u64 = 1_000_000;
/// Length of a key.
pub const KEY_BYTES: usize = 16;
/// Length of a value.
pub const VALUE_BYTES: usize = 100;

/// How many pairs.
pub fn pairs() -> u64 {
    let set = std::env::var("ONESIDED_BENCH_KEYS").ok().and_then(|text| text.parse().ok());
    set.unwrap_or(PAIRS_DEFAULT).max(1)
}

/// Spreads a number over 64 bits, one to one (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// The key of a number.
#[inline]
pub fn key(index: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mix(index + 1).to_le_bytes());
    key[8..].copy_from_slice(&index.to_le_bytes());
    key
}

/// The value of a number.
pub fn value(index: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (place, chunk) in value.chunks_mut(8).enumerate() {
        let word = mix(index ^ mix(place as u64 + 77)).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    value
}

/// Draws uniform numbers. The next one may depend on a value that was read, and still the
/// sequence never falls into a short cycle, because the state has all of 64 bits.
pub struct Walk {
    state: u64,
    pairs: u64,
}

impl Walk {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64, pairs: u64) -> Self {
        Self { state: mix(seed ^ 0x5EED), pairs }
    }

    /// How many numbers there are.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// A number below `pairs` that depends on nothing but the one before.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.after(0)
    }

    /// A number below `pairs` that cannot be known before `word` is.
    #[inline]
    pub fn after(&mut self, word: u64) -> u64 {
        self.state = (self.state ^ word).wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        ((u128::from(mix(self.state)) * u128::from(self.pairs)) >> 64) as u64
    }
}
