//! For people.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::TargetReport;
use super::figures::{Costs, QUANTILES, fewest_and_most, hit_ratio, kinds, quantile_us, told};

/// What came of one target.
#[must_use]
pub fn target(report: &TargetReport) -> String {
    let measured = &report.measured;
    let description = &report.description;
    let mut text = report.name.clone();
    for part in [&description.version, &description.fabric, &description.transport] {
        if !["", "none"].contains(&part.as_str()) && !text.contains(part.as_str()) {
            // A String takes every write.
            let _ = write!(text, ", {part}");
        }
    }
    let _ = writeln!(text);
    if let Some(failure) = &report.failure {
        let _ = writeln!(text, "  failed: {failure}");
        if !report.has_figures() {
            return text;
        }
        let _ = writeln!(text, "  until then:");
    }
    if let Some(kind) = report.unsupported() {
        let _ = writeln!(text, "  unsupported: it has no {}", kind.ycsb_name());
        return text;
    }
    let _ = writeln!(
        text,
        "  {:.0} operations/s: {} in {:.2} s, {} failed",
        measured.throughput(),
        measured.measure.operations(),
        measured.elapsed.as_secs_f64(),
        report.failures(),
    );
    let (absent, ratio) = (measured.measure.absent(), hit_ratio(&measured.measure));
    if let Some(ratio) = ratio.filter(|_| absent > 0) {
        let found = ratio * 100.0;
        let _ =
            writeln!(text, "  {absent} of them found no record; hit ratio of reads {found:.2} %");
    }
    for (kind, of_kind) in kinds(&measured.measure) {
        let _ = write!(text, "  {:<17} {:>10}  ", kind.ycsb_name(), of_kind.count);
        latencies(&mut text, told(of_kind));
        if !of_kind.intended.is_empty() {
            let _ = write!(text, "  {:<17} {:>10}  ", "  from its sending", "");
            latencies(&mut text, &of_kind.latencies);
        }
    }
    costs(&mut text, report);
    verdicts(&mut text, report);
    for note in &description.notes {
        let _ = writeln!(text, "  {note}");
    }
    if let Some(failure) = &measured.measure.first_failure {
        let _ = writeln!(text, "  first failure: {failure}");
    }
    text
}

fn latencies(text: &mut String, histogram: &Histogram<u64>) {
    for (name, quantile) in QUANTILES {
        let name = name.trim_end_matches("_us").replace('_', ".");
        let _ = write!(text, "{name} {:.2}  ", quantile_us(histogram, quantile));
    }
    let (mean, max) = (histogram.mean() / 1e3, histogram.max() as f64 / 1e3);
    let _ = writeln!(text, "max {max:.0}  mean {mean:.2} us");
}

fn costs(text: &mut String, report: &TargetReport) {
    let costs = Costs::of(&report.measured);
    let mut parts = vec![];
    let mut part = |value: Option<f64>, digits: usize, what: &str| {
        parts.extend(value.map(|value| format!("{value:.digits$} {what}")));
    };
    part(costs.round_trips, 2, "round trips");
    part(costs.bytes, 0, "bytes");
    part(costs.one_sided_reads, 2, "one-sided READs");
    part(costs.read_bytes, 0, "bytes of them");
    part(costs.rpcs, 3, "RPCs");
    part(Some(costs.client_cpu_us), 2, "us of this process");
    let _ = writeln!(text, "  an operation: {}", parts.join(", "));
    if let Some(share) = costs.one_sided_share {
        let cached = costs.cache_hit_share.unwrap_or(0.0) * 100.0;
        let retries = costs.retries.unwrap_or(0);
        let _ = writeln!(
            text,
            "  GETs without the server: {:.3} %, bucket cached: {cached:.3} %, looked again: \
             {retries}",
            share * 100.0
        );
    }
    updates(text, report, &costs);
    if let (Some(usage), Some(cpu)) = (report.measured.usage, costs.server_cpu_s_per_million) {
        let mib = usage.resident_bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(
            text,
            "  the server: {:.2} CPU seconds, {cpu:.3} for a million operations; {mib:.1} MiB \
             resident",
            usage.cpu_seconds
        );
    }
}

fn updates(text: &mut String, report: &TargetReport, costs: &Costs) {
    if let (Some(share), Some(round_trips)) = (costs.one_sided_puts, costs.update_round_trips) {
        let lost = costs.updates_lost.unwrap_or(0);
        // A String takes every write.
        let _ = writeln!(
            text,
            "  PUTs without the server: {:.3} % of all operations, {round_trips:.3} round trips \
             each, others were faster: {lost}",
            share * 100.0
        );
    }
    if let Some((fewest, most)) = fewest_and_most(&report.measured) {
        let ratio = fewest as f64 / most.max(1) as f64;
        let each = report.measured.measure.fewest_in_a_second;
        let each = each.map_or(String::new(), |each| format!(", {each} or more in each second"));
        let _ = writeln!(
            text,
            "  a thread did {fewest} to {most} operations: fewest to most {ratio:.2}{each}"
        );
    }
}

fn verdicts(text: &mut String, report: &TargetReport) {
    if !report.verified {
        return;
    }
    let found = &report.measured.measure.verdicts;
    let _ = writeln!(
        text,
        "  verified: {} values checked, {} wrong, {} stale, {} records lost, {} scans out of order",
        found.checked, found.wrong, found.stale, found.lost, found.disordered
    );
    if found.wrong > 0 && report.fill.is_none() {
        let _ = writeln!(text, "  (records stored without --verify have nothing to check: wrong)");
    }
}
