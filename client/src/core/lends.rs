//! Buffers of callers' that are lent to the server: their numbers, each for one request at a time.

use std::sync::Arc;

use onesided_fabric::{Buffer, Endpoint, LENT_MAX, RegionId};
use onesided_protocol::limits::LENT_BUFFERS_MAX;
use parking_lot::Mutex;

const _: () = assert!(LENT_MAX == LENT_BUFFERS_MAX);

/// The numbers of one connection.
#[derive(Debug, Default)]
pub(crate) struct Lends {
    numbers: Mutex<[Number; LENT_MAX]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Number {
    taken: bool,
    /// Which buffer it was last: the server has been told already.
    addr: u64,
}

/// A buffer that the server may READ as long as this exists.
#[derive(Debug)]
pub(crate) struct Lent {
    lends: Arc<Lends>,
    place: usize,
    buffer: Arc<Buffer>,
}

impl Lends {
    /// Lends a buffer. `None`: all numbers are taken, or the fabric cannot; copy it then.
    pub(crate) fn lend(self: &Arc<Self>, buffer: &Arc<Buffer>, to: &dyn Endpoint) -> Option<Lent> {
        let place = self.take(buffer.addr())?;
        let lent = Lent { lends: Arc::clone(self), place, buffer: Arc::clone(buffer) };
        match to.lend_buffer(RegionId(u32::from(lent.number())), buffer) {
            Ok(()) => Some(lent),
            Err(error) => {
                tracing::debug!(%error, "a buffer is not lent but copied");
                None
            }
        }
    }

    fn take(&self, addr: u64) -> Option<usize> {
        let mut numbers = self.numbers.lock();
        let free = || numbers.iter().enumerate().filter(|(_, number)| !number.taken);
        let known = free().find(|(_, number)| number.addr == addr);
        // Else one that was never used, if there is one.
        let (place, _) = known.or_else(|| free().min_by_key(|(_, number)| number.addr != 0))?;
        numbers[place] = Number { taken: true, addr };
        Some(place)
    }
}

impl Lent {
    pub(crate) fn number(&self) -> u16 {
        self.place as u16 + 1
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.buffer.len()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lends.numbers.lock()[self.place].taken = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_gets_its_number_again_and_no_number_is_given_twice() {
        let lends = Lends::default();
        let taken: Vec<_> = (0..LENT_MAX as u64).map(|n| lends.take(n + 100).unwrap()).collect();
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..LENT_MAX).collect::<Vec<_>>());
        assert_eq!(lends.take(100), None, "all are taken");
        for place in [3, 7] {
            lends.numbers.lock()[taken[place]].taken = false;
        }
        assert_eq!(lends.take(107), Some(taken[7]));
        assert_eq!(lends.take(99), Some(taken[3]));
    }
}
