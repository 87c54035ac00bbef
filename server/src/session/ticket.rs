//! Tickets: random, used once, void after a while, few per session.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use onesided_protocol::limits::TICKET_BYTES;
use rand::RngCore;

/// Unused tickets of one session; the oldest is void when there are more.
const PER_SESSION_MAX: usize = 8;

/// What a ticket is.
pub(crate) type Ticket = [u8; TICKET_BYTES];

#[derive(Debug, Default)]
pub(super) struct Tickets {
    issued: HashMap<Ticket, (u64, Instant)>,
    by_session: HashMap<u64, VecDeque<Ticket>>,
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

    /// Uses a ticket up; the session it was for, if it was good.
    pub(super) fn redeem(&mut self, ticket: &Ticket, now: Instant) -> Option<u64> {
        let (session, deadline) = self.issued.remove(ticket)?;
        if let Some(own) = self.by_session.get_mut(&session) {
            own.retain(|other| other != ticket);
            if own.is_empty() {
                self.by_session.remove(&session);
            }
        }
        (now < deadline).then_some(session)
    }

    /// Voids all of a session.
    pub(super) fn forget(&mut self, session: u64) {
        for ticket in self.by_session.remove(&session).unwrap_or_default() {
            self.issued.remove(&ticket);
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
        assert_eq!(tickets.redeem(&first, now), Some(7));
        assert_eq!(tickets.redeem(&first, now), None);
        let late = tickets.issue(7, later);
        assert_eq!(tickets.redeem(&late, later), None);
        let oldest = tickets.issue(7, later);
        for _ in 0..PER_SESSION_MAX {
            tickets.issue(7, later);
        }
        assert_eq!(tickets.redeem(&oldest, now), None);
        assert_eq!(tickets.issued.len(), PER_SESSION_MAX);
        tickets.forget(7);
        assert!(tickets.issued.is_empty() && tickets.by_session.is_empty());
    }
}
