//! The cleaner's thread.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use onesided_fabric::Rights;

use super::{Cleaning, Step};
use crate::engine::room::Level;
use crate::engine::{Engine, Shared};

/// Bytes of entries that are walked through before others get the work, or the core: where no
/// processor is idle, a request waits so long. Short entries take some 20 us.
const SLICE_BYTES: usize = 6 << 10;
/// How long the thread sleeps when nobody wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// How long it leaves the work to who has it.
const BUSY: Duration = Duration::from_millis(1);

/// Wakes the thread.
#[derive(Default)]
pub(super) struct Waker {
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

impl Waker {
    /// Costs little if the thread is awake, or there is none.
    pub(super) fn wake(&self) {
        if self.sleeps.load(Ordering::Relaxed)
            && self.sleeps.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// The thread of an engine; it ends when this is dropped.
pub(crate) struct CleanerThread {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CleanerThread {
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let ending = Arc::new(AtomicBool::new(false));
        let (for_thread, is_ending) = (Arc::clone(shared), Arc::clone(&ending));
        let thread = std::thread::Builder::new()
            .name("cleaner".to_owned())
            .spawn(move || clean(&for_thread, &is_ending))?;
        // Set once: an engine has one such thread.
        let _first = shared.cleaner.waker.thread.set(thread.thread().clone());
        Ok(Self { ending, thread: Some(thread) })
    }
}

impl Drop for CleanerThread {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the cleaner's thread has panicked");
            }
        }
    }
}

/// Until there is something to do, as those say who write; what they said just before is seen a
/// second later at the latest.
fn sleep(shared: &Shared) {
    shared.cleaner.waker.sleeps.store(true, Ordering::Relaxed);
    std::thread::park_timeout(IDLE);
    shared.cleaner.waker.sleeps.store(false, Ordering::Relaxed);
}

fn clean(shared: &Shared, ending: &AtomicBool) {
    while !ending.load(Ordering::Acquire) {
        let (rights, level) = shared.pool.shortest();
        if level == Level::Ample && shared.cleaner.mode != Cleaning::Aggressive {
            sleep(shared);
            continue;
        }
        let began = Instant::now();
        let Some(step) = shared.clean_slice((rights, level)) else {
            std::thread::park_timeout(BUSY);
            continue;
        };
        match (step, level) {
            (Step::Nothing, _) => sleep(shared),
            // Ahead of need: at most half of a core.
            (_, Level::Ample | Level::Low) => std::thread::park_timeout(began.elapsed()),
            _ => std::thread::yield_now(),
        }
    }
}

impl Shared {
    /// Goes on where it is shortest, for a slice. `None`: somebody else has the work, and cleans;
    /// others may wait for it, and none is to wait for this thread to get a core.
    fn clean_slice(&self, (rights, level): (Rights, Level)) -> Option<Step> {
        let rights = (level != Level::Ample).then_some(rights);
        let choice = self.cleaner.choice(rights, level);
        let mut work = self.cleaner.work.try_lock()?;
        let step = work.go_on(self, choice, SLICE_BYTES);
        if step == Step::Nothing && rights.is_some() {
            // Where it is less short something may be to gain.
            return Some(work.go_on(self, self.cleaner.choice_of_all(self, level), SLICE_BYTES));
        }
        Some(step)
    }
}

impl Engine {
    /// What the cleaner's thread does at a time, for tests that say when. `false`: it would sleep.
    pub fn clean_slice(&self) -> bool {
        let shared = &*self.shared;
        let (rights, level) = shared.pool.shortest();
        let rests = level == Level::Ample && shared.cleaner.mode != Cleaning::Aggressive;
        !rests && shared.clean_slice((rights, level)) != Some(Step::Nothing)
    }
}
