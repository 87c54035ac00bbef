//! The path MTU: how long the packets of a connection are. Both sides must cut alike, so the client
//! decides when it asks for the connection, and heeds what the server wants.

use std::fmt;
use std::str::FromStr;

use super::ffi::error::VerbsError;

/// A path MTU that was asked for, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathMtu {
    /// 0, or as devices number them: 1 is 256 bytes, each next one twice the one before.
    code: u8,
}

impl PathMtu {
    /// As long as the path allows.
    pub const AUTO: Self = Self { code: 0 };
    const MAX_CODE: u8 = 5;

    /// Its length; `None` if it is not fixed.
    #[must_use]
    pub fn bytes(self) -> Option<u32> {
        (self.code > 0).then(|| 128 << self.code)
    }

    /// As devices and the descriptor of a listener number it.
    pub(super) fn code(self) -> u8 {
        self.code
    }

    /// What that number means, if anything.
    pub(super) const fn of_code(code: u8) -> Option<Self> {
        if code <= Self::MAX_CODE { Some(Self { code }) } else { None }
    }

    /// What both want: the smaller one, if both want one.
    pub(super) fn and(self, other: Self) -> Self {
        match (self.code, other.code) {
            (0, code) | (code, 0) => Self { code },
            (one, two) => Self { code: one.min(two) },
        }
    }

    /// Whether packets of this length go through a port.
    ///
    /// # Errors
    /// When they are too long for it.
    pub(super) fn check(self, device: &str, port: u8, active_bytes: u32) -> Result<(), VerbsError> {
        match self.bytes() {
            Some(bytes) if bytes > active_bytes => Err(VerbsError::Choice(format!(
                "a path MTU of {bytes} bytes was asked for, but {device} port {port} has an active \
                 MTU of {active_bytes}: ask for less (rdma_mtu), or raise the MTU of the interface \
                 and its switches"
            ))),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => write!(f, "{bytes}"),
            None => f.write_str("auto"),
        }
    }
}

impl FromStr for PathMtu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = (0..=Self::MAX_CODE).map(|code| Self { code });
        let known = all.into_iter().find(|mtu| mtu.to_string() == text);
        known.ok_or_else(|| format!("`{text}` must be auto, 256, 512, 1024, 2048 or 4096 (bytes)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_the_rest_is_refused() {
        for text in ["auto", "256", "512", "1024", "2048", "4096"] {
            let mtu: PathMtu = text.parse().expect(text);
            assert_eq!(mtu.to_string(), text);
            assert_eq!(PathMtu::of_code(mtu.code()), Some(mtu));
        }
        for text in ["", "0", "128", "1500", "8192", "1KiB", "Auto"] {
            assert!(text.parse::<PathMtu>().expect_err(text).contains("4096"));
        }
        assert_eq!(PathMtu::of_code(6), None);
    }

    #[test]
    fn the_smaller_wish_counts_and_a_port_limits_it() {
        let mtu = |text: &str| text.parse::<PathMtu>().expect(text);
        assert_eq!(mtu("auto").and(mtu("auto")), PathMtu::AUTO);
        assert_eq!(mtu("1024").and(mtu("auto")), mtu("1024"));
        assert_eq!(mtu("auto").and(mtu("512")), mtu("512"));
        assert_eq!(mtu("2048").and(mtu("512")), mtu("512"));
        assert!(mtu("1024").check("rxe0", 1, 1024).is_ok());
        assert!(mtu("auto").check("rxe0", 1, 256).is_ok());
        let error = mtu("4096").check("rxe0", 1, 1024).expect_err("too long").to_string();
        for part in ["4096", "rxe0 port 1", "1024", "rdma_mtu"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
