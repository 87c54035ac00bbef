//! Who acknowledges that memory may go finds nothing that was taken out and is not posted yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::{Opcode, RegionId, RemoteAddr};
use parking_lot::Mutex;

use super::super::fake;
use super::*;
use crate::options::Options;

/// Only a failing test waits so long.
const LONG: Duration = Duration::from_secs(60);
const AT: RemoteAddr = RemoteAddr { region: RegionId(1), offset_bytes: 0 };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Swap,
    Read,
}

/// Takes as long for each compare-and-swap as it is told to, and completes nothing.
#[derive(Default)]
struct Device {
    posted: Mutex<Vec<What>>,
    holds: AtomicBool,
    has_begun: AtomicBool,
}

impl Device {
    fn hold(&self) {
        self.has_begun.store(true, Ordering::SeqCst);
        let end = Instant::now() + LONG;
        while self.holds.load(Ordering::SeqCst) && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    fn post(&self, op: &Opcode) {
        let what = match op {
            Opcode::CompareSwap { .. } => What::Swap,
            Opcode::Read { .. } => What::Read,
            other => panic!("{other:?}"),
        };
        if what == What::Swap {
            self.hold();
        }
        self.posted.lock().push(what);
    }
}

/// A connection over it.
fn connection(device: &Arc<Device>) -> Arc<Connection> {
    let device = Arc::clone(device);
    fake::connection(Options::default(), move |chain, _| {
        chain.drain(..).for_each(|request| device.post(&request.op));
        Ok(())
    })
}

/// While `post` posts what waits, another thread acknowledges.
fn is_waited_for(post: impl FnOnce(&Connection) + Send) {
    let device = Arc::new(Device::default());
    let connection = connection(&device);
    connection.commits.lock().wait(Swap { at: AT, expected: 1, new: 2 });
    device.holds.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let posting = scope.spawn(|| post(&connection));
        while !device.has_begun.load(Ordering::SeqCst) && !posting.is_finished() {
            std::thread::yield_now();
        }
        let behind = scope.spawn(|| connection.commit_and_read_behind());
        // It has time to do it wrong.
        std::thread::sleep(Duration::from_millis(50));
        let is_early = behind.is_finished() || !device.posted.lock().is_empty();
        device.holds.store(false, Ordering::SeqCst);
        assert!(behind.join().expect("it posts a READ"));
        posting.join().expect("it posts");
        assert!(!is_early, "before what was taken out was posted");
    });
    assert_eq!(*device.posted.lock(), [What::Swap, What::Read]);
}

#[test]
fn what_an_operation_posts_is_waited_for() {
    is_waited_for(|connection| connection.commit_now());
}

#[test]
fn what_the_reactor_posts_is_waited_for() {
    is_waited_for(|connection| {
        connection.commits.lock().is_watched = true;
        // What it finds twice.
        (0..2).for_each(|_| _ = connection.look_after_commits());
    });
}

#[test]
fn what_is_committed_at_once_is_waited_for() {
    is_waited_for(|connection| {
        connection.commits.lock().waiting = Swaps::default();
        connection.commit_at_once(Swap { at: AT, expected: 1, new: 2 });
    });
}
