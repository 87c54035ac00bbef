//! What may happen next, and how it happens.

use std::sync::Arc;

use rand::Rng;

use super::Options;
use super::state::{At, Message, Op, State, What, Work};
use crate::buffer::BufferPool;
use crate::mem::{AccessError, Memory};
use crate::work::{Outcome, WorkError};

/// One thing that may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Sample words of a READ.
    Sample(At),
    /// Let the first request that takes effect in order go on.
    Execute(At),
    /// Deliver the completion of the first request.
    Complete(At),
    /// Deliver the first message.
    Deliver(At),
    /// Tell a side that its connection is dead.
    End(At),
}

/// A change of memory, made without the world's lock: its store runs the hook.
pub(super) enum Store {
    Words { seq: u64, at: At, memory: Arc<Memory>, parts: Vec<(usize, Vec<u8>)> },
    Swap { seq: u64, at: At, memory: Arc<Memory>, offset_bytes: usize, expected: u64, new: u64 },
    Add { seq: u64, at: At, memory: Arc<Memory>, offset_bytes: usize, add: u64 },
}

pub(super) enum Stored {
    Words(Result<u32, AccessError>),
    Atomic(Result<u64, AccessError>),
}

impl Store {
    pub(super) fn run(self) -> (At, u64, Stored) {
        match self {
            Self::Words { seq, at, memory, parts } => {
                let mut done = Ok(parts.len() as u32);
                for (offset, bytes) in parts {
                    done = done.and_then(|n| memory.write_bytes(offset, &bytes).map(|()| n));
                }
                (at, seq, Stored::Words(done))
            }
            Self::Swap { seq, at, memory, offset_bytes, expected, new } => {
                (at, seq, Stored::Atomic(memory.compare_swap(offset_bytes, expected, new)))
            }
            Self::Add { seq, at, memory, offset_bytes, add } => {
                (at, seq, Stored::Atomic(memory.fetch_add(offset_bytes, add)))
            }
        }
    }
}

impl State {
    /// All that may happen now.
    pub(super) fn possible(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for (conn, pair) in self.conns.iter().enumerate() {
            for (side, this) in pair.sides.iter().enumerate() {
                if this.closed {
                    continue;
                }
                let at = At { conn, side };
                if this.ends.as_ref().is_some_and(|(step, _)| *step <= self.step) {
                    acts.push(Act::End(at));
                }
                if pair.broken {
                    continue;
                }
                if this.posted.iter().any(|op| self.samples(op)) {
                    acts.push(Act::Sample(at));
                }
                if self.head(at).is_some() {
                    acts.push(Act::Execute(at));
                }
                if this.posted.front().is_some_and(|op| matches!(op.work, Work::Done(_))) {
                    acts.push(Act::Complete(at));
                }
                if this.inbox.front().is_some_and(|m| m.from_step <= self.step) {
                    acts.push(Act::Deliver(at));
                }
            }
        }
        acts
    }

    /// Whether time alone will make something possible.
    pub(super) fn pending(&self) -> bool {
        let open = |side: &&super::state::Side| !side.closed;
        let busy = |side: &super::state::Side| !side.posted.is_empty() || !side.inbox.is_empty();
        self.conns.iter().any(|conn| {
            conn.sides
                .iter()
                .filter(open)
                .any(|side| side.ends.is_some() || (!conn.broken && busy(side)))
        })
    }

    /// Words that one step moves at most: few, and now and then many, or long READs never end.
    fn burst(&mut self, options: &Options) -> u32 {
        let many = self.rng.random_range(0..4) == 0;
        if many { u32::MAX } else { options.step_burst_words.max(1) }
    }

    fn samples(&self, op: &Op) -> bool {
        let Work::Read(words) = &op.work else { return false };
        !words.left.is_empty() || words.late.is_some_and(|(_, step)| step <= self.step)
    }

    /// Position of the first request that is not a READ and has not taken effect.
    fn head(&self, at: At) -> Option<usize> {
        for (i, op) in self.conns[at.conn].sides[at.side].posted.iter().enumerate() {
            match &op.work {
                Work::Done(Outcome::Failed(..)) => return None,
                Work::Read(_) | Work::Done(_) => {}
                Work::Write(words) if words.storing > 0 => return None,
                _ => return Some(i),
            }
        }
        None
    }

    /// Does it; what is to be stored is returned and done by the caller without the lock.
    pub(super) fn act(&mut self, act: Act, options: &Options, pool: &BufferPool) -> Option<Store> {
        match act {
            Act::Sample(at) => {
                let most = self.burst(options);
                self.sample(at, most);
            }
            Act::Execute(at) => return self.execute(at, options, pool),
            Act::Complete(at) => self.complete(at, options),
            Act::Deliver(at) => {
                self.deliver(at);
            }
            Act::End(at) => self.end(at),
        }
        None
    }

    /// Samples up to `most` words of one READ of this side.
    pub(super) fn sample(&mut self, at: At, most: u32) {
        let posted = &self.conns[at.conn].sides[at.side].posted;
        let ripe: Vec<usize> = (0..posted.len()).filter(|&i| self.samples(&posted[i])).collect();
        if ripe.is_empty() {
            return;
        }
        let index = ripe[self.rng.random_range(0..ripe.len())];
        let op = &mut self.conns[at.conn].sides[at.side].posted[index];
        let Work::Read(words) = &mut op.work else { return };
        let most = (most as usize).min(words.left.len());
        let count = if most == 0 { 0 } else { self.rng.random_range(1..=most) };
        let mut hash = op.seq;
        for _ in 0..count {
            let word = words.left.swap_remove(self.rng.random_range(0..words.left.len()));
            hash = hash.rotate_left(7) ^ sample_word(words, word);
        }
        if let Some((word, step)) = words.late
            && step <= self.step
            && words.left.is_empty()
        {
            hash = hash.rotate_left(7) ^ sample_word(words, word);
            words.late = None;
        }
        if words.left.is_empty() && words.late.is_none() {
            let into = std::mem::take(&mut words.buffer);
            op.work = Work::Done(Outcome::Read(into));
            self.reads -= 1;
        }
        self.note(1, at, hash);
    }

    /// Before a store: lets words of any READ in the world be sampled.
    pub(super) fn sample_anywhere(&mut self, most: u32) {
        let mut sides = Vec::new();
        for (conn, pair) in self.conns.iter().enumerate().filter(|(_, pair)| !pair.broken) {
            for (side, this) in pair.sides.iter().enumerate() {
                if this.posted.iter().any(|op| self.samples(op)) {
                    sides.push(At { conn, side });
                }
            }
        }
        if !sides.is_empty() {
            let at = sides[self.rng.random_range(0..sides.len())];
            self.sample(at, most.max(1));
        }
    }

    fn execute(&mut self, at: At, options: &Options, pool: &BufferPool) -> Option<Store> {
        let index = self.head(at)?;
        let seq = self.side(at).posted[index].seq;
        self.note(2, at, seq);
        let burst = self.burst(options);
        let (now, delay) = (self.step, u64::from(options.message_delay_steps));
        let delay = self.rng.random_range(0..=delay);
        let rng = &mut self.rng;
        let [a, b] = &mut self.conns[at.conn].sides;
        let (this, peer) = if at.side == 0 { (a, b) } else { (b, a) };
        let op = &mut this.posted[index];
        match &mut op.work {
            Work::Write(words) => {
                let mut parts = Vec::new();
                let most = (burst as usize).min(words.left.len());
                let count = if most == 0 { 0 } else { rng.random_range(1..=most) };
                for _ in 0..count {
                    let word = words.left.swap_remove(rng.random_range(0..words.left.len()));
                    let (offset, range) = words.span(word);
                    parts.push((offset, words.buffer[range].to_vec()));
                }
                words.storing = parts.len() as u32;
                let memory = Arc::clone(&words.memory);
                if parts.is_empty() {
                    let from = std::mem::take(&mut words.buffer);
                    op.work = Work::Done(Outcome::Written(from));
                    return None;
                }
                return Some(Store::Words { seq, at, memory, parts });
            }
            &mut Work::CompareSwap { ref memory, offset_bytes, expected, new } => {
                let memory = Arc::clone(memory);
                return Some(Store::Swap { seq, at, memory, offset_bytes, expected, new });
            }
            &mut Work::FetchAdd { ref memory, offset_bytes, add } => {
                let memory = Arc::clone(memory);
                return Some(Store::Add { seq, at, memory, offset_bytes, add });
            }
            Work::Send(message) => {
                // Later ones never overtake it: delivery is from the front.
                let bytes = pool.copy_of(message);
                peer.inbox.push_back(Message { from_step: now + delay, bytes });
                let message = std::mem::take(message);
                op.work = Work::Done(Outcome::Sent(message));
            }
            Work::Faulty(error, buffer) => {
                let failed = Outcome::Failed(WorkError::Access(*error), buffer.take());
                op.work = Work::Done(failed);
            }
            Work::Read(_) | Work::Done(_) => {}
        }
        None
    }

    /// The store has been made.
    pub(super) fn stored(&mut self, at: At, seq: u64, stored: Stored) {
        let detail = match &stored {
            Stored::Words(_) => seq,
            Stored::Atomic(found) => *found.as_ref().unwrap_or(&0),
        };
        self.note(3, at, detail);
        // The connection may have been closed meanwhile by another thread.
        let Some(op) = self.side(at).posted.iter_mut().find(|op| op.seq == seq) else { return };
        let failed = |error, buffer| Outcome::Failed(WorkError::Access(error), buffer);
        let outcome = match (stored, &mut op.work) {
            (Stored::Words(Ok(_)), Work::Write(words)) => {
                words.storing = 0;
                if !words.left.is_empty() {
                    return;
                }
                Outcome::Written(std::mem::take(&mut words.buffer))
            }
            (Stored::Words(Err(error)), Work::Write(words)) => {
                failed(error, Some(std::mem::take(&mut words.buffer)))
            }
            (Stored::Atomic(Ok(found)), _) => Outcome::Atomic(found),
            (Stored::Atomic(Err(error)), _) => failed(error, None),
            (Stored::Words(_), _) => return,
        };
        op.work = Work::Done(outcome);
    }

    fn complete(&mut self, at: At, options: &Options) {
        let Some(op) = self.side(at).posted.pop_front() else { return };
        self.note(4, at, op.seq);
        let Work::Done(outcome) = op.work else { return };
        let failed = matches!(outcome, Outcome::Failed(..));
        if failed || op.signaled {
            self.push(at, op.id, What::Outcome(outcome, true));
        }
        if failed {
            self.sever(at, options, "a request failed");
            self.end(at);
        }
    }

    fn deliver(&mut self, at: At) {
        if let Some(message) = self.side(at).inbox.pop_front() {
            self.note(5, at, message.bytes.len() as u64);
            self.push(at, 0, What::Outcome(Outcome::Received(message.bytes), false));
        }
    }

    /// The connection dies; this side may be told at once, the other one learns of it later.
    pub(super) fn sever(&mut self, at: At, options: &Options, reason: &str) {
        self.note(6, at, 0);
        self.conns[at.conn].broken = true;
        for at in [at, at.peer()] {
            let delay = self.rng.random_range(0..=u64::from(options.message_delay_steps));
            let step = self.step + delay;
            let side = self.side(at);
            if side.ends.is_none() && !side.closed {
                side.ends = Some((step, reason.to_owned()));
            }
        }
    }

    /// This side learns that the connection is dead: messages that made it, completions that
    /// made it, the failures of the rest, and the end.
    pub(super) fn end(&mut self, at: At) {
        self.note(7, at, 0);
        if self.side(at).closed {
            return;
        }
        while !self.side(at).inbox.is_empty() && self.rng.random_range(0..4) != 0 {
            self.deliver(at);
        }
        let mut posted = std::mem::take(&mut self.side(at).posted);
        let mut lost = false;
        while let Some(op) = posted.pop_front() {
            self.reads -= usize::from(matches!(op.work, Work::Read(_)));
            lost |= !matches!(op.work, Work::Done(_)) || self.rng.random_range(0..2) == 0;
            match op.work {
                Work::Done(outcome) if !lost => {
                    if op.signaled || matches!(outcome, Outcome::Failed(..)) {
                        self.push(at, op.id, What::Outcome(outcome, true));
                    }
                }
                work => {
                    let flushed = Outcome::Failed(WorkError::Flushed, work.into_buffer());
                    self.push(at, op.id, What::Outcome(flushed, true));
                }
            }
        }
        let side = self.side(at);
        side.closed = true;
        side.inbox.clear();
        let reason = side.ends.take().map_or_else(String::new, |(_, reason)| reason);
        self.push(at, 0, What::Outcome(Outcome::Disconnected(reason), false));
    }
}

fn sample_word(words: &mut super::state::Words, word: u32) -> u64 {
    let (offset, range) = words.span(word);
    let into = &mut words.buffer[range];
    // Bounds were checked when it was posted, and memory does not shrink.
    let sampled = words.memory.read_bytes(offset, into);
    debug_assert!(sampled.is_ok());
    into.iter().fold(u64::from(word), |hash, byte| hash.rotate_left(5) ^ u64::from(*byte))
}
