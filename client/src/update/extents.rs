//! Room that the server has leased, entry behind entry.
//!
//! Places are given and what is WRITTEN there is posted under one lock: so what a client that dies
//! has not written whole is the last of a lease, and behind it are zeros.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onesided_protocol::LogAddr;
use onesided_protocol::limits::SEGMENT_BYTES;
use parking_lot::{Mutex, MutexGuard};

/// A lease that lasted less than this was short: the next one is asked for twice as long.
const SHORT_NS: u64 = 100_000_000;
/// And one that lasted longer than this was long.
const LONG_NS: u64 = 2_000_000_000;
/// After a refusal so many updates go by RPC before another lease is asked for.
const PAUSE: u32 = 64;

/// One lease.
pub(crate) struct Extent {
    addr: LogAddr,
    session: u64,
    len_bytes: usize,
    /// Updates that may still WRITE there.
    in_flight: AtomicUsize,
}

/// While this lives its extent is not given back.
pub(crate) struct Held(Arc<Extent>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Release);
    }
}

/// All of a client's leases of one table.
#[derive(Default)]
pub(crate) struct Extents {
    room: Mutex<Room>,
    tending: AtomicBool,
}

/// What is written to, and what comes next. Whoever has it locked may write.
#[derive(Default)]
pub(crate) struct Room {
    /// Whose it is: each connection that opens the table has its turn.
    turn: u64,
    /// The session of that connection.
    session: u64,
    current: Option<(Arc<Extent>, usize)>,
    next: Option<Arc<Extent>>,
    full: Vec<Arc<Extent>>,
    /// Nothing may be written any more.
    closed: bool,
    wanted_bytes: usize,
    /// On the server's clock: it stands still in simulations, where time is theirs.
    leased_at_ns: Option<u64>,
    /// Updates that do not ask for a lease.
    pause: u32,
}

/// Held while leases are asked for and given back.
pub(crate) struct Tending<'a>(&'a AtomicBool);

impl Drop for Tending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Extents {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Room> {
        self.room.lock()
    }

    /// For who writes in its turn: as long as this is locked nobody else does. `None`: nothing may
    /// be written any more. What is placed in the leases of the connection after it, and cannot be
    /// posted, would leave a hole there.
    pub(crate) fn lock_in(&self, turn: u64) -> Option<MutexGuard<'_, Room>> {
        let room = self.lock();
        (room.turn == turn && !room.closed).then_some(room)
    }

    /// One at a time; `None`: somebody else does.
    pub(crate) fn begin_to_tend(&self) -> Option<Tending<'_>> {
        let (set, fail) = (Ordering::Acquire, Ordering::Relaxed);
        let begun = self.tending.compare_exchange(false, true, set, fail);
        begun.ok().map(|_| Tending(&self.tending))
    }

    /// Nothing is written any more when this returns.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Another connection is used from now on, in the turn that is returned; of the same session or
    /// of another one. Leases of another session are that one's end to give back.
    pub(crate) fn go_on(&self, session: u64) -> u64 {
        let mut room = self.lock();
        room.turn += 1;
        room.session = session;
        let current = room.current.take().map(|(extent, _)| extent);
        let next = room.next.take();
        room.full.extend(current.into_iter().chain(next));
        room.full.retain(|extent| extent.session == session);
        room.pause = 0;
        room.turn
    }

    /// The leases that nothing is written to any more, until [`Self::sealed`].
    pub(crate) fn to_seal(&self) -> Vec<LogAddr> {
        let is_idle = |extent: &&Arc<Extent>| extent.in_flight.load(Ordering::Acquire) == 0;
        self.lock().full.iter().filter(is_idle).map(|extent| extent.addr).collect()
    }

    /// One of them was given back.
    pub(crate) fn sealed(&self, addr: LogAddr) {
        self.lock().full.retain(|extent| extent.addr != addr);
    }

    /// How long a lease to ask for, if it is time, or if an entry of so many bytes has no room.
    pub(crate) fn wanted(&self, len_bytes: usize, now_ns: u64) -> Option<usize> {
        let mut room = self.lock();
        if room.closed || room.next.is_some() {
            return None;
        }
        let lasted_ns = room.leased_at_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
        room.wanted_bytes = match lasted_ns {
            Some(lasted_ns) if lasted_ns < SHORT_NS => (room.wanted_bytes * 2).min(SEGMENT_BYTES),
            Some(lasted_ns) if lasted_ns > LONG_NS => room.wanted_bytes / 2,
            _ => room.wanted_bytes,
        };
        room.wanted_bytes = room.wanted_bytes.max(1);
        Some(room.wanted_bytes.max(len_bytes))
    }

    /// The server gave one to this session, over the connection whose turn this was. Whether it is
    /// of use: if another one is used by now, it is only to be given back.
    pub(crate) fn add(
        &self,
        (turn, session): (u64, u64),
        (addr, len_bytes): (LogAddr, usize),
        now_ns: u64,
    ) -> bool {
        let mut room = self.lock();
        if room.session != session {
            return false;
        }
        let in_flight = AtomicUsize::new(0);
        let extent = Arc::new(Extent { addr, session, len_bytes, in_flight });
        room.leased_at_ns = Some(now_ns);
        room.pause = 0;
        // Twice a block is half of it.
        room.wanted_bytes = room.wanted_bytes.max(len_bytes);
        let is_of_use = room.turn == turn && !room.closed;
        match is_of_use {
            true => room.next = Some(extent),
            false => room.full.push(extent),
        }
        is_of_use
    }

    /// The server gave none.
    pub(crate) fn refused(&self) {
        self.lock().pause = PAUSE;
    }
}

impl Room {
    /// A place for an entry of so many bytes.
    pub(crate) fn place(&mut self, len_bytes: usize) -> Option<LogAddr> {
        let fits = |at: &(Arc<Extent>, usize)| at.1 + len_bytes <= at.0.len_bytes;
        if !self.current.as_ref().is_some_and(fits) {
            let next = self.next.take_if(|next| len_bytes <= next.len_bytes)?;
            if let Some((full, _)) = self.current.replace((next, 0)) {
                self.full.push(full);
            }
        }
        let (extent, used_bytes) = self.current.as_mut()?;
        let offset_bytes = extent.addr.offset_bytes() + *used_bytes;
        *used_bytes += len_bytes;
        Some(LogAddr::new(extent.addr.region(), offset_bytes))
    }

    /// The place that was given last is not used: nothing was posted.
    pub(crate) fn give_back(&mut self, len_bytes: usize) {
        if let Some((_, used_bytes)) = &mut self.current {
            *used_bytes -= len_bytes;
        }
    }

    /// Keeps the extent of the place that was given last from being given back.
    pub(crate) fn hold(&self) -> Option<Held> {
        let (extent, _) = self.current.as_ref()?;
        extent.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(Held(Arc::clone(extent)))
    }

    /// Whether it is time to ask for the next lease.
    pub(crate) fn is_low(&mut self) -> bool {
        let is_half = |(extent, used): &(Arc<Extent>, usize)| *used * 2 > extent.len_bytes;
        self.next.is_none() && self.current.as_ref().is_some_and(is_half) && !self.pauses()
    }

    /// Whether this update is not to ask for a lease, as one was refused lately.
    pub(crate) fn pauses(&mut self) -> bool {
        let pauses = self.pause > 0;
        self.pause = self.pause.saturating_sub(1);
        pauses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4096;

    fn lease(number: usize) -> (LogAddr, usize) {
        (LogAddr::new(1, (number + 1) << 20), LEN)
    }

    fn place(extents: &Extents, turn: u64) -> Option<LogAddr> {
        extents.lock_in(turn)?.place(64)
    }

    #[test]
    fn who_comes_late_on_a_lost_connection_leaves_no_hole_in_leases_of_the_next_one() {
        let extents = Extents::default();
        let first = extents.go_on(1);
        assert!(extents.add((first, 1), lease(0), 0));
        assert_eq!(place(&extents, first), Some(lease(0).0));
        let second = extents.go_on(1);
        assert_eq!(place(&extents, second), None, "what the first one wrote to is full");
        assert!(extents.add((second, 1), lease(1), 0));
        assert_eq!(place(&extents, first), None);
        assert_eq!(place(&extents, second), Some(lease(1).0));
        extents.close();
        assert_eq!(place(&extents, second), None);
    }

    #[test]
    fn a_lease_of_a_lost_connection_is_given_back_in_its_session() {
        let extents = Extents::default();
        let (first, second) = (extents.go_on(1), extents.go_on(1));
        assert!(!extents.add((first, 1), lease(0), 0));
        assert_eq!(place(&extents, second), None);
        assert_eq!(extents.to_seal(), [lease(0).0]);
        assert_eq!(extents.to_seal(), [lease(0).0], "nobody knows yet that it was");
        extents.sealed(lease(0).0);
        let third = extents.go_on(2);
        assert!(!extents.add((second, 1), lease(1), 0));
        assert_eq!(place(&extents, third), None);
        assert_eq!(extents.to_seal(), [], "its session's end gives it back");
        assert!(extents.add((third, 2), lease(2), 0));
        assert_eq!(place(&extents, third), Some(lease(2).0));
        extents.go_on(3);
        assert_eq!(extents.to_seal(), [], "nor is one that was written to asked for by another");
    }
}
