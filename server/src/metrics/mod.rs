//! What a server shows of itself: one table declares every metric, and everything is read when it
//! is asked for, from counters that exist anyway.
//!
//! | file | what |
//! |---|---|
//! | this, `table/` | the table: name, help, kind, labels, and where the values come from |
//! | `snapshot` | what the values are read from, once for each answer |
//! | `render` | the text that Prometheus reads |
//! | `rpc` | what pollers count, each for itself |
//! | `reported` | what clients report of their own reads |
//! | `labels` | which tables have a label of their own |
//! | `process` | what the kernel counts |

pub(crate) mod labels;
pub(crate) mod process;
pub(crate) mod render;
pub(crate) mod reported;
pub(crate) mod rpc;
pub(crate) mod snapshot;
mod table;

use render::Rows;
use snapshot::Snapshot;

/// Of what kind a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, but for a restart.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Durations, by buckets.
    Histogram,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// One metric.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Its name, by Prometheus's conventions: unit last, `_total` for counters.
    pub name: &'static str,
    /// What it says, in one line.
    pub help: &'static str,
    /// Of what kind it is.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    read: fn(&Snapshot, &mut Rows),
}

impl std::fmt::Debug for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{:?}", self.kind, self.name, self.labels)
    }
}

/// Every metric that a server has, in the order in which it shows them.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    table::ALL.into_iter().flatten()
}
