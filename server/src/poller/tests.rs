//! The poller over a fabric on which a READ is a round trip, step by step.

mod card;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use onesided_fabric::{Admission, BufferPool, FabricKind, Memory, WorkError};
use onesided_protocol::control::TableOptions;
use onesided_protocol::rpc::{
    Answer, ErrorCode, Expect, Landing, Op, Payload, Reply, Request, RpcError, Ttl,
};

use super::*;
use crate::clock::ServerClock;
use crate::engine::{Engine, EngineConfig};
use crate::session::{Gate, Limits, Session};
use crate::stats::Stats;
use crate::tenant::Tenant;
use card::{Card, Port};

const STAGING: usize = 64 << 10;
const KIB: u32 = 1 << 10;

struct Rig {
    card: Arc<Card>,
    poller: Poller,
    state: State,
    gate: Gate,
    tenant: Arc<Tenant>,
    table: u32,
    next_id: u64,
}

struct Peer1 {
    port: Arc<Port>,
    session: Arc<Session>,
}

impl Rig {
    fn new(budget_bytes: usize) -> Self {
        let make = |_: &str, len_bytes, _| Memory::private(len_bytes);
        let config = EngineConfig { memory_bytes: 64 << 20, ..EngineConfig::default() };
        let clock = Arc::new(ServerClock::default());
        let engine = Engine::new(config, Box::new(make), clock).expect("an engine");
        let table = engine.create_table("t", TableOptions::default()).expect("a table").id;
        let stats = Arc::new(Stats::default());
        let lease = Duration::from_secs(60);
        let limits = Limits {
            max_sessions: 99,
            session_lease: lease,
            ticket_lease: lease,
            acknowledge: lease,
        };
        let sessions = Arc::new(Sessions::new(limits, Arc::clone(&stats)));
        let gate = Gate { sessions: Arc::clone(&sessions), stats: Arc::clone(&stats) };
        let card = Arc::new(Card::default());
        let poller = Poller {
            cq: Arc::clone(&card) as Arc<dyn CompletionQueue>,
            dispatcher: Dispatcher::new(&stats, &Arc::default(), 32 << 10),
            sessions,
            stopping: Arc::new(AtomicBool::new(false)),
            kind: FabricKind::Verbs,
            credits: 8,
            staging_bytes: STAGING,
            pool: BufferPool::new(),
            fetch_bytes: budget_bytes,
            blocked_max: lease,
            spin: Duration::ZERO,
            sleep: Duration::ZERO,
        };
        let state = State::new(&poller);
        let tenant = Tenant::alone(engine);
        Self { card, poller, state, gate, tenant, table, next_id: 1 }
    }

    fn connect(&mut self, depth: usize) -> Peer1 {
        let opened = self.poller.sessions.open(&self.tenant, (0, 0)).expect("a session");
        self.endpoint(&opened.ticket, opened.session, depth)
    }

    fn endpoint(&mut self, ticket: &[u8; 32], session: Arc<Session>, depth: usize) -> Peer1 {
        let context = self.gate.admit(ticket).expect("admitted");
        let memory = (0..STAGING).map(|i| (i * 7 + context as usize) as u8).collect();
        let port = Port::new(&self.card, context, depth, memory);
        port.connect();
        self.turn();
        Peer1 { port, session }
    }

    fn turn(&mut self) {
        self.poller.turn(&mut self.state);
    }

    fn send(&mut self, peer: &Peer1, sequence: u64, op: Op<'_>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut bytes = Vec::new();
        Request { id, sequence, table: self.table, op }.encode(&mut bytes);
        peer.port.receive(self.poller.pool.copy_of(&bytes));
        id
    }

    /// Lets card and poller go on until nothing more happens.
    fn settle(&mut self, peers: &[&Peer1]) {
        for _ in 0..1000 {
            self.turn();
            let worked: usize = peers.iter().map(|peer| peer.port.work(usize::MAX)).sum();
            if worked == 0 && self.card.ready.lock().is_empty() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let table = self.tenant.engine.table(self.table).expect("the table");
        table.get(key, &mut value).map(|_| value)
    }

    /// Requests that wait for values, by both counts of them.
    fn pending(&self) -> u64 {
        let pending = self.poller.dispatcher.stats.fetching.get();
        assert_eq!(self.state.fetches.is_empty(), pending == 0);
        pending
    }
}

fn put(key: &[u8], offset_bytes: u64, len_bytes: u32) -> Op<'_> {
    let value = Payload::Staged { offset_bytes, len_bytes };
    Op::Put { key, value, expect: Expect::Any, ttl: Ttl::Never, user_flags: 0 }
}

fn append(key: &[u8], offset_bytes: u64, len_bytes: u32) -> Op<'_> {
    Op::Append { key, value: Payload::Staged { offset_bytes, len_bytes } }
}

/// The next answer: its id and, unless it holds more, what it says.
fn answer(peer: &Peer1) -> Option<(u64, Result<&'static str, RpcError>)> {
    let bytes = peer.port.answer()?;
    let Answer { id, result } = Answer::decode(&bytes).expect("decodes");
    let text = |reply| match reply {
        Reply::Done { .. } => "done",
        Reply::Pong => "pong",
        _ => "more",
    };
    Some((id, result.map(text)))
}

fn done(id: u64) -> Option<(u64, Result<&'static str, RpcError>)> {
    Some((id, Ok("done")))
}

fn batch(peer: &Peer1) -> Vec<Result<&'static str, ErrorCode>> {
    let bytes = peer.port.answer().expect("an answer");
    let reply = Answer::decode(&bytes).expect("decodes").result.expect("a batch");
    let Reply::Batch(results) = reply else { panic!("{reply:?}") };
    let brief = |result| match result {
        Ok(Reply::Done { .. }) => Ok("done"),
        Ok(Reply::Found(_)) => Ok("found"),
        Ok(_) => Ok("more"),
        Err(RpcError { code, .. }) => Err(code),
    };
    results.into_iter().map(brief).collect()
}

#[test]
fn read_first_then_served_and_overtaken() {
    let mut rig = Rig::new(STAGING);
    let peer = rig.connect(64);
    let first = rig.send(&peer, 1, put(b"k", 100, 20 * KIB));
    rig.turn();
    assert_eq!((rig.get(b"k"), rig.pending()), (None, 1));
    assert_eq!(peer.port.reading_bytes(), 20 << 10);
    let ping = rig.send(&peer, 0, Op::Ping);
    rig.settle(&[&peer]);
    assert_eq!(rig.get(b"k"), Some(peer.port.memory(100, 20 << 10)));
    assert_eq!(rig.pending(), 0);
    // The READ was there first, but the ping was served when it came.
    assert_eq!(answer(&peer), Some((ping, Ok("pong"))));
    assert_eq!(answer(&peer), done(first));
    let empty = rig.send(&peer, 2, put(b"k", 5, 0));
    rig.settle(&[&peer]);
    assert_eq!((answer(&peer), rig.get(b"k")), (done(empty), Some(Vec::new())));
}

#[test]
fn bytes_are_bounded_over_all_clients_and_the_oldest_goes_first() {
    let mut rig = Rig::new(40 << 10);
    let peers: Vec<Peer1> = (0..3).map(|_| rig.connect(64)).collect();
    let keys: Vec<Vec<u8>> = (0..24u8).map(|n| vec![n]).collect();
    for (n, key) in keys.iter().enumerate() {
        rig.send(&peers[n % 3], 1 + n as u64 / 3, put(key, n as u64, 16 * KIB));
    }
    let mut finished = Vec::new();
    while finished.len() < keys.len() {
        rig.turn();
        let reading: usize = peers.iter().map(|peer| peer.port.reading_bytes()).sum();
        assert!(reading <= 40 << 10, "{reading} bytes at once");
        assert!(reading > 0 || rig.pending() == 0, "somebody's turn it is");
        for peer in &peers {
            peer.port.work(1);
        }
        for (n, key) in keys.iter().enumerate() {
            if !finished.contains(&n) && rig.get(key).is_some() {
                finished.push(n);
            }
        }
    }
    let late = |pair: &[usize]| pair[0] > pair[1] + 3;
    assert!(!finished.windows(2).any(late), "{finished:?}");
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(rig.get(key), Some(peers[n % 3].port.memory(n, 16 << 10)));
    }
    assert_eq!(rig.pending(), 0);
}

#[test]
fn who_dies_in_mid_rendezvous_leaves_nothing_and_holds_nobody_up() {
    for error in [WorkError::PeerGone, WorkError::Flushed] {
        let mut rig = Rig::new(32 << 10);
        let (dying, other) = (rig.connect(64), rig.connect(64));
        for sequence in 1..=8 {
            rig.send(&dying, sequence, append(b"d", 0, 20 * KIB));
        }
        rig.turn();
        let id = rig.send(&other, 1, put(b"o", 0, 20 * KIB));
        rig.turn();
        assert_eq!((rig.pending(), other.port.reading_bytes()), (9, 0));
        dying.port.work(1);
        dying.port.die(error);
        rig.settle(&[&other]);
        assert_eq!(answer(&other), done(id));
        assert_eq!(rig.get(b"d").map(|value| value.len()), Some(20 << 10), "what was read before");
        assert_eq!((rig.pending(), rig.state.clients.len()), (0, 1));
    }
}

#[test]
fn too_many_at_once_end_it_and_its_values_are_dropped() {
    let mut rig = Rig::new(STAGING);
    let peer = rig.connect(64);
    for sequence in 1..=8 {
        rig.send(&peer, sequence, put(b"k", 0, KIB));
    }
    rig.turn();
    assert_eq!(rig.pending(), 8, "its credits");
    rig.send(&peer, 9, put(b"k", 0, KIB));
    rig.settle(&[&peer]);
    assert!(rig.state.clients.is_empty());
    assert_eq!((rig.get(b"k"), rig.pending()), (None, 0));
}

#[test]
fn an_ended_session_applies_nothing_more() {
    let mut rig = Rig::new(STAGING);
    let peer = rig.connect(64);
    rig.send(&peer, 1, put(b"k", 0, KIB));
    rig.turn();
    peer.port.work(1);
    rig.poller.sessions.end(&peer.session, crate::stats::Ended::Goodbye);
    rig.settle(&[&peer]);
    assert_eq!((rig.get(b"k"), rig.pending(), rig.state.clients.len()), (None, 0, 0));
}

#[test]
fn a_retry_that_meets_the_first_try_is_applied_once() {
    let mut rig = Rig::new(STAGING);
    let first = rig.connect(64);
    let ticket = rig.poller.sessions.ticket(&first.session);
    let second = rig.endpoint(&ticket, Arc::clone(&first.session), 64);
    let ids = [&first, &second].map(|peer| rig.send(peer, 1, append(b"k", 0, KIB)));
    rig.turn();
    assert_eq!(rig.pending(), 2, "both are being read");
    rig.settle(&[&first, &second]);
    assert_eq!((answer(&first), answer(&second)), (done(ids[0]), done(ids[1])));
    assert_eq!(rig.get(b"k").map(|value| value.len()), Some(1 << 10));
}

#[test]
fn a_value_that_does_not_come_ends_the_connection() {
    let mut rig = Rig::new(STAGING);
    rig.poller.blocked_max = Duration::ZERO;
    let peer = rig.connect(64);
    rig.send(&peer, 1, put(b"k", 0, KIB));
    rig.turn();
    std::thread::sleep(Duration::from_millis(1));
    rig.turn();
    rig.turn();
    assert!(peer.port.is_closed());
    rig.turn();
    assert_eq!((rig.pending(), rig.state.clients.len()), (0, 0));
}

#[test]
fn who_takes_no_answers_keeps_no_values_and_is_served_later() {
    let mut rig = Rig::new(STAGING);
    let peer = rig.connect(2);
    for _ in 0..3 {
        rig.send(&peer, 0, Op::Ping);
    }
    rig.turn();
    let id = rig.send(&peer, 1, put(b"k", 0, KIB));
    rig.turn();
    assert_eq!((rig.pending(), peer.port.reading_bytes()), (0, 0), "blocked: it waits");
    rig.settle(&[&peer]);
    let answers: Vec<_> = std::iter::from_fn(|| answer(&peer)).collect();
    assert_eq!((answers.len(), answers.last().cloned()), (4, done(id)));
}

#[test]
fn a_batch_of_values_good_and_bad() {
    let mut rig = Rig::new(STAGING);
    let peer = rig.connect(64);
    let half = STAGING as u32 / 2;
    let end = STAGING as u64;
    let ops = vec![
        put(b"a", 0, half),
        put(b"b", end - 1, 2),
        put(b"c", 0, half + 1),
        Op::Put {
            key: b"d",
            value: Payload::Inline(b"inline"),
            expect: Expect::Any,
            ttl: Ttl::Never,
            user_flags: 0,
        },
        put(b"e", u64::MAX, 1),
        append(b"d", 7, 5),
        put(b"f", end / 2, half),
        put(b"g", end - 9, 9),
    ];
    rig.send(&peer, 1, Op::Batch(ops));
    rig.turn();
    assert_eq!(peer.port.reading_bytes(), half as usize + 5 + 9);
    rig.settle(&[&peer]);
    let bad = Err(ErrorCode::BadDescriptor);
    let expected =
        [Ok("done"), bad, Err(ErrorCode::TooLarge), Ok("done"), bad, Ok("done"), bad, Ok("done")];
    assert_eq!(batch(&peer), expected, "f is more than the memory holds beside the others");
    assert_eq!(rig.get(b"a"), Some(peer.port.memory(0, half as usize)));
    let appended = [&b"inline"[..], &peer.port.memory(7, 5)].concat();
    assert_eq!(rig.get(b"d"), Some(appended));
    assert_eq!(rig.get(b"g"), Some(peer.port.memory(STAGING - 9, 9)));
    assert_eq!((rig.get(b"b"), rig.get(b"f"), rig.pending()), (None, None, 0));
}

#[test]
fn more_unsignalled_writes_than_places_and_bytes() {
    for depth in [1, 2, 5, 16] {
        let mut rig = Rig::new(STAGING);
        let peer = rig.connect(depth);
        rig.send(&peer, 1, put(b"k", 0, 600));
        rig.settle(&[&peer]);
        let value = peer.port.memory(0, 600);
        assert!(peer.port.answer().is_some());
        let get = |n: u64| {
            let landing = Some(Landing { offset_bytes: n * 600, len_bytes: 600 });
            Op::Get { key: b"k", landing }
        };
        // 100 values do not fit into a message of 16 KiB beside the room for 100 results.
        rig.send(&peer, 0, Op::Batch((0..100).map(get).collect()));
        rig.settle(&[&peer]);
        let results = batch(&peer);
        assert!(results.iter().all(|result| *result == Ok("found")), "{results:?}");
        assert_eq!(peer.port.memory(99 * 600, 600), value, "depth {depth}");
        // Landings that overlap do not make the server hold more than the memory has.
        let same = |_| get(0);
        rig.send(&peer, 0, Op::Batch((0..150).map(same).collect()));
        rig.settle(&[&peer]);
        let results = batch(&peer);
        let refused = results.iter().filter(|r| **r == Err(ErrorCode::NeedsLanding)).count();
        assert!((20..40).contains(&refused), "{refused}");
    }
}
