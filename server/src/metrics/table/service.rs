//! Requests, connections, sessions, fabrics.

use super::{Metric, counter, gauge, histogram};
use crate::metrics::rpc::{CLASSES, VERBS};

pub(super) const METRICS: &[Metric] = &[
    counter(
        "onesided_rpcs_total",
        "Operations that came by RPC; those of a batch, and the batch. Result miss: there was \
         nothing; unmet: the condition was not met; failed: all else that is not ok.",
        &["operation", "result"],
        |s, rows| {
            for (verb, results) in VERBS.iter().zip(&s.rpc.results) {
                for (class, count) in CLASSES.iter().zip(results) {
                    rows.put(&[verb, class], *count as f64);
                }
            }
        },
    ),
    histogram(
        "onesided_rpc_duration_seconds",
        "Time that a poller took to serve a request, from when it was found to when its answer had \
         gone; without the network, and without fetching large values. A batch is one request.",
        &["operation"],
        |s, rows| {
            let all = VERBS.iter().zip(&s.rpc.times);
            all.for_each(|(verb, times)| rows.latency(&[verb], times));
        },
    ),
    counter(
        "onesided_rpcs_slow_total",
        "Requests served that took longer than slow_request_ms.",
        &[],
        |s, rows| {
            rows.count(s.rpc.slow);
        },
    ),
    counter(
        "onesided_rpcs_malformed_total",
        "Requests that could not be decoded.",
        &[],
        |s, rows| {
            rows.count(s.stats.rpc_malformed.get());
        },
    ),
    counter(
        "onesided_rpc_retries_answered_total",
        "Requests that a client sent again and that were answered from memory, not applied again.",
        &[],
        |s, rows| rows.count(s.stats.rpc_retries.get()),
    ),
    gauge(
        "onesided_value_fetches_pending",
        "Requests whose large values are being READ from clients' memory, or wait for that.",
        &[],
        |s, rows| rows.count(s.stats.fetching.get()),
    ),
    counter(
        "onesided_values_fetched_total",
        "Large values READ from clients' memory.",
        &[],
        |s, rows| {
            rows.count(s.stats.values_fetched.get());
        },
    ),
    counter(
        "onesided_values_fetched_bytes_total",
        "Bytes of large values READ from clients' memory.",
        &[],
        |s, rows| {
            rows.count(s.stats.values_fetched_bytes.get());
        },
    ),
    gauge("onesided_sessions", "Sessions: one for each client process.", &[], |s, rows| {
        rows.count(s.sessions as u64);
    }),
    gauge("onesided_sessions_limit", "Most sessions at once (max_sessions).", &[], |s, rows| {
        rows.count(s.sessions_limit as u64);
    }),
    counter("onesided_sessions_opened_total", "Sessions opened.", &[], |s, rows| {
        rows.count(s.stats.sessions_opened.get());
    }),
    counter(
        "onesided_sessions_resumed_total",
        "Sessions that a client went on with over a new connection.",
        &[],
        |s, rows| rows.count(s.stats.sessions_resumed.get()),
    ),
    counter(
        "onesided_sessions_ended_total",
        "Sessions ended. Reason goodbye: by their client; lease: no heartbeat in time; displaced: \
         the client was gone and another one needed the place; fenced: it did not acknowledge \
         retired memory; stop: the server stops.",
        &["reason"],
        |s, rows| {
            let all = s.stats.sessions_ended.0.iter();
            all.for_each(|(reason, count)| rows.put(&[reason], count.get() as f64));
        },
    ),
    gauge(
        "onesided_session_credits",
        "Requests that one session may have outstanding.",
        &[],
        |s, rows| {
            rows.count(s.credits.into());
        },
    ),
    gauge("onesided_endpoints", "Data connections, by fabric.", &["fabric"], |s, rows| {
        for (fabric, endpoints) in s.stats.endpoints_by_fabric() {
            rows.put(&[fabric], endpoints.get() as f64);
        }
    }),
    counter(
        "onesided_endpoints_closed_total",
        "Data connections that the server closed, since the client broke the rules or took no \
         answers; the log says why.",
        &[],
        |s, rows| rows.count(s.stats.endpoints_closed.get()),
    ),
    gauge("onesided_control_connections", "Connections to the control port.", &[], |s, rows| {
        rows.count(s.stats.connections.get());
    }),
    counter(
        "onesided_connections_accepted_total",
        "Connections accepted at the control port.",
        &[],
        |s, rows| {
            rows.count(s.stats.accepted.get());
        },
    ),
    counter(
        "onesided_connections_refused_total",
        "Connections refused. Reason full: too many at once; hello: versions, token or sense; \
         ticket: unknown, used or expired.",
        &["reason"],
        |s, rows| {
            rows.put(&["full"], s.stats.refused_full.get() as f64);
            rows.put(&["hello"], s.stats.refused_hellos.get() as f64);
            rows.put(&["ticket"], s.stats.refused_tickets.get() as f64);
        },
    ),
    counter(
        "onesided_control_malformed_total",
        "Control messages that could not be decoded.",
        &[],
        |s, rows| {
            rows.count(s.stats.malformed_control.get());
        },
    ),
    gauge(
        "onesided_fabric_offered",
        "1 if clients can use the fabric now, else 0.",
        &["fabric"],
        |s, rows| {
            let all = s.fabrics.iter();
            all.for_each(|(fabric, offered)| rows.put(&[fabric], f64::from(u8::from(*offered))));
        },
    ),
    gauge("onesided_tenants", "Tenants, the default one included.", &[], |s, rows| {
        rows.count(s.tenants as u64);
    }),
    gauge(
        "onesided_verbs_queue_pairs",
        "Queue pairs: data connections over RDMA. Metrics of verbs are there while a device is.",
        &[],
        |s, rows| s.verbs("queue_pairs", rows),
    ),
    gauge("onesided_verbs_queue_pairs_limit", "Most queue pairs at once.", &[], |s, rows| {
        s.verbs("queue_pairs_limit", rows);
    }),
    counter(
        "onesided_verbs_connects_total",
        "Connection requests over RDMA. Result unconfirmed: let in, and never heard of again.",
        &["result"],
        |s, rows| {
            for result in ["accepted", "refused", "unconfirmed"] {
                s.verbs_labelled(&format!("connects_{result}"), &[result], rows);
            }
        },
    ),
    counter(
        "onesided_verbs_queue_pair_errors_total",
        "Queue pairs that the device put into error. Reason access: the peer reached for memory \
         that is not its own, where the device says so; other: all else.",
        &["reason"],
        |s, rows| {
            s.verbs_labelled("access_errors", &["access"], rows);
            s.verbs_labelled("queue_pair_errors", &["other"], rows);
        },
    ),
    counter(
        "onesided_verbs_regions_refused_total",
        "Regions that a client asked for and was not given: not its own, given back meanwhile, or \
         the server's log says why.",
        &[],
        |s, rows| {
            s.verbs("regions_refused", rows);
        },
    ),
    gauge(
        "onesided_verbs_receive_buffers",
        "Receive buffers, shared by all clients of a tenant.",
        &[],
        |s, rows| {
            s.verbs("receive_buffers", rows);
        },
    ),
    gauge(
        "onesided_verbs_receive_buffers_posted",
        "Receive buffers that a request may come into now.",
        &[],
        |s, rows| {
            s.verbs("receive_buffers_posted", rows);
        },
    ),
    counter(
        "onesided_verbs_receive_limit_events_total",
        "Times that the device said that receive buffers run low: sessions get fewer credits then.",
        &[],
        |s, rows| s.verbs("receive_limit_events", rows),
    ),
    gauge(
        "onesided_verbs_credits_granted",
        "Requests that each client over RDMA may have outstanding now.",
        &[],
        |s, rows| {
            s.verbs("credits_granted", rows);
        },
    ),
    gauge(
        "onesided_verbs_sends_in_flight",
        "Work requests posted and not completed.",
        &[],
        |s, rows| {
            s.verbs("sends_in_flight", rows);
        },
    ),
    gauge("onesided_verbs_sends_limit", "Work requests that may be.", &[], |s, rows| {
        s.verbs("sends_limit", rows);
    }),
    gauge(
        "onesided_verbs_registered_bytes",
        "Memory that is registered with devices.",
        &[],
        |s, rows| {
            s.verbs("registered_bytes", rows);
        },
    ),
    counter("onesided_verbs_registrations_total", "Memory registrations made.", &[], |s, rows| {
        s.verbs("registrations_made", rows);
    }),
    gauge(
        "onesided_verbs_buffer_bytes",
        "Memory of the registration pool: answers and fetched values.",
        &[],
        |s, rows| {
            s.verbs("buffer_bytes", rows);
        },
    ),
    counter(
        "onesided_verbs_buffer_mappings_total",
        "Times that the registration pool grew.",
        &[],
        |s, rows| {
            s.verbs("buffer_mappings_made", rows);
        },
    ),
    counter(
        "onesided_verbs_buffers_total",
        "Buffers taken from the registration pool: each that it did not grow for was a hit.",
        &[],
        |s, rows| {
            s.verbs("buffers_taken", rows);
        },
    ),
    counter(
        "onesided_verbs_port_errors_total",
        "What the device counts of its whole port, other programs included, where it does.",
        &["kind"],
        |s, rows| {
            let kinds = ["receiver_not_ready_sent", "receiver_not_ready_received", "access_errors"];
            for kind in kinds.into_iter().chain(["retries_exceeded"]) {
                s.verbs_labelled(&format!("port_{kind}"), &[kind], rows);
            }
        },
    ),
    gauge("onesided_admin_connections", "Connections to the admin port.", &[], |s, rows| {
        rows.count(s.stats.admin_connections.get());
    }),
    counter(
        "onesided_admin_connections_displaced_total",
        "Connections to the admin port that were closed since others came: there is room for 64.",
        &[],
        |s, rows| rows.count(s.stats.admin_displaced.get()),
    ),
    counter(
        "onesided_admin_requests_refused_total",
        "Requests to the admin port that were refused. Reason token: without it, or with another; \
         host: under a name that is not this host's, as a page that pretends to be it would.",
        &["reason"],
        |s, rows| {
            rows.put(&["token"], s.stats.admin_without_token.get() as f64);
            rows.put(&["host"], s.stats.admin_of_foreign_name.get() as f64);
        },
    ),
];
