//! A network card of which every step is the test's: requests stay in the send queue until it
//! executes them, and an unsignalled one's place comes back with a later signalled one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onesided_fabric::{
    AccessError, AttachError, Buffer, Caps, Completion, CompletionQueue, Endpoint, FabricKind,
    Opcode, Outcome, PostError, RegionId, RemoteAddr, Wait, WorkError, WorkRequest,
};
use parking_lot::Mutex;

/// The completion queue of all ports.
#[derive(Default)]
pub(crate) struct Card {
    pub(crate) ready: Mutex<VecDeque<Completion>>,
}

impl CompletionQueue for Card {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let mut ready = self.ready.lock();
        let n = ready.len().min(max);
        out.extend(ready.drain(..n));
        n
    }

    fn wait(&self, _timeout: Duration) -> Wait {
        Wait::TimedOut
    }

    fn wake(&self) {}
}

/// One endpoint, and its peer's memory.
pub(crate) struct Port {
    card: Arc<Card>,
    pub(crate) context: u64,
    depth: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<WorkRequest>,
    /// Executed, their places not free yet.
    unfreed: usize,
    memory: Vec<u8>,
    answers: VecDeque<Vec<u8>>,
    closed: bool,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.context)
    }
}

impl Port {
    pub(crate) fn new(card: &Arc<Card>, context: u64, depth: usize, memory: Vec<u8>) -> Arc<Self> {
        let inner = Mutex::new(Inner { memory, ..Inner::default() });
        Arc::new(Self { card: Arc::clone(card), context, depth, inner })
    }

    fn push(&self, id: u64, outcome: Outcome) {
        self.card.ready.lock().push_back(Completion { context: self.context, id, outcome });
    }

    /// The peer sends.
    pub(crate) fn receive(&self, message: Buffer) {
        self.push(0, Outcome::Received(message));
    }

    pub(crate) fn connect(self: &Arc<Self>) {
        let endpoint: Arc<dyn Endpoint> = Arc::clone(self) as Arc<dyn Endpoint>;
        self.push(0, Outcome::Connected(endpoint));
    }

    /// Executes up to `max` requests; how many there were.
    pub(crate) fn work(&self, max: usize) -> usize {
        let mut inner = self.inner.lock();
        let n = inner.queue.len().min(max);
        for _ in 0..n {
            let Some(WorkRequest { id, signaled, op }) = inner.queue.pop_front() else { break };
            inner.unfreed += 1;
            let at = |remote: RemoteAddr| remote.offset_bytes as usize;
            let outcome = match op {
                Opcode::Read { remote, mut into } => {
                    let len = into.len();
                    into.copy_from_slice(&inner.memory[at(remote)..][..len]);
                    Outcome::Read(into)
                }
                Opcode::Write { remote, from } => {
                    inner.memory[at(remote)..][..from.len()].copy_from_slice(&from);
                    Outcome::Written(from)
                }
                Opcode::Send { message } => {
                    inner.answers.push_back(message.to_vec());
                    Outcome::Sent(message)
                }
                other => panic!("{other:?}"),
            };
            if signaled {
                inner.unfreed = 0;
                self.push(id, outcome);
            }
        }
        n
    }

    pub(crate) fn answer(&self) -> Option<Vec<u8>> {
        self.inner.lock().answers.pop_front()
    }

    /// Bytes of the READs in the send queue.
    pub(crate) fn reading_bytes(&self) -> usize {
        let read = |request: &WorkRequest| match &request.op {
            Opcode::Read { into, .. } => into.len(),
            _ => 0,
        };
        self.inner.lock().queue.iter().map(read).sum()
    }

    pub(crate) fn memory(&self, at: usize, len: usize) -> Vec<u8> {
        self.inner.lock().memory[at..at + len].to_vec()
    }

    /// The peer dies: the first request fails, the others are flushed.
    pub(crate) fn die(&self, first: WorkError) {
        let mut inner = self.inner.lock();
        if std::mem::replace(&mut inner.closed, true) {
            return;
        }
        let mut error = first;
        for WorkRequest { id, op, .. } in std::mem::take(&mut inner.queue) {
            let buffer = match op {
                Opcode::Read { into, .. } => Some(into),
                _ => None,
            };
            self.push(id, Outcome::Failed(error, buffer));
            error = WorkError::Flushed;
        }
        self.push(0, Outcome::Disconnected("it died".to_owned()));
    }
}

impl Endpoint for Port {
    fn caps(&self) -> Caps {
        Caps {
            kind: FabricKind::Verbs,
            one_sided: true,
            reads_now: false,
            max_message_bytes: 16 << 10,
            send_depth: self.depth,
        }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let mut inner = self.inner.lock();
        while let Some(request) = chain.pop_front() {
            let full = inner.queue.len() + inner.unfreed >= self.depth;
            if inner.closed || full {
                chain.push_front(request);
                return Err(if inner.closed { PostError::Closed } else { PostError::Full });
            }
            inner.queue.push_back(request);
        }
        Ok(())
    }

    fn attach(&self, region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        Err(AttachError::NotOffered(region))
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn close(&self) {
        self.die(WorkError::Flushed);
    }

    fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }
}
