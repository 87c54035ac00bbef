//! What sessions that are over hold: leases and cells of counters come back when nobody can write
//! them any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Session, Sessions};
use crate::stats::Ended;
use crate::tenant::Tenant;

/// Sessions that are over and whose process is not.
#[derive(Default)]
pub(super) struct Orphans {
    /// That hold leases.
    sessions: Mutex<Vec<Arc<Session>>>,
    /// That know where cells of counters are.
    adders: Mutex<Vec<Arc<Session>>>,
}

impl Orphans {
    /// The session is going to be over, and may go on to add to cells that it knows: those wait for
    /// its process. One of those of a process that know as much is enough.
    pub(super) fn hold_cells(&self, session: &Arc<Session>, why: Ended) {
        if why == Ended::Goodbye || !session.has_adders() {
            return;
        }
        let mut adders = self.adders.lock();
        if !adders.iter().any(|adder| adder.holds_as_long_as(session)) {
            adders.push(Arc::clone(session));
        }
    }

    /// What those have acknowledged, by their ids.
    pub(super) fn adders(&self, tenant: &Arc<Tenant>) -> BTreeMap<u64, u64> {
        let adders = self.adders.lock();
        let own = adders.iter().filter(|adder| Arc::ptr_eq(&adder.tenant, tenant));
        own.map(|adder| (adder.id, adder.acknowledged())).collect()
    }
}

impl Sessions {
    /// The session is over and its endpoints are closed. Over RDMA nobody can write then what it
    /// had leased; what a process has mapped it can write until it ends, unless it said that it
    /// does not.
    pub(super) fn take_back(&self, session: &Arc<Session>, why: Ended) {
        let engine = &session.tenant.engine;
        if !engine.has_leases(session.id) {
            return;
        }
        if why == Ended::Goodbye || !session.has_writers() {
            engine.take_back(session.id);
        } else {
            self.orphans.sessions.lock().push(Arc::clone(session));
        }
    }

    /// Sessions that are over and hold leases all the same.
    pub(crate) fn orphans(&self) -> usize {
        self.orphans.sessions.lock().len()
    }

    /// Takes back what the processes that have ended meanwhile had leased, or could add to.
    pub(crate) fn tend_orphans(&self) {
        let ended: Vec<_> = {
            let mut sessions = self.orphans.sessions.lock();
            sessions.extract_if(.., |session| !session.has_writers()).collect()
        };
        for session in ended {
            session.tenant.engine.take_back(session.id);
        }
        let ended: Vec<_> =
            self.orphans.adders.lock().extract_if(.., |session| !session.has_adders()).collect();
        ended.iter().for_each(|session| self.reclaim(&session.tenant));
    }
}
