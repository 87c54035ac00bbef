//! The thread of the control connection: heartbeats, administration, and reconnecting.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onesided_protocol::control::{ToClient, ToServer};
use rand::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connect::{Established, establish};
use crate::core::{Connection, Session, TICK};
use crate::error::Error;
use crate::frames::ControlStream;
use crate::link::{Job, Link};
use crate::stats::Counter;

/// Pause before the first attempt to connect again; doubled after each.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Bound of saying goodbye.
pub(crate) const GOODBYE: Duration = Duration::from_millis(200);

/// Starts it; it ends when the link is shut down or closed.
pub(crate) fn start(link: Arc<Link>, first: Established) -> io::Result<JoinHandle<()>> {
    let name = "onesided-control".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        run(&link, first);
        link.note_end();
    })
}

/// Why serving ended.
enum End {
    ShutDown,
    Lost(String),
}

fn run(link: &Arc<Link>, mut live: Established) {
    loop {
        match serve(link, &mut live) {
            End::ShutDown => {
                let by = Instant::now() + GOODBYE;
                // The session's lease ends it if this does not arrive.
                let _unheard = live.control.ask(&ToServer::Goodbye, by);
                live.connection.mark_lost("the client was closed");
                return;
            }
            End::Lost(reason) => {
                tracing::warn!(reason, "connection lost");
                live.connection.mark_lost(&reason);
            }
        }
        let session = Arc::clone(live.connection.session());
        drop(live);
        match reconnect(link, &session) {
            Some(next) => live = next,
            None => return,
        }
    }
}

fn serve(link: &Link, live: &mut Established) -> End {
    let options = &link.shared().options;
    let connection = &live.connection;
    let half = options.silence_timeout / 2;
    let asked = Duration::from_millis(u64::from(connection.welcome().heartbeat_ms).max(1));
    let interval = asked.min(half).max(Duration::from_millis(1));
    let mut next_beat = Instant::now() + interval;
    loop {
        if link.is_shut_down() {
            return End::ShutDown;
        }
        if !connection.is_alive() {
            return End::Lost(connection.lost_reason().to_owned());
        }
        let now = Instant::now();
        if now >= next_beat {
            if let Err(error) = heartbeat(link, &mut live.control, connection, now + half) {
                return End::Lost(format!("no heartbeat from the server: {error}"));
            }
            next_beat = Instant::now() + interval;
        }
        if let Some(job) = link.next_job() {
            // Administration may take longer than a heartbeat, but no longer than a call.
            let by = job.by.at.max(Instant::now() + half);
            if let Err(error) = administer(link, &mut live.control, connection, job, by) {
                return End::Lost(error.to_string());
            }
            continue;
        }
        if let Err(reason) = sleep(link, &live.control, next_beat) {
            return End::Lost(reason);
        }
    }
}

fn heartbeat(
    link: &Link,
    control: &mut ControlStream,
    connection: &Connection,
    by: Instant,
) -> io::Result<()> {
    let beat = ToServer::Heartbeat(link.shared().stats.heartbeat());
    let sent = Instant::now();
    match control.ask(&beat, by)? {
        ToClient::Alive { clock_ns, .. } => {
            connection.clock().sync(clock_ns, sent, Instant::now());
            Ok(())
        }
        ToClient::Failed(error) => Err(io::Error::other(error)),
        _ => Err(io::Error::other("the answer to a heartbeat is none")),
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

/// Sleeps until there is something to do. Bytes from the server mean its end: it only answers.
fn sleep(link: &Link, control: &ControlStream, until: Instant) -> Result<(), String> {
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
    Err(match control.stream.peek(&mut [0]) {
        Ok(0) => "the server closed the connection".to_owned(),
        Ok(_) => "the server sent what nobody asked for".to_owned(),
        Err(error) => error.to_string(),
    })
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
fn reconnect(link: &Arc<Link>, session: &Arc<Session>) -> Option<Established> {
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
                link.shared().stats.add(Counter::Reconnects, 1);
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
