//! The client's set-up: from a listener's descriptor to a connection.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::blob::{Blob, why_none};
use super::choose::{Choice, Options, choose, gid_table, is_link_local};
use super::endpoint::{Link, Side};
use super::ffi::cm::{Event, Happened, Id, Params};
use super::ffi::device::Device;
use super::ffi::error::VerbsError;
use super::ffi::events::DeviceEvent;
use super::ffi::path::Path;
use super::hello::{Hello, Reason, Rejection};
use super::listener::tell;
use super::mtu::PathMtu;
use super::queue::Queue;
use super::setup::{Limits, RETRIES, check_mtu, client_pd, reads_at_once};
use super::survey::{self, Bound};
use super::watch::{Concerned, Connection, Mailbox, Registered, Watcher, watcher};
use crate::endpoint::{CompletionQueue, Endpoint, Wait};
use crate::work::Completion;

const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// Ways that are tried, at most.
const MAX_WAYS: usize = 64;
/// The transport's reason for a rejection when nobody listens at the port.
const NOBODY_LISTENS: i32 = 8;

/// What a connection is to be like.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Which device, port, GID or address of this host.
    pub choice: Options,
    /// Bounds of this side; lengths of messages are the listener's.
    pub limits: Limits,
}

/// A connection to a server. Dropping `endpoint` or `cq` ends it.
#[derive(Clone)]
pub struct Connected {
    /// Sends requests, and addresses the server's regions.
    pub endpoint: Arc<dyn Endpoint>,
    /// Where answers and completions arrive.
    pub cq: Arc<dyn CompletionQueue>,
    /// This host's device, and the server's address.
    pub via: String,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").field("via", &self.via).finish_non_exhaustive()
    }
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The descriptor is not one of this fabric or version.
    #[error("malformed verbs descriptor: {0}; client and server versions may be too far apart")]
    Malformed(&'static str),
    /// This host cannot use RDMA at all, or not as was asked for.
    #[error(transparent)]
    Host(#[from] VerbsError),
    /// The server has no listener now.
    #[error("the server has no RDMA now: {0}")]
    NoneNow(String),
    /// The server said no.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server has no room now.
    #[error("the server is full: {0}")]
    Full(String),
    /// None of the server's addresses could be reached.
    #[error("no RDMA connection to the server: {0}")]
    Unreachable(String),
    /// The time is over.
    #[error("no RDMA connection to the server within {timeout:?}: {tried}")]
    TimedOut {
        /// What was given.
        timeout: Duration,
        /// Each address that was tried, and what came of it.
        tried: String,
    },
}

/// One way to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way {
    from: Option<SocketAddr>,
    to: SocketAddr,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            Some(from) => write!(f, "{} from {}", self.to, from.ip()),
            None => write!(f, "{}", self.to),
        }
    }
}

/// Why one way did not do.
enum Failure {
    /// Another one may.
    Here(String),
    /// No other will: the server has spoken.
    All(ConnectError),
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        Self::Here(error.to_string())
    }
}

/// Connects to the listener that `blob` describes, showing `ticket`. All completions of the
/// connection carry `context`. Its addresses are tried one after the other. Blocks for at most
/// `timeout`.
///
/// # Errors
/// See [`ConnectError`]: it names each way that was tried.
pub fn connect(
    blob: &[u8],
    ticket: &[u8; 32],
    context: u64,
    timeout: Duration,
    options: &ConnectOptions,
) -> Result<Connected, ConnectError> {
    if let Some(reason) = why_none(blob) {
        return Err(ConnectError::NoneNow(reason));
    }
    let blob = Blob::decode(blob).map_err(ConnectError::Malformed)?;
    let end = Instant::now() + timeout.min(MAX_TIMEOUT);
    let watcher = watcher()?;
    let bound = survey::addresses(&watcher.channel)?;
    let allowed = allowed(&bound, &options.choice)?;
    let mut tried = String::new();
    let ways = ways(&blob, &allowed, options.choice != Options::default(), &mut tried);
    let attempt = Attempt { watcher, blob: &blob, ticket, context, options };
    for (i, way) in ways.iter().enumerate() {
        let now = Instant::now();
        if now >= end {
            break;
        }
        // What one way does not need is left to the others.
        let share = (end - now) / (ways.len() - i) as u32;
        match attempt.go(*way, now + share) {
            Ok(connected) => return Ok(connected),
            Err(Failure::All(error)) => return Err(error),
            Err(Failure::Here(why)) => note(&mut tried, way, &why),
        }
    }
    if !ways.is_empty() && Instant::now() >= end {
        return Err(ConnectError::TimedOut { timeout, tried });
    }
    if let Ok(devices) = survey::devices(&bound) {
        let _infallible = write!(tried, "\n{}", gid_table(&devices));
    }
    Err(ConnectError::Unreachable(tried))
}

/// Whether this host has what was asked for, ready for use.
///
/// # Errors
/// Without libraries, kernel support or such a device: which of them, and what there is. When
/// packets of that length go through none of its ports.
pub fn check_choice(choice: &Options, mtu: PathMtu) -> Result<(), VerbsError> {
    let devices = survey::devices(&survey::addresses(&watcher()?.channel)?)?;
    let mut outcome = Ok(());
    for Choice { device, port, .. } in choose(&devices, choice)? {
        let of_device = devices.iter().find(|view| view.name == device);
        let ports = of_device.map_or(&[][..], |view| &view.ports);
        let active_bytes = ports.iter().find(|view| view.number == port).map(|view| view.mtu_bytes);
        match mtu.check(&device, port, active_bytes.unwrap_or(u32::MAX)) {
            Ok(()) => return Ok(()),
            error if outcome.is_ok() => outcome = error,
            _ => {}
        }
    }
    outcome
}

fn note(tried: &mut String, what: &impl std::fmt::Display, why: &str) {
    let between = if tried.is_empty() { "" } else { "; " };
    let _infallible = write!(tried, "{between}{what}: {why}");
}

/// This host's addresses that may be used.
fn allowed(bound: &[Bound], options: &Options) -> Result<Vec<SocketAddr>, VerbsError> {
    let choices = match choose(&survey::devices_of(bound), options) {
        Ok(choices) => choices,
        // Those that cannot be opened, or have no address, may be what is to be said.
        Err(_) => choose(&survey::devices(bound)?, options)?,
    };
    let may = |(address, device, port): &&Bound| {
        choices.iter().any(|choice| {
            choice.device == device.name()
                && choice.port == *port
                && choice.addresses.contains(&address.ip())
        })
    };
    Ok(bound.iter().filter(may).map(|(address, ..)| address.addr).collect())
}

/// All ways to the listener, best first. Without `pinned` the routes of this host decide where an
/// address that is not link-local is reached from.
fn ways(blob: &Blob, local: &[SocketAddr], pinned: bool, tried: &mut String) -> Vec<Way> {
    let mut ways = vec![];
    for &ip in &blob.addresses {
        let fits = |addr: &&SocketAddr| {
            addr.is_ipv4() == ip.is_ipv4() && is_link_local(addr.ip()) == is_link_local(ip)
        };
        let mut fitting = local.iter().filter(fits).peekable();
        if fitting.peek().is_none() {
            let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            let kind = if is_link_local(ip) { "link-local " } else { "" };
            let why = format!("no RDMA device of this host has a {kind}{family} address");
            note(tried, &SocketAddr::new(ip, blob.port), &why);
        } else if pinned || is_link_local(ip) {
            ways.extend(fitting.map(|from| Way { from: Some(*from), to: to(ip, blob.port, from) }));
        } else {
            ways.push(Way { from: None, to: SocketAddr::new(ip, blob.port) });
        }
    }
    ways.truncate(MAX_WAYS);
    ways
}

/// The address, on the interface of `from` if it needs one.
fn to(ip: IpAddr, port: u16, from: &SocketAddr) -> SocketAddr {
    let mut to = SocketAddr::new(ip, port);
    if let (SocketAddr::V6(to), SocketAddr::V6(from)) = (&mut to, from)
        && is_link_local(ip)
    {
        to.set_scope_id(from.scope_id());
    }
    to
}

fn left_ms(until: Instant) -> i32 {
    let left_ms = until.saturating_duration_since(Instant::now()).as_millis().max(1);
    i32::try_from(left_ms).unwrap_or(i32::MAX)
}

struct Attempt<'a> {
    watcher: &'static Arc<Watcher>,
    blob: &'a Blob,
    ticket: &'a [u8; 32],
    context: u64,
    options: &'a ConnectOptions,
}

impl Attempt<'_> {
    fn go(&self, way: Way, until: Instant) -> Result<Connected, Failure> {
        let (mut id, mut mail) = self.find(way, until)?;
        id.resolve_route(left_ms(until))?;
        self.expect(&mail, until, "finding a route")?;
        if let Some(path) = self.shorter(&id)? {
            // What has a route keeps it: the other way is another id's.
            (id, mail) = self.find(way, until)?;
            id.set_path(&path)?;
            self.expect(&mail, until, "setting its path MTU")?;
        }
        let device = id.device()?.ok_or(VerbsError::NoDevice)?;
        let (queue, link) = self.prepare(&id, &device)?;
        let established = self.request(&id, &device).map_err(Failure::from).and_then(|()| {
            self.expect(&mail, until, "its answer")?;
            Ok(())
        });
        if let Err(failure) = established {
            link.disconnected("it was never connected".to_owned());
            return Err(failure);
        }
        link.established();
        let via = format!("{} to {}", device.name(), way.to);
        let (endpoint, cq) = self.finish(queue, &link, mail, &device);
        Ok(Connected { endpoint, cq, via })
    }

    /// An id whose device and peer are known.
    fn find(&self, way: Way, until: Instant) -> Result<(Arc<Id>, Registered), Failure> {
        let id = Arc::new(Id::new(&self.watcher.channel)?);
        let mail = self.watcher.register(id.token());
        id.resolve_address(way.from, way.to, left_ms(until))?;
        self.expect(&mail, until, "finding it")?;
        id.set_ack_timeout(self.options.limits.in_range().ack_exponent());
        Ok((id, mail))
    }

    /// The path to take in place of the one that was found, if packets are to be shorter.
    fn shorter(&self, id: &Id) -> Result<Option<Path>, Failure> {
        let own = self.options.limits.path_mtu;
        let wanted = own.and(self.blob.path_mtu);
        if wanted == PathMtu::AUTO {
            return Ok(None);
        }
        let device = id.device()?.ok_or(VerbsError::NoDevice)?;
        check_mtu(own, &device, id.port())?;
        let Some(path) = id.path() else {
            let text = "it has no path MTU (iWARP): leave rdma_mtu at auto on both sides";
            return Err(Failure::Here(text.to_owned()));
        };
        Ok((wanted.code() < path.mtu()).then(|| path.with_mtu(wanted.code())))
    }

    /// Queue and queue pair.
    fn prepare(
        &self,
        id: &Arc<Id>,
        device: &Arc<Device>,
    ) -> Result<(Arc<Queue>, Arc<Link>), VerbsError> {
        let Hello { receive_bytes, max_message_bytes } = self.blob.hello;
        let mut limits = self.options.limits.in_range();
        limits.receive_bytes = receive_bytes as usize;
        limits.max_message_bytes = max_message_bytes as usize;
        limits.max_endpoints = 1;
        let mut of_queue = limits.of_queue();
        of_queue.total_sends = limits.send_depth * 2;
        let queue = Queue::new(&client_pd(device)?, of_queue)?;
        let qp = Id::make_qp(id, queue.qp_init())?;
        let link = queue.add(self.context, Side::Client, qp);
        let link = link.map_err(|full| VerbsError::Connect(full.to_string()))?;
        Ok((queue, link))
    }

    fn request(&self, id: &Id, device: &Device) -> Result<(), VerbsError> {
        let (initiates, serves) = reads_at_once(device)?;
        id.connect(Params {
            private: &self.blob.hello.request(self.ticket),
            responder_resources: serves,
            initiator_depth: initiates,
            retry_count: RETRIES,
        })
    }

    /// Waits for the next event, which is to be a good one.
    fn expect(&self, mail: &Mailbox, until: Instant, what: &str) -> Result<(), Failure> {
        let here = |text: &str| Err(Failure::Here(text.to_owned()));
        let Some(event) = mail.next(until) else {
            return Err(Failure::Here(format!("no answer in time to {what}: is the host up?")));
        };
        match event.happened {
            Happened::AddressResolved | Happened::RouteResolved => Ok(()),
            Happened::Established => match Hello::decode_answer(&event.private) {
                Ok(_) => Ok(()),
                Err(unclear) => Err(Failure::Here(unclear.to_string())),
            },
            Happened::Rejected => Err(rejected(&event)),
            Happened::AddressError => Err(Failure::Here(address_error(event.status))),
            Happened::RouteError => here("no route to it from the RDMA device"),
            Happened::Unreachable => here(
                "it does not answer: the host is down, a firewall drops UDP port 4791, or the \
                 networks of the devices are not connected",
            ),
            Happened::ConnectError => Err(Failure::Here(format!(
                "the connection failed: {}",
                std::io::Error::from_raw_os_error(event.status.abs())
            ))),
            Happened::DeviceRemoved => here("the RDMA device was removed"),
            other => Err(Failure::Here(format!("unexpected: {other:?}"))),
        }
    }

    fn finish(
        &self,
        queue: Arc<Queue>,
        link: &Arc<Link>,
        mail: Registered,
        device: &Arc<Device>,
    ) -> (Arc<dyn Endpoint>, Arc<dyn CompletionQueue>) {
        let sink = Arc::new(Sink { link: Arc::downgrade(link), queue: Arc::downgrade(&queue) });
        let connection: Weak<dyn Connection> = Arc::<Sink>::downgrade(&sink);
        mail.pass_on(connection);
        let concerned: Weak<dyn Concerned> = Arc::<Sink>::downgrade(&sink);
        if let Err(error) = self.watcher.watch(device, concerned) {
            tracing::warn!(%error, "the device's events are not heard");
        }
        (link.handle(), Arc::new(ClientQueue { queue, _sink: sink, _mail: mail }))
    }
}

fn rejected(event: &Event) -> Failure {
    let Some(no) = Rejection::decode(&event.private) else {
        return Failure::Here(match event.status {
            // iWARP's is an errno.
            NOBODY_LISTENS | -111 => "nobody listens there: the server has ended, restarted at \
                another port, or another host has its address"
                .to_owned(),
            status => format!("it was rejected (transport's reason {status})"),
        });
    };
    match no.reason {
        Reason::OtherDevice => Failure::Here(no.text),
        Reason::Full => Failure::All(ConnectError::Full(no.text)),
        Reason::Refused | Reason::Unclear | Reason::Failed => {
            Failure::All(ConnectError::Refused(no.text))
        }
    }
}

fn address_error(status: i32) -> String {
    let why = std::io::Error::from_raw_os_error(status.abs());
    format!(
        "not found ({why}): no host there answers ARP or neighbour discovery, or the way to it \
         leads through an interface without an RDMA device (`ip route get`)"
    )
}

/// What happens to an established connection.
struct Sink {
    link: Weak<Link>,
    queue: Weak<Queue>,
}

impl Connection for Sink {
    fn cm_event(&self, event: &Event) {
        let why = match event.happened {
            Happened::Disconnected => "the server ended the connection",
            Happened::DeviceRemoved => "the RDMA device was removed",
            _ => return,
        };
        if let Some(link) = self.link.upgrade() {
            link.disconnected(why.to_owned());
        }
    }
}

impl Concerned for Sink {
    fn device_event(&self, event: &DeviceEvent) {
        if let Some(queue) = self.queue.upgrade() {
            tell(&queue, event);
        }
    }
}

/// The queue of one connection, and what keeps news of it coming.
struct ClientQueue {
    queue: Arc<Queue>,
    _sink: Arc<Sink>,
    _mail: Registered,
}

impl CompletionQueue for ClientQueue {
    #[inline]
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.queue.poll(out, max)
    }

    fn wait(&self, timeout: Duration) -> Wait {
        self.queue.wait(timeout)
    }

    fn wake(&self) {
        self.queue.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect(text)
    }

    fn blob(addresses: &[&str]) -> Blob {
        let addresses = addresses.iter().map(|text| text.parse().expect(text)).collect();
        Blob { hello: Limits::default().hello(), port: 7000, path_mtu: PathMtu::AUTO, addresses }
    }

    #[test]
    fn families_are_matched_and_a_missing_one_is_named() {
        let mut tried = String::new();
        let blob = blob(&["10.0.0.1", "fd77::1"]);
        let found = ways(&blob, &[addr("[fd77::2]:0")], false, &mut tried);
        assert_eq!(found, [Way { from: None, to: addr("[fd77::1]:7000") }]);
        assert_eq!(tried, "10.0.0.1:7000: no RDMA device of this host has a IPv4 address");
    }

    #[test]
    fn link_local_addresses_are_tried_on_each_interface_that_has_one() {
        let scoped = |text: &str, scope: u32| {
            let mut addr = addr(text);
            if let SocketAddr::V6(v6) = &mut addr {
                v6.set_scope_id(scope);
            }
            addr
        };
        let local = [scoped("[fe80::2]:0", 2), addr("[fd77::2]:0"), scoped("[fe80::3]:0", 3)];
        let found = ways(&blob(&["fe80::1"]), &local, false, &mut String::new());
        let to = |scope| scoped("[fe80::1]:7000", scope);
        let expected =
            [Way { from: Some(local[0]), to: to(2) }, Way { from: Some(local[2]), to: to(3) }];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_chosen_device_is_the_only_one_tried() {
        let local = [addr("10.0.0.2:0"), addr("10.1.0.2:0")];
        let found = ways(&blob(&["10.0.0.1"]), &local, true, &mut String::new());
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].from, Some(local[1]));
        assert_eq!(found[1].to_string(), "10.0.0.1:7000 from 10.1.0.2");
    }

    #[test]
    fn a_descriptor_of_another_kind_is_refused_without_a_device() {
        for bytes in [&b""[..], b"\x02", b"garbage"] {
            let options = ConnectOptions::default();
            let error = connect(bytes, &[0; 32], 0, Duration::from_secs(1), &options);
            assert!(matches!(error, Err(ConnectError::Malformed(_))));
        }
    }
}
