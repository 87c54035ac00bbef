//! A connection without threads in the simulated world: READs behind one doorbell, requests and
//! answers delayed and reordered, full queues, and connections that die at any moment.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use onesided::core::Connection;
use onesided::{Error, Options, Table, TableInfo, TableOptions};
use onesided_fabric::sim::{self, SimEndpoint, World};
use onesided_fabric::{
    Buffer, BufferPool, CompletionQueue, Endpoint, Opcode, Outcome, RegionId, RemoteAddr, Rights,
    WorkRequest,
};
use onesided_protocol::control::Welcome;
use onesided_protocol::layout::catalog::DirectoryWord;
use onesided_protocol::rpc::{Answer, Op, Reply, Request};

const REGION: RegionId = RegionId(1);
const WORDS: usize = 4096;
const SEEDS: u64 = 200;

fn welcome(credits: u32) -> Welcome {
    Welcome {
        wire: 1,
        session: 1,
        resume_key: 2,
        resumed: false,
        applied_sequence: 0,
        incarnation: 3,
        clock_ns: 4,
        catalog_epoch: 5,
        lease_ms: 1000,
        heartbeat_ms: 100,
        credits,
        value_max_bytes: 1 << 20,
        ticket: [0; 32],
        fabrics: Vec::new(),
    }
}

struct Simulated {
    world: Arc<World>,
    server: Arc<SimEndpoint>,
    server_cq: Arc<sim::Queue>,
    connection: Arc<Connection>,
    pool: BufferPool,
    applied: i64,
    highest: u64,
}

impl Simulated {
    fn new(seed: u64, network: sim::Options, credits: u32) -> Self {
        let options = Options { reconnect: false, ..Options::default() };
        Self::with(seed, network, credits, options)
    }

    fn with(seed: u64, network: sim::Options, credits: u32, options: Options) -> Self {
        let world = World::new(seed, network);
        let pair = world.pair(1, 2);
        let memory = Arc::new(world.memory(WORDS * 8).unwrap());
        for word in 0..WORDS {
            memory.store(word * 8, word as u64).unwrap();
        }
        world.expose(&pair.server, REGION, memory, Rights::ReadOnly);
        pair.client.attach(REGION, &[]).unwrap();
        let welcome = welcome(credits);
        let connection =
            Connection::from_parts(pair.client, pair.client_cq, welcome, None, options);
        let (server, server_cq) = (pair.server, pair.server_cq);
        Self {
            world,
            server,
            server_cq,
            connection,
            pool: BufferPool::new(),
            applied: 0,
            highest: 0,
        }
    }

    /// Polls until it is ready; the world goes on in between.
    fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..1_000_000 {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            self.world.step();
            self.serve();
            self.connection.dispatch();
        }
        panic!("SEED={}: never ready", self.world.seed());
    }

    /// A server that counts.
    fn serve(&mut self) {
        let mut completions = Vec::new();
        self.server_cq.poll(&mut completions, 64);
        for completion in completions {
            let Outcome::Received(message) = completion.outcome else { continue };
            let request = Request::decode(&message).unwrap();
            let Op::Increment { by, .. } = request.op else { panic!("{request:?}") };
            assert!(request.sequence + 64 > self.highest, "outside the window");
            self.highest = self.highest.max(request.sequence);
            self.applied += by;
            let reply = Reply::Number { value: self.applied, version: 1 };
            let mut answer = Vec::new();
            Answer { id: request.id, result: Ok(reply) }.encode(&mut answer);
            let message = self.pool.copy_of(&answer);
            let send = WorkRequest { id: 0, signaled: false, op: Opcode::Send { message } };
            // A dead connection takes no answers.
            let _dead = self.server.post(&mut [send].into());
        }
    }
}

fn table(connection: &Arc<Connection>) -> Table {
    let info = TableInfo {
        id: 1,
        slot: 0,
        hash_seed: 1,
        secret: 2,
        directory: DirectoryWord(0),
        options: TableOptions::default(),
        updates_over: None,
    };
    Table::from_parts(connection, "t", info).unwrap()
}

/// Places and lengths that overlap, more than the send queue holds.
fn wanted(seed: u64) -> Vec<(RemoteAddr, usize)> {
    (0..40u64)
        .map(|n| {
            let word = (seed * 31 + n * 97) % (WORDS as u64 - 64);
            let remote = RemoteAddr { region: REGION, offset_bytes: word * 8 };
            (remote, 8 * (1 + (n as usize * 7 + seed as usize) % 64))
        })
        .collect()
}

#[test]
fn reads_behind_one_doorbell_come_back_in_their_order() {
    for seed in 0..SEEDS {
        let options = sim::Options { send_depth: 8, ..sim::Options::default() };
        let mut sim = Simulated::new(seed, options, 4);
        let connection = Arc::clone(&sim.connection);
        let wanted = wanted(seed);
        let buffers = sim.run(connection.read_many(&wanted)).unwrap();
        assert_eq!(buffers.len(), wanted.len());
        for (buffer, (remote, len_bytes)) in buffers.iter().zip(&wanted) {
            let first = remote.offset_bytes / 8;
            let expected: Vec<u64> = (first..first + *len_bytes as u64 / 8).collect();
            assert_eq!(buffer.words(), expected, "SEED={seed}");
        }
    }
}

#[test]
fn more_requests_than_credits_are_all_answered_once() {
    for seed in 0..SEEDS {
        let mut sim = Simulated::new(seed, sim::Options::default(), 3);
        let table = table(&sim.connection);
        let all = async {
            let mut calls: Vec<_> = (0..20).map(|_| Box::pin(table.increment("n", 1))).collect();
            let mut values = Vec::new();
            std::future::poll_fn(|cx| {
                calls.retain_mut(|call| match call.as_mut().poll(cx) {
                    Poll::Ready(value) => {
                        values.push(value.unwrap());
                        false
                    }
                    Poll::Pending => true,
                });
                if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            values.sort_unstable();
            values
        };
        assert_eq!(sim.run(all), (1..=20).collect::<Vec<_>>(), "SEED={seed}");
    }
}

#[test]
fn a_connection_that_dies_ends_everything() {
    let mut ends = (0, 0);
    for seed in 0..SEEDS {
        let options = sim::Options { kill_per_million: 3_000, ..sim::Options::default() };
        let mut sim = Simulated::new(seed, options, 4);
        let connection = Arc::clone(&sim.connection);
        let table = table(&connection);
        for _ in 0..30 {
            match sim.run(connection.read_many(&wanted(seed))) {
                Ok(_) => ends.0 += 1,
                Err(Error::ConnectionLost(_)) => ends.1 += 1,
                Err(error) => panic!("SEED={seed}: {error}"),
            }
            match sim.run(table.increment("n", 1)) {
                Ok(_) => ends.0 += 1,
                Err(Error::ConnectionLost(_) | Error::OutcomeUnknown { .. }) => ends.1 += 1,
                Err(error) => panic!("SEED={seed}: {error}"),
            }
        }
    }
    assert!(ends.0 > 100 && ends.1 > 100, "both happened: {ends:?}");
}

#[test]
fn dropped_reads_give_their_slots_back() {
    let mut sim = Simulated::new(7, sim::Options::default(), 4);
    let connection = Arc::clone(&sim.connection);
    let place = [(RemoteAddr { region: REGION, offset_bytes: 64 }, 64)];
    // More than there are slots.
    for _ in 0..3000 {
        {
            let mut read = pin!(connection.read_many(&place));
            let _pending = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        for _ in 0..20 {
            sim.world.step();
            connection.dispatch();
        }
    }
    let buffers = sim.run(connection.read_many(&place)).unwrap();
    assert_eq!(buffers[0].words(), [8, 9, 10, 11, 12, 13, 14, 15]);
}

/// Given up after any number of steps: nobody gets the buffer's memory before the READ is complete.
#[test]
fn a_dropped_read_keeps_its_buffer_until_it_is_complete() {
    const LEN_BYTES: usize = 4096;
    let (mut under_way, mut complete) = (0, 0);
    for steps in 0..SEEDS {
        let mut sim = Simulated::new(steps, sim::Options::default(), 4);
        let connection = Arc::clone(&sim.connection);
        let remote = RemoteAddr { region: REGION, offset_bytes: 64 };
        let lent = sim.pool.get(LEN_BYTES);
        let addr = lent.addr();
        {
            let mut read = pin!(connection.read_into(remote, lent));
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..=steps {
                if let Poll::Ready(buffer) = read.as_mut().poll(&mut cx) {
                    assert_eq!(buffer.unwrap().words()[..3], [8, 9, 10], "SEED={steps}");
                    break;
                }
                sim.world.step();
                connection.dispatch();
            }
        }
        let mut others: Vec<Buffer> = (0..3).map(|_| sim.pool.get(LEN_BYTES)).collect();
        others.iter_mut().for_each(|buffer| buffer.fill(0xEE));
        let is_complete = others.iter().any(|buffer| buffer.addr() == addr);
        // Another READ, so that the world goes on until the first one is long complete.
        sim.run(connection.read_many(&wanted(steps))).unwrap();
        sim.run(connection.read_many(&wanted(steps))).unwrap();
        assert!(others.iter().all(|other| other.iter().all(|&byte| byte == 0xEE)), "SEED={steps}");
        if is_complete {
            complete += 1;
        } else {
            under_way += 1;
            assert_eq!(sim.pool.get(LEN_BYTES).addr(), addr, "SEED={steps}: it comes back");
        }
    }
    assert!(under_way > 20 && complete > 20, "{under_way} under way, {complete} complete");
}

/// Out of time while the READ is under way: an error, and the buffer's memory is nobody's.
#[test]
fn a_read_that_takes_too_long_keeps_its_buffer() {
    let options = Options { operation_timeout: Duration::from_millis(1), ..Options::default() };
    let sim = Simulated::with(3, sim::Options::default(), 4, options);
    let connection = Arc::clone(&sim.connection);
    let lent = sim.pool.get(4096);
    let addr = lent.addr();
    let mut read =
        Box::pin(connection.read_into(RemoteAddr { region: REGION, offset_bytes: 0 }, lent));
    let outcome = loop {
        // The world stands still.
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    let other = sim.pool.get(4096);
    assert_ne!(other.addr(), addr);
    for _ in 0..2_000 {
        sim.world.step();
        connection.dispatch();
    }
    assert_eq!(sim.pool.get(4096).addr(), addr, "it comes back when the READ is complete");
}
