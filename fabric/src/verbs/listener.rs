//! The server's set-up: a port on a device, and the thread that lets peers in and notices their
//! ends. It sleeps in poll and has no periodic wake-ups.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::blob::Blob;
use super::choose::{Choice, Options, choose};
use super::endpoint::{Link, Side};
use super::ffi::cm::{Channel, Event, Happened, Id, Params};
use super::ffi::device::Device;
use super::ffi::error::VerbsError;
use super::ffi::events::{Affair, DeviceEvent};
use super::ffi::farewell;
use super::ffi::pd::Pd;
use super::figures::{Counts, count};
use super::hello::{Hello, Reason, Rejection};
use super::limits::longest;
use super::loopback::Atomicity;
use super::mtu::PathMtu;
use super::queue::Queue;
use super::setup::{Limits, RETRIES, check_mtu, reads_at_once};
use super::survey;
use super::watch::{Concerned, watcher};
use crate::endpoint::{Admission, CompletionQueue};
use crate::mem::Memory;
use crate::work::{RegionId, Rights};

/// Requests that wait in the kernel; more are dropped there, and repeated by their senders.
const BACKLOG: i32 = 256;
/// Events between two looks at the clock.
const EVENTS_AT_ONCE: usize = 64;
/// Pause after the system had no memory to wait with.
const PAUSE: Duration = Duration::from_millis(100);
/// Peers are gone through for dead ones when there are twice as many as at the last time, and
/// at least so many.
const PRUNE_AT: usize = 64;

/// Lets peers in, over one device. Dropping it ends all its connections and joins its thread.
pub struct Listener {
    choice: Choice,
    atomicity: Atomicity,
    port: u16,
    hello: Hello,
    path_mtu: PathMtu,
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Hears of the device for as long as the listener lives.
    watching: Arc<Watching>,
}

struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Choice { device, port, addresses } = &self.choice;
        write!(f, "verbs listener on {device} port {port}, {addresses:?} port {}", self.port)
    }
}

impl Listener {
    /// Listens at every address of the best device, or of the one that was asked for. `port` 0 is
    /// any free one.
    ///
    /// # Errors
    /// Without libraries, kernel support, device or usable port: which of them, and what there
    /// is.
    pub fn start(
        options: &Options,
        port: u16,
        limits: Limits,
        admission: Arc<dyn Admission>,
    ) -> Result<(Self, Arc<dyn CompletionQueue>), VerbsError> {
        let (listener, mut queues) = Self::start_domains(options, port, limits, admission, 1)?;
        Ok((listener, queues.remove(0)))
    }

    /// As [`Self::start`], with so many protection domains, at least one: [`Admission::domain`]
    /// says which one a peer's endpoint lives in. Each has queue pairs, completion queue and
    /// receive buffers of its own; what is offered to a peer is registered in its domain.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_domains(
        options: &Options,
        port: u16,
        limits: Limits,
        admission: Arc<dyn Admission>,
        domains: usize,
    ) -> Result<(Self, Vec<Arc<dyn CompletionQueue>>), VerbsError> {
        let limits = limits.in_range();
        let (choice, (address, device, port_number)) = find_device(options)?;
        check_mtu(limits.path_mtu, &device, port_number)?;
        let atomicity = Atomicity::of(&device)?;
        let channel = Channel::new()?;
        // An address that was asked for, with its interface if it is link-local.
        let only = options.address.map(|_| address.addr);
        let listening = listen(&channel, only, port)?;
        let port = listening.local_addr().map_or(port, |addr| addr.port());
        let domain = |_| Queue::new(&Pd::new(&device)?, limits.of_queue());
        let queues: Vec<_> = (0..domains.max(1)).map(domain).collect::<Result<_, _>>()?;
        let watched = queues.iter().map(Arc::downgrade).collect();
        let watching = Arc::new(Watching { queues: watched, lost: AtomicBool::new(false) });
        let concerned: Weak<dyn Concerned> = Arc::<Watching>::downgrade(&watching);
        watcher()?.watch(&device, concerned)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(|errno| system(errno.into()))?;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), event });
        let reads = reads_at_once(&device)?;
        let acceptor = Acceptor {
            channel,
            _listening: listening,
            queues: queues.clone(),
            device,
            admission,
            limits,
            reads,
            stop: Arc::clone(&stop),
            peers: HashMap::new(),
            prune_at: PRUNE_AT,
        };
        let thread = std::thread::Builder::new()
            .name("verbs-listener".to_owned())
            .spawn(move || acceptor.run())
            .map_err(system)?;
        let thread = Mutex::new(Some(thread));
        let (hello, path_mtu) = (limits.hello(), limits.path_mtu);
        let listener = Self { choice, atomicity, port, hello, path_mtu, stop, thread, watching };
        tracing::info!("{listener:?}");
        Ok((listener, queues.into_iter().map(|queue| queue as Arc<dyn CompletionQueue>).collect()))
    }

    /// The device, its port, and the addresses.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What its device's CAS and FAA are atomic with. Without any, peers only READ what they may
    /// do everything to.
    #[must_use]
    pub fn atomicity(&self) -> Atomicity {
        self.atomicity
    }

    /// The connection manager's port, which has nothing to do with those of TCP.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What a client needs to find this listener: opaque, at most `max_bytes` long, for which 32
    /// are enough for one address.
    #[must_use]
    pub fn blob(&self, max_bytes: usize) -> Vec<u8> {
        let addresses = self.choice.addresses.clone();
        Blob { hello: self.hello, port: self.port, path_mtu: self.path_mtu, addresses }
            .encode(max_bytes)
    }

    /// Whether the device is lost: nobody can connect any more then. Another listener is needed
    /// when it is back.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.watching.lost.load(Ordering::Acquire)
    }

    /// Registers a region in one domain before any peer asks for it, which then waits for nothing.
    /// May block for as long as the device and the kernel take to pin it. Twice is once.
    ///
    /// # Errors
    /// When it cannot be registered: most often the limit on locked memory.
    pub fn register(
        &self,
        domain: u32,
        region: RegionId,
        memory: &Memory,
        rights: Rights,
    ) -> Result<(), VerbsError> {
        let queue = self.watching.queues.get(domain as usize).and_then(Weak::upgrade);
        queue.map_or(Ok(()), |queue| queue.register(region, memory, rights))
    }

    /// What there is to count: names, units last, and values.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        let queues: Vec<_> = self.watching.queues.iter().filter_map(Weak::upgrade).collect();
        Queue::figures(&queues, self.choice.port)
    }

    /// Ends all connections and the thread, and waits for it. The completion queue goes on to
    /// deliver what there is, and each connection's `Disconnected`.
    pub fn stop(&self) {
        self.stop.asked.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the thread is awake.
        let _full = rustix::io::write(&self.stop.event, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the verbs listener's thread has panicked");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

fn system(source: std::io::Error) -> VerbsError {
    VerbsError::Call { verb: "starting a verbs listener", source, hint: String::new() }
}

/// Longest memory that the device which a listener would use registers as one piece, in bytes.
///
/// # Errors
/// As of [`Listener::start`].
pub fn registration_max_bytes(options: &Options) -> Result<u64, VerbsError> {
    let (_, (_, device, _)) = find_device(options)?;
    Ok(longest(&device.attr()?))
}

/// What to use: the best choice, with its best address on the device as the connection manager has
/// it open.
fn find_device(options: &Options) -> Result<(Choice, survey::Bound), VerbsError> {
    let bound = survey::addresses(&watcher()?.channel)?;
    let mut choices = choose(&survey::devices(&bound)?, options)?;
    let choice = choices.remove(0);
    let on_it = |(address, device, port): &survey::Bound| {
        let same_port = device.name() == choice.device && *port == choice.port;
        same_port && choice.addresses.first() == Some(&address.ip())
    };
    let best = bound.into_iter().find(on_it);
    best.map(|best| (choice, best)).ok_or(VerbsError::NoDevice)
}

/// An id that listens: at one address, or at all, which are IPv6 and IPv4 where there is IPv6.
fn listen(channel: &Arc<Channel>, only: Option<SocketAddr>, port: u16) -> Result<Id, VerbsError> {
    let at = |mut addr: SocketAddr| {
        addr.set_port(port);
        let id = Id::new(channel)?;
        id.bind(addr)?;
        id.listen(BACKLOG)?;
        Ok(id)
    };
    let any = |ip: IpAddr| SocketAddr::new(ip, port);
    match only {
        Some(addr) => at(addr),
        None => {
            at(any(Ipv6Addr::UNSPECIFIED.into())).or_else(|_| at(any(Ipv4Addr::UNSPECIFIED.into())))
        }
    }
}

/// Passes on what happens to the device.
struct Watching {
    queues: Vec<Weak<Queue>>,
    lost: AtomicBool,
}

impl Concerned for Watching {
    fn device_event(&self, event: &DeviceEvent) {
        if event.what == Affair::DeviceFatal {
            self.lost.store(true, Ordering::Release);
        }
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            tell(&queue, event);
        }
    }
}

/// Ends what a device's event ends.
pub(super) fn tell(queue: &Queue, event: &DeviceEvent) {
    match event.what {
        Affair::DeviceFatal => queue.end_all(&format!("the RDMA device is lost: {}", event.name)),
        Affair::SrqFatal(srq) if !queue.receives_from(srq) => {}
        Affair::CqFatal | Affair::SrqFatal(_) => {
            queue.end_all(&format!("the device's queue is broken: {}", event.name));
        }
        Affair::QpFatal(qp_num) => queue.end_one(qp_num, &event.name),
        Affair::QpAccess(qp_num) => queue.end_intruder(qp_num, &event.name),
        Affair::SrqLow(srq) if queue.receives_from(srq) => queue.ran_low(),
        _ => {}
    }
}

/// A peer that was accepted.
struct Peer {
    link: Weak<Link>,
    /// When it must have confirmed; `None` when it has.
    deadline: Option<Instant>,
}

struct Acceptor {
    channel: Arc<Channel>,
    _listening: Id,
    /// By the number of the domain.
    queues: Vec<Arc<Queue>>,
    device: Arc<Device>,
    admission: Arc<dyn Admission>,
    limits: Limits,
    /// READs at once, as initiator and as the one who serves.
    reads: (u8, u8),
    stop: Arc<Stop>,
    /// By the id's token.
    peers: HashMap<u64, Peer>,
    prune_at: usize,
}

impl Acceptor {
    fn run(mut self) {
        while !self.stop.asked.load(Ordering::Acquire) {
            if let Err(errno) = self.sleep()
                && errno != Errno::INTR
            {
                tracing::error!(%errno, "the verbs listener cannot wait for a while");
                std::thread::sleep(PAUSE);
            }
            for _ in 0..EVENTS_AT_ONCE {
                match self.channel.next() {
                    Ok(None) => break,
                    Ok(Some(event)) => self.take(event),
                    Err(error) => {
                        tracing::error!(%error, "the verbs listener hears nothing and ends");
                        self.end_all("the listener has ended");
                        return;
                    }
                }
            }
            self.expire(Instant::now());
        }
        self.end_all("the listener was stopped");
    }

    /// Connections are counted once, whatever their domain.
    fn counts(&self) -> &Counts {
        self.queues[0].counts()
    }

    fn end_all(&self, reason: &str) {
        self.queues.iter().for_each(|queue| queue.end_all(reason));
    }

    fn sleep(&self) -> Result<(), Errno> {
        let deadlines = self.peers.values().filter_map(|peer| peer.deadline);
        let left = deadlines.min().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut fds = [
            PollFd::new(&self.stop.event, PollFlags::IN),
            PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN),
        ];
        poll(&mut fds, timeout.as_ref()).map(|_| ())
    }

    /// Ends connections that were not confirmed in time.
    fn expire(&mut self, now: Instant) {
        let limit_ms = self.limits.handshake_timeout_ms;
        self.peers.retain(|_, peer| {
            let late = peer.deadline.is_some_and(|deadline| deadline <= now);
            if late && let Some(link) = peer.link.upgrade() {
                count(&self.queues[0].counts().unconfirmed);
                link.disconnected(format!("the peer did not confirm within {limit_ms} ms"));
            }
            !late
        });
    }

    fn take(&mut self, event: Event) {
        let ended = match event.happened {
            Happened::Request { id, reads_in, reads_out } => {
                self.request(id, reads_in, reads_out, &event.private);
                return;
            }
            Happened::Established => {
                if let Some(peer) = self.peers.get_mut(&event.token) {
                    peer.deadline = None;
                    if let Some(link) = peer.link.upgrade() {
                        link.connected();
                    }
                }
                return;
            }
            Happened::Disconnected => "the peer ended the connection",
            Happened::Rejected | Happened::ConnectError => "the peer gave up while connecting",
            Happened::Unreachable => "the peer's confirmation did not arrive",
            Happened::DeviceRemoved => "the RDMA device was removed",
            _ => return,
        };
        if let Some(link) = self.peers.remove(&event.token).and_then(|peer| peer.link.upgrade()) {
            link.disconnected(ended.to_owned());
        }
    }

    fn request(&mut self, id: Id, reads_in: u8, reads_out: u8, private: &[u8]) {
        // Where a request came from there may be a way again.
        farewell::release_some();
        let from = id.peer_addr();
        let id = Arc::new(id);
        match self.admit(&id, reads_in, reads_out, private) {
            Ok(peer) => {
                count(&self.counts().accepted);
                self.prune();
                self.peers.insert(id.token(), peer);
            }
            Err(no) => {
                count(&self.counts().refused);
                tracing::debug!(?from, reason = ?no.reason, text = no.text, "refused");
                // The peer may have given up meanwhile.
                let _gone = id.reject(&no.encode());
            }
        }
    }

    /// Everything that is asked of a peer comes before anything is made for it.
    fn admit(
        &self,
        id: &Arc<Id>,
        reads_in: u8,
        reads_out: u8,
        private: &[u8],
    ) -> Result<Peer, Rejection> {
        let (theirs, ticket) = Hello::decode_request(private)
            .map_err(|unclear| Rejection::new(Reason::Unclear, unclear.to_string()))?;
        if theirs != self.limits.hello() {
            let text = "sizes of messages differ: it is not the listener that was meant";
            return Err(Rejection::new(Reason::Unclear, text));
        }
        if !matches!(id.device(), Ok(Some(device)) if Arc::ptr_eq(&device, &self.device)) {
            let text = format!("connections come through {} only", self.device.name());
            return Err(Rejection::new(Reason::OtherDevice, text));
        }
        let pending = self.peers.values().filter(|peer| peer.deadline.is_some()).count();
        let full = || Rejection::new(Reason::Full, "no room for another connection; try later");
        if self.queues.iter().all(|queue| queue.is_full())
            || pending >= self.limits.pending_handshakes
        {
            return Err(full());
        }
        let context = self.admission.admit(&ticket);
        let context = context.map_err(|no| Rejection::new(Reason::Refused, no.0))?;
        let queue = self.admission.domain(context).and_then(|n| self.queues.get(n as usize));
        let queue = queue.ok_or_else(|| {
            Rejection::new(Reason::Refused, "the session has ended meanwhile: begin another one")
        })?;
        if queue.is_full() {
            return Err(full());
        }
        self.accept(queue, id, reads_in, reads_out, context).map_err(|error| {
            tracing::warn!(%error, context, "a peer that was let in cannot be connected");
            Rejection::new(Reason::Failed, "the server cannot make the connection; see its log")
        })
    }

    fn accept(
        &self,
        queue: &Queue,
        id: &Arc<Id>,
        reads_in: u8,
        reads_out: u8,
        context: u64,
    ) -> Result<Peer, VerbsError> {
        let qp = Id::make_qp(id, queue.qp_init())?;
        id.set_ack_timeout(self.limits.ack_exponent());
        let side = Side::Server(Arc::clone(&self.admission));
        let link = queue.add(context, side, qp);
        let link = link.map_err(|full| VerbsError::Connect(full.to_string()))?;
        let (initiates, serves) = self.reads;
        let params = Params {
            private: &self.limits.hello().answer(),
            responder_resources: reads_in.min(serves),
            initiator_depth: reads_out.min(initiates),
            retry_count: RETRIES,
        };
        if let Err(error) = id.accept(params) {
            link.disconnected(error.to_string());
            return Err(error);
        }
        link.established();
        let wait = Duration::from_millis(self.limits.handshake_timeout_ms);
        Ok(Peer { link: Arc::downgrade(&link), deadline: Some(Instant::now() + wait) })
    }

    /// Forgets peers whose connections have ended on this side.
    fn prune(&mut self) {
        if self.peers.len() >= self.prune_at {
            self.peers.retain(|_, peer| peer.link.strong_count() > 0);
            self.prune_at = (self.peers.len() * 2).max(PRUNE_AT);
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod intruder;
#[cfg(test)]
mod packets;
