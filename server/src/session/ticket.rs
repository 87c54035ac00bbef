//! Tickets: random, used once, void after a while, few per session.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use onesided_protocol::limits::TICKET_BYTES;
use rand::RngCore;

/// Unused tickets of one session; the oldest is void when there are more.
const PER_SESSION_MAX: usize = 8;
/// Unused tickets of sessions that are over, of all of them; the oldest is unknown when there are
/// more.
const OVER_MAX: usize = 1024;

/// What a ticket is.
pub(crate) type Ticket = [u8; TICKET_BYTES];

/// What came of showing a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Redeemed {
    /// It was good, for this session.
    For(u64),
    /// It was good until its session ended: a client that lived shortly, and whose data connection
    /// was read after its goodbye.
    Over,
    /// It was never given, was used before, or is too old.
    Bad,
}

#[derive(Debug, Default)]
pub(super) struct Tickets {
    issued: HashMap<Ticket, (u64, Instant)>,
    by_session: HashMap<u64, VecDeque<Ticket>>,
    /// Of sessions that are over.
    over: VecDeque<(Ticket, Instant)>,
}

impl Tickets {
    /// A new ticket for `session`, good until `deadline`.
    pub(super) fn issue(&mut self, session: u64, deadline: Instant) -> Ticket {
        let mut ticket = [0; TICKET_BYTES];
        rand::rng().fill_bytes(&mut ticket);
        let own = self.by_session.entry(session).or_default();
        if own.len() >= PER_SESSION_MAX
            && let Some(oldest) = own.pop_front()
        {
            self.issued.remove(&oldest);
        }
        own.push_back(ticket);
        self.issued.insert(ticket, (session, deadline));
        ticket
    }

    /// Uses a ticket up.
    pub(super) fn redeem(&mut self, ticket: &Ticket, now: Instant) -> Redeemed {
        let Some((session, deadline)) = self.issued.remove(ticket) else {
            return self.redeem_over(ticket, now);
        };
        if let Some(own) = self.by_session.get_mut(&session) {
            own.retain(|other| other != ticket);
            if own.is_empty() {
                self.by_session.remove(&session);
            }
        }
        if now < deadline { Redeemed::For(session) } else { Redeemed::Bad }
    }

    fn redeem_over(&mut self, ticket: &Ticket, now: Instant) -> Redeemed {
        let found = self.over.iter().position(|(other, _)| other == ticket);
        match found.and_then(|at| self.over.remove(at)) {
            Some((_, deadline)) if now < deadline => Redeemed::Over,
            _ => Redeemed::Bad,
        }
    }

    /// Voids all of a session, which is over.
    pub(super) fn forget(&mut self, session: u64) {
        for ticket in self.by_session.remove(&session).unwrap_or_default() {
            let Some((_, deadline)) = self.issued.remove(&ticket) else { continue };
            if self.over.len() >= OVER_MAX {
                self.over.pop_front();
            }
            self.over.push_back((ticket, deadline));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn once_in_time_and_few() {
        let mut tickets = Tickets::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(10);
        let first = tickets.issue(7, later);
        assert_eq!(tickets.redeem(&first, now), Redeemed::For(7));
        assert_eq!(tickets.redeem(&first, now), Redeemed::Bad);
        let late = tickets.issue(7, later);
        assert_eq!(tickets.redeem(&late, later), Redeemed::Bad);
        let oldest = tickets.issue(7, later);
        for _ in 0..PER_SESSION_MAX {
            tickets.issue(7, later);
        }
        assert_eq!(tickets.redeem(&oldest, now), Redeemed::Bad);
        assert_eq!(tickets.issued.len(), PER_SESSION_MAX);
        tickets.forget(7);
        assert!(tickets.issued.is_empty() && tickets.by_session.is_empty());
    }
    #[test]
    fn those_of_a_session_that_is_over_are_told_from_bad_ones() {
        let mut tickets = Tickets::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(10);
        let [used, unused, late] = [(); 3].map(|()| tickets.issue(7, later));
        tickets.redeem(&used, now);
        tickets.forget(7);
        assert_eq!(tickets.redeem(&used, now), Redeemed::Bad);
        assert_eq!(tickets.redeem(&unused, now), Redeemed::Over);
        assert_eq!(tickets.redeem(&unused, now), Redeemed::Bad, "once");
        assert_eq!(tickets.redeem(&late, later), Redeemed::Bad);
        let first = tickets.issue(0, later);
        tickets.forget(0);
        for session in 1..=OVER_MAX as u64 {
            tickets.issue(session, later);
            tickets.forget(session);
        }
        assert_eq!(tickets.over.len(), OVER_MAX);
        assert_eq!(tickets.redeem(&first, now), Redeemed::Bad);
    }
}
