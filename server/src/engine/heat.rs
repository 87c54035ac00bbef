//! How often keys were used of late. The server does not see reads, so clients report samples of
//! them; writes it sees itself.
//!
//! A count-min sketch of 4-bit counters, as TinyLFU has it: a key's four counters lie in one
//! cache line that its hash chooses, the least of them is the estimate, and from time to time all
//! are halved. It also remembers keys that were evicted, so that one which comes back often is
//! known when it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use onesided_protocol::hash::KeyHash;

/// Words of a cache line; 16 counters each.
const LINE_WORDS: usize = 8;
/// Counters for each key: fewer make cold keys look warm.
const COUNTERS_PER_KEY: usize = 8;
/// Counters of a line.
const LINE_COUNTERS: usize = LINE_WORDS * 16;
/// All counters are halved after so many notes for each key that there is room for. Fewer forget
/// what is rare, more cling to what was.
const NOTES_PER_KEY: usize = 20;
/// Greatest count.
pub(super) const HEAT_MAX: u8 = 15;
/// The low three bits of every counter.
const HALF_MASK: u64 = 0x7777_7777_7777_7777;
/// Spreads the hash over what chooses the line and what chooses the counters in it: 2^64 divided
/// by the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Room that a table begins with.
const KEYS_MIN: usize = 1 << 14;

/// The heat of a table's keys, if it evicts.
#[derive(Default)]
pub(super) struct TableHeat(ArcSwapOption<Heat>);

impl TableHeat {
    /// Begins to count, or stops and forgets.
    pub(super) fn set(&self, evicts: bool) {
        if evicts != self.is_on() {
            self.0.store(evicts.then(|| Arc::new(Heat::new(KEYS_MIN))));
        }
    }

    /// Whether the table evicts.
    pub(super) fn is_on(&self) -> bool {
        self.0.load().is_some()
    }

    /// The key with this hash was used.
    #[inline]
    pub(super) fn note(&self, hash: KeyHash) {
        if let Some(heat) = &*self.0.load() {
            heat.note(hash);
        }
    }

    /// How often it was used, up to [`HEAT_MAX`].
    pub(super) fn of(&self, hash: KeyHash) -> u8 {
        self.0.load().as_ref().map_or(0, |heat| heat.of(hash))
    }

    /// Makes room for so many keys, and lets counts grow old. To be called now and then.
    pub(super) fn tend(&self, keys: usize) {
        let Some(heat) = self.0.load_full() else { return };
        if keys > heat.keys() {
            // Notes of this moment get lost.
            self.0.store(Some(Arc::new(heat.grown(keys))));
        } else {
            heat.age();
        }
    }

    /// Memory of it, beside what the table's quota counts.
    pub(super) fn len_bytes(&self) -> usize {
        self.0.load().as_ref().map_or(0, |heat| heat.len_bytes())
    }
}

/// The sketch. Notes of several threads may get lost; nothing depends on each of them.
pub(super) struct Heat {
    words: Box<[AtomicU64]>,
    notes: AtomicU64,
}

impl Heat {
    /// With room for at least so many keys: 4 to 8 bytes for each.
    pub(super) fn new(keys: usize) -> Self {
        let lines = (keys * COUNTERS_PER_KEY).div_ceil(LINE_COUNTERS).next_power_of_two();
        let words = (0..lines * LINE_WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { words, notes: AtomicU64::new(0) }
    }

    /// Keys that it has room for.
    pub(super) fn keys(&self) -> usize {
        self.words.len() * 16 / COUNTERS_PER_KEY
    }

    /// Memory of it.
    pub(super) fn len_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// One with room for more keys that knows what this one does.
    pub(super) fn grown(&self, keys: usize) -> Self {
        let larger = Self::new(keys.max(self.keys()));
        // The line's number ends in the old one's.
        for (place, word) in larger.words.iter().enumerate() {
            let old = &self.words[place % self.words.len()];
            word.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        larger.notes.store(self.notes.load(Ordering::Relaxed), Ordering::Relaxed);
        larger
    }

    /// The key with this hash was used.
    pub(super) fn note(&self, hash: KeyHash) {
        self.notes.fetch_add(1, Ordering::Relaxed);
        let heat = self.of(hash);
        if heat == HEAT_MAX {
            return;
        }
        for (word, shift) in self.counters(hash) {
            let now = word.load(Ordering::Relaxed);
            if (now >> shift) as u8 & HEAT_MAX == heat {
                word.store(now + (1 << shift), Ordering::Relaxed);
            }
        }
    }

    /// How often it was used, up to [`HEAT_MAX`]; never less than it was, if no note got lost.
    pub(super) fn of(&self, hash: KeyHash) -> u8 {
        let counts = self.counters(hash);
        let counts = counts.map(|(word, shift)| (word.load(Ordering::Relaxed) >> shift) as u8);
        counts.into_iter().fold(HEAT_MAX, |least, count| least.min(count & HEAT_MAX))
    }

    /// Halves all counters when it is time to. To be called now and then; takes a millisecond or
    /// so for a million keys.
    pub(super) fn age(&self) {
        let due = (self.keys() * NOTES_PER_KEY) as u64;
        if self.notes.load(Ordering::Relaxed) < due {
            return;
        }
        self.notes.store(0, Ordering::Relaxed);
        for word in &self.words {
            let halved = word.load(Ordering::Relaxed) >> 1 & HALF_MASK;
            word.store(halved, Ordering::Relaxed);
        }
    }

    /// The four counters of a key: words of one line, two to choose from for each, and bits.
    fn counters(&self, hash: KeyHash) -> [(&AtomicU64, u32); 4] {
        let mixed = hash.0.wrapping_mul(FACTOR);
        let mixed = mixed ^ mixed >> 32;
        let line = (mixed >> 24) as usize & (self.words.len() / LINE_WORDS - 1);
        std::array::from_fn(|i| {
            let bits = (mixed >> (6 * i)) as usize;
            let word = line * LINE_WORDS + 2 * i + (bits >> 4 & 1);
            (&self.words[word], (bits as u32 & 15) * 4)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of a number.
    fn hash(number: u64) -> KeyHash {
        KeyHash::of(7, &number.to_le_bytes())
    }

    #[test]
    fn estimates_are_never_too_low_and_mostly_right() {
        let heat = Heat::new(10_000);
        for number in 0..10_000 {
            (0..number % 8).for_each(|_| heat.note(hash(number)));
        }
        let over = |number: &u64| u64::from(heat.of(hash(*number))) > number % 8;
        let wrong = (0..10_000).filter(over).count();
        assert!((0..10_000).all(|number| u64::from(heat.of(hash(number))) >= number % 8));
        assert!(wrong < 1_000, "{wrong} of 10000 look warmer than they are");
    }

    #[test]
    fn counts_end_at_the_greatest_and_halve_when_they_are_old() {
        let heat = Heat::new(100);
        (0..40).for_each(|_| heat.note(hash(1)));
        (0..6).for_each(|_| heat.note(hash(2)));
        assert_eq!((heat.of(hash(1)), heat.of(hash(2))), (HEAT_MAX, 6));
        heat.age();
        assert_eq!(heat.of(hash(1)), HEAT_MAX, "not yet time");
        (0..heat.keys() * NOTES_PER_KEY).for_each(|_| heat.note(hash(1)));
        heat.age();
        assert_eq!((heat.of(hash(1)), heat.of(hash(2))), (HEAT_MAX / 2, 3));
        heat.age();
        assert_eq!(heat.of(hash(1)), HEAT_MAX / 2, "once is enough");
    }

    #[test]
    fn a_grown_one_knows_what_the_old_one_knew() {
        let heat = Heat::new(100);
        (0..100).for_each(|number| (0..number % 5).for_each(|_| heat.note(hash(number))));
        let before: Vec<u8> = (0..100).map(|number| heat.of(hash(number))).collect();
        let grown = heat.grown(5_000);
        assert!(grown.keys() >= 5_000 && grown.len_bytes() <= 5_000 * 8);
        assert_eq!(before, (0..100).map(|number| grown.of(hash(number))).collect::<Vec<_>>());
        assert_eq!(grown.grown(1).keys(), grown.keys(), "it never shrinks");
    }
}
