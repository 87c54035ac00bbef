//! Everything, for programs; and what is needed to repeat it.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::figures::{Costs, QUANTILES, fewest_and_most, hit_ratio, kinds, quantile_us, told};
use super::{Report, TargetReport, host};
use crate::run::measure::OfKind;

/// Of all targets under `targets`. If there is only one, its keys are at the top too.
#[must_use]
pub fn report(report: &Report) -> Value {
    let targets: Vec<Value> = report.targets.iter().map(target).collect();
    let plan = &report.plan;
    let properties: Map<String, Value> =
        report.properties.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect();
    let mut all = json!({
        "program": "onesided-bench",
        "version": env!("CARGO_PKG_VERSION"),
        "commit": host::commit(),
        "unix_time_s": std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        "host": host::host(),
        "command": report.command,
        "arguments": report.arguments,
        "workload": report.workload,
        "properties": properties,
        "threads": plan.threads,
        "clients": plan.clients,
        "pipeline": plan.pipeline,
        "rate_ops_per_s": plan.rate,
        "seed": report.seed,
        "notes": report.notes,
    });
    if let (Value::Object(all), [Value::Object(only)]) = (&mut all, &targets[..]) {
        for (key, value) in only {
            all.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    all["targets"] = Value::Array(targets);
    all
}

fn target(report: &TargetReport) -> Value {
    if let Some(failure) = report.failure.as_ref().filter(|_| !report.has_figures()) {
        return json!({ "target": report.url, "name": report.name, "error": failure });
    }
    let measured = &report.measured;
    let measure = &measured.measure;
    let costs = Costs::of(measured);
    let operations: Map<String, Value> = kinds(measure)
        .map(|(kind, of_kind)| (kind.json_name().to_owned(), operation(of_kind)))
        .collect();
    let (description, verdicts) = (&report.description, &measure.verdicts);
    let mut all = json!({
        "target": report.url,
        "name": report.name,
        "error": report.failure,
        "store_version": description.version,
        "fabric": description.fabric,
        "transport": description.transport,
        "target_notes": description.notes,
        "unsupported": report.unsupported().map(|kind| kind.json_name()),
        "fill_seconds": report.fill.map(|fill| fill.as_secs_f64()),
        "seconds": measured.elapsed.as_secs_f64(),
        "throughput_ops_per_s": measured.throughput(),
        "operations": operations,
        "hit_ratio": hit_ratio(measure),
        "first_failure": measure.first_failure,
        "timed_one_batch_of": measure.timed_one_of,
        "server_cpu_seconds": measured.usage.map(|usage| usage.cpu_seconds),
        "server_cpu_seconds_per_million_ops": costs.server_cpu_s_per_million,
        "resident_bytes": measured.usage.map(|usage| usage.resident_bytes),
        "client_cpu_us_per_op": costs.client_cpu_us,
        "round_trips_per_op": costs.round_trips,
        "bytes_per_op": costs.bytes,
        "read_bytes_per_op": costs.read_bytes,
        "one_sided_reads_per_op": costs.one_sided_reads,
        "one_sided_share": costs.one_sided_share,
        "cache_hit_share": costs.cache_hit_share,
        "retries": costs.retries,
        "rpcs_per_op": costs.rpcs,
        "one_sided_puts_per_op": costs.one_sided_puts,
        "round_trips_per_one_sided_put": costs.update_round_trips,
        "updates_lost": costs.updates_lost,
        "operations_by_thread": fewest_and_most(measured).map(|(fewest, most)| json!({
            "fewest": fewest,
            "most": most,
            "fewest_in_a_second": measure.fewest_in_a_second,
        })),
        "per_second": measured.seconds.iter().map(|second| json!({
            "seconds": second.seconds,
            "operations": second.operations,
            "p50_us": second.p50_ns as f64 / 1e3,
            "p99_us": second.p99_ns as f64 / 1e3,
            "max_us": second.max_ns as f64 / 1e3,
        })).collect::<Vec<_>>(),
    });
    if report.verified {
        all["verify"] = json!({
            "clean": verdicts.is_clean(),
            "checked": verdicts.checked,
            "wrong": verdicts.wrong,
            "stale": verdicts.stale,
            "lost": verdicts.lost,
            "disordered": verdicts.disordered,
        });
    }
    all
}

fn operation(of_kind: &OfKind) -> Value {
    let mut all = latencies(told(of_kind));
    all.insert("count".to_owned(), of_kind.count.into());
    all.insert("failed".to_owned(), of_kind.failed.into());
    all.insert("absent".to_owned(), of_kind.absent.into());
    if !of_kind.intended.is_empty() {
        // The others are from the intended start.
        all.insert("from_send".to_owned(), latencies(&of_kind.latencies).into());
    }
    Value::Object(all)
}

fn latencies(histogram: &Histogram<u64>) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("mean_us".to_owned(), (histogram.mean() / 1e3).into());
    for (name, quantile) in QUANTILES {
        all.insert(name.to_owned(), quantile_us(histogram, quantile).into());
    }
    all.insert("max_us".to_owned(), (histogram.max() as f64 / 1e3).into());
    all
}
