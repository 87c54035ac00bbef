//! The end of a connection tells the peer of it (`rdma_destroy_id`), and waits here until it can.
//!
//! soft-RoCE (Linux 6.1) does not survive such a message when there is no route for it: the queue
//! pair that it shares with all connections of the device receives nothing any more, for good, so
//! that nobody can connect. A port that is down has no routes, and then connections end. What is
//! kept back are the connection manager's ids; queue pairs and memory are given back at once. They
//! are bounded ([`HELD_MAX`]): beyond that the oldest is destroyed, whatever comes of it.

use std::collections::VecDeque;
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

/// Ids that wait, at most: of all connections of this process. The kernel has about 2 KiB of each.
const HELD_MAX: usize = 16_384;
/// Of those that wait, so many are looked at when there is a new connection: it takes a system call
/// or two for each.
const LOOKS: usize = 64;

static HELD: Mutex<Held<Leaving>> = Mutex::new(Held::new());

/// What waits, the oldest first.
struct Held<T> {
    waiting: VecDeque<T>,
    /// How many did not wait to the end.
    given_up: u64,
}

impl<T> Held<T> {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), given_up: 0 }
    }

    /// Adds one; the oldest, if that is one too many.
    fn push(&mut self, one: T) -> Option<T> {
        self.waiting.push_back(one);
        if self.waiting.len() <= HELD_MAX {
            return None;
        }
        self.given_up += 1;
        self.waiting.pop_front()
    }

    /// Looks at `looks` of them, each at most once, and takes out those that `may` leave. The next
    /// call goes on with others.
    fn take(&mut self, looks: usize, may: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for _ in 0..looks.min(self.waiting.len()) {
            let Some(one) = self.waiting.pop_front() else { break };
            match may(&one) {
                true => taken.push(one),
                false => self.waiting.push_back(one),
            }
        }
        taken
    }
}

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
        let mut held = HELD.lock();
        let oldest = held.push(self);
        let given_up = held.given_up;
        drop(held);
        if oldest.is_some() && given_up.is_power_of_two() {
            tracing::warn!(
                given_up,
                "more than {HELD_MAX} RDMA connections have ended without a way to their peers: \
                 the oldest are not kept any longer. Cards do not mind; a soft-RoCE device may \
                 hear of no connection any more until it is deleted and added again"
            );
        }
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

/// Lets go of those whose peers can be told by now, of the next few that wait.
pub(crate) fn release_some() {
    release(LOOKS);
}

/// Lets go of all whose peers can be told by now.
pub(crate) fn release_all() {
    release(usize::MAX);
}

fn release(looks: usize) {
    // SAFETY: each is valid until it is dropped.
    let now = HELD.lock().take(looks, |id| unsafe { can_tell(id.raw) });
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
        release_all();
    }

    #[test]
    fn the_oldest_goes_when_one_too_many_waits() {
        let mut held = Held::new();
        assert!((0..HELD_MAX).all(|n| held.push(n).is_none()));
        assert_eq!((held.push(HELD_MAX), held.given_up), (Some(0), 1));
        assert_eq!((held.push(HELD_MAX + 1), held.given_up), (Some(1), 2));
        assert_eq!(held.waiting.len(), HELD_MAX);
        assert_eq!(held.take(1, |_| true), [2]);
        assert_eq!((held.push(HELD_MAX + 2), held.given_up), (None, 2));
    }

    #[test]
    fn each_is_looked_at_in_turn() {
        let mut held = Held::new();
        (0..5).for_each(|n| _ = held.push(n));
        assert_eq!(held.take(2, |n| *n == 1), [1]);
        assert_eq!(held.take(2, |_| false), []);
        // 4 and, again, 0.
        assert_eq!(held.take(2, |_| true), [4, 0]);
        assert_eq!(held.take(usize::MAX, |_| false), []);
        assert_eq!(held.take(usize::MAX, |_| true), [2, 3]);
        assert_eq!(held.take(usize::MAX, |_| true), []);
    }
}
