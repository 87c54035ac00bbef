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
    /// Messages that a peer may have unanswered; 0 = any number.
    pub(crate) credits: usize,
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
    /// Longest memory that is registered as one piece.
    pub(crate) registration_max_bytes: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            max_endpoints: 1024,
            send_depth: 128,
            total_sends: 16_384,
            max_message_bytes: 70 << 10,
            credits: 0,
            receive_depth: 512,
            receive_bytes: 8 << 10,
            work_timeout: Duration::from_secs(10),
            flush_timeout: Duration::from_secs(2),
            rnr_timer: 12,
            registration_max_bytes: u64::MAX,
        }
    }
}

/// Requests of each endpoint that only the fabric itself may post: answers about regions.
pub(super) const INTERNAL_DEPTH: usize = 16;
/// Completions of each endpoint that room is kept for: its notes, and its end.
const RESERVED: usize = 2;
/// Requests of its own that each endpoint has, where there are enough.
const OWN_SENDS: usize = 8;
/// Beyond them an endpoint may have an eighth of what is left.
const PARTS: usize = 8;
/// Messages up to so many bytes are asked to be sent inline.
pub(super) const INLINE_BYTES: u32 = 64;

/// Longest memory that a device registers as one piece. One that says 0 does not say.
pub(super) fn longest(attr: &sys::ibv_device_attr) -> u64 {
    if attr.max_mr_size == 0 { u64::MAX } else { attr.max_mr_size }
}

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
        let registration_max_bytes = self.registration_max_bytes.min(longest(attr));
        let on = Self { send_depth, receive_depth, total_sends, registration_max_bytes, ..self };
        Ok((on, depth))
    }
}

/// How many requests one endpoint may have in flight: some are its own whatever the others do,
/// beyond them a part of what is left. So those that never complete any get less the more they are,
/// and something is left for everybody.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    own: usize,
    /// What is nobody's own.
    common: usize,
}

impl Shares {
    pub(super) fn new(limits: &QueueLimits) -> Self {
        let &QueueLimits { total_sends, max_endpoints, .. } = limits;
        // A message of the greatest length fits into one's own.
        let pieces = limits.max_message_bytes.div_ceil(limits.receive_bytes);
        let own = match max_endpoints {
            1 => total_sends,
            _ => pieces.max(OWN_SENDS).min(total_sends / 4 * 3 / max_endpoints),
        };
        Self { own, common: total_sends - own * max_endpoints }
    }

    /// What one endpoint may have while all together have `in_flight`.
    #[inline]
    pub(super) fn of_one(&self, in_flight: usize) -> usize {
        let left = self.common.saturating_sub(in_flight);
        self.own.max(left / PARTS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoints that take what they get and never complete it; what each has.
    fn hoard(limits: &QueueLimits, count: usize) -> (Vec<usize>, usize) {
        let mut has = vec![0; count];
        let shares = Shares::new(limits);
        let mut in_flight = 0;
        for endpoint in &mut has {
            while *endpoint < limits.send_depth
                && *endpoint < shares.of_one(in_flight)
                && in_flight < limits.total_sends
            {
                *endpoint += 1;
                in_flight += 1;
            }
        }
        (has, in_flight)
    }

    #[test]
    fn who_never_completes_anything_leaves_room_for_everybody() {
        let limits = QueueLimits::default().in_range();
        let pieces = limits.max_message_bytes.div_ceil(limits.receive_bytes);
        for count in [1, 10, 128, 500, limits.max_endpoints - 1] {
            let (has, in_flight) = hoard(&limits, count);
            assert!(has[0] == limits.send_depth, "who is alone has all that it may have");
            let left = Shares::new(&limits).of_one(in_flight);
            assert!(left >= pieces, "{count}: a longest message goes out");
            assert!(in_flight + pieces <= limits.total_sends, "{count} have {in_flight}");
        }
        let (has, _) = hoard(&limits, limits.max_endpoints);
        assert!(has.iter().all(|has| *has >= pieces), "everybody has its own");
    }

    #[test]
    fn one_endpoint_has_everything_and_many_have_something() {
        let limits = QueueLimits { max_endpoints: 1, total_sends: 256, ..QueueLimits::default() };
        assert_eq!(hoard(&limits.in_range(), 1).0, [128]);
        let few = QueueLimits { max_endpoints: 8192, ..QueueLimits::default() }.in_range();
        let (has, _) = hoard(&few, 8192);
        assert!(has.iter().all(|has| *has >= 1));
    }
}
