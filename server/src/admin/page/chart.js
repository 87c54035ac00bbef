// --- charts --------------------------------------------------------------------------------
class Chart {
  constructor(id, about) {
    Object.assign(this, { points: [], at: null, values: [], ...about });
    const box = $(id);
    this.legend = el("ul", { class: "legend" });
    this.series.forEach(({ name }, n) => {
      const key = el("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" },
        el("line", { class: `line s${n + 1}`, x1: 1, x2: 19, y1: 5, y2: 5 }));
      this.values[n] = el("b", {}, "–");
      this.legend.append(el("li", {}, key, `${name} `, this.values[n]));
    });
    this.svg = el("svg", { role: "img", tabindex: "0", focusable: "true" });
    this.tip = el("div", { class: "tip", hidden: "" });
    this.body = el("tbody");
    const head = ["Time", ...this.series.map(({ name }) => name)];
    const table = el("table", {}, el("caption", {}, `${this.title}, every 10 seconds`),
      el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
      this.body);
    const scroll = el("div", { class: "scroll", role: "region", tabindex: "0",
      "aria-label": `${this.title}, table` }, table);
    this.details = el("details", {}, el("summary", {}, "As a table"), scroll);
    this.details.addEventListener("toggle", () => this.fill());
    box.append(this.legend, el("div", { class: "plot" }, this.svg, this.tip), this.details);
    if (this.note) box.append(el("p", { class: "note" }, this.note));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      this.show(this.nearest(x));
    });
    const leave = () => this.show(null);
    this.svg.addEventListener("pointerleave", leave);
    this.svg.addEventListener("blur", leave);
    this.svg.addEventListener("keydown", (event) => {
      const last = this.points.length - 1, now = this.at ?? last;
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, Escape: null };
      if (!(event.key in to) || last < 0) return;
      event.preventDefault();
      const next = to[event.key];
      this.show(next === null ? null : Math.min(Math.max(next, 0), last));
    });
  }

  set(points) {
    // What one looks at stays, though the oldest goes.
    const seen = this.at === null ? null : this.points[this.at]?.at;
    this.points = points;
    const at = points.findIndex((point) => point.at === seen);
    this.at = at < 0 ? null : at;
    const last = points.at(-1);
    this.series.forEach(({ key }, n) => {
      this.values[n].textContent = last ? this.format(last[key] ?? null) : "–";
    });
    const now = this.series.map(({ name }, n) => `${name} ${this.values[n].textContent}`);
    this.svg.setAttribute("aria-label", `${this.title}, line chart of the last minutes. ` +
      `Now: ${now.join(", ")}. Arrow keys go through its points; a table follows.`);
    this.draw();
    this.fill();
  }

  scale() {
    const values = this.points.flatMap((p) => this.series.map(({ key }) => p[key]))
      .filter((value) => value !== null && value !== undefined && (!this.log || value > 0));
    if (this.max) return { low: 0, high: this.max, ticks: [0, 0.5, 1].map((t) => t * this.max) };
    if (this.log) {
      const low = Math.floor(Math.log10(Math.min(...values, 1e-6)) + 1e-9);
      const high = Math.max(low + 2, Math.ceil(Math.log10(Math.max(...values, 1e-5)) - 1e-9));
      const ticks = Array.from({ length: high - low + 1 }, (_, n) => 10 ** (low + n));
      return { low, high, ticks };
    }
    const most = Math.max(...values, this.least || 1), rough = most / 3;
    const size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= rough);
    const ticks = [0, 1, 2, 3].map((n) => n * step);
    return { low: 0, high: ticks.at(-1), ticks };
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight || 190;
    if (!width) return;
    const { low, high, ticks } = this.scale();
    const left = 58, right = width - 8, top = 8, bottom = height - 22;
    const end = this.points.at(-1)?.at ?? 0, seen = end - (this.points[0]?.at ?? 0);
    const minutes = [1, 2, 5].find((n) => seen <= n * 60) ?? 5;
    this.x = (at) => right - (end - at) / (minutes * 60) * (right - left);
    const y = (value) => bottom
      - ((this.log ? Math.log10(value) : value) - low) / (high - low) * (bottom - top);
    const parts = ticks.flatMap((tick) => [
      el("line", { class: tick === ticks[0] ? "axis" : "grid", x1: left, x2: right,
        y1: y(tick), y2: y(tick) }),
      el("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, this.format(tick)),
    ]);
    for (const ago of minutes === 5 && width < 420 ? [4, 2, 0] : [5, 4, 3, 2, 1, 0]) {
      if (ago > minutes) continue;
      const anchor = ago === 0 ? "end" : ago === minutes ? "start" : "middle";
      parts.push(el("text", { x: this.x(end - ago * 60), y: height - 5, "text-anchor": anchor },
        ago ? `−${ago} min` : "now"));
    }
    this.series.forEach(({ key }, n) => {
      const line = this.path(key, y);
      if (line) parts.push(el("path", { class: `line s${n + 1}`, d: line }));
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts, ...this.cross(y, top, bottom));
  }

  // Nothing is drawn where nothing is known, nor across a restart.
  path(key, y) {
    let line = "", before = null;
    for (const point of this.points) {
      const value = point[key] ?? null;
      if (value === null || (this.log && value <= 0)) { before = null; continue; }
      const joined = before !== null && before.life === point.life
        && point.at - before.at < 3 * EVERY_MS / 1000;
      line += `${joined ? "L" : "M"}${this.x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
      before = point;
    }
    return line;
  }

  nearest(x) {
    let best = null;
    this.points.forEach((point, n) => {
      const far = Math.abs(this.x(point.at) - x);
      if (best === null || far < best.far) best = { n, far };
    });
    return best && best.n;
  }

  show(at) {
    this.at = at;
    this.draw();
  }

  cross(y, top, bottom) {
    const point = this.at === null ? null : this.points[this.at];
    this.tip.hidden = !point;
    if (!point) return [];
    const x = this.x(point.at);
    const dots = this.series.map(({ key }, n) => [point[key] ?? null, n])
      .filter(([value]) => value !== null && (!this.log || value > 0))
      .map(([value, n]) => el("line", { class: `dot s${n + 1}`, x1: x, x2: x,
        y1: y(value), y2: y(value) }));
    this.tip.replaceChildren(el("p", {}, new Date(point.at * 1000).toLocaleTimeString()),
      ...this.series.map(({ name, key }) =>
        el("p", {}, `${name}: ${this.format(point[key] ?? null)}`)));
    const room = this.svg.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x + (x > room ? -12 : 12)
      - (x > room ? this.tip.offsetWidth : 0)))}px`;
    return [el("line", { class: "cross", x1: x, x2: x, y1: top, y2: bottom }), ...dots];
  }

  fill() {
    if (!this.details.open) return;
    const step = Math.round(10000 / EVERY_MS), last = this.points.length - 1;
    const shown = this.points.filter((_, n) => (last - n) % step === 0).reverse();
    this.body.replaceChildren(...shown.map((point) => el("tr", {},
      el("th", { scope: "row" }, new Date(point.at * 1000).toLocaleTimeString()),
      ...this.series.map(({ key }) => el("td", {}, this.format(point[key] ?? null))))));
  }
}
