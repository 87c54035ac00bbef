//! The backends, each as the cases see it.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onesided_fabric::shm::{self, Listener};
use onesided_fabric::sim::{self, World};
use onesided_fabric::tcp::{self, Acceptor};
use onesided_fabric::verbs::{self, ConnectOptions};
use onesided_fabric::{CompletionQueue, Memory, RegionId, Rights};

use crate::far::Far;
use crate::rig::{Backend, ClientEnd, Gate};

pub(crate) struct Tcp {
    listener: TcpListener,
    acceptor: Acceptor,
    cq: Arc<dyn CompletionQueue>,
    limits: tcp::Limits,
}

impl Tcp {
    pub(crate) fn new() -> Self {
        let limits = tcp::Limits {
            max_message_bytes: 64 << 10,
            send_buffer_bytes: 256 << 10,
            max_endpoints: 100,
            total_receive_bytes: 8 << 20,
            ..tcp::Limits::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (acceptor, mut queues) = Acceptor::new(limits, 1).unwrap();
        Self { listener, acceptor, cq: queues.remove(0), limits }
    }
}

impl Backend for Tcp {
    fn name(&self) -> String {
        "tcp".to_owned()
    }

    fn server_cq(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.cq)
    }

    fn connect(&mut self, context: u64) -> ClientEnd {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = self.listener.accept().unwrap();
        self.acceptor.adopt(accepted, context + 1000).unwrap();
        let (endpoint, cq) = tcp::connect(stream, context, self.limits).unwrap();
        ClientEnd { endpoint, cq }
    }

    fn offer(&mut self, _: RegionId, _: usize, _: Rights) -> Arc<Memory> {
        unreachable!("cases that need memory are not run on tcp")
    }

    fn progress(&mut self) {}
}

pub(crate) struct Sim {
    world: Arc<World>,
    gate: Arc<Gate>,
    queue: Arc<sim::Queue>,
}

impl Sim {
    pub(crate) fn new(seed: u64, options: sim::Options) -> Self {
        let world = World::new(seed, options);
        let gate = Arc::new(Gate::default());
        let queue = world.listen(Arc::clone(&gate) as _);
        Self { world, gate, queue }
    }
}

impl Backend for Sim {
    fn name(&self) -> String {
        format!("sim, seed {}", self.world.seed())
    }

    fn server_cq(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.queue) as _
    }

    fn connect(&mut self, context: u64) -> ClientEnd {
        let connected = self.world.connect(&self.queue, &[7; 32], context).unwrap();
        ClientEnd { endpoint: connected.endpoint, cq: connected.cq }
    }

    fn offer(&mut self, region: RegionId, len_bytes: usize, rights: Rights) -> Arc<Memory> {
        let memory = Arc::new(self.world.memory(len_bytes).unwrap());
        self.gate.offer(region, &memory, rights);
        memory
    }

    fn progress(&mut self) {
        self.world.step();
    }

    fn single_threaded(&self) -> bool {
        true
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.world.dismantle();
    }
}

pub(crate) struct Shm {
    listener: Listener,
    gate: Arc<Gate>,
    cq: Arc<dyn CompletionQueue>,
}

impl Shm {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("onesided-conformance-{}-{number}", std::process::id());
        let gate = Arc::new(Gate::default());
        let limits = shm::Limits { max_endpoints: 100, ..shm::Limits::default() };
        let (listener, cq) = Listener::start(&name, limits, Arc::clone(&gate) as _).unwrap();
        Self { listener, gate, cq }
    }
}

impl Backend for Shm {
    fn name(&self) -> String {
        "shm".to_owned()
    }

    fn server_cq(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.cq)
    }

    fn connect(&mut self, context: u64) -> ClientEnd {
        let timeout = Duration::from_secs(30);
        let connected = shm::connect(&self.listener.blob(), &[7; 32], context, timeout).unwrap();
        ClientEnd { endpoint: connected.endpoint, cq: connected.cq }
    }

    fn offer(&mut self, region: RegionId, len_bytes: usize, rights: Rights) -> Arc<Memory> {
        let memory = Arc::new(Memory::shared("conformance", len_bytes, rights).unwrap());
        self.gate.offer(region, &memory, rights);
        memory
    }

    fn progress(&mut self) {
        // Its threads need the processor too.
        std::thread::yield_now();
    }
}

/// The server on this host, behind its RDMA device; the clients too, or on another host.
pub(crate) struct Verbs {
    far: Option<Arc<Far>>,
    listener: verbs::Listener,
    gate: Arc<Gate>,
    cq: Arc<dyn CompletionQueue>,
}

impl Verbs {
    pub(crate) fn new(far: Option<Arc<Far>>) -> Self {
        let gate = Arc::new(Gate::default());
        let limits = verbs::Limits { max_endpoints: 100, ..verbs::Limits::default() };
        let options = verbs::Options::default();
        let admission = Arc::clone(&gate) as _;
        let (listener, cq) = verbs::Listener::start(&options, 0, limits, admission).unwrap();
        Self { far, listener, gate, cq }
    }
}

impl Backend for Verbs {
    fn name(&self) -> String {
        let clients = if self.far.is_some() { ", clients on another host" } else { "" };
        format!("verbs{clients}")
    }

    fn server_cq(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.cq)
    }

    fn connect(&mut self, context: u64) -> ClientEnd {
        let (blob, timeout) = (self.listener.blob(1024), Duration::from_secs(30));
        if let Some(far) = &self.far {
            return far.connect(&blob, context);
        }
        let options = ConnectOptions::default();
        let connected = verbs::connect(&blob, &[7; 32], context, timeout, &options).unwrap();
        ClientEnd { endpoint: connected.endpoint, cq: connected.cq }
    }

    fn offer(&mut self, region: RegionId, len_bytes: usize, rights: Rights) -> Arc<Memory> {
        let memory = Arc::new(Memory::shared("conformance", len_bytes, rights).unwrap());
        self.gate.offer(region, &memory, rights);
        memory
    }

    fn progress(&mut self) {
        // Other threads need the processor too.
        std::thread::yield_now();
    }
}
