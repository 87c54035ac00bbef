//! A client's way to its server: the current connection, and how calls outlive it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use onesided_fabric::FabricKind;
use onesided_protocol::control::{Retired, TableStatus, ToClient, ToServer};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{Notify, oneshot};

use crate::accesses::{Accesses, Counted};
use crate::core::{Connection, Deadline, Shared, TimedOut};
use crate::error::Error;
use crate::table::OpenTable;
use crate::url::Url;

/// Administrative requests that may wait.
const JOBS_MAX: usize = 1024;

/// How often a client that says goodbye looks whether its last operations are over.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Tables that are gone and whose reads wait to be told.
const LEFT_TO_TELL_MAX: usize = 64;

/// What is left of something that nobody waits for any more.
pub(crate) type Rest = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A request for the control connection.
pub(crate) struct Job {
    pub(crate) message: ToServer,
    pub(crate) by: Deadline,
    pub(crate) answer: oneshot::Sender<Result<(ToClient, Arc<Connection>), Error>>,
    /// Set by who comes first: who sends it, or who asked and has given up.
    decided: Arc<AtomicBool>,
}

impl Job {
    /// Whether the answer is of use only with a connection.
    fn needs_connection(&self) -> bool {
        matches!(self.message, ToServer::OpenTable { .. })
    }

    /// Takes it, to be sent; false if who asked was told that nothing will be done.
    fn claim(&self) -> bool {
        self.may_repeat() || !self.decided.swap(true, Ordering::AcqRel)
    }

    /// Whether asking twice does no harm.
    pub(crate) fn may_repeat(&self) -> bool {
        matches!(
            self.message,
            ToServer::OpenTable { .. } | ToServer::ListTables | ToServer::Stats | ToServer::Ticket
        )
    }
}

/// A client's way to its server.
pub(crate) struct Link {
    shared: Arc<Shared>,
    url: Option<Url>,
    current: ArcSwapOption<Connection>,
    kind: FabricKind,
    /// Set when there will be no connection any more.
    closed: Mutex<Option<String>>,
    changed: Notify,
    jobs: Mutex<VecDeque<Job>>,
    /// Somebody waits for a connection.
    wanted: AtomicBool,
    /// What the server is told of reads; of tables that are gone until then.
    accesses: Mutex<Vec<Weak<Accesses>>>,
    /// What operations look at; of tables that are gone until the next is opened.
    open: Mutex<Vec<Weak<OpenTable>>>,
    /// And of those of tables that are gone by now.
    left_to_tell: Mutex<Vec<Counted>>,
    /// Of the server, as far as is known: tables that were opened before may have other options.
    catalog_epoch: AtomicU64,
    /// Much is to be told.
    tell: AtomicBool,
    /// What the reactor is to end.
    left: Mutex<Vec<Rest>>,
    /// Wakes the control thread.
    bell: OwnedFd,
    shut_down: AtomicBool,
    /// The control thread has ended.
    ended: Mutex<bool>,
    end: Condvar,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Link {
    /// A link over a connection; without a URL it ends with it.
    pub(crate) fn new(
        url: Option<Url>,
        shared: Arc<Shared>,
        connection: Arc<Connection>,
    ) -> Result<Arc<Self>, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::System { what: "an event descriptor", source: error.into() })?;
        let kind = connection.caps().kind;
        let link = Arc::new(Self {
            shared,
            url,
            current: ArcSwapOption::empty(),
            kind,
            closed: Mutex::new(None),
            changed: Notify::new(),
            jobs: Mutex::default(),
            wanted: AtomicBool::new(false),
            accesses: Mutex::default(),
            open: Mutex::default(),
            left_to_tell: Mutex::default(),
            catalog_epoch: AtomicU64::new(connection.welcome().catalog_epoch),
            tell: AtomicBool::new(false),
            left: Mutex::default(),
            bell,
            shut_down: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        link.install(connection);
        Ok(link)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn url(&self) -> Option<&Url> {
        self.url.as_ref()
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// The newest connection, alive or not.
    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        self.current.load_full()
    }

    /// Fabric of the newest connection.
    pub(crate) fn fabric(&self) -> FabricKind {
        self.current.load().as_ref().map_or(self.kind, |connection| connection.caps().kind)
    }

    /// Uses a new connection from now on.
    pub(crate) fn install(self: &Arc<Self>, connection: Arc<Connection>) {
        let link = Arc::downgrade(self);
        connection.set_on_lost(move || {
            if let Some(link) = link.upgrade() {
                link.on_lost();
            }
        });
        self.current.store(Some(connection));
        self.changed.notify_waiters();
    }

    fn on_lost(&self) {
        if !self.reconnects() {
            let reason = self.current().map(|lost| lost.lost_reason().to_owned());
            self.close(&reason.unwrap_or_default());
        }
        self.ring();
    }

    /// Whether there may be another connection after this one.
    pub(crate) fn reconnects(&self) -> bool {
        self.shared.options.reconnect
    }

    /// No connection any more: whoever waits for one ends.
    pub(crate) fn close(&self, reason: &str) {
        self.closed.lock().get_or_insert_with(|| reason.to_owned());
        self.changed.notify_waiters();
        self.fail_jobs();
    }

    fn fail_jobs(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        for job in jobs {
            // Whoever asked may be gone.
            let _gone = job.answer.send(Err(self.closed_error()));
        }
    }

    fn closed_error(&self) -> Error {
        match &*self.closed.lock() {
            _ if self.is_shut_down() => Error::Closed,
            Some(reason) => Error::ConnectionLost(reason.clone()),
            None => Error::ConnectionLost("there is no connection".to_owned()),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.lock().is_some()
    }

    /// Ends the link and its threads.
    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.close("the client was closed");
        self.ring();
        self.shared.ticker.kick();
        if let Some(connection) = self.current() {
            connection.completions().wake();
        }
    }

    /// The control thread says that it ends.
    pub(crate) fn note_end(&self) {
        *self.ended.lock() = true;
        self.end.notify_all();
    }

    /// Waits for the end of the control thread, no longer than `timeout`.
    pub(crate) fn wait_for_end(&self, timeout: Duration) {
        let mut ended = self.ended.lock();
        let _in_time = self.end.wait_while_for(&mut ended, |ended| !*ended, timeout);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Lets the reactor go on with something to its end; nobody does where there is none.
    pub(crate) fn leave(&self, rest: Rest) {
        let mut left = self.left.lock();
        // Either this sees the end, or the reactor sees this.
        if self.shared.ticker.has_thread() && !self.is_shut_down() {
            left.push(rest);
            self.shared.ticker.kick();
        }
    }

    /// For the reactor: goes on with what was left to it. Whether there is more to do.
    pub(crate) fn go_on_with_what_is_left(&self) -> bool {
        let mut left = std::mem::take(&mut *self.left.lock());
        // What they wait for keeps the reactor awake: it looks at them at each of its turns.
        let mut cx = Context::from_waker(Waker::noop());
        left.retain_mut(|rest| rest.as_mut().poll(&mut cx).is_pending());
        let is_more = !left.is_empty();
        self.left.lock().append(&mut left);
        is_more
    }

    /// The reactor ends, and with it all that is left: it may hold this link.
    pub(crate) fn forget_what_is_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        drop(left);
    }

    /// A connection that is not known to be lost, as soon as there is one.
    pub(crate) async fn connection(&self, by: Deadline) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.alive() {
            return Ok(connection);
        }
        match self.shared.ticker.timed(by, self.wait_for_connection()).await {
            Ok(found) => found,
            Err(TimedOut) => Err(match self.current() {
                Some(lost) => lost.lost_error(),
                None => self.closed_error(),
            }),
        }
    }

    fn alive(&self) -> Option<Arc<Connection>> {
        self.current().filter(|connection| connection.is_alive())
    }

    async fn wait_for_connection(&self) -> Result<Arc<Connection>, Error> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no notification is missed.
            changed.as_mut().enable();
            if let Some(connection) = self.alive() {
                return Ok(connection);
            }
            if self.is_closed() {
                return Err(self.closed_error());
            }
            self.wanted.store(true, Ordering::Release);
            self.ring();
            changed.await;
        }
    }

    /// Closes the connection until [`Self::is_wanted`]: nobody uses it.
    pub(crate) fn rest(&self, connection: &Connection) {
        // Before it is closed: who wants one from then on says so.
        self.wanted.store(false, Ordering::Release);
        connection.mark_lost("it was closed since nobody used it");
    }

    /// Whether somebody wants a connection since the last one was closed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire) || self.jobs.lock().iter().any(Job::needs_connection)
    }

    /// Asks over the control connection; waits for one if need be. Returns the connection that
    /// the answer belongs to.
    pub(crate) async fn ask(
        &self,
        message: ToServer,
        by: Deadline,
    ) -> Result<(ToClient, Arc<Connection>), Error> {
        let (answer, answered) = oneshot::channel();
        let decided = Arc::new(AtomicBool::new(false));
        {
            let mut jobs = self.jobs.lock();
            if jobs.len() >= JOBS_MAX {
                return Err(Error::TooLarge(format!(
                    "{JOBS_MAX} administrative requests wait already; send fewer at a time"
                )));
            }
            jobs.push_back(Job { message, by, answer, decided: Arc::clone(&decided) });
        }
        if self.is_closed() {
            self.fail_jobs();
        }
        self.ring();
        match self.shared.ticker.timed(by, answered).await {
            Ok(Ok(answer)) => match answer? {
                (ToClient::Failed(error), _) => Err(Error::of_call(by.what, error)),
                answer => Ok(answer),
            },
            Ok(Err(_dropped)) if self.is_closed() => Err(self.closed_error()),
            // Its time was over before it could be sent.
            Ok(Err(_dropped)) => Err(Error::TimedOut { what: by.what, after: by.after }),
            Err(TimedOut) if decided.swap(true, Ordering::AcqRel) => {
                let reason = format!("it was sent, and there was no answer in {:?}", by.after);
                Err(Error::OutcomeUnknown { what: by.what, reason })
            }
            Err(TimedOut) if self.alive().is_none() => match self.current() {
                Some(lost) => Err(lost.lost_error()),
                None => Err(self.closed_error()),
            },
            Err(TimedOut) => Err(Error::TimedOut { what: by.what, after: by.after }),
        }
    }

    /// The next one to be sent.
    pub(crate) fn next_job(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            let job = jobs.pop_front()?;
            if !job.answer.is_closed() && !job.by.is_over() && job.claim() {
                return Some(job);
            }
        }
    }

    pub(crate) fn put_back(&self, job: Job) {
        self.jobs.lock().push_front(job);
        if self.is_closed() {
            self.fail_jobs();
        }
    }

    /// Operations look at a table by this from now on.
    pub(crate) fn opened(&self, table: &Arc<OpenTable>) {
        let mut open = self.open.lock();
        open.retain(|table| table.strong_count() > 0);
        open.push(Arc::downgrade(table));
    }

    fn open_now(&self) -> Vec<Arc<OpenTable>> {
        self.open.lock().iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn catalog_epoch(&self) -> u64 {
        self.catalog_epoch.load(Ordering::Acquire)
    }

    /// The server's catalog is of this epoch. Whether the options of tables that PUTs without the
    /// server go by may have changed.
    pub(crate) fn note_catalog(&self, epoch: u64) -> bool {
        // Before it is looked for tables: one that is opened meanwhile sees it.
        let is_new = self.catalog_epoch.swap(epoch, Ordering::AcqRel) != epoch;
        is_new && self.open_now().iter().any(|table| table.updates.is_some())
    }

    /// These are all tables, and their options.
    pub(crate) fn learn(&self, tables: &[TableStatus]) {
        let open = self.open_now();
        let learn = |table: &TableStatus| {
            open.iter().for_each(|open| open.learn(table.id, &table.options));
        };
        tables.iter().for_each(learn);
    }

    /// No operation that begins from now on looks at what was retired up to this epoch. Whether one
    /// did until now.
    pub(crate) fn forget(&self, retired: &[Retired], epoch: u64) -> bool {
        let open: Vec<_> = self.open.lock().iter().filter_map(Weak::upgrade).collect();
        let of_table = |retired| open.iter().filter(|table| table.forget(retired, epoch)).count();
        retired.iter().map(|&retired| of_table(retired)).sum::<usize>() > 0
    }

    /// Nothing is written any more into what the server has leased, nor added to its counters, when
    /// this returns; `false`: some operation is still under way that may.
    pub(crate) fn stop_writing(&self, by: Instant) -> bool {
        let open: Vec<_> = self.open.lock().iter().filter_map(Weak::upgrade).collect();
        open.iter().filter_map(|table| table.updates.as_ref()).for_each(|u| u.extents.close());
        open.iter().for_each(|table| table.mark_stale());
        let mut under_way = self.shared.operations.under_way(&self.shared.stats);
        while !under_way.is_over() || !under_way.fenced {
            if Instant::now() >= by {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// The control thread tells the server of these from now on.
    pub(crate) fn tells(&self, accesses: &Arc<Accesses>) {
        self.accesses.lock().push(Arc::downgrade(accesses));
    }

    /// With the next heartbeat; if the server hears of none for long, not at all.
    pub(crate) fn tell_later(&self, counted: Counted) {
        let mut left = self.left_to_tell.lock();
        if let Some(same) = left.iter_mut().find(|other| other.table == counted.table) {
            same.counts.add(&counted.counts);
        } else if left.len() < LEFT_TO_TELL_MAX {
            left.push(counted);
        }
    }

    /// What was counted since the last time, if the server is to be told.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        if !self.shared.options.report_reads {
            return Vec::new();
        }
        let live = self.accesses();
        let mut counted = std::mem::take(&mut *self.left_to_tell.lock());
        counted.extend(live.iter().filter_map(|accesses| accesses.counted()));
        counted
    }

    /// Not with the next heartbeat, but now.
    pub(crate) fn tell_soon(&self) {
        self.tell.store(true, Ordering::Release);
        self.ring();
    }

    pub(crate) fn is_to_tell(&self) -> bool {
        self.tell.load(Ordering::Acquire)
    }

    /// All that there is to tell of.
    pub(crate) fn accesses(&self) -> Vec<Arc<Accesses>> {
        self.tell.store(false, Ordering::Release);
        let mut accesses = self.accesses.lock();
        accesses.retain(|accesses| accesses.strong_count() > 0);
        accesses.iter().filter_map(Weak::upgrade).collect()
    }

    /// Wakes the control thread.
    fn ring(&self) {
        // It fails only if the counter is full: then the thread is being woken already.
        let _full = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Options;
    use crate::core::fake;

    fn link() -> Arc<Link> {
        let options = Options { reconnect: false, ..Options::default() };
        let connection = fake::connection(options, |_, _| Ok(()));
        Link::new(None, Arc::clone(connection.shared()), connection).expect("one more descriptor")
    }

    /// As [`Link::ask`] does, with what it looks at when its time is over.
    fn asks(link: &Link, message: ToServer) -> (Arc<AtomicBool>, impl Sized) {
        let (answer, answered) = oneshot::channel();
        let decided = Arc::new(AtomicBool::new(false));
        let by = Deadline::after("test", Duration::from_secs(3_600));
        link.jobs.lock().push_back(Job { message, by, answer, decided: Arc::clone(&decided) });
        (decided, answered)
    }

    fn drop_table(name: &str) -> ToServer {
        ToServer::DropTable { name: name.to_owned() }
    }

    /// Whoever asked and whoever sends meet at the last moment.
    #[test]
    fn a_request_is_sent_or_given_up_and_never_both() {
        let link = link();
        let (given_up, _waits) = asks(&link, drop_table("given up"));
        let (sent, _waits_too) = asks(&link, drop_table("sent"));
        assert!(!given_up.swap(true, Ordering::AcqRel), "its asker says that nothing is done");
        let job = link.next_job().expect("the other one");
        assert_eq!(job.message, drop_table("sent"));
        assert!(sent.swap(true, Ordering::AcqRel), "its asker says that nobody knows");
        assert!(link.next_job().is_none());
    }

    #[test]
    fn what_may_be_asked_twice_is_sent_again() {
        let link = link();
        let (_decided, _waits) = asks(&link, ToServer::ListTables);
        for _ in 0..2 {
            let job = link.next_job().expect("it was put back");
            link.put_back(job);
        }
    }
}
