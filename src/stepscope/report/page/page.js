"use strict";
/* The page works without this file; it adds sorting, filtering, hovering, the icicle and the choice of theme. */

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};

/* Hovering: any [aria-label] inside a chart, and the cells of the icicle, say what they are. */
const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18) + "px";
}
const hideTip = () => { tip.hidden = true; };
for (const chart of document.querySelectorAll(".chart")) {
  chart.addEventListener("pointermove", (event) => {
    const mark = event.target.closest("[aria-label]");
    if (mark && chart.contains(mark)) showTip(mark.getAttribute("aria-label"), event.clientX, event.clientY);
    else hideTip();
  });
  chart.addEventListener("pointerleave", hideTip);
}
addEventListener("scroll", hideTip, { passive: true });

/* Tables: sort by a click on a heading, filter by any text, copy what is left as tab-separated text. */
function enliven(box) {
  const table = box.querySelector("table"), body = table.tBodies[0], limit = Number(box.dataset.shown);
  const rows = [...body.rows], headings = [...table.tHead.rows[0].cells];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  let order = rows.map((_, index) => index), open = false, wanted = "";
  const matching = () => order.filter((index) => texts[index].includes(wanted));
  const count = make("span", { class: "count", role: "status" });
  const more = make("button", { class: "more", type: "button", onclick: () => { open = !open; show(); } });
  const search = make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter " + box.dataset.name,
    oninput: () => { wanted = search.value.trim().toLowerCase(); show(); } });
  const copy = make("button", { type: "button", onclick: () => copyRows() }, "Copy");

  function show() {
    const found = matching(), visible = open ? found : found.slice(0, limit);
    body.replaceChildren(...visible.map((index) => rows[index]));
    count.textContent = found.length === rows.length ? rows.length + " rows" : found.length + " of " + rows.length + " rows";
    more.hidden = found.length <= limit;
    more.textContent = open ? "Show the first " + limit : "Show all " + found.length;
  }
  function sortBy(column) {
    const heading = headings[column];
    const down = heading.hasAttribute("aria-sort") ? heading.getAttribute("aria-sort") === "ascending" : heading.classList.contains("n");
    for (const other of headings) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const values = rows.map((row) => row.cells[column].dataset.v);
    const numeric = heading.classList.contains("n");
    order = rows.map((_, index) => index).sort((a, b) => {
      const x = values[a], y = values[b];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined) || a - b;
      const rank = numeric ? x - y : x.localeCompare(y);
      return (down ? -rank : rank) || a - b;
    });
    show();
  }
  async function copyRows() {
    const line = (cells) => [...cells].map((cell) => cell.textContent.trim()).join("\t");
    const text = [line(headings), ...matching().map((index) => line(rows[index].cells))].join("\n");
    const said = await toClipboard(text) ? "Copied" : "Could not copy";
    copy.textContent = said;
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }
  headings.forEach((heading, column) => {
    const button = make("button", { type: "button", onclick: () => sortBy(column) }, heading.textContent);
    heading.replaceChildren(button);
  });
  box.prepend(make("div", { class: "tools" }, search, copy, count));
  box.querySelector(".scroll").after(more);
  show();
  addEventListener("beforeprint", () => body.replaceChildren(...order.slice(0, 40).map((index) => rows[index])));
  addEventListener("afterprint", show);
}
async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", {}, text); // pages opened from a file may not have the clipboard
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/* The icicle: depth from left to right, time from top to bottom; a click makes a module the whole picture. */
const THINNEST = 4; // px; siblings below are drawn together
const CHOICES = [["total", "Total"], ["forward", "Forward"], ["backward", "Backward"], ["optimizer", "Optimizer"]];
function milliseconds(ns) {
  if (ns === null) return "-";
  const value = ns / 1e6;
  return value.toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3, useGrouping: true }) + " ms";
}
function readTree(figure) {
  const { columns, rows } = JSON.parse(figure.querySelector("script").textContent);
  const nodes = rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
  const root = { name: "all", label: "all modules", children: [], total: 0, forward: 0, backward: 0, optimizer: 0, own: 0 };
  for (const node of nodes) node.children = [];
  for (const node of nodes) {
    node.up = node.parent === null ? root : nodes[node.parent];
    node.label = node.name === "" ? node.type || "model" : node.name.split(".").pop();
    node.up.children.push(node);
  }
  for (const child of root.children) {
    for (const [key] of CHOICES) root[key] += child[key] || 0;
  }
  return root.children.length === 1 ? Object.assign(root.children[0], { up: null }) : root;
}
function describe(node) {
  const lines = [node.name === "" ? "the model" : node.name];
  if (node.type) lines[0] += "  (" + node.type + ")";
  const range = node.low === null || node.low === undefined ? "" : " (" + milliseconds(node.low) + " to " + milliseconds(node.high) + ")";
  lines.push("total " + milliseconds(node.total) + range);
  if (node.share !== undefined && node.share !== null) lines[1] += ", " + (100 * node.share).toFixed(1) + " % of the step";
  lines.push("forward " + milliseconds(node.forward) + ", backward " + milliseconds(node.backward));
  if (node.optimizer !== null) lines.push("optimizer " + milliseconds(node.optimizer));
  if (node.own !== undefined) lines.push("itself, without its children: " + milliseconds(node.own));
  if (node.parameters) lines.push(node.parameters.toLocaleString("en") + " parameters");
  if (node.calls) lines.push(node.calls + (node.calls === 1 ? " call a step" : " calls a step"));
  return lines.join("\n");
}
function depthOf(node, key) {
  return 1 + Math.max(0, ...node.children.filter((child) => child[key] > 0).map((child) => depthOf(child, key)));
}
function drawIcicle(figure) {
  const tree = readTree(figure);
  let at = tree, key = "total";
  const plot = make("div", { class: "plot", role: "group", "aria-label": "Modules by time" });
  const path = make("span", { class: "path" });
  const buttons = CHOICES.filter(([name]) => tree[name] > 0).map(([name, title]) =>
    make("button", { type: "button", "data-key": name, onclick: () => { key = name; draw(); } }, title));
  const legend = make("span", { class: "key" }, ...CHOICES.slice(1).filter(([name]) => tree[name] > 0).map(([name, title]) => {
    const swatch = make("i");
    swatch.style.background = "var(--" + name + ")";
    return make("span", {}, swatch, title.toLowerCase());
  }));
  function split(node) {
    const whole = (node.forward || 0) + (node.backward || 0) + (node.optimizer || 0);
    if (!(whole > 0)) return "var(--other)";
    let from = 0;
    const stops = CHOICES.slice(1).map(([name]) => {
      const to = from + 100 * (node[name] || 0) / whole, stop = "var(--" + name + ") " + from + "% " + to + "%";
      from = to;
      return stop;
    });
    return "linear-gradient(" + stops.join(",") + ")";
  }
  function go(node) { at = node; hideTip(); draw(); }
  function rest(nodes) {
    const sum = (name) => nodes.reduce((total, node) => total + Math.max(0, node[name] || 0), 0);
    const label = nodes.length === 1 ? nodes[0].label : nodes.length + " small modules";
    const pooled = { name: label, label, children: [], rest: true, up: nodes[0].up, low: null };
    for (const [name] of CHOICES) pooled[name] = sum(name);
    return pooled;
  }
  function cell(node, x, y, wide, high, heightPx) {
    if (heightPx < .75) return null;
    const label = make("span", {}, make("b", {}, node.label), make("em", {}, milliseconds(node[key])));
    const box = make("button", { type: "button", class: heightPx < 20 ? "cell low" : "cell", "aria-label": describe(node),
      onclick: () => { if (!node.rest) go(node === at ? node.up || tree : node); },
      onpointermove: (event) => showTip(describe(node), event.clientX, event.clientY), onpointerleave: hideTip,
      onfocus: (event) => { if (box.matches(":focus-visible")) { const r = box.getBoundingClientRect(); showTip(describe(node), r.left, r.top); } },
      onblur: hideTip });
    if (node.rest) box.classList.add("rest");
    if (heightPx >= 11) box.append(label);
    Object.assign(box.style, { left: x + "%", top: y + "%", width: wide + "%", height: high + "%" });
    box.style.setProperty("--split", split(node));
    box.style.setProperty("--tint", Math.round(4 + 32 * Math.min(1, (node.total || 0) / (tree.total || 1))) + "%");
    return box;
  }
  function draw() {
    const cells = [], height = plot.clientHeight || 480;
    const columns = Math.min(depthOf(at, key), plot.clientWidth < 560 ? 3 : 6), wide = 100 / columns;
    (function place(node, column, top, share) {
      const box = cell(node, column * wide, top, wide, share, height * share / 100);
      if (box) cells.push(box);
      if (!box || column + 1 >= columns) return;
      const partOf = (child) => node[key] > 0 ? share * Math.max(0, child[key] || 0) / node[key] : 0;
      const thin = node.children.filter((child) => partOf(child) > 0 && height * partOf(child) / 100 < THINNEST);
      const small = new Set(thin);
      const drawn = thin.length ? [...node.children.filter((child) => !small.has(child)), rest(thin)] : node.children;
      for (const child of drawn) {
        place(child, column + 1, top, partOf(child));
        top += partOf(child);
      }
    })(at, 0, 0, 100);
    plot.replaceChildren(...cells);
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.key === key));
    const trail = [];
    for (let node = at; node; node = node.up) trail.unshift(node);
    path.replaceChildren(...trail.flatMap((node, index) => index === trail.length - 1 ? [node.label]
      : [make("button", { type: "button", onclick: () => go(node) }, node.label), " › "]));
  }
  figure.prepend(make("div", { class: "bar" }, make("span", { class: "choice", role: "group", "aria-label": "Time of" }, ...buttons), path, legend), plot);
  plot.addEventListener("keydown", (event) => { if (event.key === "Escape") { go(at.up || tree); plot.firstChild.focus(); } });
  new ResizeObserver(draw).observe(plot);
  addEventListener("beforeprint", draw);
  draw();
}

/* Theme: as the system has it, until a reader chooses. */
function themeButton() {
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const button = make("button", { type: "button", onclick: () => { root.dataset.theme = now() === "dark" ? "light" : "dark"; say(); } });
  const say = () => { button.textContent = now() === "dark" ? "Light" : "Dark"; };
  dark.addEventListener("change", say);
  say();
  document.querySelector("nav").append(button);
}
function followSections() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.classList.remove("here");
      links.get(entry.target.id).classList.add("here");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const section of document.querySelectorAll("section")) watch.observe(section);
}

document.querySelectorAll("[data-table]").forEach(enliven);
document.querySelectorAll("[data-icicle]").forEach(drawIcicle);
themeButton();
followSections();
