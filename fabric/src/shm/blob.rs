//! The opaque descriptor of a listener: version, boot id, socket name. At most 146 bytes.

use super::ConnectError;

const VERSION: u8 = 1;
const BOOT_ID_BYTES: usize = 36;
/// Longest abstract name: `sun_path` without its leading zero.
pub(super) const MAX_NAME_BYTES: usize = 107;

/// What a descriptor says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) boot_id: [u8; BOOT_ID_BYTES],
    pub(super) name: String,
}

impl Blob {
    pub(super) fn of_this_host(name: &str) -> std::io::Result<Self> {
        Ok(Self { boot_id: boot_id()?, name: name.to_owned() })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.boot_id);
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ConnectError> {
        let bad = ConnectError::Malformed;
        let (&version, rest) = bytes.split_first().ok_or(bad("empty"))?;
        if version != VERSION {
            return Err(bad("unknown version"));
        }
        let (boot_id, name) = rest.split_first_chunk().ok_or(bad("too short"))?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(bad("length of the socket name"));
        }
        let name = std::str::from_utf8(name).map_err(|_| bad("socket name is not UTF-8"))?;
        Ok(Self { boot_id: *boot_id, name: name.to_owned() })
    }
}

fn boot_id() -> std::io::Result<[u8; BOOT_ID_BYTES]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.trim_end().as_bytes().try_into().map_err(|_| std::io::Error::other("boot id is no UUID"))
}

/// Whether a descriptor names a listener under the kernel that runs this process.
#[must_use]
pub fn reachable(blob: &[u8]) -> bool {
    check_reachable(blob).is_ok()
}

pub(super) fn check_reachable(bytes: &[u8]) -> Result<Blob, ConnectError> {
    let blob = Blob::decode(bytes)?;
    if boot_id()? == blob.boot_id { Ok(blob) } else { Err(ConnectError::OtherHost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_other_host() {
        let here = Blob::of_this_host("onesided-x").expect("boot id");
        assert_eq!(Blob::decode(&here.encode()).expect("own blob"), here);
        assert!(reachable(&here.encode()));
        let mut elsewhere = here.encode();
        elsewhere[3] = if elsewhere[3] == b'0' { b'1' } else { b'0' };
        assert!(!reachable(&elsewhere));
        assert!(matches!(check_reachable(&elsewhere), Err(ConnectError::OtherHost)));
    }

    #[test]
    fn malformed_descriptors_are_refused() {
        let good = Blob::of_this_host("n").expect("boot id").encode();
        for len in 0..good.len() {
            assert!(Blob::decode(&good[..len]).is_err(), "cut to {len}");
        }
        let mut long = good.clone();
        long.extend_from_slice(&[b'x'; MAX_NAME_BYTES]);
        assert!(Blob::decode(&long).is_err());
        let mut version = good.clone();
        version[0] = 9;
        assert!(Blob::decode(&version).is_err());
        let mut text = good;
        text.push(0xff);
        assert!(Blob::decode(&text).is_err());
    }
}
