//! From a snapshot to the text that Prometheus reads.

use onesided_protocol::latency::{LATENCY_BUCKETS, bound_ns};
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

use super::rpc::Latency;
use super::snapshot::Snapshot;
use super::{Kind, Metric};

/// The values of one metric, one for each set of labels.
pub(crate) struct Rows {
    labels: &'static [&'static str],
    kind: Kind,
    rows: Vec<proto::Metric>,
}

impl Rows {
    /// A value without labels.
    pub(crate) fn one(&mut self, value: f64) {
        self.put(&[], value);
    }

    /// A count without labels.
    pub(crate) fn count(&mut self, value: u64) {
        self.put(&[], value as f64);
    }

    /// A value, with its labels' values in the order of their names.
    pub(crate) fn put(&mut self, labels: &[&str], value: f64) {
        let mut row = self.row(labels);
        if self.kind == Kind::Counter {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            row.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            row.set_gauge(gauge);
        }
        self.rows.push(row);
    }

    /// A histogram.
    pub(crate) fn latency(&mut self, labels: &[&str], latency: &Latency) {
        let mut total = 0u64;
        let mut buckets = Vec::with_capacity(LATENCY_BUCKETS);
        for (bucket, count) in latency.counts.iter().enumerate() {
            total = total.saturating_add(*count);
            // The one without a bound is the encoder's.
            let Some(bound) = bound_ns(bucket) else { continue };
            let mut of = proto::Bucket::default();
            of.set_cumulative_count(total);
            of.set_upper_bound(seconds(bound));
            buckets.push(of);
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(total);
        histogram.set_sample_sum(seconds(latency.sum_ns));
        histogram.set_bucket(buckets);
        let mut row = self.row(labels);
        row.set_histogram(histogram);
        self.rows.push(row);
    }

    fn row(&self, values: &[&str]) -> proto::Metric {
        debug_assert_eq!(values.len(), self.labels.len(), "{:?}", self.labels);
        let pair = |(name, value): (&&str, &&str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        proto::Metric::from_label(self.labels.iter().zip(values).map(pair).collect())
    }
}

/// Native unit of time.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn family(metric: &Metric, snapshot: &Snapshot) -> Option<MetricFamily> {
    let Metric { name, help, kind, labels, read } = *metric;
    let mut rows = Rows { labels, kind, rows: Vec::new() };
    read(snapshot, &mut rows);
    if rows.rows.is_empty() {
        return None;
    }
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(match kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram => MetricType::HISTOGRAM,
    });
    family.set_metric(rows.rows);
    Some(family)
}

/// The text, and its media type.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    let families: Vec<_> = super::all().filter_map(|metric| family(metric, snapshot)).collect();
    let mut text = String::with_capacity(64 << 10);
    if let Err(error) = TextEncoder::new().encode_utf8(&families, &mut text) {
        tracing::error!(%error, "metrics cannot be written");
    }
    text
}

/// Media type of [`text`].
pub(crate) fn media_type() -> String {
    TextEncoder::new().format_type().to_owned()
}
