"use strict";
// Search: hides table rows that do not match, and marks names in flame graphs that do.
const search = document.getElementById("search");
const matches = (text, wanted) => text.toLowerCase().includes(wanted);
function find() {
  const wanted = search.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("tr[data-name]")) {
    row.classList.toggle("hidden", wanted !== "" && !matches(row.dataset.name, wanted));
  }
  for (const node of document.querySelectorAll(".flame svg svg")) {
    node.classList.toggle("found", wanted !== "" && matches(node.dataset.name, wanted));
  }
}
search.addEventListener("input", () => { find(); draw(); });

// Flame graphs: a click makes a node as wide as the graph; another click on it shows all again.
function zoomFlame(graph, from, width) {
  for (const node of graph.children) {
    const x = (Number(node.dataset.x) - from) / width;
    const w = Number(node.dataset.w) / width;
    const left = Math.max(x, 0);
    const shown = Math.min(x + w, 1) - left;
    node.setAttribute("x", 100 * left + "%");
    node.setAttribute("width", Math.max(100 * shown, 0) + "%");
    node.style.display = shown > 0.0001 ? "" : "none";
  }
}
for (const graph of document.querySelectorAll(".flame > svg")) {
  graph.addEventListener("click", (event) => {
    const node = event.target.closest("svg svg");
    if (!node) return;
    // a click on a node that fills the graph shows all again
    const isWhole = parseFloat(node.getAttribute("width")) > 99.9;
    if (isWhole) zoomFlame(graph, 0, 1);
    else zoomFlame(graph, Number(node.dataset.x), Number(node.dataset.w));
  });
}

// Tables: a click on a title sorts by its column, largest first; another click reverses the order.
const units = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50, EiB: 2 ** 60 };
function cellValue(cell) {
  const text = cell.textContent.trim();
  const [, number, unit] = /^[<>= ]*(-?[0-9.]+) ?([A-Za-z]*)/.exec(text) ?? [];
  return cell.classList.contains("name") || number === undefined ? text : Number(number) * (units[unit] ?? 1);
}
function sortTable(title) {
  const body = title.closest("table").tBodies[0];
  const descending = title.getAttribute("aria-sort") !== "descending";
  for (const other of title.parentNode.children) other.removeAttribute("aria-sort");
  title.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => ({ row, value: cellValue(row.cells[title.cellIndex]) }));
  const compare = (a, b) => {
    // cells without a number are last
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    const order = typeof a === "number" ? b - a : a.localeCompare(b);
    return descending ? order : -order;
  };
  rows.sort((a, b) => compare(a.value, b.value)).forEach(({ row }) => body.append(row));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortTable(button.parentNode));
}

// The timeline. Times are nanoseconds from its start.
const timeline = document.getElementById("timeline");
const data = timeline ? JSON.parse(document.getElementById("calls").textContent) : { from: 0, span: 1, left: 0, texts: [], calls: [], idle: [] };
const activities = ["memory", "transfer", "launch", "sync", "kernel", "other", "gpu", "idle"];
const rowHeight = 15, mostDepth = 6, shortest = 100, columns = 1500;
const tracks = [...document.querySelectorAll(".track")].map((node) => {
  const canvas = document.createElement("canvas");
  node.append(canvas);
  return { node, canvas, svg: node.querySelector("svg"), label: node.previousElementSibling.textContent, calls: [], depth: 1 };
});
for (const [lane, stream, start, took, depth, doing, name = 0, op = 0, args = 0, result = 0, stack = 0] of data.calls) {
  const call = { lane, start, end: start + took, depth: Math.min(depth, mostDepth - 1), doing, name, op, args, result, stack };
  const track = tracks[lane];
  track.calls.push(call);
  track.depth = Math.max(track.depth, call.depth + 1);
  if (stream) tracks[stream - 1].calls.push({ ...call, depth: 0, lane: stream - 1 });
}
for (const [lane, start, took] of data.idle) {
  tracks[lane].calls.push({ lane, start, end: start + took, depth: 0, doing: 7, name: -1, op: 0, args: 0, result: 0, stack: 0 });
}
for (const track of tracks) {
  track.calls.sort((a, b) => a.start - b.start || a.depth - b.depth);
  track.height = Math.max(rowHeight * track.depth + 2, 18);
  track.node.style.height = track.height + "px";
}
const titleOf = (call) => call.name < 0 ? "idle" : data.texts[call.name];
// in the row of a stream, the operation says more than the function
const labelOf = (call) => call.op && call.depth === 0 && !/^(thread|driver) /.test(tracks[call.lane].label) ? data.texts[call.op] : titleOf(call);
const unitOf = (ns) => ns < 1e3 ? [1, "ns"] : ns < 1e6 ? [1e3, "us"] : ns < 1e9 ? [1e6, "ms"] : [1e9, "s"];
function duration(ns) {
  const [size, unit] = unitOf(ns);
  return (size === 1 ? ns : (ns / size).toFixed(1)) + " " + unit;
}
const digitsOf = (size, step) => Math.max(Math.round(Math.log10(size)) - Math.floor(Math.log10(step)), 0);
// A time in the unit for times up to another one, with the digits that distinguish steps of this size.
function inSteps(ns, step, most = ns) {
  const [size, unit] = unitOf(most);
  return (ns / size).toFixed(digitsOf(size, step)) + " " + unit;
}

let view = { from: 0, span: data.span };
let selected = null;
let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of [...activities, "ink", "paper", "card"]) colours[name] = style.getPropertyValue("--" + name).trim();
}
function drawTrack(track, wanted) {
  const { canvas, calls, node } = track;
  const width = node.clientWidth;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(track.height * scale);
  const to = view.from + view.span;
  const shown = calls.filter((call) => call.end >= view.from && call.start <= to);
  const complete = calls.length > 0 && Number(node.dataset.left ?? data.left) === 0;
  // bins say more than calls that share a pixel, and more than nothing if calls are left out
  const single = shown.length <= width / 2 && (complete || shown.length > 0);
  track.shown = single ? shown : [];
  node.classList.toggle("single", single);
  node.classList.toggle("complete", single && complete);
  if (!single || !width) return;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  const x = (at) => ((at - view.from) / view.span) * width;
  for (const call of shown) {
    const left = Math.max(x(call.start), 0);
    const wide = Math.max(Math.min(x(call.end), width) - left, 1);
    const top = 1 + rowHeight * call.depth;
    pen.globalAlpha = wanted && !wanted.has(call.name) && !wanted.has(call.op) ? 0.2 : 1;
    pen.fillStyle = colours[activities[call.doing]];
    pen.fillRect(left, top, wide > 3 ? wide - 0.5 : wide, rowHeight - 1);
    const letters = Math.floor((wide - 6) / 6);
    if (letters > 3) {
      const text = labelOf(call);
      pen.fillStyle = colours.paper;
      pen.fillText(text.length > letters ? text.slice(0, letters - 1) + "\u2026" : text, left + 3, top + 11);
    }
    if (selected && call.start === selected.start && call.name === selected.name && call.lane === selected.lane) {
      pen.globalAlpha = 1;
      pen.lineWidth = 2;
      pen.strokeStyle = colours.ink;
      pen.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), rowHeight - 3);
    }
  }
}
// Labels for a time axis: multiples of 1, 2 or 5. If they would need many digits, all but the first are offsets from it.
function ticks(from, span, width) {
  const mostDigits = 3, apart = 70, least = 6;
  const most = Math.max(Math.floor(width / apart), least);
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = Math.max([1, 2, 5, 10].map((n) => n * power).find((n) => span / n <= most) ?? 10 * power, 1);
  const end = data.from + from + span;
  const isExact = digitsOf(unitOf(end)[0], step) <= mostDigits;
  const first = Math.ceil((data.from + from) / step) * step;
  const found = [];
  for (let at = first; at <= end; at += step) {
    const offset = at > first && !isExact;
    found.push({ at: (at - data.from - from) / span, text: offset ? "+" + inSteps(at - first, step, end - first) : inSteps(at, step, end) });
  }
  return found;
}
function drawAxis(axis, from, span) {
  const width = axis.clientWidth;
  axis.replaceChildren();
  let free = 0;
  for (const { at, text } of ticks(from, span, width)) {
    const tick = document.createElement("span");
    tick.textContent = text;
    tick.style.left = 100 * at + "%";
    axis.append(tick);
    // no label over another one or over the edge
    const left = at * width, right = left + tick.offsetWidth;
    if (left < free || (right > width && free > 0)) tick.remove();
    else free = right;
  }
}
function draw() {
  if (!timeline) return;
  const searched = search.value.trim().toLowerCase();
  const wanted = searched && new Set(data.texts.flatMap((text, at) => at && matches(text, searched) ? [at] : []));
  drawAxis(document.getElementById("axis"), view.from, view.span);
  for (const axis of document.querySelectorAll(".chart .axis")) drawAxis(axis, 0, data.span);
  for (const track of tracks) drawTrack(track, wanted);
}
let waiting = false;
function show(from, span) {
  if (!timeline) return;
  view.span = Math.min(Math.max(span, shortest), data.span);
  view.from = Math.min(Math.max(from, 0), data.span - view.span);
  const scale = columns / data.span;
  for (const { svg } of tracks) svg?.setAttribute("viewBox", `${view.from * scale} 0 ${view.span * scale} 10`);
  const [begin, end] = [data.from + view.from, data.from + view.from + view.span];
  const shown = (ns) => inSteps(ns, Math.max(view.span / 1000, 1), end);
  document.getElementById("view").textContent = `${shown(begin)} to ${shown(end)} (${duration(Math.round(view.span))})`;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}
const zoom = (factor, at) => {
  const span = Math.min(Math.max(view.span * factor, shortest), data.span);
  show(view.from + at * (view.span - span), span);
};

// The panel with one call.
function select(call) {
  selected = call;
  const panel = document.getElementById("call");
  panel.hidden = !call;
  panel.replaceChildren();
  draw();
  if (!call) return;
  const text = (number) => data.texts[number];
  const facts = [["name", titleOf(call)], ["kernel or direction", text(call.op)], ["took", duration(call.end - call.start)],
    ["at", inSteps(data.from + call.start, 1, 1e9)], ["row", tracks[call.lane].label], ["arguments", text(call.args)], ["result", text(call.result)],
    ["stack", text(call.stack)]];
  const list = document.createElement("dl");
  for (const [what, value] of facts.filter(([, value]) => value)) {
    list.append(document.createElement("dt"), document.createElement("dd"));
    list.children[list.children.length - 2].textContent = what;
    list.lastChild.textContent = value;
    list.lastChild.dataset.of = what;
  }
  panel.append(list);
}
function zoomTo(call) {
  const took = Math.max(call.end - call.start, shortest / 4);
  show(call.start - took / 2, 2 * took);
}
// The call at a position of a row: the narrowest one that is near enough.
function callAt(track, event) {
  const box = track.node.getBoundingClientRect();
  const pixel = view.span / box.width;
  const at = view.from + (event.clientX - box.left) * pixel;
  const depth = Math.floor((event.clientY - box.top - 1) / rowHeight);
  const near = (track.shown ?? []).filter((call) => call.depth === depth && call.start - 2 * pixel <= at && call.end + 2 * pixel >= at);
  return near.sort((a, b) => (a.end - a.start) - (b.end - b.start))[0];
}
function step(by) {
  if (!selected) return;
  const { calls } = tracks[selected.lane];
  const next = calls[calls.findIndex((call) => call.start === selected.start && call.name === selected.name) + by];
  if (!next) return;
  select(next);
  if (next.start < view.from || next.end > view.from + view.span) show(next.start - view.span / 2, view.span);
}

for (const track of tracks) {
  const { node } = track;
  const position = (event) => (event.clientX - node.getBoundingClientRect().left) / node.clientWidth;
  let moved = 0;
  node.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    // with Shift, browsers report the wheel as horizontal
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, position(event));
  }, { passive: false });
  node.addEventListener("pointerdown", () => { moved = 0; });
  node.addEventListener("pointermove", (event) => {
    if (event.buttons === 1) {
      moved += Math.abs(event.movementX);
      show(view.from - (event.movementX / node.clientWidth) * view.span, view.span);
      return;
    }
    const call = callAt(track, event);
    node.title = call ? `${labelOf(call)}: ${duration(call.end - call.start)}` : "";
  });
  node.addEventListener("click", (event) => {
    const call = moved > 3 ? null : callAt(track, event);
    if (call) select(call);
  });
  node.addEventListener("dblclick", (event) => zoom(0.5, position(event)));
}
for (const button of document.querySelectorAll("button[data-zoom]")) {
  button.addEventListener("click", () => {
    const factor = Number(button.dataset.zoom);
    if (factor) zoom(factor, 0.5);
    else show(0, data.span);
  });
}
const keys = {
  "+": () => zoom(0.5, 0.5), "=": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), 0: () => show(0, data.span),
  ArrowLeft: () => show(view.from - view.span / 5, view.span), ArrowRight: () => show(view.from + view.span / 5, view.span),
  n: () => step(1), p: () => step(-1), Enter: () => selected && zoomTo(selected), Escape: () => select(null),
};
timeline?.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});

// Links to calls.
for (const link of document.querySelectorAll("a[data-lane]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const start = Number(link.dataset.start);
    const far = (call) => Math.abs(call.start - start) + call.depth;
    const call = tracks[link.dataset.lane].calls.reduce((best, call) => !best || far(call) < far(best) ? call : best, null);
    const place = { start, end: start + Number(link.dataset.took) };
    const found = call && Math.abs(call.start - start) < 1000 ? call : null;
    zoomTo(found ?? place);
    select(found);
    timeline.scrollIntoView({ block: "center" });
    timeline.focus({ preventScroll: true });
  });
}
readColours();
show(0, data.span);
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
