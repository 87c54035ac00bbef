//! The server's set-up thread: lets peers in, gives out regions, notices deaths. It sleeps in
//! epoll and has no periodic wake-ups.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::Limits;
use super::bell::bell_bytes;
use super::blob::{Blob, MAX_NAME_BYTES};
use super::hub::Hub;
use super::link::{Link, Parts, Remote, Side};
use super::ring::Geometry;
use super::wire::{self, Ask, Tell};
use crate::buffer::BufferPool;
use crate::endpoint::{Admission, CompletionQueue};
use crate::mem::Memory;
use crate::work::{RegionId, Rights};

const LISTENING: u64 = 0;
const STOP: u64 = 1;
const FIRST_PEER: u64 = 2;
const EVENTS_AT_ONCE: usize = 64;
const ACCEPTS_AT_ONCE: usize = 64;
const BACKLOG: i32 = 128;
/// How long no peer is accepted after the system had no descriptor or memory for one.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets peers of this host in. Dropping it ends all its sessions and joins its thread.
pub struct Listener {
    name: String,
    blob: Vec<u8>,
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shm listener @{}", self.name)
    }
}

impl Listener {
    /// Listens on an abstract Unix socket whose name begins with `name` and ends with a random
    /// part, so that nobody can take it over in advance.
    ///
    /// # Errors
    /// When the system refuses the socket, the thread or the memory, or the name is too long.
    pub fn start(
        name: &str,
        limits: Limits,
        admission: Arc<dyn Admission>,
    ) -> io::Result<(Self, Arc<dyn CompletionQueue>)> {
        let limits = limits.in_range();
        let name = format!("{name}-{:016x}", rand::random::<u64>());
        if name.len() > MAX_NAME_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "shm socket name too long"));
        }
        let blob = Blob::of_this_host(&name)?.encode();
        let socket = wire::socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), event: eventfd(0, flags)? });
        let hub = Arc::new(Hub::new(limits.max_endpoints)?);
        let acceptor = Acceptor::new(socket, limits, admission, &hub, &stop)?;
        let thread = std::thread::Builder::new()
            .name("shm-listener".to_owned())
            .spawn(move || acceptor.run())?;
        let thread = Mutex::new(Some(thread));
        Ok((Self { name, blob, stop, thread }, hub))
    }

    /// The abstract socket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a client needs to find this listener: opaque, at most 146 bytes.
    #[must_use]
    pub fn blob(&self) -> Vec<u8> {
        self.blob.clone()
    }

    /// Ends all sessions and the thread, and waits for it. The completion queue goes on to
    /// deliver what there is, and each session's `Disconnected`.
    pub fn stop(&self) {
        self.stop.asked.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the thread is awake.
        let _full = rustix::io::write(&self.stop.event, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(listener = self.name, "the shm listener's thread has panicked");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Peer {
    /// Has not shown a ticket.
    Unknown {
        socket: OwnedFd,
        deadline: Instant,
    },
    Session(Arc<Link>),
}

impl Peer {
    fn socket(&self) -> &OwnedFd {
        match self {
            Self::Unknown { socket, .. } => socket,
            Self::Session(link) => &link.socket,
        }
    }
}

/// What is known after looking at a peer.
enum Verdict {
    Keep,
    Close,
}

struct Acceptor {
    epoll: OwnedFd,
    listening: OwnedFd,
    paused_until: Option<Instant>,
    limits: Limits,
    admission: Arc<dyn Admission>,
    hub: Arc<Hub>,
    pool: BufferPool,
    stop: Arc<Stop>,
    peers: HashMap<u64, Peer>,
    next_token: u64,
    unknown: usize,
}

impl Acceptor {
    fn new(
        listening: OwnedFd,
        limits: Limits,
        admission: Arc<dyn Admission>,
        hub: &Arc<Hub>,
        stop: &Arc<Stop>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &listening, data(LISTENING), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &stop.event, data(STOP), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            listening,
            paused_until: None,
            limits,
            admission,
            hub: Arc::clone(hub),
            pool: BufferPool::new(),
            stop: Arc::clone(stop),
            peers: HashMap::new(),
            next_token: FIRST_PEER,
            unknown: 0,
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        while !self.stop.asked.load(Ordering::Acquire) {
            let timeout = self.timeout().and_then(|t| t.try_into().ok());
            let buffer = rustix::buffer::spare_capacity(&mut events);
            if let Err(error) = epoll::wait(&self.epoll, buffer, timeout.as_ref())
                && error != Errno::INTR
            {
                tracing::error!(%error, "the shm listener cannot wait for events and ends");
                break;
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENING => self.accept(),
                    STOP => {}
                    token => self.look_at(token),
                }
            }
            self.expire();
        }
        for peer in self.peers.values() {
            if let Peer::Session(link) = peer {
                link.fail("the listener was stopped".to_owned());
            }
        }
    }

    /// Time until something must be done without an event.
    fn timeout(&self) -> Option<Duration> {
        let mut next = self.paused_until;
        if self.unknown > 0 {
            for peer in self.peers.values() {
                if let Peer::Unknown { deadline, .. } = peer {
                    next = Some(next.map_or(*deadline, |n| n.min(*deadline)));
                }
            }
        }
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Closes who was silent for too long, and ends a pause.
    fn expire(&mut self) {
        let now = Instant::now();
        if self.unknown > 0 {
            let late =
                |peer: &Peer| matches!(peer, Peer::Unknown { deadline, .. } if *deadline <= now);
            self.peers.retain(|_, peer| !late(peer));
            self.count_unknown();
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.listen_for(epoll::EventFlags::IN);
        }
    }

    fn count_unknown(&mut self) {
        let unknown = self.peers.values().filter(|p| matches!(p, Peer::Unknown { .. }));
        self.unknown = unknown.count();
    }

    fn listen_for(&self, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENING);
        if let Err(error) = epoll::modify(&self.epoll, &self.listening, data, flags) {
            tracing::error!(%error, "the shm listener cannot change what it waits for");
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listening, flags) {
                Ok(socket) if self.unknown < self.limits.pending_handshakes => self.add(socket),
                // Too many without a ticket: closed at once.
                Ok(_socket) => {}
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept shm peers for a while");
                    self.paused_until = Some(Instant::now() + PAUSE);
                    self.listen_for(epoll::EventFlags::empty());
                    return;
                }
            }
        }
    }

    fn add(&mut self, socket: OwnedFd) {
        let token = self.next_token;
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN) {
            tracing::warn!(%error, "cannot watch a new shm peer");
            return;
        }
        self.next_token += 1;
        let wait = Duration::from_millis(self.limits.handshake_timeout_ms);
        let deadline = Instant::now() + wait;
        self.peers.insert(token, Peer::Unknown { socket, deadline });
        self.unknown += 1;
    }

    /// Takes one message of a peer.
    fn look_at(&mut self, token: u64) {
        // It may have been closed by an earlier event of the same round.
        let Some(peer) = self.peers.remove(&token) else { return };
        let known = matches!(peer, Peer::Session(_));
        if !known {
            self.unknown -= 1;
        }
        let mut bytes = [0; wire::MAX_BYTES];
        let received = match wire::receive_plain(peer.socket(), &mut bytes) {
            Err(Errno::AGAIN) => None,
            Ok(n) => Some(Ask::decode(&bytes[..n])),
            // Reset: as good as closed.
            Err(_) => Some(None),
        };
        let kept = match (peer, received) {
            (peer, None) => Some(peer),
            (Peer::Session(link), Some(ask)) => match self.serve(&link, ask) {
                Verdict::Keep => Some(Peer::Session(link)),
                Verdict::Close => {
                    link.peer_gone();
                    // The link, and so the socket, may live on in the server's hands.
                    let _gone = epoll::delete(&self.epoll, &link.socket);
                    None
                }
            },
            (Peer::Unknown { socket, .. }, Some(Some(Ask::Hello { ticket }))) => {
                self.admit(socket, &ticket).map(Peer::Session)
            }
            (Peer::Unknown { .. }, Some(_)) => None,
        };
        if let Some(peer) = kept {
            self.unknown += usize::from(matches!(peer, Peer::Unknown { .. }));
            self.peers.insert(token, peer);
        }
    }

    fn serve(&self, link: &Link, ask: Option<Ask>) -> Verdict {
        let Some(Ask::Region { region }) = ask else { return Verdict::Close };
        if link.is_closed() {
            return Verdict::Close;
        }
        match self.offer(link, region) {
            Ok(()) => Verdict::Keep,
            Err(error) => {
                // Also a peer that asks without taking the answers.
                tracing::warn!(%error, ?region, "cannot pass a region; the session ends");
                Verdict::Close
            }
        }
    }

    fn offer(&self, link: &Link, region: RegionId) -> Result<(), Errno> {
        if let Some((memory, rights)) = self.admission.region(link.context(), region)
            && let Some(fd) = memory.fd()
        {
            let len_bytes = memory.len_bytes();
            let tell = Tell::Offer { region, rights, len_bytes };
            return wire::send(&link.socket, &tell.encode(), &[fd.as_fd()]);
        }
        wire::send(&link.socket, &Tell::NoOffer { region }.encode(), &[])
    }

    /// Makes a session for who shows a good ticket, else tells why not.
    fn admit(&self, socket: OwnedFd, ticket: &[u8; 32]) -> Option<Arc<Link>> {
        let Some(slot) = self.hub.take_slot() else {
            refuse(&socket, "it has no room for another session; try again later");
            return None;
        };
        match self.make_session(socket, ticket, slot) {
            Ok(link) => {
                self.hub.arrive(slot, Arc::clone(&link));
                // After `arrive`: from here on the peer may ring.
                Some(link)
            }
            Err(()) => {
                self.hub.give_slot(slot);
                None
            }
        }
    }

    fn make_session(
        &self,
        socket: OwnedFd,
        ticket: &[u8; 32],
        slot: usize,
    ) -> Result<Arc<Link>, ()> {
        let context = match self.admission.admit(ticket) {
            Ok(context) => context,
            Err(refused) => {
                refuse(&socket, &refused.0);
                return Err(());
            }
        };
        let geometry = Geometry::of(&self.limits);
        let made = self.make_memory(geometry).and_then(|(session, staging)| {
            self.welcome(&socket, geometry, slot, &session, staging.as_ref())?;
            Ok((session, staging))
        });
        let (session, staging) = made.map_err(|error| {
            let pid = socket_peercred(&socket).ok().map(|peer| peer.pid.as_raw_nonzero());
            tracing::warn!(%error, pid, "cannot make an shm session");
            refuse(&socket, "it cannot make a session; see its log");
        })?;
        // One descriptor per session is enough: the socket.
        session.close_fd();
        if let Some(staging) = &staging {
            staging.close_fd();
        }
        Ok(Arc::new(Link::new(Parts {
            context,
            session,
            side: Side::Server { bell: Arc::clone(&self.hub.bell), slot },
            remote: Remote::Staging(staging.map(Arc::new)),
            socket,
            geometry,
            loads_allowed: self.limits.loads_allowed,
            pool: self.pool.clone(),
        })))
    }

    fn make_memory(&self, geometry: Geometry) -> io::Result<(Memory, Option<Memory>)> {
        let session = Memory::shared("shm-session", geometry.session_bytes(), Rights::ReadWrite)?;
        let staging = match self.limits.staging_bytes {
            0 => None,
            len => Some(Memory::shared("shm-staging", len, Rights::ReadWrite)?),
        };
        Ok((session, staging))
    }

    fn welcome(
        &self,
        socket: &OwnedFd,
        geometry: Geometry,
        slot: usize,
        session: &Memory,
        staging: Option<&Memory>,
    ) -> io::Result<()> {
        let (bell, flag) = self.hub.bell.memories();
        let memories = [Some(session), Some(bell), Some(flag), staging];
        let fds: Vec<_> = memories.iter().flatten().filter_map(|memory| memory.fd()).collect();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let tell = Tell::Welcome {
            geometry,
            slot,
            bell_bytes: bell_bytes(self.limits.max_endpoints),
            staging_bytes: self.limits.staging_bytes,
        };
        Ok(wire::send(socket, &tell.encode(), &fds)?)
    }
}

fn refuse(socket: &OwnedFd, text: &str) {
    // The peer may be gone already; it is closed anyhow.
    let _gone = wire::send(socket, &Tell::Refused(text.to_owned()).encode(), &[]);
}
