//! What a case sees: a server with one completion queue, clients, and bounded pumping.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::{
    Admission, AttachError, Buffer, BufferPool, Completion, CompletionQueue, Endpoint, Memory,
    Opcode, Outcome, PostError, Refused, RegionId, RemoteAddr, Rights, WorkRequest,
};
use parking_lot::Mutex;

/// Real time that anything may take, and steps of a simulation.
const PATIENCE: Duration = Duration::from_secs(30);
const MAX_ROUNDS: u64 = 3_000_000;

/// A client as its backend hands it out.
pub(crate) struct ClientEnd {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
}

/// One server of one fabric.
pub(crate) trait Backend {
    /// For messages of failing cases; with the seed, if there is one.
    fn name(&self) -> String;
    fn server_cq(&self) -> Arc<dyn CompletionQueue>;
    /// Connects; the server's queue gets `Connected`.
    fn connect(&mut self, context: u64) -> ClientEnd;
    /// Memory that clients may attach.
    fn offer(&mut self, region: RegionId, len_bytes: usize, rights: Rights) -> Arc<Memory>;
    /// Lets time pass where it does not by itself.
    fn progress(&mut self);
    /// Nothing happens but in `progress`, in this thread.
    fn single_threaded(&self) -> bool {
        false
    }
}

/// Admits everybody and shows what was offered.
#[derive(Default)]
pub(crate) struct Gate {
    admitted: AtomicU64,
    regions: Mutex<Vec<(RegionId, Arc<Memory>, Rights)>>,
}

impl Gate {
    pub(crate) fn offer(&self, region: RegionId, memory: &Arc<Memory>, rights: Rights) {
        self.regions.lock().push((region, Arc::clone(memory), rights));
    }
}

impl Admission for Gate {
    fn admit(&self, _ticket: &[u8; 32]) -> Result<u64, Refused> {
        Ok(100 + self.admitted.fetch_add(1, Ordering::Relaxed))
    }

    fn region(&self, _context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        let regions = self.regions.lock();
        let found = regions.iter().find(|(id, ..)| *id == region)?;
        Some((Arc::clone(&found.1), found.2))
    }
}

/// Which end of which connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Client(usize),
    Server(usize),
}

struct Side {
    context: u64,
    endpoint: Option<Arc<dyn Endpoint>>,
    inbox: VecDeque<Completion>,
    ended: bool,
}

impl Side {
    fn take(&mut self, completion: Completion) {
        assert!(!self.ended, "after the end: {completion:?}");
        self.ended = matches!(completion.outcome, Outcome::Disconnected(_));
        self.inbox.push_back(completion);
    }
}

pub(crate) struct Rig {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) pool: BufferPool,
    server_cq: Arc<dyn CompletionQueue>,
    client_cqs: Vec<Option<Arc<dyn CompletionQueue>>>,
    clients: Vec<Side>,
    servers: Vec<Side>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed on {}", self.backend.name());
        }
    }
}

impl Rig {
    pub(crate) fn new(backend: Box<dyn Backend>) -> Self {
        let server_cq = backend.server_cq();
        let (client_cqs, clients, servers) = Default::default();
        Self { backend, pool: BufferPool::new(), server_cq, client_cqs, clients, servers }
    }

    /// A new connection; its number.
    pub(crate) fn connect(&mut self) -> usize {
        let index = self.clients.len();
        let context = 5000 + index as u64;
        let ClientEnd { endpoint, cq } = self.backend.connect(context);
        let endpoint = Some(endpoint);
        self.clients.push(Side { context, endpoint, inbox: VecDeque::new(), ended: false });
        self.client_cqs.push(Some(cq));
        self.until("Connected", |rig| rig.servers.len() > index);
        index
    }

    /// A new connection to a new region of `len_bytes`.
    pub(crate) fn connect_to(
        &mut self,
        region: u32,
        len_bytes: usize,
        rights: Rights,
    ) -> (usize, Arc<Memory>) {
        let memory = self.backend.offer(RegionId(region), len_bytes, rights);
        let index = self.connect();
        self.attach(index, region).unwrap();
        (index, memory)
    }

    /// Attaches a region, while the server is polled: where regions are asked for over the
    /// connection itself, who polls there answers.
    pub(crate) fn attach(&mut self, client: usize, region: u32) -> Result<(), AttachError> {
        let endpoint = self.endpoint(End::Client(client));
        if self.backend.single_threaded() {
            return endpoint.attach(RegionId(region), &[]);
        }
        let asking = std::thread::spawn(move || endpoint.attach(RegionId(region), &[]));
        while !asking.is_finished() {
            self.backend.progress();
            self.pump_servers();
        }
        asking.join().unwrap()
    }

    fn side(&mut self, end: End) -> &mut Side {
        match end {
            End::Client(i) => &mut self.clients[i],
            End::Server(i) => &mut self.servers[i],
        }
    }

    pub(crate) fn endpoint(&mut self, end: End) -> Arc<dyn Endpoint> {
        Arc::clone(self.side(end).endpoint.as_ref().expect("dropped by this case"))
    }

    /// Gives up all that a client holds of its connection.
    pub(crate) fn drop_client(&mut self, i: usize) {
        self.clients[i].endpoint = None;
        self.client_cqs[i] = None;
    }

    pub(crate) fn cq(&self, end: End) -> Arc<dyn CompletionQueue> {
        match end {
            End::Client(i) => {
                Arc::clone(self.client_cqs[i].as_ref().expect("dropped by this case"))
            }
            End::Server(_) => Arc::clone(&self.server_cq),
        }
    }

    /// One round: time passes, and both sides are polled.
    pub(crate) fn pump(&mut self) {
        self.backend.progress();
        self.pump_servers();
        for i in 0..self.clients.len() {
            self.pump_client(i);
        }
    }

    pub(crate) fn pump_servers(&mut self) {
        let mut out = Vec::new();
        let n = self.server_cq.poll(&mut out, 32);
        assert!(n == out.len() && n <= 32, "poll returned {n} and gave {}", out.len());
        for completion in out {
            if let Outcome::Connected(endpoint) = completion.outcome {
                let (context, endpoint) = (completion.context, Some(endpoint));
                let inbox = VecDeque::new();
                self.servers.push(Side { context, endpoint, inbox, ended: false });
                continue;
            }
            let context = completion.context;
            let side = self.servers.iter_mut().find(|s| s.context == context);
            side.expect("a completion of a context that was never connected").take(completion);
        }
    }

    pub(crate) fn pump_client(&mut self, i: usize) {
        let mut out = Vec::new();
        let Some(cq) = &self.client_cqs[i] else { return };
        cq.poll(&mut out, 32);
        for completion in out {
            assert_eq!(completion.context, self.clients[i].context);
            self.clients[i].take(completion);
        }
    }

    /// Pumps until it is so.
    pub(crate) fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..MAX_ROUNDS {
            if so(self) {
                return;
            }
            assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
            self.pump();
        }
        panic!("not within {MAX_ROUNDS} rounds: {what}");
    }

    /// Pumps for a while in which nothing more is expected.
    pub(crate) fn linger(&mut self) {
        for _ in 0..500 {
            self.pump();
        }
    }

    /// The next completion of this end.
    pub(crate) fn next(&mut self, end: End) -> Completion {
        self.until("a completion", |rig| !rig.side(end).inbox.is_empty());
        self.side(end).inbox.pop_front().expect("just seen")
    }

    /// What has arrived already.
    pub(crate) fn arrived(&mut self, end: End) -> usize {
        self.side(end).inbox.len()
    }

    pub(crate) fn next_message(&mut self, end: End) -> Buffer {
        match self.next(end).outcome {
            Outcome::Received(message) => message,
            other => panic!("a message was expected, not {other:?}"),
        }
    }

    /// Takes everything up to the end of the connection.
    pub(crate) fn all_until_end(&mut self, end: End) -> Vec<Completion> {
        self.until("Disconnected", |rig| rig.side(end).ended);
        self.side(end).inbox.drain(..).collect()
    }

    /// Posts all of it, pumping while the queue is full.
    pub(crate) fn post(&mut self, end: End, chain: impl IntoIterator<Item = WorkRequest>) {
        let endpoint = self.endpoint(end);
        let mut chain: VecDeque<_> = chain.into_iter().collect();
        self.until("room", |_| match endpoint.post(&mut chain) {
            Ok(()) => true,
            Err(PostError::Full) => false,
            Err(other) => panic!("{other}"),
        });
        assert!(chain.is_empty());
    }

    /// Does one signalled request and returns what came of it.
    pub(crate) fn run(&mut self, client: usize, op: Opcode) -> Outcome {
        let id = 0xace;
        self.post(End::Client(client), [WorkRequest { id, signaled: true, op }]);
        let completion = self.next(End::Client(client));
        assert_eq!(completion.id, id);
        completion.outcome
    }

    pub(crate) fn send(&self, id: u64, message: &[u8]) -> WorkRequest {
        let op = Opcode::Send { message: self.pool.copy_of(message) };
        WorkRequest { id, signaled: false, op }
    }

    pub(crate) fn read(&self, region: u32, offset_bytes: u64, len_bytes: usize) -> Opcode {
        let mut into = self.pool.get(len_bytes);
        into.fill(0xee);
        Opcode::Read { remote: at(region, offset_bytes), into }
    }

    pub(crate) fn write(&self, region: u32, offset_bytes: u64, bytes: &[u8]) -> Opcode {
        Opcode::Write { remote: at(region, offset_bytes), from: self.pool.copy_of(bytes) }
    }
}

pub(crate) fn at(region: u32, offset_bytes: u64) -> RemoteAddr {
    RemoteAddr { region: RegionId(region), offset_bytes }
}

pub(crate) fn signaled(id: u64, op: Opcode) -> WorkRequest {
    WorkRequest { id, signaled: true, op }
}

pub(crate) fn quiet(id: u64, op: Opcode) -> WorkRequest {
    WorkRequest { id, signaled: false, op }
}

/// Bytes that tell their place and their message.
pub(crate) fn pattern(salt: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|i| (i * 7 + salt * 31 + i / 251) as u8).collect()
}
