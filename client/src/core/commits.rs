//! The compare-and-swap that commits an entry whose update has taken effect (design.md 6): nobody
//! waits for it. Who updates key after key lets it wait for the next chain on the connection,
//! which takes it along, or does without where it replaces that very entry: whoever knows that
//! its own pending entry is linked may forward it. If no chain comes, the reactor posts it soon.
//! Until then readers that meet the entry ask the server, which commits it.

use std::time::{Duration, Instant};

use super::connection::Connection;
use super::swaps::Swap;

/// Updates that begin within this of each other are in a row: another one is to be expected.
const IN_A_ROW: Duration = Duration::from_millis(1);
/// How often the reactor looks meanwhile. What it finds twice it posts.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// So many looks that find nothing new are the last.
const QUIET_LOOKS: u32 = 16;

/// What is to be committed.
#[derive(Default)]
pub(super) struct Commits {
    waiting: Option<Swap>,
    /// When the last update began.
    last_at: Option<Instant>,
    /// Something has come to wait since the last look.
    is_new: bool,
    quiet_looks: u32,
    /// The reactor looks.
    is_watched: bool,
    /// There is none: it may wait for ever, as that of a client that has stopped.
    is_alone: bool,
}

impl Commits {
    /// Whether there is another update to be expected that takes it along, when this one began at
    /// `begun`.
    fn may_wait(&mut self, begun: Instant, has_reactor: bool) -> bool {
        let last_at = self.last_at.replace(begun);
        let is_in_a_row = || last_at.is_some_and(|last| begun.duration_since(last) < IN_A_ROW);
        self.is_alone || has_reactor && is_in_a_row()
    }

    /// What the reactor has to post now, and whether it has to look again.
    fn look(&mut self) -> (Option<Swap>, bool) {
        if std::mem::take(&mut self.is_new) {
            self.quiet_looks = 0;
            return (None, true);
        }
        self.quiet_looks += 1;
        self.is_watched &= self.quiet_looks < QUIET_LOOKS;
        (self.waiting.take(), self.is_watched)
    }
}

impl Connection {
    /// Commits an entry that is linked, some time soon. `begun`: when its update began, or any
    /// time that is as long after that as that of all others is.
    pub(crate) fn commit(&self, swap: Swap, begun: Instant) {
        let ticker = &self.shared.ticker;
        let mut commits = self.commits.lock();
        if !commits.may_wait(begun, ticker.has_thread()) {
            drop(commits);
            self.swap_unheard(swap);
            return;
        }
        let before = commits.waiting.replace(swap);
        commits.is_new = true;
        let is_watched = std::mem::replace(&mut commits.is_watched, true);
        drop(commits);
        if let Some(before) = before {
            self.swap_unheard(before);
        }
        if !is_watched {
            ticker.kick();
        }
    }

    /// What waits to be committed: the caller takes it along, or leaves it to the
    /// server, which commits what a client has not.
    pub(crate) fn take_commit(&self) -> Option<Swap> {
        self.commits.lock().waiting.take()
    }

    /// Posts what waits to be committed, so that what is posted behind it finds it done.
    pub(crate) fn commit_now(&self) {
        if let Some(swap) = self.take_commit() {
            self.swap_unheard(swap);
        }
    }

    /// For the reactor: when to look again, as long as that is to be expected of it.
    pub(crate) fn look_after_commits(&self) -> Option<Duration> {
        let mut commits = self.commits.lock();
        if !commits.is_watched {
            return None;
        }
        let (swap, again) = commits.look();
        if let Some(swap) = swap {
            // Locked: this is no operation that whoever retires memory would wait for.
            self.swap_unheard(swap);
        }
        again.then_some(LOOK_EVERY)
    }

    /// For simulations, where nothing is posted by itself: entries are committed with the next
    /// update, and the last one never.
    pub fn commit_with_the_next(&self) {
        self.commits.lock().is_alone = true;
    }
}

#[cfg(test)]
mod tests {
    use onesided_fabric::{RegionId, RemoteAddr};

    use super::*;

    fn swap(new: u64) -> Swap {
        let at = RemoteAddr { region: RegionId(1), offset_bytes: 0 };
        Swap { at, expected: 1, new }
    }

    #[test]
    fn only_an_update_that_follows_another_one_leaves_its_commit_to_a_third() {
        let mut commits = Commits::default();
        let begin = Instant::now();
        let at_us = |us| begin + Duration::from_micros(us);
        assert!(!commits.may_wait(at_us(0), true));
        assert!(commits.may_wait(at_us(900), true));
        assert!(!commits.may_wait(at_us(900), false), "nobody would post it");
        assert!(!commits.may_wait(at_us(1_900), true), "too late");
        commits.is_alone = true;
        assert!(commits.may_wait(at_us(9_000), false));
    }

    #[test]
    fn what_is_found_twice_is_posted_and_looking_ends() {
        let mut commits = Commits { is_watched: true, ..Commits::default() };
        (commits.waiting, commits.is_new) = (Some(swap(2)), true);
        let found = |(swap, again): (Option<Swap>, bool)| (swap.map(|swap| swap.new), again);
        assert_eq!(found(commits.look()), (None, true), "it has just come");
        assert_eq!(found(commits.look()), (Some(2), true));
        (commits.waiting, commits.is_new) = (Some(swap(3)), true);
        assert_eq!(found(commits.look()), (None, true));
        let looks = (0..QUIET_LOOKS).map(|_| found(commits.look())).collect::<Vec<_>>();
        assert_eq!(looks[0], (Some(3), true));
        assert_eq!(looks.iter().filter(|look| !look.1).count(), 1);
        assert!(!commits.is_watched);
    }
}
