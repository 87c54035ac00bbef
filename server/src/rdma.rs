//! The verbs fabric over the life of a server: offered while there is a device, and again when one
//! comes (back). The control port's periodic work looks after it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{Atomicity, LoopbackAtomics};
use onesided_fabric::{Atomics, CompletionQueue, CpuAtomics, FabricKind, Rdma as Policy, verbs};
use onesided_protocol::control::{FabricName, FabricOffer};
use onesided_protocol::limits::FABRIC_BLOB_MAX_BYTES;
use onesided_protocol::rules::{Rule, holds};
use parking_lot::Mutex;

use crate::config::ServerConfig;
use crate::fabrics::{is_final, start_verbs};
use crate::registrar;
use crate::server::{Core, join, start_poller};

/// Pause before the first attempt to have verbs (again); doubled after each.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A listener and its queues, one for each tenant, which nobody polls yet.
pub(crate) type Started = (verbs::Listener, Vec<Arc<dyn CompletionQueue>>);

/// The verbs fabric of a server.
pub(crate) struct Rdma {
    addr: SocketAddr,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// It was there and is not.
    lost: Option<String>,
    /// When to try to have it; `None` while there is no reason to.
    next_try: Option<Instant>,
    pause: Duration,
    stopped: bool,
    /// Clients over it change words themselves, and the server does so through the device.
    updates: bool,
}

struct Live {
    listener: Arc<verbs::Listener>,
    queues: Vec<Arc<dyn CompletionQueue>>,
    stopping: Arc<AtomicBool>,
    /// One for each queue.
    threads: Vec<JoinHandle<()>>,
    /// Registers regions as they are made.
    registrar: Option<JoinHandle<()>>,
}

impl Live {
    fn new((listener, queues): Started) -> Self {
        let listener = Arc::new(listener);
        let stopping = Arc::default();
        Self { listener, queues, stopping, threads: Vec::new(), registrar: None }
    }

    /// Lets the server change words that clients change as its clients over this device do.
    /// `false`: they do not.
    fn change_words(&self, core: &Core) -> bool {
        if core.config.updates_over() != Some(FabricName::Verbs) {
            return false;
        }
        let atomics: Arc<dyn Atomics> = match self.listener.atomicity() {
            Atomicity::None => {
                tracing::warn!("the RDMA device has no atomics: clients change nothing themselves");
                return false;
            }
            Atomicity::Global => Arc::new(CpuAtomics),
            Atomicity::Device if !holds(Rule::ThroughDevice) => Arc::new(CpuAtomics),
            Atomicity::Device => match LoopbackAtomics::start(self.listener.choice()) {
                Ok(atomics) => Arc::new(atomics),
                Err(error) => {
                    tracing::error!(%error, "clients change nothing themselves");
                    return false;
                }
            },
        };
        tracing::info!(?atomics, "clients change counters and cas tables over verbs");
        core.tenants.engines().for_each(|engine| engine.set_atomics(Arc::clone(&atomics)));
        true
    }

    fn poll(&mut self, core: &Core) -> io::Result<()> {
        let fetch_bytes = core.config.rendezvous_bytes / self.queues.len().max(1);
        for cq in &self.queues {
            let (cq, stopping) = (Arc::clone(cq), Arc::clone(&self.stopping));
            self.threads.push(start_poller(core, FabricKind::Verbs, cq, fetch_bytes, stopping)?);
        }
        let engines = core.tenants.engines().cloned().collect();
        let (listener, stopping) = (Arc::clone(&self.listener), Arc::clone(&self.stopping));
        self.registrar = Some(registrar::start(listener, engines, stopping)?);
        Ok(())
    }

    fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        self.queues.iter().for_each(|cq| cq.wake());
        self.threads.into_iter().for_each(|thread| join(thread, "poller"));
        if let Some(registrar) = self.registrar {
            registrar.thread().unpark();
            join(registrar, "thread that registers regions");
        }
        self.listener.stop();
    }
}

impl Rdma {
    /// What the start of the fabrics led to: a listener, or the reason why there is none, or
    /// neither, if there is to be none.
    pub(crate) fn new(addr: SocketAddr, started: Option<io::Result<Started>>) -> Self {
        let mut state = State { pause: PAUSE_MIN, ..State::default() };
        match started {
            Some(Ok(started)) => state.live = Some(Live::new(started)),
            Some(Err(reason)) if !is_final(&reason) => {
                state.next_try = Some(Instant::now() + PAUSE_MIN);
            }
            _ => {}
        }
        Self { addr, state: Mutex::new(state) }
    }

    /// Polls the queue of the listener that it began with, before clients come.
    pub(crate) fn run(&self, core: &Core) -> io::Result<()> {
        let mut state = self.state.lock();
        let State { live, updates, .. } = &mut *state;
        let Some(live) = live else { return Ok(()) };
        *updates = live.change_words(core);
        live.poll(core)
    }

    /// Whether clients over it may change words themselves now.
    pub(crate) fn updates(&self) -> bool {
        self.state.lock().updates
    }

    /// The device, if there is one that clients could update entries over and it has no atomics.
    pub(crate) fn lacks_atomics(&self) -> Option<String> {
        let state = self.state.lock();
        let listener = &state.live.as_ref()?.listener;
        let lacks = listener.atomicity() == Atomicity::None;
        lacks.then(|| listener.choice().device.clone())
    }

    /// Where it is, or why it is not there any more; nothing if it never was.
    pub(crate) fn offer(&self) -> Option<FabricOffer> {
        let state = self.state.lock();
        let blob = match (&state.live, &state.lost) {
            (Some(live), _) if !live.listener.is_lost() => {
                live.listener.blob(FABRIC_BLOB_MAX_BYTES)
            }
            (Some(_), _) => verbs::none_now(LOST),
            (None, Some(reason)) => verbs::none_now(reason),
            (None, None) => return None,
        };
        Some(FabricOffer { kind: FabricName::Verbs, blob })
    }

    /// Whether clients can connect now.
    pub(crate) fn is_there(&self) -> bool {
        self.state.lock().live.as_ref().is_some_and(|live| !live.listener.is_lost())
    }

    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        self.state.lock().live.as_ref().map_or_else(Vec::new, |live| live.listener.figures())
    }

    /// Whether [`Self::tend`] has something to do.
    pub(crate) fn needs_tending(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let lost = state.live.as_ref().is_some_and(|live| live.listener.is_lost());
        lost || state.next_try.is_some_and(|at| now >= at)
    }

    /// Lets go of a device that is lost, and tries to have one. May block for a while.
    pub(crate) fn tend(&self, core: &Core) {
        let lost = {
            let mut state = self.state.lock();
            let lost = state.live.take_if(|live| live.listener.is_lost());
            if lost.is_some() {
                state.updates = false;
                state.lost = Some(LOST.to_owned());
                state.pause = PAUSE_MIN;
                state.next_try = Some(Instant::now() + PAUSE_MIN);
            }
            lost
        };
        if let Some(live) = lost {
            tracing::error!("the RDMA device is lost: verbs is not offered until there is one");
            live.stop();
            // Nobody is left who changes words over it.
            if core.config.updates_over() == Some(FabricName::Verbs) {
                let atomics: Arc<dyn Atomics> = Arc::new(CpuAtomics);
                core.tenants.engines().for_each(|engine| engine.set_atomics(Arc::clone(&atomics)));
            }
            return;
        }
        match start_verbs(&core.config, &core.gate, self.addr) {
            Ok(started) => self.begin(core, started),
            Err(error) => self.wait_longer(&error),
        }
    }

    fn begin(&self, core: &Core, started: Started) {
        let mut live = Live::new(started);
        let updates = live.change_words(core);
        let mut state = self.state.lock();
        if state.stopped || state.live.is_some() {
            drop(state);
            return live.stop();
        }
        if let Err(error) = live.poll(core) {
            tracing::error!(%error, "no thread for the verbs fabric");
            drop(state);
            return live.stop();
        }
        tracing::info!("clients can use verbs from now on");
        *state = State { live: Some(live), pause: PAUSE_MIN, updates, ..State::default() };
    }

    fn wait_longer(&self, error: &io::Error) {
        tracing::debug!(%error, "no verbs yet");
        let mut state = self.state.lock();
        state.pause = (state.pause * 2).min(PAUSE_MAX);
        state.next_try = Some(Instant::now() + state.pause).filter(|_| !is_final(error));
    }

    /// Ends it for good.
    pub(crate) fn stop(&self) {
        let live = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.next_try = None;
            state.live.take()
        };
        if let Some(live) = live {
            live.stop();
        }
    }
}

const LOST: &str = "its device is lost; see the server's log, and the kernel's on its host";

/// Whether the configuration wants it at all.
pub(crate) fn is_wanted(config: &ServerConfig) -> bool {
    config.fabrics.contains(&FabricName::Verbs) && config.rdma != Policy::Never
}
