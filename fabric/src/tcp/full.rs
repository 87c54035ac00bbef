//! Endpoints whose unfinished messages have no room: nothing more is read of them until there is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::link::Link;
use super::queue::Hub;

/// Those that wait, the first one first.
#[derive(Default)]
pub(super) struct Full {
    waiting: VecDeque<Arc<Link>>,
    /// When it was last looked who holds them up.
    looked: Option<Instant>,
}

impl Full {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Hub {
    /// What was read of an endpoint is taken apart; all of it that is left is the beginning of a
    /// message.
    pub(super) fn keep_or_wait(&self, full: &mut Full, link: Arc<Link>) {
        let mut recv = link.recv.lock();
        // Nobody overtakes those that wait.
        let goes_on =
            if full.is_empty() { recv.may_go_on(&self.common.budget) } else { !recv.needs_room() };
        drop(recv);
        if !goes_on {
            link.set_deaf(self, true);
            self.common.waiting.fetch_add(1, Ordering::Relaxed);
            full.waiting.push_back(link);
        }
    }

    /// Reads on of those that there is room for. Closes who holds room that others wait for, of
    /// this queue or another one, and sends nothing to speak of.
    pub(super) fn go_on(&self, full: &mut Full) {
        while let Some(link) = full.waiting.front() {
            let mut recv = link.recv.lock();
            // What a closed one had reserved is given back under this lock, after the mark.
            if !link.is_closed() && !recv.may_go_on(&self.common.budget) {
                break;
            }
            drop(recv);
            link.set_deaf(self, false);
            self.common.waiting.fetch_sub(1, Ordering::Relaxed);
            full.waiting.pop_front();
        }
        if !self.common.has_waiting() {
            full.looked = None;
            return;
        }
        let now = Instant::now();
        if now - *full.looked.get_or_insert(now) < self.limits.stalled_max {
            return;
        }
        full.looked = Some(now);
        for link in self.links() {
            let is_stalled = link.recv.lock().is_stalled();
            if is_stalled {
                let max = self.limits.stalled_max;
                let text = format!("its unfinished message has hardly grown for {max:?}");
                link.fail(self, &format!("{text}, and others wait for the room"));
            }
        }
    }
}
