//! YCSB's own lines, for scripts that read them.

use std::fmt::Write;

use hdrhistogram::Histogram;

use crate::run::measure::{Measure, OfKind};
use crate::run::phase::Measured;
use crate::workload::operations::Kind;
use crate::workload::spec::Interval;

/// The lines of a phase.
#[must_use]
pub fn lines(measured: &Measured, interval: Interval, percentiles: &[f64]) -> String {
    let mut text = String::new();
    let ms = measured.elapsed.as_millis();
    // A String takes every write.
    let _ = writeln!(text, "[OVERALL], RunTime(ms), {ms}");
    let _ = writeln!(text, "[OVERALL], Throughput(ops/sec), {}", measured.throughput());
    for kind in Kind::ALL {
        let of_kind = as_counted(&measured.measure, kind);
        if of_kind.count + of_kind.failed > 0 {
            section(&mut text, kind, &of_kind, interval, percentiles);
        }
    }
    text
}

/// As YCSB counts: the halves of read-modify-writes are reads and updates too.
fn as_counted(measure: &Measure, kind: Kind) -> OfKind {
    let mut all = OfKind::new();
    all.merge(&measure.kinds[kind as usize]);
    let [reads, updates] = &measure.halves;
    match kind {
        Kind::Read => all.merge(reads),
        Kind::Update => all.merge(updates),
        _ => {}
    }
    all
}

fn section(text: &mut String, kind: Kind, of_kind: &OfKind, interval: Interval, tell: &[f64]) {
    let name = kind.ycsb_name();
    let (has_intended, count) = (!of_kind.intended.is_empty(), of_kind.count);
    match interval {
        Interval::Intended if has_intended => {
            operation(text, name, count, &of_kind.intended, tell);
        }
        _ => operation(text, name, count, &of_kind.latencies, tell),
    }
    if interval == Interval::Both && has_intended {
        operation(text, &format!("Intended-{name}"), count, &of_kind.intended, tell);
    }
    let others = of_kind.failed - of_kind.absent;
    for (status, count) in [("OK", count), ("NOT_FOUND", of_kind.absent), ("ERROR", others)] {
        // YCSB tells nothing of a whole read-modify-write's status.
        if count > 0 && kind != Kind::ReadModifyWrite {
            // A String takes every write.
            let _ = writeln!(text, "[{name}], Return={status}, {count}");
        }
    }
    if of_kind.failed > 0 && kind != Kind::ReadModifyWrite {
        let name = format!("{name}-FAILED");
        operation(text, &name, of_kind.failed, &of_kind.failures, tell);
    }
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
    use crate::run::measure::{Status, Times};

    #[test]
    fn lines_are_those_of_ycsb() {
        let text = lines(&measured(), Interval::Op, &[50.0, 99.0, 99.9]);
        let expected = [
            "[OVERALL], RunTime(ms), 2000",
            "[OVERALL], Throughput(ops/sec), 51",
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
    fn intended_latencies_have_their_prefix_only_beside_others() {
        let mut measured = measured();
        let times = Times { intended_ns: Some(0), began_ns: 8_000_000, ended_ns: 9_000_000 };
        measured.measure = Measure::new();
        measured.measure.record(Kind::Read, Status::Ok, Some(times));
        let max_us = |interval, name: &str| {
            let text = lines(&measured, interval, &[]);
            let start = format!("[{name}], MaxLatency(us), ");
            let found = text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok());
            found.unwrap_or(0) / 100
        };
        let both = |interval| (max_us(interval, "READ"), max_us(interval, "Intended-READ"));
        assert_eq!(both(Interval::Op), (10, 0));
        assert_eq!(both(Interval::Intended), (90, 0));
        assert_eq!(both(Interval::Both), (10, 90));
    }

    #[test]
    fn halves_of_read_modify_writes_are_reads_and_updates_too() {
        let mut measured = measured();
        let times = Some(Times { intended_ns: None, began_ns: 0, ended_ns: 90_000 });
        for read in [Status::Ok, Status::Absent] {
            measured.measure.record(Kind::ReadModifyWrite, read, times);
            measured.measure.record_halves(read, read, 30_000, times);
        }
        let text = lines(&measured, Interval::Op, &[]);
        for line in [
            "[READ], Return=OK, 101",
            "[READ], Return=NOT_FOUND, 3",
            "[UPDATE], Operations, 1",
            "[UPDATE], MaxLatency(us), 60",
            "[UPDATE], Return=OK, 1",
            "[READ-MODIFY-WRITE], Operations, 1",
            "[READ-MODIFY-WRITE], MaxLatency(us), 90",
        ] {
            assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
        }
        assert!(!text.contains("WRITE], Return"), "{text}");
    }

    #[test]
    fn endings_are_english() {
        let all = [1.0, 2.0, 3.0, 11.0, 12.0, 13.0, 50.0, 91.0, 99.9, 99.99].map(ordinal);
        let expected = ["1st", "2nd", "3rd", "11th", "12th", "13th", "50th", "91st", "99.9"];
        assert_eq!(all[..9], expected);
        assert_eq!(all[9], "99.99");
    }
}
