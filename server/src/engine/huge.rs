//! Huge pages for regions, asked for by a thread of its own one step ahead of use, and made by a
//! process of its own ([`HugePageMaker`]).
//!
//! The two steps after the one that is taken into use are asked for, so that resident memory stays
//! within two steps of what is used, and no PUT waits until the kernel has cleared 2 MiB. What is
//! in use when its turn comes stays in small pages: who uses it would wait for as long as it takes
//! the kernel. So does the first step of a region.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use onesided_fabric::{HUGE_PAGE_BYTES, HugePageMaker, Memory, Only};
use onesided_protocol::limits::REGION_BYTES;

const _: () = assert!(REGION_BYTES / HUGE_PAGE_BYTES <= u64::BITS as usize);

/// Steps that are made before they are used.
const STEPS_AHEAD: usize = 2;

/// How often is looked whether the maker is still there, while nobody asks it for anything.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Steps of a region, a bit for each.
#[derive(Debug, Default)]
pub(super) struct Steps {
    asked: AtomicU64,
    /// Those that are huge pages.
    made: AtomicU64,
}

/// What the maker is told.
enum Wish {
    /// This step of a region is to become one huge page, unless it is in use.
    Make(Arc<Memory>, Arc<Steps>, usize),
    /// Who sent this waits until all wishes before it are granted.
    Tell(Sender<()>),
}

/// Whether regions get huge pages, and who asks for them.
pub(super) struct HugePages {
    asker: Option<(Sender<Wish>, JoinHandle<()>)>,
    work: Arc<Work>,
}

/// What those do who make one.
#[derive(Default)]
struct Work {
    maker: Option<Arc<HugePageMaker>>,
    ending: AtomicBool,
    made: AtomicU64,
    refused: AtomicU64,
    /// Why was logged.
    told: AtomicBool,
}

impl HugePages {
    /// None are made.
    pub(super) fn off() -> Self {
        Self { asker: None, work: Arc::default() }
    }

    /// They are made where the kernel lets this process.
    pub(super) fn start() -> std::io::Result<Self> {
        let maker = match HugePageMaker::shared() {
            Ok(maker) => maker,
            Err(error) => {
                tracing::warn!(%error, "no process that makes huge pages: there are none");
                return Ok(Self::off());
            }
        };
        let work = Arc::new(Work { maker: Some(maker), ..Work::default() });
        let (sender, wishes) = channel();
        let for_asker = Arc::clone(&work);
        let asker = std::thread::Builder::new()
            .name("huge-pages".to_owned())
            .spawn(move || for_asker.grant(&wishes))?;
        Ok(Self { asker: Some((sender, asker)), work })
    }

    /// `len_bytes` of `memory` from `offset_bytes` are used from now on. At most as many wishes
    /// wait as it has steps.
    pub(super) fn use_soon(
        &self,
        memory: &Arc<Memory>,
        steps: &Arc<Steps>,
        offset_bytes: usize,
        len_bytes: usize,
    ) {
        let Some((asker, _)) = &self.asker else { return };
        let count = memory.len_bytes() / HUGE_PAGE_BYTES;
        let next = (offset_bytes + len_bytes - 1) / HUGE_PAGE_BYTES + 1;
        for step in next..count.min(next + STEPS_AHEAD) {
            if steps.asked.fetch_or(1 << step, Ordering::Relaxed) & 1 << step == 0 {
                // The thread ends only after this end does.
                let wish = Wish::Make(Arc::clone(memory), Arc::clone(steps), step);
                let _always_sent = asker.send(wish);
            }
        }
    }

    /// The memory was discarded.
    pub(super) fn gone(&self, steps: &Steps) {
        self.work.gone(steps);
    }

    /// All of `memory` is about to be used, and pages that a device has pinned stay as they are:
    /// what nobody has asked for yet is made here, and what was is waited for.
    pub(super) fn use_now(&self, memory: &Memory, steps: &Steps) {
        let Some((asker, _)) = &self.asker else { return };
        for step in 0..memory.len_bytes() / HUGE_PAGE_BYTES {
            if steps.asked.fetch_or(1 << step, Ordering::Relaxed) & 1 << step == 0 {
                // In use or not: it is better now than never.
                self.work.make_one(memory, steps, step, Only::Any);
            }
        }
        let (done, is_done) = channel();
        // Wishes are granted in order. When the thread ends, nothing is left to wait for.
        if asker.send(Wish::Tell(done)).is_ok() {
            let _told_or_ended = is_done.recv();
        }
    }

    /// No more are made: nobody is to wait for them any more.
    pub(super) fn end(&self) {
        self.work.ending.store(true, Ordering::Relaxed);
    }

    /// Bytes in huge pages, and bytes for which the kernel refused them.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |count: &AtomicU64| count.load(Ordering::Relaxed) * HUGE_PAGE_BYTES as u64;
        (bytes(&self.work.made), bytes(&self.work.refused))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.end();
        if let Some((sender, asker)) = self.asker.take() {
            drop(sender);
            if asker.join().is_err() {
                tracing::error!("the thread that asks for huge pages has panicked");
            }
        }
    }
}

impl Work {
    fn grant(&self, wishes: &Receiver<Wish>) {
        loop {
            let wish = wishes.recv_timeout(LOOK_EVERY);
            if self.ending.load(Ordering::Relaxed) {
                break;
            }
            match wish {
                Ok(Wish::Make(memory, steps, step)) => {
                    self.make_one(&memory, &steps, step, Only::Fresh);
                }
                // Fails when nobody waits any more.
                Ok(Wish::Tell(done)) => _ = done.send(()),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Counts what was made of memory that was discarded no more; twice is the same as once.
    fn gone(&self, steps: &Steps) {
        let made = steps.made.swap(0, Ordering::Relaxed).count_ones();
        self.made.fetch_sub(made.into(), Ordering::Relaxed);
    }

    /// Sees to a maker that was killed: nothing is left of it, and somebody is told.
    fn look(&self) {
        if self.maker.as_ref().is_some_and(|maker| !maker.is_there()) {
            self.tell(&"the process that makes huge pages has ended");
        }
    }

    fn make_one(&self, memory: &Memory, steps: &Steps, step: usize, only: Only) {
        let Some(maker) = self.maker.as_ref().filter(|_| !self.ending.load(Ordering::Relaxed))
        else {
            return;
        };
        match maker.make(memory, step * HUGE_PAGE_BYTES, only, &self.ending) {
            Ok(()) => {
                self.made.fetch_add(1, Ordering::Relaxed);
                steps.made.fetch_or(1 << step, Ordering::Relaxed);
                if memory.is_discarded() {
                    self.gone(steps);
                }
            }
            // Retired meanwhile.
            Err(_) if memory.is_discarded() => {}
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.tell(&error);
            }
        }
    }

    /// Logs once why there are no more huge pages.
    fn tell(&self, why: &dyn std::fmt::Display) {
        if self.ending.load(Ordering::Relaxed) || self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::info!(
            %why,
            "no more huge pages: reads go through small ones, some slower; \
             memory_huge_refused_bytes counts them, huge_pages = \"off\" stops trying"
        );
    }
}

#[cfg(test)]
mod tests {
    use onesided_fabric::Rights;

    use super::*;

    #[test]
    fn only_what_was_made_is_counted_and_once() {
        let work = Work::default();
        let (some, other) = (Steps::default(), Steps::default());
        for (steps, made) in [(&some, 0b101), (&other, 0b1)] {
            steps.asked.store(0b111, Ordering::Relaxed);
            steps.made.store(made, Ordering::Relaxed);
        }
        work.made.store(3, Ordering::Relaxed);
        for left in [1, 1] {
            work.gone(&some);
            assert_eq!(work.made.load(Ordering::Relaxed), left);
        }
        work.gone(&other);
        assert_eq!(work.made.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_ends_is_not_kept_by_what_is_asked_for() {
        let huge = HugePages::start().expect("a thread");
        let memory = Memory::shared("t", 64 * HUGE_PAGE_BYTES, Rights::ReadOnly).expect("memory");
        let (memory, steps) = (Arc::new(memory), Arc::new(Steps::default()));
        huge.end();
        for step in 0..32 {
            huge.use_soon(&memory, &steps, step * HUGE_PAGE_BYTES, 1);
        }
        // It waits for nobody, either.
        huge.use_now(&memory, &steps);
        let work = Arc::clone(&huge.work);
        drop(huge);
        let done = [&work.made, &work.refused].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(done, [0, 0]);
    }
}
