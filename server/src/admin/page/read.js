"use strict";
// Reads /metrics every two seconds, keeps five minutes of it, and draws. Nothing else is stored
// but the token, in this tab. Everything that comes from the server is set as text.
const EVERY_MS = 2000, RETRY_MS = 1000, TIMEOUT_MS = 5000, KEEP_S = 300, WINDOW_S = 10;
const SESSIONS = 50, REGIONS = 256, TOKEN = "onesided-admin-token";
const $ = (id) => document.getElementById(id);

function el(name, attrs = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attrs)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// --- numbers -------------------------------------------------------------------------------
function short(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const units = ["", " k", " M", " G", " T"];
  let at = 0;
  while (Math.abs(value) >= 999.5 && at < units.length - 1) { value /= 1000; at += 1; }
  const isWhole = Math.abs(value - Math.round(value)) < 1e-9;
  const digits = Math.abs(value) >= 99.5 || isWhole ? 0 : Math.abs(value) >= 9.95 ? 1 : 2;
  return value.toFixed(digits) + units[at];
}
const rate = (value) => (value === null ? "–" : short(value) + "/s");
const percent = (value) =>
  (value === null ? "–" : (value * 100).toFixed(value === 1 ? 0 : 1) + " %");
const whole = (value) => Math.round(value).toLocaleString("en");
const cores = (value) => (value === null ? "–" : value.toFixed(2));
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return value.toFixed(at === 0 || value >= 99.95 ? 0 : 1) + " " + units[at];
}
function time(seconds) {
  if (seconds === null) return "–";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (seconds >= size) return short(seconds / size) + " " + unit;
  }
  return short(seconds / 1e-9) + " ns";
}
function age(seconds) {
  const [d, h, m] = [86400, 3600, 60].map((n) => Math.floor(seconds / n));
  if (d > 0) return `${d} d ${h % 24} h`;
  if (h > 0) return `${h} h ${m % 60} min`;
  return m > 0 ? `${m} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

// --- what the server says ------------------------------------------------------------------
// Prometheus's text: Map of name -> [{labels, value}].
function parse(text) {
  const all = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    if (!all.has(found[1])) all.set(found[1], []);
    all.get(found[1]).push({ labels, value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return all;
}
function rows(metrics, name, where = {}) {
  const fits = (row) => Object.entries(where).every(([key, value]) => row.labels[key] === value);
  return (metrics.get(name) || []).filter(fits);
}
const sum = (metrics, name, where) => rows(metrics, name, where).reduce((s, r) => s + r.value, 0);
const GETS = "onesided_client_reported_gets_total";
const PUTS = "onesided_client_reported_puts_total";
const COUNTERS = "onesided_client_reported_counter_operations_total";
const GET_TIME = "onesided_client_reported_get_duration_seconds";
const RPC_TIME = "onesided_rpc_duration_seconds";

// Cumulative counts of a histogram, summed over its labels.
function buckets(metrics, name) {
  const all = new Map();
  for (const { labels, value } of rows(metrics, name + "_bucket")) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    all.set(bound, (all.get(bound) || 0) + value);
  }
  return all;
}

// One moment: what charts and tiles need of it, all of it counted since the server's start.
function moment(metrics, at) {
  const hits = sum(metrics, GETS, { path: "one_sided", result: "hit" });
  const misses = sum(metrics, GETS, { path: "one_sided", result: "miss" });
  const gets = (result) => sum(metrics, "onesided_rpcs_total", { operation: "get", result });
  // A batch is counted by what is in it.
  const rpcs = sum(metrics, "onesided_rpcs_total")
    - sum(metrics, "onesided_rpcs_total", { operation: "batch" });
  return {
    at, hits, misses, rpcs,
    foundGets: hits + gets("ok"), allGets: hits + misses + gets("ok") + gets("miss"),
    updates: sum(metrics, PUTS, { path: "one_sided" })
      + sum(metrics, COUNTERS, { path: "one_sided" }),
    reads: sum(metrics, "onesided_client_reported_reads_total"),
    readBytes: sum(metrics, "onesided_client_reported_read_bytes_total"),
    cpu: sum(metrics, "onesided_thread_cpu_seconds_total"),
    polling: rows(metrics, "onesided_thread_cpu_seconds_total")
      .filter((row) => row.labels.role.startsWith("poll_")).reduce((s, r) => s + r.value, 0),
    getTimes: buckets(metrics, GET_TIME), rpcTimes: buckets(metrics, RPC_TIME),
    started: sum(metrics, "onesided_start_time_seconds"),
  };
}

// An upper bound of the given share of what came between two moments, within its bucket evenly.
function quantile(from, to, share) {
  const bounds = [...to.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => to.get(bound) - (from.get(bound) || 0));
  const wanted = (counts.at(-1) || 0) * share;
  if (!(wanted > 0)) return null;
  const at = counts.findIndex((count) => count >= wanted);
  if (bounds[at] === Infinity) return bounds.at(-2) ?? null;
  const [low, below] = at > 0 ? [bounds[at - 1], counts[at - 1]] : [0, 0];
  return low + (bounds[at] - low) * (wanted - below) / (counts[at] - below);
}

// Averages of the window before a moment.
function point(from, to) {
  const seconds = to.at - from.at;
  const per = (key) => Math.max(0, to[key] - from[key]) / seconds;
  const oneSided = per("hits") + per("misses"), updates = per("updates");
  const gets = to.allGets - from.allGets;
  return {
    at: to.at, oneSided, updates, rpcs: per("rpcs"), reads: per("reads"),
    readBytes: per("readBytes"), cpu: per("cpu"), polling: per("polling"),
    all: oneSided + updates + per("rpcs"),
    hitRatio: gets > 0 ? (to.foundGets - from.foundGets) / gets : null,
    get50: quantile(from.getTimes, to.getTimes, 0.5),
    get99: quantile(from.getTimes, to.getTimes, 0.99),
    rpc50: quantile(from.rpcTimes, to.rpcTimes, 0.5),
    rpc99: quantile(from.rpcTimes, to.rpcTimes, 0.99),
  };
}
