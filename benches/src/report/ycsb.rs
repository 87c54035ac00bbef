//! YCSB's own lines, for scripts that read them.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::figures::kinds;
use crate::run::phase::Measured;
use crate::workload::spec::Interval;

/// The lines of a phase.
#[must_use]
pub fn lines(measured: &Measured, interval: Interval, percentiles: &[f64]) -> String {
    let mut text = String::new();
    let ms = measured.elapsed.as_millis();
    // A String takes every write.
    let _ = writeln!(text, "[OVERALL], RunTime(ms), {ms}");
    let _ = writeln!(text, "[OVERALL], Throughput(ops/sec), {}", measured.throughput());
    for (kind, of_kind) in kinds(&measured.measure) {
        let name = kind.ycsb_name();
        if interval != Interval::Intended || of_kind.intended.is_empty() {
            operation(&mut text, name, of_kind.count, &of_kind.latencies, percentiles);
        }
        if interval != Interval::Op && !of_kind.intended.is_empty() {
            let name = format!("Intended-{name}");
            operation(&mut text, &name, of_kind.count, &of_kind.intended, percentiles);
        }
        let _ = writeln!(text, "[{name}], Return=OK, {}", of_kind.count);
        let others = of_kind.failed - of_kind.absent;
        for (status, count) in [("NOT_FOUND", of_kind.absent), ("ERROR", others)] {
            if count > 0 {
                let _ = writeln!(text, "[{name}], Return={status}, {count}");
            }
        }
        if of_kind.failed > 0 {
            let name = format!("{name}-FAILED");
            operation(&mut text, &name, of_kind.failed, &of_kind.failures, percentiles);
        }
    }
    text
}

fn operation(
    text: &mut String,
    name: &str,
    count: u64,
    latencies: &Histogram<u64>,
    percentiles: &[f64],
) {
    let us = |ns: u64| ns / 1000;
    // A String takes every write.
    let _ = writeln!(text, "[{name}], Operations, {count}");
    let _ = writeln!(text, "[{name}], AverageLatency(us), {}", latencies.mean() / 1e3);
    let least = if latencies.is_empty() { 0 } else { us(latencies.min()) };
    let _ = writeln!(text, "[{name}], MinLatency(us), {least}");
    let _ = writeln!(text, "[{name}], MaxLatency(us), {}", us(latencies.max()));
    for &percentile in percentiles {
        let value = us(latencies.value_at_percentile(percentile));
        let ordinal = ordinal(percentile);
        let _ = writeln!(text, "[{name}], {ordinal}PercentileLatency(us), {value}");
    }
}

/// `1st`, `50th`; but `99.9`: YCSB gives only whole numbers an ending.
fn ordinal(percentile: f64) -> String {
    if percentile.fract() != 0.0 {
        return percentile.to_string();
    }
    let whole = percentile as u64;
    let ending = match (whole % 100, whole % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{whole}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::tests::measured;

    #[test]
    fn lines_are_those_of_ycsb() {
        let text = lines(&measured(), Interval::Op, &[50.0, 99.0, 99.9]);
        let expected = [
            "[OVERALL], RunTime(ms), 2000",
            "[OVERALL], Throughput(ops/sec), 50",
            "[READ], Operations, 100",
            "[READ], MinLatency(us), 1",
            "[READ], 50thPercentileLatency(us), 50",
            "[READ], 99thPercentileLatency(us), 99",
            "[READ], 99.9PercentileLatency(us), 100",
            "[READ], Return=OK, 100",
            "[READ], Return=NOT_FOUND, 2",
            "[READ-FAILED], Operations, 2",
        ];
        for line in expected {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("Intended") && !text.contains("UPDATE"), "{text}");
    }

    #[test]
    fn endings_are_english() {
        let all = [1.0, 2.0, 3.0, 11.0, 12.0, 13.0, 50.0, 91.0, 99.9, 99.99].map(ordinal);
        let expected = ["1st", "2nd", "3rd", "11th", "12th", "13th", "50th", "91st", "99.9"];
        assert_eq!(all[..9], expected);
        assert_eq!(all[9], "99.99");
    }
}
