//! What a seed chooses.

use onesided_fabric::sim::Options;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::values::STAMPABLE_MIN_BYTES;

/// Sizes, rates, and how bad the network is.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub network: Options,
    /// Of the server. Segments have 1 KiB.
    pub memory_bytes: usize,
    pub keys: usize,
    pub clients: usize,
    /// After so many the run ends.
    pub mutations: usize,
    /// GETs for each hundred calls.
    pub gets_percent: u64,
    /// Keys that nobody reads, in the index from the start: the first split is near.
    pub prefill: usize,
    /// Bytes of values, from and to. Segments have 1 KiB: a value of 500 or more makes an
    /// address recur with every second or third update.
    pub value_bytes: (usize, usize),
    /// One of so many values is large (over 16 KiB).
    pub large_one_in: u64,
    /// Bytes that a client's bucket cache may take; 0 = every GET READs its bucket.
    pub cache_bytes: usize,
    /// Chance, in a thousand, that clients go on before a store of the server.
    pub pause_per_mille: u64,
    /// For how many steps, at most.
    pub pause_steps: u64,
    pub clock_moves: bool,
    /// Chance, in a thousand steps, that a GET into a lent buffer is given up.
    pub drop_per_mille: u64,
    /// Most of them.
    pub fillers_max: u64,
    /// Of what the server does by itself, how much are relocations; the rest makes the index grow.
    pub relocate_percent: u64,
    /// Of the relocations, how many are the cleaner's: of all that is live in the oldest segment,
    /// whatever is dead in it; then the segment is used again. The others are of one key.
    pub clean_percent: u64,
    /// Whether the table is ordered: then some GETs are scans.
    pub ordered: bool,
    /// Whether clients update entries themselves.
    pub cas: bool,
    /// Whether clients whose connection broke make another one and go on. Of a hundred, so many
    /// find their session still there. `None`: another client takes the place.
    pub resumed_percent: Option<u64>,
    /// Clients commit an entry with their next update, and the last one never.
    pub commits_wait: bool,
    /// Chance, in a thousand of a client's steps, of a look at what waits to be committed, which
    /// posts what it finds twice.
    pub commits_per_mille: u64,
    /// Calls that a client has under way at a time.
    pub threads: usize,
    /// Whether the server gives regions back all the time.
    pub shrinks: bool,
    /// Of a hundred calls, how many do something with counters.
    pub count_percent: u64,
    /// Whether they are at their limits now and then.
    pub counts_far: bool,
    /// Weights of the kinds of mutation.
    pub weights: Weights,
}

/// How often each kind of mutation is called.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub put: u64,
    pub put_if: u64,
    pub put_short_lived: u64,
    pub delete: u64,
    pub append: u64,
    pub increment: u64,
    pub touch: u64,
    /// Writes at an offset: without increments, whose values are shorter than that.
    pub stamp: u64,
}

impl Weights {
    /// Nothing: to name what there is.
    pub const NONE: Self = Self {
        put: 0,
        put_if: 0,
        put_short_lived: 0,
        delete: 0,
        append: 0,
        increment: 0,
        touch: 0,
        stamp: 0,
    };
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            put: 12,
            put_if: 6,
            put_short_lived: 2,
            delete: 8,
            append: 2,
            increment: 1,
            touch: 1,
            stamp: 0,
        }
    }
}

impl Plan {
    /// As [`Self::of`], with clients that update entries themselves.
    pub fn cas_of(seed: u64) -> Self {
        let plan = Self::of(seed);
        let threads = if seed / 4 % 2 == 1 { 3 } else { 1 };
        // The history knows only one expiry of each client's at a time.
        let (put_short_lived, touch) = if threads == 1 { (4, 3) } else { (0, 0) };
        let weights = Weights { put: 30, put_short_lived, touch, ..plan.weights };
        // In some, keys are counters, too.
        let count_percent = if seed.is_multiple_of(3) { 25 } else { 0 };
        // In some, clients outlive their connections.
        let outlives = plan.network.kill_per_million > 0 && seed.is_multiple_of(2);
        let resumed_percent = outlives.then_some(70);
        let commits_wait = seed / 2 % 2 == 1;
        // The last one not for ever.
        let commits_per_mille = if seed % 5 < 3 { 30 } else { 0 };
        // More calls at a time are too many to be checked.
        let clients = if threads == 1 { plan.clients } else { 2 };
        let plan = Self { weights, count_percent, resumed_percent, commits_wait, clients, ..plan };
        Self { cas: true, ordered: false, commits_per_mille, threads, ..plan }
    }

    pub fn of(seed: u64) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let network = Options {
            straggler_per_mille: *[50, 200, 500].choose(rng).unwrap_or(&200),
            straggler_steps: *[100, 400].choose(rng).unwrap_or(&100),
            step_burst_words: *[4, 16, 64].choose(rng).unwrap_or(&16),
            message_delay_steps: 10,
            kill_per_million: *[0, 0, 30].choose(rng).unwrap_or(&0),
            ..Options::default()
        };
        let sizes = [(STAMPABLE_MIN_BYTES, 80), (430, 480), (500, 900), (500, 900), (700, 2_500)];
        let plan = Self {
            seed,
            network,
            memory_bytes: 4 << 20,
            keys: rng.random_range(1..4),
            clients: rng.random_range(3..7),
            mutations: rng.random_range(40..100),
            gets_percent: rng.random_range(50..85),
            prefill: rng.random_range(0..75),
            value_bytes: *sizes.choose(rng).unwrap_or(&sizes[2]),
            large_one_in: *[u64::MAX, 40, 8].choose(rng).unwrap_or(&40),
            cache_bytes: *[0, 1 << 20, 1 << 20].choose(rng).unwrap_or(&0),
            pause_per_mille: *[5, 30, 100].choose(rng).unwrap_or(&30),
            pause_steps: *[20, 60, 150].choose(rng).unwrap_or(&60),
            clock_moves: network.kill_per_million == 0 && rng.random_bool(0.6),
            fillers_max: 500,
            relocate_percent: rng.random_range(30..80),
            clean_percent: *[0, 50, 90].choose(rng).unwrap_or(&50),
            drop_per_mille: *[0, 10].choose(rng).unwrap_or(&0),
            ordered: false,
            cas: false,
            resumed_percent: None,
            commits_wait: false,
            commits_per_mille: 0,
            threads: 1,
            shrinks: rng.random_bool(0.7),
            count_percent: 0,
            counts_far: false,
            weights: Weights::default(),
        };
        let weights = match rng.random_bool(0.5) {
            true => Weights { increment: 0, stamp: 3, ..plan.weights },
            false => plan.weights,
        };
        Self { weights, ordered: rng.random_bool(0.5), ..plan }
    }
}
