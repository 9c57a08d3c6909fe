"use strict";
(() => {
  const source = document.getElementById("jobs-data"), table = document.getElementById("jobs-table");
  if (!source || !table) return;
  const data = JSON.parse(source.textContent);
  const PAGE = 100, total = data.total, body = table.tBodies[0];
  const columns = data.columns;
  const all = Uint32Array.from({ length: total }, (_, i) => i);
  let order = all, page = 0, sorted = data.sorted, down = true;

  const make = (tag, className, content, parent) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (content !== undefined && content !== "") node.textContent = content;
    if (parent) parent.appendChild(node);
    return node;
  };
  const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const dollars = (value) => (value >= 99.995 ? "$" + grouped(value, 0) : value >= 0.005 ? "$" + grouped(value, 2) : value > 0 ? "<$0.01" : "$0");
  const hours = (value) => (value >= 99.95 ? grouped(value, 0) + " h" : value * 60 >= 59.5 ? grouped(value, 1) + " h" : value * 3600 >= 59.5 ? grouped(value * 60, 0) + " min" : value * 3600 >= 0.5 ? grouped(value * 3600, 0) + " s" : value > 0 ? "<1 s" : "0 h");
  const shown = {
    usd: dollars,
    hours,
    share: (value) => grouped(value, 0) + " %",
    date: (value) => new Date(value * 6e4).toISOString().slice(0, 16).replace("T", " "),
    number: (value) => grouped(value, 2).replace(/\.?0+$/, ""),
  };
  const value = (column, row) => (column.codes ? column.texts[column.codes[row]] : column.values[row]);
  const text = (column, row) => {
    const found = value(column, row);
    if (found === null || found === undefined) return ["usd", "hours", "share"].includes(column.kind) ? "\u2013" : "";
    return column.kind in shown ? shown[column.kind](found) : found;
  };

  const address = (row) => {
    const pattern = data.links.texts[data.links.codes[row]];
    return pattern === "" ? "" : pattern.replaceAll("\u0000", () => encodeURIComponent(columns[0].values[row]));
  };
  const draw = () => {
    const rows = document.createDocumentFragment();
    for (const row of order.subarray(page * PAGE, (page + 1) * PAGE)) {
      const line = make("tr", "", "", rows);
      columns.forEach((column, place) => {
        const content = text(column, row);
        if (place === 0) {
          const head = make("th", "", "", line), href = address(row);
          head.scope = "row";
          if (href) make("a", "", content, head).href = href; else head.textContent = content;
        } else {
          const cell = make("td", column.css, "", line);
          const advice = column.kind === "cause" && data.advice[row];
          if (advice) {
            const details = make("details", "", "", cell);
            make("summary", "", content, details);
            make("p", "", advice, details);
          } else cell.textContent = content;
        }
      });
    }
    body.replaceChildren(rows);
    const pages = Math.max(Math.ceil(order.length / PAGE), 1);
    previous.disabled = page === 0;
    next.disabled = page >= pages - 1;
    pager.hidden = pages < 2;
    where.textContent = `Rows ${grouped(order.length ? page * PAGE + 1 : 0, 0)} to ${grouped(Math.min((page + 1) * PAGE, order.length), 0)} of ${grouped(order.length, 0)}`;
  };

  const sum = (key, place) => {
    const column = columns.find((one) => one.key === key);
    if (column && order.length === total) return shown[column.kind](data.sums[place]);
    let found = 0, known = false;
    if (column) for (const row of order) if (column.values[row] !== null) { found += column.values[row]; known = true; }
    return known ? shown[column.kind](found) : "";
  };
  const tell = () => {
    const spent = sum("spent", 0), lost = sum("lost", 1);
    status.textContent = `${grouped(order.length, 0)} of ${grouped(total, 0)} jobs` + (spent ? `: ${spent} spent` : "") + (lost ? `, ${lost} wasted` : "");
  };

  const collator = new Intl.Collator("en", { numeric: true });
  const ranks = new Map();
  const rank = (column) => {
    // The place of each row's text among all texts, so that sorting compares numbers only.
    if (!ranks.has(column.key)) {
      const texts = column.texts || column.values;
      const places = texts.map((_, i) => i).sort((a, b) => collator.compare(texts[a], texts[b]));
      const found = new Float64Array(texts.length);
      places.forEach((place, i) => { found[place] = i && collator.compare(texts[places[i - 1]], texts[place]) === 0 ? found[places[i - 1]] : i; });
      ranks.set(column.key, found);
    }
    return ranks.get(column.key);
  };
  const keys = (column) => {
    if (column.kind in shown) return (row) => column.values[row];
    const places = rank(column);
    return column.codes ? (row) => (column.texts[column.codes[row]] === "" ? null : places[column.codes[row]]) : (row) => places[row];
  };
  const sort = () => {
    const column = columns.find((one) => one.key === sorted);
    if (!column) return;
    const key = keys(column), sign = down ? -1 : 1;
    order = order.slice().sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return x === y ? a - b : x < y ? -sign : sign;
    });
    [...table.tHead.rows[0].cells].forEach((cell, place) => {
      if (columns[place].key === sorted) cell.setAttribute("aria-sort", down ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    });
  };

  const filters = document.getElementById("jobs-filters"), status = document.getElementById("jobs-status");
  const pager = document.getElementById("jobs-pager");
  const previous = make("button", "", "Previous", pager), next = make("button", "", "Next", pager), where = make("span", "quiet", "", pager);
  previous.type = next.type = "button";
  const turn = (by) => { page += by; draw(); table.parentElement.scrollTop = 0; table.scrollIntoView({ block: "nearest" }); };
  previous.addEventListener("click", () => turn(-1));
  next.addEventListener("click", () => turn(1));

  const label = (caption) => make("label", "", caption, filters);
  const search = make("input", "", "", label("Search"));
  search.type = "search";
  search.id = "jobs-search";
  search.autocomplete = "off";
  const searched = columns.filter((column) => !(column.kind in shown));
  const lower = new Map();
  const choices = columns.filter((column) => column.codes && column.texts.length > 1 && column.texts.length <= 400).map((column) => {
    const select = make("select", "", "", label(column.name));
    select.dataset.key = column.key;
    make("option", "", "all", select).value = "-1";
    const counts = new Uint32Array(column.texts.length);
    for (const code of column.codes) counts[code]++;
    const places = column.texts.map((_, i) => i).sort((a, b) => collator.compare(column.texts[a], column.texts[b]));
    for (const place of places) make("option", "", `${column.texts[place] || "(none)"} (${grouped(counts[place], 0)})`, select).value = String(place);
    select.addEventListener("change", () => filter());
    return [column, select];
  });
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = choices.map(([column, select]) => [column.codes, +select.value]).filter(([, code]) => code >= 0);
    if (words.length) for (const column of searched) if (!lower.has(column.key)) lower.set(column.key, (column.texts || column.values).map((one) => one.toLowerCase()));
    const found = [];
    for (const row of all) {
      if (!wanted.every(([codes, code]) => codes[row] === code)) continue;
      if (!words.every((word) => searched.some((column) => lower.get(column.key)[column.codes ? column.codes[row] : row].includes(word)))) continue;
      found.push(row);
    }
    order = Uint32Array.from(found);
    page = 0;
    sort();
    draw();
    tell();
  }
  search.addEventListener("input", filter);
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    const caption = cell.textContent, button = make("button", "", caption);
    button.type = "button";
    button.addEventListener("click", () => {
      const column = columns[place];
      down = sorted === column.key ? !down : column.kind in shown;
      sorted = column.key;
      page = 0;
      sort();
      draw();
    });
    cell.replaceChildren(button);
  });
  document.getElementById("jobs-rest")?.remove();
  filters.hidden = status.hidden = total < 6;
  filter();
})();
