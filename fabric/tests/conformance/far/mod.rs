//! Clients on another host: what a case does with one is done there, by [`serve`], and told over
//! TCP. The server is this host's.

mod serve;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use onesided_fabric::{
    AccessError, AttachError, BufferPool, Caps, Completion, CompletionQueue, Endpoint, PostError,
    RegionId, RemoteAddr, Wait, WorkRequest,
};
use parking_lot::Mutex;

use crate::rig::ClientEnd;
use wire::{Arrived, Message};

/// Address of the other host's end: there is one, and the suite is run with it.
pub(crate) const FAR: &str = "ONESIDED_FAR";

/// What the other host is asked to do, each with the number of the connection.
#[derive(Clone, Copy)]
enum Ask {
    Connect,
    Post,
    Attach,
    Poll,
    Wait,
    Wake,
    Close,
    IsClosed,
    DropEndpoint,
    DropQueue,
}

impl Ask {
    /// By number.
    const ALL: [Self; 10] = [
        Self::Connect,
        Self::Post,
        Self::Attach,
        Self::Poll,
        Self::Wait,
        Self::Wake,
        Self::Close,
        Self::IsClosed,
        Self::DropEndpoint,
        Self::DropQueue,
    ];
}

/// The other host.
pub(crate) struct Far {
    addr: String,
    pool: BufferPool,
    /// Streams that nobody waits at: one question at a time each, and waits may be long.
    idle: Mutex<Vec<TcpStream>>,
}

impl Far {
    /// The one that there is, if there is one.
    pub(crate) fn of_environment() -> Option<Arc<Self>> {
        let addr = std::env::var(FAR).ok()?;
        Some(Arc::new(Self { addr, pool: BufferPool::new(), idle: Mutex::default() }))
    }

    /// Connects it to this host's listener.
    pub(crate) fn connect(self: &Arc<Self>, blob: &[u8], context: u64) -> ClientEnd {
        let mut answer = self.ask(&question(Ask::Connect, 0).bytes(blob).number(context));
        let (number, caps) = (answer.number(), answer.caps());
        let endpoint = Arc::new(FarEndpoint { far: Arc::clone(self), number, caps });
        let cq = Arc::new(FarQueue { far: Arc::clone(self), number });
        ClientEnd { endpoint, cq }
    }

    fn ask(&self, question: &Message) -> Arrived {
        let idle = self.idle.lock().pop();
        let mut stream = idle.unwrap_or_else(|| {
            let stream = TcpStream::connect(&self.addr).expect("the other host's end");
            stream.set_nodelay(true).expect("a socket");
            stream
        });
        question.send(&mut stream);
        let answer = Arrived::receive(&mut stream).expect("the other host's answer; see its log");
        self.idle.lock().push(stream);
        answer
    }
}

fn question(ask: Ask, number: u64) -> Message {
    Message::default().number(ask as u64).number(number)
}

struct FarEndpoint {
    far: Arc<Far>,
    number: u64,
    caps: Caps,
}

impl FarEndpoint {
    fn ask(&self, ask: Ask) -> Arrived {
        self.far.ask(&question(ask, self.number))
    }
}

impl fmt::Debug for FarEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} of {}", self.number, self.far.addr)
    }
}

impl Endpoint for FarEndpoint {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let count = chain.len();
        let posted = question(Ask::Post, self.number).number(count as u64);
        let posted = chain.iter().fold(posted, Message::request);
        let (outcome, left) = self.far.ask(&posted).posted();
        chain.drain(..count - left);
        outcome
    }

    fn attach(&self, region: RegionId, _: &[u8]) -> Result<(), AttachError> {
        self.far.ask(&question(Ask::Attach, self.number).number(region.0.into())).attached()
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn close(&self) {
        self.ask(Ask::Close);
    }

    fn is_closed(&self) -> bool {
        self.ask(Ask::IsClosed).number() != 0
    }
}

impl Drop for FarEndpoint {
    fn drop(&mut self) {
        self.ask(Ask::DropEndpoint);
    }
}

struct FarQueue {
    far: Arc<Far>,
    number: u64,
}

impl CompletionQueue for FarQueue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let mut answer = self.far.ask(&question(Ask::Poll, self.number).number(max as u64));
        let count = answer.number() as usize;
        out.extend((0..count).map(|_| answer.completion(&self.far.pool)));
        count
    }

    fn wait(&self, timeout: Duration) -> Wait {
        let timeout_ms = timeout.as_millis() as u64;
        self.far.ask(&question(Ask::Wait, self.number).number(timeout_ms)).wait()
    }

    fn wake(&self) {
        self.far.ask(&question(Ask::Wake, self.number));
    }
}

impl Drop for FarQueue {
    fn drop(&mut self) {
        self.far.ask(&question(Ask::DropQueue, self.number));
    }
}
