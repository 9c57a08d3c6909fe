(() => {
  const root = document.getElementById("live");
  if (!root) return;
  const host = document.getElementById("parts"), state = document.getElementById("state"), age = document.getElementById("age"), lost = document.getElementById("lost");
  const SILENT_MS = 25000, AT_ONCE_MS = 1000, RETRY_MS = 3000, RESUMED_MS = 10000;
  const waiting = new Map(); // parts that came while the reader was in them
  let version = root.dataset.version, dataAt = +root.dataset.dataAt || 0, over = root.dataset.state === "ended";

  const part = (key) => [...host.children].find((node) => node.dataset.part === key);
  const isRead = (node) => {
    const chosen = getSelection();
    return node.contains(document.activeElement) || (!chosen.isCollapsed && node.contains(chosen.anchorNode));
  };
  const put = (node, html) => {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    if (node.dataset.part === "timeline") {
      const next = fresh.content.getElementById("timeline-data"), now = node.querySelector("#timeline-data");
      if (next && now && chart && chart.update(JSON.parse(next.textContent))) { now.textContent = next.textContent; return; }
      const kept = chart ? chart.stop() : null;
      node.replaceChildren(fresh.content);
      chart = startTimeline(kept);
      return;
    }
    const open = [...node.querySelectorAll("details")].map((details) => details.open), left = [...node.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
    node.replaceChildren(fresh.content);
    node.querySelectorAll("details").forEach((details, index) => { if (open[index]) details.open = true; });
    node.querySelectorAll(".scroll").forEach((table, index) => { if (left[index]) table.scrollLeft = left[index]; });
    if (node.dataset.part === "code") startFlames();
  };
  const apply = (news) => {
    version = news.version;
    dataAt = news.data_at || 0;
    over = news.state === "ended";
    root.dataset.state = news.state;
    if (state.textContent !== news.line) state.textContent = news.line;
    let place = host.firstElementChild;
    for (const key of news.order) {
      let node = part(key);
      if (!node) { node = document.createElement("div"); node.dataset.part = key; }
      if (node === place) place = place.nextElementSibling; else host.insertBefore(node, place);
      if (!(key in news.parts)) continue;
      if (key !== "timeline" && isRead(node)) waiting.set(key, news.parts[key]); else { waiting.delete(key); put(node, news.parts[key]); }
    }
    if (news.order.length) while (place) { const next = place.nextElementSibling; place.remove(); place = next; }
    if (over) part("empty")?.remove(); // it ended without data
  };
  document.addEventListener("focusout", () => setTimeout(() => {
    for (const [key, html] of waiting) { const node = part(key); if (node && !isRead(node)) { waiting.delete(key); put(node, html); } }
  }, 0));

  const ask = async () => {
    const asked = Date.now(), before = version;
    const fail = (text) => { lost.textContent = text; lost.hidden = false; return RETRY_MS; };
    try {
      // The server answers as soon as there is news, or after ten seconds.
      const answer = await fetch(`${root.dataset.id}/updates?since=${encodeURIComponent(version)}`, { cache: "no-store", signal: AbortSignal.timeout(SILENT_MS) });
      if (answer.status === 403 && !over) return fail("The server was restarted: open the address that it printed.");
      if (answer.status === 404) return fail("This job is gone: its files were removed, or the server was started for other jobs.");
      if (!answer.ok) throw new Error(String(answer.status));
      apply(await answer.json());
      lost.hidden = true;
      return version === before && Date.now() - asked < AT_ONCE_MS ? AT_ONCE_MS : 0; // too many others wait for news
    } catch { return over ? RETRY_MS : fail("The server cannot be reached; trying again."); }
  };
  const follow = async () => {
    for (;;) {
      if (document.hidden) await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
      const pause = await ask();
      await new Promise((done) => setTimeout(done, over ? RESUMED_MS : pause));
    }
  };
  setInterval(() => {
    const seconds = Math.max(Math.round(Date.now() / 1000 - dataAt), 0);
    const [, unit, name] = [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]].find(([most]) => seconds < most) ?? [0, 86400, "days"];
    age.textContent = dataAt && !over ? `latest data ${Math.round(seconds / unit).toLocaleString("en")} ${name} ago` : "";
  }, 1000);
  follow();
})();

(() => {
  const list = document.getElementById("list");
  if (!list) return;
  const search = document.getElementById("search"), pair = document.getElementById("pair");
  let shown = null, asked = 0;
  // The jobs that can be compared are those in the list.
  const offer = () => {
    if (pair) for (const select of pair.querySelectorAll("select")) {
      const before = select.value;
      select.replaceChildren(...[...list.querySelectorAll("h2 a")].map((link) => new Option(link.textContent, link.getAttribute("href").slice("jobs/".length))));
      select.value = before;
      if (select.selectedIndex < 0) select.selectedIndex = select.name === "a" ? Math.min(1, select.length - 1) : 0;
    }
  };
  const ask = async (chosen) => {
    const number = ++asked;
    try {
      const answer = await fetch(`list${location.search}`, { cache: "no-store" });
      if (!answer.ok) return;
      const html = await answer.text();
      if (number !== asked || html === shown) return; // a later one has been asked for
      const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      shown = html;
      list.innerHTML = html;
      if (focused) for (const link of list.querySelectorAll("a")) if (link.getAttribute("href") === focused) link.focus();
      if (chosen) offer();
    } catch { return; }
  };
  if (search) {
    const address = () => {
      const pairs = new URLSearchParams([...new FormData(search)].filter(([, value]) => value));
      return pairs.size ? `?${pairs}` : location.pathname;
    };
    let timer = 0;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => { history.replaceState(null, "", address()); ask(true); }, 150);
    });
    search.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); history.replaceState(null, "", address()); ask(true); });
  }
  setInterval(() => { if (!document.hidden) ask(false); }, 3000);
})();

if (document.getElementById("again")) setTimeout(() => location.reload(), 3000);
