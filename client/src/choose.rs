//! Which of a server's fabrics to try, in which order, and what to say about those passed over.

use onesided_fabric::Rdma;
use onesided_protocol::control::{FabricName, FabricOffer};

use crate::error::Error;
use crate::options::FabricChoice;

pub(crate) fn name_of(fabric: FabricName) -> &'static str {
    match fabric {
        FabricName::Shm => "shm",
        FabricName::Verbs => "verbs",
        FabricName::Tcp => "tcp",
    }
}

/// What a client may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// This one or none.
    Only(FabricName),
    /// The first of the server's that works.
    First { verbs: bool },
}

impl Plan {
    pub(crate) fn of(choice: FabricChoice, rdma: Rdma) -> Self {
        match (choice, rdma) {
            (FabricChoice::Shm, _) => Self::Only(FabricName::Shm),
            (FabricChoice::Tcp, _) => Self::Only(FabricName::Tcp),
            (FabricChoice::Verbs, _) | (FabricChoice::Auto, Rdma::Require) => {
                Self::Only(FabricName::Verbs)
            }
            (FabricChoice::Auto, rdma) => Self::First { verbs: rdma != Rdma::Never },
        }
    }

    /// Whether verbs may come of it.
    pub(crate) fn allows_verbs(self) -> bool {
        matches!(self, Self::Only(FabricName::Verbs) | Self::First { verbs: true })
    }

    /// The offers to try, in the order of the server, who names the best first.
    pub(crate) fn select(self, offers: &[FabricOffer]) -> Result<Vec<&FabricOffer>, Error> {
        let may = |offer: &&FabricOffer| match self {
            Self::Only(fabric) => offer.kind == fabric,
            Self::First { verbs } => verbs || offer.kind != FabricName::Verbs,
        };
        let selected: Vec<_> = offers.iter().filter(may).collect();
        if !selected.is_empty() {
            return Ok(selected);
        }
        let none = |fabric, reason: &str| Error::Fabric { fabric, reason: reason.to_owned() };
        Err(match self {
            Self::Only(FabricName::Verbs) => none(
                "verbs",
                "the server does not offer it: start it with --rdma require, and it says why",
            ),
            Self::Only(fabric) => none(name_of(fabric), "the server does not offer it"),
            Self::First { verbs: false } if !offers.is_empty() => {
                none("auto", "the server offers verbs only, which rdma=never forbids")
            }
            Self::First { .. } => none("auto", "the server offers none"),
        })
    }
}

/// Fabrics that were tried and cannot be used.
#[derive(Default, Debug)]
pub(crate) struct PassedOver {
    reasons: Vec<String>,
    /// Something else than shared memory of another host is among them.
    unexpected: bool,
}

impl PassedOver {
    pub(crate) fn add(&mut self, fabric: FabricName, error: &Error, is_elsewhere: bool) {
        self.unexpected |= !is_elsewhere;
        self.reasons.push(match error {
            Error::Fabric { reason, .. } => format!("{}: {reason}", name_of(fabric)),
            other => format!("{}: {other}", name_of(fabric)),
        });
    }

    /// The error when nothing is left.
    pub(crate) fn into_error(self) -> Error {
        Error::Fabric { fabric: "auto", reason: self.reasons.join("; ") }
    }

    /// What there is to say when one was found. Nothing when shared memory cannot be had because
    /// the server is on another host, and its memory can be read from here all the same.
    pub(crate) fn fallback(self, one_sided: bool) -> Option<String> {
        let worth_it = !self.reasons.is_empty() && (self.unexpected || !one_sided);
        worth_it.then(|| self.reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use FabricName::{Shm, Tcp, Verbs};

    use super::*;

    fn select(offers: &[FabricName], choice: FabricChoice, rdma: Rdma) -> Vec<FabricName> {
        let offer = |&kind: &FabricName| FabricOffer { kind, blob: Vec::new() };
        let offers: Vec<_> = offers.iter().map(offer).collect();
        let selected = Plan::of(choice, rdma).select(&offers).unwrap_or_default();
        selected.iter().map(|offer| offer.kind).collect()
    }

    #[test]
    fn the_policy_decides_what_is_tried() {
        let all = [Shm, Verbs, Tcp];
        for (choice, rdma, tried) in [
            (FabricChoice::Auto, Rdma::Prefer, &[Shm, Verbs, Tcp][..]),
            (FabricChoice::Auto, Rdma::Never, &[Shm, Tcp]),
            (FabricChoice::Auto, Rdma::Require, &[Verbs]),
            (FabricChoice::Verbs, Rdma::Prefer, &[Verbs]),
            (FabricChoice::Tcp, Rdma::Prefer, &[Tcp]),
            (FabricChoice::Shm, Rdma::Never, &[Shm]),
        ] {
            assert_eq!(select(&all, choice, rdma), tried, "{choice:?} {rdma}");
        }
        assert_eq!(select(&[Tcp, Shm], FabricChoice::Auto, Rdma::Prefer), [Tcp, Shm]);
    }

    #[test]
    fn what_is_not_offered_is_said() {
        let offers = [FabricOffer { kind: Verbs, blob: Vec::new() }];
        for (choice, rdma, offers, part) in [
            (FabricChoice::Auto, Rdma::Require, &[][..], "--rdma require"),
            (FabricChoice::Shm, Rdma::Prefer, &offers, "fabric shm cannot be used"),
            (FabricChoice::Auto, Rdma::Never, &offers, "rdma=never forbids"),
            (FabricChoice::Auto, Rdma::Prefer, &[], "offers none"),
        ] {
            let error = Plan::of(choice, rdma).select(offers).expect_err("none").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_fallback_is_worth_a_word_if_something_is_lost() {
        let fabric = |reason: &str| Error::Fabric { fabric: "any", reason: reason.to_owned() };
        assert_eq!(PassedOver::default().fallback(false), None);
        let mut passed_over = PassedOver::default();
        passed_over.add(Shm, &fabric("another host"), true);
        assert_eq!(passed_over.fallback(true), None, "verbs is what one uses then");
        let mut passed_over = PassedOver::default();
        passed_over.add(Shm, &fabric("another host"), true);
        passed_over.add(Verbs, &fabric("no device"), false);
        let text = passed_over.fallback(false).expect("slower");
        assert_eq!(text, "shm: another host; verbs: no device");
        let mut passed_over = PassedOver::default();
        passed_over.add(Verbs, &fabric("no device"), false);
        assert!(passed_over.fallback(true).is_some(), "it was wanted first");
    }
}
