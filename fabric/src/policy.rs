//! Whether RDMA is wanted: asked by server and client alike.

use std::fmt;
use std::str::FromStr;

/// What to do about RDMA (verbs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Rdma {
    /// Verbs or nothing: what cannot have it fails, and says why.
    Require,
    /// Verbs where both sides have it and nothing is nearer; a fallback is told, with its reason.
    #[default]
    Prefer,
    /// No verbs: no library is opened, no device touched.
    Never,
}

impl FromStr for Rdma {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "require" => Ok(Self::Require),
            "prefer" => Ok(Self::Prefer),
            "never" => Ok(Self::Never),
            _ => Err(format!("`{name}` is no choice about RDMA; there are require, prefer, never")),
        }
    }
}

impl fmt::Display for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Never => "never",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_round_and_others_are_named() {
        for rdma in [Rdma::Require, Rdma::Prefer, Rdma::Never] {
            assert_eq!(rdma.to_string().parse(), Ok(rdma));
        }
        assert!("on".parse::<Rdma>().is_err_and(|text| text.contains("`on`")));
    }
}
