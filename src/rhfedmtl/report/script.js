// What a report gains with a script: values under the pointer, series to switch, light and dark. All data is in the page.
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

  // Light and dark: as the system has it, until somebody chooses.
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

  // Series to switch: one legend for all panels of a figure.
  const switches = (key) => {
    const parts = [...key.closest("figure").querySelectorAll(".series, .end")];
    const mine = (part) => part.dataset.series === key.dataset.series;
    const point = (on) => {
      const shown = on && key.getAttribute("aria-pressed") === "true";
      for (const part of parts) {
        part.classList.toggle("lit", shown && mine(part));
        part.classList.toggle("dim", shown && !mine(part));
      }
    };
    key.addEventListener("click", () => {
      const on = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", on);
      for (const part of parts.filter(mine)) part.classList.toggle("off", !on);
      point(on);
    });
    for (const [event, on] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]])
      key.addEventListener(event, () => point(on));
  };
  const switchedOff = (figure) =>
    new Set([...figure.querySelectorAll('.key[aria-pressed="false"]')].map((key) => key.dataset.series));

  // One box for values: beside the pointer where there is room, under the plot on a phone.
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
  addEventListener("scroll", () => { if (moved()) hide(); }, { passive: true });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot")) hide(); });

  const enliven = (plot) => {
    const chart = JSON.parse(plot.querySelector("script").textContent);
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
    plot.setAttribute("aria-label", "Values: left and right arrow keys walk along the axis, Escape ends");
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity }[event.key];
      if (event.key === "Escape") hide();
      if (step === undefined) return;
      event.preventDefault();
      show(step);
    });
  };

  // Bars and matrices: the value of the piece under the pointer.
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

  // All of this for a part of the page; for the whole of it now, for what comes later when it is there.
  const bring = (scope) => {
    for (const key of scope.querySelectorAll(".key")) switches(key);
    for (const data of scope.querySelectorAll(".plot > script")) enliven(data.parentElement);
    for (const plot of scope.querySelectorAll(".plot.bars, .plot.heat")) pieces(plot);
    if (navigator.clipboard) for (const command of scope.querySelectorAll(".command pre")) copied(command);
  };
  bring(document);
  document.addEventListener("rhfedmtl:new", (event) => { hide(); bring(event.target); });

  // Paper has no buttons to unfold things with.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.part:not([open]), details.more:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of closed) part.open = false; });

  // A link to something folded unfolds it.
  const unfold = () => {
    const goal = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = goal && goal.closest("details");
    if (part) { part.open = true; goal.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();

  // Where the reader is.
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  if (links.size) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) for (const [id, link] of links) link.toggleAttribute("aria-current", id === entry.target.id);
    }, { rootMargin: "-10% 0px -70% 0px" });
    for (const study of document.querySelectorAll(".study")) seen.observe(study);
  }
})();
