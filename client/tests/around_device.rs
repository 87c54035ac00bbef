//! Over a device whose atomics are not the processor's a server changes the words that clients
//! change over that device, too. One that goes around it is caught: a client that changes a counter
//! and an entry over the device, and an engine that changes them as it does when others ask, come
//! to histories that are not linearizable. By the guest tests `cas_one` and `around_device`;
//! elsewhere there is no such device.

#[path = "common/children.rs"]
mod children;
#[path = "common/linearize/mod.rs"]
mod linearize;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use children::{builder, fabrics, one_sided_kind};
use linearize::{Content, Expect, Failure, Op, Operation, Ret, check};
use onesided::{FabricChoice, FabricKind, TableOptions, UpdateMode, blocking};
use onesided_protocol::rpc::{CounterAction, Expect as WireExpect, Ttl};
use onesided_protocol::rules::{Rule, without};
use onesided_server::engine::{Counted, Table};
use onesided_server::{Server, ServerConfig};

/// Changes of each kind by the client, between two looks at the histories: few, since the engine
/// changes words all the while, so often at most.
const BY_CLIENT: u64 = 32;
const BY_ENGINE_MAX: u64 = 10_000;
/// Rounds that must be good where nothing goes around.
const GOOD_ROUNDS: u64 = 20;
/// That something is lost is a matter of luck, which is tried for so long.
const PATIENCE: Duration = Duration::from_secs(200);

/// A history of an entry and one of a counter, which both change.
type Histories = [Vec<Operation>; 2];

struct Round {
    start: Instant,
    entry: String,
    counter: String,
}

impl Round {
    fn new(start: Instant, number: u64) -> Self {
        Self { start, entry: format!("entry-{number}"), counter: format!("counter-{number}") }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Change number `n` of an entry and of a counter by one of both. Of what failed nobody knows.
    fn change<E>(
        &self,
        (client, n): (u32, u64),
        histories: &mut Histories,
        put: impl FnOnce([u8; 8]) -> Result<u64, E>,
        add: impl FnOnce() -> Result<i64, E>,
    ) {
        let id = u64::from(client) << 32 | n;
        let call = self.now();
        let answer = put(id.to_le_bytes()).ok().map(|version| (self.now(), Ret::Version(version)));
        let op = Op::Put { content: Content::of(id), expect: Expect::Any, expiry_s: 0 };
        histories[0].push(Operation { client, call, answer, op });
        let call = self.now();
        let answer = add().ok().map(|old| (self.now(), Ret::Old(old)));
        histories[1].push(Operation { client, call, answer, op: Op::Add { by: 1 } });
    }

    fn by_client(&self, table: &blocking::Table) -> Histories {
        let (counter, mut histories) = (table.counter(&self.counter), Histories::default());
        for n in 0..BY_CLIENT {
            let put = |value| table.put(&self.entry, value);
            self.change((1, n), &mut histories, put, || counter.fetch_add(1));
        }
        histories
    }

    /// As an answer to others' requests, without their way here.
    fn by_engine(&self, table: &Table, is_over: &AtomicBool) -> Histories {
        let mut histories = Histories::default();
        for n in (0..BY_ENGINE_MAX).take_while(|_| !is_over.load(Ordering::Relaxed)) {
            let key = self.entry.as_bytes();
            let put = |value: [u8; 8]| table.put(key, &value, WireExpect::Any, Ttl::Never, 0);
            let add = || {
                let added = table.counter(self.counter.as_bytes(), CounterAction::Add { by: 1 });
                added.map(|counted| match counted {
                    Counted::Changed { old, .. } => old,
                    other => panic!("{other:?}"),
                })
            };
            self.change((2, n), &mut histories, put, add);
        }
        histories
    }

    /// Both together, and what their histories say.
    fn run(&self, client: &blocking::Table, engine: &Table) -> Result<(), Failure> {
        let is_over = AtomicBool::new(false);
        let mut sums = std::thread::scope(|scope| {
            let changing = scope.spawn(|| self.by_engine(engine, &is_over));
            let histories = self.by_client(client);
            is_over.store(true, Ordering::Relaxed);
            let others = changing.join().expect("it changes words");
            [histories, others]
        });
        let [histories, others] = &mut sums;
        histories.iter_mut().zip(others).for_each(|(history, other)| history.append(other));
        histories.iter().try_for_each(|history| check(history))?;
        for history in histories {
            // A history of what nobody knows says nothing.
            let of_engine = || history.iter().filter(|operation| operation.client == 2);
            let known = of_engine().filter(|operation| operation.answer.is_some()).count();
            assert!(2 * known >= of_engine().count(), "{known} changes of the engine succeeded");
        }
        Ok(())
    }
}

fn has_device() -> bool {
    one_sided_kind() == FabricKind::Verbs
}

/// Rounds with a server that follows the rules, or one that goes around the device, until `enough`
/// of them or until one is bad.
fn rounds(off: Option<Rule>, enough: impl Fn(u64, Instant) -> bool) -> Result<(), Failure> {
    let listen = "127.0.0.1:0".to_owned();
    let config = ServerConfig { listen, fabrics: fabrics(), ..ServerConfig::default() };
    let server = without(off, || Server::start(config)).expect("the server starts");
    let options = TableOptions { update: UpdateMode::Cas, ..TableOptions::default() };
    let info = server.engine().create_table("words", options).expect("a table");
    let engine = server.engine().table(info.id).expect("just made");
    let client = builder(server.addr()).fabric(FabricChoice::Verbs).connect_blocking();
    let client = client.expect("connects");
    let table = client.table("words").expect("the table");
    let start = Instant::now();
    let (mut number, mut done) = (0, Ok(()));
    while done.is_ok() && !enough(number, start) {
        done = Round::new(start, number).run(&table, &engine);
        number += 1;
    }
    let stats = client.stats();
    println!("{number} rounds in {:?}", start.elapsed());
    assert!(stats.one_sided_puts > 0 && stats.counter_updates > 0, "{stats:?}");
    drop((table, client, engine));
    server.stop();
    done
}

#[test]
fn through_the_device_all_is_linearizable() {
    if has_device() {
        let good = rounds(None, |number, _| number == GOOD_ROUNDS);
        good.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn through_device() {
    if !has_device() {
        return;
    }
    match rounds(Some(Rule::ThroughDevice), |_, start| start.elapsed() > PATIENCE) {
        Err(failure @ Failure::Violation { .. }) => println!("noticed: {failure}"),
        other => panic!("the server went around the device, and nothing was noticed: {other:?}"),
    }
}
