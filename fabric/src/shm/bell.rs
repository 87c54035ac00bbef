//! Doorbells: who has sent something, and does the receiver sleep?
//!
//! A sender publishes (a message, a ready bit), then asks whether the receiver sleeps; a receiver
//! says that it sleeps, then looks whether anything was published. A sequentially consistent
//! fence stands between the two steps on both sides, so at least one of them sees the other. A
//! sender that finds the receiver asleep changes the futex word before it wakes, so that a
//! receiver that is only about to sleep does not.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

use crate::endpoint::Wait;
use crate::mem::{AccessError, Memory};
use crate::shm::ring::{CLIENT_FUTEX, CLIENT_SLEEPS};
use crate::work::Rights;

const FUTEX: usize = 0;
const BITMAP: usize = 64;
const SLEEPS: usize = 0;

/// Bytes of the memory with the futex word and the ready bits of so many sessions.
pub(super) fn bell_bytes(max_endpoints: usize) -> usize {
    (BITMAP + max_endpoints.div_ceil(64) * 8).next_multiple_of(4096)
}

/// Bytes of the memory with the server's sleeping flag, which clients may only read.
pub(super) const FLAG_BYTES: usize = 4096;

/// Wakes who sleeps on `word`, if `sleeps` says so.
fn rouse(word: &AtomicU32, sleeps: &AtomicU32) {
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 {
        force_awake(word);
    }
}

fn force_awake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    // Fails only for addresses that are not mapped.
    let _woken = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

/// One thread's right to sleep on a word, and requests to wake it.
#[derive(Default)]
pub(super) struct Sleeper {
    busy: AtomicBool,
    woken: AtomicBool,
}

impl Sleeper {
    /// Sleeps until roused, unless `anything` is there.
    fn sleep(
        &self,
        word: &AtomicU32,
        sleeps: &AtomicU32,
        timeout: Duration,
        anything: &dyn Fn() -> bool,
    ) -> Wait {
        if self.busy.swap(true, Ordering::Acquire) {
            return Wait::Busy;
        }
        let before = word.load(Ordering::SeqCst);
        sleeps.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut ready = self.woken.swap(false, Ordering::SeqCst) || anything();
        if !ready {
            let slept =
                futex::wait(word, futex::Flags::empty(), before, timespec(timeout).as_ref());
            ready = slept != Err(rustix::io::Errno::TIMEDOUT);
            ready |= self.woken.swap(false, Ordering::SeqCst);
        }
        sleeps.store(0, Ordering::SeqCst);
        self.busy.store(false, Ordering::Release);
        if ready { Wait::Ready } else { Wait::TimedOut }
    }

    fn wake(&self, word: &AtomicU32) {
        self.woken.store(true, Ordering::SeqCst);
        force_awake(word);
    }
}

/// `None`, for ever, only for times beyond what the kernel counts.
fn timespec(timeout: Duration) -> Option<rustix::thread::Timespec> {
    rustix::thread::Timespec::try_from(timeout).ok()
}

/// The server's bell: one for all its sessions.
pub(super) struct Bell {
    shared: Memory,
    flag: Memory,
    /// Ready bits that only this side sets: unfinished sessions, local completions.
    pending: Box<[AtomicU64]>,
    sleeper: Sleeper,
}

impl Bell {
    pub(super) fn new(max_endpoints: usize) -> std::io::Result<Self> {
        Ok(Self {
            shared: Memory::shared("shm-bell", bell_bytes(max_endpoints), Rights::ReadWrite)?,
            flag: Memory::shared("shm-flag", FLAG_BYTES, Rights::ReadOnly)?,
            pending: (0..max_endpoints.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            sleeper: Sleeper::default(),
        })
    }

    /// What a client needs: the writable part and the read-only part.
    pub(super) fn memories(&self) -> (&Memory, &Memory) {
        (&self.shared, &self.flag)
    }

    /// Number of 64-bit words of ready bits.
    pub(super) fn words(&self) -> usize {
        self.pending.len()
    }

    /// Takes one word of ready bits.
    pub(super) fn take(&self, word: usize) -> u64 {
        let mut bits = 0;
        if self.pending[word].load(Ordering::Relaxed) != 0 {
            bits = self.pending[word].swap(0, Ordering::AcqRel);
        }
        if let Ok(shared) = self.shared.atomic(BITMAP + word * 8)
            && shared.load(Ordering::Relaxed) != 0
        {
            bits |= shared.swap(0, Ordering::AcqRel);
        }
        bits
    }

    /// Makes the next poll look at these sessions; for the polling thread itself.
    pub(super) fn put_back(&self, word: usize, bits: u64) {
        self.pending[word].fetch_or(bits, Ordering::AcqRel);
    }

    /// Makes the next poll look at a session, and wakes the poller.
    pub(super) fn ring(&self, slot: usize) {
        self.put_back(slot / 64, 1 << (slot % 64));
        if let Ok((word, sleeps)) = self.futex() {
            rouse(word, sleeps);
        }
    }

    /// Sleeps until somebody rings, unless somebody has or `anything` is there.
    pub(super) fn wait(&self, timeout: Duration, anything: &dyn Fn() -> bool) -> Wait {
        let Ok((word, sleeps)) = self.futex() else { return Wait::Ready };
        self.sleeper.sleep(word, sleeps, timeout, &|| self.has_bits() || anything())
    }

    pub(super) fn wake(&self) {
        if let Ok((word, _)) = self.futex() {
            self.sleeper.wake(word);
        }
    }

    fn futex(&self) -> Result<(&AtomicU32, &AtomicU32), AccessError> {
        Ok((self.shared.futex_word(FUTEX)?, self.flag.futex_word(SLEEPS)?))
    }

    /// Whether somebody has rung.
    pub(super) fn has_bits(&self) -> bool {
        let shared = |w: usize| self.shared.atomic(BITMAP + w * 8);
        self.pending.iter().any(|bits| bits.load(Ordering::SeqCst) != 0)
            || (0..self.words()).any(|w| shared(w).is_ok_and(|b| b.load(Ordering::SeqCst) != 0))
    }
}

/// A client's way to ring the server's bell.
pub(super) struct Doorbell {
    shared: Memory,
    flag: Memory,
    slot: usize,
}

impl Doorbell {
    /// For the session in `slot`; `None` when the bell has no bit for it.
    pub(super) fn new(shared: Memory, flag: Memory, slot: usize) -> Option<Self> {
        let bell = Self { shared, flag, slot };
        let whole = bell.bits().is_ok() && bell.flag.futex_word(SLEEPS).is_ok();
        whole.then_some(bell)
    }

    fn bits(&self) -> Result<&AtomicU64, AccessError> {
        self.shared.atomic(BITMAP + self.slot / 64 * 8)
    }

    /// Says that this session has sent something.
    pub(super) fn ring(&self) -> Result<(), AccessError> {
        self.bits()?.fetch_or(1 << (self.slot % 64), Ordering::SeqCst);
        rouse(self.shared.futex_word(FUTEX)?, self.flag.futex_word(SLEEPS)?);
        Ok(())
    }
}

/// A client's own bell, in its session's memory: it has one peer, so no bits.
#[derive(Default)]
pub(super) struct ClientBell {
    sleeper: Sleeper,
}

impl ClientBell {
    pub(super) fn wait(
        &self,
        session: &Memory,
        timeout: Duration,
        anything: &dyn Fn() -> bool,
    ) -> Wait {
        let Ok((word, sleeps)) = client_futex(session) else { return Wait::Ready };
        self.sleeper.sleep(word, sleeps, timeout, anything)
    }

    pub(super) fn wake(&self, session: &Memory) {
        if let Ok((word, _)) = client_futex(session) {
            self.sleeper.wake(word);
        }
    }
}

fn client_futex(session: &Memory) -> Result<(&AtomicU32, &AtomicU32), AccessError> {
    Ok((session.futex_word(CLIENT_FUTEX)?, session.futex_word(CLIENT_SLEEPS)?))
}

/// Wakes the client of a session if it sleeps; both sides do this.
pub(super) fn ring_client(session: &Memory) {
    if let Ok((word, sleeps)) = client_futex(session) {
        rouse(word, sleeps);
    }
}
