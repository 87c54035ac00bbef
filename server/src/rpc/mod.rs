//! Requests on the data path: decode, apply once, answer.
//!
//! | file | what |
//! |---|---|
//! | this | one request: decode, exactly-once, encode |
//! | `exec` | one operation against its table |
//! | `get` | a value, copied once: from the log into the answer |
//! | `value` | values that travel in the message, or by the session's staging memory |
//! | `fetch` | what must be READ before a request can be served, where a READ is a round trip |
//! | `signal` | which requests ask for a completion |
//! | `batch` | several operations in one request |
//! | `scan` | keys of an ordered table |
//! | `lease` | room that clients write entries into |
//! | `timing` | how long requests take |

use std::cell::{Cell, OnceCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use onesided_fabric::{Buffer, BufferPool, Caps, Endpoint, Opcode, WorkRequest};
use onesided_protocol::DecodeError;
use onesided_protocol::rpc::{Answer, ErrorCode, Op, Request, RpcError};

use crate::engine::{ScanRange, Table};
use crate::metrics::rpc::{RpcShard, verb};
use crate::session::{Answers, Seen, Session};
use crate::stats::Stats;

mod batch;
mod exec;
mod fetch;
mod get;
mod lease;
mod scan;
mod signal;
mod timing;
mod value;

pub(crate) use fetch::Span;
use get::Done;
pub(crate) use signal::{Unsignaled, len_bytes};
pub(crate) use timing::{Open, Slow, Timing};

/// A scratch buffer longer than this is given back when the request is done.
const SCRATCH_KEPT_BYTES: usize = 1 << 20;

/// Serves the requests of one poller.
pub(crate) struct Dispatcher {
    pub(crate) stats: Arc<Stats>,
    /// The poller's own.
    shard: Arc<RpcShard>,
    timing: Arc<Timing>,
    pub(crate) value_max_bytes: usize,
}

/// Whom a request came from.
pub(crate) struct Peer {
    pub(crate) session: Arc<Session>,
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) caps: Caps,
    /// Length of the session's staging memory; 0 = none.
    pub(crate) staging_bytes: usize,
    /// SENDs so far.
    pub(crate) sent: u64,
    pub(crate) unsignaled: Unsignaled,
}

/// A poller's own memory, reused from request to request.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) pool: BufferPool,
    /// Keys of a scan.
    arena: Vec<u8>,
    /// Bytes of the request's values that are WRITten to where they were asked for.
    landed_bytes: usize,
    /// The answer.
    encoded: Vec<u8>,
    /// The answer as it is kept, if that is another one.
    lean: Vec<u8>,
    /// What was served last.
    verb: Option<usize>,
    /// The poller's look at the clock just before it found what it serves now.
    pub(crate) looked: Option<Instant>,
    /// The request that was served last, until its time is over.
    pub(crate) open: Option<Open>,
    /// One that took too long: the last of them, if there were several.
    pub(crate) slow: Option<Slow>,
}

impl Scratch {
    pub(crate) fn new(pool: BufferPool) -> Self {
        Self { pool, ..Self::default() }
    }
}

/// What becomes of the connection after a request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Go on.
    Keep,
    /// Close it, once the answer has left.
    Close(String),
    /// Nothing was done: READ these, then serve the request with their bytes, in this order.
    Fetch(Vec<Span>),
}

/// What one request needs besides the request.
struct Call<'c> {
    dispatcher: &'c Dispatcher,
    peer: &'c Peer,
    table: u32,
    /// It, once it was looked up.
    found: OnceCell<Arc<Table>>,
    /// Bytes of values that were copied from the session's staging memory.
    copied_bytes: Cell<u64>,
}

impl Dispatcher {
    pub(crate) fn new(stats: &Arc<Stats>, timing: &Arc<Timing>, value_max_bytes: usize) -> Self {
        let (stats, shard) = (Arc::clone(stats), stats.shard());
        Self { stats, shard, timing: Arc::clone(timing), value_max_bytes }
    }

    /// Serves one message, with the values that it made the caller fetch; what is to be posted is
    /// appended to `out`.
    pub(crate) fn serve(
        &self,
        peer: &mut Peer,
        message: &[u8],
        values: Option<&[Buffer]>,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Verdict {
        let begun = self.begin(scratch);
        scratch.encoded.clear();
        scratch.lean.clear();
        scratch.landed_bytes = 0;
        let before = out.len();
        let verdict = match Request::decode(message) {
            Ok(request) => self.serve_request(peer, request, values, scratch, out),
            Err(error) => self.refuse(Request::peek_id(message), error, scratch),
        };
        if !scratch.encoded.is_empty() {
            send(peer, scratch, out);
        }
        for request in out.range_mut(before..) {
            peer.unsignaled.mark(request, peer.caps.send_depth);
        }
        if let Some(begun) = begun {
            self.end(peer, begun, scratch, message.len());
        }
        for buffer in [&mut scratch.arena, &mut scratch.encoded, &mut scratch.lean] {
            if buffer.capacity() > SCRATCH_KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        verdict
    }

    /// Answers what cannot be decoded. A field over its limit is an honest client's mistake; all
    /// else means that the two sides no longer understand each other.
    fn refuse(&self, id: u64, error: DecodeError, scratch: &mut Scratch) -> Verdict {
        self.stats.rpc_malformed.add(1);
        let (code, verdict) = match error {
            DecodeError::TooLong { .. } => (ErrorCode::TooLarge, Verdict::Keep),
            _ => (ErrorCode::Malformed, Verdict::Close(format!("malformed request: {error}"))),
        };
        let result = Err(RpcError::new(code, error.to_string()));
        Answer { id, result }.encode(&mut scratch.encoded);
        verdict
    }

    fn serve_request<'v>(
        &self,
        peer: &Peer,
        mut request: Request<'v>,
        values: Option<&'v [Buffer]>,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Verdict {
        let (found, copied_bytes) = Default::default();
        let call = Call { dispatcher: self, peer, table: request.table, found, copied_bytes };
        if !request.op.is_mutation() {
            call.answer(&request, scratch, out);
            return Verdict::Keep;
        }
        if request.sequence == 0 {
            let text = "a request that changes something needs a sequence number from 1";
            let result = Err(RpcError::new(ErrorCode::Malformed, text));
            self.stats.rpc_malformed.add(1);
            Answer { id: request.id, result }.encode(&mut scratch.encoded);
            return Verdict::Close(text.to_owned());
        }
        match values {
            Some(values) => call.fill(&mut request.op, values),
            None if peer.caps.reads_now => {}
            None => {
                let spans = call.to_fetch(&request.op);
                if !spans.is_empty() {
                    return Verdict::Fetch(spans);
                }
            }
        }
        // Held while the mutation is applied: a retry on another connection waits, and then finds
        // the answer.
        let mut answers = peer.session.answers.lock();
        self.once(&call, &request, &mut answers, scratch, out)
    }

    /// Applies a mutation, if it was not applied before.
    fn once(
        &self,
        call: &Call<'_>,
        request: &Request<'_>,
        answers: &mut Answers,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> Verdict {
        match answers.look_up(request.sequence) {
            Seen::New => {}
            Seen::Again(answer) => {
                self.stats.rpc_retries.add(1);
                // The retry's id may be another one.
                scratch.encoded.extend_from_slice(&request.id.to_le_bytes());
                scratch.encoded.extend_from_slice(answer.get(8..).unwrap_or_default());
                return Verdict::Keep;
            }
            Seen::TooOld => {
                let (sequence, highest) = (request.sequence, answers.highest());
                let text = format!(
                    "mutation {sequence} is too old: {highest} was applied already, and its answer \
                     is no longer kept; whether it was applied is unknown: read the key"
                );
                let result = Err(RpcError::new(ErrorCode::SequenceTooOld, text));
                Answer { id: request.id, result }.encode(&mut scratch.encoded);
                return Verdict::Keep;
            }
            Seen::Ended => return Verdict::Close("its session is over".to_owned()),
        }
        if !call.answer(request, scratch, out) {
            return Verdict::Keep;
        }
        let Scratch { encoded, lean, .. } = scratch;
        answers.keep(request.sequence, if lean.is_empty() { encoded } else { lean });
        call.peer.session.applied.store(answers.highest(), Ordering::Release);
        Verdict::Keep
    }
}

impl Call<'_> {
    /// Executes and encodes the answer, and the one to keep for a retry, if it is another one.
    /// Gives whether a retry is to get it: not where the value could not be read, since the
    /// connection may have ended meanwhile; then nothing was applied, and the next one may do it.
    fn answer(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch,
        out: &mut VecDeque<WorkRequest>,
    ) -> bool {
        let id = request.id;
        scratch.verb = Some(verb(&request.op));
        if let Op::Batch(ops) = &request.op {
            self.answer_batch(id, &request.op, ops, scratch, out);
            return true;
        }
        if let Op::Scan { from, after, prefix_len, limit } = request.op {
            let range = ScanRange { from, after, prefix_len: prefix_len.into() };
            self.answer_scan(id, &request.op, range, limit.into(), scratch);
            return true;
        }
        let room = self.peer.caps.max_message_bytes.saturating_sub(value::ANSWER_OVERHEAD_BYTES);
        scratch.encoded.extend_from_slice(&id.to_le_bytes());
        let Done::Result(result) = self.perform(&request.op, room, scratch, out) else {
            return true;
        };
        let was_read = !result.as_ref().is_err_and(|error| error.code == ErrorCode::BadDescriptor);
        scratch.encoded.clear();
        Answer { id, result }.encode(&mut scratch.encoded);
        was_read
    }
}

/// Sends the answer: at once, if nothing has to go before it and the fabric copies anyway.
fn send(peer: &mut Peer, scratch: &Scratch, out: &mut VecDeque<WorkRequest>) {
    peer.sent += 1;
    if out.is_empty() && peer.endpoint.send_copy(peer.sent, &scratch.encoded) {
        return;
    }
    let op = Opcode::Send { message: scratch.pool.copy_of(&scratch.encoded) };
    out.push_back(WorkRequest { id: peer.sent, signaled: false, op });
}
