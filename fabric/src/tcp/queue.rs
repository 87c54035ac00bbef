//! The completion queue of any number of sockets: epoll, reading, waking.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};

use super::Limits;
use super::frames::Budget;
use super::full::Full;
use super::link::Link;
use super::phase;
use crate::buffer::{Buffer, BufferPool};
use crate::endpoint::{CompletionQueue, Wait};
use crate::work::Completion;

/// Bytes asked for in one read.
const READ_BYTES: usize = 256 << 10;
/// Sockets looked at in one round.
const EVENTS: usize = 256;
const WAKE: u64 = u64::MAX;

/// A completion, and whose count of unpolled ones it is in.
pub(super) struct Pending {
    completion: Completion,
    counted: Option<Arc<Link>>,
}

/// What only the polling thread needs.
pub(super) struct Poller {
    pub(super) scratch: Vec<u8>,
    /// Where the next long message may lie.
    pub(super) landing: Option<Buffer>,
    /// Bytes of `scratch` that were read and not yet taken apart.
    pub(super) cursor: Option<Cursor>,
    pub(super) full: Full,
    events: Vec<(u64, EventFlags)>,
}

impl Poller {
    /// Whether a poll would find something without asking the system.
    pub(super) fn has_work(&self) -> bool {
        self.cursor.is_some() || !self.events.is_empty()
    }
}

pub(super) struct Cursor {
    pub(super) link: Arc<Link>,
    /// A message that was read to where it is to lie, before those bytes.
    pub(super) first: Option<Buffer>,
    pub(super) at: usize,
    pub(super) end: usize,
}

/// Open endpoints by slot; a token is the slot and how often it was used before.
#[derive(Default)]
struct Slots {
    slots: Vec<(u32, Option<Arc<Link>>)>,
    free: Vec<u32>,
}

/// What the queues of one acceptor have in common.
pub(super) struct Common {
    pub(super) budget: Budget,
    /// Open endpoints.
    open: AtomicUsize,
    /// Those whose unfinished messages have no room.
    pub(super) waiting: AtomicUsize,
}

impl Common {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let budget = Budget::new(limits.total_receive_bytes);
        Arc::new(Self { budget, open: AtomicUsize::new(0), waiting: AtomicUsize::new(0) })
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn take(&self, max_endpoints: usize) -> std::io::Result<()> {
        let add = |open: usize| (open < max_endpoints).then_some(open + 1);
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.map(drop).map_err(|open| {
            let what = format!("{open} connections are open: raise max_endpoints or close some");
            std::io::Error::other(what)
        })
    }
}

impl Slots {
    fn get(&self, token: u64) -> Option<Arc<Link>> {
        let (age, link) = self.slots.get(token as u32 as usize)?;
        if u64::from(*age) == token >> 32 { link.clone() } else { None }
    }
}

pub(super) struct Hub {
    pub(super) limits: Limits,
    pub(super) common: Arc<Common>,
    /// One endpoint, written at once when posted to, and read without asking epoll first.
    pub(super) solo: bool,
    pub(super) pool: BufferPool,
    epoll: OwnedFd,
    wake: OwnedFd,
    slots: Mutex<Slots>,
    ready: Mutex<VecDeque<Pending>>,
    dirty: Mutex<Vec<Arc<Link>>>,
    pub(super) poller: Mutex<Poller>,
    pub(super) waiting: AtomicBool,
    woken: AtomicBool,
    stopped: AtomicBool,
}

impl Hub {
    pub(super) fn new(limits: Limits, common: Arc<Common>, solo: bool) -> std::io::Result<Self> {
        limits.check()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let events = Vec::with_capacity(EVENTS);
        let poller = Poller {
            scratch: vec![0; READ_BYTES + phase::ROOM_BYTES],
            landing: None,
            cursor: None,
            full: Full::default(),
            events,
        };
        Ok(Self {
            limits,
            common,
            solo,
            pool: BufferPool::new(),
            epoll,
            wake,
            slots: Mutex::default(),
            ready: Mutex::default(),
            dirty: Mutex::default(),
            poller: Mutex::new(poller),
            waiting: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        })
    }

    /// Reserves a slot; nothing is delivered for it before [`Self::publish`].
    pub(super) fn reserve(&self) -> std::io::Result<u64> {
        let mut slots = self.slots.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(std::io::Error::other("the completion queue is gone"));
        }
        self.common.take(self.limits.max_endpoints)?;
        if let Some(slot) = slots.free.pop() {
            let age = slots.slots[slot as usize].0;
            return Ok(u64::from(age) << 32 | u64::from(slot));
        }
        slots.slots.push((0, None));
        Ok(slots.slots.len() as u64 - 1)
    }

    pub(super) fn watch(&self, link: &Link) -> std::io::Result<()> {
        let data = EventData::new_u64(link.token);
        Ok(epoll::add(&self.epoll, &link.stream, data, EventFlags::IN)?)
    }

    /// From now on completions arrive for it; `connected` is the first of them.
    pub(super) fn publish(&self, link: Arc<Link>, connected: Option<Completion>) {
        let mut slots = self.slots.lock();
        if self.stopped.load(Ordering::Acquire) {
            // The endpoint in `connected` closes itself, which takes the lock.
            drop(slots);
            drop(connected);
            return self.release(link.token);
        }
        if let Some(connected) = connected {
            self.push(connected, None);
        }
        let slot = link.token as u32 as usize;
        if let Some((_, place)) = slots.slots.get_mut(slot) {
            *place = Some(link);
        }
    }

    /// Gives a slot back; its token is never used again.
    pub(super) fn release(&self, token: u64) {
        let mut slots = self.slots.lock();
        let slot = token as u32;
        let Some((age, link)) = slots.slots.get_mut(slot as usize) else { return };
        if u64::from(*age) != token >> 32 {
            return;
        }
        *age = age.wrapping_add(1);
        let old = link.take();
        slots.free.push(slot);
        self.common.open.fetch_sub(1, Ordering::Relaxed);
        drop(slots);
        drop(old);
    }

    pub(super) fn forget(&self, link: &Link) {
        // It is not there if adding it has failed.
        let _not_there = epoll::delete(&self.epoll, &link.stream);
        self.release(link.token);
    }

    /// Whether epoll is to report that the socket takes bytes again, beside what has come.
    pub(super) fn ask_for(&self, link: &Link, writable: bool) {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !link.is_deaf());
        flags.set(EventFlags::OUT, writable);
        let data = EventData::new_u64(link.token);
        if let Err(error) = epoll::modify(&self.epoll, &link.stream, data, flags) {
            tracing::debug!(%error, "epoll: a connection that is being closed");
        }
    }

    pub(super) fn push(&self, completion: Completion, counted: Option<Arc<Link>>) {
        self.ready.lock().push_back(Pending { completion, counted });
        self.notify();
    }

    /// Something may be there to poll: ends a sleep, if there is one.
    pub(super) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    fn ring(&self) {
        // Full means that it rings already.
        let _rings = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Frames were appended. A client's leave at once; a server's with the next poll, so that a
    /// batch of answers is one system call, unless the poller sleeps.
    pub(super) fn posted(&self, link: &Arc<Link>) {
        if self.solo {
            link.flush(self);
            return;
        }
        self.mark_dirty(link);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            link.flush(self);
        }
    }

    pub(super) fn mark_dirty(&self, link: &Arc<Link>) {
        if !link.dirty.swap(true, Ordering::AcqRel) {
            self.dirty.lock().push(Arc::clone(link));
        }
    }

    pub(super) fn flush_dirty(&self) {
        let mut rounds = self.dirty.lock().len();
        while rounds > 0 {
            let Some(link) = self.dirty.lock().pop() else { return };
            link.dirty.store(false, Ordering::Release);
            link.flush(self);
            rounds -= 1;
        }
    }

    /// Moves what is ready to `out`, up to a length of `end`.
    fn drain(&self, out: &mut Vec<Completion>, end: usize) {
        let mut ready = self.ready.lock();
        while out.len() < end {
            let Some(Pending { completion, counted }) = ready.pop_front() else { return };
            if let Some(link) = counted {
                link.unpolled.fetch_sub(1, Ordering::Relaxed);
            }
            out.push(completion);
        }
    }

    /// Looks which sockets have something; no waiting.
    fn ask(&self, poller: &mut Poller) {
        if self.solo {
            poller.events.push((0, EventFlags::IN));
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.collect(&mut poller.events, &zero);
    }

    /// One epoll_wait; whether anything was reported.
    fn collect(&self, into: &mut Vec<(u64, EventFlags)>, timeout: &Timespec) -> bool {
        // To make them zeros first would take as long as what the system does.
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        match epoll::wait(&self.epoll, &mut events[..], Some(timeout)) {
            Ok((events, _)) => {
                into.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
                !events.is_empty()
            }
            Err(rustix::io::Errno::INTR) => true,
            Err(error) => {
                tracing::warn!(%error, "epoll_wait failed");
                false
            }
        }
    }

    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.flush_dirty();
        let start = out.len();
        let end = start.saturating_add(max);
        // Who finds another thread reading takes only what is ready already.
        let mut poller = self.poller.try_lock();
        if let Some(poller) = poller.as_mut().filter(|_| self.common.has_waiting()) {
            self.go_on(&mut poller.full);
        }
        let (mut asked, mut received) = (false, false);
        loop {
            self.drain(out, end);
            let Some(poller) = poller.as_mut() else { break };
            if out.len() >= end {
                break;
            }
            if poller.cursor.is_some() {
                self.parse(poller, out, end);
                received = true;
            } else if let Some((token, flags)) = poller.events.pop() {
                self.serve(poller, token, flags);
            } else if asked || received {
                break;
            } else {
                asked = true;
                self.ask(poller);
            }
        }
        out.len() - start
    }

    /// Whether a poll would find something without asking the system.
    fn has_work(&self) -> bool {
        if self.woken.swap(false, Ordering::SeqCst) || !self.ready.lock().is_empty() {
            return true;
        }
        self.poller.try_lock().is_some_and(|poller| poller.has_work())
    }

    /// Whether a wait would end at once, what was read apart.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst) || !self.ready.lock().is_empty()
    }

    /// Endpoints that are open on it.
    pub(super) fn endpoints(&self) -> usize {
        let slots = self.slots.lock();
        slots.slots.len() - slots.free.len()
    }

    pub(super) fn link(&self, token: u64) -> Option<Arc<Link>> {
        self.slots.lock().get(token)
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.slots.lock().slots.iter().filter_map(|(_, link)| link.clone()).collect()
    }

    fn wait(&self, timeout: Duration) -> Wait {
        if self.waiting.swap(true, Ordering::SeqCst) {
            return Wait::Busy;
        }
        fence(Ordering::SeqCst);
        self.flush_dirty();
        // Who waits for room waits for others, who may never come.
        let timeout = if self.common.has_waiting() {
            timeout.min(self.limits.stalled_max / 4)
        } else {
            timeout
        };
        let outcome = if self.has_work() { Wait::Ready } else { self.sleep(timeout) };
        self.waiting.store(false, Ordering::SeqCst);
        outcome
    }

    fn sleep(&self, timeout: Duration) -> Wait {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).min(1 << 30);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        let mut events = Vec::new();
        if !self.collect(&mut events, &timeout) {
            return Wait::TimedOut;
        }
        // The bell is silenced by who sleeps, not by who only looks.
        if events.iter().any(|(token, _)| *token == WAKE) {
            // Empty means that it is silent already.
            let _silent = rustix::io::read(&self.wake, &mut [0u8; 8]);
            events.retain(|(token, _)| *token != WAKE);
        }
        self.woken.store(false, Ordering::SeqCst);
        // If another thread polls meanwhile it finds them itself: epoll reports levels.
        if let Some(mut poller) = self.poller.try_lock() {
            poller.events.append(&mut events);
        }
        Wait::Ready
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        self.notify();
    }

    /// Closes everything: nobody polls any more.
    fn stop(&self) {
        let links: Vec<_> = {
            let slots = self.slots.lock();
            self.stopped.store(true, Ordering::Release);
            slots.slots.iter().filter_map(|(_, link)| link.clone()).collect()
        };
        for link in links {
            link.fail(self, "closed by this side");
        }
        self.dirty.lock().clear();
        // Endpoints in here use the queue when they are dropped: not under its lock.
        let undelivered = std::mem::take(&mut *self.ready.lock());
        drop(undelivered);
        self.ready.lock().clear();
    }
}

/// The handle that the caller polls; its end is the end of all its endpoints.
pub(super) struct Queue(pub(super) Arc<Hub>);

impl CompletionQueue for Queue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.0.poll(out, max)
    }

    fn wait(&self, timeout: Duration) -> Wait {
        self.0.wait(timeout)
    }

    fn wake(&self) {
        self.0.wake();
    }

    fn receive(&self, out: &mut Vec<Completion>, max: usize) -> Option<usize> {
        self.0.receive(out, max)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.stop();
    }
}
