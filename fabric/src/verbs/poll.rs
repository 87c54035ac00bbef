//! Polling and waiting: from the device's completions to those of users.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::endpoint::Link;
use super::ffi::cq::Wc;
use super::ffi::error::VerbsError;
use super::ffi::srq::Srq;
use super::frames::{Arrived, grant};
use super::queue::Core;
use super::table::Table;
use crate::endpoint::Wait;
use crate::work::{Completion, Outcome};

/// Where completions go: to who polls, as many as it asked for, and the rest to whoever is next.
pub(super) struct Sink<'a> {
    out: &'a mut Vec<Completion>,
    until: usize,
    ready: &'a mut VecDeque<Completion>,
}

impl<'a> Sink<'a> {
    /// All goes to whoever polls next.
    pub(super) fn later(out: &'a mut Vec<Completion>, poller: &'a mut Poller) -> Self {
        Self { out, until: 0, ready: &mut poller.ready }
    }

    #[inline]
    pub(super) fn push(&mut self, completion: Completion) {
        if self.out.len() < self.until && self.ready.is_empty() {
            self.out.push(completion);
        } else {
            self.ready.push_back(completion);
        }
    }
}

/// What who polls has.
pub(super) struct Poller {
    /// Completions that there was no room for.
    pub(super) ready: VecDeque<Completion>,
    batch: Vec<Wc>,
    /// Places of the receive queue that have no buffer.
    bare: Vec<usize>,
    /// Endpoints that have ended just now.
    pub(super) ended: Vec<u32>,
    next_look: Instant,
    polls: u32,
}

/// How often endpoints are looked at for requests that do not complete.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Batches that one poll takes at most, however little comes of them.
const ROUNDS: usize = 64;
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 256;

impl Poller {
    /// All receive buffers are still to be posted.
    pub(super) fn new(receive_depth: usize) -> Self {
        Self {
            ready: VecDeque::new(),
            batch: Vec::new(),
            bare: (0..receive_depth).collect(),
            ended: Vec::new(),
            next_look: Instant::now() + LOOK_EVERY,
            polls: 0,
        }
    }
}

impl Core {
    /// Polls for its own sake, when nobody else may: until all endpoints have ended.
    pub(super) fn drain(&self) {
        let mut out = Vec::new();
        let deadline = Instant::now() + self.limits.flush_timeout * 2;
        while self.table.read().len() > 0 && Instant::now() < deadline {
            let mut poller = self.poller.lock();
            poller.next_look = Instant::now();
            self.poll(&mut poller, &mut out, 1024);
            out.clear();
            drop(poller);
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Takes completions for who waits for the fabric's own messages.
    pub(super) fn poll_for_itself(&self) {
        let mut poller = self.poller.lock();
        self.collect(&mut poller, &mut Vec::new(), 0, 1);
        let more = !poller.ready.is_empty();
        drop(poller);
        if more {
            self.look();
        }
    }

    pub(super) fn poll(&self, poller: &mut Poller, out: &mut Vec<Completion>, max: usize) {
        let until = out.len() + max;
        while out.len() < until
            && let Some(completion) = poller.ready.pop_front()
        {
            out.push(completion);
        }
        if out.len() < until {
            self.collect(poller, out, until, ROUNDS);
        }
        poller.polls = poller.polls.wrapping_add(1);
        if poller.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.check(poller, Instant::now());
        }
    }

    /// Takes at most `rounds` times completions from the device, and gives them to `out` up to a
    /// length of `until`; the rest is kept. Returns whether the device had no more.
    fn collect(
        &self,
        poller: &mut Poller,
        out: &mut Vec<Completion>,
        until: usize,
        rounds: usize,
    ) -> bool {
        let Poller { ready, batch, bare, ended, .. } = poller;
        for _ in 0..rounds {
            let max = until.saturating_sub(out.len()).max(1);
            let polled = self.cq.poll(max, |wc| batch.push(wc));
            // Not before: an endpoint may begin and end between two looks, and whoever's end is in
            // the batch must have been announced.
            self.announce_fresh(&mut Sink { out, until, ready });
            if batch.is_empty() {
                if let Err(error) = polled {
                    self.end_all(&error.to_string());
                }
                return true;
            }
            self.sort(batch.drain(..), bare, ended, &mut Sink { out, until, ready });
            if out.len() >= until && until > 0 {
                break;
            }
        }
        false
    }

    fn announce_fresh(&self, sink: &mut Sink<'_>) {
        // A look costs less than a pop of nothing.
        while !self.fresh.is_empty()
            && let Some(tag) = self.fresh.pop()
        {
            if let Some(link) = self.table.read().get(tag) {
                announce(link, sink);
            }
        }
    }

    /// Gives completions to those they belong to, and does what they make necessary.
    fn sort(
        &self,
        wcs: impl IntoIterator<Item = impl Borrow<Wc>>,
        bare: &mut Vec<usize>,
        ended: &mut Vec<u32>,
        sink: &mut Sink<'_>,
    ) {
        let table = self.table.read();
        for wc in wcs {
            let wc = wc.borrow();
            if Srq::is_of(wc) {
                self.received(&table, wc, bare, sink);
            } else if let Some(link) = table.get(tag_of(wc))
                && link.complete(wc, sink)
            {
                ended.push(link.tag);
            }
        }
        drop(table);
        self.forget(ended);
        if let Err(error) = self.receive(bare) {
            tracing::error!(%error, "receive buffers are missing");
        }
    }

    /// Takes one completion that somebody polled for himself, for whoever polls next.
    pub(super) fn take_one(&self, poller: &mut Poller, wc: &Wc) {
        let Poller { ready, bare, ended, .. } = poller;
        let mut sink = Sink { out: &mut Vec::new(), until: 0, ready };
        self.sort([wc], bare, ended, &mut sink);
    }

    fn received(&self, table: &Table, wc: &Wc, bare: &mut Vec<usize>, sink: &mut Sink<'_>) {
        let Some((place, buffer)) = self.srq.complete(wc) else { return };
        bare.push(place);
        let link = table.by_qp(wc.qp_num());
        let Some(link) = link.filter(|_| wc.is_success()) else { return };
        if !wc.is_of_send() {
            link.end("the peer sent what is no message of this fabric".to_owned(), true);
            return;
        }
        announce(link, sink);
        let max_bytes = self.limits.max_message_bytes;
        let arrived = link.rx.lock().take(buffer, wc.immediate(), max_bytes, &self.pool);
        let broken = match arrived {
            Ok(Arrived::Message(message)) => {
                link.answered(wc.immediate().map_or(0, grant));
                let outcome = Outcome::Received(message);
                sink.push(Completion { context: link.context, id: 0, outcome });
                return;
            }
            Ok(Arrived::Part) => return,
            Ok(Arrived::Note(note)) => link.noted(&note),
            Err(error) => Err(error),
        };
        if let Err(error) = broken {
            link.end(error.to_string(), true);
        }
    }

    /// Gives the receive queue its first buffers.
    ///
    /// # Errors
    /// When they cannot be registered or posted.
    pub(super) fn receive_first(&self) -> Result<(), VerbsError> {
        self.receive(&mut self.poller.lock().bare)
    }

    /// Gives the receive queue its buffers back.
    fn receive(&self, bare: &mut Vec<usize>) -> Result<(), VerbsError> {
        if bare.is_empty() {
            return Ok(());
        }
        let mut failure = Ok(());
        let buffers = bare.iter().map_while(|&place| {
            let buffer = self.pool.get(self.limits.receive_bytes);
            match self.lkey(&buffer) {
                Ok(lkey) => Some((place, buffer, lkey)),
                Err(error) => {
                    failure = Err(error);
                    None
                }
            }
        });
        self.srq.post(buffers)?;
        if failure.is_ok() {
            bare.clear();
            self.flow.refilled(&self.srq);
        } else {
            // What was posted is taken already; the rest is tried again.
            bare.retain(|&place| self.srq.is_bare(place));
        }
        failure
    }

    pub(super) fn forget(&self, ended: &mut Vec<u32>) {
        if ended.is_empty() {
            return;
        }
        let mut table = self.table.write();
        for tag in ended.drain(..) {
            table.remove(tag);
        }
    }

    /// Looks at endpoints whose requests do not complete, or are not flushed.
    fn check(&self, poller: &mut Poller, now: Instant) {
        if now < poller.next_look {
            return;
        }
        let late = now.saturating_duration_since(poller.next_look).as_nanos();
        poller.next_look = now + LOOK_EVERY;
        self.flow.was_quiet(1 + u32::try_from(late / LOOK_EVERY.as_nanos()).unwrap_or(16));
        if poller.bare.is_empty() {
            self.flow.refilled(&self.srq);
        }
        let links: Vec<_> = self.table.read().links().cloned().collect();
        let mut sink = Sink { out: &mut Vec::new(), until: 0, ready: &mut poller.ready };
        for link in links {
            if link.check(now, &mut sink) {
                poller.ended.push(link.tag);
            }
        }
        self.forget(&mut poller.ended);
    }

    pub(super) fn wait(&self, timeout: Duration) -> Wait {
        if self.waiting.swap(true, Ordering::SeqCst) {
            return Wait::Busy;
        }
        fence(Ordering::SeqCst);
        let outcome = self.sleep(timeout);
        self.waiting.store(false, Ordering::SeqCst);
        outcome
    }

    fn sleep(&self, timeout: Duration) -> Wait {
        let begin = Instant::now();
        loop {
            if let Err(error) = self.cq.arm() {
                self.end_all(&error.to_string());
                return Wait::Ready;
            }
            let mut poller = self.poller.lock();
            // What came before rings nothing: pieces and requests that nobody hears of must not
            // hide what is behind them.
            let is_empty = self.collect(&mut poller, &mut Vec::new(), 0, ROUNDS);
            let now = Instant::now();
            self.check(&mut poller, now);
            let is_ready = !poller.ready.is_empty();
            drop(poller);
            if is_ready {
                return Wait::Ready;
            }
            let left = timeout.saturating_sub(now - begin);
            if left.is_zero() {
                return Wait::TimedOut;
            }
            if !is_empty {
                continue;
            }
            // Only what is in flight needs looking after.
            let idle = self.in_flight.load(Ordering::SeqCst) == 0;
            if self.poll_fds(if idle { left } else { left.min(LOOK_EVERY) }) {
                return Wait::Ready;
            }
        }
    }

    /// Sleeps on the channel and the bell; whether one of them rang.
    fn poll_fds(&self, timeout: Duration) -> bool {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).min(1 << 30);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [
            PollFd::from_borrowed_fd(self.cq.as_fd(), PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        if rustix::event::poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return false;
        }
        let rang = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if rang[0] {
            self.cq.silence();
        }
        if rang[1] {
            // Empty means that it is silent already.
            let _silent = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        true
    }
}

/// Whose request it was: a place of the table.
#[inline]
pub(super) fn tag_of(wc: &Wc) -> u32 {
    (wc.wr_id() >> 32) as u32
}

fn announce(link: &Arc<Link>, sink: &mut Sink<'_>) {
    if !link.announced.swap(true, Ordering::AcqRel) {
        let outcome = Outcome::Connected(link.handle());
        sink.push(Completion { context: link.context, id: 0, outcome });
    }
}
