//! What is told to the server of what a table's clients do without it: how many reads, PUTs and
//! operations on counters there were, and for tables that evict a sample of the keys read. The same
//! sampling measures how long GETs take.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use onesided_protocol::control::{TableCounts, ToServer};
use onesided_protocol::hash::KeyHash;
use onesided_protocol::limits::ACCESSES_MAX;
use parking_lot::Mutex;

use crate::link::Link;
use crate::stats::{Counts, Shard};

/// Samples of one thread that may wait to be told: what comes while they do is not told at all. At
/// a million GETs a second, all of them told of, that is after 16 ms: as long as the thread that
/// tells may wait for a processor.
const RING_PLACES: usize = 16_384;
/// It is time to tell whenever so many more wait.
const TELL_AT: usize = 2_048;
const _: () = assert!(RING_PLACES.is_multiple_of(TELL_AT));

/// How long one GET of so many takes is measured.
const TIMED_EVERY: u32 = 256;
/// One of so many is sampled where nobody wants to know anything.
const RARELY: u32 = u32::MAX / 2;

/// What the server is told of one table.
pub(crate) struct Accesses {
    link: Arc<Link>,
    counts: Arc<Counts>,
    /// What of them it was told.
    told: Mutex<TableCounts>,
    /// Id of the table; 0 = not opened yet.
    table: AtomicU32,
    rings: Mutex<Vec<Weak<Ring>>>,
}

impl Accesses {
    pub(crate) fn new(link: &Arc<Link>) -> Arc<Self> {
        let accesses = Arc::new(Self {
            link: Arc::clone(link),
            counts: link.shared().stats.table(),
            told: Mutex::default(),
            table: AtomicU32::new(0),
            rings: Mutex::default(),
        });
        link.tells(&accesses);
        accesses
    }

    /// The table's counters.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// What was counted since the last time.
    pub(crate) fn counted(&self) -> Option<Counted> {
        let table = self.table.load(Ordering::Relaxed);
        let mut told = self.told.lock();
        let counts = self.counts.told();
        let since = counts.since(&told);
        *told = counts;
        Counted::of(table, since)
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

impl Drop for Accesses {
    fn drop(&mut self) {
        if let Some(rest) = self.counted() {
            self.link.tell_later(rest);
        }
        self.link.shared().stats.keep(&self.counts);
    }
}

/// What was counted of a table, to be told.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) table: u32,
    pub(crate) counts: Box<TableCounts>,
}

impl Counted {
    /// Nothing of a table that was never opened, and nothing if there is nothing.
    fn of(table: u32, counts: TableCounts) -> Option<Self> {
        let worth = table != 0 && counts != TableCounts::default();
        worth.then(|| Self { table, counts: Box::new(counts) })
    }
}

/// What one thread samples of one table.
pub(crate) struct Sampler {
    accesses: Arc<Accesses>,
    /// One GET of so many.
    every: u32,
    /// The server wants to know which keys they are of.
    tells: bool,
    /// How long some of them take is wanted.
    times: bool,
    /// GETs until the next sample, at least 1.
    left: u32,
    /// Samples until the next one that is timed, at least 1.
    untimed: u32,
    /// A GET that is sampled and not over.
    begun: Option<Sample>,
    random: u64,
    /// Made with the first sample.
    ring: Option<Arc<Ring>>,
}

/// A GET that is sampled.
#[derive(Debug)]
pub(crate) struct Sample {
    start: Option<Instant>,
}

impl Sampler {
    pub(crate) fn new(accesses: &Arc<Accesses>) -> Self {
        let accesses = Arc::clone(accesses);
        let times = accesses.link.shared().options.report_reads;
        let mut sampler = Self {
            accesses,
            every: if times { TIMED_EVERY } else { RARELY },
            tells: false,
            times,
            left: 1,
            untimed: 1,
            begun: None,
            random: rand::random(),
            ring: None,
        };
        sampler.left = sampler.pause();
        sampler
    }

    /// Tells the server of one GET of so many from now on; 0 = of none.
    pub(crate) fn set_told_every(&mut self, every: u32) {
        self.begun = None;
        self.tells = every != 0;
        let every = match self.times {
            _ if self.tells => every,
            true => TIMED_EVERY,
            false => RARELY,
        };
        if every != self.every {
            self.every = every;
            self.left = self.pause();
        }
    }

    /// A GET begins. Says whether it is to be sampled: then [`Self::begin`] is next.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The GET that begins is sampled.
    #[cold]
    pub(crate) fn begin(&mut self) {
        self.left = self.pause();
        self.untimed -= 1;
        let is_turn = self.untimed == 0;
        if is_turn {
            self.untimed = (TIMED_EVERY / self.every).max(1);
        }
        let timed = is_turn && self.times;
        self.begun = Some(Sample { start: timed.then(Instant::now) });
    }

    /// The sample that was begun and did not end yet.
    pub(crate) fn take_begun(&mut self) -> Option<Sample> {
        self.begun.take()
    }

    /// A sampled GET is over; with the hash of its key if that was found one-sidedly.
    pub(crate) fn end(&mut self, sample: &Sample, shard: &Shard, found: Option<KeyHash>) {
        if let Some(start) = sample.start {
            shard.time(start.elapsed());
        }
        if let Some(hash) = found.filter(|_| self.tells) {
            self.tell(hash);
        }
    }

    /// A key was read by a GET that is not timed, nor said when it began.
    #[inline(always)]
    pub(crate) fn note(&mut self, hash: KeyHash) {
        self.left -= 1;
        if self.left == 0 {
            self.note_sample(hash);
        }
    }

    #[cold]
    fn note_sample(&mut self, hash: KeyHash) {
        self.left = self.pause();
        if self.tells {
            self.tell(hash);
        }
    }

    fn tell(&mut self, hash: KeyHash) {
        let ring = self.ring.get_or_insert_with(|| self.accesses.ring());
        if ring.put(hash) {
            self.accesses.link.tell_soon();
        }
    }

    /// GETs until the next sample, at least 1. At random: a loop over keys must not meet the same
    /// ones each time.
    fn pause(&mut self) -> u32 {
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

    /// Says whether it is time to tell. What does not fit is lost.
    fn put(&self, hash: KeyHash) -> bool {
        let put = self.put.load(Ordering::Relaxed);
        let waiting = put - self.taken.load(Ordering::Acquire);
        if waiting == RING_PLACES {
            return false;
        }
        self.places[put % RING_PLACES].store(hash.0, Ordering::Relaxed);
        self.put.store(put + 1, Ordering::Release);
        (waiting + 1).is_multiple_of(TELL_AT)
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
        let tells: Vec<usize> =
            (0..RING_PLACES + 5).filter(|&n| ring.put(KeyHash(n as u64))).collect();
        let times: Vec<usize> = (1..=RING_PLACES / TELL_AT).map(|n| n * TELL_AT - 1).collect();
        assert_eq!(tells, times, "also when what was told before did not empty it");
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
