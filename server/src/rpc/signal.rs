//! Which requests ask for a completion. The others' buffers and places in the send queue come back
//! with the next one that does, so there must be one often enough.

use onesided_fabric::{Opcode, WorkRequest};

/// At most so many requests of one endpoint without a completion.
const REQUESTS_MAX: usize = 32;
/// At most so many bytes of them.
const BYTES_MAX: usize = 256 << 10;

/// What was posted, or will be, since the last request with a completion.
#[derive(Default, Debug)]
pub(crate) struct Unsignaled {
    requests: usize,
    bytes: usize,
}

impl Unsignaled {
    /// Makes the request signalled, if it is time. A send queue of `send_depth` is never full of
    /// requests without a completion: nothing would ever make room in it again.
    pub(super) fn mark(&mut self, request: &mut WorkRequest, send_depth: usize) {
        self.requests += 1;
        self.bytes += len_bytes(request);
        let requests_max = (send_depth / 4).clamp(1, REQUESTS_MAX);
        if request.signaled || self.requests >= requests_max || self.bytes >= BYTES_MAX {
            request.signaled = true;
            *self = Self::default();
        }
    }
}

/// Bytes that a request holds until it is done.
pub(crate) fn len_bytes(request: &WorkRequest) -> usize {
    match &request.op {
        Opcode::Send { message } => message.len(),
        Opcode::Write { from, .. } => from.len(),
        _ => 0,
    }
}
