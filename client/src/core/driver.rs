//! Blocking calls: the thread that waits polls the completion queue itself, so that an answer
//! takes no detour through the reactor's thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use parking_lot::Mutex;

use super::connection::Connection;
use super::time::TICK;

thread_local! {
    static DRIVING: Cell<bool> = const { Cell::new(false) };
    /// What the future of this thread waits for is an answer, and nothing else.
    static AWAITS_ANSWER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread drives the completion queue while it waits, and looks at the time itself.
pub(crate) fn is_driver() -> bool {
    DRIVING.get()
}

/// The future that this thread drives waits for an answer on the connection that it was given.
pub(super) fn await_answer() {
    AWAITS_ANSWER.set(true);
}

struct Parker {
    thread: Thread,
    notified: AtomicBool,
    /// The connection whose completion queue the thread waits on.
    waits_on: Mutex<Option<Arc<Connection>>>,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notified.store(true, Ordering::Release);
        self.thread.unpark();
        if let Some(connection) = &*self.waits_on.lock() {
            connection.completions().wake();
        }
    }
}

struct Driving(bool);

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.0);
    }
}

/// Runs `future` on this thread. `connection` is the one whose completions it may wait for.
pub(crate) fn block_on<F: Future>(
    connection: impl Fn() -> Option<Arc<Connection>>,
    future: F,
) -> F::Output {
    let _driving = Driving(DRIVING.replace(true));
    let mut future = pin!(future);
    // Most calls are done at the first look, READs that are loads above all: nobody needs to be
    // woken then.
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    let parker = Arc::new(Parker {
        thread: std::thread::current(),
        notified: AtomicBool::new(false),
        waits_on: Mutex::new(None),
    });
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    let is_notified = || parker.notified.load(Ordering::Acquire);
    let mut has_waited = None;
    let output = loop {
        AWAITS_ANSWER.set(false);
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            break output;
        }
        if parker.notified.swap(false, Ordering::AcqRel) {
            continue;
        }
        match connection().filter(|connection| connection.is_alive()) {
            Some(connection) if AWAITS_ANSWER.get() && connection.receive(is_notified) => {
                has_waited = Some(connection);
            }
            Some(connection) => {
                *parker.waits_on.lock() = Some(Arc::clone(&connection));
                connection.drive(TICK, is_notified);
                *parker.waits_on.lock() = None;
                has_waited = Some(connection);
            }
            None => std::thread::park_timeout(TICK),
        }
    };
    if let Some(connection) = has_waited {
        connection.hand_over();
    }
    output
}
