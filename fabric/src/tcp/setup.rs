//! Sockets become endpoints.

use std::collections::VecDeque;
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

use super::Limits;
use super::link::{Link, SEND_DEPTH};
use super::queue::{Common, Hub, Queue};
use super::receive::NAP;
use crate::endpoint::{AttachError, Caps, CompletionQueue, Endpoint, FabricKind};
use crate::mem::AccessError;
use crate::work::{Completion, Outcome, PostError, RegionId, RemoteAddr, WorkRequest};

/// The server's side: makes endpoints of sockets that its control port has admitted. Its
/// completion queues close theirs when they are dropped.
#[derive(Clone)]
pub struct Acceptor {
    hubs: Vec<Arc<Hub>>,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("queues", &self.hubs.len()).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// An acceptor, and so many completion queues, each for a thread of its own: what is adopted
    /// goes to the one that has the fewest. Limits are of all of them together.
    ///
    /// # Errors
    /// When the limits contradict each other, or the system refuses an epoll descriptor.
    pub fn new(
        limits: Limits,
        queues: usize,
    ) -> std::io::Result<(Self, Vec<Arc<dyn CompletionQueue>>)> {
        let common = Common::new(&limits);
        let hub = |_| Hub::new(limits, Arc::clone(&common), false).map(Arc::new);
        let hubs = (0..queues).map(hub).collect::<std::io::Result<Vec<_>>>()?;
        let queue = |hub: &Arc<Hub>| -> Arc<dyn CompletionQueue> { Arc::new(Queue(hub.clone())) };
        let queues = hubs.iter().map(queue).collect();
        Ok((Self { hubs }, queues))
    }

    /// Makes an endpoint of a socket whose ticket was accepted; [`Outcome::Connected`] is its
    /// first completion. May be called by any thread.
    ///
    /// # Errors
    /// When `max_endpoints` are open, the queue is gone, or the system refuses.
    pub fn adopt(&self, stream: TcpStream, context: u64) -> std::io::Result<()> {
        let none = || std::io::Error::other("an acceptor without completion queues");
        let hub = self.hubs.iter().min_by_key(|hub| hub.endpoints()).ok_or_else(none)?;
        let link = open(hub, stream, context)?;
        let endpoint = TcpEndpoint { hub: Arc::clone(hub), link: Arc::clone(&link) };
        let outcome = Outcome::Connected(Arc::new(endpoint));
        hub.publish(link, Some(Completion { context, id: 0, outcome }));
        Ok(())
    }
}

/// The client's side: makes an endpoint of a socket on which preamble and ticket were written.
///
/// # Errors
/// When the limits contradict each other, or the system refuses.
pub fn connect(
    stream: TcpStream,
    context: u64,
    limits: Limits,
) -> std::io::Result<(Arc<dyn Endpoint>, Arc<dyn CompletionQueue>)> {
    let hub = Arc::new(Hub::new(limits, Common::new(&limits), true)?);
    let link = open(&hub, stream, context)?;
    hub.publish(Arc::clone(&link), None);
    let endpoint = TcpEndpoint { hub: Arc::clone(&hub), link };
    Ok((Arc::new(endpoint), Arc::new(Queue(hub))))
}

fn open(hub: &Arc<Hub>, stream: TcpStream, context: u64) -> std::io::Result<Arc<Link>> {
    // Every access says whether it may wait.
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(NAP))?;
    stream.set_nodelay(true)?;
    let token = hub.reserve()?;
    let link = Arc::new(Link::new(token, context, stream));
    if let Err(error) = hub.watch(&link) {
        hub.release(token);
        return Err(error);
    }
    Ok(link)
}

/// A handle; dropping the last one closes the connection.
struct TcpEndpoint {
    hub: Arc<Hub>,
    link: Arc<Link>,
}

impl fmt::Debug for TcpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpEndpoint")
            .field("context", &self.link.context)
            .field("peer", &self.link.stream.peer_addr().ok())
            .field("closed", &self.link.is_closed())
            .finish()
    }
}

impl Endpoint for TcpEndpoint {
    fn caps(&self) -> Caps {
        Caps {
            kind: FabricKind::Tcp,
            one_sided: false,
            reads_now: false,
            max_message_bytes: self.hub.limits.max_message_bytes,
            send_depth: SEND_DEPTH,
        }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        self.link.post(&self.hub, chain)
    }

    fn send_copy(&self, id: u64, message: &[u8]) -> bool {
        self.link.send_copy(&self.hub, id, message)
    }

    fn attach(&self, _region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        Err(AttachError::NotOneSided)
    }

    fn read_now(&self, _remote: RemoteAddr, _into: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(
        &self,
        _remote: RemoteAddr,
        _into: &mut [u8],
    ) -> Option<Result<(), AccessError>> {
        None
    }

    fn is_near(&self) -> bool {
        self.link.near
    }

    fn close(&self) {
        if !self.link.is_closed() {
            // A last answer, such as why the session ends, leaves if the socket takes it.
            self.link.flush(&self.hub);
            self.link.fail(&self.hub, "closed by this side");
        }
    }

    fn is_closed(&self) -> bool {
        self.link.is_closed()
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
