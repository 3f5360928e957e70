/* The step on a time axis: who called whom in each thread and stream, and what was sampled below. On a canvas, for a
   step can have 20,000 op calls. */
const ROW = 17, LAYER = 24, LABEL = 17, TRACK = 40, AXIS = 24, LEAST_NS = 200;
function drawAnatomy(figure) {
  const data = JSON.parse(figure.querySelector("script").textContent), { ops, lanes, tracks, length } = data;
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Ops of one step by thread. Plus and minus zoom, arrows move, comma and full stop walk through the ops, Enter zooms into one, Escape shows the whole step." });
  const brush = canvas.getContext("2d"), status = make("span", { class: "status", role: "status" });
  const rows = new Map(); // "lane level" -> ops in order of time
  const sorted = [...ops.start.keys()].sort((a, b) => ops.start[a] - ops.start[b] || ops.level[a] - ops.level[b]);
  const shownAs = new Array(ops.start.length).fill(-1), slices = lanes.map(() => []);
  lanes.forEach((lane, index) => placeOps(lane, index, sorted.filter((at) => ops.lane[at] === index)));
  const inOrder = sorted.filter((at) => shownAs[at] >= 0);
  let marked = null; // names of layers that a reader has chosen

  /* Calls of modules and of autograd's engine hold ops and nothing else: the lane of layers says what they would. */
  function placeOps(lane, index, those) {
    const open = [], found = slices[index];
    let now = 0, levels = 0;
    const put = (begin, end, at) => {
      if (end <= begin) return;
      const name = layerOf(at), last = found[found.length - 1];
      if (last && last.name === name && last.phase === ops.phase[at] && begin - last.end <= length / 400) last.end = end;
      else found.push({ name, phase: ops.phase[at], begin, end });
    };
    const close = (until) => {
      while (open.length && open[open.length - 1].end <= until) {
        const { at, end } = open.pop();
        put(now, end, at);
        now = Math.max(now, end);
      }
    };
    for (const at of those) {
      const begin = ops.start[at];
      close(begin);
      if (open.length) put(now, begin, open[open.length - 1].at);
      now = begin;
      const above = open.length ? open[open.length - 1].level : 0, hidden = /^(nn\.|autograd::engine|#stepscope|\(loading)/.test(data.names[ops.name[at]]);
      open.push({ at, end: begin + ops.length[at], level: above + (hidden ? 0 : 1) });
      if (hidden) continue;
      shownAs[at] = above;
      levels = Math.max(levels, above + 1);
      const key = index + " " + above;
      if (!rows.has(key)) rows.set(key, []);
      rows.get(key).push(at);
    }
    close(Infinity);
    lane.shown = levels;
  }
  function layerOf(at) { // "" for what runs outside any layer
    return ops.module[at] < 0 ? "" : data.modules[ops.module[at]] || "(the model)";
  }
  let view = [0, length], chosen = null, drag = null, telling = 0, wide = 0, colours = {}, laid = [], plain = "";

  const button = (text, name, act) => make("button", { type: "button", "aria-label": name, title: name, onclick: act }, text);
  const bar = make("div", { class: "bar" },
    make("span", { class: "choice", role: "group", "aria-label": "Zoom" },
      button("+", "Zoom in", () => zoom(.5)), button("−", "Zoom out", () => zoom(2)), button("Whole step", "Show the whole step", reset)),
    status,
    make("span", { class: "key" }, ...[...data.phases.map((phase) => [phase, phase]), ...(slices.some((those) => those.some(bare)) ? [["residual", "outside any layer"]] : [])]
      .map(([colour, text]) => { const i = make("i"); i.style.background = "var(--" + colour + ")"; return make("span", {}, i, text); })));
  figure.prepend(bar, canvas);

  function lay() {
    let top = AXIS;
    laid = [];
    lanes.forEach((lane, index) => {
      const height = LABEL + LAYER + lane.shown * ROW;
      laid.push({ lane, index, top, height });
      top += height + 6;
    });
    tracks.forEach((track) => {
      const key = keyOf(track), label = LABEL * (1 + Math.max(0, ...key.map((one) => one.line)));
      laid.push({ track, top, key, label, height: label + TRACK });
      top += label + TRACK + 6;
    });
    return top + 4;
  }
  const titleOf = (track) => track.label + "  \u00b7  0 to " + spoken(track.top, track.unit);
  function keyOf(track) { // of a row that is several on top of each other: what each is, on as many lines as it takes
    let x = brush.measureText(titleOf(track)).width + 16, line = 0;
    return track.layers.filter((one) => one.name).map((layer) => {
      const room = brush.measureText(layer.name).width + 22;
      if (x + room > wide && x > 0) { x = 0; line += 1; }
      x += room;
      return { layer, x: x - room, line };
    });
  }
  const xOf = (ns) => (ns - view[0]) / (view[1] - view[0]) * wide;
  const nsOf = (x) => view[0] + x / wide * (view[1] - view[0]);
  function show(from, to) {
    const span = Math.min(Math.max(to - from, LEAST_NS), length);
    const begin = Math.min(Math.max(from, 0), length - span);
    view = [begin, begin + span];
    draw();
    clearTimeout(telling);
    telling = setTimeout(tellView, 150); /* however it was moved; not at each point of a movement */
  }
  function zoom(factor, at = (view[0] + view[1]) / 2) {
    show(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  }
  function reset() { chosen = null; show(0, length); if (marked !== null) markLayers(null, canvas); }
  /* What is in view is what the list of layers shows; the whole step is no choice. */
  function tellView() {
    if (view[0] <= 0 && view[1] >= length) return markLayers(null, canvas);
    const seen = slices.flat().filter((slice) => slice.end > view[0] && slice.begin < view[1]).map((slice) => slice.name);
    markLayers([...new Set(seen)], canvas, true);
  }
  document.addEventListener("layers", ({ detail }) => {
    marked = detail.names === null || detail.inView ? null : new Set(detail.names);
    draw();
  });

  function draw() {
    wide = canvas.clientWidth || figure.clientWidth || 900;
    brush.font = plain = "11.5px " + getComputedStyle(document.body).fontFamily;
    const height = lay(), scale = Math.max(devicePixelRatio || 1, 1);
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = height + "px";
    const style = getComputedStyle(document.documentElement);
    colours = new Proxy({}, { get: (kept, name) => kept[name] ??= style.getPropertyValue("--" + String(name)).trim() });
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.clearRect(0, 0, wide, height);
    brush.font = plain; // a canvas of another size forgets it
    brush.textBaseline = "middle";
    drawAxis(height);
    for (const place of laid) place.lane ? drawLane(place) : drawTrack(place);
    status.textContent = chosen === null
      ? (view[0] > 0 || view[1] < length ? shortMs(view[0]) + " to " + shortMs(view[1]) : "step " + data.step + ", " + shortMs(length))
      : describeOp(chosen).split("\n").slice(0, 2).join(", ");
  }
  function drawAxis(height) {
    const rough = (view[1] - view[0]) / Math.max(wide / 110, 2), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    for (let at = Math.ceil(view[0] / step) * step; at <= view[1]; at += step) {
      const x = xOf(at);
      brush.fillStyle = colours.grid;
      brush.fillRect(Math.round(x), AXIS - 4, 1, height - AXIS);
      brush.fillStyle = colours.muted;
      brush.textAlign = x < 24 ? "left" : x > wide - 40 ? "right" : "center";
      brush.fillText(axisMs(at, step), x, AXIS / 2);
    }
    brush.textAlign = "left";
  }
  function title(text, top) {
    brush.fillStyle = colours.muted;
    brush.fillText(fitted(text, wide - 4), 0, top + LABEL / 2);
  }
  function fitted(text, room) {
    const most = Math.floor(room / 6.1);
    return text.length <= most ? text : most < 3 ? "" : text.slice(0, most - 1) + "…";
  }
  function drawLane({ lane, index, top }) {
    title(lane.label + "  ·  layers, and their ops below", top);
    for (const slice of slices[index]) {
      if (slice.end < view[0] || slice.begin > view[1]) continue;
      const x = Math.max(xOf(slice.begin), 0), width = Math.max(Math.min(xOf(slice.end), wide) - x - .75, .5);
      brush.globalAlpha = dimmed(slice.name) ? .25 : 1;
      brush.fillStyle = colours[bare(slice) ? "residual" : data.phases[slice.phase]];
      brush.fillRect(x, top + LABEL, width, LAYER - 4);
      if (width > 30) {
        brush.fillStyle = bare(slice) ? colours.ink : colours.paper;
        brush.font = "600 " + plain;
        brush.fillText(fitted(slice.name || data.phases[slice.phase], width - 8), x + 4, top + LABEL + (LAYER - 4) / 2);
        brush.font = plain;
      }
      brush.globalAlpha = 1;
    }
    for (let level = 0; level < lane.shown; level++) {
      let last = -1;
      for (const at of rows.get(index + " " + level) || []) {
        const begin = ops.start[at], end = begin + ops.length[at];
        if (end < view[0] || begin > view[1]) continue;
        const x = Math.max(xOf(begin), 0), right = Math.min(xOf(end), wide);
        if (right - last < .25) continue; // hidden behind what is drawn there
        const width = Math.max(right - x - (right - x > 3 ? .75 : 0), .5), y = top + LABEL + LAYER + level * ROW;
        brush.fillStyle = colours[data.phases[ops.phase[at]]];
        brush.globalAlpha = dimmed(layerOf(at)) ? .2 : level % 2 ? .75 : .88;
        brush.fillRect(x, y, width, ROW - 2);
        brush.globalAlpha = 1;
        last = right;
        if (width > 26) {
          brush.fillStyle = colours.paper;
          brush.fillText(fitted(short(data.names[ops.name[at]]), width - 8), x + 4, y + ROW / 2 - .5);
        }
        if (at === chosen) {
          brush.strokeStyle = colours.ink;
          brush.lineWidth = 2;
          brush.strokeRect(x, y - 1, Math.max(width, 2), ROW);
        }
      }
    }
  }
  function drawTrack({ track, top, key, label }) {
    title(titleOf(track), top);
    for (const { layer, x, line } of key) {
      brush.fillStyle = colours[layer.colour];
      brush.fillRect(x, top + line * LABEL + 4, 8, 8);
      brush.fillStyle = colours.muted;
      brush.fillText(layer.name, x + 12, top + line * LABEL + LABEL / 2);
    }
    const base = top + label + TRACK;
    brush.fillStyle = colours.rule;
    brush.fillRect(0, base, wide, 1);
    for (const layer of track.layers) {
      for (let at = 0; at < track.start.length; at++) {
        const x = Math.round(Math.max(xOf(track.start[at]), 0)), right = Math.round(Math.min(xOf(track.end[at]), wide)); // no seams
        if (right <= 0 || x >= wide || right <= x) continue;
        const value = layer.values[at];
        if (value === null) {
          brush.fillStyle = colours.gap;
          brush.fillRect(x, base - TRACK, right - x, TRACK);
        } else {
          const below = layer.below ? layer.below[at] : 0;
          brush.fillStyle = colours[layer.colour];
          brush.fillRect(x, base - (below + value) / track.top * TRACK, right - x, Math.max(value / track.top * TRACK, value > 0 ? .5 : 0));
        }
      }
    }
  }

  function bare(slice) { return slice.name === "" && ["forward", "backward", "other"].includes(data.phases[slice.phase]); }
  const dimmed = (name) => marked !== null && !marked.has(name);
  const short = (name) => name.replace(/^aten::/, "").replace(/Backward\d*$/, " backward");
  function called(at) { // by its layer, as far as there is room
    const module = ops.module[at] < 0 ? "" : data.modules[ops.module[at]], name = data.names[ops.name[at]];
    return module ? module + " \u00b7 " + name : name;
  }

  function describeOp(at) {
    const lines = [called(at), preciseMs(ops.length[at]) + ", " + (100 * ops.length[at] / length).toFixed(1) + " % of the step, begins at " + preciseMs(ops.start[at])];
    const module = ops.module[at] < 0 ? "outside any module" : data.modules[ops.module[at]] || "(the model)";
    lines.push(data.phases[ops.phase[at]] + ", " + module);
    if (ops.source[at] >= 0) lines.push("called at " + data.sources[ops.source[at]]);
    if (ops.flops[at]) lines.push(spoken(ops.flops[at], "FLOP") + (ops.bytes[at] ? ", " + spoken(ops.bytes[at], "B") + " in and out" : ""));
    return lines.join("\n");
  }
  function describeSlice(slice) {
    const took = slice.end - slice.begin;
    return (slice.name || "outside any layer") + "\n" + data.phases[slice.phase] + ", " + preciseMs(took) + ", " + (100 * took / length).toFixed(1) + " % of the step\nclick: mark it here and in the list of layers";
  }
  function describeTrack(track, ns) {
    const at = track.start.findIndex((begin, index) => begin <= ns && ns < track.end[index]);
    if (at < 0) return track.label + ": not measured";
    const range = preciseMs(track.start[at]) + " to " + preciseMs(track.end[at]);
    const layers = track.layers.filter((layer) => layer.values[at] !== 0).map((layer) =>
      (layer.name ? layer.name + ": " : "") + (layer.values[at] === null ? "not measured" : spoken(layer.values[at], track.unit)));
    return [track.label, ...layers.reverse(), range + (track.end[at] - track.start[at] > length ? " (longer than the step)" : "")].join("\n");
  }
  function under(x, y) {
    const place = laid.find((one) => y >= one.top && y < one.top + one.height);
    if (!place) return {};
    if (place.track) return { text: describeTrack(place.track, nsOf(x)) };
    const row = rows.get(place.index + " " + Math.floor((y - place.top - LABEL - LAYER) / ROW)) || [];
    if (y < place.top + LABEL + LAYER) {
      const slice = slices[place.index].find((one) => one.begin <= nsOf(x) && nsOf(x) < one.end);
      return slice ? { slice, text: describeSlice(slice) } : {};
    }
    const ns = nsOf(x), slack = (view[1] - view[0]) / wide * 2;
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ops.start[row[middle]] <= ns + slack) low = middle + 1; else high = middle;
    }
    const near = row.slice(Math.max(0, low - 3), low).reverse(), inside = (at, room) => ns <= ops.start[at] + ops.length[at] + room;
    const op = near.find((at) => ops.start[at] <= ns && inside(at, 0)) ?? near.find((at) => inside(at, slack));
    return op === undefined ? {} : { op, text: describeOp(op) };
  }
  function into(at) {
    chosen = at;
    const room = ops.length[at] * .06;
    show(ops.start[at] - room, ops.start[at] + ops.length[at] + room);
  }
  function walk(way) {
    const now = chosen === null ? -1 : inOrder.indexOf(chosen);
    chosen = inOrder[Math.min(Math.max(now + way, 0), inOrder.length - 1)];
    const begin = ops.start[chosen], span = view[1] - view[0];
    if (begin < view[0] || begin > view[1]) show(begin - span / 4, begin + span * .75); else draw();
  }

  const local = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = local(event);
    drag = { x, y, view: [...view], touch: event.pointerType !== "mouse", moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = local(event);
    if (drag && Math.abs(x - drag.x) > 4) drag.moved = true;
    if (drag && drag.moved && drag.touch) {
      const by = (drag.x - x) / wide * (drag.view[1] - drag.view[0]);
      show(drag.view[0] + by, drag.view[1] + by);
    } else if (drag && drag.moved) {
      draw();
      brush.fillStyle = colours.accent;
      brush.globalAlpha = .18;
      brush.fillRect(Math.min(x, drag.x), 0, Math.abs(x - drag.x), canvas.clientHeight);
      brush.globalAlpha = 1;
      hideTip();
    } else {
      const found = under(x, y);
      canvas.style.cursor = found.slice ? "pointer" : found.op === undefined ? "default" : "zoom-in";
      if (found.text) showTip(found.text, event.clientX, event.clientY); else hideTip();
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = local(event), from = drag;
    drag = null;
    if (!from) return;
    if (!from.moved) {
      const { op, slice } = under(x, y);
      if (op !== undefined) into(op);
      else if (slice) markLayers(marked !== null && marked.has(slice.name) ? null : [slice.name], canvas);
    } else if (!from.touch) show(nsOf(Math.min(x, from.x)), nsOf(Math.max(x, from.x)));
  });
  canvas.addEventListener("pointercancel", () => { drag = null; draw(); });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", reset);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : .8, nsOf(local(event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const by = (view[1] - view[0]) * .2;
    const act = { "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), Escape: reset, Home: reset,
      ArrowLeft: () => show(view[0] - by, view[1] - by), ArrowRight: () => show(view[0] + by, view[1] + by),
      ".": () => walk(1), ",": () => walk(-1), Enter: () => { if (chosen !== null) into(chosen); } }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  });
  redrawn.push(draw);
  let before = 0;
  new ResizeObserver(() => { if (canvas.clientWidth !== before) { before = canvas.clientWidth; draw(); } }).observe(canvas);
  draw();
}
const axisMs = (ns, step) => (ns / 1e6).toFixed(Math.max(0, Math.min(6, Math.ceil(6 - Math.log10(step) - 1e-9)))) + " ms";
const shortMs = (ns) => spoken(ns, "ns");
const preciseMs = (ns) => (ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 }) + " ms";
document.querySelectorAll("[data-anatomy]").forEach(drawAnatomy);
