//! What does the bucket cache save the thread of a GET where READs are posted: with room for all
//! buckets, for half of them, for none? The network's time is left out: the device here, a loop in
//! this process, has done every READ when it is posted.

mod common;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::data::{self, Walk};
use criterion::{Criterion, Throughput};
use onesided::core::Connection;
use onesided::{Count, Options, Table};
use onesided_fabric::{
    AccessError, AttachError, Caps, Completion, CompletionQueue, Endpoint, FabricKind, Memory,
    Opcode, Outcome, PostError, RegionId, RemoteAddr, Wait, WorkRequest,
};
use onesided_protocol::control::{TableInfo, TableOptions, Welcome};
use onesided_protocol::rpc::{Expect, Ttl};
use onesided_server::clock::ServerClock;
use onesided_server::engine::{Engine, EngineConfig};
use parking_lot::Mutex;

const DEPTH: usize = 256;

/// READs memory of an engine at once.
struct Device {
    engine: Arc<Engine>,
    regions: Mutex<Vec<Option<Arc<Memory>>>>,
    done: Mutex<VecDeque<Completion>>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}

impl Endpoint for Device {
    fn caps(&self) -> Caps {
        Caps {
            kind: FabricKind::Sim,
            one_sided: true,
            reads_now: false,
            max_message_bytes: 64 << 10,
            send_depth: DEPTH,
        }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let (regions, mut done) = (self.regions.lock(), self.done.lock());
        for WorkRequest { id, op, .. } in chain.drain(..) {
            let Opcode::Read { remote, mut into } = op else { panic!("nobody serves RPCs here") };
            let memory = regions.get(remote.region.0 as usize).and_then(Option::as_ref);
            let memory = memory.expect("what is READ was attached");
            memory.read_bytes(remote.offset_bytes as usize, &mut into).expect("inside the region");
            done.push_back(Completion { context: 0, id, outcome: Outcome::Read(into) });
        }
        Ok(())
    }

    fn attach(&self, region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        let memory = self.engine.region(region.0).ok_or(AttachError::NotOffered(region))?;
        let mut regions = self.regions.lock();
        let len = regions.len().max(region.0 as usize + 1);
        regions.resize(len, None);
        regions[region.0 as usize] = Some(memory);
        Ok(())
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn close(&self) {}

    fn is_closed(&self) -> bool {
        false
    }
}

/// What the device has done.
struct Queue(Arc<Device>);

impl CompletionQueue for Queue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let mut done = self.0.done.lock();
        let count = done.len().min(max);
        out.extend(done.drain(..count));
        count
    }

    fn wait(&self, _timeout: Duration) -> Wait {
        Wait::Ready
    }

    fn wake(&self) {}
}

/// All pairs, and a client with a cache of so many bytes.
struct Rig {
    connection: Arc<Connection>,
    table: Table,
}

impl Rig {
    fn new(engine: &Arc<Engine>, info: &TableInfo, cache_bytes: usize) -> Self {
        let device = Arc::new(Device {
            engine: Arc::clone(engine),
            regions: Mutex::default(),
            done: Mutex::default(),
        });
        let queue = Arc::new(Queue(Arc::clone(&device)));
        let options = Options { cache_bytes, reconnect: false, ..Options::default() };
        let connection = Connection::from_parts(device, queue, welcome(engine), None, options);
        let table = Table::from_parts(&connection, "t", info.clone()).expect("a table");
        Self { connection, table }
    }

    fn get(&self, index: u64) {
        let key = data::key(index);
        let mut get = pin!(self.table.get(&key[..]));
        loop {
            match get.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(value) => {
                    return drop(value.expect("get").expect("the key is there"));
                }
                Poll::Pending => drop(self.connection.dispatch()),
            }
        }
    }
}

fn welcome(engine: &Engine) -> Welcome {
    Welcome {
        wire: 1,
        session: 1,
        resume_key: 1,
        resumed: false,
        applied_sequence: 0,
        incarnation: engine.incarnation(),
        clock_ns: engine.clock_ns(),
        catalog_epoch: engine.catalog_epoch(),
        lease_ms: 10_000,
        heartbeat_ms: 1_000,
        credits: 64,
        value_max_bytes: 32 << 20,
        ticket: [0; 32],
        fabrics: Vec::new(),
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let pairs = data::pairs();
    let memory_bytes = 64 << 20 | (pairs as usize * 256).next_power_of_two();
    let config = EngineConfig { memory_bytes, ..EngineConfig::default() };
    let memory = Box::new(|_: &str, len_bytes, _| Memory::private(len_bytes));
    let engine = Engine::new(config, memory, Arc::new(ServerClock::default())).expect("an engine");
    let info = engine.create_table("t", TableOptions::default()).expect("a table");
    let table = engine.table(info.id).expect("it was made");
    for index in 0..pairs {
        let (key, value) = (data::key(index), data::value(index));
        table.put(&key, &value, Expect::Any, Ttl::Never, 0).expect("there is room");
    }
    let all_bytes = (engine.list_tables()[0].index_bytes as usize).next_power_of_two();
    let mut group = criterion.benchmark_group("bucket cache");
    group.throughput(Throughput::Elements(1));
    for (name, cache_bytes) in [("all", 2 * all_bytes), ("half", all_bytes / 2), ("none", 0)] {
        let rig = Rig::new(&engine, &info, cache_bytes);
        (0..pairs).for_each(|index| rig.get(index));
        let reads = |rig: &Rig| rig.connection.stats().sum(Count::Reads);
        let before = reads(&rig);
        (0..pairs).for_each(|index| rig.get(index));
        println!("{name}: {:.2} READs a GET", (reads(&rig) - before) as f64 / pairs as f64);
        let mut walk = Walk::new(1, pairs);
        group.bench_function(name, |bencher| bencher.iter(|| rig.get(walk.next())));
    }
    group.finish();
    criterion.final_summary();
}
