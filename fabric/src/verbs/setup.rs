//! Bounds of both sides, and what they make of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::ffi::device::Device;
use super::ffi::error::VerbsError;
use super::ffi::pd::Pd;
use super::hello::Hello;
use super::limits::QueueLimits;
use super::mtu::PathMtu;

/// Bounds of a listener, and of the connections of both sides. Values outside what devices can
/// carry are brought into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at once; more are refused with a text that says so. 1 to 65,535.
    pub max_endpoints: usize,
    /// Requests in flight of each endpoint. 16 to 4,096.
    pub send_depth: usize,
    /// Messages of each peer that may be unanswered, on a listener that answers each with one; 0 =
    /// any number. Fewer for a while when receive buffers run low. At most 127.
    pub credits: usize,
    /// Receive buffers that all endpoints of one queue share. 16 to 32,768.
    pub receive_depth: usize,
    /// Length of each: longer messages travel in pieces. 256 bytes to 1 MiB.
    pub receive_bytes: usize,
    /// Longest message. 8 bytes to 1 MiB.
    pub max_message_bytes: usize,
    /// Connections that were accepted and not confirmed by the peer. At least 1.
    pub pending_handshakes: usize,
    /// After this time without the peer's confirmation a connection ends. At least 1.
    pub handshake_timeout_ms: u64,
    /// A peer that answers nothing is given up after about this time: what the device makes of
    /// it lies between the half and four times of it. 10 to 600,000.
    pub peer_timeout_ms: u64,
    /// A request that the device has not completed in this time ends its connection.
    pub work_timeout_ms: u64,
    /// Longest packets. Of both sides the smaller one counts.
    pub path_mtu: PathMtu,
    /// Longest memory that is registered as one piece: what the device says, if that is less. For
    /// tests: devices take far more than is ever registered at once.
    pub registration_max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_endpoints: 1024,
            send_depth: 128,
            credits: 0,
            receive_depth: 512,
            receive_bytes: 8 << 10,
            max_message_bytes: 70 << 10,
            pending_handshakes: 64,
            handshake_timeout_ms: 5_000,
            peer_timeout_ms: 2_000,
            work_timeout_ms: 10_000,
            path_mtu: PathMtu::AUTO,
            registration_max_bytes: u64::MAX,
        }
    }
}

/// Room in the completion queue for each endpoint, where the device has so much.
const SENDS_PER_ENDPOINT: usize = 16;
/// Retries of the device before it gives a peer up. Not the most that there can be, 7, which
/// soft-RoCE takes for: for ever.
pub(super) const RETRIES: u8 = 6;

impl Limits {
    pub(super) fn in_range(self) -> Self {
        Self {
            max_endpoints: self.max_endpoints.clamp(1, 65_535),
            send_depth: self.send_depth.clamp(16, 4_096),
            credits: self.credits.min(127),
            receive_depth: self.receive_depth.clamp(16, 1 << 15),
            receive_bytes: self.receive_bytes.clamp(256, 1 << 20),
            max_message_bytes: self.max_message_bytes.clamp(8, 1 << 20),
            pending_handshakes: self.pending_handshakes.max(1),
            handshake_timeout_ms: self.handshake_timeout_ms.clamp(1, 3_600_000),
            peer_timeout_ms: self.peer_timeout_ms.clamp(10, 600_000),
            work_timeout_ms: self.work_timeout_ms.clamp(10, 3_600_000),
            path_mtu: self.path_mtu,
            registration_max_bytes: self.registration_max_bytes,
        }
    }

    pub(super) fn hello(&self) -> Hello {
        Hello {
            receive_bytes: self.receive_bytes as u32,
            max_message_bytes: self.max_message_bytes as u32,
        }
    }

    pub(super) fn of_queue(&self) -> QueueLimits {
        let least = QueueLimits::default();
        QueueLimits {
            max_endpoints: self.max_endpoints,
            // Each has some that nobody takes from it, and there are more for whoever needs them.
            total_sends: least.total_sends.max(self.max_endpoints * SENDS_PER_ENDPOINT),
            send_depth: self.send_depth,
            max_message_bytes: self.max_message_bytes,
            credits: self.credits,
            receive_depth: self.receive_depth,
            receive_bytes: self.receive_bytes,
            work_timeout: Duration::from_millis(self.work_timeout_ms),
            registration_max_bytes: self.registration_max_bytes,
            ..least
        }
    }

    /// The acknowledgement timeout as the specification's exponent: a first try and all retries
    /// take at most [`Self::peer_timeout_ms`].
    pub(super) fn ack_exponent(&self) -> u8 {
        let one_try_ns = self.peer_timeout_ms * 1_000_000 / u64::from(RETRIES + 1);
        (one_try_ns / 4_096).max(1).ilog2().min(31) as u8
    }
}

/// READs and atomics that a device has outstanding at once, as the initiator and as the one that
/// serves them.
pub(super) fn reads_at_once(device: &Device) -> Result<(u8, u8), VerbsError> {
    let attr = device.attr()?;
    let byte = |count: i32| count.clamp(1, 255) as u8;
    Ok((byte(attr.max_qp_init_rd_atom), byte(attr.max_qp_rd_atom)))
}

/// Whether packets of this length go through a device's port.
///
/// # Errors
/// When they are too long for it: both lengths.
pub(super) fn check_mtu(mtu: PathMtu, device: &Device, port: u8) -> Result<(), VerbsError> {
    if mtu == PathMtu::AUTO {
        return Ok(());
    }
    let active = PathMtu::of_code(device.port(port)?.active_mtu as u8).and_then(PathMtu::bytes);
    mtu.check(device.name(), port, active.unwrap_or(u32::MAX))
}

/// The protection domain of this process's own connections on a device, as long as one lives.
pub(super) fn client_pd(device: &Arc<Device>) -> Result<Arc<Pd>, VerbsError> {
    static KNOWN: Mutex<Vec<Weak<Pd>>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock();
    known.retain(|pd| pd.strong_count() > 0);
    let living: Vec<Arc<Pd>> = known.iter().filter_map(Weak::upgrade).collect();
    if let Some(pd) = living.into_iter().find(|pd| Arc::ptr_eq(pd.device(), device)) {
        return Ok(pd);
    }
    let pd = Pd::new(device)?;
    known.push(Arc::downgrade(&pd));
    Ok(pd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_peer_is_noticed_within_the_time() {
        for peer_timeout_ms in [10, 100, 1_000, 4_000, 60_000, 600_000] {
            let limits = Limits { peer_timeout_ms, ..Limits::default() }.in_range();
            let one_try_us = 4.096 * f64::from(1u32 << limits.ack_exponent());
            let all_ms = one_try_us * f64::from(RETRIES + 1) / 1_000.0;
            assert!(all_ms <= peer_timeout_ms as f64, "{all_ms} of {peer_timeout_ms}");
            assert!(all_ms * 2.0 >= peer_timeout_ms as f64, "{all_ms} of {peer_timeout_ms}");
        }
    }

    #[test]
    fn limits_are_brought_into_range() {
        let none = Limits {
            max_endpoints: 0,
            send_depth: 0,
            credits: 0,
            receive_depth: 0,
            receive_bytes: 0,
            max_message_bytes: 0,
            pending_handshakes: 0,
            handshake_timeout_ms: 0,
            peer_timeout_ms: 0,
            work_timeout_ms: 0,
            path_mtu: PathMtu::AUTO,
            registration_max_bytes: 0,
        };
        assert!(none.in_range().hello().is_sensible());
        let most = Limits {
            max_endpoints: usize::MAX,
            receive_bytes: usize::MAX,
            max_message_bytes: usize::MAX,
            peer_timeout_ms: u64::MAX,
            ..none
        };
        assert!(most.in_range().hello().is_sensible());
        assert_eq!(Limits::default().in_range(), Limits::default());
    }
}
