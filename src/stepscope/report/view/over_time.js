"use strict";
/* Runs over each other: a plot a quantity, lines of the ticked runs, against time or the number of the step. */
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent), SVG = "http://www.w3.org/2000/svg";
const AXES = { t: "time since the first step, s", step: "step" };
const DASHES = ["", "7 4", "2 3"]; // runs are told apart without colour too
const LEFT = 58, RIGHT = 12, TOP = 8, BOTTOM = 38, HEIGHT = 176;
let axis = "t";
const node = (tag, attributes = {}, ...children) => {
  const made = ["svg", "path", "line", "text"].includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const style = (at) => ({ stroke: "var(--run-" + at + ")", "stroke-dasharray": DASHES[at % DASHES.length] });
const said = (value) => value === null || value === undefined ? "-" : value.toLocaleString("en", { maximumSignificantDigits: 3 });
const ticked = (name) => new Set([...document.querySelectorAll("input[name=" + name + "]:checked")].map((box) => box.value));

function box(name, value, text, checked, type = "checkbox") {
  const input = node("input", { type, name, value });
  input.checked = checked;
  input.addEventListener("change", draw);
  return node("label", {}, input, ...text);
}
function ticks(most, count) {
  const power = 10 ** Math.floor(Math.log10(most / count || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => most / size <= count) || power;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
}
function path(line, x, y) {
  let text = "", down = false;
  line[axis].forEach((place, at) => {
    if (line.values[at] === null) { down = false; return; }
    text += (down ? "L" : "M") + x(place).toFixed(1) + " " + y(line.values[at]).toFixed(1);
    down = true;
  });
  return text;
}
function nearest(line, place) {
  let best = null;
  line[axis].forEach((at, index) => { if (best === null || Math.abs(at - place) < Math.abs(line[axis][best] - place)) best = index; });
  return best === null ? null : line.values[best];
}
function plot(quantity, runs, [from, end]) {
  const width = Math.max($("plots").clientWidth, 280), drawn = runs.filter((run) => run.lines[quantity.name]);
  const lines = drawn.map((run) => run.lines[quantity.name]);
  const values = lines.flatMap((line) => line.values.filter((value) => value !== null)).sort((a, b) => a - b);
  const usual = values[Math.floor(0.98 * (values.length - 1))], most = Math.max(...values);
  const top = (most > 2.5 * usual ? 1.5 * usual : 1.06 * most) || 1; // a single stall does not flatten the rest
  const x = (place) => LEFT + (width - LEFT - RIGHT) * (place - from) / (end - from || 1);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(value / top, 1.02));
  const svg = node("svg", { class: "plot", viewBox: "0 0 " + width + " " + HEIGHT, role: "img",
    "aria-label": quantity.name + " of " + drawn.map((run) => run.label).join(", ") + " against " + AXES[axis] });
  for (const value of ticks(top, 4)) {
    svg.append(node("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(node("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, said(value)));
  }
  for (const place of ticks(end - from, Math.max(2, Math.floor(width / 130)))) {
    svg.append(node("text", { x: x(from + place), y: HEIGHT - 22, "text-anchor": "middle" }, Number((from + place).toPrecision(6)).toLocaleString("en")));
  }
  svg.append(node("text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, AXES[axis]));
  for (const run of drawn) svg.append(node("path", { d: path(run.lines[quantity.name], x, y), ...style(data.runs.indexOf(run)), "data-run": run.key }));
  const here = node("line", { class: "here", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }), values_ = node("p", { class: "values" });
  svg.append(here);
  svg.addEventListener("pointermove", (event) => {
    const place = from + (end - from) * ((event.clientX - svg.getBoundingClientRect().left) - LEFT) / (width - LEFT - RIGHT);
    if (place < from || place > end) return;
    for (const name of ["x1", "x2"]) here.setAttribute(name, x(place));
    here.setAttribute("visibility", "visible");
    values_.textContent = (axis === "t" ? said(place) + " s" : "step " + Math.floor(place)) + ": "
      + drawn.map((run) => run.label + " " + said(nearest(run.lines[quantity.name], place)) + " " + quantity.unit).join(" \u00b7 ");
  });
  svg.addEventListener("pointerleave", () => { here.setAttribute("visibility", "hidden"); values_.textContent = ""; });
  const kinds = [...new Set(lines.map((line) => line.kind).filter((kind) => kind !== "measured"))];
  const notes = [quantity.unit, ...kinds.map((kind) => kind + ": " + drawn.filter((run) => run.lines[quantity.name].kind === kind).map((run) => run.label).join(", "))];
  if (top < most) notes.push("cut at " + said(top) + " " + quantity.unit);
  const title = quantity.name[0].toUpperCase() + quantity.name.slice(1);
  return node("div", { "data-quantity": quantity.name }, node("h2", {}, title, node("small", {}, notes.join(" \u00b7 "))), svg, values_);
}
function draw() {
  const chosen = ticked("run"), wanted = ticked("quantity"), runs = data.runs.filter((run) => chosen.has(run.key));
  axis = [...ticked("against")][0];
  const plots = data.quantities.filter((quantity) => wanted.has(quantity.name) && runs.some((run) => run.lines[quantity.name]));
  const places = plots.flatMap(({ name }) => runs.flatMap((run) => run.lines[name] ? run.lines[name][axis] : []));
  const extent = places.reduce(([least, most], place) => [Math.min(least, place), Math.max(most, place)], [axis === "t" ? 0 : Infinity, -Infinity]);
  $("plots").replaceChildren(...plots.map((quantity) => plot(quantity, runs, extent))); // all plots have one axis
  $("lede").textContent = plots.length ? "" : "Tick a run and a quantity.";
}
for (const [at, run] of data.runs.entries()) {
  const swatch = node("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" }, node("path", { d: "M1 6H29", ...style(at) }));
  const link = node("a", { href: "/run/" + run.key.split("/").map(encodeURIComponent).join("/") }, run.label);
  $("runs").append(box("run", run.key, [swatch, link, node("span", { class: "badge" }, run.badge)], true));
}
for (const quantity of data.quantities) {
  if (data.runs.some((run) => run.lines[quantity.name])) $("quantities").append(box("quantity", quantity.name, [quantity.name], true));
}
for (const [value, text] of [["t", "time since the first step"], ["step", "step number"]]) $("axis").append(box("against", value, [text], value === "t", "radio"));
const lacking = data.quantities.filter((quantity) => !data.runs.some((run) => run.lines[quantity.name])).map((quantity) => quantity.name + " was not measured");
const absent = [...lacking, ...data.absent];
$("absent").textContent = absent.length ? "Not on this page: " + absent.join("; ") + "." : "";
addEventListener("resize", draw);
draw();
