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
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use onesided_fabric::{HUGE_PAGE_BYTES, HugePageMaker, Memory, Only};
use onesided_protocol::limits::REGION_BYTES;

const _: () = assert!(REGION_BYTES / HUGE_PAGE_BYTES <= u64::BITS as usize);

/// Steps that are made before they are used.
const STEPS_AHEAD: usize = 2;

/// What the maker is told.
enum Wish {
    /// This step of a region is to become one huge page, unless it is in use.
    Make(Arc<Memory>, usize),
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

    /// `len_bytes` of `memory` from `offset_bytes` are used from now on. `asked` has a bit for each
    /// step of it that was asked for before: at most as many wishes wait as there are steps.
    pub(super) fn use_soon(
        &self,
        memory: &Arc<Memory>,
        asked: &AtomicU64,
        offset_bytes: usize,
        len_bytes: usize,
    ) {
        let Some((asker, _)) = &self.asker else { return };
        let steps = memory.len_bytes() / HUGE_PAGE_BYTES;
        let next = (offset_bytes + len_bytes - 1) / HUGE_PAGE_BYTES + 1;
        for step in next..steps.min(next + STEPS_AHEAD) {
            if asked.fetch_or(1 << step, Ordering::Relaxed) & 1 << step == 0 {
                // The thread ends only after this end does.
                let wish = Wish::Make(Arc::clone(memory), step * HUGE_PAGE_BYTES);
                let _always_sent = asker.send(wish);
            }
        }
    }

    /// Memory is gone for which so many steps were asked for.
    pub(super) fn gone(&self, steps: u32) {
        if self.asker.is_some() {
            // Those that were refused are not told apart: then there are none, as a rule.
            let fewer = |made: u64| Some(made.saturating_sub(steps.into()));
            let _made = self.work.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }

    /// All of `memory` is about to be used, and pages that a device has pinned stay as they are:
    /// what nobody has asked for yet is made here, and what was is waited for.
    pub(super) fn use_now(&self, memory: &Memory, asked: &AtomicU64) {
        let Some((asker, _)) = &self.asker else { return };
        for step in 0..memory.len_bytes() / HUGE_PAGE_BYTES {
            if asked.fetch_or(1 << step, Ordering::Relaxed) & 1 << step == 0 {
                // In use or not: it is better now than never.
                self.work.make_one(memory, step * HUGE_PAGE_BYTES, Only::Any);
            }
        }
        let (done, is_done) = channel();
        // Wishes are granted in order. When the thread ends, nothing is left to wait for.
        if asker.send(Wish::Tell(done)).is_ok() {
            let _told_or_ended = is_done.recv();
        }
    }

    /// Bytes in huge pages, and bytes for which the kernel refused them.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |count: &AtomicU64| count.load(Ordering::Relaxed) * HUGE_PAGE_BYTES as u64;
        (bytes(&self.work.made), bytes(&self.work.refused))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.work.ending.store(true, Ordering::Relaxed);
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
        for wish in wishes {
            if self.ending.load(Ordering::Relaxed) {
                break;
            }
            match wish {
                Wish::Make(memory, offset_bytes) => {
                    self.make_one(&memory, offset_bytes, Only::Fresh);
                }
                // Fails when nobody waits any more.
                Wish::Tell(done) => _ = done.send(()),
            }
        }
    }

    fn make_one(&self, memory: &Memory, offset_bytes: usize, only: Only) {
        let Some(maker) = &self.maker else { return };
        match maker.make(memory, offset_bytes, only) {
            Ok(()) => _ = self.made.fetch_add(1, Ordering::Relaxed),
            // Retired meanwhile.
            Err(_) if memory.is_discarded() => {}
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        %error,
                        "the kernel refuses huge pages: reads go through small ones, some slower; \
                         memory_huge_refused_bytes counts them, huge_pages = \"off\" stops trying"
                    );
                }
            }
        }
    }
}
