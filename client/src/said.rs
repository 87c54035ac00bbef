//! Options that a URL can say too: `?fabric=tcp&idle_timeout_ms=0`.

use std::str::FromStr;
use std::time::Duration;

use onesided_fabric::Rdma;
use onesided_fabric::verbs::PathMtu;

use crate::options::{FabricChoice, Options};

/// What was said; `None` = nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Said {
    pub(crate) fabric: Option<FabricChoice>,
    pub(crate) rdma: Option<Rdma>,
    pub(crate) rdma_mtu: Option<PathMtu>,
    pub(crate) zero_copy_bytes: Option<usize>,
    /// 0 = never.
    pub(crate) idle_timeout_ms: Option<u64>,
    /// 0 = never.
    pub(crate) better_fabric_retry_ms: Option<u64>,
}

/// Their names in URLs.
const NAMES: &str =
    "fabric, rdma, rdma_mtu, zero_copy_bytes, idle_timeout_ms, better_fabric_retry_ms";

impl Said {
    /// Takes `NAME=VALUE` out of a URL.
    pub(crate) fn take(&mut self, pair: &str) -> Result<(), String> {
        match pair.split_once('=') {
            Some(("fabric", name)) => self.fabric = Some(name.parse()?),
            Some(("rdma", policy)) => self.rdma = Some(policy.parse()?),
            Some(("rdma_mtu", mtu)) => self.rdma_mtu = Some(mtu.parse()?),
            Some(("zero_copy_bytes", bytes)) => self.zero_copy_bytes = Some(number(bytes)?),
            Some(("idle_timeout_ms", ms)) => self.idle_timeout_ms = Some(number(ms)?),
            Some(("better_fabric_retry_ms", ms)) => {
                self.better_fabric_retry_ms = Some(number(ms)?);
            }
            _ => return Err(format!("`{pair}` is no option; there are {NAMES}")),
        }
        Ok(())
    }

    /// What this says, else what the other says.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            fabric: self.fabric.or(other.fabric),
            rdma: self.rdma.or(other.rdma),
            rdma_mtu: self.rdma_mtu.or(other.rdma_mtu),
            zero_copy_bytes: self.zero_copy_bytes.or(other.zero_copy_bytes),
            idle_timeout_ms: self.idle_timeout_ms.or(other.idle_timeout_ms),
            better_fabric_retry_ms: self.better_fabric_retry_ms.or(other.better_fabric_retry_ms),
        }
    }

    /// Sets what was said.
    pub(crate) fn apply(self, options: &mut Options) {
        fn set<T>(option: &mut T, said: Option<T>) {
            if let Some(said) = said {
                *option = said;
            }
        }
        let or_never = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        set(&mut options.fabric, self.fabric);
        set(&mut options.rdma, self.rdma);
        set(&mut options.rdma_mtu, self.rdma_mtu);
        set(&mut options.zero_copy_bytes, self.zero_copy_bytes);
        set(&mut options.idle_timeout, self.idle_timeout_ms.map(or_never));
        set(&mut options.better_fabric_retry, self.better_fabric_retry_ms.map(or_never));
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pairs: &[&str]) -> Said {
        let mut said = Said::default();
        pairs.iter().for_each(|pair| said.take(pair).expect(pair));
        said
    }

    #[test]
    fn the_first_to_say_something_counts_and_the_rest_keeps_its_default() {
        let first = said(&["idle_timeout_ms=0", "rdma_mtu=1024", "rdma=never"]);
        let all = ["idle_timeout_ms=7", "zero_copy_bytes=9", "better_fabric_retry_ms=1500"];
        let mut options = Options::default();
        first.or(said(&all)).apply(&mut options);
        assert_eq!((options.idle_timeout, options.rdma), (None, Rdma::Never));
        assert_eq!((options.rdma_mtu.bytes(), options.zero_copy_bytes), (Some(1024), 9));
        assert_eq!(options.better_fabric_retry, Some(Duration::from_millis(1500)));
        assert_eq!(options.fabric, FabricChoice::Auto);
        let mut untouched = Options::default();
        Said::default().apply(&mut untouched);
        assert_eq!(format!("{untouched:?}"), format!("{:?}", Options::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (pair, reason) in [
            ("idle_timeout_ms=5s", "no number"),
            ("better_fabric_retry_ms=", "no number"),
            ("rdma_mtu=1500", "must be auto, 256"),
            ("idle_timeout=5", "there are fabric, rdma, rdma_mtu"),
            ("fabric", "is no option"),
        ] {
            let error = Said::default().take(pair).expect_err(pair);
            assert!(error.contains(reason), "{pair}: {error}");
        }
    }
}
