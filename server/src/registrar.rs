//! Regions are registered with the RDMA device as soon as they are made, before any client asks
//! for them: pinning 64 MiB takes tens of milliseconds, which no GET should wait for.
//!
//! A thread sleeps until an engine has made a region; of many, which there are when a device comes
//! late or memory grows fast, several threads register one each at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use onesided_fabric::{RegionId, verbs};
use parking_lot::Mutex;

use crate::engine::Engine;

/// Threads that register at once: more only wait for each other in the kernel.
const THREADS_MAX: usize = 4;
/// Time between two lines in the log.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// A region that is to be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    /// Position of its engine, which is the number of the tenant and of its domain.
    tenant: usize,
    id: u32,
    len_bytes: u64,
}

/// Starts the thread; it ends soon after `stopping` is set and it is unparked.
///
/// # Errors
/// When there is no thread to be had.
pub(crate) fn start(
    listener: Arc<verbs::Listener>,
    engines: Vec<Arc<Engine>>,
    stopping: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    let run = move || {
        let register = |wanted: &Wanted| register(&listener, &engines, wanted);
        let mut seen = vec![0; engines.len()];
        let this = std::thread::current();
        engines.iter().for_each(|engine| engine.unpark_at_growth(Some(this.clone())));
        while !stopping.load(Ordering::Acquire) && !listener.is_lost() {
            let wanted = new_regions(&engines, &mut seen);
            if wanted.is_empty() {
                // After a region that was made since the look, or the end, this returns at once.
                std::thread::park();
            } else {
                register_all(&wanted, &stopping, register);
            }
        }
        engines.iter().for_each(|engine| engine.unpark_at_growth(None));
    };
    Builder::new().name("verbs-registrar".to_owned()).spawn(run)
}

/// Regions that were made since the last look and are still there; `seen` are the ids up to which
/// each engine was looked at.
fn new_regions(engines: &[Arc<Engine>], seen: &mut [u32]) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for ((tenant, engine), seen) in engines.iter().enumerate().zip(seen) {
        let made = engine.regions();
        let there = (*seen..made).filter_map(|id| Some((id, engine.region(id)?)));
        wanted.extend(there.map(|(id, memory)| {
            let len_bytes = memory.len_bytes() as u64;
            Wanted { tenant, id, len_bytes }
        }));
        *seen = made;
    }
    wanted
}

/// Registers a region; one that was given back meanwhile needs nothing.
fn register(
    listener: &verbs::Listener,
    engines: &[Arc<Engine>],
    &Wanted { tenant, id, .. }: &Wanted,
) -> Result<(), verbs::VerbsError> {
    let region = engines[tenant].region_for_device(id);
    region.map_or(Ok(()), |(memory, rights)| {
        let outcome = listener.register(tenant as u32, RegionId(id), &memory, rights);
        if memory.is_discarded() { Ok(()) } else { outcome }
    })
}

/// How far the registrations of one look are.
struct Progress {
    begin: Instant,
    said: Mutex<Instant>,
    all: (usize, u64),
    done: AtomicUsize,
    done_bytes: AtomicU64,
    failed: AtomicUsize,
}

impl Progress {
    fn of(wanted: &[Wanted]) -> Self {
        let begin = Instant::now();
        Self {
            begin,
            said: Mutex::new(begin),
            all: (wanted.len(), wanted.iter().map(|region| region.len_bytes).sum()),
            done: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            failed: AtomicUsize::new(0),
        }
    }

    fn add(&self, region: &Wanted) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.done_bytes.fetch_add(region.len_bytes, Ordering::Relaxed);
        let mut said = self.said.lock();
        if said.elapsed() >= SAY_EVERY {
            *said = Instant::now();
            drop(said);
            tracing::info!("{} so far", self.text());
        }
    }

    /// The first says it for all: most often the limit on locked memory is below all of them.
    fn fail(&self, region: &Wanted, error: &dyn std::fmt::Display) {
        if self.failed.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(%error, region.id, "a region cannot be offered over RDMA");
        }
    }

    fn text(&self) -> String {
        let (done, done_bytes) =
            (self.done.load(Ordering::Relaxed), self.done_bytes.load(Ordering::Relaxed));
        let (all, all_bytes) = self.all;
        let (mib, all_mib) = (done_bytes >> 20, all_bytes >> 20);
        format!("{done} of {all} regions registered with the device, {mib} of {all_mib} MiB")
    }

    /// In the log, unless it was one region and quick: growing memory would be a line each time.
    fn end(&self) {
        let (text, took) = (self.text(), self.begin.elapsed());
        if self.all.0 > 1 || took >= SAY_EVERY {
            tracing::info!("{text} in {} ms", took.as_millis());
        } else {
            tracing::debug!("{text} in {} ms", took.as_millis());
        }
    }
}

/// Registers all of them, several at a time, and says how far it is. One that cannot be is not
/// tried again here: a client that asks for it does, and is told why.
fn register_all<E: std::fmt::Display>(
    wanted: &[Wanted],
    stopping: &AtomicBool,
    register: impl Fn(&Wanted) -> Result<(), E> + Sync,
) {
    if wanted.is_empty() {
        return;
    }
    let progress = Progress::of(wanted);
    let next = AtomicUsize::new(0);
    let work = || {
        while !stopping.load(Ordering::Acquire)
            && let Some(region) = wanted.get(next.fetch_add(1, Ordering::Relaxed))
        {
            match register(region) {
                Ok(()) => progress.add(region),
                Err(error) => progress.fail(region, &error),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = wanted.len().min(cores).min(THREADS_MAX);
    std::thread::scope(|scope| {
        // This thread is one of them; without the others it takes longer.
        let spawn = |_| Builder::new().spawn_scoped(scope, work).ok();
        let _helpers: Vec<_> = (1..threads).map(spawn).collect();
        work();
    });
    progress.end();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use onesided_fabric::{Memory, Rights};
    use onesided_protocol::control::TableOptions;
    use onesided_protocol::rpc::{Expect, Ttl};

    use super::*;
    use crate::clock::ServerClock;
    use crate::engine::EngineConfig;

    fn regions(count: u32) -> Vec<Wanted> {
        (0..count).map(|id| Wanted { tenant: 0, id, len_bytes: 4096 }).collect()
    }

    #[test]
    fn each_is_registered_once_and_a_failure_stops_no_other() {
        let seen = Mutex::new(Vec::new());
        register_all(&regions(50), &AtomicBool::new(false), |wanted| {
            seen.lock().push(wanted.id);
            if wanted.id % 7 == 0 { Err("no memory") } else { Ok(()) }
        });
        let seen = seen.into_inner();
        let each: BTreeSet<u32> = seen.iter().copied().collect();
        assert_eq!((seen.len(), each.len()), (50, 50));
    }

    #[test]
    fn nothing_more_is_begun_when_the_server_stops() {
        let stopping = AtomicBool::new(false);
        let begun = AtomicUsize::new(0);
        register_all(&regions(1000), &stopping, |_| {
            stopping.store(true, Ordering::Release);
            begun.fetch_add(1, Ordering::Relaxed);
            Ok::<_, &str>(())
        });
        let most = THREADS_MAX;
        assert!((1..=most).contains(&begun.into_inner()));
    }

    fn engine() -> Arc<Engine> {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            region_bytes: 1 << 20,
            segment_bytes: 4096,
            ..EngineConfig::default()
        };
        let memory = Box::new(|_: &str, len_bytes, _: Rights| Memory::private(len_bytes));
        Engine::new(config, memory, Arc::new(ServerClock::default())).expect("an engine")
    }

    /// What `keep` says of a number stays stored, of 40,000.
    fn fill(engine: &Engine, keep: impl Fn(u32) -> bool) {
        let info = engine.create_table("t", TableOptions::default()).expect("a table");
        let table = engine.table(info.id).expect("by id");
        let key = |n: u32| n.to_le_bytes();
        for n in 0..40_000 {
            table.put(&key(n), &[7; 200], Expect::Any, Ttl::Never, 0).expect("there is memory");
        }
        for n in (0..40_000).filter(|&n| !keep(n)) {
            assert_eq!(table.delete(&key(n), Expect::Any), Ok(true));
        }
    }

    #[test]
    fn all_regions_that_there_are_are_found_once_in_every_engine() {
        let engines = [engine(), engine()];
        let mut seen = [0, 0];
        let ids = |wanted: Vec<Wanted>| -> Vec<_> {
            wanted.into_iter().map(|wanted| (wanted.tenant, wanted.id)).collect()
        };
        // The catalogs.
        assert_eq!(ids(new_regions(&engines, &mut seen)), [(0, 0), (1, 0)]);
        fill(&engines[1], |n| n % 9 == 0);
        // Some are given back before anybody looks: they are stepped over, and hide no other.
        assert!(engines[1].leave_region() && engines[1].leave_region());
        let found = ids(new_regions(&engines, &mut seen));
        let there = (1..engines[1].regions()).filter(|&id| engines[1].region(id).is_some());
        let there: Vec<_> = there.map(|id| (1, id)).collect();
        assert_eq!((found.len(), &found), (engines[1].regions() as usize - 3, &there));
        assert!(found.len() > 5, "{found:?}");
        assert_eq!(new_regions(&engines, &mut seen), []);
    }

    #[test]
    fn who_waits_for_regions_is_woken_by_each() {
        let engine = engine();
        let (grown, has_grown) = std::sync::mpsc::channel();
        let waiting = Arc::clone(&engine);
        let thread = std::thread::spawn(move || {
            waiting.unpark_at_growth(Some(std::thread::current()));
            let mut seen = [waiting.regions()];
            grown.send(0).expect("awaited");
            loop {
                let wanted = new_regions(std::slice::from_ref(&waiting), &mut seen);
                if grown.send(wanted.len()).is_err() {
                    break;
                }
                std::thread::park();
            }
        });
        assert_eq!(has_grown.recv(), Ok(0));
        fill(&engine, |_| true);
        let (made, mut found) = (engine.regions() as usize - 1, 0);
        while found < made {
            // Without the wake-up this is as long as a test may take.
            found += has_grown.recv_timeout(Duration::from_secs(60)).expect("woken");
        }
        drop(has_grown);
        thread.thread().unpark();
        thread.join().expect("ends");
    }
}
