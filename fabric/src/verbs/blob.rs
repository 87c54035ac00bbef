//! What a listener tells its clients: the port, and every address of its device, best first.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version of this format |
//! | 4 | length of the receive buffers, big-endian |
//! | 4 | longest message, big-endian |
//! | 2 | port, big-endian |
//! | 1 | path MTU, as devices number them, 0 = any |
//! | 1 | number of addresses, at least 1 |
//! | | each: 4 or 6, then 4 or 16 bytes of address |
//!
//! Or, when there is none now: a 0, and why, in UTF-8.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::hello::Hello;
use super::mtu::PathMtu;

const VERSION: u8 = 1;
/// In place of a version.
const NONE_NOW: u8 = 0;
/// Longest text of why there is none.
const REASON_MAX_BYTES: usize = 200;
/// Most addresses of one listener.
pub(super) const MAX_ADDRESSES: usize = 16;

/// What clients are told instead of where a listener is: that there is none now, and why. At most
/// 201 bytes.
#[must_use]
pub fn none_now(reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_MAX_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = vec![NONE_NOW];
    bytes.extend_from_slice(&reason.as_bytes()[..end]);
    bytes
}

/// Why there is no listener now, if that is what the bytes say.
pub(super) fn why_none(bytes: &[u8]) -> Option<String> {
    let (&NONE_NOW, reason) = bytes.split_first()? else { return None };
    let reason = String::from_utf8_lossy(&reason[..reason.len().min(REASON_MAX_BYTES)]);
    Some(reason.chars().filter(|c| !c.is_control()).collect())
}

/// Where a listener can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Blob {
    /// How messages are cut into pieces: the same on both sides.
    pub(super) hello: Hello,
    pub(super) port: u16,
    pub(super) path_mtu: PathMtu,
    /// Link-local ones are of an interface that only the client can know.
    pub(super) addresses: Vec<IpAddr>,
}

impl Blob {
    /// Its bytes, with as many addresses as `max_bytes` has room for.
    pub(super) fn encode(&self, max_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.hello.receive_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.hello.max_message_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.push(self.path_mtu.code());
        let count_at = bytes.len();
        bytes.push(0);
        let mut count = 0;
        for address in self.addresses.iter().take(MAX_ADDRESSES) {
            let len = 1 + if address.is_ipv4() { 4 } else { 16 };
            if bytes.len() + len > max_bytes {
                break;
            }
            match address {
                IpAddr::V4(v4) => {
                    bytes.push(4);
                    bytes.extend_from_slice(&v4.octets());
                }
                IpAddr::V6(v6) => {
                    bytes.push(6);
                    bytes.extend_from_slice(&v6.octets());
                }
            }
            count += 1;
        }
        bytes[count_at] = count;
        bytes
    }

    /// What the bytes say, or what is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (&version, rest) = bytes.split_first().ok_or("empty")?;
        if version != VERSION {
            return Err("unknown version");
        }
        let (receive, rest) = rest.split_first_chunk().ok_or("too short for its sizes")?;
        let (longest, rest) = rest.split_first_chunk().ok_or("too short for its sizes")?;
        let hello = Hello {
            receive_bytes: u32::from_be_bytes(*receive),
            max_message_bytes: u32::from_be_bytes(*longest),
        };
        if !hello.is_sensible() {
            return Err("sizes of messages out of range");
        }
        let (port, rest) = rest.split_first_chunk().ok_or("too short for a port")?;
        let port = u16::from_be_bytes(*port);
        let (&mtu, rest) = rest.split_first().ok_or("too short for a path MTU")?;
        let path_mtu = PathMtu::of_code(mtu).ok_or("a path MTU that does not exist")?;
        let (&count, mut rest) = rest.split_first().ok_or("too short for addresses")?;
        let count = usize::from(count);
        if port == 0 || !(1..=MAX_ADDRESSES).contains(&count) {
            return Err("no port, or a number of addresses out of range");
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let (address, left) = address(rest)?;
            if address.is_unspecified() || address.is_multicast() {
                return Err("an address that is no host's");
            }
            addresses.push(address);
            rest = left;
        }
        if rest.is_empty() {
            Ok(Self { hello, port, path_mtu, addresses })
        } else {
            Err("bytes left over")
        }
    }
}

fn address(bytes: &[u8]) -> Result<(IpAddr, &[u8]), &'static str> {
    let (&family, rest) = bytes.split_first().ok_or("an address is missing")?;
    let short = "an address is cut off";
    match family {
        4 => {
            let (octets, rest) = rest.split_first_chunk::<4>().ok_or(short)?;
            Ok((IpAddr::V4(Ipv4Addr::from(*octets)), rest))
        }
        6 => {
            let (octets, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
            let v6 = Ipv6Addr::from(*octets);
            match v6.to_ipv4_mapped() {
                Some(_) => Err("an IPv4 address in disguise"),
                None => Ok((IpAddr::V6(v6), rest)),
            }
        }
        _ => Err("unknown address family"),
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const MTU: PathMtu = PathMtu::of_code(3).expect("1024 bytes");
    const HELLO: Hello = Hello { receive_bytes: 4352, max_message_bytes: 1 << 16 };

    fn sample() -> Blob {
        let addresses = ["10.77.0.1", "fd77::1", "fe80::1"];
        let addresses = addresses.map(|text| text.parse().expect(text)).to_vec();
        Blob { hello: HELLO, port: 18515, path_mtu: MTU, addresses }
    }

    #[test]
    fn there_may_be_none_and_a_reason() {
        let none = none_now("the device is lost");
        assert_eq!(why_none(&none).as_deref(), Some("the device is lost"));
        assert!(Blob::decode(&none).is_err(), "an older client says that it does not know it");
        let long = none_now(&"ß".repeat(150));
        assert_eq!(why_none(&long), Some("ß".repeat(100)));
        assert_eq!(why_none(b"\0a\x1bb\xff"), Some("ab\u{fffd}".to_owned()));
        assert_eq!(why_none(&[]), None);
        assert_eq!(why_none(&[VERSION, 1]), None);
    }

    #[test]
    fn bytes_are_as_documented_and_round_trip() {
        let one = Blob {
            hello: HELLO,
            port: 258,
            path_mtu: MTU,
            addresses: vec!["10.77.0.1".parse().expect("ip")],
        };
        assert_eq!(one.encode(512), [1, 0, 0, 17, 0, 0, 1, 0, 0, 1, 2, 3, 1, 4, 10, 77, 0, 1]);
        assert_eq!(Blob::decode(&sample().encode(512)), Ok(sample()));
    }

    #[test]
    fn what_has_no_room_is_left_out_and_the_best_stays() {
        let many = (0..40).map(|i| IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, i + 1)));
        let blob = Blob { hello: HELLO, port: 1, path_mtu: MTU, addresses: many.collect() };
        assert_eq!(Blob::decode(&blob.encode(512)).expect("valid").addresses.len(), MAX_ADDRESSES);
        let short = blob.encode(13 + 17 * 3 + 16);
        assert_eq!(Blob::decode(&short).expect("valid").addresses, blob.addresses[..3]);
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let good = sample().encode(512);
        for len in 0..good.len() {
            assert!(Blob::decode(&good[..len]).is_err(), "cut to {len}");
        }
        assert!(Blob::decode(&[&good[..], &[0]].concat()).is_err(), "too long");
        let sizes = [0, 0, 17, 0, 0, 1, 0, 0];
        let bad: [&[u8]; 6] = [
            &[0, 0, 0, 1, 4, 10, 77, 0, 1],
            &[1, 2, 0, 0],
            &[1, 2, 6, 1, 4, 10, 77, 0, 1],
            &[1, 2, 0, 1, 5, 10, 77, 0, 1],
            &[1, 2, 0, 1, 4, 0, 0, 0, 0],
            &[1, 2, 0, 1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1],
        ];
        for rest in bad {
            let bytes = [&[VERSION], &sizes[..], rest].concat();
            assert!(Blob::decode(&bytes).is_err(), "{bytes:?}");
        }
        let mut other = good.clone();
        other[0] = 2;
        assert!(Blob::decode(&other).is_err(), "another version");
        for sizes in [[0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 17, 0, 0, 0, 0, 0], [255; 8]] {
            let mut other = good.clone();
            other[1..9].copy_from_slice(&sizes);
            assert!(Blob::decode(&other).is_err(), "{sizes:?}");
        }
    }

    #[test]
    fn random_bytes_never_panic_and_what_decodes_has_one_encoding() {
        let mut random = StdRng::seed_from_u64(7);
        let good = sample().encode(512);
        let mut decoded = 0;
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random_range(0..8);
            }
            if let Ok(blob) = Blob::decode(&bytes) {
                assert_eq!(blob.encode(512), bytes);
                decoded += 1;
            }
        }
        assert!(decoded > 100, "{decoded}");
    }
}
