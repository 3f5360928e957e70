/* The icicle: depth from left to right, the chosen quantity from top to bottom; a click makes a module the whole. */
const THINNEST = 4; // px; siblings below are drawn together
const PHASES = [["total", "Total"], ["forward", "Forward"], ["backward", "Backward"], ["optimizer", "Optimizer"]];
const FIELDS = ["total", "forward", "backward", "optimizer", "own"];
function readTree(figure) {
  const { columns, rows, layers } = JSON.parse(figure.querySelector("script").textContent);
  const nodes = rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
  const root = { name: "all", label: "all modules", children: [], of: {} };
  for (const node of nodes) Object.assign(node, { children: [], of: {} });
  for (const layer of layers) {
    root.of[layer.key] = Object.fromEntries(FIELDS.map((name) => [name, 0]));
    layer.rows.forEach((values, index) => {
      nodes[index].of[layer.key] = Object.fromEntries(FIELDS.map((name, at) => [name, values === null ? null : values[at]]));
    });
  }
  for (const node of nodes) {
    node.up = node.parent === null ? root : nodes[node.parent];
    node.label = node.name === "" ? node.type || "model" : node.name.split(".").pop();
    node.up.children.push(node);
  }
  for (const child of root.children) for (const { key } of layers) for (const name of FIELDS) root.of[key][name] += child.of[key][name] || 0;
  return { layers, tree: root.children.length === 1 ? Object.assign(root.children[0], { up: null }) : root };
}
function describeModule(node, layer, whole) {
  const values = node.of[layer.key], say = (value) => value === null || value === undefined ? "-" : spoken(value, layer.unit);
  const lines = [node.name === "" ? "(the model)" : node.name];
  if (node.type) lines[0] += "  (" + node.type + ")";
  lines.push(layer.title.toLowerCase() + " " + say(values.total) + (whole > 0 ? ", " + (100 * (values.total || 0) / whole).toFixed(1) + " % of the model" : ""));
  if (layer.key === "time" && node.low !== null && node.low !== undefined) lines[1] += " [" + say(node.low) + ", " + say(node.high) + "]";
  lines.push("forward " + say(values.forward) + ", backward " + say(values.backward) + (values.optimizer === null ? "" : ", optimizer " + say(values.optimizer)));
  lines.push("its own, without what it contains: " + say(values.own));
  if (node.parameters) lines.push(node.parameters.toLocaleString("en") + " parameters");
  if (node.calls) lines.push(node.calls.toLocaleString("en") + (node.calls === 1 ? " call a step" : " calls a step"));
  return lines.join("\n");
}
function depthOf(node, amount) {
  return 1 + Math.max(0, ...node.children.filter((child) => amount(child) > 0).map((child) => depthOf(child, amount)));
}
function drawIcicle(figure) {
  const { layers, tree } = readTree(figure);
  let at = tree, layer = layers[0], phase = "total";
  const amount = (node) => Math.max(0, (node.of[layer.key] || {})[phase] || 0);
  const plot = make("div", { class: "plot", role: "group", "aria-label": "Modules by cost" });
  const path = make("span", { class: "path" }), source = make("span", { class: "source" });
  const choose = (name, title, act) => make("button", { type: "button", "data-key": name, onclick: act }, title);
  const quantities = layers.map((one) => choose(one.key, one.title, () => { layer = one; draw(); }));
  const phases = PHASES.map(([name, title]) => choose(name, title, () => { phase = name; draw(); }));
  const legend = make("span", { class: "key" }, ...PHASES.slice(1).filter(([name]) => tree.of[layers[0].key][name] > 0).map(([name, title]) => {
    const swatch = make("i");
    swatch.style.background = "var(--" + name + ")";
    return make("span", {}, swatch, title.toLowerCase());
  }));
  function split(node) {
    const values = node.of[layer.key] || {}, known = PHASES.slice(1).map(([name]) => [name, values[name] || 0]);
    const whole = known.reduce((sum, [, value]) => sum + value, 0);
    if (!(whole > 0)) return "var(--other)";
    let from = 0;
    const stops = known.map(([name, value]) => {
      const to = from + 100 * value / whole, stop = "var(--" + name + ") " + from + "% " + to + "%";
      from = to;
      return stop;
    });
    return "linear-gradient(" + stops.join(",") + ")";
  }
  function go(node) { at = node; hideTip(); draw(); }
  function rest(nodes) {
    const sum = (name) => nodes.reduce((total, node) => total + Math.max(0, node.of[layer.key][name] || 0), 0);
    const label = nodes.length === 1 ? nodes[0].label : nodes.length + " small modules";
    return { name: label, label, children: [], rest: true, up: nodes[0].up, of: { [layer.key]: Object.fromEntries(FIELDS.map((name) => [name, sum(name)])) } };
  }
  function cell(node, x, y, wide, high, heightPx) {
    if (heightPx < .75) return null;
    const said = () => describeModule(node, layer, (tree.of[layer.key] || {}).total);
    const box = make("button", { type: "button", class: heightPx < 20 ? "cell low" : "cell", "aria-label": said(),
      onclick: () => { if (!node.rest) go(node === at ? node.up || tree : node); },
      onpointermove: (event) => showTip(said(), event.clientX, event.clientY), onpointerleave: hideTip,
      onfocus: () => { if (box.matches(":focus-visible")) { const r = box.getBoundingClientRect(); showTip(said(), r.left, r.top); } },
      onblur: hideTip });
    if (node.rest) box.classList.add("rest");
    if (heightPx >= 11) box.append(make("span", {}, make("b", {}, node.label), make("em", {}, spoken(amount(node), layer.unit))));
    Object.assign(box.style, { left: x + "%", top: y + "%", width: wide + "%", height: high + "%" });
    box.style.setProperty("--split", split(node));
    box.style.setProperty("--tint", Math.round(4 + 32 * Math.min(1, amount(node) / (amount(tree) || 1))) + "%");
    return box;
  }
  function draw() {
    const has = (name) => tree.of[layer.key][name] > 0;
    if (!has(phase)) phase = "total";
    const cells = [], height = plot.clientHeight || 480;
    const columns = Math.min(depthOf(at, amount), plot.clientWidth < 560 ? 3 : 6), wide = 100 / columns;
    (function place(node, column, top, share) {
      const box = cell(node, column * wide, top, wide, share, height * share / 100);
      if (box) cells.push(box);
      if (!box || column + 1 >= columns) return;
      const whole = amount(node), partOf = (child) => whole > 0 ? share * amount(child) / whole : 0;
      const thin = node.children.filter((child) => partOf(child) > 0 && height * partOf(child) / 100 < THINNEST);
      const small = new Set(thin);
      for (const child of thin.length ? [...node.children.filter((one) => !small.has(one)), rest(thin)] : node.children) {
        place(child, column + 1, top, partOf(child));
        top += partOf(child);
      }
    })(at, 0, 0, 100);
    plot.replaceChildren(...cells);
    for (const button of quantities) button.setAttribute("aria-pressed", String(button.dataset.key === layer.key));
    for (const button of phases) {
      button.hidden = button.dataset.key !== "total" && !has(button.dataset.key);
      button.setAttribute("aria-pressed", String(button.dataset.key === phase));
    }
    source.textContent = layer.source;
    const trail = [];
    for (let node = at; node; node = node.up) trail.unshift(node);
    path.replaceChildren(...trail.flatMap((node, index) => index === trail.length - 1 ? [node.label]
      : [make("button", { type: "button", onclick: () => go(node) }, node.label), " › "]));
  }
  const choices = [make("span", { class: "choice", role: "group", "aria-label": "Part of the step" }, ...phases)];
  if (layers.length > 1) choices.unshift(make("span", { class: "choice", role: "group", "aria-label": "Quantity" }, ...quantities));
  figure.prepend(make("div", { class: "bar" }, ...choices, source, legend), make("div", { class: "bar" }, path), plot);
  plot.addEventListener("keydown", (event) => { if (event.key === "Escape") { go(at.up || tree); plot.firstChild.focus(); } });
  redrawn.push(draw);
  let before = "";
  new ResizeObserver(() => { const size = plot.clientWidth + " " + plot.clientHeight; if (size !== before) { before = size; draw(); } }).observe(plot);
  draw();
}
document.querySelectorAll("[data-icicle]").forEach(drawIcicle);
