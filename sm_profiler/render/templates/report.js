"use strict";
const startTimeline = (kept) => {
  const host = document.getElementById("chart");
  const source = document.getElementById("timeline-data");
  if (!host || !source) return null;
  let data = JSON.parse(source.textContent);
  const ending = new AbortController();
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 52, RIGHT = 8, TALL = 92, AXIS = 26;
  const hidden = kept ? kept.hidden : new Set();
  const key = (lane, series) => lane.id + " " + series.name;
  let from = kept && !kept.whole ? kept.from : 0, to = kept && !kept.whole ? kept.to : data.length, cursor = null, dragged = null;

  const make = (tag, attributes, parent) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (tag, className, content, parent) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (content) node.textContent = content;
    if (parent) parent.appendChild(node);
    return node;
  };
  const short = (value, unit) => {
    if (unit === "B/s") {
      for (const [limit, name] of [[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]) if (value >= limit) return +(value / limit).toPrecision(3) + " " + name;
      return Math.round(value) + " B/s";
    }
    if (unit === "ms" && value >= 1000) return +(value / 1000).toPrecision(3) + " s";
    return +value.toPrecision(3) + " " + unit;
  };
  const moment = (seconds) => {
    const span = to - from;
    if (data.length < 180) return +seconds.toFixed(span < 5 ? 2 : span < 60 ? 1 : 0) + " s";
    if (data.length < 7200) return +(seconds / 60).toFixed(span < 120 ? 2 : 1) + " min";
    return +(seconds / 3600).toFixed(span < 7200 ? 3 : 2) + " h";
  };
  const round = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
    const found = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(tick);
    return found;
  };

  const tools = html("div", "tools", "", host);
  const tip = html("div", "tip", "", host);
  tip.hidden = true;
  const button = (caption, label, act) => {
    const node = html("button", "", caption, tools);
    node.type = "button";
    if (label) node.setAttribute("aria-label", label);
    node.addEventListener("click", act);
  };
  const named = () => {
    const match = /^#t=([0-9.]+)(?:,([0-9.]+))?$/.exec(location.hash);
    if (!match) return;
    const low = +match[1], around = Math.max(data.length / 50, 5);
    if (match[2]) view(low, +match[2]); else view(low - around, low + around);
    host.scrollIntoView({ block: "nearest" });
  };
  const isWhole = () => from <= 0 && to >= data.length;
  const name = () => {
    try { history.replaceState(null, "", isWhole() ? location.pathname + location.search : `#t=${from.toFixed(2)},${to.toFixed(2)}`); } catch { return; }
  };
  const look = (low, high) => { view(low, high); name(); };
  const view = (low, high) => {
    const least = Math.max(data.length / 5000, 0.05);
    let span = Math.min(Math.max(high - low, least), data.length);
    from = Math.min(Math.max(low, 0), data.length - span);
    to = from + span;
    draw();
  };
  const zoom = (factor, at = (from + to) / 2) => look(at - (at - from) * factor, at + (to - at) * factor);
  button("Zoom in", "", () => zoom(0.5));
  button("Zoom out", "", () => zoom(2));
  button("All", "All: show the whole job", () => look(0, data.length));

  const lanes = data.lanes.map((lane) => {
    const head = html("div", "lane-head", "", host);
    html("b", "", lane.title, head);
    for (const series of lane.series) {
      const toggle = html("button", "toggle", "", head);
      toggle.type = "button";
      const own = key(lane, series);
      toggle.setAttribute("aria-pressed", String(!hidden.has(own)));
      html("span", "key b-" + series.colour, "", toggle);
      toggle.appendChild(document.createTextNode(series.name));
      toggle.addEventListener("click", () => {
        hidden.has(own) ? hidden.delete(own) : hidden.add(own);
        toggle.setAttribute("aria-pressed", String(!hidden.has(own)));
        draw();
      });
    }
    return { lane, svg: make("svg", { height: TALL, role: "img", "aria-label": lane.title + " over time" }, host) };
  });
  const axis = make("svg", { height: AXIS, "aria-hidden": "true" }, host);

  const find = (xs, x) => {
    let low = 0, high = xs.length;
    while (low < high) { const middle = (low + high) >> 1; xs[middle] < x ? (low = middle + 1) : (high = middle); }
    return low;
  };
  const evaluates = (a, b) => data.evaluation.some(([low, high]) => a <= low + 0.02 && high <= b + 0.02);  // no step between
  let width = 0;
  const place = (x) => LEFT + ((x - from) / (to - from)) * (width - LEFT - RIGHT);
  const time = (pixel) => from + ((pixel - LEFT) / (width - LEFT - RIGHT)) * (to - from);

  function draw() {
    width = host.clientWidth - 32;
    if (width <= LEFT) return;
    for (const { lane, svg } of lanes) drawLane(lane, svg);
    axis.replaceChildren();
    axis.setAttribute("width", width);
    const unit = data.length < 180 ? 1 : data.length < 7200 ? 60 : 3600;  // as in moment()
    for (const mark of round(from / unit, to / unit, Math.max(width / 110, 2))) {
      const tick = mark * unit, x = place(tick);
      make("line", { x1: x, x2: x, y1: 0, y2: 4, class: "axis" }, axis);
      make("text", { x, y: 18, "text-anchor": "middle" }, axis).textContent = moment(tick);
    }
  }

  function drawLane(lane, svg) {
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", `0 0 ${width} ${TALL}`);
    const shown = lane.series.filter((series) => !hidden.has(key(lane, series)));
    let top = lane.top;
    const parts = shown.map((series) => {
      const first = Math.max(find(series.x, from) - 1, 0), last = Math.min(find(series.x, to) + 1, series.x.length);
      return { series, first, last };
    });
    if (!top) {
      top = 0;
      for (const { series, first, last } of parts) for (let i = first; i < last; i++) top = Math.max(top, series.high[i]);
      top = top * 1.05 || 1;
    }
    const y = (value) => TALL - 6 - (Math.min(Math.max(value, 0), top) / top) * (TALL - 14);
    const clipId = "clip-" + lane.id;
    const clip = make("clipPath", { id: clipId }, make("defs", {}, svg));
    make("rect", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height: TALL }, clip);
    const inner = make("g", { "clip-path": `url(#${clipId})` }, svg);
    const span = (a, b, kind) => { if (b > from && a < to) make("rect", { x: place(Math.max(a, from)), y: 2, width: Math.max(place(Math.min(b, to)) - place(Math.max(a, from)), 0.5), height: TALL - 8, class: kind }, inner); };
    if (data.loop) { span(0, data.loop[0], "before-span"); span(data.loop[1], data.length, "before-span"); }
    for (const [a, b] of data.evaluation) span(a, b, "eval-span");
    const marks = round(0, top, 2);
    for (const tick of marks.length > 1 ? marks : round(0, top, 4)) {
      make("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }, svg);
      make("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, svg).textContent = short(tick, lane.unit).replace(" %", "%");
    }
    svg.appendChild(inner);
    for (const { series, first, last } of parts) {
      if (last <= first) continue;
      let bands = "", middles = "", begin = first;
      for (let end = first + 1; end <= last; end++) {
        if (end < last && !(lane.id === "steps" && evaluates(series.x[end - 1], series.x[end]))) continue;
        const upper = [], lower = [], middle = [];
        for (let i = begin; i < end; i++) {
          const x = place(series.x[i]).toFixed(1);
          upper.push(x + " " + y(series.high[i]).toFixed(1));
          lower.push(x + " " + y(series.low[i]).toFixed(1));
          middle.push(x + " " + y(series.mean[i]).toFixed(1));
        }
        bands += "M" + upper.join("L") + "L" + lower.reverse().join("L") + "Z";
        middles += "M" + middle.join("L") + "L" + middle[middle.length - 1];
        begin = end;
      }
      make("path", { d: bands, class: "band f-" + series.colour }, inner);
      make("path", { d: middles, class: "line s-" + series.colour, fill: "none" }, inner);
    }
    if (cursor !== null) make("line", { x1: place(cursor), x2: place(cursor), y1: 0, y2: TALL, class: "cursor" }, inner);
    if (dragged && cursor !== null) make("rect", { x: Math.min(place(dragged), place(cursor)), width: Math.abs(place(dragged) - place(cursor)), y: 0, height: TALL, class: "zoom-span" }, inner);
  }

  function showTip(event) {
    const lines = [moment(cursor)];
    for (const { lane } of lanes) for (const series of lane.series) {
      if (hidden.has(key(lane, series)) || !series.x.length) continue;
      const i = Math.min(find(series.x, cursor), series.x.length - 1);
      const range = series.high[i] > series.low[i] ? "  (" + short(series.low[i], lane.unit) + " – " + short(series.high[i], lane.unit) + ")" : "";
      lines.push(series.name.slice(0, 40) + "  " + short(series.mean[i], lane.unit) + range);
    }
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const box = host.getBoundingClientRect();
    const x = event.clientX - box.left;
    tip.style.top = Math.max(event.clientY - box.top + 16, 0) + "px";
    tip.style.left = (x > box.width / 2 ? Math.max(x - tip.offsetWidth - 14, 0) : x + 14) + "px";
  }
  const at = (event) => Math.min(Math.max(time(event.clientX - host.getBoundingClientRect().left - 16), from), to);
  const onChart = (event) => event.target.closest && event.target.closest("svg");
  host.addEventListener("pointermove", (event) => {
    if (!onChart(event) && dragged === null) { cursor = null; tip.hidden = true; draw(); return; }
    cursor = at(event);
    draw();
    showTip(event);
  });
  host.addEventListener("pointerdown", (event) => { if (onChart(event) && event.button === 0 && event.pointerType === "mouse") { dragged = at(event); event.preventDefault(); host.focus({ preventScroll: true }); } });
  window.addEventListener("pointerup", (event) => {
    if (dragged === null) return;
    const start = dragged, end = at(event);
    dragged = null;
    if (Math.abs(end - start) > (to - from) / 200) look(Math.min(start, end), Math.max(start, end)); else draw();
  }, { signal: ending.signal });
  window.addEventListener("hashchange", named, { signal: ending.signal });
  host.addEventListener("pointerleave", () => { if (dragged === null) { cursor = null; tip.hidden = true; draw(); } });
  host.addEventListener("dblclick", (event) => { if (onChart(event)) look(0, data.length); });
  host.addEventListener("keydown", (event) => {
    if (event.target !== host) return;
    const step = (to - from) / 5;
    const acts = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => look(0, data.length), ArrowLeft: () => look(from - step, to - step), ArrowRight: () => look(from + step, to + step) };
    if (acts[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); acts[event.key](); }
  });
  const observer = new ResizeObserver(draw);
  observer.observe(host);
  draw();
  if (!kept) named();

  const shape = (one) => one.lanes.map((lane) => [lane.id, ...lane.series.map((series) => series.name)].join()).join(";");
  return {
    /** Show newer data in place; return false if its lanes are others, so that the chart must be started anew. */
    update(next) {
      if (shape(next) !== shape(data)) return false;
      if (isWhole()) to = next.length;
      data = next;
      lanes.forEach((one, index) => { one.lane = data.lanes[index]; });
      draw();
      return true;
    },
    /** Stop, and return what the next chart starts with. */
    stop() {
      ending.abort();
      observer.disconnect();
      return { hidden, from, to, whole: isWhole() };
    },
  };
};

const startFlames = () => {
  const search = document.getElementById("flame-search"), found = document.getElementById("flame-found");
  if (!search) return;
  const title = (frame) => frame.querySelector("title").textContent;
  const all = [];
  for (const host of document.querySelectorAll(".flames")) {
    const frames = [...host.querySelectorAll(".frame")], reading = host.parentElement.querySelector(".reading");
    const span = (frame) => ({ from: +frame.dataset.from, size: +frame.dataset.span, row: +frame.getAttribute("y") });
    let current = null;
    all.push(...frames);
    const widen = (from, size) => {
      for (const frame of frames) {
        const own = span(frame), inside = own.from < from + size - 1e-9 && own.from + own.size > from + 1e-9;
        frame.style.display = inside ? "" : "none";
        const left = Math.max(own.from, from), right = Math.min(own.from + own.size, from + size);
        frame.setAttribute("x", (100 * (left - from)) / size + "%");
        frame.setAttribute("width", (100 * Math.max(right - left, 0)) / size + "%");
      }
    };
    const select = (frame) => {
      if (!frame) return;
      if (current) current.classList.remove("current");
      current = frame;
      frame.classList.add("current");
      reading.textContent = title(frame);
    };
    const whole = () => widen(0, 1);
    const into = (frame) => { const { from, size } = span(frame); widen(from, size); select(frame); };
    const within = (inner, outer) => inner.from >= outer.from - 1e-6 && inner.from + inner.size <= outer.from + outer.size + 1e-6;
    const tall = frames.length ? +frames[0].getAttribute("height") : 0;
    const parent = (frame) => { const own = span(frame); return frames.find((one) => { const other = span(one); return other.row === own.row - tall && within(own, other); }); };
    const children = (frame) => { const own = span(frame); return frames.filter((one) => { const other = span(one); return other.row === own.row + tall && within(other, own); }); };
    const beside = (frame, by) => {
      const above = parent(frame), row = span(frame).row;
      const siblings = above ? children(above) : frames.filter((one) => span(one).row === row);
      return siblings[siblings.indexOf(frame) + by];
    };
    host.addEventListener("click", (event) => { const frame = event.target.closest(".frame"); if (frame) into(frame); else whole(); });
    host.addEventListener("keydown", (event) => {
      const acts = {
        ArrowDown: () => select(current ? children(current)[0] : frames[0]), ArrowUp: () => select(current && parent(current)),
        ArrowLeft: () => select(current && beside(current, -1)), ArrowRight: () => select(current && beside(current, 1)),
        Enter: () => current && into(current), Escape: whole,
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[event.key]();
    });
    host.addEventListener("focus", () => { if (!current) select(frames[0]); });
  }
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    let count = 0;
    for (const frame of all) {
      const hit = wanted !== "" && title(frame).toLowerCase().includes(wanted);
      frame.classList.toggle("found", hit);
      count += hit;
    }
    found.textContent = wanted ? (count === 1 ? "1 frame" : count + " frames") : "";
  });
};

let chart = startTimeline();
startFlames();
