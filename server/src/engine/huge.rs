//! Huge pages for regions, made by a thread of its own one step ahead of use.
//!
//! The step that is taken into use and the one after it are asked for, so that resident memory
//! stays within two steps of what is used, and no PUT waits until the kernel has cleared 2 MiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use onesided_fabric::{HUGE_PAGE_BYTES, Memory};
use onesided_protocol::limits::REGION_BYTES;

const _: () = assert!(REGION_BYTES / HUGE_PAGE_BYTES <= u64::BITS as usize);

/// What the maker is told.
enum Wish {
    /// This step of a region is to become one huge page.
    Make(Arc<Memory>, usize),
    /// Who sent this waits until all wishes before it are granted.
    Tell(Sender<()>),
}

/// Whether regions get huge pages, and who makes them.
pub(super) struct HugePages {
    maker: Option<(Sender<Wish>, JoinHandle<()>)>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    ending: AtomicBool,
    made: AtomicU64,
    refused: AtomicU64,
}

impl HugePages {
    /// None are made.
    pub(super) fn off() -> Self {
        Self { maker: None, counts: Arc::default() }
    }

    /// They are made where the kernel lets this process.
    pub(super) fn start() -> std::io::Result<Self> {
        let counts = Arc::<Counts>::default();
        let (sender, wishes) = channel();
        let for_maker = Arc::clone(&counts);
        let maker = std::thread::Builder::new()
            .name("huge-pages".to_owned())
            .spawn(move || make(&wishes, &for_maker))?;
        Ok(Self { maker: Some((sender, maker)), counts })
    }

    /// `len_bytes` of `memory` from `offset_bytes` are about to be used. `asked` has a bit for each
    /// step of it that was asked for before: at most as many wishes wait as there are steps.
    pub(super) fn use_soon(
        &self,
        memory: &Arc<Memory>,
        asked: &AtomicU64,
        offset_bytes: usize,
        len_bytes: usize,
    ) {
        let Some((maker, _)) = &self.maker else { return };
        let steps = memory.len_bytes() / HUGE_PAGE_BYTES;
        let next = (offset_bytes + len_bytes - 1) / HUGE_PAGE_BYTES + 1;
        for step in offset_bytes / HUGE_PAGE_BYTES..steps.min(next + 1) {
            if asked.fetch_or(1 << step, Ordering::Relaxed) & 1 << step == 0 {
                // The maker ends only after this end does.
                let wish = Wish::Make(Arc::clone(memory), step * HUGE_PAGE_BYTES);
                let _always_sent = maker.send(wish);
            }
        }
    }

    /// Memory is gone for which so many steps were asked for.
    pub(super) fn gone(&self, steps: u32) {
        if self.maker.is_some() {
            // Those that were refused are not told apart: then there are none, as a rule.
            let fewer = |made: u64| Some(made.saturating_sub(steps.into()));
            let _made = self.counts.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }

    /// All of `memory` is about to be used, and pages that a device has pinned stay as they are:
    /// what nobody has asked for yet is made here, and what was is waited for.
    pub(super) fn use_now(&self, memory: &Memory, asked: &AtomicU64) {
        let Some((maker, _)) = &self.maker else { return };
        for step in 0..memory.len_bytes() / HUGE_PAGE_BYTES {
            if asked.fetch_or(1 << step, Ordering::Relaxed) & 1 << step == 0 {
                make_one(memory, step * HUGE_PAGE_BYTES, &self.counts);
            }
        }
        let (done, is_done) = channel();
        // Wishes are granted in order. When the maker ends, nothing is left to wait for.
        if maker.send(Wish::Tell(done)).is_ok() {
            let _told_or_ended = is_done.recv();
        }
    }

    /// Bytes in huge pages, and bytes for which the kernel refused them.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |count: &AtomicU64| count.load(Ordering::Relaxed) * HUGE_PAGE_BYTES as u64;
        (bytes(&self.counts.made), bytes(&self.counts.refused))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.counts.ending.store(true, Ordering::Relaxed);
        if let Some((sender, maker)) = self.maker.take() {
            drop(sender);
            if maker.join().is_err() {
                tracing::error!("the thread that makes huge pages has panicked");
            }
        }
    }
}

fn make(wishes: &Receiver<Wish>, counts: &Counts) {
    for wish in wishes {
        if counts.ending.load(Ordering::Relaxed) {
            break;
        }
        match wish {
            Wish::Make(memory, offset_bytes) => make_one(&memory, offset_bytes, counts),
            // Fails when nobody waits any more.
            Wish::Tell(done) => _ = done.send(()),
        }
    }
}

fn make_one(memory: &Memory, offset_bytes: usize, counts: &Counts) {
    match memory.make_huge(offset_bytes) {
        Ok(()) => _ = counts.made.fetch_add(1, Ordering::Relaxed),
        // Retired meanwhile.
        Err(_) if memory.is_discarded() => {}
        Err(error) => {
            if counts.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::info!(
                    %error,
                    "the kernel refuses huge pages: reads go through small ones, some slower; \
                     memory_huge_refused_bytes counts them, huge_pages = \"off\" stops trying"
                );
            }
        }
    }
}
