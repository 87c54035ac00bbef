//! Sessions: who is connected, how long for, and what each has been answered.
//!
//! A session outlives its connections for its lease. Its id increases and is never reused. Memory
//! that its operations may still look at waits for what it acknowledges, or for its end.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use onesided_fabric::PeerProcess;
use onesided_protocol::control::{Retired, TableCounts};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::metrics::reported::Allowance;
use crate::tenant::Tenant;

mod admission;
mod answers;
mod orphans;
mod registry;
mod ticket;

pub(crate) use admission::{FabricGate, Gate};
pub(crate) use answers::{ANSWER_KEPT_MAX_BYTES, Answers, Seen};
pub(crate) use registry::{Limits, NotAdmitted, Sessions};

/// Value of [`Session::control`] when the session is over.
const ENDED: u64 = 0;

/// One client's session.
#[derive(Debug)]
pub(crate) struct Session {
    /// Never reused.
    pub(crate) id: u64,
    /// What it is resumed with.
    pub(crate) resume_key: u64,
    /// Whose client it is: it sees nothing of any other's.
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) opened: Instant,
    /// Where its last control connection came from; `None` if the system does not say.
    peer: Mutex<Option<SocketAddr>>,
    life: Mutex<Life>,
    /// Number of the control connection that speaks for it; [`ENDED`] when it is over.
    control: watch::Sender<u64>,
    controls: AtomicU64,
    /// The epoch of its engine that it has acknowledged.
    acknowledged: AtomicU64,
    /// Ids of the tables that it was told how to read; dropped ones are taken out.
    tables: Mutex<BTreeSet<u32>>,
    /// Serialises its mutations: one is looked up, applied and kept under this lock.
    pub(crate) answers: Mutex<Answers>,
    /// The highest number applied, to be told without that lock: a poller may hold it for as long
    /// as a batch takes, and whoever answers hellos answers everybody's heartbeats.
    pub(crate) applied: AtomicU64,
    /// Processes that may write its leases until they end.
    writers: Mutex<Vec<PeerProcess>>,
    /// It knows where cells of counters are.
    may_add: AtomicBool,
    /// A process that the server cannot watch does.
    has_unseen: AtomicBool,
}

/// What a client reported over all tables.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct SessionCounts {
    pub(crate) one_sided_gets: u64,
    pub(crate) rpc_gets: u64,
    reads: u64,
    read_bytes: u64,
    one_sided_puts: u64,
    counter_atomics: u64,
}

impl SessionCounts {
    fn add(&mut self, more: &TableCounts) {
        let hits = self.one_sided_gets.saturating_add(more.one_sided_hits);
        self.one_sided_gets = hits.saturating_add(more.one_sided_misses);
        self.rpc_gets = self.rpc_gets.saturating_add(more.rpc_gets);
        self.reads = self.reads.saturating_add(more.reads);
        self.read_bytes = self.read_bytes.saturating_add(more.read_bytes);
        self.one_sided_puts = self.one_sided_puts.saturating_add(more.one_sided_puts);
        self.counter_atomics = self.counter_atomics.saturating_add(more.counter_atomics);
    }
}

/// A session as operators see it.
#[derive(Debug, Serialize)]
pub(crate) struct SessionStatus {
    pub(crate) id: u64,
    pub(crate) tenant: String,
    /// Where its control connection comes from.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) age_s: f64,
    /// Of its data connections.
    fabrics: Vec<String>,
    /// Whether it has a control connection; if not, it waits for its client to come back.
    controlled: bool,
    /// Tables that it has opened.
    tables: usize,
    pub(crate) client_reported: SessionCounts,
}

impl SessionStatus {
    fn of(session: &Session, fabrics: Vec<String>) -> Self {
        Self {
            id: session.id,
            tenant: session.tenant.name().to_owned(),
            peer: session.peer(),
            age_s: session.opened.elapsed().as_secs_f64(),
            fabrics,
            controlled: !session.is_alone(),
            tables: session.tables.lock().len(),
            client_reported: session.counts(),
        }
    }
}

#[derive(Debug)]
struct Life {
    deadline: Instant,
    allowance: Allowance,
    counts: SessionCounts,
}

impl Session {
    fn new(id: u64, resume_key: u64, tenant: Arc<Tenant>, deadline: Instant) -> Self {
        // It knows of nothing that was retired before.
        let epoch = tenant.engine.epoch();
        let opened = Instant::now();
        let allowance = Allowance::new(opened);
        Self {
            opened,
            peer: Mutex::default(),
            id,
            resume_key,
            tenant,
            life: Mutex::new(Life { deadline, allowance, counts: SessionCounts::default() }),
            control: watch::Sender::new(1),
            controls: AtomicU64::new(1),
            acknowledged: AtomicU64::new(epoch),
            tables: Mutex::default(),
            answers: Mutex::default(),
            applied: AtomicU64::new(0),
            writers: Mutex::default(),
            may_add: AtomicBool::new(false),
            has_unseen: AtomicBool::new(false),
        }
    }

    /// Makes the caller the control connection of the session; an earlier one is told to end.
    pub(crate) fn take_control(&self, peer: Option<SocketAddr>) -> Control {
        *self.peer.lock() = peer;
        let number = self.controls.fetch_add(1, Ordering::Relaxed) + 1;
        self.control.send_if_modified(|control| {
            let live = *control != ENDED;
            if live {
                *control = number;
            }
            live
        });
        Control { number, changes: self.control.subscribe() }
    }

    /// Where its client is, for people.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        *self.peer.lock()
    }

    /// It is told how to read a table.
    pub(crate) fn note_table(&self, id: u32) {
        self.tables.lock().insert(id);
    }

    /// Whether it was told how to read a table.
    pub(crate) fn knows_table(&self, id: u32) -> bool {
        self.tables.lock().contains(&id)
    }

    /// What its engine retired and it has not acknowledged, and up to which epoch that is all.
    pub(crate) fn retired(&self) -> (u64, Vec<Retired>) {
        self.tenant.engine.retired_after(self.acknowledged())
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Whether that is news.
    fn acknowledge(&self, epoch: u64) -> bool {
        // Nothing that was not told yet can have been acknowledged, whatever the client says.
        let epoch = epoch.min(self.tenant.engine.epoch());
        self.acknowledged.fetch_max(epoch, Ordering::AcqRel) < epoch
    }

    /// This process may write what the session leases, until it ends.
    pub(crate) fn note_writer(&self, process: Option<PeerProcess>) {
        let Some(process) = process else { return };
        let mut writers = self.writers.lock();
        writers.retain(|other| !other.has_ended());
        if writers.iter().all(|other| other.pid() != process.pid()) {
            writers.push(process);
        }
    }

    /// Its client is told where cells of counters are. This process may add to them until it ends,
    /// as far as the server can know.
    pub(crate) fn note_adder(&self, process: std::io::Result<Option<PeerProcess>>) {
        self.may_add.store(true, Ordering::Release);
        match process {
            Ok(process) => self.note_writer(process),
            Err(_) => self.has_unseen.store(true, Ordering::Release),
        }
    }

    /// Whether somebody may still write what it leases, now that its endpoints are closed.
    pub(super) fn has_writers(&self) -> bool {
        self.writers.lock().iter().any(|process| !process.has_ended())
    }

    /// Whether somebody may still add to cells, now that its endpoints are closed.
    pub(super) fn has_adders(&self) -> bool {
        let may_add = self.may_add.load(Ordering::Acquire);
        may_add && (self.has_unseen.load(Ordering::Acquire) || self.has_writers())
    }

    /// Whether this one, which is over, holds what the other one does, as long as that does.
    fn holds_as_long_as(&self, other: &Self) -> bool {
        let has_unseen = |session: &Self| session.has_unseen.load(Ordering::Acquire);
        let has = |process: &PeerProcess| {
            self.writers.lock().iter().any(|own| own.pid() == process.pid() && !own.has_ended())
        };
        Arc::ptr_eq(&self.tenant, &other.tenant)
            && self.acknowledged() <= other.acknowledged()
            && (has_unseen(self) || !has_unseen(other) && other.writers.lock().iter().all(has))
    }

    /// Whether no control connection speaks for it.
    fn is_alone(&self) -> bool {
        self.control.receiver_count() == 0
    }

    fn extend(&self, deadline: Instant) {
        let mut life = self.life.lock();
        life.deadline = life.deadline.max(deadline);
    }

    fn deadline(&self) -> Instant {
        self.life.lock().deadline
    }

    /// Cuts what the client claims to have counted to what is possible, and adds it to what it
    /// has reported. Says whether it was cut.
    pub(crate) fn note_counts(&self, claim: &mut TableCounts) -> bool {
        let mut life = self.life.lock();
        let cut = life.allowance.cut(claim, Instant::now());
        life.counts.add(claim);
        cut
    }

    /// What its client has reported.
    pub(crate) fn counts(&self) -> SessionCounts {
        self.life.lock().counts
    }

    fn end(&self) {
        self.control.send_replace(ENDED);
        self.answers.lock().end();
    }
}

/// The right to speak for a session.
#[derive(Debug)]
pub(crate) struct Control {
    number: u64,
    changes: watch::Receiver<u64>,
}

/// Why a control connection has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// The lease is over, or the session was ended otherwise.
    Ended,
    /// The session was resumed on another connection.
    Superseded,
}

impl Control {
    /// Waits until the connection no longer speaks for the session.
    pub(crate) async fn lost(&mut self) -> Lost {
        let number = self.number;
        match self.changes.wait_for(|control| *control != number).await {
            Ok(control) if *control != ENDED => Lost::Superseded,
            _ => Lost::Ended,
        }
    }
}
