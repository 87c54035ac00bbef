//! Socket addresses as C has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::sys;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// An address in the storage that C functions take as a `sockaddr`.
pub(super) struct CAddr(sys::sockaddr_storage);

impl CAddr {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let mut storage = sys::sockaddr_storage { _bindgen_opaque_blob: [0; 16] };
        let at = &raw mut storage;
        match addr {
            SocketAddr::V4(v4) => {
                let c = sys::sockaddr_in {
                    sin_family: AF_INET,
                    sin_port: v4.port().to_be(),
                    sin_addr: sys::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is longer than any address, and aligned for all.
                unsafe { at.cast::<sys::sockaddr_in>().write(c) };
            }
            SocketAddr::V6(v6) => {
                let bytes = sys::in6_addr__bindgen_ty_1 { __u6_addr8: v6.ip().octets() };
                let c = sys::sockaddr_in6 {
                    sin6_family: AF_INET6,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: sys::in6_addr { __in6_u: bytes },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { at.cast::<sys::sockaddr_in6>().write(c) };
            }
        }
        Self(storage)
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sys::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// What C wrote; `None` for other families, and for an address that was not set.
pub(super) fn from_storage(storage: &sys::sockaddr_storage) -> Option<SocketAddr> {
    let at = std::ptr::from_ref(storage);
    // SAFETY: all of the storage is initialised, and every family begins with its number.
    let family = unsafe { at.cast::<sys::sa_family_t>().read() };
    match family {
        AF_INET => {
            // SAFETY: the storage is longer than any address; any bytes are a value of it.
            let c = unsafe { at.cast::<sys::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(c.sin_port))))
        }
        AF_INET6 => {
            // SAFETY: as above.
            let c = unsafe { at.cast::<sys::sockaddr_in6>().read() };
            // SAFETY: all its members are 16 plain bytes.
            let ip = Ipv6Addr::from(unsafe { c.sin6_addr.__in6_u.__u6_addr8 });
            let port = u16::from_be(c.sin6_port);
            let addr = SocketAddrV6::new(ip, port, c.sin6_flowinfo, c.sin6_scope_id);
            Some(SocketAddr::V6(addr))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["10.77.0.1:18515", "[fd77::2]:1", "0.0.0.0:0", "[::]:65535"] {
            let addr: SocketAddr = text.parse().expect(text);
            assert_eq!(from_storage(&CAddr::new(addr).0), Some(addr));
        }
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().expect("ip"), 7, 0, 3));
        assert_eq!(from_storage(&CAddr::new(scoped).0), Some(scoped));
    }

    #[test]
    fn what_was_not_set_is_no_address() {
        let storage = sys::sockaddr_storage { _bindgen_opaque_blob: [0; 16] };
        assert_eq!(from_storage(&storage), None);
    }
}
