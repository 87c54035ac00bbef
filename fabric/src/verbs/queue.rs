//! One poller's completion queue: the device's queue and channel, the receive buffers that all its
//! peers share, and the table of its endpoints.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use super::endpoint::{Link, Side};
use super::ffi::cq::{Cq, Wc};
use super::ffi::error::VerbsError;
use super::ffi::keys::lkey;
use super::ffi::pd::Pd;
use super::ffi::qp::{Qp, QpInit};
use super::ffi::srq::Srq;
use super::frames::Arrived;
use crate::buffer::{Buffer, BufferPool};
use crate::endpoint::{CompletionQueue, Wait};
use crate::work::{Completion, Outcome};

/// Bounds of a [`Queue`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Endpoints at once, 1 to 65,535.
    pub(crate) max_endpoints: usize,
    /// Requests in flight of each endpoint.
    pub(crate) send_depth: usize,
    /// Requests in flight of all endpoints together.
    pub(crate) total_sends: usize,
    /// Longest message.
    pub(crate) max_message_bytes: usize,
    /// Receive buffers that all endpoints share.
    pub(crate) receive_depth: usize,
    /// Length of each: longer messages travel in pieces.
    pub(crate) receive_bytes: usize,
    /// A request that the device has not completed in this time ends its endpoint.
    pub(crate) work_timeout: Duration,
    /// How long an endpoint that ends waits for what is in flight to be flushed; then its queue
    /// pair is destroyed without that.
    pub(crate) flush_timeout: Duration,
    /// How long a peer waits before it sends again what met no receive buffer: a code of the
    /// specification, 12 is 640 us.
    pub(crate) rnr_timer: u8,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            max_endpoints: 1024,
            send_depth: 128,
            total_sends: 16_384,
            max_message_bytes: 70 << 10,
            receive_depth: 512,
            receive_bytes: 8 << 10,
            work_timeout: Duration::from_secs(10),
            flush_timeout: Duration::from_secs(2),
            rnr_timer: 12,
        }
    }
}

/// Requests of each endpoint that only the fabric itself may post: answers about regions.
pub(super) const INTERNAL_DEPTH: usize = 16;
/// Messages up to so many bytes are asked to be sent inline.
const INLINE_BYTES: u32 = 64;

impl QueueLimits {
    fn in_range(self) -> Self {
        let receive_bytes = self.receive_bytes.clamp(256, 1 << 20);
        let max_message_bytes = self.max_message_bytes.clamp(8, 1 << 20);
        let pieces = max_message_bytes.div_ceil(receive_bytes);
        let send_depth = self.send_depth.clamp(16.max(pieces), 4096);
        Self {
            max_endpoints: self.max_endpoints.clamp(1, 65_535),
            send_depth,
            total_sends: self.total_sends.clamp(send_depth, 1 << 20),
            max_message_bytes,
            receive_depth: self.receive_depth.clamp(16, 1 << 15),
            receive_bytes,
            ..self
        }
    }
}

/// The handle of a poller. Dropping it ends all endpoints.
pub(crate) struct Queue(Arc<Core>);

pub(super) struct Core {
    pub(super) limits: QueueLimits,
    pub(super) pd: Arc<Pd>,
    pub(super) pool: BufferPool,
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    table: RwLock<Table>,
    poller: Mutex<Poller>,
    /// Endpoints that may have to be announced.
    fresh: SegQueue<u32>,
    /// Requests in flight of all endpoints.
    in_flight: AtomicUsize,
    waiting: AtomicBool,
    wake: OwnedFd,
    /// Longest READ or WRITE that the device does in one.
    pub(super) transfer_bytes: usize,
}

/// Who is at which place.
#[derive(Default)]
struct Table {
    /// Endpoint, and how often the place was used.
    places: Vec<(Option<Arc<Link>>, u16)>,
    free: Vec<u32>,
    by_qp: HashMap<u32, u32>,
}

const GENERATION_BITS: u32 = 15;

impl Table {
    fn get(&self, tag: u32) -> Option<&Arc<Link>> {
        let (link, _) = self.places.get((tag >> GENERATION_BITS) as usize)?;
        link.as_ref().filter(|link| link.tag == tag)
    }

    fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.places.iter().filter_map(|(link, _)| link.as_ref())
    }

    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn remove(&mut self, tag: u32) {
        let place = tag >> GENERATION_BITS;
        if let Some((link, _)) = self.places.get_mut(place as usize)
            && let Some(link) = link.take_if(|link| link.tag == tag)
        {
            self.by_qp.remove(&link.qp_num);
            self.free.push(place);
        }
    }
}

/// Where completions go: to who polls, as many as it asked for, and the rest to whoever is next.
pub(super) struct Sink<'a> {
    out: &'a mut Vec<Completion>,
    until: usize,
    ready: &'a mut VecDeque<Completion>,
}

impl Sink<'_> {
    #[inline]
    pub(super) fn push(&mut self, completion: Completion) {
        if self.out.len() < self.until && self.ready.is_empty() {
            self.out.push(completion);
        } else {
            self.ready.push_back(completion);
        }
    }
}

/// What who polls has.
struct Poller {
    /// Completions that there was no room for.
    ready: VecDeque<Completion>,
    batch: Vec<Wc>,
    /// Places of the receive queue that have no buffer.
    bare: Vec<usize>,
    /// Endpoints that have ended just now.
    ended: Vec<u32>,
    next_look: Instant,
    polls: u32,
}

/// How often endpoints are looked at for requests that do not complete.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 256;

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
        let limits = limits.in_range();
        let attr = pd.device().attr()?;
        let most = u32::try_from(attr.max_cqe).unwrap_or(u32::MAX);
        let markers = limits.max_endpoints.min(limits.total_sends / 4);
        let depth = limits.total_sends + limits.receive_depth + markers;
        let cq = Cq::new(pd.device(), most.min(depth as u32))?;
        let srq = Srq::new(pd, limits.receive_depth as u32)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|errno| VerbsError::code("eventfd", errno.raw_os_error()))?;
        let port = pd.device().port(1)?;
        let core = Arc::new(Core {
            limits,
            pd: Arc::clone(pd),
            pool: BufferPool::new(),
            transfer_bytes: (port.max_msg_sz as usize).clamp(1 << 20, 1 << 30),
            cq,
            srq,
            table: RwLock::default(),
            poller: Mutex::new(Poller {
                ready: VecDeque::new(),
                batch: Vec::new(),
                bare: (0..limits.receive_depth).collect(),
                ended: Vec::new(),
                next_look: Instant::now() + LOOK_EVERY,
                polls: 0,
            }),
            fresh: SegQueue::new(),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            wake,
        });
        core.receive(&mut core.poller.lock().bare)?;
        Ok(Arc::new(Self(core)))
    }

    /// What to make a queue pair of this queue with.
    pub(crate) fn qp_init(&self) -> QpInit {
        let limits = &self.0.limits;
        let depth = limits.send_depth + INTERNAL_DEPTH + 1;
        QpInit::new(&self.0.pd, &self.0.cq, &self.0.srq, depth as u32, INLINE_BYTES)
    }

    /// Adds an endpoint, before its peer can send anything. On the listening side its user hears
    /// of it when it is [`Self::connected`], or its first message arrives.
    ///
    /// # Errors
    /// When all places are taken; the queue pair is destroyed then.
    pub(crate) fn add(&self, context: u64, side: Side, qp: Qp) -> Result<Arc<Link>, QueueFull> {
        let core = &self.0;
        let mut table = core.table.write();
        if table.len() >= core.limits.max_endpoints {
            return Err(QueueFull(core.limits.max_endpoints));
        }
        let place = table.free.pop().unwrap_or(table.places.len() as u32);
        if place as usize == table.places.len() {
            table.places.push((None, 0));
        }
        let (entry, used) = &mut table.places[place as usize];
        *used = used.wrapping_add(1) & ((1 << GENERATION_BITS) - 1);
        let tag = place << GENERATION_BITS | u32::from(*used);
        let link = Arc::new(Link::new(Arc::clone(core), tag, context, side, qp));
        *entry = Some(Arc::clone(&link));
        table.by_qp.insert(link.qp_num, place);
        Ok(link)
    }

    /// Whether there is no place for another endpoint.
    pub(crate) fn is_full(&self) -> bool {
        self.0.table.read().len() >= self.0.limits.max_endpoints
    }

    /// Tells the user of a new endpoint: `Connected`, once.
    pub(crate) fn connected(&self, link: &Arc<Link>) {
        self.0.fresh.push(link.tag);
        self.0.look();
    }

    /// Ends the endpoint whose queue pair has this number on the device, if there is one.
    pub(crate) fn end_one(&self, qp_num: u32, reason: &str) {
        let table = self.0.table.read();
        let place = table.by_qp.get(&qp_num).and_then(|&place| table.places.get(place as usize));
        let link = place.and_then(|(link, _)| link.clone());
        drop(table);
        if let Some(link) = link {
            link.end(reason.to_owned(), true);
        }
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
        super::worker::run(move || core.drain());
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
    /// The key of a buffer in this queue's domain.
    pub(super) fn lkey(&self, buffer: &Buffer) -> Result<u32, VerbsError> {
        lkey(&self.pd, buffer)
    }

    /// Takes room for requests in flight, of which the device's queue can report only so many.
    pub(super) fn take(&self, count: usize) -> bool {
        let before = self.in_flight.fetch_add(count, Ordering::Relaxed);
        let fits = before + count <= self.limits.total_sends;
        if !fits {
            self.freed(count);
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

    fn ring(&self) {
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

    fn end_all(&self, reason: &str) {
        let links: Vec<_> = self.table.read().links().cloned().collect();
        for link in links {
            link.end(reason.to_owned(), true);
        }
    }

    /// Polls for its own sake, when nobody else may: until all endpoints have ended.
    fn drain(&self) {
        let mut out = Vec::new();
        let deadline = Instant::now() + self.limits.flush_timeout * 2;
        while self.table.read().len() > 0 && Instant::now() < deadline {
            let mut poller = self.poller.lock();
            poller.next_look = Instant::now();
            self.poll(&mut poller, &mut out, 1024);
            out.clear();
            drop(poller);
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Takes completions for who waits for the fabric's own messages.
    pub(super) fn poll_for_itself(&self) {
        let mut poller = self.poller.lock();
        self.collect(&mut poller, &mut Vec::new(), 0, 1);
        let more = !poller.ready.is_empty();
        drop(poller);
        if more {
            self.look();
        }
    }

    fn poll(&self, poller: &mut Poller, out: &mut Vec<Completion>, max: usize) {
        let until = out.len() + max;
        while out.len() < until
            && let Some(completion) = poller.ready.pop_front()
        {
            out.push(completion);
        }
        if out.len() < until {
            self.collect(poller, out, until, usize::MAX);
        }
        poller.polls = poller.polls.wrapping_add(1);
        if poller.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.check(poller, Instant::now());
        }
    }

    /// Takes at most `rounds` times completions from the device, and gives them to `out` up to a
    /// length of `until`; the rest is kept.
    fn collect(&self, poller: &mut Poller, out: &mut Vec<Completion>, until: usize, rounds: usize) {
        let Poller { ready, batch, bare, ended, .. } = poller;
        while let Some(tag) = self.fresh.pop() {
            if let Some(link) = self.table.read().get(tag) {
                announce(link, &mut Sink { out, until, ready });
            }
        }
        for _ in 0..rounds {
            let max = until.saturating_sub(out.len()).max(1);
            let polled = self.cq.poll(max, |wc| batch.push(wc));
            if batch.is_empty() {
                if let Err(error) = polled {
                    self.end_all(&error.to_string());
                }
                break;
            }
            let table = self.table.read();
            let mut sink = Sink { out, until, ready };
            for wc in batch.drain(..) {
                if Srq::is_of(&wc) {
                    self.received(&table, &wc, bare, &mut sink);
                } else if let Some(link) = table.get((wc.wr_id() >> 32) as u32)
                    && link.complete(&wc, &mut sink)
                {
                    ended.push(link.tag);
                }
            }
            drop(table);
            self.forget(ended);
            if let Err(error) = self.receive(bare) {
                tracing::error!(%error, "receive buffers are missing");
            }
            if sink.out.len() >= until && until > 0 {
                break;
            }
        }
    }

    fn received(&self, table: &Table, wc: &Wc, bare: &mut Vec<usize>, sink: &mut Sink<'_>) {
        let Some((place, buffer)) = self.srq.complete(wc) else { return };
        bare.push(place);
        let link = table.by_qp.get(&wc.qp_num()).and_then(|&place| {
            let (link, _) = table.places.get(place as usize)?;
            link.as_ref()
        });
        let Some(link) = link.filter(|_| wc.is_success()) else { return };
        announce(link, sink);
        let max_bytes = self.limits.max_message_bytes;
        let arrived = link.rx.lock().take(buffer, wc.immediate(), max_bytes, &self.pool);
        let broken = match arrived {
            Ok(Arrived::Message(message)) => {
                let outcome = Outcome::Received(message);
                sink.push(Completion { context: link.context, id: 0, outcome });
                return;
            }
            Ok(Arrived::Part) => return,
            Ok(Arrived::Note(note)) => link.noted(&note),
            Err(error) => Err(error),
        };
        if let Err(error) = broken {
            link.end(error.to_string(), true);
        }
    }

    /// Gives the receive queue its buffers back.
    fn receive(&self, bare: &mut Vec<usize>) -> Result<(), VerbsError> {
        if bare.is_empty() {
            return Ok(());
        }
        let mut failure = Ok(());
        let buffers = bare.iter().map_while(|&place| {
            let buffer = self.pool.get(self.limits.receive_bytes);
            match self.lkey(&buffer) {
                Ok(lkey) => Some((place, buffer, lkey)),
                Err(error) => {
                    failure = Err(error);
                    None
                }
            }
        });
        self.srq.post(buffers)?;
        if failure.is_ok() {
            bare.clear();
        } else {
            // What was posted is taken already; the rest is tried again.
            bare.retain(|&place| self.srq.is_bare(place));
        }
        failure
    }

    fn forget(&self, ended: &mut Vec<u32>) {
        if ended.is_empty() {
            return;
        }
        let mut table = self.table.write();
        for tag in ended.drain(..) {
            table.remove(tag);
        }
    }

    /// Looks at endpoints whose requests do not complete, or are not flushed.
    fn check(&self, poller: &mut Poller, now: Instant) {
        if now < poller.next_look {
            return;
        }
        poller.next_look = now + LOOK_EVERY;
        let links: Vec<_> = self.table.read().links().cloned().collect();
        let mut sink = Sink { out: &mut Vec::new(), until: 0, ready: &mut poller.ready };
        for link in links {
            if link.check(now, &mut sink) {
                poller.ended.push(link.tag);
            }
        }
        self.forget(&mut poller.ended);
    }

    fn wait(&self, timeout: Duration) -> Wait {
        if self.waiting.swap(true, Ordering::SeqCst) {
            return Wait::Busy;
        }
        fence(Ordering::SeqCst);
        let outcome = self.sleep(timeout);
        self.waiting.store(false, Ordering::SeqCst);
        outcome
    }

    fn sleep(&self, timeout: Duration) -> Wait {
        let begin = Instant::now();
        loop {
            if let Err(error) = self.cq.arm() {
                self.end_all(&error.to_string());
                return Wait::Ready;
            }
            let mut poller = self.poller.lock();
            self.collect(&mut poller, &mut Vec::new(), 0, 1);
            let now = Instant::now();
            self.check(&mut poller, now);
            let is_ready = !poller.ready.is_empty();
            drop(poller);
            if is_ready {
                return Wait::Ready;
            }
            let left = timeout.saturating_sub(now - begin);
            if left.is_zero() {
                return Wait::TimedOut;
            }
            // Only what is in flight needs looking after.
            let idle = self.in_flight.load(Ordering::SeqCst) == 0;
            if self.poll_fds(if idle { left } else { left.min(LOOK_EVERY) }) {
                return Wait::Ready;
            }
        }
    }

    /// Sleeps on the channel and the bell; whether one of them rang.
    fn poll_fds(&self, timeout: Duration) -> bool {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).min(1 << 30);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [
            PollFd::from_borrowed_fd(self.cq.as_fd(), PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        if rustix::event::poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return false;
        }
        let rang = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if rang[0] {
            self.cq.silence();
        }
        if rang[1] {
            // Empty means that it is silent already.
            let _silent = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        true
    }
}

fn announce(link: &Arc<Link>, sink: &mut Sink<'_>) {
    if !link.announced.swap(true, Ordering::AcqRel) {
        let outcome = Outcome::Connected(link.handle());
        sink.push(Completion { context: link.context, id: 0, outcome });
    }
}
