//! Set-up: control connection, hello, and the best fabric that both sides have. Blocking.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::{CompletionQueue, Endpoint, Memory, shm, tcp, verbs};
use onesided_protocol::control::{
    FabricName, FabricOffer, Hello, PREAMBLE_MAGIC, PURPOSE_CONTROL, PURPOSE_DATA, ToClient,
    ToServer, Welcome,
};
use onesided_protocol::limits::{
    LAYOUT_VERSION, STAGING_SPARE_BYTES, TICKET_BYTES, WIRE_VERSION_MAX, WIRE_VERSION_MIN,
    inline_message_max_bytes,
};

use crate::choose::{PassedOver, Plan, name_of};
use crate::core::{Connection, Parts, ServerClock, Session, Shared};
use crate::error::Error;
use crate::frames::{ControlStream, write_all};
use crate::options::Options;
use crate::url::Url;

/// Bytes that may wait to be written, beside one longest message.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Receive buffers over verbs for each request that may be outstanding.
const RECEIVES_PER_CREDIT: usize = 2;

/// A session that is ready for use.
pub(crate) struct Established {
    pub(crate) control: ControlStream,
    pub(crate) connection: Arc<Connection>,
    /// The session that was asked for goes on.
    pub(crate) resumed: bool,
}

/// What a fabric gives.
struct Wired {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn CompletionQueue>,
    staging: Option<Arc<Memory>>,
}

/// Connects once, within the connect timeout.
pub(crate) fn establish(
    url: &Url,
    shared: &Arc<Shared>,
    resume: Option<&Arc<Session>>,
) -> Result<Established, Error> {
    if resume.is_none() {
        check_device(&shared.options)?;
    }
    let by = Instant::now() + shared.options.connect_timeout;
    let resumed = resume.map_or((0, 0), |session| (session.id, session.resume_key));
    let (mut control, welcome, sent) = greet(url, shared, resumed, by)?;
    let clock = ServerClock::new(welcome.clock_ns, sent, Instant::now());
    let plan = Plan::of(shared.options.fabric, shared.options.rdma);
    let options = &shared.options;
    let mut attempt =
        Attempt { control: &mut control, first: Some(welcome.ticket), url, by, options };
    let (wired, fallback) = wire(&mut attempt, &welcome, plan)?;
    tell(shared, &wired, fallback.as_ref());
    let resumed = resume.filter(|session| welcome.resumed && session.id == welcome.session);
    let is_resumed = resumed.is_some();
    let session = resumed.cloned().unwrap_or_else(|| {
        Session::new(welcome.session, welcome.resume_key, welcome.applied_sequence)
    });
    let Wired { endpoint, cq, staging } = wired;
    let parts = Parts { endpoint, cq, welcome, staging, session, clock, fallback };
    let connection = Connection::new(parts, Arc::clone(shared));
    Ok(Established { control, connection, resumed: is_resumed })
}

/// Another connection of the same session, over the control connection that it has. `offers` are
/// the fabrics to choose from, best first.
pub(crate) fn rewire(
    control: &mut ControlStream,
    url: &Url,
    old: &Connection,
    offers: Vec<FabricOffer>,
    by: Instant,
) -> Result<Arc<Connection>, Error> {
    let shared = old.shared();
    let plan = Plan::of(shared.options.fabric, shared.options.rdma);
    let options = &shared.options;
    let welcome = Welcome { fabrics: offers, ..old.welcome().clone() };
    let mut attempt = Attempt { control, first: None, url, by, options };
    let (wired, fallback) = wire(&mut attempt, &welcome, plan)?;
    tell(shared, &wired, fallback.as_ref());
    let Wired { endpoint, cq, staging } = wired;
    let (session, clock) = (Arc::clone(old.session()), old.clock().again());
    let welcome = Welcome { fabrics: old.welcome().fabrics.clone(), ..welcome };
    let parts = Parts { endpoint, cq, welcome, staging, session, clock, fallback };
    Ok(Connection::new(parts, Arc::clone(shared)))
}

/// What the server offers now, asked by a session that ends at once.
pub(crate) fn ask_offers(
    url: &Url,
    shared: &Shared,
    by: Instant,
) -> Result<Vec<FabricOffer>, Error> {
    let (mut control, welcome, _) = greet(url, shared, (0, 0), by)?;
    // Its lease ends it if this does not arrive.
    let _unheard = control.ask(&ToServer::Goodbye, by);
    Ok(welcome.fabrics)
}

/// Opens a control connection. Also when the hello was sent.
fn greet(
    url: &Url,
    shared: &Shared,
    resume: (u64, u64),
    by: Instant,
) -> Result<(ControlStream, Welcome, Instant), Error> {
    let failed = |source| Error::Connect { addr: url.address(), source };
    let stream = reach(url, by).map_err(failed)?;
    let mut preamble = PREAMBLE_MAGIC.to_vec();
    preamble.push(PURPOSE_CONTROL);
    let mut control = ControlStream::new(stream);
    let hello = ToServer::Hello(Hello {
        wire_min: WIRE_VERSION_MIN,
        wire_max: WIRE_VERSION_MAX,
        layout: LAYOUT_VERSION,
        token: shared.options.token.clone(),
        resume,
    });
    let sent = Instant::now();
    match control.ask_first(&preamble, &hello, by).map_err(failed)? {
        ToClient::Welcome(welcome) => Ok((control, *welcome, sent)),
        ToClient::Failed(error) => Err(error.into()),
        _ => Err(Error::BadAnswer("the answer to a hello is no welcome")),
    }
}

/// A device, or an MTU, that was asked for and is missing is an error, also where another fabric
/// would do: it is never passed over. One that goes away later is: then whoever is connected goes
/// on without.
fn check_device(options: &Options) -> Result<(), Error> {
    let may_be_used = Plan::of(options.fabric, options.rdma).allows_verbs();
    let (device, mtu) = (&options.rdma_device, options.rdma_mtu);
    let asked_for = *device != verbs::Options::default() || mtu != verbs::PathMtu::AUTO;
    if !may_be_used || !asked_for {
        return Ok(());
    }
    verbs::check_choice(device, mtu).map_err(|error| {
        let reason = format!("the RDMA device or MTU that was asked for cannot be had: {error}");
        fabric_error(FabricName::Verbs, reason)
    })
}

fn left(by: Instant) -> io::Result<Duration> {
    let left = by.saturating_duration_since(Instant::now());
    let late = || io::Error::new(ErrorKind::TimedOut, "no time is left to connect");
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn reach(url: &Url, by: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for addr in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, left(by)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Takes the fabric that was asked for, or the first of the server's that works; and what is to be
/// said about those passed over.
fn wire(
    attempt: &mut Attempt<'_>,
    welcome: &Welcome,
    plan: Plan,
) -> Result<(Wired, Option<String>), Error> {
    let mut passed_over = PassedOver::default();
    let end = attempt.by;
    let offers = plan.select(&welcome.fabrics)?;
    for (i, offer) in offers.iter().enumerate() {
        // A fabric that does not answer leaves time for those behind it.
        let now = Instant::now();
        attempt.by = now + end.saturating_duration_since(now) / (offers.len() - i) as u32;
        match try_offer(offer, attempt, welcome) {
            Ok(wired) => {
                let fallback = passed_over.fallback(wired.endpoint.caps().one_sided);
                return Ok((wired, fallback));
            }
            Err(error) if matches!(plan, Plan::Only(_)) => return Err(error),
            Err(error) => {
                let is_shm = offer.kind == FabricName::Shm;
                passed_over.add(offer.kind, &error, is_shm && !shm::reachable(&offer.blob));
            }
        }
    }
    Err(passed_over.into_error())
}

/// Warns about a fallback, unless the client has heard the same before.
fn tell(shared: &Shared, wired: &Wired, fallback: Option<&String>) {
    let mut told = shared.told.lock();
    if told.as_ref() == fallback {
        return;
    }
    if let Some(reasons) = fallback {
        let fabric = wired.endpoint.caps().kind.to_string();
        tracing::warn!(fabric, reasons, "a better fabric cannot be used");
    }
    *told = fallback.cloned();
}

fn fabric_error(name: FabricName, reason: String) -> Error {
    Error::Fabric { fabric: name_of(name), reason }
}

fn try_offer(
    offer: &FabricOffer,
    attempt: &mut Attempt<'_>,
    welcome: &Welcome,
) -> Result<Wired, Error> {
    let failed = |reason: String| fabric_error(offer.kind, reason);
    match offer.kind {
        FabricName::Verbs => connect_verbs(&offer.blob, attempt, welcome).map_err(failed),
        FabricName::Shm if !shm::reachable(&offer.blob) => {
            Err(failed("the server runs on another host".to_owned()))
        }
        FabricName::Shm => {
            let ticket = attempt.ticket()?;
            let left = left(attempt.by).map_err(|error| failed(error.to_string()))?;
            let connected = shm::connect(&offer.blob, &ticket, 0, left);
            let shm::Connected { endpoint, cq, staging } =
                connected.map_err(|error| failed(error.to_string()))?;
            Ok(Wired { endpoint, cq, staging })
        }
        FabricName::Tcp => {
            let ticket = attempt.ticket()?;
            let (endpoint, cq) = data_connection(attempt, &ticket, welcome)
                .map_err(|error| failed(error.to_string()))?;
            Ok(Wired { endpoint, cq, staging: None })
        }
    }
}

/// Connects a queue pair to the listener that `blob` describes. The error says why not.
fn connect_verbs(
    blob: &[u8],
    attempt: &mut Attempt<'_>,
    welcome: &Welcome,
) -> Result<Wired, String> {
    let staging_bytes = welcome.value_max_bytes as usize + STAGING_SPARE_BYTES;
    let staging = Memory::private(staging_bytes).map_err(|error| error.to_string())?;
    // Answers come no faster than there are requests; a burst of long ones waits for its buffers.
    let receive_depth = welcome.credits.max(1) as usize * RECEIVES_PER_CREDIT;
    let path_mtu = attempt.options.rdma_mtu;
    let limits = verbs::Limits { receive_depth, path_mtu, ..verbs::Limits::default() };
    let options = verbs::ConnectOptions { choice: attempt.options.rdma_device.clone(), limits };
    let ticket = attempt.ticket().map_err(|error| error.to_string())?;
    let left = left(attempt.by).map_err(|error| error.to_string())?;
    let connected = verbs::connect(blob, &ticket, 0, left, &options);
    let verbs::Connected { endpoint, cq, .. } = connected.map_err(|error| error.to_string())?;
    Ok(Wired { endpoint, cq, staging: Some(Arc::new(staging)) })
}

type Stream = (Arc<dyn Endpoint>, Arc<dyn CompletionQueue>);

fn data_connection(
    attempt: &Attempt<'_>,
    ticket: &[u8; TICKET_BYTES],
    welcome: &Welcome,
) -> io::Result<Stream> {
    // The same address as the control connection's: a name may have several.
    let by = attempt.by;
    let addr = attempt.control.stream.peer_addr()?;
    let mut stream = TcpStream::connect_timeout(&addr, left(by)?)?;
    stream.set_nodelay(true)?;
    let mut preamble = PREAMBLE_MAGIC.to_vec();
    preamble.push(PURPOSE_DATA);
    preamble.extend_from_slice(ticket);
    write_all(&mut stream, &preamble, by)?;
    let longest = inline_message_max_bytes(welcome.value_max_bytes as usize);
    let limits = tcp::Limits {
        max_message_bytes: longest,
        send_buffer_bytes: longest + SEND_BUFFER_BYTES,
        max_endpoints: 1,
        total_receive_bytes: 2 * longest,
        ..tcp::Limits::default()
    };
    tcp::connect(stream, 0, limits)
}

/// What attempts at one fabric after the other share.
struct Attempt<'a> {
    control: &'a mut ControlStream,
    first: Option<[u8; TICKET_BYTES]>,
    url: &'a Url,
    by: Instant,
    options: &'a Options,
}

impl Attempt<'_> {
    /// Tickets are for one use: each attempt after the first asks for another one.
    fn ticket(&mut self) -> Result<[u8; TICKET_BYTES], Error> {
        if let Some(ticket) = self.first.take() {
            return Ok(ticket);
        }
        let failed = |source| Error::Connect { addr: self.url.address(), source };
        match self.control.ask(&ToServer::Ticket, self.by).map_err(failed)? {
            ToClient::Ticket(ticket) => Ok(ticket),
            ToClient::Failed(error) => Err(error.into()),
            _ => Err(Error::BadAnswer("the answer to a request for a ticket is none")),
        }
    }
}
