//! What came of it.

use std::fmt::Write;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use onesided::blocking::Client;
use serde_json::{Value as Json, json};

use crate::args::Args;
use crate::load::Measured;

/// Counters of both sides at one time.
pub(crate) struct Counters {
    gets: u64,
    one_sided: u64,
    reads: u64,
    read_bytes: u64,
    retries: u64,
    /// CPU time of the server in ms, user and system.
    server_cpu_ms: u64,
}

impl Counters {
    /// As they are now.
    pub(crate) fn of(client: &Client) -> Result<Self> {
        let stats = client.stats();
        let server = client.server_stats()?;
        let value_of = |wanted: &str| {
            let found = server.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| *value).with_context(|| format!("the server has no {wanted}"))
        };
        let server_cpu_ms = value_of("process_cpu_user_ms")? + value_of("process_cpu_system_ms")?;
        Ok(Self {
            gets: stats.gets,
            one_sided: stats.one_sided_hits + stats.one_sided_misses,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            retries: stats.retries,
            server_cpu_ms,
        })
    }
}

/// A run, to be told.
pub(crate) struct Report<'a> {
    pub(crate) args: &'a Args,
    pub(crate) measured: &'a Measured,
    pub(crate) before: Counters,
    pub(crate) after: Counters,
    pub(crate) client: &'a Client,
}

impl Report<'_> {
    fn server_cpu_cores(&self) -> f64 {
        let ms = self.after.server_cpu_ms.saturating_sub(self.before.server_cpu_ms);
        ms as f64 / 1e3 / self.measured.elapsed.as_secs_f64()
    }

    /// Of the GETs, the part that the server's CPU had nothing to do with.
    fn one_sided_share(&self) -> f64 {
        let gets = self.after.gets - self.before.gets;
        (self.after.one_sided - self.before.one_sided) as f64 / gets.max(1) as f64
    }

    /// READs of a GET, and bytes of a READ.
    fn reads(&self) -> (f64, f64) {
        let reads = (self.after.reads - self.before.reads) as f64;
        let gets = (self.after.gets - self.before.gets).max(1) as f64;
        (reads / gets, (self.after.read_bytes - self.before.read_bytes) as f64 / reads.max(1.0))
    }

    fn per_s(&self, histogram: &Histogram<u64>) -> f64 {
        histogram.len() as f64 / self.measured.elapsed.as_secs_f64()
    }

    pub(crate) fn json(&self) -> Json {
        let verb = |histogram: &Histogram<u64>| {
            json!({
                "ops": histogram.len(),
                "ops_per_s": self.per_s(histogram),
                "p50_us": quantile_us(histogram, 0.5),
                "p99_us": quantile_us(histogram, 0.99),
                "p999_us": quantile_us(histogram, 0.999),
                "max_us": histogram.max() as f64 / 1e3,
            })
        };
        json!({
            "fabric": self.client.fabric().to_string(),
            "fallback": self.client.stats().fallback,
            "threads": self.args.threads,
            "keys": self.args.keys,
            "value_bytes": self.args.value_bytes,
            "seconds": self.measured.elapsed.as_secs_f64(),
            "get": verb(&self.measured.gets),
            "put": verb(&self.measured.puts),
            "absent": self.measured.absent,
            "one_sided_share": self.one_sided_share(),
            "reads_per_get": self.reads().0,
            "bytes_per_read": self.reads().1,
            "retries": self.after.retries - self.before.retries,
            "server_cpu_cores": self.server_cpu_cores(),
        })
    }

    pub(crate) fn text(&self) -> String {
        let (args, measured) = (self.args, self.measured);
        let mut text = format!(
            "{} over {}: {} threads, {} keys, {}-byte values, {:.1} s\n",
            args.server,
            self.client.fabric(),
            args.threads,
            args.keys,
            args.value_bytes,
            measured.elapsed.as_secs_f64(),
        );
        for (verb, histogram) in [("GET", &measured.gets), ("PUT", &measured.puts)] {
            if histogram.is_empty() {
                continue;
            }
            let quantile = |q| quantile_us(histogram, q);
            // A String takes every write.
            let _ = writeln!(
                text,
                "{verb}: {:.0}/s   p50 {:.2} us   p99 {:.2} us   p99.9 {:.2} us   max {:.0} us",
                self.per_s(histogram),
                quantile(0.5),
                quantile(0.99),
                quantile(0.999),
                histogram.max() as f64 / 1e3,
            );
        }
        let _ = writeln!(
            text,
            "GETs without the server: {:.3} %   absent: {}   looked again: {}",
            self.one_sided_share() * 100.0,
            measured.absent,
            self.after.retries - self.before.retries,
        );
        let (reads, bytes) = self.reads();
        let _ = writeln!(text, "READs of a GET: {reads:.2}, of {bytes:.0} bytes each");
        let _ = writeln!(text, "server CPU: {:.3} cores", self.server_cpu_cores());
        text
    }
}

fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}
