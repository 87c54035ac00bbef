//! The table.

use crate::common::measure::Figure;

/// Lines of the markdown tables.
#[derive(Default)]
pub(crate) struct Report {
    ratios: Vec<String>,
    figures: Vec<String>,
    not_measured: Vec<String>,
    missed: Vec<String>,
}

impl Report {
    /// `ours` of `theirs` must be at most `limit`.
    pub(crate) fn at_most(
        &mut self,
        what: &str,
        ours: Figure,
        peer: &str,
        theirs: Figure,
        limit: f64,
    ) {
        let ratio = ours.median_ns / theirs.median_ns;
        let target = format!("at most {limit:.1}x");
        self.ratio(what, ours, peer, theirs, &format!("{ratio:.2}x"), &target, ratio <= limit);
    }

    /// Ours must be at least `limit` times faster than theirs.
    pub(crate) fn faster(
        &mut self,
        what: &str,
        ours: Figure,
        peer: &str,
        theirs: Figure,
        limit: f64,
    ) {
        let ratio = theirs.median_ns / ours.median_ns;
        let (shown, target) = (format!("{ratio:.1}x faster"), format!("{limit:.0}x faster"));
        self.ratio(what, ours, peer, theirs, &shown, &target, ratio >= limit);
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of one line")]
    fn ratio(
        &mut self,
        what: &str,
        ours: Figure,
        peer: &str,
        theirs: Figure,
        shown: &str,
        target: &str,
        met: bool,
    ) {
        let (ours, theirs) = (ns(ours.median_ns), ns(theirs.median_ns));
        let verdict = self.verdict(what, met);
        self.ratios.push(format!(
            "| {what} | {ours} | {peer} | {theirs} | {shown} | {target} | {verdict} |"
        ));
    }

    /// A comparison without a target.
    pub(crate) fn beside(&mut self, what: &str, ours: Figure, peer: &str, theirs: Figure) {
        let ratio = ours.median_ns / theirs.median_ns;
        let (ours, theirs) = (ns(ours.median_ns), ns(theirs.median_ns));
        self.ratios.push(format!("| {what} | {ours} | {peer} | {theirs} | {ratio:.2}x | | |"));
    }

    /// A figure with a target of its own.
    pub(crate) fn figure(&mut self, what: &str, value: &str, target: &str, met: bool) {
        let verdict = self.verdict(what, met);
        self.figures.push(format!("| {what} | {value} | {target} | {verdict} |"));
    }

    /// What could not be measured, and why.
    pub(crate) fn not_measured(&mut self, what: &str, why: &str) {
        eprintln!("not measured: {what}: {why}");
        self.not_measured.push(format!("- Not measured: {what}: {why}"));
    }

    fn verdict(&mut self, what: &str, met: bool) -> &'static str {
        if met {
            return "yes";
        }
        self.missed.push(what.to_owned());
        "**no**"
    }

    /// Prints it all to stdout.
    pub(crate) fn print(&self, machine: &str) {
        println!("{machine}\n");
        println!("| onesided | time | beside | time | ratio | target | met |");
        println!("|---|---:|---|---:|---:|---:|---|");
        self.ratios.iter().for_each(|line| println!("{line}"));
        println!("\n| figure | measured | target | met |\n|---|---:|---:|---|");
        self.figures.iter().for_each(|line| println!("{line}"));
        if !self.not_measured.is_empty() {
            println!();
            self.not_measured.iter().for_each(|line| println!("{line}"));
        }
        for what in &self.missed {
            eprintln!("target missed: {what}");
        }
    }
}

/// A time for people.
pub(crate) fn ns(ns: f64) -> String {
    if ns < 10_000.0 { format!("{ns:.0} ns") } else { format!("{:.1} us", ns / 1e3) }
}
