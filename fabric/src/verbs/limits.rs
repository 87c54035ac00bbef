//! Bounds of a queue, and what a device allows of them.

use std::time::Duration;

use super::ffi::error::VerbsError;
use super::ffi::sys;

/// Bounds of a [`super::queue::Queue`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Endpoints at once, 1 to 65,535.
    pub(crate) max_endpoints: usize,
    /// Requests in flight of each endpoint.
    pub(crate) send_depth: usize,
    /// Requests in flight of all endpoints together.
    pub(crate) total_sends: usize,
    /// Longest message.
    pub(crate) max_message_bytes: usize,
    /// Receive buffers that all endpoints share.
    pub(crate) receive_depth: usize,
    /// Length of each: longer messages travel in pieces.
    pub(crate) receive_bytes: usize,
    /// A request that the device has not completed in this time ends its endpoint.
    pub(crate) work_timeout: Duration,
    /// How long an endpoint that ends waits for what is in flight to be flushed; then its queue
    /// pair is destroyed without that.
    pub(crate) flush_timeout: Duration,
    /// How long a peer waits before it sends again what met no receive buffer: a code of the
    /// specification, 12 is 640 us.
    pub(crate) rnr_timer: u8,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            max_endpoints: 1024,
            send_depth: 128,
            total_sends: 16_384,
            max_message_bytes: 70 << 10,
            receive_depth: 512,
            receive_bytes: 8 << 10,
            work_timeout: Duration::from_secs(10),
            flush_timeout: Duration::from_secs(2),
            rnr_timer: 12,
        }
    }
}

/// Requests of each endpoint that only the fabric itself may post: answers about regions.
pub(super) const INTERNAL_DEPTH: usize = 16;
/// Completions of each endpoint that room is kept for: its notes, and its end.
const RESERVED: usize = 2;
/// Messages up to so many bytes are asked to be sent inline.
pub(super) const INLINE_BYTES: u32 = 64;

impl QueueLimits {
    pub(super) fn in_range(self) -> Self {
        let receive_bytes = self.receive_bytes.clamp(256, 1 << 20);
        let max_message_bytes = self.max_message_bytes.clamp(8, 1 << 20);
        let pieces = max_message_bytes.div_ceil(receive_bytes);
        let send_depth = self.send_depth.clamp(16.max(pieces), 4096);
        Self {
            max_endpoints: self.max_endpoints.clamp(1, 65_535),
            send_depth,
            total_sends: self.total_sends.clamp(send_depth, 1 << 20),
            max_message_bytes,
            receive_depth: self.receive_depth.clamp(16, 1 << 15),
            receive_bytes,
            ..self
        }
    }

    /// What a device allows of it, and the depth of the completion queue: it has room for all
    /// requests, all receive buffers, and each endpoint's notes and end.
    pub(super) fn on(self, attr: &sys::ibv_device_attr) -> Result<(Self, u32), VerbsError> {
        let most = |limit: i32| usize::try_from(limit).unwrap_or(0);
        let own = INTERNAL_DEPTH + 1;
        let send_depth = self.send_depth.min(most(attr.max_qp_wr).saturating_sub(own));
        let receive_depth = self.receive_depth.min(most(attr.max_srq_wr));
        let rest = receive_depth + self.max_endpoints * RESERVED;
        let total_sends = self.total_sends.min(most(attr.max_cqe).saturating_sub(rest));
        let needed = self.max_message_bytes.div_ceil(self.receive_bytes);
        if total_sends < send_depth || send_depth < needed || receive_depth == 0 {
            let text = format!(
                "the device's queues are too short for {} connections: {} completions, {} requests \
                 of a queue pair, {} shared receives; lower the limits",
                self.max_endpoints, attr.max_cqe, attr.max_qp_wr, attr.max_srq_wr
            );
            return Err(VerbsError::Choice(text));
        }
        let depth = (total_sends + rest) as u32;
        Ok((Self { send_depth, receive_depth, total_sends, ..self }, depth))
    }
}
