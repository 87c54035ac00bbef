//! One end of a connection: posting, completing, ending.
//!
//! Locks: `tx`, and behind it nothing. Set-up apart, the owner's `disconnect` is the only system
//! call under it, and does not wait.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ffi::error::VerbsError;
use super::ffi::flight::SendQueue;
use super::ffi::pd::{Access, PeerRights};
use super::ffi::qp::Qp;
use super::frames::{Assembly, Note};
use super::poll::Sink;
use super::queue::Core;
use super::regions::Regions;
use super::rights::Granted;
use crate::buffer::Buffer;
use crate::endpoint::{
    Admission, AttachError, Awaited, Caps, Endpoint, FabricKind, LENT_MAX, Polled,
};
use crate::mem::{AccessError, Memory};
use crate::work::{PostError, RegionId, RemoteAddr, WorkRequest};

/// Whose end it is, and what it offers to the other.
pub(crate) enum Side {
    /// The regions that it grants.
    Server(Arc<dyn Admission>),
    /// Nothing but memory that it lends: region 0, and buffers from 1 on.
    Client,
}

pub(super) const OPEN: u8 = 0;
/// It takes no more requests, and fails when those before have completed.
pub(super) const DOOMED: u8 = 1;
/// Its queue pair is in error; what is in flight is being flushed.
pub(super) const ENDING: u8 = 2;
/// Nothing more comes from it.
pub(super) const ENDED: u8 = 3;

/// One end of a connection, as the fabric holds it.
pub(crate) struct Link {
    pub(super) core: Arc<Core>,
    /// Its place in the queue's table, and how often that was used before.
    pub(super) tag: u32,
    pub(super) qp_num: u32,
    pub(super) context: u64,
    pub(super) side: Side,
    pub(super) state: AtomicU8,
    pub(super) reason: OnceLock<String>,
    /// The user has heard of it. Set by who polls.
    pub(super) announced: AtomicBool,
    pub(super) tx: Mutex<Tx>,
    /// The buffers that the peer was told of, by number.
    pub(super) lent: Mutex<[Option<Note>; LENT_MAX]>,
    /// Used by who polls.
    pub(super) rx: Mutex<Assembly>,
    /// The client's messages that the server has not answered, and how many there may be.
    pub(super) unanswered: AtomicUsize,
    pub(super) granted: AtomicUsize,
    /// Questions of the peer that are not answered yet.
    pub(super) asked: AtomicUsize,
    /// Held by who asks for a region.
    pub(super) asking: Mutex<()>,
    pub(super) refused: Mutex<Option<RegionId>>,
}

pub(super) struct Tx {
    pub(super) queue: SendQueue,
    pub(super) regions: Regions,
    /// Where the next CAS or FAA leaves what it found: taken from the pool only while others are
    /// in flight.
    pub(super) spare: Option<Buffer>,
    /// What the peer may do by this queue pair.
    pub(super) granted: Granted,
    /// When what is in flight must have been flushed.
    pub(super) flush_by: Option<Instant>,
    /// The oldest request when somebody last looked, and since when it is that one.
    pub(super) progress: (u32, Option<Instant>),
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (context, qp) = (self.context, self.qp_num);
        write!(f, "verbs endpoint {context} (queue pair {qp}, state {:?})", self.state)
    }
}

impl Link {
    pub(super) fn new(core: Arc<Core>, tag: u32, context: u64, side: Side, qp: Qp) -> Self {
        let qp_num = qp.number();
        let announced = AtomicBool::new(matches!(side, Side::Client));
        let queue = SendQueue::new(qp, tag, core.limits.send_depth / 4);
        let regions = Regions::default();
        let granted = Granted::new();
        let (spare, flush_by, progress) = (None, None, (0, None));
        let tx = Tx { queue, regions, spare, granted, flush_by, progress };
        Self {
            core,
            tag,
            qp_num,
            context,
            side,
            state: AtomicU8::new(OPEN),
            reason: OnceLock::new(),
            announced,
            tx: Mutex::new(tx),
            lent: Mutex::new([None; LENT_MAX]),
            rx: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            granted: AtomicUsize::new(usize::MAX),
            asked: AtomicUsize::new(0),
            asking: Mutex::new(()),
            refused: Mutex::new(None),
        }
    }

    /// The connection manager says that both sides are ready. It has let the peer do everything:
    /// from now on a client may read what a server registered for that, and a server nothing, and
    /// each what it was told of meanwhile.
    pub(crate) fn established(self: &Arc<Self>) {
        let rights = match self.side {
            Side::Server(_) => Access::RemoteRead.of_peer(),
            Side::Client => PeerRights::NONE,
        };
        let tx = &mut *self.tx.lock();
        let Some(qp) = tx.queue.qp() else { return };
        let set = |rights| qp.set_up(self.core.limits.rnr_timer, rights);
        if let Err(error) = tx.granted.limit(rights, set) {
            tracing::warn!(
                %error,
                "the retry timer for want of receive buffers and the peer's rights keep their \
                 defaults: registered memory is protected by its own rights all the same"
            );
        }
    }

    /// Lets the peer do something more, before it is told of memory for that.
    pub(super) fn allow(&self, access: Access) -> Result<(), VerbsError> {
        let tx = &mut *self.tx.lock();
        let Some(qp) = tx.queue.qp() else { return Ok(()) };
        tx.granted.allow(access.of_peer(), |rights| qp.allow(rights))
    }

    /// Tells the user of a new endpoint: `Connected`, once.
    pub(crate) fn connected(&self) {
        self.core.fresh.push(self.tag);
        self.core.look();
    }

    /// The connection manager says that the connection is over: the peer ended it, or the device
    /// is going away.
    pub(crate) fn disconnected(&self, reason: String) {
        self.end(reason, false);
    }

    /// The user's handle. Dropping it ends the connection.
    pub(crate) fn handle(self: &Arc<Self>) -> Arc<dyn Endpoint> {
        Arc::new(Handle(Arc::clone(self)))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// Its path MTU; `None` when it has ended or the device does not say.
    pub(super) fn path_mtu_bytes(&self) -> Option<u32> {
        // 1 is 256 bytes, each next one twice the one before.
        let code = self.tx.lock().queue.qp()?.path_mtu().ok()?;
        128_u32.checked_shl(code)
    }

    /// A message of the peer has arrived, with a grant if it is not 0: one of this side's is
    /// answered.
    #[inline]
    pub(super) fn answered(&self, grant: u32) {
        if let Side::Server(_) = self.side {
            return;
        }
        if grant > 0 {
            self.granted.store(grant as usize, Ordering::Relaxed);
        }
        let one_less = |count: usize| count.checked_sub(1);
        let _none = self.unanswered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }

    /// Whether the peer takes one more message before it answers.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        let granted = self.granted.load(Ordering::Relaxed);
        self.unanswered.load(Ordering::Relaxed) < granted
    }

    /// Looks whether the device still completes what it was given, and flushes in time. Returns
    /// whether the endpoint has ended.
    pub(super) fn check(&self, now: Instant, sink: &mut Sink<'_>) -> bool {
        let mut tx = self.tx.lock();
        if let Some(by) = tx.flush_by {
            if now >= by && self.state.load(Ordering::Acquire) != ENDED {
                self.force(&mut tx, sink);
                return true;
            }
            return false;
        }
        let first = tx.queue.first();
        if tx.queue.len() == 0 {
            tx.progress = (first, None);
            return false;
        }
        let timeout = self.core.limits.work_timeout;
        match tx.progress {
            (seen, Some(since)) if seen == first => {
                if now.saturating_duration_since(since) > timeout {
                    let reason =
                        format!("the device did not complete a request within {timeout:?}");
                    self.end_locked(&mut tx, reason, true);
                }
            }
            _ => tx.progress = (first, Some(now)),
        }
        false
    }

    /// Begins the end. What is in flight is flushed, then `Disconnected` is delivered.
    pub(super) fn end(&self, reason: String, tell_peer: bool) {
        self.end_locked(&mut self.tx.lock(), reason, tell_peer);
    }

    pub(super) fn end_locked(&self, tx: &mut Tx, reason: String, tell_peer: bool) {
        if tx.flush_by.is_some() || self.state.load(Ordering::Acquire) == ENDED {
            return;
        }
        let _first_reason_stays = self.reason.set(reason);
        self.state.store(ENDING, Ordering::Release);
        let before = tx.queue.len();
        let now = Instant::now();
        match tx.queue.end() {
            Ok(()) => tx.flush_by = Some(now + self.core.limits.flush_timeout),
            Err(error) => {
                tracing::warn!(%error, "a queue pair cannot be flushed: it is destroyed at once");
                tx.flush_by = Some(now);
            }
        }
        // The marker: there was room left for it.
        self.core.took(tx.queue.len() - before);
        if tell_peer && let Some(qp) = tx.queue.qp() {
            qp.owner().disconnect();
        }
        self.core.look();
    }
}

/// The user's end of it.
struct Handle(Arc<Link>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Endpoint for Handle {
    fn caps(&self) -> Caps {
        let limits = &self.0.core.limits;
        Caps {
            kind: FabricKind::Verbs,
            one_sided: true,
            reads_now: false,
            max_message_bytes: limits.max_message_bytes,
            send_depth: limits.send_depth,
        }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        self.0.post(chain)
    }

    #[inline]
    fn polled(&self, id: u64, awaited: Awaited<'_>, spin: Duration) -> Polled {
        self.0.polled(id, awaited, spin)
    }

    fn attach(&self, region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        self.0.attach(region)
    }

    fn detach(&self, region: RegionId) {
        self.0.tx.lock().regions.remove(region);
    }

    fn lend(&self, memory: &Arc<Memory>) -> Result<(), AttachError> {
        self.0.lend(memory)
    }

    fn register(&self, buffer: &Buffer) -> Result<(), AttachError> {
        let registered = self.0.core.lkey(buffer);
        let failed = |error: VerbsError| AttachError::Register(error.into());
        registered.map(drop).map_err(failed)
    }

    fn lend_buffer(&self, number: RegionId, buffer: &Buffer) -> Result<(), AttachError> {
        self.0.lend_buffer(number, buffer)
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn path_mtu_bytes(&self) -> Option<u32> {
        self.0.path_mtu_bytes()
    }

    fn close(&self) {
        self.0.end("closed by this side".to_owned(), true);
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
