//! [`Options`] as people write them in one word.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::Options;

const FORM: &str = "write auto, an address of this host, or NAME[:PORT[:GID_INDEX]]";

impl FromStr for Options {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::default());
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { address: Some(address), ..Self::default() });
        }
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| !name.is_empty() && !name.contains(['/', ' ']));
        let name = name.ok_or_else(|| format!("`{text}` is no RDMA device; {FORM}"))?;
        let bad = |what, part| format!("`{part}` in `{text}` is no {what}; {FORM}");
        let port = parts.next().map(|part| part.parse().ok().filter(|&port| port > 0).ok_or(part));
        let gid_index = parts.next().map(|part| part.parse().map_err(|_| part));
        if parts.next().is_some() {
            return Err(format!("`{text}` has too many parts; {FORM}"));
        }
        Ok(Self {
            device: Some(name.to_owned()),
            port: port.transpose().map_err(|part| bad("port", part))?,
            gid_index: gid_index.transpose().map_err(|part| bad("GID index", part))?,
            address: None,
        })
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.device, self.address) {
            (_, Some(address)) => write!(f, "{address}"),
            (None, None) => f.write_str("auto"),
            (Some(device), None) => {
                f.write_str(device)?;
                let gid_index = self.gid_index;
                // A GID's number counts within a port.
                if let Some(port) = self.port.or(gid_index.map(|_| 1)) {
                    write!(f, ":{port}")?;
                }
                gid_index.map_or(Ok(()), |index| write!(f, ":{index}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in ["auto", "mlx5_0", "mlx5_0:2", "rxe0:1:3", "10.0.0.5", "fd77::1", "::1"] {
            let options: Options = text.parse().expect(text);
            assert_eq!(options.to_string(), text);
        }
        let options: Options = "mlx5_1:2:7".parse().expect("all of it");
        assert_eq!(options.device.as_deref(), Some("mlx5_1"));
        assert_eq!((options.port, options.gid_index, options.address), (Some(2), Some(7), None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "no RDMA device"),
            (":1", "no RDMA device"),
            ("/dev/mlx", "no RDMA device"),
            ("mlx5_0:0", "`0`"),
            ("mlx5_0:x", "no port"),
            ("mlx5_0:1:-1", "no GID index"),
            ("mlx5_0:1:2:3", "too many"),
        ] {
            let error = text.parse::<Options>().expect_err(text);
            assert!(error.contains(part) && error.contains("NAME[:PORT"), "{error}");
        }
    }
}
