//! What goes on, while it goes on: on stderr, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::run::phase::Plan;
use crate::run::series::Series;

/// One line for one phase; it goes when it is dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    by_time: bool,
}

impl Progress {
    /// Of a phase that ends by its plan.
    pub(super) fn new(title: &str, plan: &Plan) -> Self {
        let total = match (plan.operations, plan.duration) {
            (Some(operations), _) => operations,
            (None, Some(duration)) => duration.as_millis() as u64,
            (None, None) => 0,
        };
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:24} {percent:>3} %  {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        Self { bar, by_time: plan.operations.is_none() }
    }

    /// Shows where it is.
    pub(super) fn look(&self, elapsed: Duration, series: &Series) {
        if self.bar.is_hidden() {
            return;
        }
        let seconds = series.seconds();
        let done: u64 = seconds.iter().map(|second| second.operations).sum();
        self.bar.set_position(if self.by_time { elapsed.as_millis() as u64 } else { done });
        if let Some(last) = seconds.last() {
            let us = |ns: u64| ns as f64 / 1e3;
            self.bar.set_message(format!(
                "{} operations/s, p50 {:.1} us, p99 {:.1} us",
                last.operations,
                us(last.p50_ns),
                us(last.p99_ns)
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
