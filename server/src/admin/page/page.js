// --- tables and tiles ----------------------------------------------------------------------
// A cell is a text, or [text, number]: the number is kept exactly, for whoever reads the page
// with a program.
function cell(of, name) {
  const [text, value] = Array.isArray(of) ? of : [of, null];
  const made = el(name, value === null ? {} : { "data-value": String(value) }, text);
  if (name === "th") made.setAttribute("scope", "row");
  return made;
}
function table(id, caption, head, lines) {
  const box = $(id);
  let body = box.querySelector("tbody");
  if (!body) {
    body = el("tbody");
    const columns = head.map((text) => el("th", { scope: "col" }, text));
    box.append(el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
      el("table", {}, el("caption", {}), el("thead", {}, el("tr", {}, ...columns)), body)));
  }
  box.querySelector("caption").textContent = caption;
  body.replaceChildren(...lines.map((line) =>
    el("tr", {}, ...line.map((of, n) => cell(of, n ? "td" : "th")))));
}
function tiles(id, list) {
  const box = $(id);
  list.forEach(([name, text, note, value], n) => {
    const tile = box.children[n] || box.appendChild(el("div", {},
      el("dt", {}), el("dd", {}, el("span"), el("small"))));
    tile.querySelector("dt").textContent = name;
    tile.querySelector("span").textContent = text;
    tile.querySelector("small").textContent = note;
    if (value !== undefined) tile.setAttribute("data-value", String(value));
  });
  while (box.children.length > list.length) box.lastChild.remove();
}

function showNow(now, metrics) {
  const used = sum(metrics, "onesided_memory_limit_bytes")
    - sum(metrics, "onesided_memory_bytes", { use: "free" });
  const limit = sum(metrics, "onesided_memory_limit_bytes");
  const sessions = sum(metrics, "onesided_sessions");
  const keys = sum(metrics, "onesided_table_keys");
  const bare = now
    || { oneSided: null, updates: null, rpcs: null, all: 0, hitRatio: null, cpu: null };
  const each = bare.cpu !== null && bare.all > 0 ? bare.cpu / bare.all : null;
  tiles("tiles", [
    ["One-sided GETs", rate(bare.oneSided),
      bare.all > 0 ? percent(bare.oneSided / bare.all) + " of all operations" : "none now"],
    ["One-sided updates", rate(bare.updates), "PUTs and counters, by clients alone"],
    ["RPCs", rate(bare.rpcs), "served by the server"],
    ["Hit ratio", percent(bare.hitRatio), "of GETs, by either path"],
    ["Server CPU", bare.cpu === null ? "–" : cores(bare.cpu) + " cores",
      each === null ? "nothing is served" : time(each) + " an operation"],
    ["Memory", bytes(used), `of ${bytes(limit)}`, used],
    ["Sessions", whole(sessions), "one for each client process", sessions],
    ["Keys", short(keys), "in all tables", keys],
  ]);
}

const USES = [["log_live", "live entries"], ["log_dead", "dead entries"],
  ["log_free", "rests of segments"], ["index", "index"],
  ["index_held", "index of dropped tables"], ["order", "keys of ordered tables"],
  ["index_spare", "spare for the index"], ["cells", "cells of counters"],
  ["retired", "regions going back"], ["free", "free"]];

function showMemory(metrics) {
  const limit = sum(metrics, "onesided_memory_limit_bytes") || 1;
  const parts = USES.map(([use, name]) => {
    const value = sum(metrics, "onesided_memory_bytes", { use });
    return { use, name, value };
  });
  const box = $("memory");
  if (!box.firstChild) {
    const bar = el("div", { class: "bar", "aria-hidden": "true" });
    parts.forEach(({ use }) => bar.append(el("i", { class: use })));
    box.append(bar);
  }
  parts.forEach(({ value }, n) => {
    const part = box.firstChild.children[n];
    part.style.flex = `${value / limit} 1 0`;
    part.style.display = value ? "" : "none";
  });
  table("memory", "Memory by use", ["Use", "Bytes", "Share"], parts.map(({ name, value }) =>
    [name, [bytes(value), value], percent(value / limit)]));
  box.querySelectorAll("tbody th").forEach((head, n) =>
    head.prepend(el("span", { class: `key ${USES[n][0]}`, "aria-hidden": "true" }), " "));
}

// Each cell of a region is a column, filled from below: live, dead and rest, index.
function drawRegion(canvas, region) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const layers = [["live", "--live"], ["dead", "--dead"], ["index", "--index"]];
  const cells = region.cells, gap = cells.length > 1 ? 0.15 : 0;
  canvas.width = Math.max(1, cells.length) * 8;
  canvas.height = 52;
  const draw = canvas.getContext("2d");
  draw.fillStyle = color("--free");
  draw.fillRect(0, 0, canvas.width, canvas.height);
  cells.forEach(([live, log, index], n) => {
    let y = canvas.height;
    const share = { live, dead: Math.max(0, log - live), index };
    for (const [key, name] of layers) {
      const height = share[key] / region.cell_bytes * canvas.height;
      draw.fillStyle = color(name);
      draw.fillRect(n * 8, y - height, 8 * (1 - gap), height);
      y -= height;
    }
  });
}

function showMap({ regions, total }) {
  const box = $("map");
  if (!box.firstChild) {
    box.append(el("div", { class: "map", "aria-hidden": "true" }),
      el("p", { class: "note" }, "Each column is a part of a region, filled from below: live, " +
        "dead and not yet used of logs, index; the rest is free. Clients read all of it."));
    const details = el("details", { id: "regions" }, el("summary", {}, "As a table"));
    box.append(details);
  }
  const map = box.firstChild;
  regions.forEach((region, n) => {
    const figure = map.children[n] || map.appendChild(
      el("figure", {}, el("canvas", {}), el("figcaption", {})));
    figure.lastChild.textContent =
      `${region.tenant}, region ${region.id}: ${bytes(region.bytes)}`;
    drawRegion(figure.firstChild, region);
  });
  while (map.children.length > regions.length) map.lastChild.remove();
  const of = (region, n) => region.cells.reduce((s, cell) => s + cell[n], 0);
  table("regions", `${regions.length} of ${total} regions`,
    ["Region", "Bytes", "Live entries", "Logs", "Index"], regions.map((region) => [
      `${region.tenant} ${region.id}`, [bytes(region.bytes), region.bytes],
      [bytes(of(region, 0)), of(region, 0)], [bytes(of(region, 1)), of(region, 1)],
      [bytes(of(region, 2)), of(region, 2)]]));
}

function showTables(metrics) {
  const all = rows(metrics, "onesided_table_keys");
  const lines = all.map(({ labels, value: keys }) => {
    const where = { tenant: labels.tenant, table: labels.table };
    const of = (name) => sum(metrics, `onesided_table_${name}`, where);
    const reported = (name, more) =>
      sum(metrics, `onesided_client_reported_${name}_total`, { ...where, ...more });
    const slots = of("index_slots"), alone = { path: "one_sided" };
    const gets = reported("gets", alone);
    const updates = reported("puts", alone) + reported("counter_operations", alone);
    return [labels.tenant ? `${labels.tenant} / ${labels.table}` : "all others",
      [whole(keys), keys], [bytes(of("live_bytes")), of("live_bytes")],
      bytes(of("log_bytes") + of("index_bytes")), slots ? percent(keys / slots) : "–",
      [whole(gets), gets], whole(updates), whole(reported("reads")), whole(reported("retries")),
      whole(of("evicted_entries_total")), whole(of("expired_entries_total"))];
  });
  table("tables", "Tables; the first 64 of a server's life by name",
    ["Table", "Keys", "Live", "Log and index", "Index load", "One-sided GETs",
      "One-sided updates", "READs", "Retries", "Evicted", "Expired"], lines);
}

function showSessions(metrics, { sessions, total }) {
  tiles("fabrics", ["shm", "verbs", "tcp"].map((fabric) => {
    const count = sum(metrics, "onesided_endpoints", { fabric });
    const offered = sum(metrics, "onesided_fabric_offered", { fabric });
    const reads = fabric === "tcp" ? "reads are RPCs" : "one-sided reads";
    const connections = count === 1 ? "connection" : "connections";
    return [fabric, whole(count),
      `${connections}; ${offered ? "offered" : "not offered"}; ${reads}`, count];
  }));
  table("sessions", `${sessions.length} of ${total} sessions; counts as clients report them`,
    ["Session", "Tenant", "From", "Fabrics", "Age", "Tables", "One-sided GETs", "GETs by RPC", "READs",
      "Bytes READ"], sessions.map((s) => {
      const r = s.client_reported;
      return [String(s.id), s.tenant, s.peer ?? "unknown", s.fabrics.join(", ") || (s.controlled ? "none" : "away"),
        age(s.age_s), String(s.tables), [whole(r.one_sided_gets), r.one_sided_gets],
        whole(r.rpc_gets), [whole(r.reads), r.reads], bytes(r.read_bytes)];
    }));
}

function showTotals(metrics) {
  const operations = [...new Set(rows(metrics, "onesided_rpcs_total")
    .map((row) => row.labels.operation))];
  const lines = operations.map((operation) => {
    const counts = ["ok", "miss", "unmet", "failed"].map((result) =>
      sum(metrics, "onesided_rpcs_total", { operation, result }));
    return [`RPC ${operation}`, ...counts.map((count) => [whole(count), count])];
  });
  const one = ["hit", "miss"].map((result) => sum(metrics, GETS, { path: "one_sided", result }));
  lines.unshift(["One-sided GET", ...one.map((count) => [whole(count), count]), "–", "–"],
    ...[["One-sided PUT", PUTS], ["One-sided counter", COUNTERS]].map(([name, metric]) => {
      const done = sum(metrics, metric, { path: "one_sided" });
      return [name, [whole(done), done], "–", "–", "–"];
    }));
  table("totals", "Operations by result", ["Operation", "Done", "Nothing there",
    "Condition unmet", "Failed"], lines);
}

// --- the loop ------------------------------------------------------------------------------
const state = { moments: [], points: [], life: 0, lostAt: null, paused: false, timer: 0 };
const charts = {
  ops: new Chart("ops", { title: "Operations in a second", format: rate,
    series: [{ name: "One-sided GETs", key: "oneSided" }, { name: "RPCs", key: "rpcs" },
      { name: "One-sided updates", key: "updates" }] }),
  cpu: new Chart("cpu", { title: "CPU cores in use", format: cores, least: 0.1,
    series: [{ name: "All of the server", key: "cpu" }, { name: "Its pollers", key: "polling" }],
    note: "One-sided GETs take none of it: compare with the operations beside it." }),
  latency: new Chart("latency", { title: "Latency", format: time, log: true,
    series: [{ name: "GET p50", key: "get50" }, { name: "GET p99", key: "get99" },
      { name: "RPC p50", key: "rpc50" }, { name: "RPC p99", key: "rpc99" }],
    note: "GETs as clients sample them, from call to result; RPCs within the server. From buckets "
      + "that double, logarithmic." }),
  hits: new Chart("hits", { title: "Hit ratio", format: percent, max: 1,
    series: [{ name: "GETs that found a value", key: "hitRatio" }] }),
};

async function ask(path) {
  const headers = {}, token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(path, { headers, signal, cache: "no-store", redirect: "error" });
  if (answer.status === 401) throw Object.assign(new Error("token"), { wantsToken: true });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${(await answer.text()).trim()}`);
  return answer;
}

function say(text, kind) {
  // Only changes, so that a screen reader stays quiet.
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = kind;
}

function take(metrics) {
  const now = moment(metrics, Date.now() / 1000);
  const before = state.moments.at(-1);
  const restarted = before && before.started !== now.started;
  if (restarted) { state.moments = []; state.life += 1; }
  state.moments.push(now);
  while (state.moments[1] && now.at - state.moments[1].at >= WINDOW_S) state.moments.shift();
  const from = state.moments[0];
  if (now.at - from.at > 0.5) state.points.push({ ...point(from, now), life: state.life });
  while (state.points.length && now.at - state.points[0].at > KEEP_S) state.points.shift();
  return restarted;
}

async function look() {
  const [text, sessions, regions] = await Promise.all([
    ask("/metrics").then((answer) => answer.text()),
    ask(`/api/v1/sessions?limit=${SESSIONS}`).then((answer) => answer.json()),
    ask(`/api/v1/regions?limit=${REGIONS}`).then((answer) => answer.json()),
  ]);
  const metrics = parse(text);
  const restarted = take(metrics);
  if (restarted) say("The server has restarted: counts begin anew", "live");
  else if (state.lostAt !== null || !$("state").className) say("Live", "live");
  state.lostAt = null;
  $("login").hidden = true;
  $("figures").hidden = false;
  $("forget").hidden = !sessionStorage.getItem(TOKEN);
  const build = rows(metrics, "onesided_build_info")[0]?.labels.version ?? "";
  $("server").textContent =
    `${location.host}, version ${build}, up ${age(sum(metrics, "onesided_uptime_seconds"))}`;
  showNow(state.points.at(-1)?.life === state.life ? state.points.at(-1) : null, metrics);
  Object.values(charts).forEach((chart) => chart.set(state.points));
  showMemory(metrics);
  showMap(regions);
  showTables(metrics);
  showSessions(metrics, sessions);
  showTotals(metrics);
  document.body.dataset.looks = String(Number(document.body.dataset.looks || 0) + 1);
}

function failed(error) {
  if (error.wantsToken) {
    const wrong = sessionStorage.getItem(TOKEN) !== null;
    sessionStorage.removeItem(TOKEN);
    $("refused").textContent = wrong ? "That is not its token." : "";
    $("figures").hidden = true;
    $("forget").hidden = true;
    $("login").hidden = false;
    say("A token is needed", "");
    $("token").focus();
    return false;
  }
  if (state.lostAt === null) state.lostAt = new Date();
  const since = state.lostAt.toLocaleTimeString();
  say(`No answer since ${since}; trying again`, "lost");
  console.warn(String(error));
  return true;
}

async function turn() {
  let again = true, lost = false;
  try { await look(); } catch (error) { again = lost = failed(error); }
  clearTimeout(state.timer);
  if (again && !state.paused) state.timer = setTimeout(turn, lost ? RETRY_MS : EVERY_MS);
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  turn();
});
$("forget").addEventListener("click", () => { sessionStorage.removeItem(TOKEN); turn(); });
$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  say(state.paused ? "Paused" : "Live", state.paused ? "" : "live");
  if (state.paused) clearTimeout(state.timer); else turn();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!state.paused) turn();
});
turn();
