//! A server with a thread, its clients, and what they say to each other.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{ConnectOptions, Connected, Limits, Listener, Options, connect};
use onesided_fabric::{
    Admission, AttachError, BufferPool, Completion, CompletionQueue, Endpoint, Memory, Opcode,
    Outcome, PostError, Refused, RegionId, RemoteAddr, Rights, WorkRequest,
};
use parking_lot::Mutex;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);
pub(crate) const REGION_BYTES: usize = 1 << 20;

pub(crate) fn has_device() -> bool {
    let has = std::env::var_os("ONESIDED_VERBS").is_some();
    if !has {
        eprintln!("DID NOT RUN: needs an RDMA device and ONESIDED_VERBS=1, as tools/guests/test");
    }
    has
}

/// Admits everybody, and shows its regions as long as it holds them. Region 1 is read-only and
/// each of its words is three times its number; region 2 is for everything.
pub(crate) struct Gate {
    pub(crate) admitted: AtomicU64,
    pub(crate) regions: Mutex<HashMap<u32, (Arc<Memory>, Rights)>>,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        let fixed = Memory::private(REGION_BYTES).expect("memory");
        for word in 0..REGION_BYTES / 8 {
            fixed.store(word * 8, word as u64 * 3).expect("inside");
        }
        let free = Memory::private(REGION_BYTES).expect("memory");
        let regions =
            [(1, (Arc::new(fixed), Rights::ReadOnly)), (2, (Arc::new(free), Rights::ReadWrite))];
        Arc::new(Self { admitted: AtomicU64::new(0), regions: Mutex::new(regions.into()) })
    }
}

impl Admission for Gate {
    fn admit(&self, _: &[u8; 32]) -> Result<u64, Refused> {
        Ok(100 + self.admitted.fetch_add(1, Ordering::Relaxed))
    }

    fn region(&self, _: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        self.regions.lock().get(&region.0).cloned()
    }
}

/// A server whose thread counts what comes, by context, and answers messages with themselves.
pub(crate) struct Server {
    pub(crate) gate: Arc<Gate>,
    pub(crate) listener: Listener,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) stop: AtomicBool,
    /// The thread takes nothing meanwhile.
    pub(crate) pause: AtomicBool,
    pub(crate) received: AtomicU64,
    pub(crate) ends: Mutex<Vec<(u64, String)>>,
}

impl Server {
    pub(crate) fn start(limits: Limits) -> Self {
        let gate = Gate::new();
        let admission = Arc::clone(&gate) as _;
        let started = Listener::start(&Options::default(), 0, limits, admission);
        let (listener, cq) = started.expect("a listener");
        let seen = Arc::<Seen>::default();
        let (queue, told) = (Arc::clone(&cq), Arc::clone(&seen));
        let thread = Some(std::thread::spawn(move || serve(&*queue, &told)));
        Self { gate, listener, cq, seen, thread }
    }

    pub(crate) fn connect(&self, context: u64, limits: Limits) -> Connected {
        join(&self.listener.blob(512), context, limits)
    }

    /// What the listener counts by this name.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let figures = self.listener.figures();
        figures.iter().find(|(other, _)| *other == name).map_or(0, |(_, value)| *value)
    }

    #[track_caller]
    pub(crate) fn awaits(&self, what: &str, is_so: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so(&self.seen) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.seen.ends.lock());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("ends that the server saw: {:?}", self.seen.ends.lock());
            eprintln!("the listener's figures: {:?}", self.listener.figures());
        }
        self.seen.stop.store(true, Ordering::Release);
        self.cq.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server's thread");
        }
    }
}

pub(crate) fn join(blob: &[u8], context: u64, limits: Limits) -> Connected {
    let options = ConnectOptions { limits, ..ConnectOptions::default() };
    connect(blob, &[7; 32], context, TIMEOUT, &options).expect("connected")
}

pub(crate) fn serve(queue: &dyn CompletionQueue, seen: &Seen) {
    let mut peers: HashMap<u64, Arc<dyn Endpoint>> = HashMap::new();
    let mut unsent: VecDeque<(u64, WorkRequest)> = VecDeque::new();
    let mut completions = Vec::new();
    while !seen.stop.load(Ordering::Acquire) {
        while seen.pause.load(Ordering::Acquire) && !seen.stop.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        queue.poll(&mut completions, 64);
        for Completion { context, outcome, .. } in completions.drain(..) {
            match outcome {
                Outcome::Connected(endpoint) => {
                    peers.insert(context, endpoint);
                }
                Outcome::Received(message) => {
                    seen.received.fetch_add(1, Ordering::Relaxed);
                    let op = Opcode::Send { message };
                    unsent.push_back((context, WorkRequest { id: 0, signaled: false, op }));
                }
                Outcome::Disconnected(reason) => {
                    peers.remove(&context).expect("connected before");
                    seen.ends.lock().push((context, reason));
                }
                Outcome::Failed(..) => {}
                other => panic!("{other:?}"),
            }
        }
        for _ in 0..unsent.len() {
            let Some((context, request)) = unsent.pop_front() else { break };
            let mut chain = VecDeque::from([request]);
            if let Some(peer) = peers.get(&context)
                && let Err(PostError::Full) = peer.post(&mut chain)
                && let Some(request) = chain.pop_front()
            {
                unsent.push_back((context, request));
            }
        }
        if unsent.is_empty() {
            queue.wait(Duration::from_millis(100));
        }
    }
}

/// Takes completions until there are `count`, or the connection has ended: behind one that failed
/// its end comes, which says why.
#[track_caller]
pub(crate) fn take(peer: &Connected, count: usize) -> Vec<Completion> {
    let mut out: Vec<Completion> = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    let failed = |completion: &Completion| matches!(completion.outcome, Outcome::Failed(..));
    while out.len() < count || out.iter().any(failed) {
        assert!(Instant::now() < deadline, "{} of {count}: {out:?}", out.len());
        if peer.cq.poll(&mut out, count) == 0 {
            peer.cq.wait(Duration::from_millis(100));
        }
        if let Some(reason) = end_among(&out) {
            eprintln!("a connection over {} has ended: {reason}", peer.via);
            break;
        }
    }
    out
}

/// Why the connection has ended, if that is among them.
pub(crate) fn end_among(completions: &[Completion]) -> Option<&str> {
    completions.iter().find_map(|completion| match &completion.outcome {
        Outcome::Disconnected(reason) => Some(&**reason),
        _ => None,
    })
}

/// Fails for a connection that has ended by itself, and says why it has.
#[track_caller]
pub(crate) fn ended(peer: &Connected, what: &dyn std::fmt::Display) -> ! {
    let all = take(peer, usize::MAX);
    panic!("{what}: {:?}", end_among(&all));
}

/// The peer may address a region that the server offers.
#[track_caller]
pub(crate) fn attach(peer: &Connected, region: u32) {
    match peer.endpoint.attach(RegionId(region), &[]) {
        Ok(()) => {}
        Err(AttachError::Closed) => ended(peer, &format!("closed before region {region}")),
        Err(error) => panic!("region {region}: {error}"),
    }
}

pub(crate) fn read(
    id: u64,
    pool: &BufferPool,
    region: u32,
    offset_bytes: u64,
    len: usize,
) -> WorkRequest {
    let remote = RemoteAddr { region: RegionId(region), offset_bytes };
    WorkRequest { id, signaled: true, op: Opcode::Read { remote, into: pool.get(len) } }
}

/// A READ of region 1 brings what is there.
#[track_caller]
pub(crate) fn reads_well(peer: &Connected, pool: &BufferPool, word: u64) {
    let mut chain = VecDeque::from([read(1, pool, 1, word * 8, 256)]);
    peer.endpoint.post(&mut chain).expect("posted");
    match take(peer, 1).remove(0).outcome {
        Outcome::Read(bytes) => {
            let right = (word..).zip(bytes.words()).all(|(n, &w)| w == n * 3);
            assert!(right, "at {word}: {:?}", bytes.words());
        }
        other => panic!("{other:?}"),
    }
}

/// Sends and awaits each message back, `window` outstanding.
pub(crate) fn talks(peer: &Connected, messages: &[Vec<u8>], window: usize) {
    let pool = BufferPool::new();
    let mut chain = VecDeque::new();
    let (mut sent, mut back) = (0, 0);
    let mut out = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while back < messages.len() {
        while sent < messages.len() && sent - back < window && chain.is_empty() {
            let op = Opcode::Send { message: pool.copy_of(&messages[sent]) };
            chain.push_back(WorkRequest { id: 0, signaled: false, op });
            match peer.endpoint.post(&mut chain) {
                Ok(()) | Err(PostError::Full) => sent += 1,
                Err(error) => ended(peer, &error),
            }
        }
        match peer.endpoint.post(&mut chain) {
            Ok(()) | Err(PostError::Full) => {}
            Err(error) => ended(peer, &format!("{error} after {back} of {}", messages.len())),
        }
        if peer.cq.poll(&mut out, 16) == 0 {
            peer.cq.wait(Duration::from_millis(20));
        }
        for completion in out.drain(..) {
            match completion.outcome {
                Outcome::Received(m) => assert!(m[..] == messages[back][..], "message {back}"),
                // The end, which says why, comes behind what it flushes.
                Outcome::Failed(..) => continue,
                other => panic!("{other:?} after {back} messages"),
            }
            back += 1;
        }
        assert!(Instant::now() < deadline, "{back} of {} came back", messages.len());
    }
}

pub(crate) fn messages(salt: usize, count: usize, max_bytes: usize) -> Vec<Vec<u8>> {
    let len = |n: usize| match n % 10 {
        9 => max_bytes - n * 13 % 1000,
        _ => 1 + (n * 7919 + salt * 31) % 900,
    };
    (0..count).map(|n| (0..len(n)).map(|i| (i * 7 + n * 31 + salt) as u8).collect()).collect()
}
