//! What can be asked for.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use onesided_fabric::Rights;
use onesided_protocol::latency::bound_ns;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::page::page;
use crate::engine::CellUse;
use crate::metrics::render::{self, seconds};
use crate::metrics::rpc::{CLASSES, Latency, VERBS};
use crate::metrics::snapshot::Snapshot;
use crate::server::Core;

/// Entries of a page unless the request says otherwise, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// Everything.
pub(super) fn routes(core: &Arc<Core>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/api/v1/status", get(status))
        .route("/api/v1/sessions", get(sessions))
        .route("/api/v1/tables", get(tables))
        .route("/api/v1/regions", get(regions))
        .route("/", get(page))
        .fallback(unknown)
        .method_not_allowed_fallback(not_asked)
        .with_state(Arc::clone(core))
}

async fn unknown() -> Response {
    let text = "nothing here; there are /, /metrics, /healthz, /readyz, /api/v1/status, \
                /api/v1/sessions, /api/v1/tables and /api/v1/regions\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn not_asked() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed here\n")
        .into_response()
}

async fn metrics(State(core): State<Arc<Core>>) -> Response {
    let text = render::text(&Snapshot::take(&core));
    ([(header::CONTENT_TYPE, render::media_type())], text).into_response()
}

/// Whether clients can connect.
async fn ready(State(core): State<Arc<Core>>) -> Response {
    match core.is_ready() {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn status(State(core): State<Arc<Core>>) -> Json<Value> {
    let s = Snapshot::take(&core);
    let (memory, process) = (&s.memory, &s.process);
    let reported = core.metrics.reported.total();
    let fabrics: Map<_, _> =
        s.fabrics.iter().map(|(name, on)| ((*name).into(), (*on).into())).collect();
    let endpoints: Map<_, _> = s
        .stats
        .endpoints_by_fabric()
        .into_iter()
        .map(|(name, count)| (name.into(), count.get().into()))
        .collect();
    let cpu: Map<_, _> =
        process.roles.iter().map(|(role, ns)| ((*role).into(), seconds(*ns).into())).collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": s.uptime_ms as f64 / 1e3,
        "ready": core.is_ready().is_ok(),
        "tenants": s.tenants,
        "tables": s.tables_count,
        "sessions": { "now": s.sessions, "limit": s.sessions_limit },
        "fabrics": fabrics,
        "endpoints": endpoints,
        "rpcs": rpcs(&s),
        "client_reported": {
            "one_sided_hits": reported.one_sided_hits,
            "one_sided_misses": reported.one_sided_misses,
            "rpc_gets": reported.rpc_gets,
            "reads": reported.reads,
            "read_bytes": reported.read_bytes,
            "round_trips": reported.round_trips,
            "cache_hits": reported.cache_hits,
            "retries": reported.retries,
            "forward_hops": reported.forward_hops,
            "checksum_failures": reported.checksum_failures,
            "one_sided_puts": reported.one_sided_puts,
            "rpc_puts": reported.rpc_puts,
            "lost_swaps": reported.lost_swaps,
            "counter_atomics": reported.counter_atomics,
            "rpc_counters": reported.rpc_counters,
            "counter_retries": reported.counter_retries,
            "get_latency": latency(&Latency {
                counts: reported.latency,
                sum_ns: reported.latency_ns,
            }),
        },
        "memory": {
            "limit_bytes": memory.limit_bytes,
            "log_live_bytes": memory.log_live_bytes,
            "log_dead_bytes": memory.log_dead_bytes,
            "log_free_bytes": memory.log_free_bytes,
            "meta_bytes": memory.meta_bytes,
            "cells_bytes": memory.cells_bytes,
            "index_bytes": memory.index_bytes,
            "order_bytes": memory.order_bytes,
            "retired_bytes": memory.retired_bytes,
            "free_bytes": memory.free_bytes,
            "writable_bytes": memory.writable_bytes,
            "writable_room_bytes": memory.writable_room_bytes,
            "regions": memory.regions,
            "region_bytes": memory.region_bytes,
        },
        "cpu_s_by_role": cpu,
        "process": {
            "cpu_s": process.cpu_s,
            "resident_bytes": process.resident_bytes,
            "open_fds": process.open_fds,
        },
    }))
}

fn rpcs(s: &Snapshot) -> Map<String, Value> {
    let of = |(n, verb): (usize, &&str)| {
        let results = CLASSES.iter().zip(s.rpc.results[n]);
        let mut counts: Map<_, _> =
            results.map(|(class, count)| ((*class).to_owned(), count.into())).collect();
        counts.insert("latency".to_owned(), latency(&s.rpc.times[n]));
        ((*verb).to_owned(), Value::Object(counts))
    };
    VERBS.iter().enumerate().map(of).collect()
}

/// Percentiles are upper bounds of buckets; none where there is nothing, or no bound.
fn latency(latency: &Latency) -> Value {
    let total: u64 = latency.counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
    let percentile = |share: f64| {
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0u64;
        let bucket = latency.counts.iter().position(|count| {
            below = below.saturating_add(*count);
            below >= wanted
        });
        bucket.and_then(bound_ns).map(seconds)
    };
    json!({
        "count": total,
        "sum_s": seconds(latency.sum_ns),
        "p50_s": percentile(0.5),
        "p99_s": percentile(0.99),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionsPage {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

fn page_len(limit: Option<usize>) -> usize {
    limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
}

/// By id, from the one behind `after`.
async fn sessions(State(core): State<Arc<Core>>, Query(page): Query<SessionsPage>) -> Json<Value> {
    let limit = page_len(page.limit);
    let sessions = core.sessions.page(page.after, limit);
    let next = sessions.last().filter(|_| sessions.len() == limit).map(|last| last.id);
    Json(json!({ "sessions": sessions, "next_after": next, "total": core.sessions.len() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OffsetPage {
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

/// By tenant and name.
async fn tables(State(core): State<Arc<Core>>, Query(page): Query<OffsetPage>) -> Json<Value> {
    let limit = page_len(page.limit);
    let tables = core.tenants.tables();
    let total = tables.len();
    let page_of = tables.into_iter().skip(page.offset).take(limit);
    let tables: Vec<Value> = page_of
        .map(|table| {
            let (status, index) = (&table.status, &table.index);
            json!({
                "tenant": table.tenant,
                "name": status.name,
                "keys": status.keys,
                "live_bytes": status.live_bytes,
                "payload_bytes": status.payload_bytes,
                "padding_bytes": status.padding_bytes,
                "dead_bytes": status.dead_bytes,
                "free_bytes": status.free_bytes,
                "log_bytes": status.log_bytes,
                "index_bytes": status.index_bytes,
                "index_segments": index.segments,
                "index_slots": index.slots,
                "index_overflow_lines": index.overflow_lines,
                "splits": status.splits,
                "written_bytes": status.written_bytes,
                "moved_bytes": status.moved_bytes,
                "expired_entries": status.expired_entries,
                "expiry_backlog": status.expiry_backlog,
                "evicted_entries": status.evicted_entries,
                "evicted_for_quota": status.evicted_for_quota,
                "default_ttl_s": status.options.default_ttl_s,
                "quota_bytes": status.options.quota_bytes,
                "floor_bytes": status.options.floor_bytes,
                "evict": status.options.evict,
                "ordered": status.options.ordered,
                "update": status.options.update.name(),
            })
        })
        .collect();
    let end = page.offset.saturating_add(tables.len());
    let next = (end < total).then_some(end);
    Json(json!({ "tables": tables, "next_offset": next, "total": total }))
}

/// By tenant and number: what each part of them is full of, as `[live, log, index]` in bytes.
async fn regions(State(core): State<Arc<Core>>, Query(page): Query<OffsetPage>) -> Json<Value> {
    let limit = page_len(page.limit);
    let (regions, total) = core.tenants.regions(page.offset, limit);
    let cell = |cell: &CellUse| json!([cell.live_bytes, cell.log_bytes, cell.meta_bytes]);
    let regions: Vec<Value> = regions
        .iter()
        .map(|(tenant, region)| {
            json!({
                "tenant": tenant,
                "id": region.id,
                "bytes": region.len_bytes,
                "writable": region.rights == Rights::ReadWrite,
                "cell_bytes": region.cell_bytes,
                "cells": region.cells.iter().map(cell).collect::<Vec<_>>(),
            })
        })
        .collect();
    let end = page.offset.saturating_add(regions.len());
    let next = (end < total).then_some(end);
    Json(json!({ "regions": regions, "next_offset": next, "total": total }))
}
