//! The compare-and-swap that commits an entry whose update has taken effect (design.md 6): nobody
//! waits for it. Who updates key after key lets it wait: an update that replaces that very entry
//! does without it (whoever knows that its own pending entry is linked may forward it), and when
//! some have come together the next update on the connection takes them all along. If no update
//! comes, the reactor posts them soon. Until then readers that meet the entry ask the server,
//! which commits it.

use std::time::{Duration, Instant};

use onesided_fabric::RemoteAddr;

use super::connection::Connection;
use super::swaps::Swap;

/// Updates that begin within this of each other are in a row: another one is to be expected.
const IN_A_ROW: Duration = Duration::from_millis(1);
/// So many are taken along by the next update: most updates post two requests then, and nobody
/// meets entries that wait for long.
pub(super) const TOGETHER: usize = 4;
/// How often the reactor looks meanwhile. What it finds twice it posts.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// So many looks that find nothing new are the last.
const QUIET_LOOKS: u32 = 16;

/// What is to be committed together, in the order of the updates.
#[derive(Clone, Copy, Default)]
pub(crate) struct Swaps {
    first: [Option<Swap>; TOGETHER],
    len: usize,
    /// So many of them, the oldest, were there at the reactor's last look.
    found: usize,
}

impl Swaps {
    /// `false`: there is no room.
    fn push(&mut self, swap: Swap) -> bool {
        let Some(place) = self.first.get_mut(self.len) else { return false };
        *place = Some(swap);
        self.len += 1;
        true
    }

    /// The one that makes the word at `at` what an update expects.
    fn take(&mut self, at: RemoteAddr, expected: u64) -> Option<Swap> {
        let is_it = |swap: &Option<Swap>| swap.is_some_and(|s| s.at == at && s.new == expected);
        let place = self.first.iter().position(is_it)?;
        let taken = self.first[place].take();
        self.first[place..].rotate_left(1);
        self.len -= 1;
        self.found -= usize::from(place < self.found);
        taken
    }

    fn is_full(&self) -> bool {
        self.len == TOGETHER
    }

    /// The place of the last one.
    fn last(&self) -> Option<RemoteAddr> {
        self.iter().last().map(|swap| swap.at)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Swap> {
        self.first.into_iter().flatten()
    }
}

/// What is to be committed.
#[derive(Default)]
pub(super) struct Commits {
    waiting: Swaps,
    /// Where the last one of those was swapped that were posted without anything behind them that
    /// is waited for.
    unheard: Option<RemoteAddr>,
    /// When the last update began.
    last_at: Option<Instant>,
    /// Something has come to wait since the last look.
    is_new: bool,
    quiet_looks: u32,
    /// The reactor looks.
    is_watched: bool,
    /// There is none: they may wait for ever, as those of a client that has stopped.
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

    /// One more waits; if others have not been taken along in time, they are to be posted now.
    fn wait(&mut self, swap: Swap) -> Swaps {
        self.is_new = true;
        if self.waiting.push(swap) {
            return Swaps::default();
        }
        let before = std::mem::take(&mut self.waiting);
        self.waiting.push(swap);
        before
    }

    /// For an update that expects `expected` of the word at `at`: what it takes along, and what
    /// the word is if the one that would make it that has been waiting, and waits no more.
    fn join(&mut self, at: RemoteAddr, expected: u64) -> (Swaps, u64) {
        let word = self.waiting.take(at, expected).map_or(expected, |swap| swap.expected);
        match self.waiting.is_full() {
            true => (std::mem::take(&mut self.waiting), word),
            false => (Swaps::default(), word),
        }
    }

    /// What the reactor has to post now, and whether it has to look again. The oldest one decides:
    /// others may come and go at each look.
    fn look(&mut self) -> (Swaps, bool) {
        self.quiet_looks = if std::mem::take(&mut self.is_new) { 0 } else { self.quiet_looks + 1 };
        self.is_watched &= self.quiet_looks < QUIET_LOOKS;
        if self.waiting.found > 0 {
            return (std::mem::take(&mut self.waiting), self.is_watched);
        }
        self.waiting.found = self.waiting.len;
        (Swaps::default(), self.is_watched)
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
            return self.commit_at_once(swap);
        }
        let before = commits.wait(swap);
        let is_watched = std::mem::replace(&mut commits.is_watched, true);
        self.post_commits(&mut commits, before);
        drop(commits);
        if !is_watched {
            ticker.kick();
        }
    }

    /// As [`Self::commit`], now.
    pub(crate) fn commit_at_once(&self, swap: Swap) {
        let mut commits = self.commits.lock();
        commits.unheard = Some(swap.at);
        self.swap_unheard(swap);
    }

    fn post_commits(&self, commits: &mut Commits, swaps: Swaps) {
        commits.unheard = swaps.last().or(commits.unheard);
        self.swap_all_unheard(swaps);
    }

    /// For an update that expects `expected` of the word at `at`: what it takes along and posts
    /// before, or leaves to the server, which commits what a client has not; and what the word is
    /// as far as this client knows, which has linked the entry itself and need not commit it.
    pub(crate) fn take_commits(&self, at: RemoteAddr, expected: u64) -> (Swaps, u64) {
        self.commits.lock().join(at, expected)
    }

    /// Posts what waits to be committed, so that what is posted behind it finds it done.
    pub(crate) fn commit_now(&self) {
        let mut commits = self.commits.lock();
        let waiting = std::mem::take(&mut commits.waiting);
        // Locked until it is posted: who retires memory waits for operations, and this may be
        // outside of one. Nothing is ever taken out and not posted yet when the lock is free.
        self.post_commits(&mut commits, waiting);
    }

    /// As [`Self::commit_now`], and behind all that was posted to commit something, if nothing is
    /// that is waited for, a READ: when it has completed, all of that has. `false`: it could not
    /// be posted just now.
    pub(crate) fn commit_and_read_behind(&self) -> bool {
        self.commit_now();
        let mut commits = self.commits.lock();
        let Some(at) = commits.unheard else { return true };
        if !self.is_alive() || self.read_unheard(at) {
            commits.unheard = None;
        }
        commits.unheard.is_none()
    }

    /// For the reactor, and simulations, which have none: when to look again, as long as that is to
    /// be expected of it.
    pub fn look_after_commits(&self) -> Option<Duration> {
        let mut commits = self.commits.lock();
        if !commits.is_watched {
            return None;
        }
        let (swaps, again) = commits.look();
        // Locked: see above.
        self.post_commits(&mut commits, swaps);
        again.then_some(LOOK_EVERY)
    }

    /// Whether so many wait that the next update takes them along, for simulations.
    pub fn has_commits_for_the_next(&self) -> bool {
        self.commits.lock().waiting.is_full()
    }

    /// For simulations, where nothing is posted by itself: entries are committed with the next
    /// updates, and the last ones never.
    pub fn commit_with_the_next(&self) {
        self.commits.lock().is_alone = true;
    }
}

#[cfg(test)]
mod posting;

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

    fn news(swaps: Swaps) -> Vec<u64> {
        swaps.iter().map(|swap| swap.new).collect()
    }

    #[test]
    fn what_is_found_twice_is_posted_and_looking_ends() {
        let mut commits = Commits { is_watched: true, ..Commits::default() };
        let found = |(swaps, again)| (news(swaps), again);
        commits.wait(swap(2));
        commits.wait(swap(3));
        assert_eq!(found(commits.look()), (vec![], true), "they have just come");
        assert_eq!(found(commits.look()), (vec![2, 3], true));
        commits.wait(swap(4));
        assert_eq!(found(commits.look()), (vec![], true));
        let looks = (0..QUIET_LOOKS).map(|_| found(commits.look())).collect::<Vec<_>>();
        assert_eq!(looks[0], (vec![4], true));
        assert_eq!(looks.iter().filter(|look| !look.1).count(), 1);
        assert!(!commits.is_watched);
    }

    #[test]
    fn the_oldest_is_posted_after_two_looks_whatever_comes_and_goes_behind_it() {
        let at = swap(0).at;
        let mut commits = Commits { is_watched: true, ..Commits::default() };
        commits.wait(swap(2));
        let mut posted = Vec::new();
        // Another key's entry is replaced all the time, by updates that take its commit along.
        for n in 3..7 {
            commits.wait(swap(n));
            let (swaps, again) = commits.look();
            assert!(again);
            posted.push(news(swaps));
            commits.join(at, n);
        }
        assert_eq!(posted, [vec![], vec![2, 4], vec![], vec![]]);
    }

    #[test]
    fn an_update_does_without_what_it_replaces_and_takes_others_along_when_they_are_enough() {
        let at = swap(0).at;
        let mut commits = Commits::default();
        let joined = |(swaps, word)| (news(swaps), word);
        (1..4).for_each(|n| assert!(news(commits.wait(swap(n))).is_empty()));
        assert_eq!(joined(commits.join(at, 9)), (vec![], 9), "too few");
        assert_eq!(joined(commits.join(at, 2)), (vec![], 1), "as it was before");
        assert_eq!(joined(commits.join(at, 2)), (vec![], 2), "once");
        (4..6).for_each(|n| assert!(news(commits.wait(swap(n))).is_empty()));
        assert_eq!(joined(commits.join(at, 9)), (vec![1, 3, 4, 5], 9));
        (6..10).for_each(|n| assert!(news(commits.wait(swap(n))).is_empty()));
        assert_eq!(joined(commits.join(at, 8)), (vec![], 1));
        commits.wait(swap(10));
        assert_eq!(news(commits.wait(swap(11))), [6, 7, 9, 10], "nobody took them along");
        assert_eq!(news(commits.waiting), [11]);
    }
}
