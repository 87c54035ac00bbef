//! The table of metrics, by what they are about.

use super::render::Rows;
use super::snapshot::Snapshot;
use super::{Kind, Metric};

mod clients;
mod memory;
mod service;
mod system;

/// All of it.
pub(super) const ALL: [&[Metric]; 4] =
    [system::METRICS, service::METRICS, clients::METRICS, memory::METRICS];

type Read = fn(&Snapshot, &mut Rows);
type Labels = &'static [&'static str];

const fn counter(name: &'static str, help: &'static str, labels: Labels, read: Read) -> Metric {
    Metric { name, help, kind: Kind::Counter, labels, read }
}

const fn gauge(name: &'static str, help: &'static str, labels: Labels, read: Read) -> Metric {
    Metric { name, help, kind: Kind::Gauge, labels, read }
}

const fn histogram(name: &'static str, help: &'static str, labels: Labels, read: Read) -> Metric {
    Metric { name, help, kind: Kind::Histogram, labels, read }
}
