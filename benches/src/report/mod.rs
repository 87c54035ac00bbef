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
}

impl TargetReport {
    /// What the target cannot do, so that there is nothing to compare.
    #[must_use]
    pub fn unsupported(&self) -> Option<Kind> {
        self.measured.measure.unsupported
    }
}
