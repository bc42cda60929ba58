// The same page in another version, or that version's first page where it is not there.
(() => {
  "use strict";
  const select = document.querySelector(".versions select");
  const here = select.dataset.version;
  fetch(select.dataset.list).then((answer) => answer.json()).then((versions) => {
    const options = versions.map(({ version, url }) => new Option(version, url, version === here, version === here));
    select.replaceChildren(...options);
  }).catch(() => { /* no list there: this version alone */ });
  select.addEventListener("change", () => {
    const mine = select.dataset.list.replace(/versions\.json$/, `${here}/`);
    const page = location.href.startsWith(mine) ? location.href.slice(mine.length) : "";
    const goal = select.value + page;
    fetch(goal, { method: "HEAD" }).then((answer) => { location.href = answer.ok ? goal : select.value; });
  });
})();
