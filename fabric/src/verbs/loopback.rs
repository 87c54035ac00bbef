//! Atomics of a device on this side's own memory: a connection of the device to itself.
//!
//! A listener of its own, which nobody else has the ticket of, and one connection to it. What is
//! changed is registered in the listener's protection domain at its first use; the listener's side
//! of the queue pair needs no processor after that. It is made when the first word is changed: most
//! servers never change one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::choose::{Choice, Options};
use super::connect::{ConnectOptions, Connected, connect};
use super::ffi::device::Device;
use super::ffi::error::VerbsError;
use super::ffi::sys;
use super::listener::Listener;
use super::setup::Limits;
use crate::atomics::{Atomics, AtomicsError, Word};
use crate::endpoint::{Admission, CompletionQueue, Endpoint, Refused};
use crate::mem::{AccessError, Memory};
use crate::work::{Completion, Opcode, Outcome, RegionId, RemoteAddr, Rights, WorkRequest};

/// How long an operation may take. The device gives up a peer sooner, and this one is itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the thread that waits polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// How long nothing is tried after the device has failed: who asks holds up others meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// The listener's side has nothing to do but at set-up.
const IDLE: Duration = Duration::from_secs(60);
/// Bytes of the listener's descriptor, at most.
const BLOB_MAX_BYTES: usize = 512;

/// What a device's CAS and FAA are atomic with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomicity {
    /// It has none.
    None,
    /// Its own ([`LoopbackAtomics`]).
    Device,
    /// All that change the word, the processor included ([`crate::CpuAtomics`]).
    Global,
}

impl Atomicity {
    pub(super) fn of(device: &Device) -> Result<Self, VerbsError> {
        Ok(match device.attr()?.atomic_cap {
            sys::IBV_ATOMIC_NONE => Self::None,
            sys::IBV_ATOMIC_GLOB => Self::Global,
            _ => Self::Device,
        })
    }
}

/// A device's atomics on this process's own memory, one operation at a time.
pub struct LoopbackAtomics {
    choice: Choice,
    state: Mutex<State>,
}

struct State {
    live: Option<Live>,
    failed_at: Option<Instant>,
}

impl fmt::Debug for LoopbackAtomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "atomics of {} port {}", self.choice.device, self.choice.port)
    }
}

impl LoopbackAtomics {
    /// For the device of a listener. Whether it can be connected to itself is tried, and the
    /// connection let go: who cannot have one must know before peers change anything.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn start(choice: &Choice) -> Result<Self, AtomicsError> {
        drop(Live::start(choice)?);
        let state = State { live: None, failed_at: None };
        Ok(Self { choice: choice.clone(), state: Mutex::new(state) })
    }

    /// Whether the device is connected to itself now: from the first word that is changed on.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state.lock().live.as_ref().is_some_and(|live| !live.endpoint.is_closed())
    }

    fn run(
        &self,
        word: Word<'_>,
        op: impl FnOnce(RemoteAddr) -> Opcode,
    ) -> Result<u64, AtomicsError> {
        check(word)?;
        let mut state = self.state.lock();
        let done = state.live(&self.choice).and_then(|live| live.run(word, op));
        if done.is_err() {
            state.failed_at = Some(Instant::now());
        }
        if matches!(done, Err(AtomicsError::Unknown(_))) {
            // It has ended: whatever was under way does nothing more.
            state.live = None;
        }
        done
    }
}

impl State {
    /// The connection, made if there is none, or it has ended.
    fn live(&mut self, choice: &Choice) -> Result<&mut Live, AtomicsError> {
        if self.live.as_ref().is_some_and(|live| live.endpoint.is_closed()) {
            self.live = None;
        }
        match &mut self.live {
            Some(live) => Ok(live),
            None if self.failed_at.is_some_and(|at| at.elapsed() < PAUSE) => {
                Err(AtomicsError::NotDone(format!("it failed within the last {PAUSE:?}")))
            }
            place => Ok(place.insert(Live::start(choice)?)),
        }
    }
}

impl Atomics for LoopbackAtomics {
    fn compare_swap(&self, word: Word<'_>, expected: u64, new: u64) -> Result<u64, AtomicsError> {
        self.run(word, |remote| Opcode::CompareSwap { remote, expected, new })
    }

    fn fetch_add(&self, word: Word<'_>, add: u64) -> Result<u64, AtomicsError> {
        self.run(word, |remote| Opcode::FetchAdd { remote, add })
    }
}

/// What the device would refuse costs the connection: it is refused before.
fn check(word: Word<'_>) -> Result<(), AccessError> {
    word.memory.load(word.offset_bytes).map(|_| ())
}

/// One connection, with the listener at its other end.
struct Live {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn CompletionQueue>,
    /// Numbers of what was attached, by its address: it stays mapped as long as it is offered.
    attached: HashMap<usize, RegionId>,
    posted: u64,
    completions: Vec<Completion>,
    /// The device does nothing more for it.
    is_over: bool,
    server: Server,
}

impl Live {
    fn start(choice: &Choice) -> Result<Self, AtomicsError> {
        let failed = |error: &dyn fmt::Display| AtomicsError::NotDone(error.to_string());
        let options = Options {
            device: Some(choice.device.clone()),
            port: Some(choice.port),
            ..Options::default()
        };
        let limits = Limits { max_endpoints: 2, receive_depth: 64, ..Limits::default() };
        let offers = Arc::new(Offers { ticket: rand::random(), regions: RwLock::default() });
        let admission = Arc::clone(&offers);
        let (listener, cq) =
            Listener::start(&options, 0, limits, admission).map_err(|error| failed(&error))?;
        let server = Server::start(listener, cq, offers).map_err(|error| failed(&error))?;
        let blob = server.listener.blob(BLOB_MAX_BYTES);
        let options = ConnectOptions { choice: options, limits };
        let connected = connect(&blob, &server.offers.ticket, 0, CONNECT, &options);
        let Connected { endpoint, cq, .. } = connected.map_err(|error| failed(&error))?;
        let (attached, completions) = (HashMap::new(), Vec::new());
        Ok(Self { endpoint, cq, attached, posted: 0, completions, is_over: false, server })
    }

    fn run(
        &mut self,
        word: Word<'_>,
        op: impl FnOnce(RemoteAddr) -> Opcode,
    ) -> Result<u64, AtomicsError> {
        let not_done = |error: &dyn fmt::Display| AtomicsError::NotDone(error.to_string());
        let region = self.attach(word.memory).map_err(|error| not_done(&error))?;
        let remote = RemoteAddr { region, offset_bytes: word.offset_bytes as u64 };
        self.posted += 1;
        let id = self.posted;
        let mut chain = VecDeque::from([WorkRequest { id, signaled: true, op: op(remote) }]);
        // One at a time: there is room.
        self.endpoint.post(&mut chain).map_err(|error| not_done(&error))?;
        self.wait_for(id).map_err(|reason| {
            self.end();
            AtomicsError::Unknown(reason)
        })
    }

    fn attach(&mut self, memory: &Arc<Memory>) -> Result<RegionId, crate::AttachError> {
        let address = Arc::as_ptr(memory).addr();
        if let Some(region) = self.attached.get(&address) {
            return Ok(*region);
        }
        let region = self.server.offers.add(memory);
        self.endpoint.attach(region, &[])?;
        self.attached.insert(address, region);
        Ok(region)
    }

    fn wait_for(&mut self, id: u64) -> Result<u64, String> {
        let start = Instant::now();
        loop {
            self.cq.poll(&mut self.completions, 16);
            let mut answer = None;
            // All of them: the end may come along with the failure, and comes once.
            for completion in self.completions.drain(..) {
                let result = match completion.outcome {
                    Outcome::Atomic(value) if completion.id == id => Ok(value),
                    Outcome::Failed(error, _) => Err(error.to_string()),
                    Outcome::Disconnected(reason) => {
                        self.is_over = true;
                        Err(reason)
                    }
                    _ => continue,
                };
                answer.get_or_insert(result);
            }
            if let Some(answer) = answer {
                return answer;
            }
            let took = start.elapsed();
            if took > PATIENCE {
                return Err(format!("no answer within {PATIENCE:?}"));
            }
            if took > SPIN {
                self.cq.wait(PATIENCE - took);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Ends the connection, and waits until the device does nothing more for it.
    fn end(&mut self) {
        self.endpoint.close();
        let start = Instant::now();
        let is_over = |c: &Completion| matches!(c.outcome, Outcome::Disconnected(_));
        while !self.is_over {
            self.cq.poll(&mut self.completions, 16);
            if self.completions.drain(..).any(|completion| is_over(&completion)) {
                self.is_over = true;
                return;
            }
            let took = start.elapsed();
            if took > PATIENCE {
                tracing::error!("an RDMA device does not end a connection to itself");
                return;
            }
            self.cq.wait(PATIENCE - took);
        }
    }
}

/// The other end.
struct Server {
    listener: Listener,
    offers: Arc<Offers>,
    cq: Arc<dyn CompletionQueue>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(
        listener: Listener,
        cq: Arc<dyn CompletionQueue>,
        offers: Arc<Offers>,
    ) -> std::io::Result<Self> {
        let ending = Arc::<AtomicBool>::default();
        let (queue, is_ending) = (Arc::clone(&cq), Arc::clone(&ending));
        let thread = std::thread::Builder::new()
            .name("verbs-loopback".to_owned())
            .spawn(move || serve(&*queue, &is_ending))?;
        Ok(Self { listener, offers, cq, ending, thread: Some(thread) })
    }
}

/// Keeps the endpoints and lets the fabric answer which regions there are.
fn serve(cq: &dyn CompletionQueue, ending: &AtomicBool) {
    let (mut completions, mut endpoints) = (Vec::new(), Vec::new());
    while !ending.load(Ordering::Acquire) {
        cq.poll(&mut completions, 64);
        for completion in completions.drain(..) {
            if let Outcome::Connected(endpoint) = completion.outcome {
                endpoints.push(endpoint);
            }
        }
        cq.wait(IDLE);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.cq.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a device's connection to itself has panicked");
        }
        self.listener.stop();
    }
}

/// What may be reached, by whom: this process alone has the ticket.
struct Offers {
    ticket: [u8; 32],
    regions: RwLock<Vec<Arc<Memory>>>,
}

impl Offers {
    fn add(&self, memory: &Arc<Memory>) -> RegionId {
        let mut regions = self.regions.write();
        regions.push(Arc::clone(memory));
        RegionId(regions.len() as u32)
    }
}

impl Admission for Offers {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        if *ticket == self.ticket {
            return Ok(1);
        }
        Err(Refused("this listener is for the server itself".to_owned()))
    }

    fn region(&self, _context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        let place = (region.0 as usize).checked_sub(1)?;
        Some((Arc::clone(self.regions.read().get(place)?), Rights::ReadWrite))
    }
}
