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
search.addEventListener("input", find);

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

// The timeline: the wheel or the buttons zoom, dragging moves.
const lanes = document.querySelectorAll(".lanes svg[viewBox]");
const whole = lanes.length ? lanes[0].viewBox.baseVal.width : 1;
let view = { x: 0, width: whole };
function showView() {
  view.width = Math.min(Math.max(view.width, whole / 4096), whole);
  view.x = Math.min(Math.max(view.x, 0), whole - view.width);
  for (const lane of lanes) lane.setAttribute("viewBox", `${view.x} 0 ${view.width} 10`);
  const span = document.getElementById("view");
  if (!span) return;
  const at = (x) => (Number(span.dataset.from) + (x / whole) * Number(span.dataset.span)).toFixed(6);
  span.textContent = `${at(view.x)} s to ${at(view.x + view.width)} s`;
}
function zoomView(factor, at) {
  const fixed = view.x + at * view.width;
  view.width = Math.min(Math.max(view.width * factor, whole / 4096), whole);
  view.x = fixed - at * view.width;
  showView();
}
for (const lane of lanes) {
  const position = (event) => (event.clientX - lane.getBoundingClientRect().left) / lane.clientWidth;
  lane.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoomView(event.deltaY > 0 ? 1.25 : 0.8, position(event));
  }, { passive: false });
  lane.addEventListener("pointermove", (event) => {
    if (event.buttons !== 1) return;
    view.x -= (event.movementX / lane.clientWidth) * view.width;
    showView();
  });
  lane.addEventListener("dblclick", (event) => zoomView(0.5, position(event)));
}
for (const button of document.querySelectorAll("button[data-zoom]")) {
  button.addEventListener("click", () => {
    const factor = Number(button.dataset.zoom);
    if (factor) zoomView(factor, 0.5);
    else { view = { x: 0, width: whole }; showView(); }
  });
}
showView();
