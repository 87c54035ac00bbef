//! Set-up, stepping, and the hook in stores.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rand::Rng;

use super::Options;
use super::endpoint::{Queue, SimEndpoint};
use super::state::{At, QueueState, State, What};
use crate::buffer::BufferPool;
use crate::endpoint::{Admission, Refused};
use crate::mem::{Memory, StoreHook};
use crate::work::{RegionId, Rights};

type Driver = Box<dyn FnMut() -> bool + Send>;

/// A network, its clock and its luck.
pub struct World {
    pub(super) options: Options,
    pub(super) pool: BufferPool,
    pub(super) state: Mutex<State>,
    /// One step at a time, also where the state's lock is given up in between.
    stepping: Mutex<()>,
    driver: Mutex<Option<Driver>>,
    /// Whether there are READs that a store could interleave with.
    reads: AtomicBool,
    myself: Weak<World>,
    seed: u64,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Both ends of a connection that needs no listener.
#[derive(Debug)]
pub struct Pair {
    /// The connecting side.
    pub client: Arc<SimEndpoint>,
    /// The accepting side.
    pub server: Arc<SimEndpoint>,
    /// Completions of the connecting side.
    pub client_cq: Arc<Queue>,
    /// Completions of the accepting side.
    pub server_cq: Arc<Queue>,
}

/// The connecting side of a connection to a listening queue.
#[derive(Debug)]
pub struct Connected {
    /// The endpoint.
    pub endpoint: Arc<SimEndpoint>,
    /// Its completions.
    pub cq: Arc<Queue>,
    /// Memory that the accepting side reaches as region 0, if the options ask for it.
    pub staging: Option<Arc<Memory>>,
}

struct Hook(Weak<World>);

impl StoreHook for Hook {
    fn before_store(&self) {
        if let Some(world) = self.0.upgrade() {
            world.before_store();
        }
    }
}

impl World {
    /// A world whose luck is decided by `seed`.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            options,
            pool: BufferPool::new(),
            state: Mutex::new(State::new(seed)),
            stepping: Mutex::new(()),
            driver: Mutex::new(None),
            reads: AtomicBool::new(false),
            myself: Weak::clone(myself),
            seed,
        })
    }

    /// Zeroed memory whose stores READs of this world interleave with.
    ///
    /// # Errors
    /// When the system has no such amount.
    pub fn memory(&self, len_bytes: usize) -> std::io::Result<Memory> {
        Memory::hooked(len_bytes, Arc::new(Hook(Weak::clone(&self.myself))))
    }

    /// A new connection, each side on a queue of its own.
    #[must_use]
    pub fn pair(self: &Arc<Self>, client_context: u64, server_context: u64) -> Pair {
        let (client_cq, server_cq) = (self.queue(None), self.queue(None));
        let contexts = [client_context, server_context];
        let queues = [client_cq.index, server_cq.index];
        let conn = self.state.lock().connect(contexts, queues);
        let [client, server] = [0, 1].map(|side| self.endpoint(At { conn, side }));
        Pair { client, server, client_cq, server_cq }
    }

    /// A queue to which others connect, as `admission` decides.
    #[must_use]
    pub fn listen(self: &Arc<Self>, admission: Arc<dyn Admission>) -> Arc<Queue> {
        self.queue(Some(admission))
    }

    /// Connects to a listening queue, which gets [`crate::Outcome::Connected`].
    ///
    /// # Errors
    /// When its admission refuses the ticket, or there is no memory for staging.
    pub fn connect(
        self: &Arc<Self>,
        server: &Queue,
        ticket: &[u8; 32],
        context: u64,
    ) -> Result<Connected, Refused> {
        let admission = self.state.lock().queues[server.index].admission.clone();
        let Some(admission) = admission else {
            return Err(Refused("nobody listens on this queue".to_owned()));
        };
        let server_context = admission.admit(ticket)?;
        let staging = match self.options.staging_bytes {
            0 => None,
            n => Some(Arc::new(self.memory(n).map_err(|e| Refused(format!("no staging: {e}")))?)),
        };
        let cq = self.queue(None);
        let mut state = self.state.lock();
        let conn = state.connect([context, server_context], [cq.index, server.index]);
        if let Some(staging) = &staging {
            let region = (Arc::clone(staging), Rights::ReadWrite);
            state.side(At { conn, side: 1 }).attached.insert(RegionId(0), region);
        }
        state.push(At { conn, side: 1 }, 0, What::Connected);
        drop(state);
        Ok(Connected { endpoint: self.endpoint(At { conn, side: 0 }), cq, staging })
    }

    /// Lets the peer of `owner` attach a region, whatever an admission says.
    pub fn expose(
        &self,
        owner: &SimEndpoint,
        region: RegionId,
        memory: Arc<Memory>,
        rights: Rights,
    ) {
        self.state.lock().side(owner.at).offers.insert(region, (memory, rights));
    }

    /// The rest of the simulated system: called by [`crate::CompletionQueue::wait`] between
    /// steps, from a stack that holds no lock of the world. It returns whether it did anything.
    pub fn drive(&self, driver: impl FnMut() -> bool + Send + 'static) {
        *self.driver.lock() = Some(Box::new(driver));
    }

    /// Forgets driver and admissions, which usually hold the world that holds them: without it a
    /// test of many seeds keeps all of them in memory.
    pub fn dismantle(&self) {
        let driver = self.driver.lock().take();
        let admissions: Vec<_> =
            self.state.lock().queues.iter_mut().map(|queue| queue.admission.take()).collect();
        // They are dropped without the lock: what they hold may use it.
        drop((driver, admissions));
    }

    /// Does one thing among what is possible. `false`: nothing is left to do.
    pub fn step(&self) -> bool {
        let _one_at_a_time = self.stepping.lock();
        let mut state = self.state.lock();
        state.step += 1;
        state.now_ns += state.rng.random_range(20..200);
        if state.chance(self.options.kill_per_million, 1_000_000) {
            self.kill_any(&mut state);
        }
        let acts = state.possible();
        if acts.is_empty() {
            return state.pending();
        }
        let act = acts[state.rng.random_range(0..acts.len())];
        let store = state.act(act, &self.options, &self.pool);
        self.publish(&state);
        if let Some(store) = store {
            drop(state);
            let (at, seq, stored) = store.run();
            self.state.lock().stored(at, seq, stored);
        }
        true
    }

    /// Steps until nothing is left to do; `false` if `max_steps` were not enough.
    pub fn settle(&self, max_steps: u64) -> bool {
        (0..max_steps).any(|_| !self.step())
    }

    /// Kills the connection of an endpoint, as a broken cable would: both sides learn of it, each
    /// at its own time.
    pub fn kill(&self, endpoint: &SimEndpoint) {
        let mut state = self.state.lock();
        if !state.conns[endpoint.at.conn].broken {
            state.sever(endpoint.at, &self.options, "killed by the simulation");
        }
    }

    /// An owner takes memory away, as a device that no longer knows a registration: what READs or
    /// changes it fails on every connection, what is under way, too.
    pub fn revoke(&self, region: RegionId) {
        self.state.lock().revoke(region);
    }

    /// The peer of an endpoint has ended the connection and says so, while this side's READs go on:
    /// as where a process is stopped whose mappings outlive its session.
    pub fn fence(&self, endpoint: &SimEndpoint) {
        self.state.lock().side(endpoint.at).fenced = true;
    }

    /// Nanoseconds on the world's clock; every step takes some.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    /// Hash of all that has happened: equal for equal seeds, options and calls.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.state.lock().trace
    }

    /// The seed, for a failing test to print.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A number from the world's luck, below `bound`, for tests that take decisions of their own.
    ///
    /// # Panics
    /// If `bound` is 0.
    #[must_use]
    pub fn pick(&self, bound: u64) -> u64 {
        self.state.lock().rng.random_range(0..bound)
    }

    fn kill_any(&self, state: &mut State) {
        let open: Vec<usize> = (0..state.conns.len()).filter(|&i| !state.conns[i].broken).collect();
        if !open.is_empty() {
            let conn = open[state.rng.random_range(0..open.len())];
            let side = state.rng.random_range(0..2);
            state.sever(At { conn, side }, &self.options, "killed by the simulation");
        }
    }

    fn queue(self: &Arc<Self>, admission: Option<Arc<dyn Admission>>) -> Arc<Queue> {
        let mut state = self.state.lock();
        state.queues.push(QueueState { admission, ..QueueState::default() });
        Arc::new(Queue { world: Arc::clone(self), index: state.queues.len() - 1 })
    }

    pub(super) fn endpoint(self: &Arc<Self>, at: At) -> Arc<SimEndpoint> {
        Arc::new(SimEndpoint { world: Arc::clone(self), at })
    }

    /// Tells the hook whether it need look at the state at all.
    pub(super) fn publish(&self, state: &State) {
        self.reads.store(state.reads > 0, Ordering::Relaxed);
    }

    fn before_store(&self) {
        if !self.reads.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        if state.chance(self.options.store_sample_per_mille, 1000) {
            state.sample_anywhere(self.options.store_burst_words);
            self.publish(&state);
        }
    }

    /// Runs the driver, if there is one and it does not run already.
    pub(super) fn run_driver(&self) -> bool {
        let taken = self.driver.lock().take();
        let Some(mut driver) = taken else { return false };
        let did = driver();
        self.driver.lock().get_or_insert(driver);
        did
    }
}
