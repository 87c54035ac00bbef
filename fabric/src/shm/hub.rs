//! The server's completion queue, and the endpoints that arrive on it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::bell::Bell;
use super::link::{Drained, Link};
use crate::endpoint::{AttachError, Caps, CompletionQueue, Endpoint, Wait};
use crate::mem::AccessError;
use crate::process::PeerProcess;
use crate::work::{Completion, Outcome, PostError, RegionId, RemoteAddr, WorkRequest};

/// Sessions of one listener.
pub(super) struct Hub {
    pub(super) bell: Arc<Bell>,
    poller: Mutex<Poller>,
    /// Admitted, not yet told to the poller. At most one per slot.
    arrivals: Mutex<VecDeque<(usize, Arc<Link>)>>,
    has_arrivals: AtomicBool,
    free: Mutex<Vec<usize>>,
}

struct Poller {
    links: Box<[Option<Arc<Link>>]>,
    /// Where the next poll begins, so that low slots do not starve high ones.
    first_word: usize,
    /// The session that is looked at without having rung.
    unrung: usize,
}

impl Hub {
    pub(super) fn new(max_endpoints: usize) -> std::io::Result<Self> {
        Ok(Self {
            bell: Arc::new(Bell::new(max_endpoints)?),
            poller: Mutex::new(Poller {
                links: (0..max_endpoints).map(|_| None).collect(),
                first_word: 0,
                unrung: 0,
            }),
            arrivals: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            free: Mutex::new((0..max_endpoints).rev().collect()),
        })
    }

    /// A place for one more session.
    pub(super) fn take_slot(&self) -> Option<usize> {
        self.free.lock().pop()
    }

    /// Gives back a place that no link was made for.
    pub(super) fn give_slot(&self, slot: usize) {
        self.free.lock().push(slot);
    }

    /// Hands an admitted session to the poller.
    pub(super) fn arrive(&self, slot: usize, link: Arc<Link>) {
        let mut arrivals = self.arrivals.lock();
        arrivals.push_back((slot, link));
        self.has_arrivals.store(true, Ordering::SeqCst);
        drop(arrivals);
        self.bell.ring(slot);
    }

    fn welcome(&self, poller: &mut Poller, out: &mut Vec<Completion>, max: usize) {
        if !self.has_arrivals.load(Ordering::Acquire) {
            return;
        }
        let mut arrivals = self.arrivals.lock();
        while out.len() < max
            && let Some((slot, link)) = arrivals.pop_front()
        {
            let endpoint: Arc<dyn Endpoint> = Arc::new(ServerEndpoint(Arc::clone(&link)));
            let outcome = Outcome::Connected(endpoint);
            out.push(Completion { context: link.context(), id: 0, outcome });
            poller.links[slot] = Some(link);
            // It may have rung before it was known here.
            self.bell.put_back(slot / 64, 1 << (slot % 64));
        }
        self.has_arrivals.store(!arrivals.is_empty(), Ordering::SeqCst);
    }

    /// Drains one session; up to `max` completions in `out` altogether.
    fn visit(&self, poller: &mut Poller, slot: usize, out: &mut Vec<Completion>, max: usize) {
        let Some(Some(link)) = poller.links.get(slot) else { return };
        let room = max.saturating_sub(out.len());
        match link.drain(out, room) {
            Drained::Empty => {}
            Drained::More => self.bell.put_back(slot / 64, 1 << (slot % 64)),
            Drained::Finished => {
                poller.links[slot] = None;
                self.give_slot(slot);
            }
        }
    }

    fn visit_word(&self, poller: &mut Poller, word: usize, out: &mut Vec<Completion>, max: usize) {
        let mut bits = self.bell.take(word);
        while bits != 0 {
            if out.len() >= max {
                self.bell.put_back(word, bits);
                return;
            }
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            self.visit(poller, word * 64 + bit, out, max);
        }
    }

    /// Looks at every session, rung or not; true when some have something.
    fn sweep(&self) -> bool {
        let poller = self.poller.lock();
        let mut found = false;
        for (slot, link) in poller.links.iter().enumerate() {
            if link.as_ref().is_some_and(|link| link.has_input()) {
                self.bell.put_back(slot / 64, 1 << (slot % 64));
                found = true;
            }
        }
        found
    }
}

impl CompletionQueue for Hub {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let before = out.len();
        let max = before.saturating_add(max);
        let mut poller = self.poller.lock();
        let poller = &mut *poller;
        self.welcome(poller, out, max);
        let words = self.bell.words();
        for i in 0..words {
            self.visit_word(poller, (poller.first_word + i) % words, out, max);
        }
        poller.first_word = (poller.first_word + 1) % words;
        // A hostile session may have erased the bit of another one.
        poller.unrung = (poller.unrung + 1) % poller.links.len();
        if out.len() < max {
            let unrung = poller.unrung;
            self.visit(poller, unrung, out, max);
        }
        out.len() - before
    }

    fn wait(&self, timeout: Duration) -> Wait {
        let arrivals = || self.has_arrivals.load(Ordering::SeqCst);
        let waited = self.bell.wait(timeout, &arrivals);
        let unexplained = waited == Wait::Ready && !self.bell.has_bits() && !arrivals();
        // Somebody woke this thread, or nobody did: the bit may have been erased.
        if (unexplained || waited == Wait::TimedOut) && self.sweep() {
            return Wait::Ready;
        }
        waited
    }

    fn wake(&self) {
        self.bell.wake();
    }
}

/// What the server holds of a session. Dropping it ends the session.
struct ServerEndpoint(Arc<Link>);

impl fmt::Debug for ServerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shm server endpoint, context {}", self.0.context())
    }
}

impl Drop for ServerEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}

impl Endpoint for ServerEndpoint {
    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        self.0.post(chain)
    }

    /// The client's staging memory is region 0, there from the start; it has no others.
    fn attach(&self, region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        if self.is_closed() {
            return Err(AttachError::Closed);
        }
        if !self.caps().one_sided {
            return Err(AttachError::NotOneSided);
        }
        self.0.memory(region).map(|_| ()).map_err(|_| AttachError::NotOffered(region))
    }

    fn read_now(&self, remote: RemoteAddr, into: &mut [u64]) -> Option<Result<(), AccessError>> {
        self.0.caps().reads_now.then(|| self.0.read_words(remote, into))
    }

    fn read_bytes_now(
        &self,
        remote: RemoteAddr,
        into: &mut [u8],
    ) -> Option<Result<(), AccessError>> {
        self.0.caps().reads_now.then(|| self.0.read_bytes(remote, into))
    }

    fn prefetch(&self, remote: RemoteAddr, len_bytes: usize) {
        if let Ok(memory) = self.0.memory(remote.region) {
            memory.prefetch(remote.offset_bytes as usize, len_bytes);
        }
    }

    fn is_near(&self) -> bool {
        true
    }

    fn peer_process(&self) -> std::io::Result<Option<PeerProcess>> {
        PeerProcess::of(&self.0.socket).map(Some)
    }

    fn close(&self) {
        self.0.fail("closed by this side".to_owned());
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
