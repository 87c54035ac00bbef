//! RPC: encode, post, wait.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use onesided_fabric::{Buffer, FabricKind, Opcode, PostError, WorkRequest};
use onesided_protocol::rpc::{Answer, Op, Payload, Reply, Request};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::connection::Connection;
use super::driver;
use super::pending::Collected;
use super::staging::Keep;
use super::time::Deadline;
use crate::error::Error;
use crate::stats::Counter;

/// A buffer for encoding that became longer than this is not kept.
const SCRATCH_KEEP_BYTES: usize = 1 << 20;

/// A request to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    /// 0 for what changes nothing.
    pub(crate) sequence: u64,
    pub(crate) table: u32,
    pub(crate) op: &'a Op<'a>,
}

/// The server's answer, and the staging memory that it may point into.
#[derive(Debug)]
pub(crate) struct Answered {
    message: Buffer,
    keep: Option<Keep>,
}

impl Answered {
    pub(crate) fn len_bytes(&self) -> usize {
        self.message.len()
    }

    /// Bytes of a value that landed beside the message.
    fn landed_bytes(&self) -> usize {
        if self.keep.is_none() {
            return 0;
        }
        match Answer::decode(&self.message) {
            Ok(Answer { result: Ok(Reply::Found(found)), .. }) => match found.value {
                Payload::Inline(_) => 0,
                beside => beside.len_bytes(),
            },
            _ => 0,
        }
    }

    /// What came of the request, as `take` reads the reply and what it may point into.
    pub(crate) fn take<T>(
        &mut self,
        take: impl FnOnce(Reply<'_>, &mut Option<Keep>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        take(Answer::decode(&self.message)?.result?, &mut self.keep)
    }
}

/// Bytes of a value that the server READs from beside the request.
fn beside_bytes(op: &Op<'_>) -> usize {
    match op {
        Op::Put { value, .. } | Op::Append { value, .. } | Op::WriteAt { value, .. } => match value
        {
            Payload::Inline(_) => 0,
            beside => beside.len_bytes(),
        },
        _ => 0,
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The connection was lost; the request had left, or not.
    Lost { sent: bool },
    /// The time was over; the request had left, or not.
    TimedOut { sent: bool },
    /// It cannot be sent.
    Failed(Error),
}

impl Connection {
    /// Sends a request and waits for its answer.
    pub(crate) async fn call(
        &self,
        outgoing: Outgoing<'_>,
        keep: Option<Keep>,
        by: Deadline,
    ) -> Result<Answered, CallError> {
        let slot = self.acquire(&self.slots.permits, 1, by).await?;
        let credit = self.acquire(&self.credits, 1, by).await?;
        let mut waiter = self.register(1, Some(slot), Some(credit), keep, by)?;
        self.post_one(self.encode(waiter.id, outgoing), by).await?;
        waiter.unposted = 0;
        waiter.answer(by).await
    }

    /// Sends a request whose answer nobody waits for, if that can be done at once. Whether it was.
    pub(crate) fn tell(&self, outgoing: Outgoing<'_>, by: Deadline) -> bool {
        let Ok(slot) = self.slots.permits.try_acquire() else { return false };
        let Ok(credit) = self.credits.try_acquire() else { return false };
        // Dropped, it leaves both to the answer.
        let registered = self.register(1, Some(slot), Some(credit), None, by);
        let Ok(mut waiter) = registered else { return false };
        let posted = matches!(self.post_now(self.encode(waiter.id, outgoing)), Ok(None));
        waiter.unposted = u32::from(!posted);
        posted
    }

    /// Posts a request, or gives it back if the fabric is full.
    pub(super) fn post_now(&self, request: WorkRequest) -> Result<Option<WorkRequest>, CallError> {
        CHAIN.with_borrow_mut(|chain| {
            chain.push_back(request);
            let posted = self.post(chain);
            posted.map(|()| chain.pop_front()).inspect_err(|_| chain.clear())
        })
    }

    /// Posts as many of some requests as the fabric takes now; how many are left.
    pub(super) fn post_chain(
        &self,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<usize, CallError> {
        CHAIN.with_borrow_mut(|chain| {
            chain.extend(requests);
            let posted = self.post(chain);
            let left = chain.len();
            chain.clear();
            posted.map(|()| left)
        })
    }

    /// Posts a request, waiting for room when the fabric is full.
    pub(super) async fn post_one(
        &self,
        request: WorkRequest,
        by: Deadline,
    ) -> Result<(), CallError> {
        match self.post_now(request)? {
            Some(request) => self.post_all(VecDeque::from([request]), by, |_| {}).await,
            None => Ok(()),
        }
    }

    /// Sends requests behind one doorbell as far as credits go, and waits for all answers.
    pub(crate) async fn call_many(
        &self,
        outgoing: &[Outgoing<'_>],
        by: Deadline,
    ) -> Vec<Result<Answered, CallError>> {
        let mut answers = Vec::with_capacity(outgoing.len());
        let credits = self.welcome().credits.max(1) as usize;
        for batch in outgoing.chunks(credits.min(64)) {
            let mut waiters = Vec::with_capacity(batch.len());
            let posted = self.post_batch(batch, by, &mut waiters).await;
            for mut waiter in waiters {
                answers.push(waiter.answer(by).await);
            }
            answers.extend(posted.err().map(Err));
            if matches!(answers.last(), Some(Err(_))) {
                break;
            }
        }
        // What was not tried was not sent, and ends as the one before it.
        while answers.len() < outgoing.len() {
            let timed_out = matches!(answers.last(), Some(Err(CallError::TimedOut { .. })));
            answers.push(Err(match timed_out {
                true => CallError::TimedOut { sent: false },
                false => CallError::Lost { sent: false },
            }));
        }
        answers
    }

    /// Posts requests behind one doorbell. Those that have left are waited for by `left`, also
    /// where an error says why the others have not.
    async fn post_batch<'a>(
        &'a self,
        batch: &[Outgoing<'_>],
        by: Deadline,
        left: &mut Vec<Waiter<'a>>,
    ) -> Result<(), CallError> {
        let count = batch.len() as u32;
        let mut slots = self.acquire(&self.slots.permits, count, by).await?;
        let mut credits = self.acquire(&self.credits, count, by).await?;
        let mut waiters = Vec::with_capacity(batch.len());
        let mut chain = VecDeque::with_capacity(batch.len());
        for outgoing in batch {
            // As many of both as there are requests.
            let waiter = self.register(1, slots.split(1), credits.split(1), None, by)?;
            chain.push_back(self.encode(waiter.id, *outgoing));
            waiters.push(waiter);
        }
        let total = chain.len();
        let posted = self
            .post_all(chain, by, |left| {
                let posted = total - left;
                waiters[..posted].iter_mut().for_each(|waiter| waiter.unposted = 0);
            })
            .await;
        left.extend(waiters.into_iter().filter(|waiter| waiter.unposted == 0));
        posted
    }

    /// A permit, or as many as asked for. Whoever is given up before [`Self::register`] has taken
    /// them gives them back.
    pub(super) async fn acquire<'a>(
        &self,
        permits: &'a Semaphore,
        count: u32,
        by: Deadline,
    ) -> Result<SemaphorePermit<'a>, CallError> {
        use tokio::sync::TryAcquireError;
        match permits.try_acquire_many(count) {
            Ok(permit) => return Ok(permit),
            Err(TryAcquireError::Closed) => return Err(CallError::Lost { sent: false }),
            Err(TryAcquireError::NoPermits) => {}
        }
        match self.shared.ticker.timed(by, permits.acquire_many(count)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_closed)) => Err(CallError::Lost { sent: false }),
            Err(_) => Err(CallError::TimedOut { sent: false }),
        }
    }

    /// A slot for `count` completions, of an RPC if there is a credit. The permits are its own from
    /// now on; without one for the slot it has a late place ([`Slots::take_late`]).
    ///
    /// [`Slots::take_late`]: super::slots::Slots::take_late
    pub(super) fn register(
        &self,
        count: u32,
        slot: Option<SemaphorePermit<'_>>,
        credit: Option<SemaphorePermit<'_>>,
        keep: Option<Keep>,
        by: Deadline,
    ) -> Result<Waiter<'_>, CallError> {
        let no_slot = || CallError::Failed(Error::Internal("more requests pending than slots"));
        let is_rpc = credit.is_some();
        let id = self.pending.register(count, is_rpc, by.at, keep).ok_or_else(no_slot)?;
        slot.into_iter().chain(credit).for_each(SemaphorePermit::forget);
        let waiter = Waiter { connection: self, id, unposted: count, counted: false, spun: false };
        // Either this sees the loss, or the loss sees the slot.
        if self.is_alive() { Ok(waiter) } else { Err(CallError::Lost { sent: false }) }
    }

    fn encode(&self, id: u64, outgoing: Outgoing<'_>) -> WorkRequest {
        let message = SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            let Outgoing { sequence, table, op } = outgoing;
            Request { id, sequence, table, op: op.clone() }.encode(scratch);
            let message = self.shared.pool.copy_of(scratch);
            if scratch.capacity() > SCRATCH_KEEP_BYTES {
                *scratch = Vec::new();
            }
            message
        });
        let stats = &self.shared.stats;
        stats.add(Counter::RpcMessages, 1);
        stats.add(Counter::RpcBytes, (message.len() + beside_bytes(outgoing.op)) as u64);
        WorkRequest { id, signaled: false, op: Opcode::Send { message } }
    }

    /// Posts what the fabric takes now. `Ok`: what is left in the chain found it full.
    pub(super) fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), CallError> {
        match self.endpoint().post(chain) {
            Ok(()) | Err(PostError::Full) => Ok(()),
            Err(PostError::Closed) => {
                self.mark_lost("the connection is closed");
                Err(CallError::Lost { sent: false })
            }
            Err(PostError::TooLong { len_bytes, max_bytes }) => {
                Err(CallError::Failed(Error::TooLarge(format!(
                    "a request of {len_bytes} bytes, but {} carries {max_bytes}; a shorter key, \
                     or the tcp fabric, helps",
                    self.caps().kind
                ))))
            }
            Err(PostError::NotOneSided) => {
                Err(CallError::Failed(Error::Internal("READs posted on a fabric without them")))
            }
        }
    }

    /// Posts all of the chain, waiting for room when the fabric is full. `progress` is told how
    /// many are left after each attempt.
    pub(super) async fn post_all(
        &self,
        mut chain: VecDeque<WorkRequest>,
        by: Deadline,
        mut progress: impl FnMut(usize),
    ) -> Result<(), CallError> {
        poll_fn(|cx| {
            // The second attempt is after the waker is known: no wake-up is missed.
            for attempt in 0..2 {
                let posted = self.post(&mut chain);
                progress(chain.len());
                if posted.is_err() || chain.is_empty() {
                    return Poll::Ready(posted);
                }
                if attempt == 0 {
                    self.dispatch();
                    self.block(cx.waker());
                }
            }
            if by.is_over() {
                return Poll::Ready(Err(CallError::TimedOut { sent: false }));
            }
            Poll::Pending
        })
        .await
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static CHAIN: RefCell<VecDeque<WorkRequest>> = const { RefCell::new(VecDeque::new()) };
}

/// Waits for a slot. Dropped before, it leaves the slot to whatever is still to come.
pub(super) struct Waiter<'a> {
    connection: &'a Connection,
    pub(super) id: u64,
    /// Requests of the slot that were not posted.
    pub(super) unposted: u32,
    counted: bool,
    spun: bool,
}

impl Waiter<'_> {
    /// Waits for the answer to what was posted.
    async fn answer(&mut self, by: Deadline) -> Result<Answered, CallError> {
        match self.collected(by).await? {
            Collected { answer: Some(message), keep, .. } => {
                let answered = Answered { message, keep };
                let bytes = answered.len_bytes() + answered.landed_bytes();
                self.connection.shared.stats.add(Counter::RpcBytes, bytes as u64);
                Ok(answered)
            }
            Collected { .. } => Err(CallError::Lost { sent: true }),
        }
    }

    /// Waits until all of the slot is complete.
    pub(super) async fn collected(&mut self, by: Deadline) -> Result<Collected, CallError> {
        poll_fn(|cx| self.poll(cx, by)).await
    }

    fn poll(&mut self, cx: &Context<'_>, by: Deadline) -> Poll<Result<Collected, CallError>> {
        let connection = self.connection;
        self.spin(by);
        if !connection.pending.watch(self.id, cx.waker()) {
            if by.is_over() {
                return Poll::Ready(Err(CallError::TimedOut { sent: self.unposted == 0 }));
            }
            if driver::is_driver() {
                driver::await_answer();
            } else if !self.counted {
                self.counted = true;
                if connection.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
                    connection.shared.ticker.kick();
                }
            }
            return Poll::Pending;
        }
        let sent = self.unposted == 0;
        match connection.pending.collect(self.id) {
            Some(collected) => {
                connection.slots.give_back(1);
                Poll::Ready(Ok(collected))
            }
            None => Poll::Ready(Err(CallError::Lost { sent })),
        }
    }

    /// Polls for a bounded time before sleeping. Not while other tasks wait: spinning would keep
    /// this thread from running them, and the reactor is awake for them anyway.
    fn spin(&mut self, by: Deadline) {
        let connection = self.connection;
        let spin = connection.spin();
        if std::mem::replace(&mut self.spun, true) || spin.is_zero() {
            return;
        }
        // A look at a socket is a system call: none where answers came later than it lasts.
        let looks_cost = connection.caps().kind == FabricKind::Tcp;
        if looks_cost && !connection.vain.may_spin() {
            return;
        }
        connection.dispatch();
        if !driver::is_driver() && connection.waiting.load(Ordering::Acquire) > 0 {
            return;
        }
        let start = Instant::now();
        if connection.crowded.is_at(start) {
            return;
        }
        if looks_cost && driver::is_driver() {
            self.look_between_others(start, spin, by);
        } else {
            self.poll_for(start, spin);
        }
        if looks_cost {
            connection.vain.note(connection.pending.is_done(self.id));
        }
    }

    fn poll_for(&self, start: Instant, spin: Duration) {
        let connection = self.connection;
        let mut elapsed = Duration::ZERO;
        while !connection.pending.is_done(self.id) && elapsed < spin {
            if connection.dispatch() == 0 {
                connection.pause(start);
            }
            elapsed = start.elapsed();
        }
        connection.crowded.note(start + spin, start + elapsed);
    }

    /// As [`Self::poll_for`], for a thread that has nothing else to do. The time in which others
    /// ran is not spent: to be woken costs more than to look again after them, and where all
    /// clients and the server share the cores nobody needs to be woken at all. Others may run for
    /// long, so the deadline is looked at.
    fn look_between_others(&self, start: Instant, spin: Duration, by: Deadline) {
        let connection = self.connection;
        let (mut spent, mut now) = (Duration::ZERO, start);
        while !connection.pending.is_done(self.id) && spent < spin && now < by.at {
            let before = now;
            if connection.dispatch() == 0 {
                std::thread::yield_now();
            }
            now = Instant::now();
            spent += (now - before).min(LOOK_MAX);
            connection.crowded.note(before, now);
            if connection.crowded.is_at(now) {
                return;
            }
        }
    }
}

/// A look at a socket and giving up the core last so long; who takes longer let others run.
const LOOK_MAX: Duration = Duration::from_micros(2);
/// Fruitless polling longer than this lets others run in between: the server may be waiting for
/// this very core.
const PURE_SPIN: Duration = Duration::from_micros(3);

impl Connection {
    /// Between two fruitless looks. One at a socket is a system call, and its answer takes longer
    /// than a pure spin: that core may be wanted at once.
    fn pause(&self, since: Instant) {
        if self.caps().kind != FabricKind::Tcp && since.elapsed() < PURE_SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.connection.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        let freed = self.connection.pending.abandon(self.id, self.unposted);
        self.connection.give_back(freed);
    }
}

#[cfg(test)]
mod tests;
