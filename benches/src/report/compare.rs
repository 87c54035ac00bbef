//! All targets side by side.

use super::TargetReport;
use super::figures::{Costs, all, quantile_us};

const HEAD: [&str; 9] = [
    "target",
    "operations/s",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "max us",
    "server CPU s/million",
    "round trips/op",
    "resident MiB",
];

/// A table in Markdown; latencies are of all operations together.
#[must_use]
pub fn table(reports: &[TargetReport]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(reports.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, &width)| match column {
        0 => format!("|{}", "-".repeat(width + 2)),
        _ => format!("|{}:", "-".repeat(width + 1)),
    });
    let rule = format!("{}|\n", rule.collect::<String>());
    let mut text = line(&rows[0]) + &rule;
    rows[1..].iter().for_each(|row| text.push_str(&line(row)));
    text
}

fn row(report: &TargetReport) -> [String; 9] {
    let mut row = [const { String::new() }; 9];
    row[0].clone_from(&report.name);
    if report.failure.is_some() {
        row[1] = "failed".to_owned();
        return row;
    }
    if report.unsupported().is_some() {
        row[1] = "unsupported".to_owned();
        return row;
    }
    let measured = &report.measured;
    let (latencies, costs) = (all(&measured.measure), Costs::of(measured));
    row[1] = format!("{:.0}{}", measured.throughput(), reservations(report));
    for (cell, quantile) in row[2..5].iter_mut().zip([0.5, 0.99, 0.999]) {
        *cell = format!("{:.2}", quantile_us(&latencies, quantile));
    }
    row[5] = format!("{:.0}", latencies.max() as f64 / 1e3);
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    row[6] = shown(costs.server_cpu_s_per_million, 3);
    row[7] = shown(costs.round_trips, 2);
    let mib = |usage: crate::target::Usage| usage.resident_bytes as f64 / f64::from(1 << 20);
    row[8] = shown(measured.usage.map(mib), 1);
    row
}

/// What operations per second do not tell: those that failed are not among them, and those that
/// found no record are, which is less work.
fn reservations(report: &TargetReport) -> String {
    let measure = &report.measured.measure;
    let all = measure.operations().max(1) as f64;
    let part = |count: u64, what: &str| {
        let percent = (count as f64 * 100.0 / all).max(0.01);
        if count > 0 { format!(", {percent:.2} % {what}") } else { String::new() }
    };
    part(report.failures(), "failed") + &part(measure.absent(), "found no record")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::measure::Status;
    use crate::workload::operations::Kind;

    #[test]
    fn a_row_tells_of_operations_that_are_not_what_others_are() {
        let measured = crate::report::figures::tests::measured();
        let mut report = TargetReport::failed("map://", String::new());
        report = TargetReport { failure: None, measured, ..report };
        assert_eq!(row(&report)[1], "51, 1.96 % found no record");
        report.measured.measure.record(Kind::Read, Status::Failed, None);
        assert_eq!(row(&report)[1], "51, 0.97 % failed, 1.94 % found no record");
    }
}
