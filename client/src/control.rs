//! The thread of the control connection: heartbeats, administration, reconnecting, closing what is
//! not used, and trying better fabrics.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onesided_fabric::{Caps, FabricKind, Rdma};
use onesided_protocol::control::{FabricOffer, Heartbeat, Retired, ToClient, ToServer};
use onesided_protocol::rpc::RpcError;
use rand::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::accesses::Counted;
use crate::choose::name_of;
use crate::connect::{Established, ask_offers, establish, rewire};
use crate::core::{Connection, Session, TICK};
use crate::error::Error;
use crate::frames::ControlStream;
use crate::link::{Job, Link};
use crate::options::FabricChoice;
use crate::retire::Retirement;
use crate::stats::Counter;
use crate::upkeep::{Idle, Retry};

/// Pause before the first attempt to connect again; doubled after each.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How often is looked whether operations are over that began before something was retired.
const RETIRING_PAUSE: Duration = Duration::from_millis(5);
/// Bound of saying goodbye.
pub(crate) const GOODBYE: Duration = Duration::from_millis(200);

/// Bound of hearing why the server ends the connection: it has been sent by then.
const FAREWELL: Duration = Duration::from_millis(200);

/// Starts it; it ends when the link is shut down or closed.
pub(crate) fn start(link: Arc<Link>, first: Established) -> io::Result<JoinHandle<()>> {
    let name = "onesided-control".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        run(&link, first);
        link.note_end();
    })
}

/// Reports of one table at a time: heartbeats and jobs wait meanwhile.
const REPORTS_MAX: usize = 64;

/// Why serving ended.
enum End {
    ShutDown,
    Lost(String),
    /// The connection was closed since nobody used it, and now somebody wants one.
    Wanted,
}

fn run(link: &Arc<Link>, mut live: Established) {
    loop {
        let end = serve(link, &mut live);
        let is_lost = matches!(end, End::Lost(_));
        match end {
            End::ShutDown => {
                let by = Instant::now() + GOODBYE;
                let counted = link.counted().into_iter();
                // Of a client that lived shortly this is all that the server hears.
                let _told = counted
                    .map(|Counted { table, counts }| ToServer::Counted { table, counts })
                    .try_for_each(|report| tell_one(&mut live.control, &report, by));
                // A goodbye says that nothing is written any more. If that is not so, or it does
                // not arrive, the session's lease ends it.
                if link.stop_writing(by) {
                    let _unheard = live.control.ask(&ToServer::Goodbye, by);
                }
                live.connection.mark_lost("the client was closed");
                return;
            }
            End::Lost(reason) => {
                tracing::warn!(reason, "connection lost");
                live.connection.mark_lost(&reason);
            }
            End::Wanted => {}
        }
        let session = Arc::clone(live.connection.session());
        drop(live);
        match reconnect(link, &session, is_lost) {
            Some(next) => live = next,
            None => return,
        }
    }
}

fn serve(link: &Arc<Link>, live: &mut Established) -> End {
    let mut serving = Serving::new(link, live);
    loop {
        if let Err(end) = serving.turn() {
            return end;
        }
    }
}

/// Whether there may be a better fabric, now or later: the server may get a device yet.
fn is_second_best(connection: &Connection) -> bool {
    connection.fallback().is_some() || !connection.caps().one_sided
}

/// Whether the server must have ended a connection of this kind before there is the next one: a
/// compare-and-swap that is still on its way there would be done after the client was told that its
/// entry is not linked. To resume the session sees to that.
fn needs_end(caps: Caps) -> bool {
    caps.one_sided
}

/// What is done while there is a control connection.
struct Serving<'a> {
    link: &'a Arc<Link>,
    live: &'a mut Established,
    /// Of the time after which a silent server is lost.
    half: Duration,
    interval: Duration,
    next_beat: Instant,
    idle: Idle,
    retry: Retry,
    /// The connection was closed since nobody used it.
    rests: bool,
    /// What the server wants back.
    retirement: Option<Retirement>,
}

impl<'a> Serving<'a> {
    fn new(link: &'a Arc<Link>, live: &'a mut Established) -> Self {
        let options = &link.shared().options;
        let half = options.silence_timeout / 2;
        let asked = u64::from(live.connection.welcome().heartbeat_ms).max(1);
        let interval = Duration::from_millis(asked).min(half).max(Duration::from_millis(1));
        let now = Instant::now();
        // Where reading is loading nothing is gained, and much is lost.
        let may_rest = live.connection.caps().kind != FabricKind::Shm && link.reconnects();
        let idle_timeout = options.idle_timeout.filter(|_| may_rest);
        let may_choose = options.fabric == FabricChoice::Auto && options.rdma != Rdma::Require;
        let better = options.better_fabric_retry.filter(|_| may_choose && link.reconnects());
        Self {
            link,
            live,
            half,
            interval,
            next_beat: now + interval,
            idle: Idle::new(idle_timeout, now),
            retry: Retry::new(better),
            rests: false,
            retirement: None,
        }
    }

    fn turn(&mut self) -> Result<(), End> {
        let link = self.link;
        if link.is_shut_down() {
            return Err(End::ShutDown);
        }
        self.look_after_connection()?;
        let now = Instant::now();
        let Established { control, connection, .. } = &mut *self.live;
        if now >= self.next_beat || link.is_to_tell() {
            tell(link, control, now + self.half)
                .map_err(|error| End::Lost(why("no answer to a report of accesses", &error)))?;
        }
        if self.retirement.as_mut().is_some_and(Retirement::is_over)
            && let Some(over) = self.retirement.take()
        {
            connection.session().acknowledge(over.epoch());
            // The server waits for it.
            self.next_beat = now;
        }
        if now >= self.next_beat {
            let (epoch, retired) = heartbeat(link, control, connection, now + self.half)
                .map_err(|error| End::Lost(why("no heartbeat from the server", &error)))?;
            self.next_beat = Instant::now() + self.interval;
            if self.retirement.is_none() && epoch > connection.session().acknowledged() {
                self.retirement = Some(Retirement::begin(link, connection, epoch, retired));
            }
        }
        if let Some(job) = link.next_job() {
            // Administration may take longer than a heartbeat, but no longer than a call.
            let by = job.by.at.max(Instant::now() + self.half);
            let administered = administer(link, control, connection, job, by);
            return administered.map_err(|error| End::Lost(error.to_string()));
        }
        let looks = if self.rests { [None, None] } else { [self.idle.due(), self.retry.due()] };
        let retiring = self.retirement.is_some().then(|| Instant::now() + RETIRING_PAUSE);
        let due = looks.into_iter().chain([retiring]).flatten();
        let until = due.fold(self.next_beat, Instant::min);
        sleep(link, &mut self.live.control, until).map_err(End::Lost)
    }

    fn look_after_connection(&mut self) -> Result<(), End> {
        let (link, now) = (self.link, Instant::now());
        let connection = &self.live.connection;
        if self.rests {
            return if link.is_wanted() { self.wake() } else { Ok(()) };
        }
        // Nobody waits for some answers; and that it has ended nobody hears who does nothing.
        connection.dispatch();
        if !connection.is_alive() {
            return Err(End::Lost(connection.lost_reason().to_owned()));
        }
        let activity = link.shared().stats.activity();
        if self.idle.is_over(activity, connection.is_in_use(), now) {
            tracing::debug!("closing a connection that nobody uses");
            link.rest(connection);
            link.shared().stats.add(Counter::IdleCloses, 1);
            self.rests = true;
        } else if self.retry.is_due(is_second_best(connection), now) {
            return match self.upgrade() {
                Ok(upgraded) => upgraded,
                Err(error) => {
                    tracing::debug!(%error, "no better fabric yet");
                    Ok(())
                }
            };
        }
        Ok(())
    }

    /// Somebody wants to use the connection again.
    fn wake(&mut self) -> Result<(), End> {
        if needs_end(self.live.connection.caps()) {
            return Err(End::Wanted);
        }
        let offers = self.live.connection.welcome().fabrics.clone();
        let again = self.rewire(offers, self.link.shared().options.connect_timeout);
        let again = again.map_err(|error| End::Lost(error.to_string()))?;
        tracing::debug!("connected again for use");
        self.install(again);
        self.rests = false;
        Ok(())
    }

    /// Tries the fabrics that are better than the one in use. Whether this connection can go on
    /// over one of them.
    fn upgrade(&mut self) -> Result<Result<(), End>, Error> {
        let Some(url) = self.link.url() else { return Ok(Ok(())) };
        let timeout = self.link.shared().options.connect_timeout.min(self.half);
        let mut offers = ask_offers(url, self.link.shared(), Instant::now() + timeout)?;
        let current = self.link.fabric().to_string();
        offers.retain({
            let mut better = true;
            move |offer| {
                better &= name_of(offer.kind) != current;
                better
            }
        });
        let better = self.rewire(offers, timeout)?;
        let fabric = better.caps().kind.to_string();
        let reason = "a better fabric can be used again";
        tracing::info!(fabric, reason);
        self.link.shared().stats.add(Counter::FabricUpgrades, 1);
        let old = Arc::clone(&self.live.connection);
        if needs_end(old.caps()) {
            better.mark_lost("it was tried");
            return Ok(Err(End::Lost(reason.to_owned())));
        }
        self.install(better);
        // What is under way there goes on over the new one: the server knows requests that it had
        // already by their numbers.
        old.mark_lost(reason);
        Ok(Ok(()))
    }

    fn rewire(
        &mut self,
        offers: Vec<FabricOffer>,
        timeout: Duration,
    ) -> Result<Arc<Connection>, Error> {
        let Some(url) = self.link.url() else { return Err(Error::Closed) };
        let Established { control, connection, .. } = &mut *self.live;
        rewire(control, url, connection, offers, Instant::now() + timeout)
    }

    fn install(&mut self, connection: Arc<Connection>) {
        self.link.install(Arc::clone(&connection));
        self.live.connection = connection;
        self.idle.is_over(0, true, Instant::now());
    }
}

/// Says that the client is there. Gives what the server has retired, up to which epoch.
fn heartbeat(
    link: &Link,
    control: &mut ControlStream,
    connection: &Connection,
    by: Instant,
) -> io::Result<(u64, Vec<Retired>)> {
    for Counted { table, counts } in link.counted() {
        tell_one(control, &ToServer::Counted { table, counts }, by)?;
    }
    let epoch = connection.session().acknowledged();
    let sent = Instant::now();
    match control.ask(&ToServer::Heartbeat(Heartbeat { epoch }), by)? {
        ToClient::Alive { clock_ns, catalog_epoch, epoch, retired } => {
            connection.clock().sync(clock_ns, sent, Instant::now());
            if link.note_catalog(catalog_epoch) {
                learn(link, control, by)?;
            }
            Ok((epoch, retired))
        }
        ToClient::Failed(error) => Err(io::Error::other(error)),
        _ => Err(io::Error::other("the answer to a heartbeat is none")),
    }
}

/// Asks which options tables have now.
fn learn(link: &Link, control: &mut ControlStream, by: Instant) -> io::Result<()> {
    match control.ask(&ToServer::ListTables, by)? {
        ToClient::Tables(tables) => {
            link.learn(&tables);
            Ok(())
        }
        ToClient::Failed(error) => Err(io::Error::other(error)),
        _ => Err(io::Error::other("the answer to a list of tables is none")),
    }
}

/// Tells the server which keys were read.
fn tell(link: &Link, control: &mut ControlStream, by: Instant) -> io::Result<()> {
    for accesses in link.accesses() {
        for report in std::iter::from_fn(|| accesses.report()).take(REPORTS_MAX) {
            tell_one(control, &report, by)?;
        }
    }
    Ok(())
}

fn tell_one(control: &mut ControlStream, report: &ToServer, by: Instant) -> io::Result<()> {
    match control.ask(report, by)? {
        ToClient::Done => Ok(()),
        ToClient::Failed(error) => Err(io::Error::other(error)),
        _ => Err(io::Error::other("the answer to a report is none")),
    }
}

fn administer(
    link: &Link,
    control: &mut ControlStream,
    connection: &Arc<Connection>,
    job: Job,
    by: Instant,
) -> io::Result<()> {
    match control.ask(&job.message, by) {
        Ok(answer) => {
            // Whoever asked may be gone.
            let _gone = job.answer.send(Ok((answer, Arc::clone(connection))));
            Ok(())
        }
        Err(error) if job.may_repeat() => {
            link.put_back(job);
            Err(error)
        }
        Err(error) => {
            let reason = format!("the connection was lost meanwhile: {error}");
            let _gone = job.answer.send(Err(Error::OutcomeUnknown { what: job.by.what, reason }));
            Err(error)
        }
    }
}

/// Why the connection is of no use any more; what the server itself says about that needs no more.
fn why(what: &str, error: &io::Error) -> String {
    match error.get_ref() {
        Some(said) if said.is::<RpcError>() => said.to_string(),
        _ => format!("{what}: {error}"),
    }
}

/// Sleeps until there is something to do. Bytes from the server mean its end: it only answers.
fn sleep(link: &Link, control: &mut ControlStream, until: Instant) -> Result<(), String> {
    let mut fds = [
        PollFd::new(&control.stream, PollFlags::IN | PollFlags::RDHUP),
        PollFd::new(link.bell(), PollFlags::IN),
    ];
    wait_on(&mut fds, until.saturating_duration_since(Instant::now()));
    let server = fds[0].revents();
    drain_bell(link);
    if server.is_empty() {
        return Ok(());
    }
    Err(control.farewell(Instant::now() + FAREWELL))
}

fn wait_on(fds: &mut [PollFd<'_>], timeout: Duration) {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    // Interrupted, or nothing ready: the caller looks at the time anyway.
    let _ready = poll(fds, Some(&timeout));
}

fn drain_bell(link: &Link) {
    // Nothing in it is no failure.
    let _empty = rustix::io::read(link.bell(), &mut [0; 8]);
}

/// Connects again, with growing pauses. `None`: the link is at its end.
fn reconnect(link: &Arc<Link>, session: &Arc<Session>, is_lost: bool) -> Option<Established> {
    let options = &link.shared().options;
    let url = link.url().filter(|_| link.reconnects() && !link.is_closed())?;
    let give_up = options.reconnect_timeout.map(|timeout| Instant::now() + timeout);
    let mut pause = BACKOFF_MIN;
    loop {
        if link.is_shut_down() {
            return None;
        }
        match establish(url, link.shared(), Some(session)) {
            Ok(next) => {
                let fabric = next.connection.caps().kind.to_string();
                tracing::info!(fabric, resumed = next.resumed, "connected again");
                link.shared().stats.add(Counter::Reconnects, u64::from(is_lost));
                link.install(Arc::clone(&next.connection));
                return Some(next);
            }
            Err(error) if is_final(&error) || give_up.is_some_and(|by| Instant::now() >= by) => {
                tracing::warn!(%error, "cannot connect again");
                link.close(&error.to_string());
                return None;
            }
            Err(error) => tracing::debug!(%error, "cannot connect again yet"),
        }
        // Many clients of one server must not come back all at once.
        let jittered = pause.mul_f64(rand::rng().random_range(0.5..1.0));
        doze(link, jittered);
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

/// Whether trying again cannot help.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Unauthorized(_) | Error::VersionMismatch(_))
}

fn doze(link: &Link, pause: Duration) {
    let until = Instant::now() + pause;
    while !link.is_shut_down() && Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now()).min(TICK * 20);
        wait_on(&mut [PollFd::from_borrowed_fd(link.bell().as_fd(), PollFlags::IN)], left);
        drain_bell(link);
    }
}
