// Interaction of a report: values under the pointer, switching series, menus, saving files, light and dark mode.
// All data is in the page.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("live");
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, facts, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
    parent.append(node);
    return node;
  };
  const SIGNS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const short = (v) => {
    const size = Math.abs(v);
    if (v === 0 || (size >= 1e-3 && size < 1e6))
      return size >= 1000 ? Math.round(v).toLocaleString("en-US") : String(Number(v.toPrecision(4)));
    const [digits, power] = v.toExponential(1).split("e");
    const raised = [...String(Number(power))].map((c) => (c === "-" ? "⁻" : SIGNS[c])).join("");
    return (digits === "1.0" ? "" : digits.replace(".0", "") + "·") + "10" + raised;
  };

  // Light and dark: follow the system until the reader chooses.
  const theme = document.querySelector(".theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const name = () => (theme.textContent = now() === "dark" ? "Light" : "Dark");
  try { const kept = localStorage.getItem("rhfedmtl-theme"); if (kept === "light" || kept === "dark") root.dataset.theme = kept; } catch { /* no storage */ }
  theme.hidden = false;
  name();
  dark.addEventListener("change", name);
  theme.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try { localStorage.setItem("rhfedmtl-theme", root.dataset.theme); } catch { /* no storage */ }
    name();
  });

  // Switch series on and off: the charts of a study share a legend; a chart with other series has its own.
  const switches = (key) => {
    const mine = (part) => part.dataset.series === key.dataset.series;
    const figures = () => (key.closest("figure") ? [key.closest("figure")] : [...key.closest(".study").querySelectorAll("figure")]);
    const parts = () => figures().map((figure) => [...figure.querySelectorAll(".series, .end")]).filter((found) => found.some(mine)).flat();
    const point = (on) => {
      const shown = on && key.getAttribute("aria-pressed") === "true";
      for (const part of parts()) {
        part.classList.toggle("lit", shown && mine(part));
        part.classList.toggle("dim", shown && !mine(part));
      }
    };
    key.addEventListener("click", () => {
      const on = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", on);
      for (const part of parts().filter(mine)) part.classList.toggle("off", !on);
      point(on);
    });
    for (const [event, on] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]])
      key.addEventListener(event, () => point(on));
  };
  const shared = (figure) => figure.closest(".study")?.querySelector(":scope > .legend");
  const switchedOff = (figure) =>
    new Set([shared(figure), figure].flatMap((place) => [...(place?.querySelectorAll('.key[aria-pressed="false"]') ?? [])]).map((key) => key.dataset.series));

  // A box with values: next to the pointer if it fits, below the plot on a phone.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  let leave = () => {};
  let anchor = null;
  const hide = () => { tip.hidden = true; leave(); leave = () => {}; };
  const put = (plot, x, y, under) => {
    tip.hidden = false;
    anchor = { plot, top: plot.getBoundingClientRect().top };
    const { offsetWidth: width, offsetHeight: height } = tip;
    const room = document.documentElement.clientWidth;
    const left = x + 16 + width <= room ? x + 16 : x - 16 - width;
    const beside = left >= 0;
    const top = beside ? y : under + height <= innerHeight ? under : y - height - 40;
    tip.style.left = (beside ? left : Math.max(4, Math.min(x - width / 2, room - width - 4))) + "px";
    tip.style.top = Math.max(4, Math.min(top, innerHeight - height - 4)) + "px";
  };
  const moved = () => !tip.hidden && Math.abs(anchor.plot.getBoundingClientRect().top - anchor.top) > 4;
  // With arrow keys, keep the value while the page scrolls to the chart.
  let byKeys = false;
  addEventListener("scroll", () => {
    if (!moved()) return;
    if (!byKeys) return hide();
    const { top } = anchor.plot.getBoundingClientRect();
    tip.style.top = parseFloat(tip.style.top) + top - anchor.top + "px";
    anchor.top = top;
  }, { passive: true });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot")) hide(); });

  const charts = new WeakMap();
  const enliven = (plot, chart) => {
    charts.set(plot, chart);
    const figure = plot.closest("figure");
    const frame = plot.querySelector(".frame");
    const pointer = plot.querySelector(".pointer");
    let at = -1;
    const place = (axis, v) => {
      const f = axis.log ? Math.log10 : (u) => u;
      return (f(v) - f(axis.low)) / (f(axis.high) - f(axis.low));
    };
    const shown = () => { const off = switchedOff(figure); return chart.series.filter((s) => !off.has(s.group || s.name)); };
    const places = () => {
      const found = new Set(shown().filter((s) => s.x.length > 2 || !s.class.includes("level")).flatMap((s) => s.x));
      return [...found].sort((a, b) => a - b);
    };
    const nearest = (xs, x) => {
      let best = 0;
      xs.forEach((v, i) => { if (Math.abs(place(chart.x, v) - place(chart.x, x)) < Math.abs(place(chart.x, xs[best]) - place(chart.x, x))) best = i; });
      return best;
    };
    const show = (i) => {
      const xs = places();
      hide();
      if (!xs.length) return;
      leave = () => { pointer.replaceChildren(); at = -1; };
      at = Math.max(0, Math.min(xs.length - 1, i));
      const x = xs[at];
      const along = 100 * place(chart.x, x) + "%";
      const rows = [];
      make("line", { x1: along, x2: along, y1: 0, y2: chart.height }, pointer);
      for (const s of shown()) {
        const level = s.class.includes("level") && s.x.length === 2;
        const k = nearest(s.x, x);
        if (s.y[k] === null || (!level && Math.abs(place(chart.x, s.x[k]) - place(chart.x, x)) > 0.03)) continue;
        const y = chart.height * (1 - place(chart.y, s.y[k]));
        if (Number.isFinite(y)) {
          const ring = make("circle", { cx: level ? along : 100 * place(chart.x, s.x[k]) + "%", cy: y, r: 4.5, class: s.class }, pointer);
          ring.style.stroke = "var(--c)";
        }
        rows.push({ s, k, v: s.y[k] });
      }
      for (const row of [...rows]) {
        const base = row.s.of && rows.find(({ s }) => s.name === row.s.of);
        if (base) { base.also = `${row.s.group}: ${short(row.v)}`; rows.splice(rows.indexOf(row), 1); }
      }
      rows.sort((a, b) => b.v - a.v);
      write(x, rows);
      const area = frame.getBoundingClientRect();
      put(plot, area.left + place(chart.x, x) * area.width, area.top + 4, area.bottom + 48);
    };
    const write = (x, rows) => {
      const head = document.createElement("b");
      head.textContent = `${chart.x.label}: ${chart.names.length ? chart.names[x] : short(x)}`;
      const table = document.createElement("table");
      for (const { s, k, v, also } of rows) {
        const row = table.insertRow();
        const label = row.insertCell();
        label.className = s.class;
        const sample = make("svg", { viewBox: "-6 -6 12 12", "aria-hidden": "true" }, label);
        make("use", { href: "#m-" + s.mark, class: "mark" }, sample);
        label.append(s.name);
        const value = row.insertCell();
        value.append(short(v));
        if (s.low && s.low[k] !== null && s.low[k] !== s.high[k]) {
          const range = document.createElement("small");
          range.textContent = ` ${short(s.low[k])} to ${short(s.high[k])}`;
          value.append(range);
        }
        if (also) {
          const printed = document.createElement("small");
          printed.className = "beneath";
          printed.textContent = also;
          value.append(printed);
        }
      }
      tip.replaceChildren(head, table);
    };
    const from = (event) => {
      byKeys = false;
      const area = frame.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (event.clientX - area.left) / area.width));
      const { log, low, high } = chart.x;
      const x = log ? 10 ** (Math.log10(low) + share * (Math.log10(high) - Math.log10(low))) : low + share * (high - low);
      show(nearest(places(), x));
    };
    plot.addEventListener("pointermove", from);
    plot.addEventListener("pointerdown", from);
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
    plot.addEventListener("blur", hide);
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", "Values: left and right arrow keys move along the axis, Escape closes");
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity }[event.key];
      if (event.key === "Escape") hide();
      if (step === undefined) return;
      event.preventDefault();
      byKeys = true;
      show(step);
    });
  };

  // Bars and matrices: show the value of the part under the pointer.
  const pieces = (plot) => {
    const follow = (event) => {
      const piece = event.target.closest("[data-tip]");
      if (!piece) return hide();
      tip.textContent = piece.dataset.tip;
      put(plot, event.clientX, event.clientY + 14, event.clientY + 24);
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", hide);
  };

  // Menus: draw the first chart of a section again for another budget, metric, seed or task.
  const html = (name, facts, ...inside) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
    node.append(...inside);
    return node;
  };
  const mean = (values) => { const known = values.filter((v) => v !== null); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
  const quantile = (sorted, share) => {
    const at = share * (sorted.length - 1), low = Math.floor(at);
    return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
  };
  const held = (run, x) => { let found = null; for (let i = 0; i < run.x.length && run.x[i] <= x; i++) found = run.y[i]; return found; };
  // Average seeds on a common grid; a seed keeps its last value. Mean and interval, or median and middle half for a gap.
  const laid = (runs, half, ranked) => {
    const all = [...new Set(runs.flatMap((run) => run.x))].sort((a, b) => a - b);
    const start = Math.max(...runs.map((run) => run.x[0]));
    const x = all.filter((v) => v >= start);
    const rows = x.map((v) => runs.map((run) => held(run, v)).sort((a, b) => a - b));
    const y = rows.map((row) => (ranked ? quantile(row, 0.5) : mean(row)));
    if (runs.length < 2) return { x, y };
    const halves = rows.map((row, i) => half[row.length] * Math.sqrt(row.reduce((sum, v) => sum + (v - y[i]) ** 2, 0) / (row.length - 1)));
    return {
      x, y,
      low: ranked ? rows.map((row) => quantile(row, 0.25)) : y.map((v, i) => v - halves[i]),
      high: ranked ? rows.map((row) => quantile(row, 0.75)) : y.map((v, i) => v + halves[i]),
    };
  };
  const ends = (values, log, floor, ceiling, span = 0) => {
    const known = values.filter((v) => v !== null && Number.isFinite(v) && (!log || v > 0));
    let low = Math.min(...known), high = Math.max(...known);
    if (!known.length) return [log ? 1 : 0, log ? 10 : 1];
    if (log) return low === high ? [low / 2, high * 2] : [low, high];
    [low, high] = [Math.max(low, Math.min(floor, low)), Math.min(high, ceiling)];
    if (low === high) [low, high] = [low - (Math.abs(low) / 2 || 0.5), high + (Math.abs(high) / 2 || 0.5)];
    if (high - low >= span) return [low, high];
    const middle = Math.min(Math.max((low + high) / 2, floor + span / 2), ceiling - span / 2);
    return [middle - span / 2, middle + span / 2];
  };
  const rounded = (low, high, most, log) => {
    for (const marks of log ? [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 6, 8]] : []) {
      const inside = [];
      for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p++) inside.push(...marks.map((m) => m * 10 ** p).filter((v) => v >= low && v <= high));
      if (inside.length >= 3) return inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0);
    }
    const least = (high - low) / most, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= least * (1 - 1e-9));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  };
  const draw = (chart, title) => {
    const { height } = chart;
    const share = (axis, v) => { const f = axis.log ? Math.log10 : (u) => u; return (f(v) - f(axis.low)) / (f(axis.high) - f(axis.low)); };
    const along = (v) => 100 * share(chart.x, v) + "%";
    const down = (v) => height * (1 - Math.max(0, Math.min(1, share(chart.y, v))));
    const frame = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({ class: "frame", height, role: "img", "aria-label": `${title}: ${chart.y.label} over ${chart.x.label}. The table below has the values.` })) frame.setAttribute(key, value);
    const tick = (facts, text) => { make("text", { class: "tick", ...facts }, frame).textContent = text; };
    for (const v of rounded(chart.y.low, chart.y.high, 7, chart.y.log)) {
      make("line", { class: "rule", x1: 0, x2: "100%", y1: down(v), y2: down(v) }, frame);
      tick({ x: 0, dx: -8, y: down(v), dy: "0.35em", "text-anchor": "end" }, short(v));
    }
    make("line", { class: "base", x1: 0, x2: "100%", y1: height, y2: height }, frame);
    for (const v of rounded(chart.x.low, chart.x.high, 7, false)) {
      make("line", { class: "stub", x1: along(v), x2: along(v), y1: height, y2: height + 5 }, frame);
      tick({ x: along(v), y: height + 19, "text-anchor": "middle" }, short(v));
    }
    const inner = make("svg", { class: "stretched", viewBox: `0 0 1000 ${height}`, preserveAspectRatio: "none", width: "100%", height }, frame);
    const spot = (s, values) => s.x.flatMap((x, i) => (values[i] === null || (chart.y.log && values[i] <= 0) ? [] : [`${(1000 * share(chart.x, x)).toFixed(1)} ${down(values[i]).toFixed(1)}`]));
    for (const s of chart.series) {
      const facts = { class: "series " + s.class, "data-series": s.name };
      const group = make("g", facts, inner);
      if (s.low && !s.class.includes("level")) make("path", { class: "band", d: `M${[...spot(s, s.high), ...spot(s, s.low).reverse()].join("L")}Z` }, group);
      make("path", { class: "line", d: "M" + spot(s, s.y).join("L"), ...(s.dash ? { "stroke-dasharray": s.dash } : {}) }, group);
      if (s.class.includes("level")) continue;
      const marks = make("g", facts, frame);
      const every = s.x.length > 16 ? Math.floor(s.x.length / 6) : 1;
      s.x.forEach((x, i) => { if (i % every === 0 && s.y[i] !== null && !(chart.y.log && s.y[i] <= 0)) make("use", { href: "#m-" + s.mark, class: "mark", x: along(x), y: down(s.y[i]) }, marks); });
    }
    make("g", { class: "pointer" }, frame);
    return html("div", { class: chart.series.length > 5 ? "plot crowded" : "plot" },
      html("p", { class: "y-label" }, chart.y.label), html("div", { class: "canvas" }, frame), html("p", { class: "x-label" }, chart.x.label));
  };
  const table = (head, rows, kind = "numbers") => {
    const cells = rows.map(([name, ...others]) => html("tr", {}, html("th", { scope: "row" }, name), ...others.map((text, i) => html("td", { "data-label": head[i + 1] }, text))));
    const heads = html("tr", {}, ...head.map((text) => (text ? html("th", { scope: "col" }, text) : html("td", {}))));
    return html("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" },
      html("table", { class: kind }, html("thead", {}, heads), html("tbody", {}, ...cells)));
  };
  const choose = (form) => {
    const facts = JSON.parse(form.querySelector(".choices").textContent);
    const figure = form.parentElement.querySelector("figure.chart");
    const select = (key, label, options, at = 0) => {
      const node = html("select", { id: `${form.id}-${key}` }, ...options.map((text) => html("option", {}, text)));
      node.selectedIndex = at;
      if (options.length > 1) form.append(html("label", {}, label, node));
      return node;
    };
    const axes = facts.axes.map((axis, i) => select(`axis${i}`, axis.name, axis.values, axis.at));
    const metric = select("metric", "metric", facts.metrics.map((m) => m.name));
    const seed = select("seed", "seed", facts.seeds.length > 1 ? ["all", ...facts.seeds] : ["all"]);
    const task = select("task", "task", facts.tasks.length > 1 ? ["mean over tasks", ...facts.tasks] : ["mean over tasks"]);
    const tasks = html("div", { class: "by-task" });
    figure.parentElement.append(tasks);
    const chosen = () => {
      const place = axes.reduce((at, node, i) => at * facts.axes[i].values.length + node.selectedIndex, 0);
      const { log } = facts.metrics[metric.selectedIndex];
      const mine = facts.runs.filter((run) => run[1] === place && (!seed.selectedIndex || run[2] === seed.selectedIndex - 1));
      const of = (run, which) => {
        const rows = run[5][metric.selectedIndex];
        if (!rows || !rows.length) return null;
        const row = which < 0 || log || !run[3].length ? null : run[3].indexOf(which);
        if (row === -1) return null;
        return row === null ? rows[0].map((_, i) => mean(rows.map((values) => values[i]))) : rows[row];
      };
      return { place, log, mine, of };
    };
    const traces = ({ mine, of }, k, which) => mine.filter((run) => run[0] === k).flatMap((run) => {
      const y = of(run, which);
      if (!y) return [];
      const known = y.map((v, i) => [run[4][i], v]).filter(([, v]) => v !== null);
      return known.length ? [{ x: known.map(([x]) => x), y: known.map(([, v]) => v) }] : [];
    });
    const show = () => {
      const at = chosen();
      task.disabled = Boolean(at.log);
      const which = task.selectedIndex - 1;
      const found = facts.series.map((s, k) => ({ s, runs: traces(at, k, which) })).filter(({ runs }) => runs.length);
      const series = found.filter(({ runs }) => runs[0].x[0] !== undefined).map(({ s, runs }) => ({ ...s, ...laid(runs, facts.half, at.log) }));
      const [left, right] = ends(series.flatMap((s) => s.x), false, -Infinity, Infinity);
      for (const { s, runs } of found.filter(({ runs }) => runs[0].x[0] === undefined)) {
        const level = mean(runs.map((run) => run.y[run.y.length - 1]));
        series.push({ ...s, x: [left, right], y: [level, level] });
      }
      const m = facts.metrics[metric.selectedIndex];
      const [low, high] = ends(series.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]), m.log, 0, m.ceiling ?? Infinity, m.span);
      const chart = { x: { log: false, low: left, high: right, label: facts.x[at.place] }, y: { log: Boolean(m.log), low, high, label: m.name }, names: [], height: 320, series };
      write(chart, m, which);
      last(at, which);
    };
    const write = (chart, m, which) => {
      const of = which < 0 || m.log ? "" : ` of ${facts.tasks[which]}`;
      const title = `${m.name[0].toUpperCase()}${m.name.slice(1)}${of} over spending`;
      figure.querySelector("figcaption :is(h2, h3, h4)").textContent = title;
      const note = figure.querySelector(".note") ?? figure.querySelector("figcaption").appendChild(html("p", { class: "note" }));
      note.textContent = seed.selectedIndex ? `Seed ${facts.seeds[seed.selectedIndex - 1]} only.` : m.log && facts.seeds.length > 1 ? "Lines are medians over seeds, bands show the middle half." : "";
      hide();
      const plot = draw(chart, title);
      figure.querySelector(".plot").replaceWith(plot);
      const off = switchedOff(figure);
      for (const part of plot.querySelectorAll(".series")) part.classList.toggle("off", off.has(part.dataset.series));
      enliven(plot, chart);
      const xs = [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);
      const text = (s, x) => { const i = s.x.indexOf(x); return i < 0 || s.y[i] === null ? "" : short(s.y[i]) + (s.low ? ` (${short(s.low[i])} to ${short(s.high[i])})` : ""); };
      figure.querySelector("details.data .scroll").replaceWith(table([chart.x.label, ...chart.series.map((s) => s.name)], xs.map((x) => [short(x), ...chart.series.map((s) => text(s, x))])));
    };
    // Show the last value of every task below the chart.
    const last = (at) => {
      tasks.replaceChildren();
      if (facts.tasks.length < 2 || at.log) return;
      const end = (k, which) => mean(traces(at, k, which).map((run) => run.y[run.y.length - 1]));
      const shown = facts.tasks.map((_, i) => i).filter((i) => facts.series.some((_, k) => end(k, i) !== null));
      const rows = facts.series.map((s, k) => [s.name, ...[-1, ...shown].map((i) => { const v = end(k, i); return v === null ? "–" : v.toFixed(3); })]);
      tasks.append(html("p", { class: "text" }, "Final values by task."), table(["", "mean", ...shown.map((i) => facts.tasks[i])], rows, "numbers stack"));
    };
    const text = html("p", { class: "text" }, "These menus change only the first chart; the other charts follow the heading.");
    form.addEventListener("change", () => { form.after(text); show(); });
    form.hidden = false;
    last(chosen());
  };

  // Save a chart as a file: its numbers, or the picture as shown on the screen with all its styles.
  const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor", "vector-effect", "overflow"];
  const canvas = document.createElement("canvas");
  const plain = (colour) => {
    // Only the browser can compute mixed colours, so paint a pixel and read it.
    if (!/^(color|ok|lab|lch)/.test(colour)) return colour;
    const brush = canvas.getContext("2d", { willReadFrequently: true });
    [canvas.width, canvas.height] = [1, 1];
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
    return `rgba(${r}, ${g}, ${b}, ${a / 255})`;
  };
  const styled = (from, to) => {
    const look = getComputedStyle(from);
    if (look.display === "none" || from.matches(".pointer")) return to.remove();
    const [inside, copies] = [[...from.children], [...to.children]];
    for (const key of STYLED) to.style.setProperty(key, plain(look.getPropertyValue(key)));
    to.removeAttribute("class");
    inside.forEach((child, i) => styled(child, copies[i]));
  };
  const words = (node, put) => {
    const range = document.createRange();
    const lines = [];
    for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const box = range.getBoundingClientRect();
      const line = lines[lines.length - 1];
      if (line && Math.abs(line.box.top - box.top) < 2) line.text += " " + word;
      else if (box.width) lines.push({ text: word, box });
    }
    for (const { text, box } of lines) put(text, box, getComputedStyle(node.parentElement));
  };
  const picture = (figure) => {
    // Outside of the page a chart needs its own legend.
    const names = new Set([...figure.querySelectorAll(".series")].map((part) => part.dataset.series));
    const legend = shared(figure)?.cloneNode(true);
    for (const key of legend?.querySelectorAll(".key") ?? []) if (!names.has(key.dataset.series) || key.ariaPressed === "false") key.closest("li").remove();
    if (names.size > 1 && legend) figure.querySelector("figcaption").after(legend);
    const area = figure.getBoundingClientRect();
    const bottom = figure.querySelector("details.data").getBoundingClientRect().top;
    const [width, height] = [Math.ceil(area.width) + 24, Math.ceil(bottom - area.top) + 24];
    const sheet = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({ xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` })) sheet.setAttribute(key, value);
    make("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }, sheet);
    const shapes = make("defs", {}, sheet);
    for (const shape of document.querySelectorAll(".symbols g")) shapes.append(shape.cloneNode(true));
    const at = (box) => ({ x: box.left - area.left + 12, y: box.top - area.top + 12 });
    const left = (node) => node.closest("details.data, .save, script");
    for (const drawn of figure.querySelectorAll("svg")) {
      const box = drawn.getBoundingClientRect();
      if (left(drawn) || drawn.parentElement.closest("svg") || !box.width) continue;
      const copy = drawn.cloneNode(true);
      styled(drawn, copy);
      for (const [key, value] of Object.entries({ ...at(box), width: box.width, height: box.height })) copy.setAttribute(key, value);
      for (const name of ["role", "aria-label"]) copy.removeAttribute(name);
      sheet.append(copy);
    }
    for (const swatch of figure.querySelectorAll(".swatch, .heat-scale i")) {
      const box = swatch.getBoundingClientRect();
      make("rect", { ...at(box), width: box.width, height: box.height, fill: plain(getComputedStyle(swatch).backgroundColor), opacity: getComputedStyle(swatch).opacity }, sheet);
    }
    const texts = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode;
      if (left(node.parentElement) || node.parentElement.closest("svg")) continue;
      words(node, (text, box, look) => {
        const { x, y } = at(box);
        make("text", { x, y: y + 0.78 * box.height, fill: look.color, "font-family": look.fontFamily, "font-size": look.fontSize, "font-weight": look.fontWeight }, sheet).textContent = text;
      });
    }
    legend?.remove();
    return { text: new XMLSerializer().serializeToString(sheet), width, height };
  };
  const painted = ({ text, width, height }) => new Promise((done, fail) => {
    const image = new Image();
    image.onerror = fail;
    image.onload = () => {
      const sheet = document.createElement("canvas");
      [sheet.width, sheet.height] = [2 * width, 2 * height];
      sheet.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
      sheet.toBlob(done, "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  });
  // A spreadsheet would run a name that starts like a formula, so quote it.
  const quoted = (v) => (typeof v === "number" ? v : `"${String(v ?? "").replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"`);
  const numbers = (figure) => {
    const rows = [];
    for (const plot of figure.querySelectorAll(".plot")) {
      const chart = charts.get(plot);
      const panel = plot.parentElement.querySelector(".panel-title")?.textContent ?? "";
      if (chart) {
        if (!rows.length) rows.push(["panel", "series", chart.x.label, chart.y.label, "low", "high"]);
        for (const s of chart.series) s.x.forEach((x, i) => rows.push([panel, s.name, chart.names.length ? chart.names[x] : x, s.y[i], s.low?.[i], s.high?.[i]]));
      } else {
        const { rows: names, columns, values } = JSON.parse(plot.querySelector(".matrix").textContent);
        rows.push(["", ...columns], ...names.map((name, i) => [name, ...values[i]]));
      }
    }
    return rows.map((row) => row.map(quoted).join(",") + "\r\n").join("");
  };
  const savable = (figure) => {
    const kinds = {
      CSV: async () => new Blob(["\ufeff", numbers(figure)], { type: "text/csv" }),
      SVG: async () => new Blob([picture(figure).text], { type: "image/svg+xml" }),
      PNG: () => painted(picture(figure)),
    };
    const title = figure.querySelector("figcaption :is(h2, h3, h4)") || figure.closest(".part").querySelector("h2, h3");
    const bar = html("p", { class: "save" }, "Save ");
    for (const [kind, made] of Object.entries(kinds)) {
      const button = html("button", { type: "button", "aria-label": `${kind} of ${title.textContent}` }, kind);
      button.addEventListener("click", async () => {
        const href = URL.createObjectURL(await made());
        html("a", { href, download: `${figure.id.replace(/-chart$/, "")}.${kind.toLowerCase()}` }).click();
        setTimeout(() => URL.revokeObjectURL(href), 10_000);
      });
      bar.append(button);
    }
    figure.querySelector("details.data").before(bar);
  };

  // Commands to copy.
  const copied = (command) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", () =>
      navigator.clipboard.writeText(command.textContent).then(
        () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); },
        () => { button.textContent = "Select and copy"; },
      ),
    );
    command.after(button);
  };

  // Prepare a part of the page: the complete page now, and later parts when they are inserted.
  const bring = (scope) => {
    for (const key of scope.querySelectorAll(".key")) switches(key);
    for (const data of scope.querySelectorAll(".plot > script:not(.matrix)")) enliven(data.parentElement, JSON.parse(data.textContent));
    for (const plot of scope.querySelectorAll(".plot.bars, .plot.heat")) pieces(plot);
    for (const form of scope.querySelectorAll(".choose")) choose(form);
    for (const figure of scope.querySelectorAll("figure.chart")) savable(figure);
    if (navigator.clipboard) for (const command of scope.querySelectorAll(".command pre")) copied(command);
  };
  bring(document);
  document.addEventListener("rhfedmtl:new", (event) => { hide(); bring(event.target); });

  // Unfold all details for printing.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.part:not([open]), details.more:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of closed) part.open = false; });

  // A link to a folded part unfolds it.
  const unfold = () => {
    const goal = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = goal && goal.closest("details");
    if (part) { part.open = true; goal.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();

  // Mark the current chapter in the list of contents.
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  if (links.size) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) for (const [id, link] of links) link.toggleAttribute("aria-current", id === entry.target.id);
    }, { rootMargin: "-10% 0px -70% 0px" });
    for (const study of document.querySelectorAll(".study")) seen.observe(study);
  }
})();
