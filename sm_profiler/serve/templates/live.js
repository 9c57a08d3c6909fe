(() => {
  const root = document.getElementById("live");
  if (!root) return;
  const host = document.getElementById("parts"), state = document.getElementById("state"), age = document.getElementById("age"), lost = document.getElementById("lost");
  const SILENT_MS = 15000, POLL_MS = 3000, RETRY_MS = 30000, RESUMED_MS = 10000;
  const waiting = new Map(); // parts that came while the reader was in them
  let version = root.dataset.version, dataAt = +root.dataset.dataAt || 0, seen = Date.now(), stream = null, polling = false, closedAt = 0, over = root.dataset.state === "ended";

  const part = (key) => [...host.children].find((one) => one.dataset.part === key);
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
    const open = [...node.querySelectorAll("details")].map((one) => one.open), left = [...node.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    node.replaceChildren(fresh.content);
    node.querySelectorAll("details").forEach((one, index) => { if (open[index]) one.open = true; });
    node.querySelectorAll(".scroll").forEach((one, index) => { if (left[index]) one.scrollLeft = left[index]; });
    if (node.dataset.part === "code") startFlames();
  };
  const apply = (news) => {
    version = news.version;
    dataAt = news.data_at || 0;
    over = news.state === "ended";
    if (!over && !stream && !polling) connect(); // it was resumed
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

  const heard = () => { seen = Date.now(); lost.hidden = true; };
  const close = () => { if (stream) stream.close(); stream = null; closedAt = Date.now(); };
  const connect = () => {
    close();
    const opened = stream = new EventSource(`${root.dataset.id}/events?since=${encodeURIComponent(version)}`);
    opened.addEventListener("parts", (event) => { heard(); polling = false; apply(JSON.parse(event.data)); });
    opened.addEventListener("beat", () => { heard(); polling = false; });
    opened.addEventListener("end", () => { heard(); close(); });
    opened.onerror = () => { if (opened === stream) { close(); polling = true; } };
  };
  const poll = async () => {
    try {
      const answer = await fetch(`${root.dataset.id}/updates?since=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (answer.status === 403 && !over) { lost.textContent = "The server was restarted: open the address that it printed."; lost.hidden = false; return; }
      if (answer.status === 404) { lost.textContent = "This job is gone: its files were removed, or the server was started for other jobs."; lost.hidden = false; return; }
      if (!answer.ok) throw new Error(String(answer.status));
      apply(await answer.json());
      heard();
    } catch { if (over) return; lost.textContent = "The server cannot be reached; trying again."; lost.hidden = false; }
  };
  let polled = 0;
  setInterval(() => {
    const now = Date.now(), seconds = Math.max(Math.round(now / 1000 - dataAt), 0);
    age.textContent = dataAt && !over ? `latest data ${seconds < 120 ? seconds + " s" : Math.round(seconds / 60) + " min"} ago` : "";
    if (document.hidden) return;
    if (over) { polling = false; if (now - polled > RESUMED_MS) { polled = now; poll(); } return; }
    if (stream && now - seen > SILENT_MS) { close(); polling = true; }
    if (polling && now - polled > POLL_MS) { polled = now; poll(); }
    if (polling && !stream && now - closedAt > (seen > closedAt ? POLL_MS : RETRY_MS)) connect();
  }, 1000);
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (!over) { seen = Date.now(); connect(); } });
  if (!over) connect();
})();

(() => {
  const list = document.getElementById("list");
  if (!list) return;
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch("list", { cache: "no-store" });
      if (!answer.ok) return;
      const html = await answer.text(), focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      list.innerHTML = html;
      if (focused) for (const link of list.querySelectorAll("a")) if (link.getAttribute("href") === focused) link.focus();
    } catch { return; }
  }, 3000);
})();

if (document.getElementById("again")) setTimeout(() => location.reload(), 3000);
