//! One poller's completion queue: the device's queue and channel, the receive buffers that all its
//! peers share, and the table of its endpoints.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

use crossbeam_queue::SegQueue;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, eventfd};

use super::endpoint::{Link, Side};
use super::ffi::cq::Cq;
use super::ffi::error::VerbsError;
use super::ffi::keys::lkey;
use super::ffi::pd::{Access, Pd};
use super::ffi::qp::{Qp, QpInit};
use super::ffi::srq::Srq;
use super::figures::{self, Counts, count};
use super::flow::Flow;
use super::frames::Note;
use super::limits::{INLINE_BYTES, INTERNAL_DEPTH, QueueLimits, Shares};
use super::loopback::Atomicity;
use super::poll::Poller;
use super::regions::describe;
use super::table::Table;
use crate::buffer::{Buffer, BufferPool};
use crate::endpoint::{CompletionQueue, Wait};
use crate::mem::Memory;
use crate::work::{Completion, RegionId, Rights};

/// The handle of a poller. Dropping it ends all endpoints.
pub(crate) struct Queue(Arc<Core>);

pub(super) struct Core {
    pub(super) limits: QueueLimits,
    pub(super) shares: Shares,
    pub(super) pd: Arc<Pd>,
    pub(super) pool: BufferPool,
    pub(super) cq: Arc<Cq>,
    pub(super) srq: Arc<Srq>,
    /// What peers may have unanswered.
    pub(super) flow: Flow,
    pub(super) counts: Counts,
    pub(super) table: RwLock<Table>,
    pub(super) poller: Mutex<Poller>,
    /// Endpoints that may have to be announced.
    pub(super) fresh: SegQueue<u32>,
    /// Requests in flight of all endpoints.
    pub(super) in_flight: AtomicUsize,
    pub(super) waiting: AtomicBool,
    pub(super) wake: OwnedFd,
    /// Longest READ or WRITE that the device does in one.
    pub(super) transfer_bytes: usize,
}

/// There is no place for another endpoint.
#[derive(Debug, thiserror::Error)]
#[error("the limit of {0} RDMA connections is reached")]
pub(crate) struct QueueFull(usize);

impl Queue {
    /// A completion queue, its channel, and the receive buffers, in this domain.
    ///
    /// # Errors
    /// At the device's limits, or that of locked memory.
    pub(crate) fn new(pd: &Arc<Pd>, limits: QueueLimits) -> Result<Arc<Self>, VerbsError> {
        let (limits, depth) = limits.in_range().on(&pd.device().attr()?)?;
        let cq = Cq::new(pd.device(), depth)?;
        let srq = Srq::new(pd, limits.receive_depth as u32)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|errno| VerbsError::code("eventfd", errno.raw_os_error()))?;
        let port = pd.device().port(1)?;
        let core = Arc::new(Core {
            limits,
            shares: Shares::new(&limits),
            pd: Arc::clone(pd),
            pool: BufferPool::new(),
            transfer_bytes: (port.max_msg_sz as usize).clamp(1 << 20, 1 << 30),
            cq,
            srq,
            counts: Counts::default(),
            flow: Flow::new(limits.credits, limits.receive_depth),
            table: RwLock::default(),
            poller: Mutex::new(Poller::new(limits.receive_depth)),
            fresh: SegQueue::new(),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            wake,
        });
        core.receive_first()?;
        Ok(Arc::new(Self(core)))
    }

    /// What to make a queue pair of this queue with.
    pub(crate) fn qp_init(&self) -> QpInit {
        let limits = &self.0.limits;
        let depth = limits.send_depth + INTERNAL_DEPTH + 1;
        QpInit::new(&self.0.pd, &self.0.cq, &self.0.srq, depth as u32, INLINE_BYTES)
    }

    /// Adds an endpoint, before its peer can send anything. On the listening side its user hears
    /// of it when it is [`Link::connected`], or its first message arrives.
    ///
    /// # Errors
    /// When all places are taken; the queue pair is destroyed then.
    pub(crate) fn add(&self, context: u64, side: Side, qp: Qp) -> Result<Arc<Link>, QueueFull> {
        let core = &self.0;
        let mut table = core.table.write();
        if table.len() >= core.limits.max_endpoints {
            return Err(QueueFull(core.limits.max_endpoints));
        }
        let link = |tag| Arc::new(Link::new(Arc::clone(core), tag, context, side, qp));
        Ok(table.add(link))
    }

    /// Registers a region before a peer asks for it.
    ///
    /// # Errors
    /// When it cannot be registered.
    pub(crate) fn register(
        &self,
        region: RegionId,
        memory: &Memory,
        rights: Rights,
    ) -> Result<(), VerbsError> {
        self.0.describe(region, memory, self.0.access_of(rights)).map(drop)
    }

    /// Whether its receive buffers are in the receive queue of this key.
    pub(crate) fn receives_from(&self, srq: usize) -> bool {
        self.0.srq.key() == srq
    }

    /// The device says that few receive buffers are left.
    pub(crate) fn ran_low(&self) {
        self.0.flow.ran_low();
    }

    /// Whether there is no place for another endpoint.
    pub(crate) fn is_full(&self) -> bool {
        self.0.table.read().len() >= self.0.limits.max_endpoints
    }

    /// Ends the endpoint whose queue pair has this number on the device, if there is one.
    pub(crate) fn end_one(&self, qp_num: u32, reason: &str) {
        let link = self.0.table.read().by_qp(qp_num).cloned();
        if let Some(link) = link {
            count(&self.0.counts.queue_pair_errors);
            link.end(reason.to_owned(), true);
        }
    }

    /// As [`Self::end_one`], of one whose peer has reached for what is not its own.
    pub(crate) fn end_intruder(&self, qp_num: u32, reason: &str) {
        let link = self.0.table.read().by_qp(qp_num).cloned();
        if let Some(link) = link {
            count(&self.0.counts.access_errors);
            link.end(reason.to_owned(), true);
        }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// What there is to count of all queues of a listener, with the port that they are reached
    /// through.
    pub(crate) fn figures(queues: &[Arc<Self>], port: u8) -> Vec<(&'static str, u64)> {
        let cores: Vec<&Core> = queues.iter().map(|queue| &*queue.0).collect();
        let device = cores.first().map_or("", |core| core.pd.device().name());
        figures::list(&cores, device, port)
    }

    /// The path MTU of each endpoint.
    #[cfg(test)]
    pub(crate) fn path_mtus(&self) -> Vec<u32> {
        self.links().iter().filter_map(|link| link.path_mtu_bytes()).collect()
    }

    /// Its endpoints.
    #[cfg(test)]
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.0.table.read().links().cloned().collect()
    }

    /// Ends all endpoints; their ends are delivered.
    pub(crate) fn end_all(&self, reason: &str) {
        self.0.end_all(reason);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.end_all("closed by this side");
        let core = Arc::clone(&self.0);
        let drain = move || core.drain();
        if let Err(error) = std::thread::Builder::new().name("verbs-drain".into()).spawn(drain) {
            tracing::warn!(%error, "no thread for the end of RDMA connections");
            self.0.drain();
        }
    }
}

impl CompletionQueue for Queue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let before = out.len();
        self.0.poll(&mut self.0.poller.lock(), out, max);
        out.len() - before
    }

    fn wait(&self, timeout: Duration) -> Wait {
        self.0.wait(timeout)
    }

    fn wake(&self) {
        self.0.ring();
    }
}

impl Core {
    /// What a region is registered for: writing without atomics is of no use to anybody.
    pub(super) fn access_of(&self, rights: Rights) -> Access {
        // Set-up: the device may be asked each time.
        match (rights, Atomicity::of(self.pd.device())) {
            (Rights::ReadWrite, Ok(Atomicity::Device | Atomicity::Global)) => Access::RemoteAll,
            _ => Access::RemoteRead,
        }
    }

    /// Registers a region and describes it to a peer.
    pub(super) fn describe(
        &self,
        region: RegionId,
        memory: &Memory,
        access: Access,
    ) -> Result<Note, VerbsError> {
        describe(&self.pd, self.limits.registration_max_bytes, region, memory, access)
    }

    /// The key of a buffer in this queue's domain.
    pub(super) fn lkey(&self, buffer: &Buffer) -> Result<u32, VerbsError> {
        lkey(&self.pd, buffer)
    }

    /// Takes room for `count` more requests of an endpoint that has `own` in flight. The device's
    /// queue can report only so many, and no endpoint may have more than its share of them: a peer
    /// that takes nothing holds up nobody else.
    pub(super) fn take(&self, own: usize, count: usize) -> bool {
        let before = self.in_flight.fetch_add(count, Ordering::Relaxed);
        let share = self.shares.of_one(before);
        let fits = before + count <= self.limits.total_sends && own + count <= share;
        if !fits {
            self.freed(count);
        }
        fits
    }

    /// As [`Self::take`], for the fabric's own notes.
    pub(super) fn take_for_note(&self) -> bool {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let fits = before < self.limits.total_sends + self.limits.max_endpoints;
        if !fits {
            self.freed(1);
        }
        fits
    }

    /// As [`Self::take`], for what there is always room for.
    pub(super) fn took(&self, count: usize) {
        self.in_flight.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn freed(&self, count: usize) {
        self.in_flight.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn ring(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Something has changed that who waits must look at.
    pub(super) fn look(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    pub(super) fn end_all(&self, reason: &str) {
        let links: Vec<_> = self.table.read().links().cloned().collect();
        for link in links {
            link.end(reason.to_owned(), true);
        }
    }
}
