//! Peers that do not do what this crate's client does. They need a device: see
//! `tools/guests/tests/verbs_setup.sh`.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::endpoint::Refused;
use crate::mem::Memory;
use crate::verbs::hello::VERSION;
use crate::verbs::setup::client_pd;
use crate::verbs::{ConnectOptions, connect};
use crate::work::{Completion, Outcome, RegionId, Rights};

pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Lets everybody in whose ticket ends with a 1.
struct Gate {
    asked: Mutex<Vec<[u8; 32]>>,
}

impl Admission for Gate {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        self.asked.lock().push(*ticket);
        if ticket[31] == 1 { Ok(ticket[0].into()) } else { Err(Refused("no".to_owned())) }
    }

    fn region(&self, _: u64, _: RegionId) -> Option<(Arc<Memory>, Rights)> {
        None
    }
}

pub(super) fn has_device() -> bool {
    let has = std::env::var_os("ONESIDED_VERBS").is_some();
    if !has {
        eprintln!("DID NOT RUN: needs an RDMA device and ONESIDED_VERBS=1, as tools/guests/test");
    }
    has
}

struct Host {
    gate: Arc<Gate>,
    listener: Listener,
    cq: Arc<dyn CompletionQueue>,
}

fn host(limits: Limits) -> Host {
    let gate = Arc::new(Gate { asked: Mutex::default() });
    let admission = Arc::clone(&gate) as Arc<dyn Admission>;
    let (listener, cq) =
        Listener::start(&Options::default(), 0, limits, admission).expect("a listener");
    Host { gate, listener, cq }
}

impl Host {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.listener.choice.addresses[0], self.listener.port)
    }

    /// A connection as it should be.
    fn good(&self, number: u8) -> Result<crate::verbs::Connected, crate::verbs::ConnectError> {
        let options = ConnectOptions::default();
        connect(&self.listener.blob(512), &ticket(number), 5, TIMEOUT, &options)
    }

    /// What has happened, polled for a while.
    fn hears(&self, enough: impl Fn(&[Completion]) -> bool) -> Vec<Completion> {
        let mut out = vec![];
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.cq.poll(&mut out, 64);
            if enough(&out) || Instant::now() > deadline {
                return out;
            }
            self.cq.wait(Duration::from_millis(20));
        }
    }
}

pub(super) fn ticket(number: u8) -> [u8; 32] {
    let mut ticket = [1; 32];
    ticket[0] = number;
    ticket
}

/// A peer that says whatever it wants.
pub(super) struct Raw {
    pub(super) id: Arc<Id>,
    channel: Arc<Channel>,
    pub(super) link: Arc<Link>,
    pub(super) queue: Arc<Queue>,
}

impl Raw {
    /// Sends a request; its answer is not taken.
    pub(super) fn request(to: SocketAddr, private: &[u8]) -> Self {
        let channel = Channel::new().expect("a channel");
        let id = Arc::new(Id::new(&channel).expect("an id"));
        id.resolve_address(None, to, 10_000).expect("resolving");
        assert!(matches!(event(&channel).happened, Happened::AddressResolved));
        id.resolve_route(10_000).expect("resolving");
        assert!(matches!(event(&channel).happened, Happened::RouteResolved));
        let device = id.device().expect("a device").expect("a device");
        let pd = client_pd(&device).expect("a domain");
        let queue = Queue::new(&pd, Limits::default().of_queue()).expect("a queue");
        let qp = Id::make_qp(&id, queue.qp_init()).expect("a queue pair");
        let link = queue.add(0, Side::Client, qp).expect("a place");
        let params =
            Params { private, responder_resources: 1, initiator_depth: 1, retry_count: RETRIES };
        id.connect(params).expect("a request");
        Self { id, channel, link, queue }
    }

    /// Takes the answer.
    pub(super) fn answer(&self) -> Event {
        event(&self.channel)
    }
}

/// The next event of a channel.
fn event(channel: &Arc<Channel>) -> Event {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Some(event) = channel.next().expect("events") {
            return event;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no event");
}

fn reason(event: &Event) -> Option<Reason> {
    match event.happened {
        Happened::Rejected => Rejection::decode(&event.private).map(|no| no.reason),
        _ => None,
    }
}

#[test]
fn wrong_words_get_no_queue_pair_and_a_reason() {
    if !has_device() {
        return;
    }
    let host = host(Limits::default());
    let hello = host.listener.hello;
    let good = hello.request(&ticket(1));
    let mut version = good;
    version[2] = VERSION + 1;
    let mut sizes = good;
    sizes[4] ^= 1;
    let mut wrong: Vec<Vec<u8>> =
        vec![vec![], b"garbage".to_vec(), vec![0xff; 56], version.into(), sizes.into()];
    wrong.extend([3, 4, 12, 20].map(|len| good[..len].to_vec()));
    let mut random = StdRng::seed_from_u64(11);
    wrong.extend(
        (0..20).map(|_| (0..random.random_range(0..57)).map(|_| random.random()).collect()),
    );
    for private in &wrong {
        let answer = Raw::request(host.address(), private).answer();
        let reason = reason(&answer);
        let padded = private.len() >= 12 && good.starts_with(private);
        // Over RoCE what is cut off arrives as zeros: a ticket, though none that is good.
        let expected = if padded { Reason::Refused } else { Reason::Unclear };
        assert_eq!(reason, Some(expected), "{private:?}: {answer:?}");
    }
    let told = Rejection::decode(&Raw::request(host.address(), &version).answer().private);
    let text = told.expect("a text").text;
    assert!(text.contains("version 2") && text.contains("version 1"), "both named: {text}");
    assert_eq!(host.gate.asked.lock().len(), 2, "only what looks like a ticket is asked about");
    assert!(host.good(9).is_ok(), "others are unharmed");
}

#[test]
fn peers_that_never_confirm_are_few_and_given_up() {
    if !has_device() {
        return;
    }
    let limits = Limits {
        pending_handshakes: 2,
        handshake_timeout_ms: 1_000,
        max_endpoints: 3,
        ..Limits::default()
    };
    let host = host(limits);
    let request = |number| host.listener.hello.request(&ticket(number));
    for round in 0..3 {
        let silent = [1, 2].map(|number| Raw::request(host.address(), &request(number)));
        let deadline = Instant::now() + TIMEOUT;
        while host.gate.asked.lock().len() < 2 * (round + 1) + round {
            assert!(Instant::now() < deadline, "both are let in");
            std::thread::sleep(Duration::from_millis(5));
        }
        let third = Raw::request(host.address(), &request(3)).answer();
        assert_eq!(reason(&third), Some(Reason::Full), "{third:?}");
        // Given up, they leave their places.
        let good = loop {
            match host.good(9) {
                Ok(good) => break good,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            host.hears(|_| true);
            std::thread::sleep(Duration::from_millis(50));
        };
        let heard =
            host.hears(|all| all.iter().any(|c| matches!(c.outcome, Outcome::Connected(_))));
        assert!(heard.iter().any(|c| c.context == 9), "{heard:?}");
        drop((silent, good, heard));
        host.hears(|all| all.iter().any(|c| c.context == 9));
    }
}

#[test]
fn a_peer_that_vanishes_while_connecting_is_forgotten() {
    if !has_device() {
        return;
    }
    let host = host(Limits { max_endpoints: 4, ..Limits::default() });
    for number in 0..40 {
        let raw = Raw::request(host.address(), &host.listener.hello.request(&ticket(number)));
        if number % 2 == 0 {
            // Before or after the answer, as it happens.
            std::thread::sleep(Duration::from_millis(number.into()));
        }
        assert!(raw.id.token() > 0);
        drop(raw);
        host.hears(|_| true);
    }
    let deadline = Instant::now() + TIMEOUT;
    while let Err(error) = host.good(77) {
        assert!(Instant::now() < deadline, "its places come back: {error}");
        host.hears(|_| true);
        std::thread::sleep(Duration::from_millis(50));
    }
}
