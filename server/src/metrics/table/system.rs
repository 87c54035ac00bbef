//! The program and its process.

use super::{Metric, counter, gauge};
use crate::metrics::render::seconds;

pub(super) const METRICS: &[Metric] = &[
    gauge(
        "onesided_build_info",
        "Always 1; its labels say which build this is.",
        &["version", "wire_version", "layout_version"],
        |_, rows| {
            use onesided_protocol::limits::{LAYOUT_VERSION, WIRE_VERSION_MAX};
            let (wire, layout) = (WIRE_VERSION_MAX.to_string(), LAYOUT_VERSION.to_string());
            rows.put(&[env!("CARGO_PKG_VERSION"), &wire, &layout], 1.0);
        },
    ),
    gauge("onesided_uptime_seconds", "Time since the server started.", &[], |s, rows| {
        rows.one(s.uptime_ms as f64 / 1e3);
    }),
    gauge(
        "onesided_start_time_seconds",
        "Unix time at which the server started: another one after a restart.",
        &[],
        |s, rows| rows.one(s.start_unix_s),
    ),
    counter(
        "onesided_thread_cpu_seconds_total",
        "CPU time by what threads do: poll_* serve requests of one fabric, control and \
         control_blocking sessions and tables, cleaner moves entries together, admin answers this. \
         Of a program that embeds servers their threads alone, of all of them together.",
        &["role"],
        |s, rows| s.process.roles.iter().for_each(|(role, ns)| rows.put(&[role], seconds(*ns))),
    ),
    counter(
        "process_cpu_seconds_total",
        "CPU time of the process, in user and in system mode. Metrics named process are not there \
         where a program embeds the server.",
        &[],
        |s, rows| s.process.cpu_s.into_iter().for_each(|value| rows.one(value)),
    ),
    gauge("process_resident_memory_bytes", "Resident memory.", &[], |s, rows| {
        s.process.resident_bytes.into_iter().for_each(|value| rows.count(value));
    }),
    gauge("process_virtual_memory_bytes", "Address space in use.", &[], |s, rows| {
        s.process.virtual_bytes.into_iter().for_each(|value| rows.count(value));
    }),
    gauge("process_start_time_seconds", "Unix time at which the process began.", &[], |s, rows| {
        s.process.start_unix_s.into_iter().for_each(|value| rows.one(value));
    }),
    gauge("process_threads", "Threads of the process.", &[], |s, rows| {
        s.process.threads.into_iter().for_each(|value| rows.count(value));
    }),
    gauge("process_open_fds", "Open file descriptors; sockets are some.", &[], |s, rows| {
        s.process.open_fds.into_iter().for_each(|value| rows.count(value));
    }),
    gauge("process_max_fds", "Most file descriptors that it may have open.", &[], |s, rows| {
        s.process.max_fds.into_iter().for_each(|value| rows.count(value));
    }),
];
