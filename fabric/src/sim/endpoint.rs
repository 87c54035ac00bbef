//! The contract's two roles, in a simulated world.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

use super::Options;
use super::state::{At, Op, Regions, State, What, Words, Work};
use super::world::World;
use crate::buffer::Buffer;
use crate::endpoint::{AttachError, Caps, CompletionQueue, Endpoint, FabricKind, Wait};
use crate::mem::{AccessError, Memory};
use crate::work::{
    Completion, Opcode, Outcome, PostError, RegionId, RemoteAddr, Rights, WorkRequest,
};

/// One end of a simulated connection; dropping the last handle closes it.
pub struct SimEndpoint {
    pub(super) world: Arc<World>,
    pub(super) at: At,
}

impl fmt::Debug for SimEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimEndpoint").field("world", &self.world).field("at", &self.at).finish()
    }
}

/// Whether an access lies inside; its start.
fn check(memory: &Memory, offset_bytes: u64, len_bytes: usize) -> Result<usize, AccessError> {
    let (len, region_bytes) = (len_bytes as u64, memory.len_bytes() as u64);
    if offset_bytes <= region_bytes && len <= region_bytes - offset_bytes {
        return Ok(offset_bytes as usize);
    }
    Err(AccessError::OutOfBounds { offset_bytes, len_bytes: len, region_bytes })
}

fn find(
    attached: &Regions,
    remote: RemoteAddr,
    len_bytes: usize,
    writes: bool,
) -> Result<(Arc<Memory>, usize), AccessError> {
    let (memory, rights) =
        attached.get(&remote.region).ok_or(AccessError::NotAttached(remote.region.0))?;
    if writes && *rights == Rights::ReadOnly {
        return Err(AccessError::ReadOnly);
    }
    Ok((Arc::clone(memory), check(memory, remote.offset_bytes, len_bytes)?))
}

fn find_word(attached: &Regions, remote: RemoteAddr) -> Result<(Arc<Memory>, usize), AccessError> {
    if !remote.offset_bytes.is_multiple_of(8) {
        return Err(AccessError::Misaligned(remote.offset_bytes));
    }
    find(attached, remote, 8, true)
}

fn words(attached: &Regions, remote: RemoteAddr, buffer: Buffer, writes: bool) -> Work {
    match find(attached, remote, buffer.len(), writes) {
        Ok((memory, offset_bytes)) => {
            let span_bytes = offset_bytes % 8 + buffer.len();
            let count = if buffer.is_empty() { 0 } else { span_bytes.div_ceil(8) };
            let left = (0..count as u32).collect();
            let words = Words { memory, offset_bytes, buffer, left, late: None, storing: 0 };
            if writes { Work::Write(words) } else { Work::Read(words) }
        }
        Err(error) => Work::Faulty(error, Some(buffer)),
    }
}

/// Of the peer, that a request READs or changes.
fn region_of(op: &Opcode) -> Option<RegionId> {
    match op {
        Opcode::Read { remote, .. }
        | Opcode::Write { remote, .. }
        | Opcode::CompareSwap { remote, .. }
        | Opcode::FetchAdd { remote, .. } => Some(remote.region),
        Opcode::Send { .. } => None,
    }
}

fn work_of(attached: &Regions, op: Opcode) -> Work {
    let found = |r: Result<_, AccessError>| r.map_err(|error| Work::Faulty(error, None));
    match op {
        Opcode::Read { remote, into } => words(attached, remote, into, false),
        Opcode::Write { remote, from } => words(attached, remote, from, true),
        Opcode::CompareSwap { remote, expected, new } => found(find_word(attached, remote))
            .map_or_else(
                |faulty| faulty,
                |(memory, offset_bytes)| Work::CompareSwap { memory, offset_bytes, expected, new },
            ),
        Opcode::FetchAdd { remote, add } => found(find_word(attached, remote)).map_or_else(
            |faulty| faulty,
            |(memory, offset_bytes)| Work::FetchAdd { memory, offset_bytes, add },
        ),
        Opcode::Send { message } => Work::Send(message),
    }
}

impl State {
    fn post(
        &mut self,
        at: At,
        options: &Options,
        chain: &mut VecDeque<WorkRequest>,
    ) -> Result<(), PostError> {
        loop {
            let side = &mut self.conns[at.conn].sides[at.side];
            let Some(request) = chain.front() else { return Ok(()) };
            if side.closed {
                return Err(PostError::Closed);
            }
            if let Opcode::Send { message } = &request.op {
                let (len_bytes, max_bytes) = (message.len(), options.max_message_bytes);
                if len_bytes > max_bytes {
                    return Err(PostError::TooLong { len_bytes, max_bytes });
                }
                if side.unreceived >= options.credits {
                    return Err(PostError::Full);
                }
                side.unreceived += 1;
            }
            if side.posted.len() + side.unpolled >= options.send_depth {
                if matches!(request.op, Opcode::Send { .. }) {
                    side.unreceived -= 1;
                }
                return Err(PostError::Full);
            }
            let Some(WorkRequest { id, signaled, op }) = chain.pop_front() else { return Ok(()) };
            let region = region_of(&op);
            let work = self.begin(at, options, op);
            let seq = self.next_seq;
            self.next_seq += 1;
            self.note(8, at, seq);
            self.side(at).posted.push_back(Op { seq, id, signaled, region, work });
        }
    }

    fn begin(&mut self, at: At, options: &Options, op: Opcode) -> Work {
        let mut work = work_of(&self.side(at).attached, op);
        if let Work::Read(words) = &mut work {
            if words.left.is_empty() {
                return Work::Done(Outcome::Read(std::mem::take(&mut words.buffer)));
            }
            self.reads += 1;
            if options.straggler_steps > 0 && self.chance(options.straggler_per_mille, 1000) {
                let word = words.left.swap_remove(self.rng.random_range(0..words.left.len()));
                let steps = self.rng.random_range(1..=u64::from(options.straggler_steps));
                words.late = Some((word, self.step + steps));
            }
        }
        work
    }
}

impl SimEndpoint {
    fn attached(
        &self,
        remote: RemoteAddr,
        len: usize,
    ) -> Result<(Arc<Memory>, usize), AccessError> {
        find(&self.world.state.lock().side(self.at).attached, remote, len, false)
    }
}

impl Endpoint for SimEndpoint {
    fn caps(&self) -> Caps {
        let options = &self.world.options;
        Caps {
            kind: FabricKind::Sim,
            one_sided: true,
            reads_now: options.reads_now,
            max_message_bytes: options.max_message_bytes,
            send_depth: options.send_depth,
        }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        let mut state = self.world.state.lock();
        let result = state.post(self.at, &self.world.options, chain);
        self.world.publish(&state);
        result
    }

    fn attach(&self, region: RegionId, _descriptor: &[u8]) -> Result<(), AttachError> {
        let (offered, admission, context) = {
            let mut state = self.world.state.lock();
            if state.side(self.at).closed || state.conns[self.at.conn].broken {
                return Err(AttachError::Closed);
            }
            if state.side(self.at).attached.contains_key(&region) {
                return Ok(());
            }
            let owner = state.side(self.at.peer());
            let (offered, context) = (owner.offers.get(&region).cloned(), owner.context);
            let queue = owner.queue;
            (offered, state.queues[queue].admission.clone(), context)
        };
        // The admission is the server's code: not under the world's lock.
        let offered = offered.or_else(|| admission.and_then(|a| a.region(context, region)));
        let Some(offered) = offered else { return Err(AttachError::NotOffered(region)) };
        self.world.state.lock().side(self.at).attached.insert(region, offered);
        Ok(())
    }

    fn read_now(&self, remote: RemoteAddr, into: &mut [u64]) -> Option<Result<(), AccessError>> {
        if !self.world.options.reads_now {
            return None;
        }
        let found = self.attached(remote, into.len().saturating_mul(8));
        Some(found.and_then(|(memory, offset)| memory.read_words(offset, into)))
    }

    fn read_bytes_now(
        &self,
        remote: RemoteAddr,
        into: &mut [u8],
    ) -> Option<Result<(), AccessError>> {
        if !self.world.options.reads_now {
            return None;
        }
        let found = self.attached(remote, into.len());
        Some(found.and_then(|(memory, offset)| memory.read_bytes(offset, into)))
    }

    fn detach(&self, region: RegionId) {
        self.world.state.lock().side(self.at).attached.remove(&region);
    }

    fn is_fenced(&self) -> bool {
        self.world.state.lock().side(self.at).fenced
    }

    fn close(&self) {
        let mut state = self.world.state.lock();
        if state.side(self.at).closed {
            return;
        }
        if !state.conns[self.at.conn].broken {
            state.sever(self.at, &self.world.options, "closed");
        }
        state.side(self.at).inbox.clear();
        state.end(self.at);
        self.world.publish(&state);
    }

    fn is_closed(&self) -> bool {
        self.world.state.lock().side(self.at).closed
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}

/// Completions of any number of simulated endpoints.
pub struct Queue {
    pub(super) world: Arc<World>,
    pub(super) index: usize,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("world", &self.world).field("index", &self.index).finish()
    }
}

impl Queue {
    fn take(&self) -> Option<Completion> {
        let mut state = self.world.state.lock();
        let item = state.queues[self.index].ready.pop_front()?;
        let at = item.at;
        let context = state.side(at).context;
        let outcome = match item.what {
            What::Outcome(outcome, counted) => {
                state.side(at).unpolled -= usize::from(counted);
                if matches!(outcome, Outcome::Received(_)) {
                    state.side(at.peer()).unreceived -= 1;
                }
                outcome
            }
            What::Connected => {
                drop(state);
                Outcome::Connected(self.world.endpoint(at))
            }
        };
        Some(Completion { context, id: item.id, outcome })
    }

    fn has_work(&self) -> bool {
        let mut state = self.world.state.lock();
        let queue = &mut state.queues[self.index];
        std::mem::take(&mut queue.woken) || !queue.ready.is_empty()
    }
}

impl CompletionQueue for Queue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let before = out.len();
        out.extend(std::iter::from_fn(|| self.take()).take(max));
        out.len() - before
    }

    /// Lets the world and its driver go on until something arrives here, the world's clock has
    /// passed the timeout, or nothing is left to do: then the timeout passes at once.
    fn wait(&self, timeout: Duration) -> Wait {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.world.now_ns().saturating_add(timeout_ns);
        while !self.has_work() {
            if self.world.now_ns() >= until_ns {
                return Wait::TimedOut;
            }
            let moved = self.world.step();
            let drove = (!moved || self.world.pick(4) == 0) && self.world.run_driver();
            if !moved && !drove {
                // For those who use it from several threads, against the advice.
                std::thread::yield_now();
                let mut state = self.world.state.lock();
                state.now_ns = state.now_ns.max(until_ns);
            }
        }
        Wait::Ready
    }

    fn wake(&self) {
        self.world.state.lock().queues[self.index].woken = true;
    }
}
