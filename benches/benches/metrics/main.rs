//! What metrics cost: RPCs and one-sided GETs with and without them, and a scrape.
//!
//! Four servers take turns: without metrics, with, without, with. *With* is what daemon and client
//! do by default. *Without* is `--admin off --slow-request-ms 0`, so that the server reads no clock
//! for requests, and clients that do not report (`ClientBuilder::report_reads`), which neither time
//! GETs nor tell of them. What the two servers of a kind differ by is noise, and no cost.
//!
//! `cargo bench -p onesided-bench --bench metrics -- put-shm get-shm` measures some of the parts.
//! `ONESIDED_BENCH_ROUNDS`, `ONESIDED_BENCH_KEYS` make it shorter.

#[path = "../common/mod.rs"]
mod common;
mod contest;
mod scrape;

use anyhow::Result;
use common::data::{self, Walk};
use common::measure::Time;
use common::process::{Serve, ServerProcess};
use common::store;
use onesided::{FabricChoice, Table, blocking};
use tokio::runtime::Runtime;

/// Small enough to be stored four times.
const PAIRS: u64 = 100_000;
/// Overwriting goes on for ever in it.
const MEMORY_BYTES: usize = 128 << 20;
/// Operations that are outstanding at once, where it is more than one.
const AT_ONCE: u64 = 16;

/// What is measured.
struct Part {
    name: &'static str,
    what: &'static str,
    time: Time,
    /// The most that metrics may cost.
    limit_percent: f64,
    /// So many operations.
    run: fn(&Side, &mut Walk, u64),
}

const PARTS: [Part; 6] = [
    Part {
        name: "ping",
        what: "ping over shm, one at a time",
        time: Time::Wall,
        limit_percent: 2.0,
        run: pings,
    },
    Part {
        name: "put-shm",
        what: "PUT over shm, one at a time",
        time: Time::Wall,
        limit_percent: 2.0,
        run: puts,
    },
    Part {
        name: "put-shm-16",
        what: "PUT over shm, 16 at once",
        time: Time::Wall,
        limit_percent: 2.0,
        run: puts_at_once,
    },
    Part {
        name: "get-tcp",
        what: "GET by RPC over tcp, one at a time",
        time: Time::Wall,
        limit_percent: 2.0,
        run: gets_by_rpc,
    },
    Part {
        name: "get-tcp-16",
        what: "GET by RPC over tcp, 16 at once",
        time: Time::Wall,
        limit_percent: 2.0,
        run: gets_by_rpc_at_once,
    },
    Part {
        name: "get-shm",
        what: "one-sided GET over shm",
        time: Time::Cpu,
        limit_percent: 3.0,
        run: gets,
    },
];

/// A server, with or without metrics, and its clients.
struct Side {
    client: blocking::Client,
    shm: blocking::Table,
    tcp: blocking::Table,
    shm_async: Table,
    tcp_async: Table,
    runtime: Runtime,
    // Clients go first.
    server: ServerProcess,
}

impl Side {
    fn start(metrics: bool, pairs: u64) -> Result<Self> {
        let serve = Serve { memory_bytes: MEMORY_BYTES, metrics, ..Serve::DEFAULT };
        let server = ServerProcess::start_with(&serve)?;
        let (_filler, table) = store::connect(&server.url, FabricChoice::Shm)?;
        store::fill(&table, 0..pairs)?;
        let builder = |fabric| {
            let builder = onesided::Client::builder().url(&server.url).fabric(fabric);
            builder.prefill(true).report_reads(metrics)
        };
        let client = builder(FabricChoice::Shm).connect_blocking()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let open = |fabric| {
            runtime.block_on(async { builder(fabric).connect().await?.table("default").await })
        };
        Ok(Self {
            shm: client.table("default")?,
            tcp: builder(FabricChoice::Tcp).connect_blocking()?.table("default")?,
            shm_async: open(FabricChoice::Shm)?,
            tcp_async: open(FabricChoice::Tcp)?,
            client,
            runtime,
            server,
        })
    }

    /// Does operations, as many at once as there are tasks.
    fn at_once<F>(&self, table: &Table, walk: &mut Walk, calls: u64, run: fn(Table, Walk, u64) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.runtime.block_on(async {
            let task = |_| {
                let walk = Walk::new(walk.next(), walk.pairs());
                tokio::spawn(run(table.clone(), walk, calls.div_ceil(AT_ONCE)))
            };
            for task in (0..AT_ONCE).map(task).collect::<Vec<_>>() {
                task.await.expect("a task");
            }
        });
    }
}

fn pings(side: &Side, _: &mut Walk, calls: u64) {
    for _ in 0..calls {
        side.client.ping().expect("ping");
    }
}

fn puts(side: &Side, walk: &mut Walk, calls: u64) {
    for _ in 0..calls {
        let index = walk.next();
        side.shm.put(data::key(index), data::value(index)).expect("put");
    }
}

fn puts_at_once(side: &Side, walk: &mut Walk, calls: u64) {
    side.at_once(&side.shm_async, walk, calls, |table, mut walk, calls| async move {
        for _ in 0..calls {
            let index = walk.next();
            table.put(data::key(index), data::value(index)).await.expect("put");
        }
    });
}

fn gets(side: &Side, walk: &mut Walk, calls: u64) {
    get_all(&side.shm, walk, calls);
}

fn gets_by_rpc(side: &Side, walk: &mut Walk, calls: u64) {
    get_all(&side.tcp, walk, calls);
}

fn get_all(table: &blocking::Table, walk: &mut Walk, calls: u64) {
    for _ in 0..calls {
        let value = table.get(data::key(walk.next())).expect("get").expect("the key is there");
        std::hint::black_box(value.first());
    }
}

fn gets_by_rpc_at_once(side: &Side, walk: &mut Walk, calls: u64) {
    side.at_once(&side.tcp_async, walk, calls, |table, mut walk, calls| async move {
        for _ in 0..calls {
            assert!(table.get(data::key(walk.next())).await.expect("get").is_some());
        }
    });
}

/// Whether a part is to be measured: it was named, or none was.
fn wanted(part: &str) -> bool {
    let mut parts = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let first = parts.next();
    first.is_none() || first.into_iter().chain(parts).any(|named| named == part)
}

fn main() -> Result<()> {
    // `cargo test --benches` runs benches without this flag: nothing to do then.
    if common::process::serve_if_told() || !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let pairs = std::env::var("ONESIDED_BENCH_KEYS").map_or(PAIRS, |_| data::pairs());
    let sides = [false, true, false, true].map(|metrics| Side::start(metrics, pairs));
    let [first, second, third, fourth] = sides;
    let sides = [first?, second?, third?, fourth?];
    let parts = PARTS.iter().filter(|part| wanted(part.name));
    let lines: Vec<_> = parts.map(|part| contest::measure(part, &sides, pairs)).collect();
    if !lines.is_empty() {
        contest::print(&lines);
    }
    if wanted("scrape") {
        scrape::measure(&sides[1].server)?;
    }
    Ok(())
}
