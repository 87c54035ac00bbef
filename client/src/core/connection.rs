//! One session's life on one server.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::Thread;
use std::time::{Duration, Instant};

use onesided_fabric::{
    AccessError, AttachError, Buffer, BufferPool, Caps, Completion, CompletionQueue, Crowded,
    Endpoint, FabricKind, Loads, Memory, Outcome, Parking, Wait, WorkError,
};
use onesided_protocol::control::Welcome;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::clock::ServerClock;
use super::commits::Commits;
use super::lends::{Lends, Lent};
use super::operations::Operations;
use super::pending::{Freed, Pending};
use super::polled::Dispatch;
use super::session::Session;
use super::slots::Slots;
use super::spin::Vain;
use super::staging::Staging;
use super::time::Ticker;
use crate::error::Error;
use crate::options::Options;
use crate::read::CacheBudget;
use crate::stats::{ClientStats, Counter};

/// Operations that may be pending at once, READs included, beside the RPCs that have credits.
pub(super) const SLOTS: usize = 1024;
/// Completions taken from the queue at a time.
const POLL_MAX: usize = 64;
/// An answer over RDMA may take so many times as long as one within a host: it crosses two devices
/// and a network, and a large value is long.
const VERBS_SPINS: u32 = 4;
/// How long a driver sleeps at most when another thread waits on the queue.
const BUSY_SLEEP: Duration = Duration::from_millis(10);

/// What all connections of a client share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) stats: ClientStats,
    pub(crate) ticker: Ticker,
    pub(crate) pool: BufferPool,
    /// Of buffers that callers have.
    pub(crate) parking: Parking,
    pub(crate) cache: Arc<CacheBudget>,
    pub(crate) operations: Operations,
    /// The fallback that was told last, so that it is told once.
    pub(crate) told: Mutex<Option<String>>,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            cache: CacheBudget::new(options.cache_bytes),
            parking: Parking::new(options.registered_bytes, options.registered_buffers),
            options,
            stats: ClientStats::default(),
            operations: Operations::default(),
            ticker: Ticker::default(),
            pool: BufferPool::new(),
            told: Mutex::default(),
        })
    }
}

impl Shared {
    /// An empty buffer for a caller, with room for `capacity_bytes`.
    pub(crate) fn lendable(&self, capacity_bytes: usize) -> Buffer {
        let taken = self.parking.take(capacity_bytes);
        // The pool ends the process where there is no memory at all, as any allocation.
        let mut buffer = taken.unwrap_or_else(|_| self.pool.get(capacity_bytes));
        buffer.set_len(0);
        buffer
    }
}

/// What a connection is made of.
pub(crate) struct Parts {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) welcome: Welcome,
    pub(crate) staging: Option<Arc<Memory>>,
    pub(crate) session: Arc<Session>,
    pub(crate) clock: ServerClock,
    /// Why no better fabric is used, if there may be one.
    pub(crate) fallback: Option<String>,
}

/// One session's life on one server, over one fabric.
///
/// Whoever polls the completion queue completes what is pending for everybody. A lost connection
/// stays lost: the next one is another `Connection`.
pub struct Connection {
    endpoint: Arc<dyn Endpoint>,
    loads: Option<Arc<Loads>>,
    cq: Arc<dyn CompletionQueue>,
    caps: Caps,
    near: bool,
    welcome: Welcome,
    clock: ServerClock,
    fallback: Option<String>,
    pub(super) session: Arc<Session>,
    pub(super) shared: Arc<Shared>,
    pub(super) staging: Option<Staging>,
    lends: Arc<Lends>,
    pub(super) pending: Pending,
    /// Permits for the slots of `pending`.
    pub(super) slots: Slots,
    /// One permit for each request that the server takes at once.
    pub(super) credits: Semaphore,
    /// Futures that wait without driving: the reactor has to.
    pub(super) waiting: AtomicUsize,
    /// Spinning was of no use.
    pub(super) crowded: Crowded,
    /// How often it was of none.
    pub(super) vain: Vain,
    /// Held by who dispatches.
    pub(super) queue: Mutex<Dispatch>,
    /// Entries that are linked and not committed.
    pub(super) commits: Mutex<Commits>,
    /// Posts that found the send queue full.
    blocked: Mutex<Vec<Waker>>,
    /// Threads that drive, or would if another did not.
    drivers: Mutex<Vec<Thread>>,
    alive: AtomicBool,
    lost: OnceLock<String>,
    on_lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("fabric", &self.caps.kind)
            .field("session", &self.welcome.session)
            .field("alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection without threads, for simulations: nothing happens but in calls, and
    /// completions arrive when [`Self::dispatch`] is called.
    #[must_use]
    pub fn from_parts(
        endpoint: Arc<dyn Endpoint>,
        cq: Arc<dyn CompletionQueue>,
        welcome: Welcome,
        staging: Option<Arc<Memory>>,
        options: Options,
    ) -> Arc<Self> {
        let session = Session::new(welcome.session, welcome.resume_key, welcome.applied_sequence);
        let now = Instant::now();
        let clock = ServerClock::new(welcome.clock_ns, now, now);
        let parts = Parts { endpoint, cq, welcome, staging, session, clock, fallback: None };
        Self::new(parts, Shared::new(options))
    }

    /// The one after this, for simulations, as [`Self::from_parts`]: of the same session if
    /// `welcome` says that it goes on.
    #[must_use]
    pub fn again(
        &self,
        endpoint: Arc<dyn Endpoint>,
        cq: Arc<dyn CompletionQueue>,
        welcome: Welcome,
    ) -> Arc<Self> {
        let session = match welcome.resumed {
            true => Arc::clone(&self.session),
            false => Session::new(welcome.session, welcome.resume_key, welcome.applied_sequence),
        };
        let (staging, now) = (None, Instant::now());
        let clock = ServerClock::new(welcome.clock_ns, now, now);
        let parts = Parts { endpoint, cq, welcome, staging, session, clock, fallback: None };
        Self::new(parts, Arc::clone(&self.shared))
    }

    pub(crate) fn new(parts: Parts, shared: Arc<Shared>) -> Arc<Self> {
        let credits = parts.welcome.credits.max(1) as usize;
        let pending = Pending::new(Slots::places(SLOTS + credits));
        Arc::new(Self {
            caps: parts.endpoint.caps(),
            near: parts.endpoint.is_near(),
            loads: parts.endpoint.loads().cloned(),
            endpoint: parts.endpoint,
            cq: parts.cq,
            welcome: parts.welcome,
            clock: parts.clock,
            fallback: parts.fallback,
            session: parts.session,
            shared,
            staging: parts.staging.map(Staging::new),
            lends: Arc::default(),
            slots: Slots::new(pending.capacity()),
            pending,
            credits: Semaphore::new(credits),
            waiting: AtomicUsize::new(0),
            crowded: Crowded::new(Instant::now()),
            vain: Vain::default(),
            queue: Mutex::new(Dispatch::with_room(POLL_MAX)),
            commits: Mutex::default(),
            blocked: Mutex::default(),
            drivers: Mutex::default(),
            alive: AtomicBool::new(true),
            lost: OnceLock::new(),
            on_lost: OnceLock::new(),
        })
    }

    /// The endpoint, for READs that are loads.
    #[inline]
    #[must_use]
    pub fn endpoint(&self) -> &dyn Endpoint {
        &*self.endpoint
    }

    /// The server's regions, where they can be loaded.
    #[inline]
    pub(crate) fn loads(&self) -> Option<&Loads> {
        self.loads.as_deref()
    }

    /// What the endpoint can do.
    #[inline]
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// What the server said at hello.
    #[must_use]
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The client's counters.
    #[inline]
    #[must_use]
    pub fn stats(&self) -> &ClientStats {
        &self.shared.stats
    }

    /// The client's options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// What the bucket caches of all tables may take.
    pub(crate) fn cache_budget(&self) -> &Arc<CacheBudget> {
        &self.shared.cache
    }

    /// The server's clock.
    #[must_use]
    pub fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// The server's Unix time in ns, and how wrong that may be, in ns either way.
    #[must_use]
    pub fn server_now(&self) -> (u64, u64) {
        self.clock.now_ns()
    }

    /// Why no better fabric is used, if there may be one.
    pub(crate) fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether it is not known to be lost. Cheap enough for every GET.
    #[inline]
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// The error of an access that the fabric refused.
    #[must_use]
    pub fn access_error(&self, error: AccessError) -> Error {
        if self.is_alive() { Error::Access(error) } else { self.lost_error() }
    }

    /// The error of a region that could not be attached.
    #[must_use]
    pub fn attach_error(&self, error: AttachError) -> Error {
        match error {
            AttachError::Closed => self.lost_error(),
            error => Error::Attach(error),
        }
    }

    pub(crate) fn completions(&self) -> &dyn CompletionQueue {
        &*self.cq
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// Lets the server READ a buffer until what is returned is dropped. `None`: copy it instead.
    pub(crate) fn lend(&self, buffer: &Arc<Buffer>) -> Option<Lent> {
        let fetches = self.caps.one_sided && !self.caps.reads_now;
        fetches.then(|| self.lends.lend(buffer, &*self.endpoint)).flatten()
    }

    pub(crate) fn lost_reason(&self) -> &str {
        self.lost.get().map_or("the connection was lost", String::as_str)
    }

    pub(crate) fn lost_error(&self) -> Error {
        Error::ConnectionLost(self.lost_reason().to_owned())
    }

    /// Called once, when the connection is lost; set before it is used.
    pub(crate) fn set_on_lost(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.on_lost.set(Box::new(hook));
        if !self.is_alive() {
            self.call_on_lost();
        }
    }

    fn call_on_lost(&self) {
        if let Some(hook) = self.on_lost.get() {
            hook();
        }
    }

    /// Ends the connection: everything that is pending fails, nothing new begins. Whoever waits
    /// is woken. Idempotent.
    pub(crate) fn mark_lost(&self, reason: &str) {
        self.lost.get_or_init(|| reason.to_owned());
        if !self.alive.swap(false, Ordering::SeqCst) {
            return;
        }
        // Before what is pending gives its places back.
        self.staging.iter().for_each(Staging::end);
        self.endpoint.close();
        self.credits.close();
        self.slots.permits.close();
        self.pending.fail_all();
        self.wake_blocked();
        self.drivers.lock().iter().for_each(Thread::unpark);
        self.cq.wake();
        self.shared.ticker.kick();
        self.call_on_lost();
    }

    /// Takes completions from the queue and completes what they belong to. Returns how many there
    /// were; 0 also if another thread does the same at this moment.
    pub fn dispatch(&self) -> usize {
        match self.queue.try_lock() {
            Some(mut dispatch) => self.dispatch_with(&mut dispatch),
            None => 0,
        }
    }

    /// As [`Self::dispatch`], after whoever does the same: nothing that is in the queue before
    /// the call is left there.
    fn dispatch_all(&self) {
        let mut dispatch = self.queue.lock();
        while self.dispatch_with(&mut dispatch) == POLL_MAX {}
    }

    fn dispatch_with(&self, dispatch: &mut Dispatch) -> usize {
        let taken = self.cq.poll(&mut dispatch.completions, POLL_MAX);
        self.complete_taken(dispatch, taken)
    }

    fn complete_taken(&self, dispatch: &mut Dispatch, taken: usize) -> usize {
        let Dispatch { completions, polled } = dispatch;
        for completion in completions.drain(..) {
            if let Some(id) = polled.slot_of(completion.id) {
                self.complete(Completion { id, ..completion });
            }
        }
        if taken > 0 {
            self.wake_blocked();
        }
        taken
    }

    fn complete(&self, completion: Completion) {
        let id = completion.id;
        let freed = match completion.outcome {
            Outcome::Received(answer) => match answer.first_chunk() {
                Some(id) => self.pending.answered(u64::from_le_bytes(*id), answer),
                None => return self.mark_lost("the server sent a message without an id"),
            },
            Outcome::Read(buffer) => self.pending.read(id, buffer),
            Outcome::Failed(error, _buffer) => {
                if let WorkError::Access(_) = error {
                    self.stats().add(Counter::AccessErrors, 1);
                }
                self.pending.failed(id, error)
            }
            Outcome::Disconnected(reason) => return self.mark_lost(&reason),
            Outcome::Atomic(word) => self.pending.swapped(id, word),
            // Nothing of these is asked for by a client.
            Outcome::Written(_) | Outcome::Sent(_) => return,
            Outcome::Connected(_) => return,
        };
        self.give_back(freed);
    }

    pub(super) fn give_back(&self, freed: Freed) {
        if freed.credit {
            self.credits.add_permits(1);
        }
        if freed.slot {
            self.slots.give_back(1);
        }
    }

    pub(super) fn block(&self, waker: &Waker) {
        self.blocked.lock().push(waker.clone());
        self.shared.ticker.kick();
    }

    pub(crate) fn wake_blocked(&self) {
        let blocked = std::mem::take(&mut *self.blocked.lock());
        blocked.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.lock().is_empty()
    }

    /// Whether anything was posted and has not completed.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.slots.are_free() || self.needs_reactor()
    }

    /// Whether somebody waits who does not drive.
    pub(crate) fn needs_reactor(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.has_blocked()
    }

    /// READs that were posted and have not completed, whether or not anybody waits for them.
    pub(crate) fn reads_under_way(&self) -> Vec<u64> {
        self.pending.reads()
    }

    /// Whether one of them has not completed yet.
    pub(crate) fn is_under_way(&self, read: u64) -> bool {
        self.is_alive() && !self.pending.is_done(read)
    }

    pub(crate) fn wake_expired(&self, now: Instant) {
        self.pending.wake_expired(now);
    }

    /// As [`Self::drive`], for a thread that waits for an answer and that nothing else can help.
    /// Whoever completes something holds the dispatcher's lock: here nobody can have done so
    /// unnoticed. `false`: it cannot be.
    pub(super) fn receive(&self, cancelled: impl Fn() -> bool) -> bool {
        if self.caps.kind != FabricKind::Tcp {
            return false;
        }
        let Some(mut dispatch) = self.queue.try_lock() else { return false };
        if cancelled() {
            return true;
        }
        let Some(taken) = self.cq.receive(&mut dispatch.completions, POLL_MAX) else {
            return false;
        };
        self.complete_taken(&mut dispatch, taken);
        true
    }

    /// Sleeps until something completes (or `timeout`, or `cancelled` before), and dispatches.
    pub(crate) fn drive(&self, timeout: Duration, cancelled: impl Fn() -> bool) {
        let me = std::thread::current();
        let id = me.id();
        // Registered before waiting: whoever leaves the queue meanwhile hands over to us.
        self.drivers.lock().push(me);
        let mut waited = Wait::Ready;
        if !cancelled() && self.is_alive() {
            waited = self.cq.wait(timeout);
            if waited == Wait::Busy {
                std::thread::park_timeout(timeout.min(BUSY_SLEEP));
            }
        }
        self.drivers.lock().retain(|driver| driver.id() != id);
        match waited {
            // Who waits dispatches, too, and may hold the lock while it sleeps.
            Wait::Busy => _ = self.dispatch(),
            Wait::Ready | Wait::TimedOut => self.dispatch_all(),
        }
    }

    /// A driver that needs no more completions lets another one wait on the queue.
    pub(crate) fn hand_over(&self) {
        if let Some(next) = self.drivers.lock().last() {
            next.unpark();
        }
    }

    /// How long a call polls before it sleeps.
    pub(super) fn spin(&self) -> Duration {
        let spin = self.shared.options.spin;
        match self.caps.kind {
            FabricKind::Verbs => spin * VERBS_SPINS,
            _ if self.near => spin,
            _ => Duration::ZERO,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.endpoint.close();
    }
}
