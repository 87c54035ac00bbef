//! The simulated world itself: reproducible, and as bad as it says.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use onesided_fabric::sim::{Options, Pair, World};
use onesided_fabric::{
    AccessError, Buffer, BufferPool, Completion, CompletionQueue, Endpoint, Memory, Opcode,
    Outcome, PostError, RegionId, RemoteAddr, Rights, Wait, WorkError, WorkRequest,
};

const WORDS: usize = 64;
const REGION: RegionId = RegionId(1);

struct Setup {
    world: Arc<World>,
    pair: Pair,
    memory: Arc<Memory>,
    pool: BufferPool,
}

impl Setup {
    fn new(seed: u64, options: Options) -> Self {
        let world = World::new(seed, options);
        let memory = Arc::new(world.memory(4096).unwrap());
        let pair = world.pair(1, 2);
        world.expose(&pair.server, REGION, Arc::clone(&memory), Rights::ReadWrite);
        pair.client.attach(REGION, &[]).unwrap();
        Self { world, pair, memory, pool: BufferPool::new() }
    }

    fn read(&self, id: u64, words: usize) -> WorkRequest {
        let into = self.pool.get(words * 8);
        WorkRequest { id, signaled: true, op: Opcode::Read { remote: at(0), into } }
    }

    fn post(&self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        self.pair.client.post(&mut requests.into_iter().collect::<VecDeque<_>>())
    }

    /// Stores `value` into all words, one after the other, as a server does.
    fn store_all(&self, value: u64) {
        (0..WORDS).for_each(|i| self.memory.store(i * 8, value).unwrap());
    }

    fn poll(&self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.pair.client_cq.poll(&mut out, usize::MAX);
        out
    }
}

fn at(offset_bytes: u64) -> RemoteAddr {
    RemoteAddr { region: REGION, offset_bytes }
}

fn words(completion: &Completion) -> &[u64] {
    match &completion.outcome {
        Outcome::Read(buffer) => buffer.words(),
        other => panic!("{other:?}"),
    }
}

/// A run with everything in it; the hash of what happened and what the client was told.
fn busy_run(seed: u64, options: Options) -> (u64, String) {
    let setup = Setup::new(seed, options);
    let mut log = String::new();
    for round in 0..30 {
        let write = Opcode::Write { remote: at(1024), from: setup.pool.copy_of(&[round; 100]) };
        let add = Opcode::FetchAdd { remote: at(2048), add: u64::from(round) };
        let send = Opcode::Send { message: setup.pool.copy_of(&[round; 9]) };
        let ops = [write, add, send].map(|op| WorkRequest { id: 7, signaled: true, op });
        let chain = ops.into_iter().chain([setup.read(8, WORDS), setup.read(9, 5)]);
        let _may_be_dead = setup.post(chain);
        setup.store_all(round.into());
        (0..setup.world.pick(60)).for_each(|_| _ = setup.world.step());
        for completion in setup.poll() {
            // Debug would show what pooled buffers hold behind their length.
            let bytes = match &completion.outcome {
                Outcome::Read(b) | Outcome::Written(b) | Outcome::Sent(b) => b.to_vec(),
                Outcome::Atomic(found) => found.to_le_bytes().to_vec(),
                Outcome::Disconnected(reason) => reason.clone().into_bytes(),
                _ => Vec::new(),
            };
            log += &format!("{} {bytes:?}\n", completion.id);
        }
    }
    assert!(setup.world.settle(1_000_000), "it never ends");
    (setup.world.trace(), log)
}

#[test]
fn the_same_seed_is_the_same_run() {
    let options = Options { kill_per_million: 300, ..Options::default() };
    let mut traces = BTreeSet::new();
    for seed in 0..50 {
        let (first, second) = (busy_run(seed, options), busy_run(seed, options));
        assert_eq!(first, second, "seed {seed}");
        traces.insert(first.0);
    }
    assert_eq!(traces.len(), 50, "other seeds are other runs");
}

#[test]
fn reads_tear_between_the_words_of_a_writer() {
    let (mut torn, mut later_first) = (0, 0);
    for seed in 0..200 {
        let setup = Setup::new(seed, Options::default());
        setup.store_all(1);
        setup.post([setup.read(1, WORDS)]).unwrap();
        setup.store_all(2);
        assert!(setup.world.settle(100_000), "seed {seed}");
        let done = setup.poll();
        let seen = words(&done[0]);
        assert!(seen.iter().all(|&w| w == 1 || w == 2), "seed {seed}: {seen:?}");
        torn += usize::from(seen.contains(&1) && seen.contains(&2));
        // The writer goes forward: an old word behind a new one is a prefix of the new value; a
        // new one behind an old one can only come from sampling out of order.
        later_first += usize::from(seen.windows(2).any(|w| w == [1, 2]));
    }
    assert!(torn > 100, "only {torn} of 200 were torn");
    assert!(later_first > 50, "only {later_first} of 200 were out of order");
}

#[test]
fn no_sampling_at_stores_when_it_is_off() {
    let options =
        Options { store_sample_per_mille: 0, straggler_per_mille: 0, ..Options::default() };
    for seed in 0..50 {
        let setup = Setup::new(seed, options);
        setup.store_all(1);
        setup.post([setup.read(1, WORDS)]).unwrap();
        setup.store_all(2);
        assert!(setup.world.settle(100_000));
        assert!(words(&setup.poll()[0]).iter().all(|&w| w == 2), "seed {seed}");
    }
}

#[test]
fn a_straggler_is_sampled_long_after_the_others() {
    let options =
        Options { straggler_per_mille: 1000, straggler_steps: 2000, ..Options::default() };
    let mut found = 0;
    for seed in 0..50 {
        let setup = Setup::new(seed, options);
        setup.store_all(1);
        setup.post([setup.read(1, WORDS)]).unwrap();
        (0..200).for_each(|_| _ = setup.world.step());
        // All but one have been sampled: this is what reuse of the memory looks like.
        setup.store_all(2);
        assert!(setup.world.settle(100_000));
        let done = setup.poll();
        let new = words(&done[0]).iter().filter(|&&w| w == 2).count();
        assert!(new <= 1, "seed {seed}: {new} words came late");
        found += new;
    }
    assert!(found > 30, "only {found} of 50");
}

#[test]
fn reads_of_a_chain_are_reordered() {
    let mut reordered = 0;
    for seed in 0..200 {
        let setup = Setup::new(seed, Options::default());
        setup.memory.store(0, 1).unwrap();
        setup.post([setup.read(1, 1), setup.read(2, 1)]).unwrap();
        (0..setup.world.pick(4)).for_each(|_| _ = setup.world.step());
        setup.memory.store(0, 2).unwrap();
        assert!(setup.world.settle(100_000));
        let done = setup.poll();
        assert_eq!((done[0].id, done[1].id), (1, 2), "completions keep the order");
        reordered += usize::from(words(&done[0])[0] > words(&done[1])[0]);
    }
    assert!(reordered > 10, "only {reordered} of 200 saw the new value first");
}

#[test]
fn a_read_may_be_sampled_after_a_later_write() {
    let mut late = 0;
    for seed in 0..200 {
        let setup = Setup::new(seed, Options::default());
        let write = Opcode::Write { remote: at(0), from: setup.pool.copy_of(&[9; 8]) };
        let write = WorkRequest { id: 2, signaled: true, op: write };
        setup.post([setup.read(1, 1), write]).unwrap();
        assert!(setup.world.settle(100_000));
        late += usize::from(words(&setup.poll()[0])[0] != 0);
    }
    assert!(late > 20, "only {late} of 200");
}

#[test]
fn kills_flush_everything_once_and_end_both_sides_once() {
    let (mut killed, mut applied, mut lost) = (0, 0, 0);
    for seed in 0..300 {
        let options = Options { kill_per_million: 20_000, ..Options::default() };
        let setup = Setup::new(seed, options);
        let adds = (0..20).map(|id| WorkRequest {
            id,
            signaled: true,
            op: Opcode::FetchAdd { remote: at(0), add: 1 },
        });
        setup.post(adds).unwrap();
        for _ in 0..400 {
            setup.world.step();
        }
        let done = setup.poll();
        let mut server = Vec::new();
        setup.pair.server_cq.poll(&mut server, 100);
        let ids: Vec<u64> = done.iter().map(|c| c.id).take(20).collect();
        assert_eq!(ids, (0..20).collect::<Vec<_>>(), "seed {seed}");
        let ends = |all: &[Completion]| {
            all.iter().filter(|c| matches!(c.outcome, Outcome::Disconnected(_))).count()
        };
        assert_eq!(ends(&done), ends(&server), "seed {seed}: both sides or none");
        if ends(&done) == 0 {
            continue;
        }
        killed += 1;
        assert_eq!((done.len(), server.len()), (21, 1), "seed {seed}");
        assert!(setup.pair.client.is_closed() && setup.pair.server.is_closed());
        let ok = done.iter().filter(|c| matches!(c.outcome, Outcome::Atomic(_))).count();
        let flushed = |c: &&Completion| matches!(c.outcome, Outcome::Failed(WorkError::Flushed, _));
        assert_eq!(ok + done.iter().filter(flushed).count(), 20, "seed {seed}");
        let count = setup.memory.load(0).unwrap() as usize;
        assert!(count >= ok, "seed {seed}: reported {ok}, applied {count}");
        applied += usize::from(count > ok);
        lost += usize::from(count < 20);
    }
    assert!(killed > 200, "only {killed} of 300 were killed");
    assert!(applied > 20 && lost > 20, "in doubt both ways: {applied} applied, {lost} lost");
}

#[test]
fn waiting_runs_the_world_and_its_driver() {
    for seed in 0..20 {
        let setup = Setup::new(seed, Options::default());
        let (server, cq) = (Arc::clone(&setup.pair.server), Arc::clone(&setup.pair.server_cq));
        // An echo server, run by the client's waiting.
        setup.world.drive(move || {
            let mut out = Vec::new();
            cq.poll(&mut out, 16);
            let did = !out.is_empty();
            for completion in out {
                let Outcome::Received(message) = completion.outcome else { continue };
                let op = Opcode::Send { message };
                let request = WorkRequest { id: 0, signaled: false, op };
                server.post(&mut VecDeque::from([request])).unwrap();
            }
            did
        });
        for round in 0..20u8 {
            let op = Opcode::Send { message: setup.pool.copy_of(&[round; 5]) };
            setup.post([WorkRequest { id: 0, signaled: false, op }]).unwrap();
            let before_ns = setup.world.now_ns();
            assert_eq!(setup.pair.client_cq.wait(Duration::from_secs(1)), Wait::Ready);
            assert!(setup.world.now_ns() - before_ns < 1_000_000_000, "seed {seed}");
            let done = setup.poll();
            assert!(matches!(&done[0].outcome, Outcome::Received(m) if m[..] == [round; 5]));
        }
        let before_ns = setup.world.now_ns();
        assert_eq!(setup.pair.client_cq.wait(Duration::from_millis(5)), Wait::TimedOut);
        assert!(setup.world.now_ns() - before_ns >= 5_000_000, "seed {seed}");
        setup.world.dismantle();
    }
}

#[test]
fn nothing_that_was_posted_reaches_memory_that_was_revoked() {
    let from = |setup: &Setup| setup.pool.copy_of(&7u64.to_le_bytes());
    type Op = fn(&Setup, Buffer) -> Opcode;
    let ops: [Op; 4] = [
        |setup, _| Opcode::Read { remote: at(0), into: setup.pool.get(8) },
        |_, from| Opcode::Write { remote: at(0), from },
        |_, _| Opcode::CompareSwap { remote: at(0), expected: 0, new: 7 },
        |_, _| Opcode::FetchAdd { remote: at(0), add: 7 },
    ];
    for (op, detaches) in ops.into_iter().flat_map(|op| [(op, false), (op, true)]) {
        let setup = Setup::new(1, Options::default());
        let op = op(&setup, from(&setup));
        // Not signalled: who posted it is told of its failure all the same.
        setup.post([WorkRequest { id: 9, signaled: false, op }]).unwrap();
        if detaches {
            setup.pair.client.detach(REGION);
        }
        setup.world.revoke(REGION);
        assert!(setup.world.settle(1_000));
        let why = WorkError::Access(AccessError::NotAttached(REGION.0));
        let is_told = |c: &Completion| match &c.outcome {
            Outcome::Failed(error, _) => c.id == 9 && *error == why,
            _ => false,
        };
        let told = setup.poll();
        assert!(told.iter().any(is_told), "{told:?}");
        assert_eq!(setup.memory.load(0).unwrap(), 0);
    }
}
