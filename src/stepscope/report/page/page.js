"use strict";
/* The page works without this file; it adds sorting, filtering, hovering and the choice of theme. */

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};

/* A value in the prefix that keeps it short, with three digits: as units.py writes it. */
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "u"], [1e-9, "n"]];
function spoken(value, unit) {
  if (value === null || value === undefined) return "-";
  if (unit === "1") return (100 * value).toFixed(value < 1 ? 1 : 0) + " %";
  const digits = (number) => number.toLocaleString("en", { maximumSignificantDigits: 3 });
  if (value === 0) return unit === "ns" ? "0 ms" : "0 " + unit;
  if (unit === "ns") return spoken(value / 1e9, "s");
  const [scale, prefix] = PREFIXES.find(([size]) => Math.abs(value) >= 0.9995 * size) || PREFIXES[PREFIXES.length - 1];
  return digits(value / scale) + " " + prefix + unit;
}
/* One choice of layers for the whole page: the list and the timeline both follow it. null: none is chosen. */
const markLayers = (names, from, inView = false) => document.dispatchEvent(new CustomEvent("layers", { detail: { names, from, inView } }));
const redrawn = []; // what is drawn by hand, and so does not follow the theme by itself

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
const byName = new Intl.Collator("en", { numeric: true }).compare; // layer 2 before layer 10
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
    const numeric = heading.classList.contains("n"); // a text that is not stated otherwise sorts as it reads
    const values = rows.map(({ cells }) => cells[column].dataset.v ?? (numeric ? undefined : cells[column].textContent || undefined));
    order = rows.map((_, index) => index).sort((a, b) => {
      const x = values[a], y = values[b];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined) || a - b;
      const rank = numeric ? x - y : byName(x, y);
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
    if (!heading.textContent) return; // a column without a name is no button
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

/* Theme: as the system has it, until a reader chooses. */
function themeButton() {
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const button = make("button", { type: "button", onclick: () => choose(now() === "dark" ? "light" : "dark") });
  const choose = (theme) => { root.dataset.theme = theme; say(); };
  const say = () => { button.textContent = now() === "dark" ? "Light" : "Dark"; redrawn.forEach((draw) => draw()); };
  let before; // paper is light
  addEventListener("beforeprint", () => { before = root.dataset.theme; choose("light"); });
  addEventListener("afterprint", () => { if (before) choose(before); else { delete root.dataset.theme; say(); } });
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
  for (const section of document.querySelectorAll("section")) if (links.has(section.id)) watch.observe(section);
}

/* Views of the same: one at a time, and all of them without this file. */
function switchViews(box) {
  const views = [...box.querySelectorAll(":scope > [data-view]")];
  const buttons = views.map((view, at) => make("button", { type: "button", onclick: () => show(at) }, view.dataset.view));
  const show = (chosen) => views.forEach((view, at) => {
    view.hidden = at !== chosen;
    buttons[at].setAttribute("aria-pressed", String(at === chosen));
  });
  if (views.length > 1) box.prepend(make("div", { class: "choice", role: "group", "aria-label": "View" }, ...buttons));
  show(0);
}
/* What is closed opens for a link that leads there, and for paper. */
const openFor = (hash) => { const inside = hash && document.querySelector(CSS.escape ? "#" + CSS.escape(hash.slice(1)) + " > details" : hash); if (inside) inside.open = true; };
addEventListener("hashchange", () => openFor(location.hash));
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => openFor(link.hash));
openFor(location.hash);
let wereClosed = [];
addEventListener("beforeprint", () => { wereClosed = [...document.querySelectorAll("details:not([open])")]; for (const one of wereClosed) one.open = true; });
addEventListener("afterprint", () => { for (const one of wereClosed) one.open = false; });

/* A chart that is wider than a phone is moved with the keys too. */
function moveByKeys() {
  for (const chart of document.querySelectorAll(".chart")) {
    const wide = chart.scrollWidth > chart.clientWidth + 1, named = chart.closest("figure")?.querySelector("figcaption")?.textContent;
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Chart: " + (named || "")]]) {
      if (wide) chart.setAttribute(name, value); else chart.removeAttribute(name);
    }
  }
}
addEventListener("resize", moveByKeys);
document.addEventListener("toggle", moveByKeys, true); // what is opened has a width only then
moveByKeys();

document.querySelectorAll("[data-table]").forEach(enliven);
document.querySelectorAll("[data-views]").forEach(switchViews);
themeButton();
followSections();
