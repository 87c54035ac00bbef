//! What is posted on a queue pair and not completed: it owns the buffers until then.
//!
//! An RC queue pair completes in order, so a completion stands for all that was posted before it
//! and only the last of a chain is signalled to the device. After the first failure each request
//! has a completion of its own, and whoever is behind it was flushed.

use std::collections::VecDeque;
use std::ops::Range;

use super::cq::Wc;
use super::error::VerbsError;
use super::qp::Qp;
use super::sys;
use crate::buffer::Buffer;
use crate::mem::AccessError;
use crate::work::RegionId;

mod alone;

/// A place in a peer's memory, as its device knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// What the device is told to do with (a piece of) a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Read(Target),
    Write(Target),
    CompareSwap { at: Target, expected: u64, new: u64 },
    FetchAdd { at: Target, add: u64 },
    Send { immediate: u32 },
}

/// What the poster hears of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read(RegionId),
    Write(RegionId),
    /// The word that was there is in the buffer.
    Atomic(RegionId),
    Send,
    /// Of the fabric itself: nobody hears of it.
    Internal,
    /// All of a request but its last piece.
    Piece,
    /// Never given to the device: it fails in its turn.
    Refused(AccessError),
    /// The last of all: everything before it was flushed.
    Marker,
}

/// A request and what it owns.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) signaled: bool,
    pub(crate) kind: Kind,
    pub(crate) buffer: Option<Buffer>,
}

/// How an entry ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Done,
    /// The first failure, with the device's status.
    Failed(u32),
    /// The first failure, found before the device was asked.
    Refused(AccessError),
    Flushed,
}

/// The send side of a queue pair.
pub(crate) struct SendQueue {
    qp: Option<Qp>,
    /// Upper half of each `wr_id`.
    tag: u64,
    ring: VecDeque<Entry>,
    /// Number of the ring's front.
    first: u32,
    /// Staged and not posted: requests, with the element of each.
    requests: Vec<sys::ibv_send_wr>,
    elements: Vec<sys::ibv_sge>,
    /// The next READ that is posted alone.
    read: sys::ibv_send_wr,
    /// Posted since the last that the device was told to signal.
    quiet: usize,
    /// At least one of so many is signalled.
    interval: usize,
    /// The first failure was seen.
    failed: bool,
    /// It was a piece's: for the request that it belongs to.
    owed: Option<u32>,
    /// The device did not take what it was given: what it never had must not pass for done.
    broken: bool,
}

// SAFETY: the pointers in `requests` and `read` are only valid, and only used, within one call.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// `tag` is the upper half of each `wr_id`, its top bit clear; of `interval` requests at least
    /// one is signalled.
    pub(crate) fn new(qp: Qp, tag: u32, interval: usize) -> Self {
        Self::with(Some(qp), tag, interval)
    }

    fn with(qp: Option<Qp>, tag: u32, interval: usize) -> Self {
        Self {
            qp,
            tag: u64::from(tag & (u32::MAX >> 1)) << 32,
            ring: VecDeque::new(),
            first: 0,
            requests: Vec::new(),
            elements: Vec::new(),
            read: alone::template(),
            quiet: 0,
            interval: interval.max(1),
            failed: false,
            owed: None,
            broken: false,
        }
    }

    /// The queue pair, until it is destroyed.
    pub(crate) fn qp(&self) -> Option<&Qp> {
        self.qp.as_ref()
    }

    /// Requests in flight or staged.
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Number of the oldest request: it changes as long as the device completes anything.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Whether the oldest request is one that the device was never given.
    pub(crate) fn is_refused_next(&self) -> bool {
        matches!(self.ring.front(), Some(Entry { kind: Kind::Refused(_), .. }))
    }

    /// Stages a request: one verb for each piece of its buffer, in order. `lkey` names the buffer
    /// in the queue pair's domain. Returns the entry if a piece is outside the buffer.
    pub(crate) fn stage(
        &mut self,
        entry: Entry,
        lkey: u32,
        pieces: impl IntoIterator<Item = (Verb, Range<usize>)>,
    ) -> Result<(), Entry> {
        let (addr, len_bytes) = match &entry.buffer {
            Some(buffer) => (buffer.addr(), buffer.capacity_bytes()),
            None => (0, 0),
        };
        let mut staged = 0;
        for (verb, range) in pieces {
            if range.start > range.end || range.end > len_bytes {
                self.unstage(staged);
                return Err(entry);
            }
            if staged > 0 {
                let piece = Entry { id: 0, signaled: false, kind: Kind::Piece, buffer: None };
                self.ring.push_back(piece);
            }
            staged += 1;
            let length = range.len() as u32;
            self.elements.push(sys::ibv_sge { addr: addr + range.start as u64, length, lkey });
            // Its number is given below, when the ring has its entry.
            let number = self.ring.len();
            self.requests.push(self.request(verb, length, number));
        }
        if staged > 0 {
            self.ring.push_back(entry);
        }
        Ok(())
    }

    fn unstage(&mut self, staged: usize) {
        self.requests.truncate(self.requests.len() - staged);
        self.elements.truncate(self.elements.len() - staged);
        self.ring.truncate(self.ring.len() - staged.saturating_sub(1));
    }

    /// A request for the ring's entry `place`, not yet linked to its element and the next.
    #[inline(always)]
    fn request(&self, verb: Verb, len_bytes: u32, place: usize) -> sys::ibv_send_wr {
        // SAFETY: it is plain data, for which zero is a value.
        let mut request: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = self.tag | u64::from(self.first.wrapping_add(place as u32));
        request.num_sge = i32::from(len_bytes > 0);
        match verb {
            Verb::Read(at) => {
                request.opcode = sys::IBV_WR_RDMA_READ;
                request.wr.rdma = rdma(at);
            }
            Verb::Write(at) => {
                request.opcode = sys::IBV_WR_RDMA_WRITE;
                request.wr.rdma = rdma(at);
            }
            Verb::CompareSwap { at, expected, new } => {
                request.opcode = sys::IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr.atomic = atomic(at, expected, new);
            }
            Verb::FetchAdd { at, add } => {
                request.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr.atomic = atomic(at, add, 0);
            }
            Verb::Send { immediate } => {
                request.opcode = sys::IBV_WR_SEND_WITH_IMM;
                request.__bindgen_anon_1.imm_data = immediate.to_be();
                let inline = self.qp.as_ref().map_or(0, Qp::inline_bytes);
                if len_bytes as usize <= inline {
                    request.send_flags |= sys::IBV_SEND_INLINE;
                }
            }
        }
        request
    }

    /// Gives all that is staged to the device, with one doorbell.
    ///
    /// # Errors
    /// When the device does not take all of it: it is broken. What it did not take stays in
    /// flight until [`Self::destroy`].
    pub(crate) fn commit(&mut self) -> Result<(), VerbsError> {
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        for (number, request) in self.requests.iter_mut().enumerate() {
            self.quiet += 1;
            if self.quiet >= self.interval || number + 1 == count {
                request.send_flags |= sys::IBV_SEND_SIGNALED;
                self.quiet = 0;
            }
        }
        let mut first = std::ptr::null_mut();
        for (request, element) in self.requests.iter_mut().zip(&mut self.elements).rev() {
            request.next = first;
            request.sg_list = element;
            first = request;
        }
        // SAFETY: the list is linked through `requests` and `elements`, which nobody touches
        // before the call returns; the ring owns the buffers.
        let given = unsafe { give(self.qp.as_ref(), first) };
        self.requests.clear();
        self.elements.clear();
        self.broken |= given.is_err();
        given
    }

    /// Adds a request that the device is not given; it fails when all before it have completed.
    /// What is staged must have been committed.
    pub(crate) fn refuse(&mut self, entry: Entry) {
        debug_assert!(self.requests.is_empty(), "commit first");
        self.ring.push_back(entry);
    }

    /// Moves the queue pair to its error state and posts the marker: when it completes, nothing
    /// is in flight.
    ///
    /// # Errors
    /// When the device refuses, or has refused before: only [`Self::destroy`] is left. (A marker
    /// would stand for all before it, also for what the device never had.)
    pub(crate) fn end(&mut self) -> Result<(), VerbsError> {
        let committed = self.commit();
        // Also where no marker can follow: whoever ends it counts on the peer's requests failing.
        self.qp.as_ref().map_or(Ok(()), |qp| qp.to_error())?;
        committed?;
        if self.broken {
            return Err(VerbsError::code("ibv_post_send", rustix::io::Errno::IO.raw_os_error()));
        }
        if self.qp.is_none() {
            return Ok(());
        }
        let nowhere = Target { addr: 0, rkey: 0 };
        let number = self.ring.len();
        let mut marker = self.request(Verb::Write(nowhere), 0, number);
        marker.send_flags |= sys::IBV_SEND_SIGNALED;
        self.ring.push_back(Entry { id: 0, signaled: false, kind: Kind::Marker, buffer: None });
        self.elements.push(sys::ibv_sge { addr: 0, length: 0, lkey: 0 });
        self.requests.push(marker);
        self.commit()
    }

    /// Takes what a completion stands for out of the ring, in order.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &Wc, mut each: impl FnMut(Entry, Fate)) {
        let count = (wc.wr_id() as u32).wrapping_sub(self.first) as usize;
        if count >= self.ring.len() {
            return;
        }
        for number in 0..=count {
            let Some(entry) = self.ring.pop_front() else { return };
            self.first = self.first.wrapping_add(1);
            let status = if number == count { wc.status() } else { sys::IBV_WC_SUCCESS };
            if let Some(fate) = self.fate(&entry, status) {
                each(entry, fate);
            }
        }
    }

    /// `None` for pieces, which have no fate of their own.
    fn fate(&mut self, entry: &Entry, status: u32) -> Option<Fate> {
        if entry.kind == Kind::Piece {
            if status != sys::IBV_WC_SUCCESS && !self.failed {
                (self.failed, self.owed) = (true, Some(status));
            }
            return None;
        }
        if let Some(status) = self.owed.take() {
            return Some(first_failure(status));
        }
        if self.failed {
            return Some(Fate::Flushed);
        }
        if let Kind::Refused(error) = entry.kind {
            self.failed = true;
            return Some(Fate::Refused(error));
        }
        if status == sys::IBV_WC_SUCCESS {
            return Some(Fate::Done);
        }
        self.failed = true;
        Some(first_failure(status))
    }

    /// Destroys the queue pair and then takes everything out of the ring: flushed, but for what
    /// was refused.
    pub(crate) fn destroy(&mut self, mut each: impl FnMut(Entry, Fate)) {
        // From here on the device touches no buffer.
        self.qp = None;
        while let Some(entry) = self.ring.pop_front() {
            self.first = self.first.wrapping_add(1);
            let status = sys::IBV_WC_WR_FLUSH_ERR;
            if let Some(fate) = self.fate(&entry, status) {
                each(entry, fate);
            }
        }
    }

    /// The queue pair, to be destroyed elsewhere, if nothing is in flight.
    pub(crate) fn take_idle_qp(&mut self) -> Option<Qp> {
        if self.ring.is_empty() { self.qp.take() } else { None }
    }
}

/// Gives a list of requests to the device.
///
/// # Safety
/// The list must be valid, and what it points at be owned by the queue pair's ring: until the
/// completion, or the queue pair's end.
#[inline]
unsafe fn give(qp: Option<&Qp>, first: *mut sys::ibv_send_wr) -> Result<(), VerbsError> {
    let mut bad: *mut sys::ibv_send_wr = std::ptr::null_mut();
    let code = match qp {
        // SAFETY: the queue pair is valid, and the rest as the caller says.
        Some(qp) => unsafe { sys::post_send(qp.as_ptr(), first, &raw mut bad) },
        None => rustix::io::Errno::NOTCONN.raw_os_error(),
    };
    if code == 0 { Ok(()) } else { Err(VerbsError::code("ibv_post_send", code)) }
}

fn first_failure(status: u32) -> Fate {
    if status == sys::IBV_WC_WR_FLUSH_ERR { Fate::Flushed } else { Fate::Failed(status) }
}

fn rdma(at: Target) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: at.addr, rkey: at.rkey }
}

fn atomic(at: Target, compare_add: u64, swap: u64) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    let (remote_addr, rkey) = (at.addr, at.rkey);
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        // The queue pair first, then the buffers.
        self.destroy(|_, _| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;

    const AT: Target = Target { addr: 1 << 20, rkey: 1 };

    /// Without a device: what is committed is lost, and completions are made up.
    pub(super) struct Flight {
        pub(super) queue: SendQueue,
        pub(super) pool: BufferPool,
        pub(super) seen: Vec<(u64, Fate)>,
    }

    impl Flight {
        pub(super) fn new() -> Self {
            let queue = SendQueue::with(None, 0x1234, 4);
            Self { queue, pool: BufferPool::new(), seen: vec![] }
        }

        fn entry(&self, id: u64, kind: Kind) -> Entry {
            Entry { id, signaled: true, kind, buffer: Some(self.pool.get(128)) }
        }

        pub(super) fn stage(&mut self, id: u64, pieces: usize) {
            let entry = self.entry(id, Kind::Read(RegionId(1)));
            let pieces = (0..pieces).map(|n| (Verb::Read(AT), n * 8..n * 8 + 8));
            self.queue.stage(entry, 5, pieces).expect("inside");
            assert!(self.queue.commit().is_err(), "there is no queue pair");
        }

        pub(super) fn complete(&mut self, number: u32, status: u32) {
            let wc = Wc::made_up(0x1234 << 32 | u64::from(number), status);
            self.queue.complete(&wc, |entry, fate| self.seen.push((entry.id, fate)));
        }
    }

    #[test]
    fn a_completion_stands_for_all_before_it() {
        let mut flight = Flight::new();
        (1..=5).for_each(|id| flight.stage(id, 1));
        flight.complete(2, sys::IBV_WC_SUCCESS);
        assert_eq!(flight.seen, [(1, Fate::Done), (2, Fate::Done), (3, Fate::Done)]);
        // One of before, and one that was never posted: nothing happens.
        flight.complete(1, sys::IBV_WC_SUCCESS);
        flight.complete(5, sys::IBV_WC_SUCCESS);
        flight.complete(u32::MAX, sys::IBV_WC_SUCCESS);
        assert_eq!((flight.seen.len(), flight.queue.len()), (3, 2));
    }

    #[test]
    fn what_is_before_a_failure_is_done_and_what_is_behind_it_flushed() {
        let mut flight = Flight::new();
        (1..=4).for_each(|id| flight.stage(id, 1));
        flight.complete(1, sys::IBV_WC_REM_ACCESS_ERR);
        flight.complete(3, sys::IBV_WC_WR_FLUSH_ERR);
        let failed = Fate::Failed(sys::IBV_WC_REM_ACCESS_ERR);
        let expected = [(1, Fate::Done), (2, failed), (3, Fate::Flushed), (4, Fate::Flushed)];
        assert_eq!(flight.seen, expected);
    }

    #[test]
    fn a_request_of_pieces_fails_once_with_the_piece_s_reason() {
        let mut flight = Flight::new();
        flight.stage(1, 3);
        flight.stage(2, 2);
        flight.complete(1, sys::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(flight.seen, [], "its buffer is in use until its last piece has ended");
        flight.complete(2, sys::IBV_WC_WR_FLUSH_ERR);
        flight.complete(4, sys::IBV_WC_WR_FLUSH_ERR);
        let failed = Fate::Failed(sys::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(flight.seen, [(1, failed), (2, Fate::Flushed)]);
    }

    #[test]
    fn a_refused_request_fails_in_its_turn() {
        let mut flight = Flight::new();
        flight.stage(1, 1);
        let error = AccessError::NotAttached(9);
        let refused = flight.entry(2, Kind::Refused(error));
        flight.queue.refuse(refused);
        assert!(!flight.queue.is_refused_next());
        flight.complete(0, sys::IBV_WC_SUCCESS);
        assert!(flight.queue.is_refused_next());
        flight.stage(3, 1);
        flight.queue.destroy(|entry, fate| flight.seen.push((entry.id, fate)));
        let expected = [(1, Fate::Done), (2, Fate::Refused(error)), (3, Fate::Flushed)];
        assert_eq!(flight.seen, expected);
    }

    #[test]
    fn what_the_device_did_not_take_is_never_done() {
        let mut flight = Flight::new();
        flight.stage(1, 1);
        assert!(flight.queue.end().is_err(), "a marker behind it would stand for it");
        assert_eq!(flight.queue.len(), 1);
        flight.queue.destroy(|entry, fate| flight.seen.push((entry.id, fate)));
        assert_eq!(flight.seen, [(1, Fate::Flushed)]);
    }

    #[test]
    fn numbers_go_around() {
        let mut flight = Flight::new();
        flight.queue.first = u32::MAX - 1;
        (1..=4).for_each(|id| flight.stage(id, 1));
        flight.complete(0, sys::IBV_WC_SUCCESS);
        flight.complete(1, sys::IBV_WC_SUCCESS);
        assert_eq!(flight.seen.len(), 4);
        assert_eq!(flight.queue.first(), 2);
    }

    #[test]
    fn a_piece_outside_its_buffer_is_never_staged() {
        let mut flight = Flight::new();
        let entry = flight.entry(1, Kind::Send);
        let pieces = [(Verb::Send { immediate: 0 }, 0..64), (Verb::Send { immediate: 0 }, 64..129)];
        assert!(flight.queue.stage(entry, 5, pieces).is_err());
        assert_eq!((flight.queue.len(), flight.queue.requests.len()), (0, 0));
    }
}
