//! What must not be done by who polls: registering memory, destroying queue pairs, waiting for
//! what is in flight when nobody polls any more.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// Does `job` in the background, after those that were given before. Each endpoint may have a
/// bounded number of them. Without a thread for it, it is done at once.
pub(super) fn run(job: impl FnOnce() + Send + 'static) {
    static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let job: Job = Box::new(job);
    let rest = match JOBS.get_or_init(start) {
        Some(jobs) => jobs.send(job).err().map(|unsent| unsent.0),
        None => Some(job),
    };
    if let Some(job) = rest {
        job();
    }
}

fn start() -> Option<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let work = move || jobs.into_iter().for_each(|job| job());
    let thread = std::thread::Builder::new().name("verbs-worker".to_owned()).spawn(work);
    match thread {
        Ok(_detached) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "no thread for the background work of verbs: done by pollers");
            None
        }
    }
}
