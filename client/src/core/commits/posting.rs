//! Who acknowledges that memory may go finds nothing that was taken out and is not posted yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onesided_fabric::{
    AccessError, AttachError, Caps, Completion, CompletionQueue, Endpoint, FabricKind, Opcode,
    PostError, RegionId, RemoteAddr, Wait, WorkRequest,
};
use parking_lot::Mutex;

use super::super::polled::tests::welcome;
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
#[derive(Debug, Default)]
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
}

impl Endpoint for Device {
    fn caps(&self) -> Caps {
        let (kind, max_message_bytes) = (FabricKind::Sim, 64 << 10);
        Caps { kind, one_sided: true, reads_now: false, max_message_bytes, send_depth: 64 }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        for request in chain.drain(..) {
            let what = match request.op {
                Opcode::CompareSwap { .. } => What::Swap,
                Opcode::Read { .. } => What::Read,
                other => panic!("{other:?}"),
            };
            if what == What::Swap {
                self.hold();
            }
            self.posted.lock().push(what);
        }
        Ok(())
    }

    fn attach(&self, _: RegionId, _: &[u8]) -> Result<(), AttachError> {
        Ok(())
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn close(&self) {}

    fn is_closed(&self) -> bool {
        false
    }
}

/// Nothing ever completes.
struct Silent;

impl CompletionQueue for Silent {
    fn poll(&self, _: &mut Vec<Completion>, _: usize) -> usize {
        0
    }

    fn wait(&self, timeout: Duration) -> Wait {
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        Wait::TimedOut
    }

    fn wake(&self) {}
}

/// While `post` posts what waits, another thread acknowledges.
fn is_waited_for(post: impl FnOnce(&Connection) + Send) {
    let device = Arc::new(Device::default());
    let endpoint = Arc::clone(&device) as Arc<dyn Endpoint>;
    let options = Options::default();
    let connection = Connection::from_parts(endpoint, Arc::new(Silent), welcome(), None, options);
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
