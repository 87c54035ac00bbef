//! One thread per completion queue: takes requests, serves them, posts the answers.
//!
//! An endpoint that does not take its answers is *blocked*: its further requests wait, bounded by
//! its credits, and are not served until there is room again, so that a slow reader costs the
//! server neither memory nor time. One that stays blocked is closed.
//!
//! Where a READ is a round trip, a request whose values lie in the client's memory is not served
//! when it comes but when they have arrived (`fetches`). Other requests of the same client may
//! overtake it; it is applied, once, when it is served.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::{
    Buffer, BufferPool, Completion, CompletionQueue, Crowded, Endpoint, FabricKind, Outcome, Wait,
};

use crate::rpc::{Dispatcher, Peer, Scratch, Slow, Unsignaled, Verdict, len_bytes};
use crate::session::Sessions;

mod client;
mod fetches;
#[cfg(test)]
mod tests;

use client::Client;
use fetches::{Fetched, Fetches};

/// Completions taken at once.
const BATCH: usize = 64;
/// Answers of one endpoint are posted when they hold this many bytes, even within a batch.
const POST_BYTES: usize = 1 << 20;
/// Fruitless polling longer than this lets others run in between: the client that would send may
/// be waiting for this very core.
const PURE_SPIN: Duration = Duration::from_micros(3);
/// Giving up the core lasts so long; who gets it back later let others run.
const YIELD_MAX: Duration = Duration::from_micros(2);
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
    /// Where answers and fetched values lie.
    pub(crate) pool: BufferPool,
    /// Bytes of values that are fetched at once, over all clients.
    pub(crate) fetch_bytes: usize,
    /// How long an endpoint may take no answer, or give no value.
    pub(crate) blocked_max: Duration,
    /// How long to look for more before sleeping, after a request of a near client.
    pub(crate) spin: Duration,
    /// Longest sleep.
    pub(crate) sleep: Duration,
}

struct State {
    clients: HashMap<u64, Client>,
    touched: Vec<u64>,
    blocked: Vec<u64>,
    condemned: Vec<u64>,
    fetches: Fetches,
    scratch: Scratch,
    completions: Vec<Completion>,
    /// Since the last sleep a near client sent something: its next request may come sooner than
    /// a sleep would end.
    spins: bool,
    crowded: Crowded,
}

impl State {
    fn new(poller: &Poller) -> Self {
        Self {
            clients: HashMap::new(),
            touched: Vec::new(),
            blocked: Vec::new(),
            condemned: Vec::new(),
            fetches: Fetches::new(poller.fetch_bytes),
            scratch: Scratch::new(poller.pool.clone()),
            completions: Vec::with_capacity(BATCH),
            spins: false,
            crowded: Crowded::new(Instant::now()),
        }
    }
}

impl Poller {
    /// Runs until it is told to stop.
    pub(crate) fn run(self) {
        let mut state = State::new(&self);
        let mut idle_since = None;
        while !self.stopping.load(Ordering::Acquire) {
            if self.turn(&mut state) {
                idle_since = None;
            } else {
                self.idle(&mut idle_since, &mut state);
            }
        }
        for (context, client) in state.clients.drain() {
            client.peer.endpoint.close();
            self.sessions.disconnected(context);
            self.dispatcher.stats.endpoints(self.kind).sub(1);
        }
    }

    /// Takes a few completions and does what they ask for. False: there was nothing to do.
    fn turn(&self, state: &mut State) -> bool {
        let mut completions = std::mem::take(&mut state.completions);
        let count = self.cq.poll(&mut completions, BATCH);
        // The poll has made their last answers go out.
        for context in state.condemned.drain(..) {
            if let Some(client) = state.clients.get(&context) {
                client.peer.endpoint.close();
            }
        }
        for completion in completions.drain(..) {
            self.complete(state, completion);
        }
        state.completions = completions;
        self.retry_blocked(state);
        self.begin_fetches(state);
        if self.kind == FabricKind::Tcp {
            // System calls follow, for all answers together: they are not this one's time.
            self.close_last(state);
        }
        self.post_touched(state);
        state.scratch.looked = None;
        self.log_slow(state);
        count > 0 || !state.condemned.is_empty()
    }

    /// Ends the time of the request that was served last, if that goes on.
    fn close_last(&self, state: &mut State) {
        if state.scratch.open.is_some() {
            self.dispatcher.close(&mut state.scratch, Instant::now());
        }
    }

    fn idle(&self, idle_since: &mut Option<Instant>, state: &mut State) {
        if state.spins && !self.spin.is_zero() {
            let now = Instant::now();
            self.dispatcher.close(&mut state.scratch, now);
            let since = *idle_since.get_or_insert(now);
            let idle = now - since;
            // A look at sockets is a system call, and long enough.
            if idle < PURE_SPIN && self.kind != FabricKind::Tcp {
                state.scratch.looked = Some(now);
                return std::hint::spin_loop();
            }
            if idle < self.spin && !state.crowded.is_at(since) {
                std::thread::yield_now();
                // Looked at here: after a long one there is work, and no idling that notices.
                let back = Instant::now();
                if self.kind == FabricKind::Tcp {
                    // Time in which others ran is not spent: they may be the clients, and who
                    // sleeps has to be woken by them.
                    state.crowded.note(now, back);
                    *idle_since = Some(since + (back - now).saturating_sub(YIELD_MAX));
                } else {
                    state.crowded.note(since + self.spin, back);
                    state.scratch.looked = Some(back);
                }
                return;
            }
            state.spins = false;
        }
        self.close_last(state);
        self.log_slow(state);
        let sleep = match () {
            () if !state.blocked.is_empty() => RETRY,
            () if !state.fetches.is_empty() => self.sleep.min(self.blocked_max / 4),
            () => self.sleep,
        };
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
            Outcome::Read(value) => self.fetched(state, context, completion.id, value),
            Outcome::Connected(endpoint) => self.connected(state, context, endpoint),
            Outcome::Disconnected(reason) => {
                if let Some(client) = state.clients.remove(&context) {
                    self.dispatcher.stats.endpoints(self.kind).sub(1);
                    self.log_life(&client, &reason);
                    if client.fetching > 0 {
                        let dropped = state.fetches.drop_client(context);
                        self.dispatcher.stats.fetching.sub(dropped as u64);
                    }
                }
                self.sessions.disconnected(context);
            }
            // The end of the endpoint follows.
            Outcome::Failed(error, _) => {
                tracing::debug!(context, %error, fabric = %self.kind, "request failed");
            }
            Outcome::Sent(_) | Outcome::Written(_) | Outcome::Atomic(_) => {}
        }
    }

    fn log_slow(&self, state: &mut State) {
        let Some(slow) = state.scratch.slow.take() else { return };
        let Some(suppressed) = self.dispatcher.stats.slow_log.allow() else { return };
        let Slow { operation, took_ms, session, bytes, answer_bytes } = slow;
        let client = state.clients.values().find(|client| client.peer.session.id == session);
        let of = client.map(|client| &client.peer.session);
        tracing::warn!(
            session,
            tenant = of.map_or("", |session| session.tenant.name()),
            peer = of.and_then(|session| session.peer()).map(display),
            operation,
            took_ms,
            bytes,
            answer_bytes,
            suppressed,
            "slow request"
        );
    }

    /// A connection's life in one line.
    fn log_life(&self, client: &Client, reason: &str) {
        let Some(suppressed) = self.dispatcher.stats.life_log.allow() else { return };
        let Peer { session, sent, .. } = &client.peer;
        tracing::info!(
            session = session.id,
            tenant = session.tenant.name(),
            peer = session.peer().map(display),
            fabric = %self.kind,
            lived_s = client.since.elapsed().as_secs_f64(),
            answers = sent,
            reason,
            suppressed,
            "connection over"
        );
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
        let unsignaled = Unsignaled::default();
        let peer = Peer { session, endpoint, caps, staging_bytes, sent: 0, unsignaled };
        state.clients.insert(context, Client::new(context, peer));
    }

    fn received(&self, state: &mut State, context: u64, message: Buffer) {
        let Some(client) = state.clients.get_mut(&context) else { return };
        if client.condemned.is_some() {
            return;
        }
        state.spins |= client.near;
        let one_sided = client.peer.caps.one_sided;
        // Where values travel otherwise, messages are short and their number is bound enough.
        let max_bytes = if one_sided { usize::MAX } else { client.peer.caps.max_message_bytes };
        if client.waiting.len() + client.fetching >= self.credits {
            client.condemn(format!("it has more than its {} requests outstanding", self.credits));
        } else if client.blocked_since.is_none() && client.waiting.is_empty() {
            self.serve(client, &message, None, &mut state.scratch, &mut state.fetches);
        } else if client.waiting_bytes > max_bytes {
            let bytes = client.waiting_bytes;
            client.condemn(format!("it sends on, {bytes} bytes by now, and takes no answers"));
        } else if one_sided {
            // Out of the receive buffer, which others need.
            client.wait(state.scratch.pool.copy_of(&message));
        } else {
            client.wait(message);
        }
        client.touch(&mut state.touched);
    }

    /// Serves a request, with its values if they had to be fetched. If they have to be, a copy of
    /// it waits for them.
    fn serve(
        &self,
        client: &mut Client,
        message: &[u8],
        values: Option<&[Buffer]>,
        scratch: &mut Scratch,
        fetches: &mut Fetches,
    ) {
        let Client { peer, out, .. } = client;
        let before = out.len();
        let verdict = self.dispatcher.serve(peer, message, values, scratch, out);
        client.out_bytes += client.out.iter().skip(before).map(len_bytes).sum::<usize>();
        match verdict {
            Verdict::Keep => {}
            Verdict::Close(reason) => client.condemn(reason),
            Verdict::Fetch(spans) => {
                client.fetching += 1;
                self.dispatcher.stats.fetching.add(1);
                fetches.add(client.context, scratch.pool.copy_of(message), spans);
            }
        }
        if client.out_bytes > POST_BYTES {
            client.post();
        }
    }

    /// A value has arrived; with the last one its request is served.
    fn fetched(&self, state: &mut State, context: u64, id: u64, value: Buffer) {
        let State { clients, touched, fetches, scratch, .. } = state;
        let stats = &self.dispatcher.stats;
        stats.values_fetched.add(1);
        stats.values_fetched_bytes.add(value.len() as u64);
        let Some(Fetched { message, values }) = fetches.arrived(context, id, value) else { return };
        stats.fetching.sub(1);
        let Some(client) = clients.get_mut(&context) else { return };
        client.fetching -= 1;
        if client.condemned.is_some() {
            return;
        }
        if client.blocked_since.is_none() {
            self.serve(client, &message, Some(&values), scratch, fetches);
        } else {
            // The values are fetched again then: who takes no answers keeps no memory.
            client.wait(message);
        }
        client.touch(touched);
    }

    /// Begins to fetch for those whose turn it is.
    fn begin_fetches(&self, state: &mut State) {
        let State { clients, touched, fetches, scratch, .. } = state;
        while let Some(context) = fetches.next() {
            let Some(client) = clients.get_mut(&context) else { return };
            if client.condemned.is_none() && client.blocked_since.is_none() {
                fetches.begin(&scratch.pool, &mut client.out);
                client.touch(touched);
                continue;
            }
            let message = fetches.take_back();
            client.fetching -= 1;
            self.dispatcher.stats.fetching.sub(1);
            if let Some(message) = message.filter(|_| client.condemned.is_none()) {
                client.wait(message);
                client.touch(touched);
            }
        }
        for context in fetches.overdue(self.blocked_max) {
            if let Some(client) = clients.get_mut(&context) {
                let max = self.blocked_max;
                client.condemn(format!("its memory could not be read within {max:?}"));
                client.touch(touched);
            }
        }
    }

    fn post_touched(&self, state: &mut State) {
        let State { clients, touched, blocked, condemned, .. } = state;
        for context in touched.drain(..) {
            let Some(client) = clients.get_mut(&context) else { continue };
            client.touched = false;
            client.post();
            // It may have waited for a moment only: what came meanwhile is served all the same.
            let waits = client.blocked_since.is_some() || !client.waiting.is_empty();
            if waits && !client.in_blocked {
                client.in_blocked = true;
                blocked.push(context);
            }
            if let Some(reason) = &client.condemned
                && !client.closing
            {
                client.closing = true;
                self.dispatcher.stats.endpoints_closed.add(1);
                if let Some(suppressed) = self.dispatcher.stats.closing_log.allow() {
                    let session = &client.peer.session;
                    tracing::warn!(
                        session = session.id,
                        peer = session.peer().map(display),
                        fabric = %self.kind,
                        reason,
                        suppressed,
                        "closing"
                    );
                }
                condemned.push(context);
            }
        }
    }

    /// Tries again to post for those that had no room, and serves what they sent meanwhile.
    fn retry_blocked(&self, state: &mut State) {
        let State { clients, touched, blocked, scratch, fetches, .. } = state;
        blocked.retain(|context| {
            let Some(client) = clients.get_mut(context) else { return false };
            client.post();
            while client.blocked_since.is_none()
                && client.condemned.is_none()
                && let Some(message) = client.next_waiting()
            {
                self.serve(client, &message, None, scratch, fetches);
                client.post();
            }
            if client.blocked_since.is_some_and(|since| since.elapsed() > self.blocked_max) {
                client.condemn(format!("it has taken no answer for {:?}", self.blocked_max));
            }
            if client.condemned.is_some() {
                client.touch(touched);
            }
            client.in_blocked = client.blocked_since.is_some() && client.condemned.is_none();
            client.in_blocked
        });
    }
}
