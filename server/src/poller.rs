//! One thread per completion queue: takes requests, serves them, posts the answers.
//!
//! An endpoint that does not take its answers is *blocked*: its further requests wait, bounded by
//! its credits, and are not served until there is room again, so that a slow reader costs the
//! server neither memory nor time. One that stays blocked is closed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::{
    Buffer, Completion, CompletionQueue, Endpoint, FabricKind, Outcome, PostError, Wait,
    WorkRequest,
};

use crate::rpc::{Dispatcher, Peer, Scratch, Verdict};
use crate::session::Sessions;

/// Completions taken at once.
const BATCH: usize = 64;
/// Answers of one endpoint are posted when they hold this many bytes, even within a batch.
const POST_BYTES: usize = 1 << 20;
/// Fruitless polling longer than this lets others run in between: the client that would send may
/// be waiting for this very core.
const PURE_SPIN: Duration = Duration::from_micros(3);
/// How soon a blocked endpoint is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// What a poller needs.
pub(crate) struct Poller {
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) kind: FabricKind,
    pub(crate) credits: usize,
    pub(crate) staging_bytes: usize,
    /// How long an endpoint may take no answer.
    pub(crate) blocked_max: Duration,
    /// How long to look for more before sleeping.
    pub(crate) spin: Duration,
    /// Longest sleep.
    pub(crate) sleep: Duration,
}

struct Client {
    peer: Peer,
    out: VecDeque<WorkRequest>,
    out_bytes: usize,
    /// Requests that came while it was blocked.
    waiting: VecDeque<Buffer>,
    waiting_bytes: usize,
    blocked_since: Option<Instant>,
    /// It is in the list of those to try again.
    in_blocked: bool,
    /// It is in the list of those to post for.
    touched: bool,
    /// Why it is to be closed: no request of it is served any more.
    condemned: Option<String>,
    /// That was noted, counted and logged.
    closing: bool,
}

struct State {
    clients: HashMap<u64, Client>,
    touched: Vec<u64>,
    blocked: Vec<u64>,
    condemned: Vec<u64>,
    scratch: Scratch,
}

impl Poller {
    /// Runs until it is told to stop.
    pub(crate) fn run(self) {
        let mut state = State {
            clients: HashMap::new(),
            touched: Vec::new(),
            blocked: Vec::new(),
            condemned: Vec::new(),
            scratch: Scratch::default(),
        };
        let mut completions = Vec::with_capacity(BATCH);
        let mut idle_since = None;
        while !self.stopping.load(Ordering::Acquire) {
            let count = self.cq.poll(&mut completions, BATCH);
            // The poll has made their last answers go out.
            for context in state.condemned.drain(..) {
                if let Some(client) = state.clients.get(&context) {
                    client.peer.endpoint.close();
                }
            }
            for completion in completions.drain(..) {
                self.complete(&mut state, completion);
            }
            self.retry_blocked(&mut state);
            self.post_touched(&mut state);
            if count > 0 || !state.condemned.is_empty() {
                idle_since = None;
            } else {
                self.idle(&mut idle_since, !state.blocked.is_empty());
            }
        }
        for (context, client) in state.clients.drain() {
            client.peer.endpoint.close();
            self.sessions.disconnected(context);
            self.dispatcher.stats.endpoints(self.kind).sub(1);
        }
    }

    fn idle(&self, idle_since: &mut Option<Instant>, some_blocked: bool) {
        if !self.spin.is_zero() {
            let since = *idle_since.get_or_insert_with(Instant::now);
            let idle = since.elapsed();
            if idle < PURE_SPIN {
                return std::hint::spin_loop();
            }
            if idle < self.spin {
                return std::thread::yield_now();
            }
        }
        let sleep = if some_blocked { RETRY } else { self.sleep };
        match self.cq.wait(sleep) {
            Wait::Ready => *idle_since = None,
            // A sleep's end gives no reason to spin.
            Wait::TimedOut => {}
            // Nobody else waits on this queue; be safe against a busy loop all the same.
            Wait::Busy => std::thread::sleep(RETRY),
        }
    }

    fn complete(&self, state: &mut State, completion: Completion) {
        let context = completion.context;
        match completion.outcome {
            Outcome::Received(message) => self.received(state, context, message),
            Outcome::Connected(endpoint) => self.connected(state, context, endpoint),
            Outcome::Disconnected(reason) => {
                if state.clients.remove(&context).is_some() {
                    self.dispatcher.stats.endpoints(self.kind).sub(1);
                }
                self.sessions.disconnected(context);
                tracing::debug!(context, reason, fabric = %self.kind, "endpoint gone");
            }
            Outcome::Failed(error, _) => {
                tracing::debug!(context, %error, fabric = %self.kind, "request failed");
            }
            Outcome::Sent(_) | Outcome::Read(_) | Outcome::Written(_) | Outcome::Atomic(_) => {}
        }
    }

    fn connected(&self, state: &mut State, context: u64, endpoint: Arc<dyn Endpoint>) {
        let Some(session) = self.sessions.connected(context, &endpoint) else {
            endpoint.close();
            return;
        };
        self.dispatcher.stats.endpoints(self.kind).add(1);
        tracing::debug!(context, session = session.id, fabric = %self.kind, "endpoint connected");
        let caps = endpoint.caps();
        let staging_bytes = self.staging_bytes;
        let client = Client {
            peer: Peer { session, endpoint, caps, staging_bytes, sent: 0 },
            out: VecDeque::new(),
            out_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            blocked_since: None,
            in_blocked: false,
            touched: false,
            condemned: None,
            closing: false,
        };
        state.clients.insert(context, client);
    }

    fn received(&self, state: &mut State, context: u64, message: Buffer) {
        let Some(client) = state.clients.get_mut(&context) else { return };
        if client.condemned.is_some() {
            return;
        }
        if client.blocked_since.is_none() && client.waiting.is_empty() {
            self.serve(client, &message, &mut state.scratch);
        } else if client.waiting.len() >= self.credits {
            client.condemn(format!("it has more than its {} requests outstanding", self.credits));
        } else if client.waiting_bytes > client.peer.caps.max_message_bytes {
            let bytes = client.waiting_bytes;
            client.condemn(format!("it sends on, {bytes} bytes by now, and takes no answers"));
        } else {
            client.waiting_bytes += message.len();
            client.waiting.push_back(message);
        }
        if !client.touched {
            client.touched = true;
            state.touched.push(context);
        }
    }

    fn serve(&self, client: &mut Client, message: &[u8], scratch: &mut Scratch) {
        let Client { peer, out, .. } = client;
        let before = out.len();
        let verdict = self.dispatcher.serve(peer, message, scratch, out);
        client.out_bytes += out_bytes(client.out.iter().skip(before));
        if let Verdict::Close(reason) = verdict {
            client.condemn(reason);
        }
        if client.out_bytes > POST_BYTES {
            client.post();
        }
    }

    fn post_touched(&self, state: &mut State) {
        let State { clients, touched, blocked, condemned, .. } = state;
        for context in touched.drain(..) {
            let Some(client) = clients.get_mut(&context) else { continue };
            client.touched = false;
            client.post();
            if client.blocked_since.is_some() && !client.in_blocked {
                client.in_blocked = true;
                blocked.push(context);
            }
            if let Some(reason) = &client.condemned
                && !client.closing
            {
                client.closing = true;
                self.dispatcher.stats.endpoints_closed.add(1);
                if let Some(suppressed) = self.dispatcher.stats.closing_log.allow() {
                    let session = client.peer.session.id;
                    tracing::warn!(session, fabric = %self.kind, reason, suppressed, "closing");
                }
                condemned.push(context);
            }
        }
    }

    /// Tries again to post for those that had no room, and serves what they sent meanwhile.
    fn retry_blocked(&self, state: &mut State) {
        let State { clients, touched, blocked, scratch, .. } = state;
        blocked.retain(|context| {
            let Some(client) = clients.get_mut(context) else { return false };
            client.post();
            while client.blocked_since.is_none()
                && client.condemned.is_none()
                && let Some(message) = client.waiting.pop_front()
            {
                client.waiting_bytes -= message.len();
                self.serve(client, &message, scratch);
                client.post();
            }
            if client.blocked_since.is_some_and(|since| since.elapsed() > self.blocked_max) {
                client.condemn(format!("it has taken no answer for {:?}", self.blocked_max));
            }
            if client.condemned.is_some() && !client.touched {
                client.touched = true;
                touched.push(*context);
            }
            client.in_blocked = client.blocked_since.is_some() && client.condemned.is_none();
            client.in_blocked
        });
    }
}

impl Client {
    /// Posts what there is; notes whether something was left.
    fn post(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let before = self.out.len();
        match self.peer.endpoint.post(&mut self.out) {
            Ok(()) => self.blocked_since = None,
            Err(PostError::Full) => {
                if self.out.len() < before || self.blocked_since.is_none() {
                    self.blocked_since = Some(Instant::now());
                }
            }
            // Its end will be reported by the queue.
            Err(PostError::Closed) => {
                self.out.clear();
                self.blocked_since = None;
            }
            Err(error) => {
                self.out.clear();
                self.blocked_since = None;
                self.condemn(format!("an answer cannot be posted: {error}"));
            }
        }
        self.out_bytes = out_bytes(self.out.iter());
    }

    /// No more requests of it; it is closed after what is posted has left.
    fn condemn(&mut self, reason: String) {
        self.condemned.get_or_insert(reason);
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
    }
}

fn out_bytes<'r>(requests: impl Iterator<Item = &'r WorkRequest>) -> usize {
    requests
        .map(|request| match &request.op {
            onesided_fabric::Opcode::Send { message } => message.len(),
            onesided_fabric::Opcode::Write { from, .. } => from.len(),
            _ => 0,
        })
        .sum()
}
