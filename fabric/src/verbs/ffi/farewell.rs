//! The end of a connection tells the peer of it (`rdma_destroy_id`), and waits here until it can.
//!
//! soft-RoCE (Linux 6.1) does not survive such a message when there is no route for it: the queue
//! pair that it shares with all connections of the device receives nothing any more, for good, so
//! that nobody can connect. A port that is down has no routes, and then connections end. What is
//! kept back are the connection manager's ids, at most as many as there were connections; queue
//! pairs and memory are given back at once.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::addr::from_storage;
use super::cm::Channel;
use super::sys;

/// Any port will do: nothing is sent to it.
const ANY_PORT: u16 = 4791;

static HELD: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

/// An id that nobody uses any more. Dropping it destroys it.
pub(super) struct Leaving {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm allows an id to be destroyed by any thread; `turn` keeps it apart from events.
unsafe impl Send for Leaving {}

impl Leaving {
    /// # Safety
    /// `raw` must be an id of `channel` without a queue pair that nobody uses any more.
    pub(super) unsafe fn new(raw: NonNull<sys::rdma_cm_id>, channel: Arc<Channel>) -> Self {
        Self { raw, channel }
    }

    /// Destroys it, now or when the peer can be told.
    pub(super) fn leave(self) {
        // SAFETY: it is valid until drop.
        if unsafe { can_tell(self.raw) } {
            return;
        }
        tracing::debug!("the end of an RDMA connection is told when its port is up again");
        HELD.lock().push(self);
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let _turn = self.channel.turn();
        // SAFETY: what used the id, such as its queue pair, held it; its events are acknowledged,
        // since nobody is between taking and acknowledging one (`turn`).
        let code = unsafe { self.channel.cm().rdma_destroy_id(self.raw.as_ptr()) };
        if code != 0 {
            let error = std::io::Error::last_os_error();
            tracing::error!(%error, "rdma_destroy_id failed");
        }
    }
}

/// Lets go of those whose peers can be told by now.
pub(crate) fn release() {
    let mut held = HELD.lock();
    if held.is_empty() {
        return;
    }
    // SAFETY: each is valid until it is dropped.
    let (now, later) =
        std::mem::take(&mut *held).into_iter().partition(|id| unsafe { can_tell(id.raw) });
    *held = later;
    drop(held);
    let now: Vec<Leaving> = now;
    if !now.is_empty() {
        tracing::debug!("{} ends of RDMA connections are told", now.len());
    }
}

/// Whether a message of the connection manager finds a way out; also if the device is gone.
///
/// # Safety
/// `id` must be valid.
pub(super) unsafe fn can_tell(id: NonNull<sys::rdma_cm_id>) -> bool {
    // SAFETY: the caller says so.
    let id = unsafe { id.as_ref() };
    if id.verbs.is_null() {
        return true;
    }
    let mut attr = MaybeUninit::<sys::ibv_port_attr>::zeroed();
    // SAFETY: an id keeps its device's context open; `attr` is valid for a write.
    let code = unsafe { sys::query_port(id.verbs, id.port_num, attr.as_mut_ptr()) };
    if code != 0 {
        return true;
    }
    // SAFETY: zero is a value of it, and the call succeeded.
    let attr = unsafe { attr.assume_init() };
    if ![sys::IBV_PORT_ACTIVE, sys::IBV_PORT_ACTIVE_DEFER].contains(&attr.state) {
        return false;
    }
    let addr = &id.route.addr;
    // SAFETY: the library keeps the whole storage initialised.
    let from = from_storage(unsafe { &addr.__bindgen_anon_1.src_storage });
    // SAFETY: as above.
    let to = from_storage(unsafe { &addr.__bindgen_anon_2.dst_storage });
    match (u32::from(attr.link_layer), from, to) {
        (sys::IBV_LINK_LAYER_ETHERNET, Some(from), Some(to)) => has_route(from, to),
        _ => true,
    }
}

/// Whether this host has a way to an address. Nothing is sent.
fn has_route(mut from: SocketAddr, mut to: SocketAddr) -> bool {
    from.set_port(0);
    to.set_port(ANY_PORT);
    let found = UdpSocket::bind(from).and_then(|socket| socket.connect(to));
    let none = [
        ErrorKind::NetworkUnreachable,
        ErrorKind::HostUnreachable,
        ErrorKind::NetworkDown,
        ErrorKind::AddrNotAvailable,
    ];
    found.map_or_else(|error| !none.contains(&error.kind()), |()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_found_only_where_there_is_one() {
        let addr = |text: &str| text.parse::<SocketAddr>().expect(text);
        assert!(has_route(addr("127.0.0.1:9"), addr("127.0.0.1:9")));
        // This host has no such address, as after its interface went down.
        assert!(!has_route(addr("192.0.2.1:9"), addr("127.0.0.1:9")));
        release();
    }
}
