//! Memory for buffers that are lent to peers and devices for long transfers: each a mapping of its
//! own, so that who may read one buffer may read no other. Mapping and registering cost as much as
//! copying a megabyte, so a buffer that is dropped is parked, registrations and all, for the next
//! one of about its length; what has not been used for longest goes first.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Buffer, Home, SMALLEST_BYTES};
use crate::mem::block::{Block, Chunk};

/// Lengths are multiples of this, shorter ones powers of two, so that buffers whose lengths differ
/// a little can follow each other.
const STEP_BYTES: usize = 64 << 10;

/// Where buffers that are lent come from and are kept. Cloning shares it.
#[derive(Clone)]
pub struct Parking {
    shared: Arc<Shared>,
}

struct Shared {
    max_bytes: usize,
    max_count: usize,
    parked: Mutex<Parked>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Parked {
    /// The one that was used longest ago first.
    blocks: VecDeque<Block>,
    bytes: usize,
}

/// How a parking is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ParkingUsage {
    /// Bytes of buffers that wait to be used again: mapped, and registered where they were used.
    pub parked_bytes: usize,
    /// How many they are.
    pub parked: usize,
    /// Buffers that had been parked before.
    pub hits: u64,
    /// Buffers that had to be mapped, and registered at their first use.
    pub misses: u64,
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parking").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl Parking {
    /// Keeps at most so many bytes, and so many buffers, while they are not in use.
    #[must_use]
    pub fn new(max_bytes: usize, max_count: usize) -> Self {
        let parked = Mutex::default();
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { shared: Arc::new(Shared { max_bytes, max_count, parked, hits, misses }) }
    }

    /// A buffer of `len_bytes`; its contents are whatever was there before.
    ///
    /// # Errors
    /// When the system has no such amount.
    pub fn take(&self, len_bytes: usize) -> std::io::Result<Buffer> {
        let shared = &*self.shared;
        let parked = shared.parked.lock().take(len_bytes);
        let block = match parked {
            Some(block) => {
                shared.hits.fetch_add(1, Ordering::Relaxed);
                block
            }
            None => {
                shared.misses.fetch_add(1, Ordering::Relaxed);
                let too_long = std::io::ErrorKind::OutOfMemory;
                let room = match len_bytes < STEP_BYTES {
                    true => len_bytes.next_power_of_two(),
                    false => len_bytes.checked_next_multiple_of(STEP_BYTES).ok_or(too_long)?,
                };
                Chunk::map_to_lend(room)?.carve(room).ok_or(too_long)?
            }
        };
        Ok(Buffer { len_bytes, home: Some((block, Home::Parking(self.clone()))) })
    }

    /// What is parked, and how often that helped.
    #[must_use]
    pub fn usage(&self) -> ParkingUsage {
        let Shared { hits, misses, .. } = &*self.shared;
        let (hits, misses) = (hits.load(Ordering::Relaxed), misses.load(Ordering::Relaxed));
        let parked = self.shared.parked.lock();
        ParkingUsage { parked_bytes: parked.bytes, parked: parked.blocks.len(), hits, misses }
    }

    pub(super) fn park(&self, block: Block) {
        let Shared { max_bytes, max_count, .. } = *self.shared;
        let mut parked = self.shared.parked.lock();
        parked.bytes += mapped_bytes(&block);
        parked.blocks.push_back(block);
        let mut unneeded = Vec::new();
        while parked.bytes > max_bytes || parked.blocks.len() > max_count {
            let Some(oldest) = parked.blocks.pop_front() else { break };
            parked.bytes -= mapped_bytes(&oldest);
            unneeded.push(oldest);
        }
        drop(parked);
        // Unregistered and unmapped after the lock was given back.
        drop(unneeded);
    }
}

impl Parked {
    /// The shortest that is long enough, and not more than twice as long as needed: of several the
    /// one that was used last.
    fn take(&mut self, len_bytes: usize) -> Option<Block> {
        let most_bytes = len_bytes.saturating_mul(2).max(SMALLEST_BYTES);
        let fits = |block: &Block| (len_bytes..=most_bytes).contains(&block.len_bytes());
        let candidates = self.blocks.iter().enumerate().rev().filter(|(_, block)| fits(block));
        let (place, _) = candidates.min_by_key(|(_, block)| block.len_bytes())?;
        let block = self.blocks.remove(place)?;
        self.bytes -= mapped_bytes(&block);
        Some(block)
    }
}

/// It is alone in its mapping, which is in whole pages.
fn mapped_bytes(block: &Block) -> usize {
    block.chunk().len_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_used_again_with_what_devices_know_of_it() {
        let parking = Parking::new(1 << 20, 4);
        let buffer = parking.take(100_000).unwrap();
        let (addr, capacity) = (buffer.addr(), buffer.capacity_bytes());
        assert!(buffer.is_lendable() && capacity >= 100_000);
        let register = |buffer: &Buffer| {
            let made = buffer.registered(7, |span| Ok::<_, ()>(span.addr));
            made.unwrap().copied()
        };
        assert_eq!(register(&buffer), Some(addr), "alone in its mapping");
        drop(buffer);
        assert_eq!(parking.usage().parked_bytes, capacity);
        let again = parking.take(90_000).unwrap();
        assert_eq!((again.addr(), again.len()), (addr, 90_000));
        let known = again.registered(7, |_| Err::<u64, _>("registered again"));
        assert_eq!(known, Ok(Some(&addr)));
        let other = parking.take(90_000).unwrap();
        assert_ne!(other.addr(), addr);
        let usage = parking.usage();
        assert_eq!((usage.hits, usage.misses, usage.parked), (1, 2, 0));
    }

    #[test]
    fn bytes_and_number_are_bounded_and_the_oldest_goes() {
        let parking = Parking::new(10 * STEP_BYTES, 3);
        let steps = |n: usize| parking.take(n * STEP_BYTES).unwrap();
        let (one, two, three) = (steps(1), steps(2), steps(3));
        let [first, second, third] = [&one, &two, &three].map(Buffer::addr);
        drop((one, two, three));
        assert_eq!(parking.usage().parked, 3);
        drop(parking.take(20 * STEP_BYTES).unwrap());
        assert_eq!(parking.usage().parked, 0, "all make room for what has none itself");
        let all = [steps(1), steps(2), steps(3), steps(4)];
        let last = all[3].addr();
        assert!([first, second, third, last].iter().all(|&addr| addr != 0));
        drop(all);
        let usage = parking.usage();
        assert_eq!((usage.parked, usage.parked_bytes), (3, 9 * STEP_BYTES));
        assert_eq!(steps(4).addr(), last);
        let misses = parking.usage().misses;
        drop(steps(1));
        assert_eq!(parking.usage().misses, misses, "one of two steps serves");
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        let parking = Parking::new(0, 0);
        drop(parking.take(1).unwrap());
        assert_eq!(parking.usage(), ParkingUsage { misses: 1, ..ParkingUsage::default() });
        assert!(parking.take(usize::MAX).is_err());
    }
}
