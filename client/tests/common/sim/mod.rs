//! The real engine and the real read path in a simulated world, on one thread.
//!
//! The server executes one mutation at a time, but between any two of its stores the clients may
//! go on: READs are sampled word by word, GETs complete and new ones begin. That is the model's
//! scheduler (design.md 12) around the code that ships. All luck comes from one seed.
//!
//! | file | what |
//! |---|---|
//! | this | the simulated system, and what may happen next |
//! | `client` | a client: its calls, and their record |
//! | `calls` | what clients call |
//! | `server` | requests that have arrived, and how the server executes them |
//! | `plan` | what a seed chooses: sizes, rates, how bad the network is |

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod calls;
mod client;
mod plan;
mod server;

pub use calls::Call;
pub use plan::{Plan, Weights};

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onesided::Retirement;
use onesided_fabric::mem::StoreHook;
use onesided_fabric::sim::{Queue, World};
use onesided_fabric::{Admission, Memory, Refused, RegionId, Rights};
use onesided_protocol::control::{FabricName, Retired, TableInfo, TableOptions, UpdateMode};
use onesided_protocol::rules::{Rule, holds};
use onesided_server::engine::{Acknowledged, Cleaning, Clock, Engine, EngineConfig, Table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::linearize::{Failure, Op, Operation, Ret, check};
use client::SimClient;
use server::Server;

/// The server's clock: the simulation moves it.
pub struct SimClock(AtomicU64);

impl Clock for SimClock {
    fn unix_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lets everybody in, to all regions; the ticket is the client's number.
struct Door(Arc<Engine>);

impl Admission for Door {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        Ok(u64::from(ticket[0]))
    }

    fn region(&self, _context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        let (memory, rights) = self.0.region_with_rights(region.0)?;
        let rights = if holds(Rule::IndexReadOnly) { rights } else { Rights::ReadWrite };
        Some((memory, rights))
    }
}

/// Before each store of the server: the clients of this thread's simulation may go on.
struct BetweenStores;

impl StoreHook for BetweenStores {
    fn before_store(&self) {
        let sim = CURRENT.with_borrow(Clone::clone);
        if let Some(sim) = sim {
            sim.between_stores();
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Sim>>> = const { RefCell::new(None) };
}

/// Tests' keys, by number.
pub fn key(number: usize) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// After how many stores, and which calls of which clients.
type Interrupt = (u64, Vec<(usize, Call)>);

/// One simulated system.
pub struct Sim {
    pub plan: Plan,
    pub engine: Arc<Engine>,
    pub table: Arc<Table>,
    world: Arc<World>,
    clock: Arc<SimClock>,
    info: TableInfo,
    rng: RefCell<SmallRng>,
    /// Where clients connect to.
    port: Arc<Queue>,
    clients: RefCell<Vec<SimClient>>,
    interrupt: RefCell<Option<Interrupt>>,
    server: RefCell<Server>,
    history: RefCell<Vec<Vec<Operation>>>,
    /// The time of the histories: one for each call and return.
    time: Cell<u64>,
    pieces: Cell<u64>,
    fillers: Cell<u64>,
    /// A version that some answer told lately.
    told: Cell<u64>,
    gets: Cell<u64>,
    dropped: Cell<u64>,
    mutations: Cell<usize>,
    happened: Cell<u64>,
    /// What clients are to acknowledge of the region that the server leaves.
    leaving: RefCell<Vec<Retirement>>,
    revoked: Cell<u64>,
    lost: Cell<u64>,
    /// The network does something just now.
    stepping: Cell<bool>,
    /// Connections that broke are not made anew for now.
    pub apart: Cell<bool>,
    doubts: Cell<Doubts>,
}

/// How doubts about updates ended whose connection broke.
#[derive(Clone, Copy, Debug, Default)]
pub struct Doubts {
    /// The server said that it had been applied.
    pub applied: u64,
    /// That it had not.
    pub not_applied: u64,
    /// Nobody knows: the caller was told so. Of requests, too.
    pub unknown: u64,
}

/// What a finished simulation has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub gets: u64,
    /// GETs that were given up.
    pub dropped: u64,
    pub splits: u64,
    pub operations: u64,
    pub retries: u64,
    pub checksum_failures: u64,
    pub forward_hops: u64,
    pub rpc_gets: u64,
    /// Changes of counters without the server, and those that met a counter that had ended.
    pub updates: u64,
    pub update_retries: u64,
    /// Entries that the cleaner has moved.
    pub moved: u64,
    /// Regions whose memory went while clients went on.
    pub revoked: u64,
    /// PUTs without the server, what they waited for, and compare-and-swaps lost.
    pub one_sided_puts: u64,
    pub update_round_trips: u64,
    pub updates_lost: u64,
    /// Entries that a client had linked and the server committed.
    pub finished: u64,
    pub doubts: Doubts,
}

impl Sim {
    pub fn new(plan: Plan) -> Rc<Self> {
        let world = World::new(plan.seed, plan.network);
        let clock = Arc::new(SimClock(AtomicU64::new(1_000_000 * 1_000_000_000)));
        let config = EngineConfig {
            memory_bytes: plan.memory_bytes,
            region_bytes: 512 << 10,
            segment_bytes: 1 << 10,
            seed: plan.seed,
            split_load_percent: 1,
            cleaning: Cleaning::Aggressive,
            ..EngineConfig::default()
        };
        let make = |_: &str, len: usize, _: Rights| Memory::hooked(len, Arc::new(BetweenStores));
        let engine = Engine::new(config, Box::new(make), clock.clone()).expect("a small engine");
        let update = if plan.cas { UpdateMode::Cas } else { UpdateMode::Rpc };
        let options = TableOptions { ordered: plan.ordered, update, ..TableOptions::default() };
        let info = engine.create_table("t", options).expect("its first table");
        let info = TableInfo { updates_over: Some(FabricName::Shm), ..info };
        let sim = Rc::new(Self {
            table: engine.table(info.id).expect("just made"),
            rng: RefCell::new(SmallRng::seed_from_u64(plan.seed ^ 0x51AB)),
            port: world.listen(Arc::new(Door(engine.clone()))),
            clients: RefCell::default(),
            interrupt: RefCell::default(),
            server: RefCell::default(),
            history: RefCell::new(vec![Vec::new(); plan.keys]),
            time: Cell::new(0),
            pieces: Cell::new(0),
            fillers: Cell::new(0),
            told: Cell::new(1),
            gets: Cell::new(0),
            dropped: Cell::new(0),
            mutations: Cell::new(0),
            happened: Cell::new(0),
            leaving: RefCell::default(),
            revoked: Cell::new(0),
            lost: Cell::new(0),
            stepping: Cell::new(false),
            apart: Cell::new(false),
            doubts: Cell::default(),
            plan,
            engine,
            world,
            clock,
            info,
        });
        (0..sim.plan.prefill).for_each(|_| sim.put_filler());
        let clients = (0..sim.plan.clients).map(|i| SimClient::new(&sim, i)).collect();
        *sim.clients.borrow_mut() = clients;
        sim
    }

    /// Lets all happen that the plan says, and checks every key's history.
    pub fn run(self: &Rc<Self>) -> Result<Seen, Failure> {
        let _current = Entered::new(self);
        while self.mutations.get() < self.plan.mutations || self.busy() {
            self.happen();
            self.happened.update(|n| n + 1);
            assert!(
                self.happened.get() < 3_000_000,
                "seed {}: no end: {}",
                self.plan.seed,
                self.state()
            );
        }
        let dies = self.plan.network.kill_per_million > 0;
        assert!(dies || self.lost() == 0, "seed {}: a READ was fatal", self.plan.seed);
        self.verdict()
    }

    fn state(&self) -> String {
        let clients = self.clients.borrow();
        format!("{} mutations, {:?}", self.mutations.get(), clients.iter().collect::<Vec<_>>())
    }

    /// Whether any call is still under way.
    pub fn busy(&self) -> bool {
        self.clients.borrow().iter().any(SimClient::is_busy)
    }

    /// Checks every key's history.
    pub fn verdict(&self) -> Result<Seen, Failure> {
        let mut seen =
            Seen { gets: self.gets.get(), dropped: self.dropped.get(), ..Seen::default() };
        seen.revoked = self.revoked.get();
        seen.doubts = self.doubts.get();
        seen.finished = self.engine.cas_status().finished_entries;
        seen.moved = self.engine.memory_status().cleaning.moved_entries;
        seen.splits = self.engine.list_tables().iter().map(|table| table.splits).sum();
        for client in &*self.clients.borrow() {
            client.add_to(&mut seen);
        }
        for history in &*self.history.borrow() {
            seen.operations += history.len() as u64;
            if std::env::var_os("HISTORY").is_some() {
                history.iter().for_each(|operation| println!("{operation:?}"));
            }
            check(history)?;
        }
        Ok(seen)
    }

    /// The server leaves a region, and tells all clients at once; or it looks whether they are done
    /// with the one before, and if so its memory goes.
    fn shrink_on(&self) {
        let mut leaving = self.leaving.borrow_mut();
        if leaving.is_empty() {
            let since = self.engine.epoch();
            drop(leaving);
            if self.engine.leave_region() {
                *self.leaving.borrow_mut() = self.retire(since);
            }
            return;
        }
        let since = leaving[0].epoch() - 1;
        let (_, retired) = self.engine.retired_after(since);
        self.reclaim(&mut leaving, since);
        if !self.engine.has_retired() {
            leaving.clear();
            self.revoke(&retired);
        }
    }

    /// No device knows these regions any more.
    pub fn revoke(&self, retired: &[Retired]) {
        for retired in retired {
            if let Retired::Region(id) = *retired {
                self.revoked.update(|n| n + 1);
                self.world.revoke(RegionId(id));
            }
        }
    }

    /// Connections that died of what clients READ.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// One thing happens.
    pub fn happen(&self) {
        match self.pick(100) {
            0..80 => self.clients_go_on(),
            80..96 => self.server_goes_on(),
            96..98 => self.server_minds_itself(),
            98 if self.plan.shrinks => self.shrink_on(),
            _ if self.plan.clock_moves => self.advance_clock(),
            _ => {}
        }
    }

    /// A call begins, or the network and the clients do a step.
    fn clients_go_on(&self) {
        let mut clients = self.clients.borrow_mut();
        let more = self.mutations.get() < self.plan.mutations;
        if more && self.pick(8) == 0 {
            let client = self.pick(clients.len() as u64) as usize;
            if clients[client].has_room(self) {
                let call = self.random_call();
                clients[client].begin(self, call);
            }
        }
        self.step();
        for client in clients.iter_mut() {
            client.go_on(self);
        }
    }

    /// A call of one client begins, if it has a thread for it.
    pub fn begin(&self, client: usize, call: Call) {
        self.clients.borrow_mut()[client].begin(self, call);
    }

    /// Lets all calls under way end, and begins no others.
    pub fn settle(&self) {
        while self.busy() {
            self.server_goes_on();
            self.network_goes_on();
            self.happened.update(|n| n + 1);
            assert!(self.happened.get() < 3_000_000, "no end: {}", self.state());
        }
    }

    /// The server tells all clients what it has retired since an epoch. What they are to
    /// acknowledge, by their numbers.
    pub fn retire(&self, since: u64) -> Vec<Retirement> {
        let (epoch, retired) = self.engine.retired_after(since);
        self.clients.borrow().iter().map(|client| client.retire(epoch, &retired)).collect()
    }

    /// What the clients have acknowledged, frees what nobody holds. Client n has session n.
    pub fn reclaim(&self, retirements: &mut [Retirement], since: u64) {
        let of = |retirement: &mut Retirement| match retirement.is_over() {
            true => retirement.epoch(),
            false => since,
        };
        let sessions = (0..).zip(retirements.iter_mut().map(of)).collect();
        self.engine.reclaim(&Acknowledged {
            epoch: self.engine.epoch(),
            sessions,
            ..Acknowledged::default()
        });
    }

    /// A client dies: its connection breaks, and another one takes its place.
    pub fn kill(&self, client: usize) {
        let mut clients = self.clients.borrow_mut();
        clients[client].die(self);
    }

    /// A client's connection breaks, and the client lives.
    pub fn sever(&self, client: usize) {
        self.clients.borrow()[client].sever(self);
    }

    /// Whether a call of this client is under way.
    pub fn is_busy(&self, client: usize) -> bool {
        self.clients.borrow()[client].is_busy()
    }

    /// Whether what a client has to commit goes along with its next update.
    pub fn has_batch(&self, client: usize) -> bool {
        self.clients.borrow()[client].has_batch()
    }

    /// Lets the call of one client end.
    pub fn settle_one(&self, client: usize) {
        while self.is_busy(client) {
            self.server_goes_on();
            self.network_goes_on();
            self.happened.update(|n| n + 1);
            assert!(self.happened.get() < 3_000_000, "no end: {}", self.state());
        }
    }

    /// The server ends a client's session, and what that one READs on must not count.
    pub fn fence(&self, client: usize) {
        self.clients.borrow()[client].fence(self);
    }

    /// GETs that clients answered with a miss by themselves.
    pub fn one_sided_misses(&self) -> u64 {
        self.clients.borrow().iter().map(SimClient::one_sided_misses).sum()
    }

    /// A step of the network alone.
    fn step(&self) {
        self.stepping.set(true);
        self.world.step();
        self.stepping.set(false);
    }

    /// One step of the network, and what clients make of it.
    pub fn network_goes_on(&self) {
        self.step();
        self.clients.borrow_mut().iter_mut().for_each(|client| client.go_on(self));
    }

    /// Before store number `store` from now on, these calls are made, one after the other; each
    /// ends there and then, unless it asks the server.
    pub fn interrupt(&self, store: u64, calls: Vec<(usize, Call)>) {
        *self.interrupt.borrow_mut() = Some((store, calls));
    }

    /// Whether the interruption is still to come.
    pub fn is_uninterrupted(&self) -> bool {
        self.interrupt.borrow().is_some()
    }

    fn count_down(&self) {
        let due = match &mut *self.interrupt.borrow_mut() {
            Some((left @ 1.., _)) => {
                *left -= 1;
                false
            }
            due => due.is_some(),
        };
        let calls = if due { self.interrupt.take() } else { None };
        for (client, call) in calls.into_iter().flat_map(|(_, calls)| calls) {
            self.begin(client, call);
            for _ in 0..10_000 {
                if !self.clients.borrow()[client].is_busy() {
                    break;
                }
                self.network_goes_on();
            }
        }
    }

    /// Called by the engine's memory, in the middle of an operation.
    fn between_stores(&self) {
        // A store of a client's, in the middle of a step of the network.
        if self.stepping.get() || self.clients.try_borrow_mut().is_err() {
            return;
        }
        self.count_down();
        if self.pick(1000) < self.plan.pause_per_mille {
            for _ in 0..=self.pick(self.plan.pause_steps) {
                self.clients_go_on();
            }
        }
    }

    fn advance_clock(&self) {
        if self.clients.borrow().iter().any(SimClient::is_short_lived) {
            return;
        }
        let ns = self.pick(700_000_000);
        let before = self.clock.0.fetch_add(ns, Ordering::Relaxed);
        let (before_s, now_s) = (before / 1_000_000_000, (before + ns) / 1_000_000_000);
        if before_s != now_s {
            let call = self.tick();
            let op = Op::Clock { now_s: now_s as u32 };
            let clock = Operation { client: 0, call, answer: Some((call, Ret::Ticked)), op };
            self.history.borrow_mut().iter_mut().for_each(|history| history.push(clock));
        }
        self.clients.borrow().iter().for_each(|client| client.set_clock(self));
    }

    /// A number below `bound` from the seed.
    pub fn pick(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().random_range(0..bound.max(1))
    }

    /// The next moment.
    fn tick(&self) -> u64 {
        self.time.update(|time| time + 1);
        self.time.get()
    }

    fn record(&self, key: usize, operation: Operation) {
        self.history.borrow_mut()[key].push(operation);
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.world.dismantle();
    }
}

/// The hook of this thread's memories means this simulation, as long as this lives.
pub struct Entered;

impl Entered {
    pub fn new(sim: &Rc<Sim>) -> Self {
        CURRENT.set(Some(sim.clone()));
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}
