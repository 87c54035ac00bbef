//! What the metrics are read from, once for each answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use onesided_protocol::control::{TableCounts, TableStatus};
use parking_lot::Mutex;

use super::labels::{Labels, OTHER, OTHER_NAMES};
use super::process::{Process, Threads};
use super::render::Rows;
use super::reported::Reported;
use super::rpc::RpcCounts;
use crate::engine::{IndexStatus, MemoryStatus};
use crate::server::Core;
use crate::stats::Stats;

/// What is kept for metrics alone.
#[derive(Default, Debug)]
pub(crate) struct Metrics {
    pub(crate) labels: Labels,
    pub(crate) reported: Reported,
    threads: Mutex<Threads>,
}

impl Metrics {
    /// CPU time of the server's threads, in ns, by role; of all threads of a process of its own.
    pub(crate) fn cpu_ns(&self, own_process: bool) -> BTreeMap<&'static str, u64> {
        self.threads.lock().cpu_ns(own_process)
    }
}

/// A table, or all those together that have no label of their own.
#[derive(Debug)]
pub(crate) struct TableNow {
    pub(crate) tenant: String,
    pub(crate) name: String,
    pub(crate) is_other: bool,
    pub(crate) status: TableStatus,
    pub(crate) index: IndexStatus,
}

/// What clients reported of a table, or of all others.
#[derive(Debug)]
pub(crate) struct ReportedNow {
    pub(crate) tenant: String,
    pub(crate) name: String,
    pub(crate) counts: TableCounts,
}

/// A server at about one moment. Nothing in it grows with the number of sessions.
pub(crate) struct Snapshot {
    pub(crate) stats: Arc<Stats>,
    pub(crate) rpc: RpcCounts,
    pub(crate) memory: MemoryStatus,
    pub(crate) tables: Vec<TableNow>,
    pub(crate) tables_count: usize,
    pub(crate) reported: Vec<ReportedNow>,
    pub(crate) process: Process,
    pub(crate) fabrics: Vec<(&'static str, bool)>,
    pub(crate) figures: Vec<(&'static str, u64)>,
    pub(crate) sessions: usize,
    pub(crate) orphans: usize,
    pub(crate) sessions_limit: usize,
    pub(crate) credits: u32,
    pub(crate) tenants: usize,
    pub(crate) uptime_ms: u64,
    pub(crate) start_unix_s: f64,
}

impl Snapshot {
    pub(crate) fn take(core: &Core) -> Self {
        let all_tables = core.tenants.tables();
        let tables_count = all_tables.len();
        let metrics = &core.metrics;
        Self {
            stats: Arc::clone(&core.stats),
            rpc: core.stats.rpc(),
            memory: core.tenants.memory_status(),
            tables: with_labels(&metrics.labels, all_tables),
            tables_count,
            reported: reported(metrics),
            process: Process::now(&mut metrics.threads.lock(), core.config.own_process),
            fabrics: core.fabrics_now(),
            figures: core.rdma.figures(),
            sessions: core.sessions.len(),
            orphans: core.sessions.orphans(),
            sessions_limit: core.config.max_sessions,
            credits: core.config.credits,
            tenants: core.tenants.names().len(),
            uptime_ms: core.uptime_ms(),
            start_unix_s: core.start_unix_s(),
        }
    }

    /// A figure of the verbs fabric, if there is one.
    pub(crate) fn verbs(&self, figure: &str, rows: &mut Rows) {
        self.verbs_labelled(figure, &[], rows);
    }

    /// The same, with labels.
    pub(crate) fn verbs_labelled(&self, figure: &str, labels: &[&str], rows: &mut Rows) {
        let found = self.figures.iter().find(|(name, _)| *name == figure);
        found.into_iter().for_each(|(_, value)| rows.put(labels, *value as f64));
    }
}

/// A tenant's table.
pub(crate) struct TenantTable {
    pub(crate) tenant: String,
    pub(crate) status: TableStatus,
    pub(crate) index: IndexStatus,
}

fn with_labels(labels: &Labels, tables: Vec<TenantTable>) -> Vec<TableNow> {
    let mut shown = Vec::new();
    let mut other: Option<TableNow> = None;
    for TenantTable { tenant, status, index } in tables {
        if labels.number(&tenant, &status.name) != OTHER {
            let name = status.name.clone();
            shown.push(TableNow { tenant, name, is_other: false, status, index });
            continue;
        }
        let other = other.get_or_insert_with(|| TableNow {
            tenant: OTHER_NAMES.0.to_owned(),
            name: OTHER_NAMES.1.to_owned(),
            is_other: true,
            status: TableStatus::default(),
            index: IndexStatus::default(),
        });
        let sum = &mut other.status;
        sum.live_bytes += status.live_bytes;
        sum.payload_bytes += status.payload_bytes;
        sum.padding_bytes += status.padding_bytes;
        sum.dead_bytes += status.dead_bytes;
        sum.log_bytes += status.log_bytes;
        sum.index_bytes += status.index_bytes;
        sum.expiry_backlog += status.expiry_backlog;
        other.index.keys += index.keys;
        other.index.segments += index.segments;
        other.index.slots += index.slots;
        other.index.overflow_lines += index.overflow_lines;
    }
    shown.extend(other);
    shown
}

fn reported(metrics: &Metrics) -> Vec<ReportedNow> {
    let mut names = metrics.labels.names();
    let shown = names.len();
    names.push((OTHER_NAMES.0.to_owned(), OTHER_NAMES.1.to_owned()));
    let labelled =
        names.into_iter().enumerate().map(|(n, names)| (if n == shown { OTHER } else { n }, names));
    let of = |(label, (tenant, name))| {
        Some(ReportedNow { tenant, name, counts: metrics.reported.of(label)? })
    };
    labelled.filter_map(of).collect()
}
