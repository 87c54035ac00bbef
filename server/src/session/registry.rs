//! All sessions, their tickets and their endpoints. Set-up only: the data path holds its session.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::Endpoint;
use onesided_protocol::control::Heartbeat;
use onesided_protocol::rpc::{ErrorCode, RpcError};
use parking_lot::Mutex;

use super::orphans::Orphans;
use super::ticket::{Redeemed, Ticket, Tickets};
use super::{Session, SessionStatus};
use crate::engine::Acknowledged;
use crate::stats::{Ended, Stats};
use crate::tenant::Tenant;

/// Endpoints of one session at once. One is the rule; a client that changes its fabric, or whose
/// connection died without a word, has two for a while.
const ENDPOINTS_PER_SESSION_MAX: usize = 8;

/// Bounds of the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_sessions: usize,
    pub(crate) session_lease: Duration,
    pub(crate) ticket_lease: Duration,
    /// How long a session may take to acknowledge an epoch.
    pub(crate) acknowledge: Duration,
}

/// A session that a hello got.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: Arc<Session>,
    pub(crate) ticket: Ticket,
    pub(crate) resumed: bool,
}

/// Why an endpoint was not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error("unknown, used or expired ticket: ask for a new one")]
    BadTicket,
    /// Nothing is wrong with that.
    #[error("the session of this ticket is over: its client said goodbye, or its lease ended")]
    SessionOver,
    #[error("the session has {ENDPOINTS_PER_SESSION_MAX} connections: close some")]
    TooMany,
}

#[derive(Debug)]
struct Attached {
    session: Arc<Session>,
    admitted: Instant,
    /// `None` until the fabric has connected it.
    endpoint: Option<Arc<dyn Endpoint>>,
}

#[derive(Debug, Default)]
struct Registry {
    sessions: BTreeMap<u64, Arc<Session>>,
    tickets: Tickets,
    /// By context. A context is one endpoint's and is never reused, so that what a dead endpoint
    /// left in a completion queue is nobody else's.
    endpoints: HashMap<u64, Attached>,
    last_session: u64,
    last_context: u64,
}

/// All sessions of a server.
pub(crate) struct Sessions {
    registry: Mutex<Registry>,
    pub(super) limits: Limits,
    pub(super) stats: Arc<Stats>,
    pub(super) orphans: Orphans,
}

impl Sessions {
    pub(crate) fn new(limits: Limits, stats: Arc<Stats>) -> Self {
        Self { registry: Mutex::default(), limits, stats, orphans: Orphans::default() }
    }

    /// The session of a hello: the one to resume if it lives and the key fits, else a new one. When
    /// there is no place for a new one, a session whose client is gone makes room before its lease
    /// is over: clients that end without a word must not keep others out.
    pub(crate) fn open(
        &self,
        tenant: &Arc<Tenant>,
        resume: (u64, u64),
    ) -> Result<Opened, RpcError> {
        let now = Instant::now();
        let mut registry = self.registry.lock();
        let resumes =
            |s: &&Arc<Session>| s.resume_key == resume.1 && Arc::ptr_eq(&s.tenant, tenant);
        let known = registry.sessions.get(&resume.0).filter(resumes);
        if let Some(session) = known.cloned() {
            session.extend(now + self.limits.session_lease);
            self.stats.sessions_resumed.add(1);
            let ticket = registry.tickets.issue(session.id, now + self.limits.ticket_lease);
            let old = registry.endpoints_of(session.id);
            drop(registry);
            // What the client had before is broken, or it would not resume.
            old.iter().for_each(|endpoint| endpoint.close());
            return Ok(Opened { session, ticket, resumed: true });
        }
        if registry.sessions.len() >= self.limits.max_sessions {
            let Some(gone) = registry.longest_gone() else {
                let max = self.limits.max_sessions;
                let text =
                    format!("all {max} sessions are taken: try again later, or raise max_sessions");
                return Err(RpcError::new(ErrorCode::ServerFull, text));
            };
            drop(registry);
            self.end(&gone, Ended::Displaced);
            registry = self.registry.lock();
        }
        registry.last_session += 1;
        let id = registry.last_session;
        // 0 would be a client's "nothing to resume".
        let resume_key = rand::random::<u64>().max(1);
        let session =
            Session::new(id, resume_key, Arc::clone(tenant), now + self.limits.session_lease);
        let session = Arc::new(session);
        registry.sessions.insert(id, Arc::clone(&session));
        self.stats.sessions_opened.add(1);
        let ticket = registry.tickets.issue(id, now + self.limits.ticket_lease);
        Ok(Opened { session, ticket, resumed: false })
    }

    /// One more ticket.
    pub(crate) fn ticket(&self, session: &Session) -> Ticket {
        let deadline = Instant::now() + self.limits.ticket_lease;
        self.registry.lock().tickets.issue(session.id, deadline)
    }

    /// The session's client is there. Whether it has acknowledged a newer epoch: then memory may be
    /// free.
    pub(crate) fn beat(&self, session: &Session, beat: Option<Heartbeat>) -> bool {
        session.extend(Instant::now() + self.limits.session_lease);
        beat.is_some_and(|beat| session.acknowledge(beat.epoch))
    }

    /// Frees what a tenant's engine retired and its sessions cannot look at any more.
    pub(crate) fn reclaim(&self, tenant: &Arc<Tenant>) {
        if !tenant.engine.has_retired() {
            return;
        }
        let registry = self.registry.lock();
        let epoch = tenant.engine.epoch();
        let own = registry.sessions.values().filter(|s| Arc::ptr_eq(&s.tenant, tenant));
        let sessions = own.map(|session| (session.id, session.acknowledged())).collect();
        drop(registry);
        // After the sessions: one that is over is among these before it is not among those.
        let adders = self.orphans.adders(tenant);
        tenant.engine.reclaim(&Acknowledged { epoch, sessions, adders });
    }

    /// The sessions that have not acknowledged for too long what they were told.
    pub(crate) fn behind(&self) -> Vec<Arc<Session>> {
        let all: Vec<_> = self.registry.lock().sessions.values().cloned().collect();
        let limit_ns = self.limits.acknowledge.as_nanos() as u64;
        let is_behind = |session: &Arc<Session>| {
            let engine = &session.tenant.engine;
            let since_ns = engine.waits_for(session.id, session.acknowledged());
            since_ns.is_some_and(|since_ns| engine.clock_ns() >= since_ns + limit_ns)
        };
        all.into_iter().filter(is_behind).collect()
    }

    /// Uses a ticket up; the context of the endpoint to be.
    pub(super) fn admit(&self, ticket: &Ticket) -> Result<u64, NotAdmitted> {
        let now = Instant::now();
        let mut registry = self.registry.lock();
        let session = match registry.tickets.redeem(ticket, now) {
            Redeemed::For(id) => registry.sessions.get(&id).cloned(),
            Redeemed::Over => None,
            Redeemed::Bad => return Err(NotAdmitted::BadTicket),
        };
        let session = session.ok_or(NotAdmitted::SessionOver)?;
        let of_session = |attached: &&Attached| attached.session.id == session.id;
        if registry.endpoints.values().filter(of_session).count() >= ENDPOINTS_PER_SESSION_MAX {
            return Err(NotAdmitted::TooMany);
        }
        registry.last_context += 1;
        let context = registry.last_context;
        registry.endpoints.insert(context, Attached { session, admitted: now, endpoint: None });
        Ok(context)
    }

    /// The fabric has connected an endpoint that was admitted. `None`: its session is over.
    pub(crate) fn connected(
        &self,
        context: u64,
        endpoint: &Arc<dyn Endpoint>,
    ) -> Option<Arc<Session>> {
        let mut registry = self.registry.lock();
        let attached = registry.endpoints.get_mut(&context)?;
        attached.endpoint = Some(Arc::clone(endpoint));
        Some(Arc::clone(&attached.session))
    }

    /// An endpoint is dead, or was never made.
    pub(crate) fn disconnected(&self, context: u64) {
        self.registry.lock().endpoints.remove(&context);
    }

    /// The tenant of an endpoint. `None`: its session is over.
    pub(super) fn tenant_of(&self, context: u64) -> Option<Arc<Tenant>> {
        let registry = self.registry.lock();
        registry.endpoints.get(&context).map(|attached| Arc::clone(&attached.session.tenant))
    }

    /// Ends a session: its endpoints close, its tickets are void, its answers forgotten.
    pub(crate) fn end(&self, session: &Session, why: Ended) {
        let mut registry = self.registry.lock();
        // Its client may have come back since somebody looked.
        if why == Ended::Lease && session.deadline() > Instant::now() {
            return;
        }
        let Some(own) = registry.sessions.get(&session.id) else { return };
        self.orphans.hold_cells(own, why);
        let Some(own) = registry.sessions.remove(&session.id) else { return };
        registry.tickets.forget(session.id);
        let endpoints = registry.endpoints_of(session.id);
        registry.endpoints.retain(|_, attached| attached.session.id != session.id);
        drop(registry);
        session.end();
        endpoints.iter().for_each(|endpoint| endpoint.close());
        self.take_back(&own, why);
        self.stats.session_ended(why);
        if let Some(suppressed) = self.stats.life_log.allow() {
            let SessionStatus { tenant, peer, age_s, client_reported, .. } =
                SessionStatus::of(session, Vec::new());
            tracing::info!(
                session = session.id,
                tenant,
                peer = peer.map(display),
                %why,
                lived_s = age_s,
                one_sided_gets = client_reported.one_sided_gets,
                rpc_gets = client_reported.rpc_gets,
                suppressed,
                "session over"
            );
        }
        // Its endpoints are closed: what it reads from now on fails, or does not count.
        self.reclaim(&session.tenant);
    }

    /// The sessions whose lease is over; endpoints that were admitted and never came are dropped.
    pub(crate) fn expired(&self) -> Vec<Arc<Session>> {
        let now = Instant::now();
        let mut registry = self.registry.lock();
        let never = now.checked_sub(self.limits.ticket_lease);
        registry.endpoints.retain(|_, attached| {
            attached.endpoint.is_some() || never.is_none_or(|never| attached.admitted > never)
        });
        registry.sessions.values().filter(|s| s.deadline() <= now).cloned().collect()
    }

    /// Ends all of them.
    pub(crate) fn end_all(&self, why: Ended) {
        let all: Vec<_> = self.registry.lock().sessions.values().cloned().collect();
        for session in all {
            self.end(&session, why);
        }
    }

    /// A tenant's table is being dropped: the sessions that know it.
    pub(crate) fn forget_table(&self, tenant: &Arc<Tenant>, id: u32) -> Vec<u64> {
        let registry = self.registry.lock();
        let knows = |session: &&Arc<Session>| {
            Arc::ptr_eq(&session.tenant, tenant) && session.tables.lock().remove(&id)
        };
        registry.sessions.values().filter(knows).map(|session| session.id).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.registry.lock().sessions.len()
    }

    /// The sessions with the lowest ids above `after`, at most `limit`.
    pub(crate) fn page(&self, after: u64, limit: usize) -> Vec<SessionStatus> {
        let registry = self.registry.lock();
        let mut fabrics: HashMap<u64, Vec<String>> = HashMap::new();
        for attached in registry.endpoints.values() {
            if let Some(endpoint) = &attached.endpoint {
                let kind = endpoint.caps().kind.to_string();
                fabrics.entry(attached.session.id).or_default().push(kind);
            }
        }
        let page = registry.sessions.range(after.saturating_add(1)..).take(limit);
        page.map(|(id, session)| SessionStatus::of(session, fabrics.remove(id).unwrap_or_default()))
            .collect()
    }
}

impl Registry {
    /// Of the sessions that only wait to be resumed, the one whose client is gone the longest.
    fn longest_gone(&self) -> Option<Arc<Session>> {
        let present: HashSet<u64> = self.endpoints.values().map(|at| at.session.id).collect();
        let gone = |s: &&Arc<Session>| s.is_alone() && !present.contains(&s.id);
        self.sessions.values().filter(gone).min_by_key(|s| s.deadline()).cloned()
    }

    fn endpoints_of(&self, session: u64) -> Vec<Arc<dyn Endpoint>> {
        let own = self.endpoints.values().filter(|attached| attached.session.id == session);
        own.filter_map(|attached| attached.endpoint.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::clock::ServerClock;
    use crate::config::ServerConfig;
    use crate::tenant::Tenants;

    #[test]
    fn who_comes_back_is_not_ended_by_who_looked_before() {
        let tenants = Tenants::start(&ServerConfig::default(), &Arc::new(ServerClock::default()));
        let tenants = tenants.expect("starts");
        let tenant = tenants.of_token("").expect("the only one");
        let lease = |session_lease| Limits {
            max_sessions: 9,
            session_lease,
            ticket_lease: session_lease,
            acknowledge: session_lease,
        };
        let mut sessions = Sessions::new(lease(Duration::ZERO), Arc::default());
        let session = sessions.open(tenant, (0, 0)).expect("a session").session;
        let expired = sessions.expired();
        assert_eq!(expired.len(), 1);

        sessions.limits = lease(Duration::from_secs(60));
        // A poller that applies a mutation keeps no client from coming back.
        let held = session.answers.lock();
        let again = sessions.open(tenant, (session.id, session.resume_key)).expect("it lives");
        assert_eq!(again.session.applied.load(Ordering::Relaxed), 0);
        assert!(again.resumed);
        drop(held);
        sessions.end(&expired[0], Ended::Lease);
        assert_eq!(sessions.len(), 1, "its lease runs again");
        sessions.end(&expired[0], Ended::Goodbye);
        assert_eq!(sessions.len(), 0);
    }
}
