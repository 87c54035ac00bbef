//! A network that does the worst it may, from a seed: READs torn word by word and interleaved
//! with writers, everything reordered that may be reordered, delays, and dying connections.
//!
//! Nothing happens by itself. [`World::step`] does one random thing among what is possible:
//! samples words of a READ, stores words of a WRITE, does an atomic, delivers a message or a
//! completion, ends a connection. And before each word that is stored into a
//! [`World::memory`], by a WRITE or by the server's own code, words of outstanding READs may be
//! sampled: a reader then sees any mixture of before and after.
//!
//! What it keeps, and nothing more (design.md 8): aligned words are whole; WRITE, CAS, FAA and
//! SEND of one endpoint take effect in posting order; completions come in posting order. A READ
//! takes its words at any time between posting and completion, also after a later WRITE.
//!
//! The same seed, options and calls give the same run: [`World::trace`] hashes all that
//! happened. Use it from one thread, or it is only safe and no longer reproducible.
//!
//! | file | what is in it |
//! |---|---|
//! | `state` | connections, requests, messages: data only |
//! | `acts` | what may happen next, and how it happens |
//! | `world` | set-up, stepping, the hook in stores |
//! | `endpoint` | the contract's two roles |

mod acts;
mod endpoint;
mod state;
mod world;

pub use endpoint::{Queue, SimEndpoint};
pub use world::{Connected, Pair, World};

/// How bad the world is. Chances are exact fractions, so that a run depends on nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Chance, in a thousand, that a store lets outstanding READs sample words before it.
    pub store_sample_per_mille: u32,
    /// Words sampled before one store, at most.
    pub store_burst_words: u32,
    /// Words that one step samples or stores, usually at most; now and then many more.
    pub step_burst_words: u32,
    /// Chance, in a thousand, that one word of a READ is sampled much later than the others:
    /// what finds memory that is reused too early.
    pub straggler_per_mille: u32,
    /// How many steps later, at most.
    pub straggler_steps: u32,
    /// Steps that a message, or the news of a dead connection, may take.
    pub message_delay_steps: u32,
    /// Chance, in a million, that a step kills a connection.
    pub kill_per_million: u32,
    /// [`crate::Caps::reads_now`]: a READ is a load, interleaved with nothing.
    pub reads_now: bool,
    /// Longest message.
    pub max_message_bytes: usize,
    /// Requests of one endpoint that may be outstanding or unpolled.
    pub send_depth: usize,
    /// Messages of one endpoint that its peer has not polled yet.
    pub credits: usize,
    /// Memory of each connecting side that the accepting side may READ and WRITE as region 0;
    /// 0 for none.
    pub staging_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            store_sample_per_mille: 300,
            store_burst_words: 8,
            step_burst_words: 4,
            straggler_per_mille: 100,
            straggler_steps: 200,
            message_delay_steps: 20,
            kill_per_million: 0,
            reads_now: false,
            max_message_bytes: 64 << 10,
            send_depth: 256,
            credits: 64,
            staging_bytes: 0,
        }
    }
}
