//! A client's statistics for an application's own Prometheus registry (feature `prometheus`).

use std::sync::{Arc, Weak};

use onesided_protocol::latency::bound_ns;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};

use crate::client::{Client, LinkGuard};
use crate::stats::Stats;

/// Name, help, and what it is read from. Those that end in `_total` are counters.
type Row = (&'static str, &'static str, fn(&Stats) -> f64);

const TIMES: &str = "onesided_client_get_duration_seconds";
const TIMES_HELP: &str = "Time of GETs, about one of 256 of them; buckets are powers of two.";

/// Every metric but the histogram.
const ROWS: &[Row] = &[
    ("connected", "1 while there is a connection, else 0.", |s| f64::from(u8::from(s.connected))),
    ("gets_total", "GETs, each key of a batch counted.", |s| s.gets as f64),
    ("one_sided_hits_total", "GETs answered one-sidedly with a value.", |s| {
        s.one_sided_hits as f64
    }),
    ("one_sided_misses_total", "GETs answered one-sidedly with a miss.", |s| {
        s.one_sided_misses as f64
    }),
    ("rpc_gets_total", "GETs that asked by RPC.", |s| s.rpc_gets as f64),
    ("cache_hits_total", "Rounds that began with a cached bucket.", |s| s.cache_hits as f64),
    ("round_trips_total", "Times that READs were waited for.", |s| s.round_trips as f64),
    ("reads_total", "One-sided READs.", |s| s.reads as f64),
    ("read_bytes_total", "Bytes of one-sided READs.", |s| s.read_bytes as f64),
    ("retries_total", "Rounds that had to look again.", |s| s.retries as f64),
    ("forward_hops_total", "Forwards followed.", |s| s.forward_hops as f64),
    ("checksum_failures_total", "Checksums that did not fit.", |s| s.checksum_failures as f64),
    ("rpc_puts_total", "PUTs.", |s| s.rpc_puts as f64),
    ("one_sided_puts_total", "PUTs that replaced an entry without the server.", |s| {
        s.one_sided_puts as f64
    }),
    ("update_round_trips_total", "Times that such PUTs waited for the server's memory.", |s| {
        s.update_round_trips as f64
    }),
    ("updates_lost_total", "Compare-and-swaps that somebody was faster than.", |s| {
        s.updates_lost as f64
    }),
    ("rpc_deletes_total", "DELETEs.", |s| s.rpc_deletes as f64),
    ("rpc_appends_total", "Appends.", |s| s.rpc_appends as f64),
    ("rpc_increments_total", "Increments.", |s| s.rpc_increments as f64),
    ("rpc_counters_total", "Counters changed by RPC, or looked for.", |s| s.rpc_counters as f64),
    ("counter_updates_total", "Counters changed one-sidedly.", |s| s.counter_updates as f64),
    ("counter_round_trips_total", "Times that one was waited for.", |s| {
        s.counter_round_trips as f64
    }),
    ("counter_retries_total", "Those that had to be done again.", |s| s.counter_retries as f64),
    ("rpc_touches_total", "Touches.", |s| s.rpc_touches as f64),
    ("rpc_retries_total", "Requests sent again after a broken connection.", |s| {
        s.rpc_retries as f64
    }),
    ("staged_total", "Values that went through staging memory.", |s| s.staged as f64),
    ("lent_total", "Values that the server READ from the caller's buffers.", |s| s.lent as f64),
    ("reconnects_total", "Connections made after the first was lost.", |s| s.reconnects as f64),
    ("idle_closes_total", "Connections closed since nobody used them.", |s| s.idle_closes as f64),
    ("access_errors_total", "One-sided requests that were refused.", |s| s.access_errors as f64),
    ("fabric_upgrades_total", "Connections over a better fabric.", |s| s.fabric_upgrades as f64),
    ("buffer_bytes", "Bytes of buffers that are mapped.", |s| s.buffer_bytes as f64),
    ("registered_idle_bytes", "Bytes of registered buffers that wait for use.", |s| {
        s.registered_idle_bytes as f64
    }),
];

/// Shows a client's statistics as `onesided_client_...`, with the labels `client`, a name that the
/// application gives, and `fabric`, the one in use. It does not keep the client open: when that is
/// gone, nothing is shown.
///
/// ```
/// # fn example(client: &onesided::Client) -> Result<(), prometheus::Error> {
/// prometheus::register(Box::new(onesided::StatsCollector::new(client, "sessions")?))
/// # }
/// ```
pub struct StatsCollector {
    client: Weak<LinkGuard>,
    name: String,
    descs: Vec<Desc>,
}

impl std::fmt::Debug for StatsCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatsCollector").field("name", &self.name).finish_non_exhaustive()
    }
}

fn full(name: &str) -> String {
    format!("onesided_client_{name}")
}

impl StatsCollector {
    /// Clients of one registry need different names.
    ///
    /// # Errors
    /// None today; what Prometheus does not accept as a description.
    pub fn new(client: &Client, name: &str) -> Result<Self, prometheus::Error> {
        let rows = ROWS.iter().map(|(row, help, _)| (full(row), *help));
        let all = rows.chain([(TIMES.to_owned(), TIMES_HELP)]);
        let desc = |(metric, help): (String, &str)| {
            let fixed = [("client".to_owned(), name.to_owned())].into();
            Desc::new(metric, help.to_owned(), vec!["fabric".to_owned()], fixed)
        };
        let descs = all.map(desc).collect::<Result<_, _>>()?;
        Ok(Self { client: Arc::downgrade(&client.guard), name: name.to_owned(), descs })
    }

    fn family(
        &self,
        stats: &Stats,
        name: String,
        help: &str,
        kind: MetricType,
        set: impl FnOnce(&mut proto::Metric),
    ) -> MetricFamily {
        let label = |name: &str, value: &str| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let labels = vec![label("client", &self.name), label("fabric", &stats.fabric)];
        let mut metric = proto::Metric::from_label(labels);
        set(&mut metric);
        let mut family = MetricFamily::default();
        family.set_name(name);
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(vec![metric]);
        family
    }

    fn times(&self, stats: &Stats) -> MetricFamily {
        let mut histogram = proto::Histogram::default();
        let mut total = 0;
        let mut buckets = Vec::new();
        for (bucket, count) in stats.get_latency.iter().enumerate() {
            total += count;
            // The one without a bound is the encoder's.
            let Some(bound) = bound_ns(bucket) else { continue };
            let mut of = proto::Bucket::default();
            of.set_cumulative_count(total);
            of.set_upper_bound(bound as f64 / 1e9);
            buckets.push(of);
        }
        histogram.set_sample_count(total);
        histogram.set_sample_sum(stats.get_latency_ns as f64 / 1e9);
        histogram.set_bucket(buckets);
        let set = |metric: &mut proto::Metric| metric.set_histogram(histogram);
        self.family(stats, TIMES.to_owned(), TIMES_HELP, MetricType::HISTOGRAM, set)
    }
}

impl Collector for StatsCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(guard) = self.client.upgrade() else { return Vec::new() };
        let stats = Client { guard }.stats();
        let row = |(name, help, value): &Row| {
            if name.ends_with("_total") {
                let mut counter = proto::Counter::default();
                counter.set_value(value(&stats));
                let set = |metric: &mut proto::Metric| metric.set_counter(counter);
                return self.family(&stats, full(name), help, MetricType::COUNTER, set);
            }
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value(&stats));
            let set = |metric: &mut proto::Metric| metric.set_gauge(gauge);
            self.family(&stats, full(name), help, MetricType::GAUGE, set)
        };
        ROWS.iter().map(row).chain([self.times(&stats)]).collect()
    }
}
