//! Leases of sessions that are over: they come back when nobody can write them any more.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Session, Sessions};
use crate::stats::Ended;

/// Sessions that are over and whose process is not.
#[derive(Default)]
pub(super) struct Orphans {
    sessions: Mutex<Vec<Arc<Session>>>,
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

    /// Takes back what the processes that have ended meanwhile had leased.
    pub(crate) fn tend_orphans(&self) {
        let ended: Vec<_> = {
            let mut sessions = self.orphans.sessions.lock();
            sessions.extract_if(.., |session| !session.has_writers()).collect()
        };
        for session in ended {
            session.tenant.engine.take_back(session.id);
        }
    }
}
