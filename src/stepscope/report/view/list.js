"use strict";
/* The list: filter, sort, tick two to ten runs to compare; rows follow what goes on in the folder. */
const MOST_TICKED = 10, FIRST = 300, FAST_MS = 3000, SLOW_MS = 20000, AT_ONCE_MS = 200, UNREAD = "not read yet";
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
let rows = data.rows, sorted = { by: "started_s", down: true }, open = false;
const ticked = new Set();

const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "u"]];
const TIMES = [[3.6e12, "h"], [6e10, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]]; // as the reports have them
const scaled = (value, units) => {
  const [scale, unit] = units.find(([size]) => Math.abs(value) >= size) || units[units.length - 1];
  return number(value / scale) + " " + unit;
};
const si = (value, unit) => value === null ? "-" : value === 0 ? "0 " + unit : scaled(value, PREFIXES) + unit;
const runs = (count) => count.toLocaleString("en") + (count === 1 ? " run" : " runs");
const day = (s) => s === null ? "-" : new Date(s * 1000).toISOString().slice(0, 16).replace("T", " ");
const energy = (row) => row.energy_per_step_j !== null ? si(row.energy_per_step_j, "J") : row.simulated_energy_per_step_j !== null ? si(row.simulated_energy_per_step_j, "J") + " simulated"
  : row.estimated_energy_per_step_j !== null ? si(row.estimated_energy_per_step_j, "J") + " estimated" : "-";
const device = (row) => [row.board, row.device].filter(Boolean).join(", ") || null;
/* What a column is sorted and filtered by: what it shows. */
const value = (row, by) => by === "device" ? device(row) : by === "energy_per_step_j" ? row.energy_per_step_j ?? row.simulated_energy_per_step_j ?? row.estimated_energy_per_step_j : row[by];
const COLUMNS = [
  ["workload", "Run", false, null], ["status", "Status", false, (row) => row.status],
  ["batch_size", "Batch", true, (row) => row.batch_size === null ? "-" : String(row.batch_size)],
  ["device", "Device", false, (row) => device(row) || "-"],
  ["steps", "Steps", true, (row) => (row.steps === null ? "-" : row.steps.toLocaleString("en")) + (row.status === "running" && row.planned ? " of " + row.planned : "")],
  ["step_time_ns", "Step time", true, (row) => row.step_time_ns === null ? "-" : scaled(row.step_time_ns, TIMES)],
  ["throughput_per_s", "Samples/s", true, (row) => row.throughput_per_s === null ? "-" : number(row.throughput_per_s)],
  ["energy_per_step_j", "Energy per step", true, energy], ["peak_memory_bytes", "Peak memory", true, (row) => si(row.peak_memory_bytes, "B")],
  ["started_s", "Started, UTC", true, (row) => day(row.started_s)],
];
const place = (row) => row.key.split("/").map(encodeURIComponent).join("/");
const node = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const everything = (row) => [row.id, row.key, row.workload, row.status, row.board, row.device, row.optimizer, row.precision, row.verdict, row.reason].join(" ").toLowerCase();

function line(row) {
  const made = node("tr"), tick = node("input", "", { type: "checkbox", name: "run", value: row.key, "aria-label": "Compare " + row.id });
  tick.checked = ticked.has(row.key);
  tick.disabled = !tick.checked && ticked.size >= MOST_TICKED;
  tick.addEventListener("change", () => { if (tick.checked) ticked.add(row.key); else ticked.delete(row.key); show(); });
  const first = node("td");
  first.append(tick);
  const name = node("td"), link = node("a", row.workload, { href: (row.status === "running" ? "/live/" : "/run/") + place(row), title: row.verdict || row.id });
  name.append(link, node("br"), node("small", row.key));
  made.append(first, name);
  for (const [by, , numeric, text] of COLUMNS.slice(1)) made.append(node("td", text(row), numeric ? { class: "n" } : by === "status" ? { class: "status-" + row.status, title: row.reason || "" } : {}));
  return made;
}
function shown() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = rows.filter((row) => ["workload", "status", "device"].every((name) => !$(name).value || String(value(row, name)) === $(name).value)
    && (!wanted || everything(row).includes(wanted)));
  const way = sorted.down ? -1 : 1, by = sorted.by;
  return found.sort((a, b) => {
    const x = value(a, by), y = value(b, by);
    if (x === null || y === null) return (x === null) - (y === null);
    return way * (typeof x === "number" ? x - y : String(x).localeCompare(String(y)));
  });
}
function show() {
  const found = shown(), visible = open ? found : found.slice(0, FIRST);
  $("table").tBodies[0].replaceChildren(...visible.map(line));
  $("count").textContent = found.length === rows.length ? runs(rows.length) : found.length + " of " + runs(rows.length);
  const unread = rows.filter((row) => row.status === UNREAD).length;
  $("about").textContent = runs(rows.length) + (unread ? ", " + unread.toLocaleString("en") + " of them not read yet" : "");
  $("more").hidden = found.length <= visible.length;
  $("more").textContent = "Show all " + found.length;
  $("compare").disabled = ticked.size < 2;
  $("compare").textContent = ticked.size ? "Compare " + ticked.size : "Compare";
}
function choices() {
  for (const name of ["workload", "status", "device"]) {
    const kept = $(name).value, values = [...new Set(rows.map((row) => value(row, name)).filter((known) => known !== null))].sort();
    $(name).replaceChildren(node("option", "Any " + name, { value: "" }), ...values.map((known) => node("option", String(known), { value: known })));
    $(name).value = values.map(String).includes(kept) ? kept : "";
  }
}
function headings() {
  const tick = node("th", "", { scope: "col", "aria-label": "Compare" });
  $("table").tHead.rows[0].replaceChildren(tick, ...COLUMNS.map(([by, title, numeric]) => {
    const heading = node("th", "", { scope: "col", ...(numeric ? { class: "n" } : {}) }), button = node("button", title, { type: "button" });
    if (sorted.by === by) heading.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    button.addEventListener("click", () => { sorted = { by, down: sorted.by === by ? !sorted.down : numeric }; headings(); show(); });
    heading.append(button);
    return heading;
  }));
}
const is = (status) => (row) => row.status === status;
const pause = () => rows.some(is(UNREAD)) ? AT_ONCE_MS : rows.some(is("running")) ? FAST_MS : SLOW_MS;
function complain(text) { $("about").textContent = text; follow.last = null; } // the next answer is shown again
async function follow() {
  try {
    if (!document.hidden) {
      const answer = await fetch("/runs.json");
      if (answer.ok) {
        const text = await answer.text();
        if (text !== follow.last) { follow.last = text; rows = JSON.parse(text).rows; choices(); show(); }
      } else if (answer.status === 403) complain("this page is not let in any more: open the address that stepscope view printed");
    }
  } catch { complain("the server does not answer"); }
  setTimeout(follow, pause());
}
$("search").addEventListener("input", show);
for (const name of ["workload", "status", "device"]) $(name).addEventListener("change", show);
$("more").addEventListener("click", () => { open = true; show(); });
/* What is ticked but filtered away is compared too. */
$("runs").addEventListener("submit", (event) => {
  event.preventDefault();
  if (ticked.size >= 2) location.href = "/compare?" + [...ticked].map((key) => "run=" + encodeURIComponent(key)).join("&");
});
$("over-time").addEventListener("click", () => {
  location.href = "/over-time?" + [...ticked].map((key) => "run=" + encodeURIComponent(key)).join("&");
});
choices(); headings(); show();
setTimeout(follow, Math.min(pause(), FAST_MS));
