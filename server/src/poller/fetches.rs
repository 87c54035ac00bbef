//! Requests whose values are being READ from their clients' memory, or wait for their turn.
//!
//! Bounded: in number by the clients' credits, in bytes of values by a budget over all clients, and
//! by a share of it for each: who does not let its memory be READ holds up nobody else. Beyond
//! them requests wait, clients taking turns and each client's oldest first; one that is longer
//! than a share is its client's only one, and one longer than the budget is READ alone.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use onesided_fabric::{Buffer, BufferPool, Opcode, WorkRequest};
use onesided_protocol::limits::BATCH_MAX;

use crate::rpc::Span;

/// Bits of a READ's id that number the value within its request.
const INDEX_BITS: u32 = 16;
const _: () = assert!(BATCH_MAX < 1 << INDEX_BITS);
/// A client may have this part of the budget.
const SHARES: usize = 8;

/// All of one poller.
pub(super) struct Fetches {
    budget_bytes: usize,
    /// Bytes of what was begun and is not done.
    taken_bytes: usize,
    table: HashMap<u64, Fetch>,
    clients: HashMap<u64, Queue>,
    /// Clients that have requests to begin and are within their shares, in the order of their
    /// turns.
    turns: VecDeque<u64>,
    last: u64,
    looked: Option<Instant>,
}

/// What there is of one client.
#[derive(Default)]
struct Queue {
    /// Not begun, the oldest first.
    waiting: VecDeque<u64>,
    /// Bytes of what was begun and is not done.
    taken_bytes: usize,
    /// It is in `turns`.
    has_turn: bool,
}

struct Fetch {
    context: u64,
    message: Buffer,
    spans: Vec<Span>,
    values: Vec<Buffer>,
    missing: usize,
    bytes: usize,
    begun: Option<Instant>,
}

/// A request that can be served.
pub(super) struct Fetched {
    pub(super) message: Buffer,
    pub(super) values: Vec<Buffer>,
}

impl Fetches {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self {
            budget_bytes,
            taken_bytes: 0,
            table: HashMap::new(),
            clients: HashMap::new(),
            turns: VecDeque::new(),
            last: 0,
            looked: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// A request waits for its values.
    pub(super) fn add(&mut self, context: u64, message: Buffer, spans: Vec<Span>) {
        self.last += 1;
        let bytes = spans.iter().map(|span| span.len_bytes).sum();
        let missing = spans.len();
        let values = Vec::new();
        let begun = None;
        let fetch = Fetch { context, message, spans, values, missing, bytes, begun };
        self.table.insert(self.last, fetch);
        self.clients.entry(context).or_default().waiting.push_back(self.last);
        self.give_turn(context);
    }

    fn give_turn(&mut self, context: u64) {
        if let Some(queue) = self.clients.get_mut(&context)
            && !queue.has_turn
            && !queue.waiting.is_empty()
        {
            queue.has_turn = true;
            self.turns.push_back(context);
        }
    }

    /// Whose turn it is, if the budget allows one more.
    pub(super) fn next(&mut self) -> Option<u64> {
        let share_bytes = self.budget_bytes / SHARES;
        while let Some(&context) = self.turns.front() {
            let queue = self.clients.get_mut(&context)?;
            let bytes = queue.waiting.front().and_then(|number| self.table.get(number))?.bytes;
            if queue.taken_bytes == 0 || queue.taken_bytes + bytes <= share_bytes {
                let fits = self.taken_bytes + bytes <= self.budget_bytes;
                return (fits || self.taken_bytes == 0).then_some(context);
            }
            // Its next turn comes when one of its requests is done.
            queue.has_turn = false;
            self.turns.pop_front();
        }
        None
    }

    /// Takes the request whose turn it is.
    fn take(&mut self) -> Option<u64> {
        let context = self.turns.pop_front()?;
        let queue = self.clients.get_mut(&context)?;
        queue.has_turn = false;
        let number = queue.waiting.pop_front();
        self.give_turn(context);
        number
    }

    /// Begins what [`Self::next`] said: appends its READs to `out`.
    pub(super) fn begin(&mut self, pool: &BufferPool, out: &mut VecDeque<WorkRequest>) {
        let Some(number) = self.take() else { return };
        let Some(fetch) = self.table.get_mut(&number) else { return };
        fetch.begun = Some(Instant::now());
        fetch.values.resize_with(fetch.spans.len(), Buffer::default);
        self.taken_bytes += fetch.bytes;
        if let Some(queue) = self.clients.get_mut(&fetch.context) {
            queue.taken_bytes += fetch.bytes;
        }
        for (index, span) in fetch.spans.iter().enumerate() {
            let id = number << INDEX_BITS | index as u64;
            let op = Opcode::Read { remote: span.remote, into: pool.get(span.len_bytes) };
            out.push_back(WorkRequest { id, signaled: true, op });
        }
    }

    /// Takes the request back that [`Self::next`] said: it is not begun.
    pub(super) fn take_back(&mut self) -> Option<Buffer> {
        let number = self.take()?;
        let fetch = self.table.remove(&number)?;
        self.forget_if_idle(fetch.context);
        Some(fetch.message)
    }

    fn forget_if_idle(&mut self, context: u64) {
        let idle = |queue: &Queue| queue.waiting.is_empty() && queue.taken_bytes == 0;
        if self.clients.get(&context).is_some_and(idle) {
            self.clients.remove(&context);
        }
    }

    /// A READ is done. The request, when it was the last one missing.
    pub(super) fn arrived(&mut self, context: u64, id: u64, value: Buffer) -> Option<Fetched> {
        let (number, index) = (id >> INDEX_BITS, id & ((1 << INDEX_BITS) - 1));
        let fetch = self.table.get_mut(&number).filter(|fetch| fetch.context == context)?;
        let span = fetch.spans.get(index as usize)?;
        let place = fetch.values.get_mut(index as usize)?;
        if !place.is_empty() || value.len() != span.len_bytes {
            return None;
        }
        *place = value;
        fetch.missing -= 1;
        if fetch.missing > 0 {
            return None;
        }
        let fetch = self.table.remove(&number)?;
        self.taken_bytes -= fetch.bytes;
        if let Some(queue) = self.clients.get_mut(&context) {
            queue.taken_bytes -= fetch.bytes;
        }
        self.give_turn(context);
        self.forget_if_idle(context);
        Some(Fetched { message: fetch.message, values: fetch.values })
    }

    /// The client is gone: nothing of it comes any more.
    pub(super) fn drop_client(&mut self, context: u64) -> usize {
        let before = self.table.len();
        self.table.retain(|_, fetch| {
            let stays = fetch.context != context;
            if !stays && fetch.begun.is_some() {
                self.taken_bytes -= fetch.bytes;
            }
            stays
        });
        self.clients.remove(&context);
        self.turns.retain(|other| *other != context);
        before - self.table.len()
    }

    /// Clients whose memory has not been read within `max`, looked for a few times in that time.
    pub(super) fn overdue(&mut self, max: Duration) -> Vec<u64> {
        if self.table.is_empty() || self.looked.is_some_and(|at| at.elapsed() < max / 4) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        let late = |fetch: &&Fetch| fetch.begun.is_some_and(|since| since.elapsed() > max);
        self.table.values().filter(late).map(|fetch| fetch.context).collect()
    }
}

#[cfg(test)]
mod tests {
    use onesided_fabric::{RegionId, RemoteAddr};

    use super::*;

    fn spans(lens: &[usize]) -> Vec<Span> {
        let remote = RemoteAddr { region: RegionId(0), offset_bytes: 0 };
        lens.iter().map(|&len_bytes| Span { remote, len_bytes }).collect()
    }

    fn begin(fetches: &mut Fetches) -> Vec<(u64, Buffer)> {
        let mut out = VecDeque::new();
        fetches.begin(&BufferPool::new(), &mut out);
        let read = |request: WorkRequest| match request.op {
            Opcode::Read { into, .. } => (request.id, into),
            other => panic!("{other:?}"),
        };
        out.into_iter().map(read).collect()
    }

    #[test]
    fn the_oldest_first_within_the_budget() {
        let mut fetches = Fetches::new(100);
        let pool = BufferPool::new();
        for (context, lens) in [(1, [60, 10]), (2, [31, 1]), (3, [1, 1])] {
            fetches.add(context, pool.copy_of(&[context as u8]), spans(&lens));
        }
        assert_eq!(fetches.next(), Some(1));
        let mut first = begin(&mut fetches);
        assert_eq!(fetches.next(), None, "3 would fit, but 2 was there before");
        let (id, value) = first.remove(1);
        assert!(fetches.arrived(2, id, pool.get(10)).is_none(), "another client's id");
        assert!(fetches.arrived(1, id, pool.get(9)).is_none(), "another length");
        assert!(fetches.arrived(1, id, value).is_none(), "one is missing");
        assert!(fetches.arrived(1, id, pool.get(10)).is_none(), "twice the same");
        assert_eq!(fetches.next(), None);
        let (id, value) = first.remove(0);
        let done = fetches.arrived(1, id, value).expect("all of it");
        assert_eq!(done.values.iter().map(|v| v.len()).collect::<Vec<_>>(), [60, 10]);
        assert_eq!((&done.message[..], fetches.taken_bytes), (&[1][..], 0));
        assert_eq!(fetches.next(), Some(2));
    }

    #[test]
    fn one_longer_than_the_budget_goes_alone() {
        let mut fetches = Fetches::new(100);
        fetches.add(1, Buffer::default(), spans(&[1000]));
        fetches.add(2, Buffer::default(), spans(&[1]));
        assert_eq!(fetches.next(), Some(1));
        let (id, value) = begin(&mut fetches).remove(0);
        assert_eq!(fetches.next(), None);
        assert!(fetches.arrived(1, id, value).is_some());
        assert_eq!(fetches.next(), Some(2));
    }

    #[test]
    fn who_is_gone_leaves_nothing() {
        let mut fetches = Fetches::new(100);
        for context in [1, 2, 1] {
            fetches.add(context, Buffer::default(), spans(&[50]));
        }
        assert_eq!(fetches.next(), Some(1));
        let (id, value) = begin(&mut fetches).remove(0);
        assert_eq!(fetches.overdue(Duration::ZERO), [1]);
        assert!(fetches.overdue(Duration::from_secs(60)).is_empty(), "looked at just now");
        assert_eq!(fetches.drop_client(1), 2);
        assert!(fetches.arrived(1, id, value).is_none(), "late");
        assert_eq!((fetches.table.len(), fetches.taken_bytes), (1, 0));
        assert_eq!(fetches.next(), Some(2));
        assert!(fetches.take_back().is_some());
        assert_eq!(fetches.next(), None);
        assert!(fetches.is_empty() && fetches.turns.is_empty() && fetches.clients.is_empty());
    }

    #[test]
    fn who_gives_nothing_holds_its_share_and_no_more() {
        let mut fetches = Fetches::new(800);
        let message = Buffer::default;
        (0..64).for_each(|_| fetches.add(1, message(), spans(&[60])));
        // Longer than a share, which is 100: two of them never at once.
        (0..2).for_each(|_| fetches.add(2, message(), spans(&[150])));
        let mut begun = Vec::new();
        while let Some(context) = fetches.next() {
            begun.push((context, begin(&mut fetches)));
        }
        assert_eq!(begun.iter().map(|(context, _)| *context).collect::<Vec<_>>(), [1, 2]);
        // Both give nothing, and a third one goes on.
        for _ in 0..10 {
            fetches.add(3, message(), spans(&[100]));
            assert_eq!(fetches.next(), Some(3));
            let (id, value) = begin(&mut fetches).remove(0);
            assert!(fetches.arrived(3, id, value).is_some());
            assert_eq!(fetches.next(), None);
        }
        let (context, mut reads) = begun.remove(1);
        let (id, value) = reads.remove(0);
        assert!(fetches.arrived(context, id, value).is_some());
        assert_eq!(fetches.next(), Some(2), "its share is free again");
    }

    #[test]
    fn clients_take_turns() {
        let mut fetches = Fetches::new(1000);
        (0..3).for_each(|_| fetches.add(1, Buffer::default(), spans(&[10])));
        (0..2).for_each(|_| fetches.add(2, Buffer::default(), spans(&[10])));
        let order = std::iter::from_fn(|| {
            let context = fetches.next()?;
            begin(&mut fetches);
            Some(context)
        });
        assert_eq!(order.collect::<Vec<_>>(), [1, 2, 1, 2, 1]);
    }
}
