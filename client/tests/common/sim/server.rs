//! The server: requests arrive as messages and are answered by messages. The real dispatcher
//! does the same around the same engine; what it adds (sessions, exactly-once) does not touch
//! the memory that clients read.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use onesided_fabric::{
    Buffer, BufferPool, CompletionQueue, Endpoint, Opcode, Outcome, WorkRequest,
};
use onesided_protocol::LogAddr;
use onesided_protocol::rpc::{
    Answer, Expect, Found, KeyAt, Op, Payload, Reply, Request, RpcError, Ttl,
};

use onesided_server::engine::{Counted, ScanRange, Stored};

use super::{Sim, key};

/// What came of the operations of a request.
type Executed = Vec<Result<Done, RpcError>>;

#[derive(Default)]
pub struct Server {
    ends: Vec<(u64, Arc<dyn Endpoint>)>,
    /// Requests that have arrived, by the context of their connection.
    inbox: Vec<(u64, Buffer)>,
    /// By client: each connection is a session of its own.
    sessions: BTreeMap<u64, u64>,
    last_session: u64,
    /// Sessions whose connections are gone, and whose leases are to be taken back.
    over: Vec<u64>,
    /// What the last put or touch of each client will expire at.
    expiries: BTreeMap<u64, u32>,
    /// What came of mutations, by session and sequence number: each is applied once.
    applied: BTreeMap<(u64, u64), Rc<Executed>>,
    pool: BufferPool,
}

impl Server {
    /// A client has connected. Its session goes on, or it has another one.
    pub fn connected(&mut self, client: usize, end: Arc<dyn Endpoint>, resumed: bool) {
        self.ends.retain(|(number, _)| *number != client as u64);
        // What the one before has sent and was not executed never will be.
        self.inbox.retain(|(number, _)| *number != client as u64);
        self.ends.push((client as u64, end));
        if resumed {
            return;
        }
        self.last_session += 1;
        let before = self.sessions.insert(client as u64, self.last_session);
        self.over.extend(before);
    }

    /// The session of a client's connection.
    pub fn session(&self, client: u64) -> u64 {
        self.sessions.get(&client).copied().unwrap_or(0)
    }

    pub fn arrived(&mut self, context: u64, outcome: Outcome) {
        if let Outcome::Received(message) = outcome {
            self.inbox.push((context, message));
        }
    }

    fn end(&self, client: u64) -> Option<Arc<dyn Endpoint>> {
        let end = self.ends.iter().find(|(number, _)| *number == client);
        end.map(|(_, end)| end.clone())
    }

    /// What the client puts now has this expiry, 0 for none.
    pub fn lives_until(&mut self, client: usize, expiry_s: u32) {
        self.expiries.insert(client as u64, expiry_s);
    }

    pub fn expiry_s(&self, client: usize) -> u32 {
        self.expiries.get(&(client as u64)).copied().unwrap_or(0)
    }
}

impl Sim {
    /// The server executes one of the requests that have arrived, and answers.
    pub fn server_goes_on(&self) {
        self.take_back();
        let mut completions = Vec::new();
        self.port.poll(&mut completions, 64);
        let (client, message) = {
            let mut server = self.server.borrow_mut();
            completions.into_iter().for_each(|c| server.arrived(c.context, c.outcome));
            if server.inbox.is_empty() {
                return;
            }
            // Whoever's turn it is, in the order in which they were sent.
            let (client, _) = server.inbox[self.pick(server.inbox.len() as u64) as usize];
            let first = server.inbox.iter().position(|(sender, _)| *sender == client);
            server.inbox.remove(first.expect("it was there"))
        };
        let request = Request::decode(&message).expect("the client sends what can be decoded");
        // The connection that asked: the client may have another one when the answer is there.
        let end = self.server.borrow().end(client);
        let session = self.server.borrow().session(client);
        let done = self.once(client, session, &request);
        let mut replies: Vec<_> = done.iter().map(reply).collect();
        let result = match request.op {
            Op::Batch(_) => Ok(Reply::Batch(replies)),
            _ => replies.remove(0),
        };
        let mut answer = Vec::new();
        Answer { id: request.id, result }.encode(&mut answer);
        let server = self.server.borrow();
        let message = server.pool.copy_of(&answer);
        let send = WorkRequest { id: 0, signaled: false, op: Opcode::Send { message } };
        if let Some(end) = end {
            // A dead connection takes no answers.
            let _dead = end.post(&mut [send].into());
        }
    }

    /// Executes a request, or knows what came of it.
    fn once(&self, client: u64, session: u64, request: &Request<'_>) -> Rc<Executed> {
        let number = (session, request.sequence);
        if let Some(done) = self.server.borrow().applied.get(&number) {
            return Rc::clone(done);
        }
        self.note_expiry(client, &request.op);
        let done = Rc::new(match &request.op {
            Op::Batch(ops) => ops.iter().map(|op| self.execute(session, op)).collect(),
            op => vec![self.execute(session, op)],
        });
        if request.sequence != 0 {
            self.server.borrow_mut().applied.insert(number, Rc::clone(&done));
        }
        done
    }

    fn note_expiry(&self, client: u64, op: &Op<'_>) {
        if let Op::Put { ttl, .. } | Op::Touch { ttl, .. } = op {
            let now_s = (self.engine.clock_ns() / 1_000_000_000) as u32;
            let expiry_s = match ttl {
                Ttl::Seconds(seconds) => now_s + seconds,
                Ttl::Never | Ttl::TableDefault => 0,
            };
            self.server.borrow_mut().expiries.insert(client, expiry_s);
        }
    }

    fn execute(&self, session: u64, op: &Op<'_>) -> Result<Done, RpcError> {
        let inline = |payload: &Payload<'_>| match payload {
            Payload::Inline(bytes) => bytes.to_vec(),
            Payload::Staged { .. } | Payload::Lent { .. } => {
                panic!("messages are long enough for all values here")
            }
        };
        let table = &self.table;
        let version = match op {
            Op::Get { key, .. } => {
                let mut value = Vec::new();
                let stored = table.get(key, &mut value);
                return Ok(stored.map_or(Done::Absent, |stored| Done::Found(stored, value)));
            }
            Op::Delete { key, expect } => {
                let was = table.delete(key, *expect)?;
                return Ok(if was { Done::Deleted } else { Done::Absent });
            }
            Op::Increment { key, by } => {
                let (value, version) = table.increment(key, *by)?;
                return Ok(Done::Number(value, version));
            }
            Op::Counter { key, action } => {
                return Ok(match table.counter(key, *action)? {
                    Counted::Absent => Done::Absent,
                    Counted::Changed { old, version } => Done::Number(old, version),
                    Counted::There { cell, number, version } => {
                        Done::Counter(cell.get(), number, version)
                    }
                });
            }
            Op::WriteAt { key, offset_bytes, value } => {
                match table.write_at(key, *offset_bytes, &inline(value))? {
                    Some(version) => version,
                    None => return Ok(Done::Absent),
                }
            }
            Op::Touch { key, ttl } => match table.touch(key, *ttl)? {
                Some(version) => version,
                None => return Ok(Done::Absent),
            },
            Op::Put { key, value, expect, ttl, user_flags } => {
                table.put(key, &inline(value), *expect, *ttl, *user_flags)?
            }
            Op::Append { key, value } => table.append(key, &inline(value))?,
            &Op::Scan { from, after, prefix_len, limit } => {
                let range = ScanRange { from, after, prefix_len: prefix_len.into() };
                let mut keys = Vec::new();
                let ended = table.scan(range, |key, slot| {
                    keys.push((key.to_vec(), slot.0));
                    keys.len() < usize::from(limit)
                })?;
                return Ok(Done::Keys(keys, !ended));
            }
            Op::Lease { .. } | Op::Seal { .. } | Op::Linked { .. } => {
                return self.execute_lease(session, op);
            }
            Op::Batch(_) | Op::Ping => {
                panic!("not what these clients send: {op:?}")
            }
        };
        Ok(Done::Version(version))
    }

    /// What has to do with what clients WRITE.
    fn execute_lease(&self, session: u64, op: &Op<'_>) -> Result<Done, RpcError> {
        match *op {
            Op::Lease { len_bytes } => {
                let leased = self.engine.lease(session, self.table.id(), len_bytes as usize)?;
                Ok(Done::Leased(leased.0.get(), leased.1 as u32))
            }
            Op::Seal { addr } => {
                let addr = LogAddr::from_bits(addr).expect("an address");
                let was = self.engine.seal(session, addr);
                let may_be_gone = self.plan.resumed_percent.is_some();
                assert!(was || may_be_gone, "it has no such lease");
                Ok(Done::Sealed)
            }
            Op::Linked { key, addr } => {
                let addr = LogAddr::from_bits(addr).expect("an address");
                let linked = self.engine.linked(session, self.table.id(), key, addr)?;
                let mut doubts = self.doubts.get();
                doubts.applied += u64::from(linked);
                doubts.not_applied += u64::from(!linked);
                self.doubts.set(doubts);
                Ok(Done::Linked(linked))
            }
            _ => panic!("nothing of leases: {op:?}"),
        }
    }

    /// What the server does without being asked: versions move, or the index grows.
    pub fn server_minds_itself(&self) {
        if self.pick(100) < self.plan.relocate_percent {
            if self.pick(100) < self.plan.clean_percent {
                self.engine.clean();
            } else {
                self.relocate(self.pick(self.plan.keys as u64) as usize);
            }
        } else if self.fillers.get() < self.plan.fillers_max {
            (0..=self.pick(12)).for_each(|_| self.put_filler());
        }
    }

    /// Nobody can write any more what sessions had leased that are over.
    pub fn take_back(&self) {
        let over = std::mem::take(&mut self.server.borrow_mut().over);
        for session in over {
            self.engine.take_back(session);
        }
    }

    /// Nobody can write any more what this client has leased, although its session lives.
    pub fn take_back_from(&self, client: u64) {
        let session = self.server.borrow().session(client);
        self.engine.take_back(session);
    }

    /// Another address for the same version.
    pub fn relocate(&self, number: usize) {
        self.table.relocate(&key(number)).expect("there is memory for a copy");
    }

    /// One more key in the index, in a segment of its own.
    pub fn put_filler(&self) {
        let number = self.fillers.get();
        self.fillers.set(number + 1);
        let key = format!("filler-{number}");
        let put = self.table.put(key.as_bytes(), &[7; 900], Expect::Any, Ttl::Never, 0);
        put.expect("there is memory for the fillers of a run");
    }
}

/// What came of an operation.
enum Done {
    Absent,
    Deleted,
    Version(u64),
    Number(i64, u64),
    Counter(u64, i64, u64),
    Found(Stored, Vec<u8>),
    Leased(u64, u32),
    Sealed,
    Linked(bool),
    /// Keys and slots, and whether there may be more.
    Keys(Vec<(Vec<u8>, u64)>, bool),
}

fn reply(done: &Result<Done, RpcError>) -> Result<Reply<'_>, RpcError> {
    Ok(match done.as_ref().map_err(Clone::clone)? {
        Done::Absent => Reply::Absent,
        Done::Deleted => Reply::Deleted,
        &Done::Version(version) => Reply::Done { version },
        &Done::Leased(addr, len_bytes) => Reply::Leased { addr, len_bytes },
        Done::Sealed => Reply::Sealed,
        &Done::Linked(linked) => Reply::Linked { linked },
        &Done::Number(value, version) => Reply::Number { value, version },
        &Done::Counter(cell, number, version) => Reply::Counter { cell, number, version },
        Done::Keys(keys, more) => Reply::Keys {
            keys: keys.iter().map(|(key, slot)| KeyAt { key, slot: *slot }).collect(),
            more: *more,
        },
        Done::Found(stored, value) => Reply::Found(Found {
            version: stored.version,
            expiry_s: stored.expiry_s,
            user_flags: stored.user_flags,
            value: Payload::Inline(value),
        }),
    })
}
