/* The list of layers: a bar each for the chosen quantity, grouped and searched; pointing tells every number. */
const FIRST_ROWS = 10, PARTS = ["forward", "backward", "optimizer"];
const GROUPS = {
  Layer: (row) => row.name,
  Type: (row) => row.type || "no type",
  Block: (row) => row.name.split(".").slice(0, -1).slice(0, 2).join(".") || row.name,
};
function drawLayers(figure) {
  const { rows, metrics } = JSON.parse(figure.querySelector("script").textContent);
  const all = rows.map(([name, type, source, parameters, share], at) => ({ name, type, source, parameters, share, at }));
  let metric = metrics[0], group = "Layer", wanted = "", open = false, marked = null;
  const choice = (label, names, act) => make("span", { class: "choice", role: "group", "aria-label": label },
    ...names.map((name) => make("button", { type: "button", "data-key": name, onclick: () => { act(name); draw(); } }, name)));
  const quantities = choice("Quantity", metrics.map(({ title }) => title), (title) => { metric = metrics.find((one) => one.title === title); });
  const groups = choice("Group by", Object.keys(GROUPS), (name) => { group = name; });
  const search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search layers", oninput: () => { wanted = search.value.trim().toLowerCase(); draw(); } });
  const key = make("span", { class: "key" }), body = make("tbody");
  const more = make("button", { type: "button", class: "more", onclick: () => { open = !open; draw(); } });
  const rate = (one) => one.unit === "1" || one.unit === "FLOP/s"; // of a group there is no sum

  function gathered() {
    const found = new Map();
    for (const row of all) {
      const value = metric.rows[row.at];
      if (!value || !(row.name + " " + row.type + " " + row.source).toLowerCase().includes(wanted)) continue;
      const name = GROUPS[group](row), known = found.get(name);
      if (!known) found.set(name, { row, name, value: value[0], parts: [...value[1]], ends: value[2], count: 1, layers: [row.name] });
      else {
        known.count += 1;
        known.layers.push(row.name);
        known.value = rate(metric) ? Math.max(known.value, value[0]) : known.value + value[0];
        known.parts = known.parts.map((part, at) => (part || 0) + (value[1][at] || 0));
        known.ends = null;
      }
    }
    return [...found.values()].sort((a, b) => b.value - a.value);
  }
  function told({ row, name, count }) {
    if (count > 1) return name + ": " + count + " layers";
    const lines = [name + (row.type ? "  (" + row.type + ")" : "")];
    for (const one of metrics) {
      const value = one.rows[row.at];
      if (!value) continue;
      const parts = PARTS.map((part, at) => value[1][at] ? part + " " + spoken(value[1][at], one.unit) : "").filter(Boolean);
      lines.push(one.title + " " + spoken(value[0], one.unit) + (value[2] ? " [" + value[2].map((end) => spoken(end, one.unit)).join(", ") + "]" : "") + (parts.length > 1 ? ": " + parts.join(", ") : ""));
    }
    if (row.parameters) lines.push(row.parameters.toLocaleString("en") + " parameters");
    if (row.source) lines.push("called at " + row.source);
    return lines.join("\n");
  }
  function choose({ name, row }) { // marks it in the timeline too; again: takes the mark back
    const names = group === "Layer" ? [name] : all.filter((one) => GROUPS[group](one) === GROUPS[group](row)).map((one) => one.name);
    markLayers(marked !== null && marked.size === names.length && marked.has(names[0]) ? null : names, body);
  }
  document.addEventListener("layers", ({ detail }) => {
    marked = detail.names === null ? null : new Set(detail.names);
    const at = body.contains(document.activeElement) ? [...body.rows].indexOf(document.activeElement) : -1;
    draw();
    if (at >= 0 && body.rows[at]) body.rows[at].focus();
  });
  function draw() {
    const found = gathered(), most = found.length ? found[0].value : 1;
    const shown = open ? found : found.slice(0, FIRST_ROWS);
    body.replaceChildren(...shown.map((one) => {
      const bar = make("div");
      bar.style.width = Math.max(100 * one.value / (most || 1), .3) + "%";
      const whole = one.parts.reduce((sum, part) => sum + (part || 0), 0);
      if (whole > 0) bar.append(...one.parts.map((part, at) => {
        const piece = make("i");
        piece.style.width = 100 * (part || 0) / whole + "%";
        piece.style.background = "var(--" + PARTS[at] + ")";
        return piece;
      }));
      const name = make("td", {}, one.name);
      if (one.count > 1) name.append(make("span", {}, "\u00d7 " + one.count));
      else if (one.row.type && group === "Layer") name.append(make("span", {}, one.row.type));
      const line = one.count === 1 && one.row.source ? one.row.source.split("/").pop() : "";
      if (line) name.append(make("span", { class: "at" }, line)); // where there is no room for its column
      const row = make("tr", { tabindex: "0", class: marked === null ? null : one.layers.some((layer) => marked.has(layer)) ? "marked" : "dim",
        onclick: () => choose(one), onkeydown: (event) => { if (event.key === "Enter") choose(one); },
        onpointermove: (event) => showTip(told(one), event.clientX, event.clientY), onpointerleave: hideTip,
        onfocus: () => { if (row.matches(":focus-visible")) { const r = row.getBoundingClientRect(); showTip(told(one), r.left, r.bottom); } }, onblur: hideTip },
        name, make("td", { class: "bar" }, bar), make("td", { class: "n" }, (one.count > 1 && rate(metric) ? "up to " : "") + spoken(one.value, metric.unit)),
        make("td", { class: "line" }, line && "\u200e" + line));
      return row;
    }));
    more.hidden = found.length <= FIRST_ROWS;
    more.textContent = open ? "Show the first " + FIRST_ROWS : "Show all " + found.length;
    for (const button of quantities.children) button.setAttribute("aria-pressed", String(button.dataset.key === metric.title));
    for (const button of groups.children) button.setAttribute("aria-pressed", String(button.dataset.key === group));
    const drawn = PARTS.filter((_, at) => found.some((one) => one.parts[at] > 0));
    key.replaceChildren(...drawn.map((part) => {
      const swatch = make("i");
      swatch.style.background = "var(--" + part + ")";
      return make("span", {}, swatch, part);
    }));
  }
  figure.prepend(make("div", { class: "find" }, quantities, groups, search, key), make("table", { "aria-label": "Layers", class: all.some((row) => row.source) ? null : "without-lines" }, body), more);
  draw();
}
document.querySelectorAll("[data-layers]").forEach(drawLayers);
