//! Memory shared with the server for values that do not fit into a message.
//!
//! It is divided into places. Who needs several takes them in a row; who finds too few free waits
//! in line, so that long values are not kept waiting by short ones.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onesided_fabric::{AttachError, Endpoint, Memory};
use onesided_protocol::rpc::{Landing, Payload};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lends::Lent;
use super::time::{Deadline, Ticker, TimedOut};
use crate::error::Error;

/// Longer uses give their pages back afterwards.
const KEEP_PAGES_BYTES: usize = 256 << 10;
/// Into how many places the memory is divided, of whole pages each.
const PLACES: usize = 16;
const PAGE_BYTES: usize = 4 << 10;

/// The staging memory of one connection.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Arc<Memory>,
    places: Arc<Places>,
    /// The server can address it.
    is_lent: AtomicBool,
}

/// Which places are free.
#[derive(Debug)]
struct Places {
    count: usize,
    place_bytes: usize,
    /// As many permits as places that nobody has, or is about to look for.
    free: Arc<Semaphore>,
    /// A bit for each that somebody has.
    taken: Mutex<u32>,
    /// The connection is no more, but the server may still be at a request.
    has_ended: AtomicBool,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    TimedOut,
    /// The connection is no more.
    Ended,
}

impl From<TimedOut> for NoPlace {
    fn from(TimedOut: TimedOut) -> Self {
        Self::TimedOut
    }
}

/// What the server may READ or WRITE until the answer to a request is there: it goes with the
/// request, also when nobody waits for the answer any more.
#[derive(Debug)]
pub(crate) enum Keep {
    /// A part of the staging memory.
    Staging(Turn),
    /// A buffer of the caller's.
    Lent { _lent: Lent },
}

/// The right to use a part of the staging memory.
#[derive(Debug)]
pub(crate) struct Turn {
    memory: Arc<Memory>,
    bytes: Range<usize>,
    used_bytes: usize,
    place: Place,
}

/// Places in a row.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    bits: u32,
    /// Given back after the bits.
    _permits: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.places.taken.lock() &= !self.bits;
    }
}

/// `count` ones from `first` on.
fn row(first: usize, count: usize) -> u32 {
    (((1_u64 << count) - 1) << first) as u32
}

impl Places {
    fn new(len_bytes: usize) -> Self {
        let place_bytes = len_bytes / PLACES / PAGE_BYTES * PAGE_BYTES;
        // What is too short to be divided is one place.
        let count = if place_bytes == 0 { 1 } else { PLACES };
        let free = Arc::new(Semaphore::new(count));
        let (taken, has_ended) = (Mutex::default(), AtomicBool::new(false));
        Self { count, place_bytes: place_bytes.max(1), free, taken, has_ended }
    }

    fn count_for(&self, len_bytes: usize) -> usize {
        len_bytes.div_ceil(self.place_bytes).clamp(1, self.count)
    }

    /// The first of so many free places in a row, which are taken then.
    fn take_row(&self, count: usize) -> Option<usize> {
        let mut taken = self.taken.lock();
        let mut firsts = 0..=self.count - count;
        let first = firsts.find(|&first| *taken & row(first, count) == 0)?;
        *taken |= row(first, count);
        Some(first)
    }

    async fn permits(
        &self,
        count: usize,
        ticker: &Ticker,
        by: Deadline,
    ) -> Result<OwnedSemaphorePermit, NoPlace> {
        let free = || Arc::clone(&self.free);
        if let Ok(permits) = free().try_acquire_many_owned(count as u32) {
            return Ok(permits);
        }
        let permits = ticker.timed(by, free().acquire_many_owned(count as u32)).await?;
        permits.map_err(|_closed| NoPlace::Ended)
    }
}

impl Staging {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        let places = Arc::new(Places::new(memory.len_bytes()));
        Self { memory, places, is_lent: AtomicBool::new(false) }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// The connection is no more. From now on nobody gets a place, and those that come back keep
    /// what is in them: the server may have a request in work whose value it has yet to read, and
    /// what it stores then is acknowledged on the next connection.
    pub(crate) fn end(&self) {
        self.places.has_ended.store(true, Ordering::SeqCst);
        self.places.free.close();
    }

    /// Makes it addressable to the server, before its first use: on some fabrics that takes memory
    /// that cannot be swapped, which who has only small values never needs.
    pub(crate) fn lend(&self, endpoint: &dyn Endpoint) -> Result<(), AttachError> {
        if !self.is_lent.load(Ordering::Acquire) {
            endpoint.lend(&self.memory)?;
            self.is_lent.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// A part for so many bytes; all of it where it has no more.
    pub(crate) async fn take(
        &self,
        len_bytes: usize,
        ticker: &Ticker,
        by: Deadline,
    ) -> Result<Turn, NoPlace> {
        let count = self.places.count_for(len_bytes);
        let permits = self.places.permits(count, ticker, by).await?;
        if let Some(first) = self.places.take_row(count) {
            return Ok(self.turn(first, count, permits));
        }
        // Enough are free, and lie apart: when all are, they do not. Who waits for all has none.
        drop(permits);
        let mut permits = self.places.permits(self.places.count, ticker, by).await?;
        let first = self.places.take_row(count).ok_or(NoPlace::Ended)?;
        drop(permits.split(self.places.count - count));
        Ok(self.turn(first, count, permits))
    }

    fn turn(&self, first: usize, count: usize, permits: OwnedSemaphorePermit) -> Turn {
        let Places { count: all, place_bytes, .. } = *self.places;
        let end = first + count;
        let end_bytes = if end == all { self.memory.len_bytes() } else { end * place_bytes };
        let bits = row(first, count);
        let place = Place { places: Arc::clone(&self.places), bits, _permits: permits };
        let bytes = first * place_bytes..end_bytes;
        Turn { memory: Arc::clone(&self.memory), bytes, used_bytes: 0, place }
    }
}

impl Turn {
    /// Copies a value in, and says where it is.
    pub(crate) fn store(&mut self, value: &[u8]) -> Result<Payload<'static>, Error> {
        debug_assert!(value.len() <= self.bytes.len(), "the value's own part");
        self.memory.write_bytes(self.bytes.start, value)?;
        self.used_bytes = value.len();
        let offset_bytes = self.bytes.start as u64;
        Ok(Payload::Staged { offset_bytes, len_bytes: value.len() as u32 })
    }

    /// All of the part, for an answer.
    pub(crate) fn landing(&mut self) -> Landing {
        let len_bytes = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        Landing { offset_bytes: self.bytes.start as u64, len_bytes }
    }

    /// Copies what the server wrote.
    pub(crate) fn load(&mut self, offset_bytes: u64, len_bytes: u32) -> Result<Vec<u8>, Error> {
        let offset = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let len = len_bytes as usize;
        let is_in_it = offset >= self.bytes.start
            && offset.checked_add(len).is_some_and(|end| end <= self.bytes.end);
        if !is_in_it {
            return Err(Error::BadAnswer("a value outside the landing"));
        }
        let mut value = vec![0; len];
        self.memory.read_bytes(offset, &mut value)?;
        self.used_bytes = self.used_bytes.max(offset + len - self.bytes.start);
        Ok(value)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before its place is free.
        if self.used_bytes > KEEP_PAGES_BYTES
            && !self.place.places.has_ended.load(Ordering::SeqCst)
            && let Err(error) = self.memory.release(self.bytes.start, self.used_bytes)
        {
            tracing::debug!(%error, "staging pages stay in use until the session ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;

    const KIB: usize = 1 << 10;

    struct Here {
        staging: Staging,
        ticker: Ticker,
    }

    impl Here {
        fn new(len_bytes: usize) -> Self {
            let memory = Arc::new(Memory::private(len_bytes).expect("memory"));
            Self { staging: Staging::new(memory), ticker: Ticker::default() }
        }

        fn take(&self, len_bytes: usize) -> impl Future<Output = Result<Turn, NoPlace>> {
            self.staging.take(len_bytes, &self.ticker, Deadline::after("a test", LONG))
        }

        /// Which must not have to wait.
        fn now(&self, len_bytes: usize) -> Turn {
            match poll(pin!(self.take(len_bytes))) {
                Poll::Ready(Ok(turn)) => turn,
                other => panic!("{len_bytes} bytes: {other:?}"),
            }
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn parts_do_not_overlap_and_come_back() {
        let here = Here::new(1025 * KIB);
        let turns: Vec<Turn> = [1, 64, 65, 200].map(|kib| here.now(kib * KIB)).into();
        let mut ranges: Vec<_> = turns.iter().map(|turn| turn.bytes.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "{ranges:?}");
        drop(turns);
        assert_eq!(here.now(1024 * KIB).bytes, 0..1025 * KIB, "all of it");
        let short = Here::new(8 * KIB);
        assert_eq!(short.now(1).bytes, 0..8 * KIB, "too short to be divided");
    }

    #[test]
    fn a_value_is_where_it_is_said_to_be_and_nothing_beside_it_is_read() {
        let here = Here::new(1024 * KIB);
        let (_first, mut turn) = (here.now(KIB), here.now(100));
        let staged = turn.store(&[7; 100]).expect("stored");
        let Payload::Staged { offset_bytes, len_bytes: 100 } = staged else { panic!("{staged:?}") };
        assert_eq!(turn.landing().offset_bytes, offset_bytes);
        assert_eq!(turn.load(offset_bytes, 100).expect("its own"), [7; 100]);
        let len_bytes = turn.landing().len_bytes;
        for (offset_bytes, len_bytes) in
            [(0, 1), (offset_bytes - 1, 2), (offset_bytes, len_bytes + 1), (u64::MAX, 1)]
        {
            turn.load(offset_bytes, len_bytes).expect_err("not its own");
        }
    }

    #[test]
    fn who_needs_much_is_not_kept_waiting_by_who_needs_little() {
        let here = Here::new(1024 * KIB);
        let little = here.now(KIB);
        let mut much = pin!(here.take(1024 * KIB));
        assert!(poll(much.as_mut()).is_pending());
        let mut late = pin!(here.take(KIB));
        assert!(poll(late.as_mut()).is_pending(), "it came later");
        drop(little);
        let Poll::Ready(Ok(turn)) = poll(much.as_mut()) else { panic!("it is its turn") };
        assert!(poll(late.as_mut()).is_pending(), "nothing is left");
        drop(turn);
        assert!(poll(late.as_mut()).is_ready());
    }

    #[test]
    fn places_that_lie_apart_are_waited_for() {
        let here = Here::new(1024 * KIB);
        let mut turns: Vec<Option<Turn>> = (0..PLACES).map(|_| Some(here.now(1))).collect();
        turns.iter_mut().step_by(2).for_each(|turn| drop(turn.take()));
        let mut two = pin!(here.take(65 * KIB));
        assert!(poll(two.as_mut()).is_pending(), "of the free ones no two are neighbours");
        turns.clear();
        let Poll::Ready(Ok(two)) = poll(two.as_mut()) else { panic!("all are free") };
        assert_eq!(two.bytes, 0..128 * KIB);
        assert_eq!(here.now(14 * 64 * KIB).bytes.start, 128 * KIB, "the others are free again");
    }

    #[test]
    fn what_the_server_may_still_read_stays_when_the_connection_ends() {
        let here = Here::new(8 << 20);
        let mut turn = here.now(KEEP_PAGES_BYTES + 1);
        let value = vec![7; KEEP_PAGES_BYTES + 1];
        turn.store(&value).expect("stored");
        let at = turn.bytes.start;
        let _others: Vec<Turn> = (1..PLACES).map(|_| here.now(1)).collect();
        let mut late = pin!(here.take(1));
        assert!(poll(late.as_mut()).is_pending());
        here.staging.end();
        drop(turn);
        let Poll::Ready(Err(NoPlace::Ended)) = poll(late.as_mut()) else { panic!("a place") };
        let Poll::Ready(Err(NoPlace::Ended)) = poll(pin!(here.take(1))) else { panic!("a place") };
        let mut there = vec![0; value.len()];
        here.staging.memory.read_bytes(at, &mut there).expect("inside");
        assert_eq!(there, value);
    }

    #[test]
    fn who_gives_up_waiting_leaves_nothing_taken() {
        let here = Here::new(1024 * KIB);
        let little = here.now(KIB);
        {
            let mut much = pin!(here.take(1024 * KIB));
            assert!(poll(much.as_mut()).is_pending());
        }
        drop(little);
        drop(here.now(1024 * KIB));
    }
}
