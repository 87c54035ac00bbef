//! What the tests of the shm backend share: an admission, a serving loop, child processes.
//!
//! A child is this test binary again, running its test `child` with a role in the environment.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod raw;

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onesided_fabric::shm::{self, Connected, Limits, Listener};
use onesided_fabric::{
    Admission, Buffer, Completion, CompletionQueue, Endpoint, Memory, Opcode, Outcome, PostError,
    Refused, RegionId, Rights, WorkRequest,
};

/// Longer than anything here takes on a busy machine; only a failing test waits this long.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A single sleep in a queue.
pub(crate) const NAP: Duration = Duration::from_millis(200);

/// Admits tickets whose last byte is 1; their first 8 bytes are the context.
#[derive(Default)]
pub(crate) struct Admit {
    pub(crate) regions: HashMap<u32, (Arc<Memory>, Rights)>,
    pub(crate) admitted: AtomicU64,
}

impl Admission for Admit {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        if ticket[31] != 1 {
            return Err(Refused("unknown ticket".to_owned()));
        }
        self.admitted.fetch_add(1, Ordering::SeqCst);
        let (context, _) = ticket.split_first_chunk().expect("32 bytes");
        Ok(u64::from_le_bytes(*context))
    }

    fn region(&self, _context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        self.regions.get(&region.0).cloned()
    }
}

pub(crate) fn ticket(context: u64) -> [u8; 32] {
    let mut ticket = [0; 32];
    ticket[..8].copy_from_slice(&context.to_le_bytes());
    ticket[31] = 1;
    ticket
}

pub(crate) fn connect(blob: &[u8], context: u64) -> Connected {
    shm::connect(blob, &ticket(context), context, LONG).expect("a session")
}

pub(crate) fn region(bytes: usize, rights: Rights) -> Arc<Memory> {
    Arc::new(Memory::shared("test-region", bytes, rights).expect("memory"))
}

pub(crate) fn send(id: u64, message: Buffer) -> WorkRequest {
    WorkRequest { id, signaled: false, op: Opcode::Send { message } }
}

/// Posts one request, polling `cq` into `out` while the ring is full. Err when the session ended.
pub(crate) fn post(
    endpoint: &dyn Endpoint,
    cq: &dyn CompletionQueue,
    out: &mut Vec<Completion>,
    request: WorkRequest,
) -> Result<(), PostError> {
    let mut chain = VecDeque::from([request]);
    let end = Instant::now() + LONG;
    loop {
        match endpoint.post(&mut chain) {
            Err(PostError::Full) => {
                assert!(Instant::now() < end, "the ring stays full");
                if cq.poll(out, 64) == 0 {
                    std::thread::yield_now();
                }
            }
            other => return other,
        }
    }
}

/// Polls and sleeps until `out` is not empty; panics after [`LONG`].
pub(crate) fn some(cq: &dyn CompletionQueue, out: &mut Vec<Completion>) {
    at_least(cq, out, 1);
}

/// Polls and sleeps until `out` has `n` completions; panics after [`LONG`].
pub(crate) fn at_least(cq: &dyn CompletionQueue, out: &mut Vec<Completion>, n: usize) {
    let end = Instant::now() + LONG;
    while out.len() < n {
        if cq.poll(out, 64) == 0 {
            assert!(Instant::now() < end, "{} of {n} arrived: {out:?}", out.len());
            cq.wait(NAP);
        }
    }
}

/// Waits for the end of a session whose other completions do not matter.
pub(crate) fn disconnected(cq: &dyn CompletionQueue) -> String {
    loop {
        let mut out = Vec::new();
        some(cq, &mut out);
        for completion in out {
            if let Outcome::Disconnected(reason) = completion.outcome {
                return reason;
            }
        }
    }
}

/// What a serving loop counts, by context.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connected: AtomicU64,
    pub(crate) disconnected: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// A thread that sends every message back.
pub(crate) struct Echo {
    pub(crate) listener: Option<Listener>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start(limits: Limits, admit: Admit) -> Self {
        let (listener, cq) =
            Listener::start("onesided-test", limits, Arc::new(admit)).expect("a listener");
        let (seen, stop) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let (queue, counts, asked) = (Arc::clone(&cq), Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut peers = HashMap::new();
            let mut out = Vec::new();
            while !asked.load(Ordering::SeqCst) {
                if queue.poll(&mut out, 64) == 0 {
                    queue.wait(NAP);
                }
                for completion in out.drain(..) {
                    echo(&mut peers, &counts, completion);
                }
            }
        });
        Self { listener: Some(listener), cq, seen, stop, thread: Some(thread) }
    }

    pub(crate) fn blob(&self) -> Vec<u8> {
        self.listener.as_ref().expect("running").blob()
    }

    /// Waits until so many sessions have ended.
    pub(crate) fn until_disconnected(&self, sessions: u64) {
        until("sessions end", || self.seen.disconnected.load(Ordering::SeqCst) >= sessions);
        assert_eq!(self.seen.disconnected.load(Ordering::SeqCst), sessions);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.listener = None;
        self.stop.store(true, Ordering::SeqCst);
        self.cq.wake();
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(std::thread::panicking() || served.is_ok(), "the serving thread panicked");
        }
    }
}

fn echo(peers: &mut HashMap<u64, Arc<dyn Endpoint>>, seen: &Seen, completion: Completion) {
    match completion.outcome {
        Outcome::Connected(endpoint) => {
            assert!(peers.insert(completion.context, endpoint).is_none(), "connected twice");
            seen.connected.fetch_add(1, Ordering::SeqCst);
        }
        Outcome::Received(message) => {
            seen.received.fetch_add(1, Ordering::SeqCst);
            // A peer that takes no answers, or has gone, gets none.
            let _lost = peers[&completion.context].post(&mut VecDeque::from([send(0, message)]));
        }
        Outcome::Disconnected(_) => {
            assert!(peers.remove(&completion.context).is_some(), "disconnected twice");
            seen.disconnected.fetch_add(1, Ordering::SeqCst);
        }
        other => panic!("the server asked for nothing, but got {other:?}"),
    }
}

pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "does not happen: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

const ROLE: &str = "ONESIDED_TEST_ROLE";
const BLOB: &str = "ONESIDED_TEST_BLOB";

/// The role of this process, if it is a child.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The descriptor that the parent passed.
pub(crate) fn parents_blob() -> Vec<u8> {
    unhex(&std::env::var(BLOB).expect("a child has a descriptor"))
}

/// A child process, killed when dropped.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    pub(crate) fn spawn(role: &str, blob: &[u8]) -> Self {
        let child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(BLOB, hex(blob))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        Self { child }
    }

    /// The rest of the first line that the child says with [`tell`].
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let stdout = self.child.stdout.as_mut().expect("piped");
        let mut lines = BufReader::new(stdout);
        loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).expect("text") > 0, "the child ended silently");
            // The test harness may have begun the line.
            if let Some((_, rest)) = line.split_once(&format!("<{word}>")) {
                return rest.trim().to_owned();
            }
        }
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a living child");
        self.child.wait().expect("its end");
    }

    /// The child must end well.
    pub(crate) fn join(mut self) {
        let mut said = String::new();
        let stdout = self.child.stdout.as_mut().expect("piped");
        stdout.read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "the child failed: {said}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has usually ended.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Says something to the parent.
pub(crate) fn tell(word: &str, rest: &str) {
    println!("<{word}>{rest}");
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}
