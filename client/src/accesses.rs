//! Samples of the keys that are read one-sidedly. The server does not see such reads; what a table
//! keeps that evicts depends on them, so its clients tell of one GET in some.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use onesided_protocol::control::ToServer;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::limits::ACCESSES_MAX;
use parking_lot::Mutex;

use crate::link::Link;

/// Samples of one thread that may wait to be told: what comes while they do is not told at all.
const RING_PLACES: usize = 4096;

/// The samples of a table that the server was not told of yet, of all threads.
pub(crate) struct Accesses {
    link: Arc<Link>,
    /// Id of the table; 0 = not opened yet.
    table: AtomicU32,
    rings: Mutex<Vec<Weak<Ring>>>,
}

impl Accesses {
    pub(crate) fn new(link: &Arc<Link>) -> Arc<Self> {
        let (table, rings) = (AtomicU32::new(0), Mutex::default());
        let accesses = Arc::new(Self { link: Arc::clone(link), table, rings });
        link.tells(&accesses);
        accesses
    }

    /// The table was opened.
    pub(crate) fn set_table(&self, id: u32) {
        self.table.store(id, Ordering::Relaxed);
    }

    /// The next message to the server, if there is something to tell.
    pub(crate) fn report(&self) -> Option<ToServer> {
        let mut hashes = Vec::new();
        let mut rings = self.rings.lock();
        rings.retain(|ring| {
            let Some(ring) = ring.upgrade() else { return false };
            ring.take(ACCESSES_MAX - hashes.len(), &mut hashes);
            true
        });
        let table = self.table.load(Ordering::Relaxed);
        (!hashes.is_empty()).then_some(ToServer::Accessed { table, hashes })
    }

    fn ring(&self) -> Arc<Ring> {
        let ring = Arc::new(Ring::new());
        self.rings.lock().push(Arc::downgrade(&ring));
        ring
    }
}

/// What one thread samples of one table.
pub(crate) struct Sampler {
    accesses: Arc<Accesses>,
    /// One GET of so many; 0 = none.
    every: u32,
    /// GETs until the next sample; 0 = there is none.
    left: u32,
    random: u64,
    /// Made with the first sample.
    ring: Option<Arc<Ring>>,
}

impl Sampler {
    pub(crate) fn new(accesses: &Arc<Accesses>) -> Self {
        let accesses = Arc::clone(accesses);
        Self { accesses, every: 0, left: 0, random: rand::random(), ring: None }
    }

    /// Samples one GET of so many from now on; 0 = none.
    pub(crate) fn set_every(&mut self, every: u32) {
        if every != self.every {
            self.every = every;
            self.left = self.pause();
        }
    }

    /// A key was read.
    #[inline(always)]
    pub(crate) fn note(&mut self, hash: KeyHash) {
        if self.left != 0 {
            self.left -= 1;
            if self.left == 0 {
                self.sample(hash);
            }
        }
    }

    #[cold]
    fn sample(&mut self, hash: KeyHash) {
        self.left = self.pause();
        let ring = self.ring.get_or_insert_with(|| self.accesses.ring());
        if ring.put(hash) {
            self.accesses.link.tell_soon();
        }
    }

    /// GETs until the next sample, at least 1, if there is to be one. At random: a loop over keys
    /// must not meet the same ones each time.
    fn pause(&mut self) -> u32 {
        if self.every == 0 {
            return 0;
        }
        // xorshift64: never 0 if it was not.
        self.random |= 1 << 63;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let span = u64::from(self.every) * 2 - 1;
        // Below twice the greatest u32.
        u32::try_from(1 + (self.random >> 16) % span).unwrap_or(u32::MAX)
    }
}

/// From the thread that reads to the one that tells.
struct Ring {
    places: Box<[AtomicU64]>,
    put: AtomicUsize,
    taken: AtomicUsize,
}

impl Ring {
    fn new() -> Self {
        let places = (0..RING_PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { places, put: AtomicUsize::new(0), taken: AtomicUsize::new(0) }
    }

    /// Says whether it has become half full. What does not fit is lost.
    fn put(&self, hash: KeyHash) -> bool {
        let put = self.put.load(Ordering::Relaxed);
        let waiting = put - self.taken.load(Ordering::Acquire);
        if waiting == RING_PLACES {
            return false;
        }
        self.places[put % RING_PLACES].store(hash.0, Ordering::Relaxed);
        self.put.store(put + 1, Ordering::Release);
        waiting + 1 == RING_PLACES / 2
    }

    fn take(&self, max: usize, into: &mut Vec<u64>) {
        let taken = self.taken.load(Ordering::Relaxed);
        let count = max.min(self.put.load(Ordering::Acquire) - taken);
        let places = (taken..taken + count).map(|place| &self.places[place % RING_PLACES]);
        into.extend(places.map(|place| place.load(Ordering::Relaxed)));
        self.taken.store(taken + count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_gives_what_was_put_and_drops_what_does_not_fit() {
        let ring = Ring::new();
        let half: Vec<u64> =
            (0..RING_PLACES as u64 + 5).filter(|&n| ring.put(KeyHash(n))).collect();
        assert_eq!(half, [RING_PLACES as u64 / 2 - 1], "it says once that it is half full");
        let mut taken = Vec::new();
        ring.take(10, &mut taken);
        assert_eq!(taken, (0..10).collect::<Vec<u64>>());
        ring.take(usize::MAX, &mut taken);
        assert_eq!(taken, (0..RING_PLACES as u64).collect::<Vec<u64>>());
        ring.put(KeyHash(7));
        ring.take(usize::MAX, &mut taken);
        assert_eq!((taken.len(), taken.last()), (RING_PLACES + 1, Some(&7)));
    }
}
