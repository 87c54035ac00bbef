//! The control port: every connection begins here, says what it is for, and is bounded from its
//! first byte.
//!
//! | file | what |
//! |---|---|
//! | this | accepting, limits, the periodic work |
//! | `connection` | one connection, from its preamble to its end |
//! | `frame` | frames, bounded in length and time |
//! | `grace` | no session ends because the server stood still |
//! | `hello` | versions, token, session |
//! | `verbs` | what a session can ask for |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_protocol::control::ToClient;
use onesided_protocol::rpc::{ErrorCode, RpcError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::server::Core;
use crate::stats::Ended;

mod connection;
mod frame;
mod grace;
mod hello;
mod verbs;

use grace::Grace;

/// How long nobody is accepted after the system had no descriptor for one.
const PAUSE: Duration = Duration::from_millis(50);
/// The catalog's clock is stored this often, and leases are looked at.
const TICK: Duration = Duration::from_secs(1);

/// Accepts until `stop` changes.
pub(crate) async fn run(core: Arc<Core>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let connections = Arc::new(Semaphore::new(core.config.max_connections));
    let handshakes = Arc::new(Semaphore::new(core.config.max_handshakes));
    let ticking = tokio::spawn(tick(Arc::clone(&core)));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                core.stats.accepted.add(1);
                admit(&core, &connections, &handshakes, (stream, peer), &stop);
            }
            Err(error) => {
                if let Some(suppressed) = core.log_limit.allow() {
                    tracing::warn!(%error, suppressed, "cannot accept a connection");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    ticking.abort();
}

fn admit(
    core: &Arc<Core>,
    connections: &Arc<Semaphore>,
    handshakes: &Arc<Semaphore>,
    (stream, peer): (TcpStream, SocketAddr),
    stop: &watch::Receiver<bool>,
) {
    let handshake = Arc::clone(handshakes).try_acquire_owned();
    let connection = Arc::clone(connections).try_acquire_owned();
    if let (Ok(handshake), Ok(connection)) = (handshake, connection) {
        let permits = connection::Permits { handshake, _connection: connection };
        let (core, stop) = (Arc::clone(core), stop.clone());
        tokio::spawn(connection::serve(core, stream, permits, stop));
        return;
    }
    core.stats.refused_full.add(1);
    if let Some(suppressed) = core.log_limit.allow() {
        tracing::warn!(%peer, suppressed, "connection refused: too many at once");
    }
    let text = "too many connections at once: try again later";
    let full = ToClient::Failed(RpcError::new(ErrorCode::ServerFull, text));
    // At once and without a task: a flood must not cost more than this. What the peer has sent
    // is taken from the socket, since closing it unread would discard the answer.
    let mut sent_already = [0; 1024];
    let _nothing_yet = stream.try_read(&mut sent_already);
    let _gone_already = stream.try_write(&frame::encode(&full));
}

/// The clock in the catalog, the leases, entries whose time is over, and the RDMA device.
async fn tick(core: Arc<Core>) {
    let lease = Duration::from_millis(u64::from(core.config.session_lease_ms));
    let period = TICK.min(lease / 4);
    let mut every = tokio::time::interval(period);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut grace = Grace::new(Instant::now(), period, TICK.max(lease / 4), lease);
    loop {
        every.tick().await;
        if let Some(late) = grace.looks(Instant::now()) {
            let late_ms = late.as_millis() as u64;
            tracing::warn!(late_ms, "the server stood still: sessions get as long to be heard");
        }
        let ends_sessions = grace.is_over(Instant::now());
        core.tenants.engines().for_each(|engine| engine.tick());
        if core.rdma.needs_tending(Instant::now()) {
            let core = Arc::clone(&core);
            let _stopped = tokio::task::spawn_blocking(move || core.rdma.tend(&core)).await;
        }
        let expired = if ends_sessions { core.sessions.expired() } else { Vec::new() };
        let mut engines = core.tenants.engines();
        let tending = engines
            .any(|engine| engine.has_expiring() || engine.has_heat() || engine.has_retired());
        let mut engines = core.tenants.engines();
        let tending = tending || engines.any(|engine| engine.may_shrink());
        let tending = tending || core.sessions.orphans() > 0;
        if expired.is_empty() && !tending {
            grace.rests(Instant::now());
            continue;
        }
        let core = Arc::clone(&core);
        let work = move || {
            for session in expired {
                core.sessions.end(&session, Ended::Lease);
            }
            let behind = if ends_sessions { core.sessions.behind() } else { Vec::new() };
            for session in behind {
                core.sessions.end(&session, Ended::Fenced);
            }
            core.sessions.tend_orphans();
            for engine in core.tenants.engines() {
                engine.expire();
                engine.tend_heat();
                engine.shrink();
            }
        };
        // Reclaiming memory may take a while.
        let _stopped = tokio::task::spawn_blocking(work).await;
        grace.rests(Instant::now());
    }
}
