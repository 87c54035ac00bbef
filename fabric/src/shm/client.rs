//! The client's side: set-up, the watcher thread, the completion queue.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::bell::{ClientBell, Doorbell, FLAG_BYTES};
use super::blob::check_reachable;
use super::link::{Link, Parts, Remote, Side};
use super::ring::Geometry;
use super::wire::{self, Ask, Tell};
use super::{ConnectError, Connected};
use crate::buffer::BufferPool;
use crate::endpoint::{AttachError, Caps, CompletionQueue, Endpoint, Wait};
use crate::loads::{Loads, MAX_REGIONS};
use crate::mem::{AccessError, Memory};
use crate::work::{Completion, PostError, RegionId, RemoteAddr, Rights, WorkRequest};

/// How long [`Endpoint::attach`] waits for the server's listener.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between tries while the listener's backlog is full.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);
/// Pause between tries while the listener has no room for another handshake.
const CROWD_PAUSE: Duration = Duration::from_millis(10);

/// Makes a session with the listener that `blob` describes, showing `ticket`. All completions of
/// it carry `context`. Blocks for at most `timeout`.
///
/// # Errors
/// See [`ConnectError`].
pub fn connect(
    blob: &[u8],
    ticket: &[u8; 32],
    context: u64,
    timeout: Duration,
) -> Result<Connected, ConnectError> {
    let name = check_reachable(blob)?.name;
    let deadline = Deadline { at: Instant::now() + timeout.min(MAX_TIMEOUT), timeout };
    let hello = Ask::Hello { ticket: *ticket };
    let (socket, tell, fds) = loop {
        let socket = reach(&name, &deadline)?;
        match greet(&socket, &hello, &deadline)? {
            Some((tell, fds)) => break (socket, tell, fds),
            // Too many show no ticket just now; the server has not looked at ours.
            None => std::thread::sleep(CROWD_PAUSE.min(deadline.left()?)),
        }
    };
    let welcome = match tell {
        Tell::Welcome { geometry, slot, bell_bytes, staging_bytes } => {
            Welcome { geometry, slot, bell_bytes, staging_bytes }
        }
        Tell::Refused(text) => return Err(ConnectError::Refused(text)),
        _ => return Err(ConnectError::Answer("not a welcome")),
    };
    session(welcome, fds, socket, context)
}

type Answer = (Tell, Vec<OwnedFd>);

const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    fn left(&self) -> Result<Duration, ConnectError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ConnectError::TimedOut(self.timeout)) } else { Ok(left) }
    }
}

struct Welcome {
    geometry: Geometry,
    slot: usize,
    bell_bytes: usize,
    staging_bytes: usize,
}

/// A socket that is connected to the listener.
fn reach(name: &str, deadline: &Deadline) -> Result<OwnedFd, ConnectError> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let socket = wire::socket()?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::CONNREFUSED) => return Err(ConnectError::NoSuchSocket(name.to_owned())),
            // The backlog is full, and a socket that does not block is told so.
            Err(Errno::AGAIN | Errno::INTR) => {
                std::thread::sleep(BACKLOG_PAUSE.min(deadline.left()?));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Shows the ticket and waits for the answer; `None` when the listener closes without one.
fn greet(
    socket: &OwnedFd,
    hello: &Ask,
    deadline: &Deadline,
) -> Result<Option<Answer>, ConnectError> {
    match wire::send(socket, &hello.encode(), &[]) {
        Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
        sent => sent?,
    }
    let mut bytes = [0; wire::MAX_BYTES];
    loop {
        wire::readable(socket, deadline.left()?)?;
        match wire::receive(socket, &mut bytes) {
            Err(Errno::AGAIN) => {}
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(None),
            Ok((n, fds)) => {
                let tell = Tell::decode(&bytes[..n]);
                let tell = tell.ok_or(ConnectError::Answer("not a known message"))?;
                return Ok(Some((tell, fds)));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn session(
    welcome: Welcome,
    fds: Vec<OwnedFd>,
    socket: OwnedFd,
    context: u64,
) -> Result<Connected, ConnectError> {
    let mut fds = fds.into_iter();
    let mut map = |len_bytes: usize, rights| {
        let fd = fds.next().ok_or(ConnectError::Answer("a descriptor is missing"))?;
        let memory = Memory::foreign(fd, len_bytes, rights)?;
        memory.close_fd();
        Ok::<_, ConnectError>(memory)
    };
    let session = map(welcome.geometry.session_bytes(), Rights::ReadWrite)?;
    let bell = map(welcome.bell_bytes, Rights::ReadWrite)?;
    let flag = map(FLAG_BYTES, Rights::ReadOnly)?;
    let staging = match welcome.staging_bytes {
        0 => None,
        len_bytes => Some(Arc::new(map(len_bytes, Rights::ReadWrite)?)),
    };
    let doorbell = Doorbell::new(bell, flag, welcome.slot)
        .ok_or(ConnectError::Answer("the session has no bit in the bell"))?;
    let shared = Arc::new(Shared {
        link: Link::new(Parts {
            context,
            session,
            side: Side::Client { doorbell, bell: ClientBell::default() },
            remote: Remote::Regions(Arc::new(Loads::new())),
            socket,
            geometry: welcome.geometry,
            loads_allowed: true,
            pool: BufferPool::new(),
        }),
        mail: Mutex::default(),
        arrived: Condvar::new(),
        attaching: Mutex::new(()),
    });
    let watched = Arc::clone(&shared);
    let watcher = std::thread::Builder::new()
        .name("shm-watcher".to_owned())
        .spawn(move || watched.watch())?;
    let handle = Arc::new(Handle { shared: Arc::clone(&shared), watcher: Some(watcher) });
    Ok(Connected {
        endpoint: Arc::new(ClientEndpoint {
            shared: Arc::clone(&shared),
            _handle: Arc::clone(&handle),
        }),
        cq: Arc::new(ClientQueue { shared, _handle: handle }),
        staging,
    })
}

/// What the watcher thread and the user's handles share.
struct Shared {
    link: Link,
    mail: Mutex<Mail>,
    arrived: Condvar,
    /// One attach at a time asks the server.
    attaching: Mutex<()>,
}

#[derive(Default)]
struct Mail {
    answer: Option<Answer>,
    closed: bool,
}

impl Shared {
    /// Takes answers off the socket and notices its end, without any periodic wake-up.
    fn watch(&self) {
        let mut bytes = [0; wire::MAX_BYTES];
        loop {
            if wire::readable(&self.link.socket, Duration::MAX).is_err() {
                break;
            }
            match wire::receive(&self.link.socket, &mut bytes) {
                Err(Errno::AGAIN) => {}
                Ok((0, _)) | Err(_) => break,
                Ok((n, fds)) => {
                    let Some(tell) = Tell::decode(&bytes[..n]) else { break };
                    self.mail.lock().answer = Some((tell, fds));
                    self.arrived.notify_all();
                }
            }
        }
        self.link.peer_gone();
        self.mail.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Asks the server for a region and waits for the answer.
    fn ask(&self, region: RegionId) -> Result<Answer, AttachError> {
        let failed = |source: std::io::Error| AttachError::Map { region, source };
        self.mail.lock().answer = None;
        match wire::send(&self.link.socket, &Ask::Region { region }.encode(), &[]) {
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(AttachError::Closed),
            sent => sent.map_err(|error| failed(error.into()))?,
        }
        let deadline = Instant::now() + ATTACH_TIMEOUT;
        let mut mail = self.mail.lock();
        loop {
            match mail.answer.take() {
                Some((tell, fds)) if tell.is_about(region) => return Ok((tell, fds)),
                // Late: of an attach that gave up.
                Some(_) => {}
                None if mail.closed => return Err(AttachError::Closed),
                None => {
                    if self.arrived.wait_until(&mut mail, deadline).timed_out() {
                        return Err(failed(std::io::ErrorKind::TimedOut.into()));
                    }
                }
            }
        }
    }

    fn attach(&self, region: RegionId) -> Result<(), AttachError> {
        let Remote::Regions(table) = &self.link.remote else {
            return Err(AttachError::NotOneSided);
        };
        if region.0 as usize >= MAX_REGIONS {
            return Err(AttachError::TooMany(region, MAX_REGIONS));
        }
        if self.link.is_closed() {
            return Err(AttachError::Closed);
        }
        let _one_at_a_time = self.attaching.lock();
        if table.get(region).is_ok() {
            return Ok(());
        }
        let (tell, fds) = self.ask(region)?;
        let Tell::Offer { rights, len_bytes, .. } = tell else {
            return Err(AttachError::NotOffered(region));
        };
        let failed = |source: std::io::Error| AttachError::Map { region, source };
        let missing = || failed(std::io::Error::other("the answer came without its descriptor"));
        let fd = fds.into_iter().next().ok_or_else(missing)?;
        let memory = Memory::foreign(fd, len_bytes, rights).map_err(failed)?;
        memory.close_fd();
        table.insert(region, memory);
        Ok(())
    }
}

impl Tell {
    fn is_about(&self, asked: RegionId) -> bool {
        match self {
            Self::Offer { region, .. } | Self::NoOffer { region } => *region == asked,
            Self::Welcome { .. } | Self::Refused(_) => false,
        }
    }
}

/// Ends the session when the last of the user's handles is dropped.
struct Handle {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.link.fail("closed by this side".to_owned());
        if let Some(watcher) = self.watcher.take()
            && watcher.join().is_err()
        {
            tracing::error!("the watcher of an shm session has panicked");
        }
    }
}

struct ClientEndpoint {
    shared: Arc<Shared>,
    _handle: Arc<Handle>,
}

impl fmt::Debug for ClientEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shm client endpoint, context {}", self.shared.link.context())
    }
}

impl Endpoint for ClientEndpoint {
    fn caps(&self) -> Caps {
        self.shared.link.caps()
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        self.shared.link.post(chain)
    }

    /// The descriptor says nothing that the server does not say again over the socket, with the
    /// memfd; it is not looked at.
    fn attach(&self, region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        self.shared.attach(region)
    }

    fn detach(&self, region: RegionId) {
        let Remote::Regions(table) = &self.shared.link.remote else { return };
        if let Some(Err(error)) = table.region(region).map(Memory::discard) {
            tracing::warn!(%error, ?region, "a region that the server gave up stays mapped");
        }
    }

    fn is_fenced(&self) -> bool {
        self.shared.link.is_fenced()
    }

    #[inline]
    fn read_now(&self, remote: RemoteAddr, into: &mut [u64]) -> Option<Result<(), AccessError>> {
        Some(self.shared.link.read_words(remote, into))
    }

    #[inline]
    fn read_bytes_now(
        &self,
        remote: RemoteAddr,
        into: &mut [u8],
    ) -> Option<Result<(), AccessError>> {
        Some(self.shared.link.read_bytes(remote, into))
    }

    fn loads(&self) -> Option<&Arc<Loads>> {
        match &self.shared.link.remote {
            Remote::Regions(loads) => Some(loads),
            Remote::Staging(_) => None,
        }
    }

    #[inline]
    fn prefetch(&self, remote: RemoteAddr, len_bytes: usize) {
        if let Ok(memory) = self.shared.link.memory(remote.region) {
            memory.prefetch(remote.offset_bytes as usize, len_bytes);
        }
    }

    fn is_near(&self) -> bool {
        true
    }

    fn close(&self) {
        self.shared.link.fail("closed by this side".to_owned());
    }

    fn is_closed(&self) -> bool {
        self.shared.link.is_closed()
    }
}

struct ClientQueue {
    shared: Arc<Shared>,
    _handle: Arc<Handle>,
}

impl CompletionQueue for ClientQueue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let before = out.len();
        self.shared.link.drain(out, max);
        out.len() - before
    }

    fn wait(&self, timeout: Duration) -> Wait {
        let link = &self.shared.link;
        let Side::Client { bell, .. } = &link.side else { return Wait::Ready };
        bell.wait(&link.session, timeout, &|| link.has_input())
    }

    fn wake(&self) {
        let link = &self.shared.link;
        if let Side::Client { bell, .. } = &link.side {
            bell.wake(&link.session);
        }
    }
}
