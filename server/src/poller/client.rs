//! One endpoint: what is to be posted to it, and what of it waits.

use std::collections::VecDeque;
use std::time::Instant;

use onesided_fabric::{Buffer, PostError, WorkRequest};

use crate::rpc::{Peer, len_bytes};

pub(super) struct Client {
    pub(super) context: u64,
    pub(super) peer: Peer,
    /// When it was connected.
    pub(super) since: Instant,
    /// On this host, or reached by RDMA: its next request may come soon.
    pub(super) near: bool,
    pub(super) out: VecDeque<WorkRequest>,
    pub(super) out_bytes: usize,
    /// Requests that came while it was blocked.
    pub(super) waiting: VecDeque<Buffer>,
    pub(super) waiting_bytes: usize,
    /// Requests whose values are being fetched, or wait for their turn.
    pub(super) fetching: usize,
    pub(super) blocked_since: Option<Instant>,
    /// It is in the list of those to try again.
    pub(super) in_blocked: bool,
    /// It is in the list of those to post for.
    pub(super) touched: bool,
    /// Why it is to be closed: no request of it is served any more.
    pub(super) condemned: Option<String>,
    /// That was noted, counted and logged.
    pub(super) closing: bool,
}

impl Client {
    pub(super) fn new(context: u64, peer: Peer) -> Self {
        Self {
            context,
            near: peer.caps.one_sided || peer.endpoint.is_near(),
            peer,
            since: Instant::now(),
            out: VecDeque::new(),
            out_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            fetching: 0,
            blocked_since: None,
            in_blocked: false,
            touched: false,
            condemned: None,
            closing: false,
        }
    }

    /// Notes that something is to be done for it before the turn is over.
    pub(super) fn touch(&mut self, touched: &mut Vec<u64>) {
        if !self.touched {
            self.touched = true;
            touched.push(self.context);
        }
    }

    /// Keeps a request until it is no longer blocked.
    pub(super) fn wait(&mut self, message: Buffer) {
        self.waiting_bytes += message.len();
        self.waiting.push_back(message);
    }

    pub(super) fn next_waiting(&mut self) -> Option<Buffer> {
        let message = self.waiting.pop_front()?;
        self.waiting_bytes -= message.len();
        Some(message)
    }

    /// Posts what there is; notes whether something was left.
    pub(super) fn post(&mut self) {
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
        self.out_bytes = self.out.iter().map(len_bytes).sum();
    }

    /// No more requests of it; it is closed after what is posted has left.
    pub(super) fn condemn(&mut self, reason: String) {
        self.condemned.get_or_insert(reason);
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
    }
}
