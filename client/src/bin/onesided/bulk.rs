//! Many items, several in flight, with a progress bar: what load, verify and dump share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use onesided::Error;

use crate::args::Pace;

/// What came of one item.
pub(crate) enum Done {
    /// So many bytes were moved.
    Bytes(u64),
    /// There is no value for the key.
    Absent,
}

/// Why an item failed.
pub(crate) struct Failure {
    text: String,
    /// The others would fail alike: stop.
    ends_all: bool,
}

impl Failure {
    /// A failure of this item alone.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ends_all: false }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let of_item = matches!(
            error,
            Error::TooLarge(_) | Error::OutOfMemory(_) | Error::WrongType(_) | Error::Unexpected(_)
        );
        Self { text: error.to_string(), ends_all: !of_item }
    }
}

/// What came of all.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) bytes: u64,
    pub(crate) absent: u64,
    pub(crate) failed: u64,
    /// Items that were not tried, because of a failure that ends all.
    pub(crate) left_out: u64,
    pub(crate) elapsed: Duration,
}

impl Tally {
    /// Bytes a second, in MB.
    pub(crate) fn megabytes_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

struct Shared<'a> {
    pace: Pace,
    bar: &'a ProgressBar,
    next: AtomicUsize,
    stop: AtomicBool,
    done: AtomicU64,
    bytes: AtomicU64,
    absent: AtomicU64,
    failed: AtomicU64,
    /// One message at a time.
    voice: Mutex<()>,
}

/// Does `work` for every item, `pace.jobs` at a time. `name` says in messages which item it was.
pub(crate) fn run<T: Sync>(
    verb: &'static str,
    items: &[T],
    pace: Pace,
    name: impl Fn(&T) -> String + Sync,
    work: impl Fn(&T) -> Result<Done, Failure> + Sync,
) -> Tally {
    let bar = progress_bar(verb, items.len() as u64);
    let shared = Shared {
        pace,
        bar: &bar,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        absent: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        voice: Mutex::new(()),
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..usize::from(pace.jobs).min(items.len()) {
            scope.spawn(|| {
                while let Some(item) = shared.take(items) {
                    shared.count(&name, item, work(item));
                }
            });
        }
    });
    let elapsed = start.elapsed();
    bar.finish_and_clear();
    shared.tally(items.len() as u64, elapsed)
}

impl Shared<'_> {
    fn take<'t, T>(&self, items: &'t [T]) -> Option<&'t T> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        items.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn count<T>(&self, name: &impl Fn(&T) -> String, item: &T, result: Result<Done, Failure>) {
        match result {
            Ok(Done::Bytes(bytes)) => {
                self.done.fetch_add(1, Ordering::Relaxed);
                let sum = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
                self.bar.set_message(crate::output::megabytes(sum));
            }
            Ok(Done::Absent) => {
                self.absent.fetch_add(1, Ordering::Relaxed);
                self.say(&format!("{}: absent", name(item)));
            }
            Err(failure) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                if failure.ends_all || self.pace.stop_on_error {
                    self.stop.store(true, Ordering::Relaxed);
                }
                self.say(&format!("{}: {}", name(item), failure.text));
            }
        }
        self.bar.inc(1);
    }

    fn say(&self, text: &str) {
        let _one_at_a_time = self.voice.lock();
        self.bar.suspend(|| eprintln!("onesided: {text}"));
    }

    fn tally(&self, items: u64, elapsed: Duration) -> Tally {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (done, absent, failed) = (get(&self.done), get(&self.absent), get(&self.failed));
        let left_out = items - done - absent - failed;
        Tally { done, bytes: get(&self.bytes), absent, failed, left_out, elapsed }
    }
}

/// On stderr, and only if that is a terminal.
fn progress_bar(verb: &'static str, items: u64) -> ProgressBar {
    let bar = ProgressBar::new(items);
    let template = "{prefix} {wide_bar} {human_pos}/{human_len} {msg} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(verb);
    bar
}
