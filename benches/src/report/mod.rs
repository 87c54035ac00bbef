//! What came of it, told: YCSB's lines, a table, JSON, a picture.

pub mod compare;
pub mod figures;
pub mod host;
pub mod json;
pub mod plot;
pub mod text;
pub mod ycsb;

use std::time::Duration;

use crate::run::phase::{Measured, Plan};
use crate::target::Description;
use crate::workload::operations::Kind;

/// All of a command.
pub struct Report {
    /// `run`, `load` or `replay`.
    pub command: &'static str,
    /// As it was typed, for the next time.
    pub arguments: Vec<String>,
    /// A letter, or the name of a file.
    pub workload: String,
    /// Properties of the workload, in the order of their keys.
    pub properties: Vec<(String, String)>,
    /// Threads, clients and so on.
    pub plan: Plan,
    /// Draws keys and values.
    pub seed: u64,
    /// What a reader of the figures has to know.
    pub notes: Vec<String>,
    /// One after the other.
    pub targets: Vec<TargetReport>,
}

/// What came of one target.
pub struct TargetReport {
    /// As it was typed.
    pub url: String,
    /// As tables name it.
    pub name: String,
    /// What it is.
    pub description: Description,
    /// How long storing the records took, if that came first.
    pub fill: Option<Duration>,
    /// What was measured.
    pub measured: Measured,
    /// Whether values were checked.
    pub verified: bool,
    /// Why nothing was measured, or not to the end.
    pub failure: Option<String>,
}

impl TargetReport {
    /// Of a target that failed; nothing was measured.
    #[must_use]
    pub fn failed(url: &str, failure: String) -> Self {
        Self {
            url: url.to_owned(),
            name: url.to_owned(),
            description: Description::default(),
            fill: None,
            measured: Measured::nothing(),
            verified: false,
            failure: Some(failure),
        }
    }

    /// Whether there are figures, if only of a part.
    #[must_use]
    pub fn has_figures(&self) -> bool {
        let measured = self.failure.is_none() || self.measured.measure.operations() > 0;
        measured && self.unsupported().is_none()
    }

    /// Whether it ended well: no failure, no wrong value, no operation that failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failure.is_none() && self.measured.measure.verdicts.is_clean() && self.failures() == 0
    }

    /// Operations that failed; not those that found no record, nor those that the target has not.
    #[must_use]
    pub fn failures(&self) -> u64 {
        let measure = &self.measured.measure;
        if self.unsupported().is_some() { 0 } else { measure.failed() - measure.absent() }
    }

    /// What the target cannot do, so that there is nothing to compare.
    #[must_use]
    pub fn unsupported(&self) -> Option<Kind> {
        self.measured.measure.unsupported
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::measure::Status;

    #[test]
    fn only_failures_are_no_success() {
        let of = |statuses: &[Status]| {
            let mut report = TargetReport::failed("map://", String::new());
            report.failure = None;
            let measure = &mut report.measured.measure;
            statuses.iter().for_each(|status| measure.record(Kind::Read, *status, None));
            report.is_clean()
        };
        assert!(!of(&[Status::Failed, Status::Failed]));
        assert!(!of(&[Status::Failed, Status::Ok]));
        assert!(of(&[Status::Ok, Status::Absent]) && of(&[]));
        assert!(!TargetReport::failed("map://", "why".to_owned()).is_clean());
    }
}
