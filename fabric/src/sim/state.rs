//! Connections, requests and messages: data only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::buffer::Buffer;
use crate::endpoint::Admission;
use crate::mem::{AccessError, Memory};
use crate::work::{Outcome, RegionId, Rights};

/// One side of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) conn: usize,
    pub(super) side: usize,
}

impl At {
    pub(super) fn peer(self) -> Self {
        Self { conn: self.conn, side: 1 - self.side }
    }
}

/// A request's words that are still to be sampled or stored.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) memory: Arc<Memory>,
    pub(super) offset_bytes: usize,
    pub(super) buffer: Buffer,
    pub(super) left: Vec<u32>,
    /// A word that comes later, and from which step on.
    pub(super) late: Option<(u32, u64)>,
    /// Words whose store has begun and not ended.
    pub(super) storing: u32,
}

impl Words {
    /// Where word `index` lies in the memory and in the buffer: aligned words of the memory, cut
    /// at the edges.
    pub(super) fn span(&self, index: u32) -> (usize, std::ops::Range<usize>) {
        let word = (self.offset_bytes & !7) + index as usize * 8;
        let start = word.max(self.offset_bytes);
        let end = (word + 8).min(self.offset_bytes + self.buffer.len());
        (start, start - self.offset_bytes..end - self.offset_bytes)
    }
}

pub(super) enum Work {
    Read(Words),
    Write(Words),
    CompareSwap {
        memory: Arc<Memory>,
        offset_bytes: usize,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        memory: Arc<Memory>,
        offset_bytes: usize,
        add: u64,
    },
    Send(Buffer),
    /// The address or the right was wrong.
    Faulty(AccessError, Option<Buffer>),
    Done(Outcome),
}

impl Work {
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read(words) | Self::Write(words) => Some(words.buffer),
            Self::Send(buffer) => Some(buffer),
            Self::Faulty(_, buffer) => buffer,
            Self::Done(
                Outcome::Read(b) | Outcome::Written(b) | Outcome::Sent(b) | Outcome::Received(b),
            ) => Some(b),
            Self::Done(Outcome::Failed(_, buffer)) => buffer,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } | Self::Done(_) => None,
        }
    }
}

pub(super) struct Op {
    /// Number of the request in its world, never used twice.
    pub(super) seq: u64,
    pub(super) id: u64,
    pub(super) signaled: bool,
    /// Of the peer, that it READs or changes.
    pub(super) region: Option<RegionId>,
    pub(super) work: Work,
}

pub(super) struct Message {
    pub(super) from_step: u64,
    pub(super) bytes: Buffer,
}

pub(super) type Regions = BTreeMap<RegionId, (Arc<Memory>, Rights)>;

#[derive(Default)]
pub(super) struct Side {
    pub(super) context: u64,
    pub(super) queue: usize,
    /// In posting order; done ones stay until all before them are done.
    pub(super) posted: VecDeque<Op>,
    /// Messages on their way to this side.
    pub(super) inbox: VecDeque<Message>,
    /// SENDs of this side that the peer has not polled.
    pub(super) unreceived: usize,
    /// Completions of requests that nobody has polled.
    pub(super) unpolled: usize,
    /// What this side lets the other one reach.
    pub(super) offers: Regions,
    /// What this side has attached of the other one.
    pub(super) attached: Regions,
    /// When and why it learns that the connection is dead.
    pub(super) ends: Option<(u64, String)>,
    pub(super) closed: bool,
    /// See [`super::World::fence`].
    pub(super) fenced: bool,
}

pub(super) struct Conn {
    pub(super) sides: [Side; 2],
    /// Nothing takes effect any more.
    pub(super) broken: bool,
}

pub(super) enum What {
    Connected,
    /// With whether it counts as a request's unpolled completion.
    Outcome(Outcome, bool),
}

pub(super) struct Item {
    pub(super) at: At,
    pub(super) id: u64,
    pub(super) what: What,
}

#[derive(Default)]
pub(super) struct QueueState {
    pub(super) ready: VecDeque<Item>,
    pub(super) woken: bool,
    pub(super) admission: Option<Arc<dyn Admission>>,
}

pub(super) struct State {
    pub(super) rng: SmallRng,
    pub(super) step: u64,
    pub(super) now_ns: u64,
    pub(super) trace: u64,
    pub(super) next_seq: u64,
    /// READs that still have words to sample.
    pub(super) reads: usize,
    pub(super) conns: Vec<Conn>,
    pub(super) queues: Vec<QueueState>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        // A clock that begins anywhere finds code that takes 0 for "never".
        let now_ns = rng.random_range(1 << 40..1 << 60);
        Self {
            rng,
            step: 0,
            now_ns,
            trace: 0xcbf2_9ce4_8422_2325,
            next_seq: 0,
            reads: 0,
            conns: Vec::new(),
            queues: Vec::new(),
        }
    }

    pub(super) fn side(&mut self, at: At) -> &mut Side {
        &mut self.conns[at.conn].sides[at.side]
    }

    /// Adds to the hash of what happened (FNV-1a over words).
    pub(super) fn note(&mut self, kind: u8, at: At, detail: u64) {
        for word in [u64::from(kind), at.conn as u64, at.side as u64, detail] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            self.trace ^= self.trace >> 29;
        }
    }

    pub(super) fn chance(&mut self, of: u32, whole: u32) -> bool {
        of > 0 && self.rng.random_range(0..whole) < of
    }

    pub(super) fn push(&mut self, at: At, id: u64, what: What) {
        let side = self.side(at);
        if matches!(what, What::Outcome(_, true)) {
            side.unpolled += 1;
        }
        let queue = side.queue;
        self.queues[queue].ready.push_back(Item { at, id, what });
    }

    /// The memory of a region can be reached by nobody any more: requests that do are faulty, also
    /// those of who has detached it since.
    pub(super) fn revoke(&mut self, region: RegionId) {
        let revoked = AccessError::NotAttached(region.0);
        for side in self.conns.iter_mut().flat_map(|conn| &mut conn.sides) {
            side.offers.remove(&region);
            side.attached.remove(&region);
            for op in side.posted.iter_mut().filter(|op| op.region == Some(region)) {
                if matches!(op.work, Work::Done(_) | Work::Faulty(..)) {
                    continue;
                }
                self.reads -= usize::from(matches!(op.work, Work::Read(_)));
                let work = std::mem::replace(&mut op.work, Work::Faulty(revoked, None));
                op.work = Work::Faulty(revoked, work.into_buffer());
            }
        }
    }

    /// Two sides on two queues; returns the number of the connection.
    pub(super) fn connect(&mut self, contexts: [u64; 2], queues: [usize; 2]) -> usize {
        let side = |i: usize| Side { context: contexts[i], queue: queues[i], ..Side::default() };
        self.conns.push(Conn { sides: [side(0), side(1)], broken: false });
        self.conns.len() - 1
    }
}
