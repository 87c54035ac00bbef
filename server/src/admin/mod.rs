//! The admin port: HTTP for operators and Prometheus, on a thread of its own. It shows figures
//! and names of tables, and no data of users.
//!
//! | file | what |
//! |---|---|
//! | this | start and stop; connections, each bounded in number, size and time |
//! | `guard` | who may ask: the token, the `Host` header; headers of every answer |
//! | `api` | what can be asked for |
//! | `page` | the dashboard |

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task;

use crate::config::{ADMIN_DEFAULT, ServerConfig};
use crate::server::{Core, StartError, join};
use crate::stats::Stats;

mod api;
mod guard;
mod page;

/// Connections at once. With one more the oldest is closed: whoever opens many and asks nothing
/// keeps nobody else out.
const CONNECTIONS_MAX: usize = 64;
/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// How long a request's head may take to come; also how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one connection may last: longer than a scrape's interval gains nothing.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);
/// How long an answer may take to be taken, once the connection is to end.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest head of a request, and with it longest URL.
const HEAD_MAX_BYTES: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// How long nobody is accepted after the system had no descriptor for one.
const PAUSE: Duration = Duration::from_millis(50);

/// The port, before anybody is served.
pub(crate) struct Bound {
    listener: TcpListener,
    addr: SocketAddr,
}

/// A running admin port.
pub(crate) struct Admin {
    pub(crate) addr: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// Takes the port of the configuration. The default one may be another server's: then this one
/// goes without, and says so.
pub(crate) fn bind(config: &ServerConfig) -> Result<Option<Bound>, StartError> {
    let Some(listen) = &config.admin else { return Ok(None) };
    let error = |source| StartError::Admin { listen: listen.clone(), source };
    let refuse = |text: &str| error(std::io::Error::other(text.to_owned()));
    let addr = listen.to_socket_addrs().map_err(error)?.next();
    let addr = addr.ok_or_else(|| refuse("the name has no address"))?;
    if !addr.ip().is_loopback() && config.admin_token.is_none() {
        return Err(refuse(
            "other hosts can reach it, and there is no token: set --admin-token-file, or listen \
             on 127.0.0.1",
        ));
    }
    let taken = |source: &std::io::Error| source.kind() == std::io::ErrorKind::AddrInUse;
    match TcpListener::bind(addr).and_then(|listener| {
        // More than 128, or who comes after a burst waits a second for its next attempt.
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        Ok(Bound { listener, addr })
    }) {
        Ok(bound) => Ok(Some(bound)),
        Err(source) if listen == ADMIN_DEFAULT && taken(&source) => {
            tracing::warn!(
                listen,
                "no admin port: another program has it; give this server one with --admin \
                 HOST:PORT, or none with --admin off"
            );
            Ok(None)
        }
        Err(source) => Err(error(source)),
    }
}

impl Bound {
    /// Serves from now on.
    pub(crate) fn serve(self, core: &Arc<Core>) -> std::io::Result<Admin> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Self { listener, addr } = self;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = watch::channel(false);
        let core = Arc::clone(core);
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            runtime.block_on(accept(core, listener, stopped));
            runtime.shutdown_timeout(FAREWELL);
        })?;
        Ok(Admin { addr, stop, thread })
    }
}

impl Admin {
    /// Ends it within about a second.
    pub(crate) fn stop(self) {
        // Fails when the thread has ended already.
        let _ended_already = self.stop.send(true);
        join(self.thread, "admin");
    }
}

async fn accept(
    core: Arc<Core>,
    listener: tokio::net::TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let router = guard::guarded(api::routes(&core), &core);
    // The oldest first.
    let mut open = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        make_room(&mut open, &core.stats).await;
        let counted = Counted::new(&core.stats);
        let (router, stop) = (router.clone(), stop.clone());
        open.push_back(task::spawn(async move {
            let _counted = counted;
            serve(stream, router, stop).await;
        }));
    }
    // What is being answered may end; the longest that this waits is bounded.
    let all = async {
        for connection in open {
            let _over = connection.await;
        }
    };
    let _in_time = tokio::time::timeout(FAREWELL, all).await;
}

/// Leaves room for one more.
async fn make_room(open: &mut VecDeque<task::JoinHandle<()>>, stats: &Stats) {
    if open.len() < CONNECTIONS_MAX {
        return;
    }
    open.retain(|connection| !connection.is_finished());
    // Who came just now has sent its request, and is answered before another one's turn.
    task::yield_now().await;
    while open.len() >= CONNECTIONS_MAX
        && let Some(oldest) = open.pop_front()
    {
        if !oldest.is_finished() {
            stats.admin_displaced.add(1);
            oldest.abort();
        }
        let _over = oldest.await;
    }
}

/// Counts a connection until it is dropped.
struct Counted(Arc<Stats>);

impl Counted {
    fn new(stats: &Arc<Stats>) -> Self {
        stats.admin_connections.add(1);
        Self(Arc::clone(stats))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.admin_connections.sub(1);
    }
}

/// One connection, from its first byte to its end.
async fn serve(stream: TcpStream, router: Router, mut stop: watch::Receiver<bool>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX_BYTES)
        .max_headers(HEADERS_MAX);
    let service = TowerToHyperService::new(router);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // Whatever it was, the connection is over, and there is nobody to tell.
        _over = &mut connection => return,
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
        _ = stop.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _in_time = tokio::time::timeout(FAREWELL, connection).await;
}
