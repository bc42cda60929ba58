// Live updates: when the server reports a change, fetch the page again and replace its content.
(() => {
  "use strict";
  const live = () => document.getElementById("live");
  const pulse = document.querySelector(".pulse");
  if (new URLSearchParams(location.search).has("token")) {
    const clean = new URL(location);
    clean.searchParams.delete("token");
    history.replaceState(null, "", clean);
  }

  // Keep the reader's state (open parts, selections, input, scroll position) when the content is replaced.
  const kept = () => ({
    open: [...live().querySelectorAll("details")].map((part) => part.open),
    off: [...live().querySelectorAll('.key[aria-pressed="false"]')].map((key) => key.dataset.series),
    chosen: [...live().querySelectorAll(".choose select")].map((node) => [node.id, node.selectedIndex]),
    picked: [...live().querySelectorAll("input:checked")].map((box) => box.id),
    scrolled: [...live().querySelectorAll(".scroll")].map((box) => box.scrollLeft),
    focus: document.activeElement && document.activeElement.id,
    at: document.activeElement && document.activeElement.selectionStart,
  });
  const restore = (was) => {
    live().querySelectorAll("details").forEach((part, i) => { if (was.open[i] !== undefined) part.open = was.open[i]; });
    live().querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = was.scrolled[i] || 0; });
    for (const [id, at] of was.chosen) {
      const node = document.getElementById(id);
      if (!node || node.selectedIndex === at) continue;
      node.selectedIndex = at;
      node.dispatchEvent(new Event("change", { bubbles: true }));
    }
    for (const id of was.picked) { const box = document.getElementById(id); if (box) box.checked = true; }
    for (const key of live().querySelectorAll(".key")) if (was.off.includes(key.dataset.series)) key.click();
    const last = was.focus && document.getElementById(was.focus);
    if (last && last !== document.activeElement) {
      last.focus({ preventScroll: true });
      if (was.at != null && last.setSelectionRange && last.type !== "range") try { last.setSelectionRange(was.at, was.at); } catch { /* a field without a caret */ }
    }
  };
  let asked = 0;
  const show = async (href, parts = ["live"]) => {
    const mine = ++asked;
    try {
      const answer = await fetch(href, { headers: { accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== asked || parts.some((id) => !page.getElementById(id) || !document.getElementById(id))) return;
      const was = kept();
      for (const id of parts) {
        const here = document.getElementById(id);
        here.replaceChildren(...page.getElementById(id).childNodes);
        here.dispatchEvent(new Event("rhfedmtl:new", { bubbles: true }));
      }
      document.title = page.title;
      restore(was);
    } catch { say("lost"); }
  };

  // Typing in the filter and moving sliders request a new answer at once.
  let waiting = 0;
  const soon = (work, ms) => { clearTimeout(waiting); waiting = setTimeout(work, ms); };
  const address = (form) => {
    const facts = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...facts]) if (value === "") facts.delete(name);
    return `${form.getAttribute("action")}?${facts}`;
  };
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form.filter, form.whatif");
    if (!form) return;
    const twin = event.target.dataset.twin && form.querySelector(`#${event.target.dataset.twin}`);
    if (twin) twin.value = event.target.dataset.log ? Number((10 ** event.target.value).toPrecision(3)) : event.target.value;
    const slider = event.target.id && form.querySelector(`[data-twin="${event.target.id}"]`);
    if (slider) slider.value = slider.dataset.log ? Math.log10(event.target.value) : event.target.value;
    soon(() => {
      const href = address(form);
      history.replaceState(null, "", href);
      show(href, form.matches(".whatif") && event.target.id !== "pilot" ? ["answer", "plan"] : ["live"]);
    }, 30);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.matches("form.filter, form.whatif")) event.preventDefault();
  });

  // The server reports changes; a hidden page waits until it is visible.
  const say = (state) => { pulse.textContent = state; pulse.dataset.state = state; };
  let due = false;
  let busy = false;
  const refresh = async () => {
    due = true;
    if (busy || document.hidden) return;
    busy = true;
    while (due && !document.hidden) {
      due = false;
      await show(location.href);
      await new Promise((done) => setTimeout(done, 250));
    }
    busy = false;
  };
  document.addEventListener("visibilitychange", () => { if (due) refresh(); });
  const events = new EventSource("/events");
  events.addEventListener("open", () => say("live"));
  events.addEventListener("error", () => say("lost"));
  events.addEventListener("changed", () => { if (location.pathname !== "/whatif") refresh(); });
})();
