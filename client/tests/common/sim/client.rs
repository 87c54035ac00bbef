//! A client: so many calls at a time as the plan says it has threads.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use onesided::core::Connection;
use onesided::{Count as Counter, Error, Options, Retirement, Table};
use onesided_fabric::sim::{Connected, SimEndpoint};
use onesided_fabric::{CompletionQueue, Outcome};
use onesided_protocol::control::{Retired, Welcome};

use super::calls::{Answers, Call};
use super::{Doubts, Seen, Sim, key};
use crate::linearize::{Op, Operation, Ret};

pub struct SimClient {
    number: usize,
    table: Table,
    /// By key: they know where a counter was.
    counters: Rc<Vec<onesided::Counter>>,
    connection: Arc<Connection>,
    endpoint: Arc<SimEndpoint>,
    /// Calls under way.
    busy: Vec<Busy>,
}

/// A call under way.
struct Busy {
    operations: Vec<(usize, Op)>,
    /// It may be given up at any moment: it changes nothing.
    is_lent: bool,
    /// It stores what lives so long as this client thinks that it does.
    is_short_lived: bool,
    call: u64,
    future: Pin<Box<dyn Future<Output = Answers>>>,
}

impl SimClient {
    pub fn new(sim: &Sim, number: usize) -> Self {
        let connected = connect(sim, number, false);
        let options = Options {
            // Wall-clock time means nothing here: no timeout may fire.
            operation_timeout: Duration::from_secs(3_600),
            reconnect: sim.plan.resumed_percent.is_some(),
            cache_bytes: sim.plan.cache_bytes,
            ..Options::default()
        };
        let (endpoint, cq) = (connected.endpoint, connected.cq);
        let welcome = welcome(sim, number, false);
        let connection = Connection::from_parts(endpoint.clone(), cq, welcome, None, options);
        let table =
            Table::from_parts(&connection, "t", sim.info.clone()).expect("one more descriptor");
        let counters = (0..sim.plan.keys).map(|n| table.counter(key(n))).collect();
        let counters = Rc::new(counters);
        let client = Self { number, table, counters, connection, endpoint, busy: Vec::new() };
        client.set_up(sim);
        client
    }

    pub fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Whether one of its threads has nothing to do.
    pub fn has_room(&self, sim: &Sim) -> bool {
        self.busy.len() < sim.plan.threads
    }

    /// Whether a call is under way that stores what expires.
    pub fn is_short_lived(&self) -> bool {
        self.busy.iter().any(|busy| busy.is_short_lived)
    }

    /// A connection begins.
    fn set_up(&self, sim: &Sim) {
        self.set_clock(sim);
        if sim.plan.commits_wait {
            self.connection.commit_with_the_next();
        }
    }

    /// The client's idea of the server's clock: wrong, but within its bound. The same one as long
    /// as it stores what expires, so that the history knows when that does.
    pub fn set_clock(&self, sim: &Sim) {
        const ERROR_NS: u64 = 400_000_000;
        if self.is_short_lived() {
            return;
        }
        let now_ns = sim.engine.clock_ns() - ERROR_NS + sim.pick(2 * ERROR_NS);
        self.connection.clock().set_manual(now_ns, ERROR_NS);
    }

    /// Begins a call, if one of its threads has nothing to do.
    pub fn begin(&mut self, sim: &Sim, call: Call) {
        if !self.has_room(sim) {
            return;
        }
        let mut is_short_lived = false;
        if let Call::Change { op: Op::Put { .. }, ttl_s, .. } = call {
            is_short_lived = ttl_s != 0;
            let now_s = (self.connection.clock().now_ns().0 / 1_000_000_000) as u32;
            let expiry_s = if is_short_lived { now_s + ttl_s } else { 0 };
            // If it asks the server, that one says better.
            sim.server.borrow_mut().lives_until(self.number, expiry_s);
        }
        let operations = call.operations();
        let is_lent = matches!(call, Call::GetLent(_));
        let future = Box::pin(call.make(self.table.clone(), Rc::clone(&self.counters)));
        self.busy.push(Busy { operations, is_lent, is_short_lived, call: sim.tick(), future });
        self.go_on(sim);
    }

    /// Goes on as far as completions allow.
    pub fn go_on(&mut self, sim: &Sim) {
        self.connection.dispatch();
        let looks = sim.plan.commits_per_mille;
        if looks > 0 && sim.pick(1000) < looks {
            let _looks_again = self.connection.look_after_commits();
        }
        let drops = sim.plan.drop_per_mille;
        let given_up = |busy: &mut Busy| busy.is_lent && sim.pick(1000) < drops;
        sim.dropped.update(|n| n + self.busy.extract_if(.., |busy| given_up(busy)).count() as u64);
        self.reconnect(sim);
        let polled = |busy: &mut Busy| {
            let polled = busy.future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            match polled {
                Poll::Ready(answers) => Some(answers),
                Poll::Pending => None,
            }
        };
        let mut n = 0;
        let before = self.busy.len();
        while let Some(busy) = self.busy.get_mut(n) {
            match polled(busy) {
                Some(answers) => self.is_over(sim, n, answers),
                None => n += 1,
            }
        }
        let some_are_over = self.busy.len() < before;
        let is_lost = !self.connection.is_alive() && sim.plan.resumed_percent.is_none();
        if some_are_over && is_lost && self.busy.is_empty() {
            sim.lost.update(|n| n + 1);
            *self = Self::new(sim, self.number);
        }
    }

    fn is_over(&mut self, sim: &Sim, n: usize, answers: Answers) {
        let busy = self.busy.remove(n);
        match answers {
            Ok(answers) => self.record(sim, &busy, &answers),
            // It says that nothing was applied, and no GET was answered.
            Err(Error::ConnectionLost(_)) => {}
            Err(error) => panic!("seed {}: a call failed: {error}", sim.plan.seed),
        }
    }

    /// If its connection broke: another one.
    fn reconnect(&mut self, sim: &Sim) {
        let Some(percent) = sim.plan.resumed_percent else { return };
        if !self.connection.is_alive() && !sim.apart.get() {
            let resumed = sim.pick(100) < percent;
            let Connected { endpoint, cq, .. } = connect(sim, self.number, resumed);
            let welcome = welcome(sim, self.number, resumed);
            self.connection = self.connection.again(endpoint.clone(), cq, welcome);
            self.endpoint = endpoint;
            self.set_up(sim);
        }
        if self.connection.is_alive() {
            self.table.go_on(&self.connection, &sim.info);
        }
    }

    fn record(&self, sim: &Sim, busy: &Busy, answers: &[Option<Ret>]) {
        let at = sim.tick();
        for (&(key, mut op), ret) in busy.operations.iter().zip(answers) {
            if let Op::Put { expiry_s, .. } | Op::Touch { expiry_s } = &mut op {
                *expiry_s = sim.server.borrow().expiry_s(self.number);
            }
            if let Some(Ret::Value(_, version) | Ret::Version(version)) = ret {
                sim.told.set(*version);
            }
            sim.gets.update(|gets| gets + u64::from(op == Op::Get));
            if ret.is_none() {
                let unknown = sim.doubts.get().unknown + 1;
                sim.doubts.set(Doubts { unknown, ..sim.doubts.get() });
            }
            let (client, call) = (self.number as u32, busy.call);
            let answer = ret.map(|ret| (at, ret));
            sim.record(key, Operation { client, call, answer, op });
        }
    }

    /// What it has to commit goes along with its next update.
    pub fn has_batch(&self) -> bool {
        self.connection.has_commits_for_the_next()
    }

    /// The server has retired memory.
    pub fn retire(&self, epoch: u64, retired: &[Retired]) -> Retirement {
        self.table.retire(&self.connection, epoch, retired.to_vec())
    }

    /// It ends between two of its steps: nothing of it goes on, and what it was at is in doubt.
    pub fn die(&mut self, sim: &Sim) {
        sim.world.kill(&self.endpoint);
        for busy in std::mem::take(&mut self.busy) {
            let nobody_knows: Vec<_> = busy.operations.iter().map(|_| None).collect();
            self.record(sim, &busy, &nobody_knows);
        }
        *self = Self::new(sim, self.number);
    }

    /// Its connection breaks.
    pub fn sever(&self, sim: &Sim) {
        sim.world.kill(&self.endpoint);
    }

    /// The server has ended its session; it can READ on.
    pub fn fence(&self, sim: &Sim) {
        sim.world.fence(&self.endpoint);
    }

    /// GETs that it answered with a miss by itself.
    pub fn one_sided_misses(&self) -> u64 {
        self.connection.stats().sum(Counter::OneSidedMisses)
    }

    /// Adds its counters.
    pub fn add_to(&self, seen: &mut Seen) {
        let stats = self.connection.stats();
        seen.retries += stats.sum(Counter::Retries);
        seen.checksum_failures += stats.sum(Counter::ChecksumFailures);
        seen.forward_hops += stats.sum(Counter::ForwardHops);
        seen.updates += stats.sum(Counter::CounterUpdates);
        seen.update_retries += stats.sum(Counter::CounterRetries);
        seen.rpc_gets += stats.sum(Counter::RpcGets);
        seen.one_sided_puts += stats.sum(Counter::OneSidedPuts);
        seen.update_round_trips += stats.sum(Counter::UpdateRoundTrips);
        seen.updates_lost += stats.sum(Counter::UpdatesLost);
    }
}

/// A connection to the server, of the session that the client has there or another one.
fn connect(sim: &Sim, number: usize, resumed: bool) -> Connected {
    let connected = sim.world.connect(&sim.port, &[number as u8; 32], number as u64);
    let connected = connected.expect("the door lets everybody in");
    let mut completions = Vec::new();
    sim.port.poll(&mut completions, 64);
    for completion in completions {
        let mut server = sim.server.borrow_mut();
        match completion.outcome {
            Outcome::Connected(end) => server.connected(number, end, resumed),
            outcome => server.arrived(completion.context, outcome),
        }
    }
    connected
}

fn welcome(sim: &Sim, number: usize, resumed: bool) -> Welcome {
    Welcome {
        wire: 1,
        session: sim.server.borrow().session(number as u64),
        resume_key: 1,
        resumed,
        applied_sequence: 0,
        incarnation: sim.engine.incarnation(),
        clock_ns: sim.engine.clock_ns(),
        catalog_epoch: sim.engine.catalog_epoch(),
        lease_ms: 10_000,
        heartbeat_ms: 1_000,
        credits: 64,
        value_max_bytes: 32 << 20,
        ticket: [0; 32],
        fabrics: Vec::new(),
    }
}

impl fmt::Debug for SimClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy: Vec<_> = self.busy.iter().map(|busy| &busy.operations).collect();
        write!(f, "client {} ({:?}) {busy:?}", self.number, self.connection)
    }
}
