// All GPUs and processes, the log, and the health of gpuprobe.

import { chart } from "./charts.js";
import { byId, element, show } from "./dom.js";
import { bytes, causes, count, duration, estimated, growth, orDash, percent, rate, spanOf } from "./units.js";

/** A call that has not returned for so long is marked. */
const LONG_CALL_NS = 10e9;
/** Entries of the log that are shown; XIDs are always shown. */
const MOST_ENTRIES = 100;

/**
 * The columns of the table: heading, what they show, what they sort by, the exact value if it is rounded, whether they
 * are text, and how a process stands out in them.
 */
const COLUMNS = [
  { title: "PID", show: (p) => String(p.id.pid), by: (p) => p.id.pid },
  { title: "Command", show: (p) => p.name, by: (p) => p.name, isText: true, isLink: true },
  { title: "User", show: (p) => orDash(p.uid), by: (p) => p.uid ?? -1, exact: () => "the number of the user" },
  { title: "GPU", show: (p) => p.gpus.join(",") || "-", by: (p) => p.gpus.join(","), isText: true },
  { title: "GPU%", show: (p) => orDash(p.gpu_percent), by: (p) => p.gpu_percent ?? -1 },
  {
    title: "Live",
    show: (p) => bytes(p.live_bytes),
    by: (p) => p.live_bytes,
    exact: (p) => `${p.live_bytes} bytes`,
  },
  {
    title: "Growth/s",
    show: (p) => growth(p.growth_per_second),
    by: (p) => p.growth_per_second ?? 0,
    look: (p) => (p.has_suspect ? "alarm" : ""),
  },
  {
    title: "Launches/s",
    show: (p) => estimated(rate(p.launches_per_second), p.has_estimated_launches),
    by: (p) => p.launches_per_second ?? -1,
    exact: (p) => `${p.launches} launches`,
  },
  {
    title: "Copies/s",
    show: (p) => estimated(rate(p.copies_per_second), p.has_estimated_copies),
    by: (p) => p.copies_per_second ?? -1,
    exact: (p) => `${p.copies} copies`,
  },
  {
    title: "In calls",
    show: (p) => estimated(percent(p.calls_share), p.has_estimated_calls),
    by: (p) => p.calls_share ?? -1,
  },
  {
    title: "Errors",
    show: (p) => estimated(count(p.errors), p.has_estimated_errors),
    by: (p) => p.errors,
    look: (p) => (p.errors_per_second > 0 ? "alarm" : p.errors > 0 ? "warning" : ""),
  },
  {
    title: "Pending",
    show: (p) => (p.pending ? `${duration(p.pending.age_ns)} ${p.pending.function}` : ""),
    by: (p) => (p.pending ? p.pending.age_ns : -1),
    isText: true,
    look: (p) => (p.pending && p.pending.age_ns > LONG_CALL_NS ? "alarm" : ""),
  },
  { title: "Cost", show: (p) => percent(p.cost_share), by: (p) => p.cost_share ?? -1 },
  { title: "Container", show: (p) => p.container ?? "", by: (p) => p.container ?? "", isText: true },
];

const sorting = { column: COLUMNS.find((column) => column.title === "Live"), isDescending: true };

export function drawOverview({ view, history }, redraw) {
  drawGpus(view, history);
  drawHeadings(redraw);
  drawProcesses(view);
  drawLog(history.log);
  drawHealth(view);
}

function drawGpus(view, history) {
  const span = spanOf(history);
  const cards = view.gpus.map((gpu) => gpuCard(gpu, history.gpus.find((known) => known.gpu === gpu.gpu), span));
  if (cards.length === 0) {
    cards.push(element("p", "NVML is not available, so the state of the GPUs is unknown.", "faint"));
  }
  show(byId("gpus"), cards);
}

function gpuCard(gpu, curves, span) {
  const card = element("div", undefined, "card");
  card.append(element("h3", `GPU ${gpu.gpu} ${gpu.name}`));
  card.append(element("p", gpu.busy_percent === null ? "utilization is unknown" : `${gpu.busy_percent}% busy`));
  if (curves) card.append(chart(curves.busy_percent, 100, `Utilization of GPU ${gpu.gpu}, ${span}`));
  if (gpu.total_bytes) {
    card.append(element("p", `${orDash(gpu.used_bytes, bytes)} of ${bytes(gpu.total_bytes)}`));
    if (curves) card.append(chart(curves.used_bytes, gpu.total_bytes, `Memory of GPU ${gpu.gpu}, ${span}`));
  }
  const parts = [
    orDash(gpu.watts, (watts) => `${Math.round(watts)} W`),
    orDash(gpu.celsius, (celsius) => `${celsius} °C`),
    orDash(gpu.sm_mhz, (mhz) => `${mhz} MHz`),
  ];
  card.append(element("p", parts.filter((part) => part !== "-").join(", "), "faint"));
  const used = gpu.activity.map(([part, share]) => `${part.replaceAll("_", " ")} ${percent(share)}`);
  // GPM reports PCIe, too, and for a longer time
  const pcie = [["pcie rx", gpu.pcie_rx_bytes_per_second], ["pcie tx", gpu.pcie_tx_bytes_per_second]];
  const links = gpu.traffic.length > 0 ? gpu.traffic : pcie.filter(([, rate]) => rate !== null);
  const traffic = links.map(([link, rate]) => `${link.replaceAll("_", " ")} ${bytes(rate)}/s`);
  for (const text of [used, traffic]) if (text.length > 0) card.append(element("p", text.join(", "), "faint"));
  if (gpu.throttled.length > 0) {
    card.append(element("p", `throttled: ${gpu.throttled.join(", ").replaceAll("_", " ")}`, "warning"));
  }
  if (gpu.xids > 0) card.append(element("p", `XID errors: ${count(gpu.xids)}`, "alarm"));
  return card;
}

/** The headings stay the same elements; only their marks change. */
function drawHeadings(redraw) {
  const head = byId("process-table").tHead;
  if (head.rows.length === 0) {
    const row = head.insertRow();
    for (const column of COLUMNS) {
      const cell = element("th", undefined, column.isText ? "text" : "");
      cell.scope = "col";
      const button = element("button", column.title);
      button.type = "button";
      button.addEventListener("click", () => {
        if (sorting.column === column) sorting.isDescending = !sorting.isDescending;
        else Object.assign(sorting, { column, isDescending: !column.isText });
        redraw();
      });
      cell.append(button);
      row.append(cell);
    }
  }
  for (const [at, column] of COLUMNS.entries()) {
    const cell = head.rows[0].cells[at];
    const isSorted = sorting.column === column;
    cell.firstChild.textContent = column.title + (isSorted ? (sorting.isDescending ? " ▾" : " ▴") : "");
    if (isSorted) cell.setAttribute("aria-sort", sorting.isDescending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  }
}

function listed(view) {
  const wanted = byId("filter").value.toLowerCase();
  const fits = (p) =>
    [p.name, String(p.id.pid), p.container ?? ""].some((text) => text.toLowerCase().includes(wanted));
  const rows = view.processes.filter((p) => (byId("exited").checked || !p.has_exited) && fits(p));
  const sign = sorting.isDescending ? -1 : 1;
  return rows.sort((a, b) => {
    const [x, y] = [sorting.column.by(a), sorting.column.by(b)];
    return (x < y ? -sign : x > y ? sign : 0) || a.id.pid - b.id.pid;
  });
}

function processRow(process) {
  const row = element("tr", undefined, process.has_exited ? "faint" : "");
  row.dataset.item = `${process.id.pid}/${process.id.instance}`;
  for (const column of COLUMNS) {
    const looks = [column.isText ? "text" : "", column.isLink ? "name" : "", column.look?.(process) ?? ""];
    const cell = element("td", undefined, looks.filter(Boolean).join(" "));
    const text = column.show(process);
    if (column.exact) cell.title = column.exact(process);
    if (column.isLink) {
      const link = element("a", text + (process.has_exited ? " (exited)" : ""));
      link.href = `#process/${process.id.pid}/${process.id.instance}`;
      link.dataset.key = link.hash;
      link.title = text;
      cell.append(link);
    } else {
      cell.textContent = text;
    }
    row.append(cell);
  }
  return row;
}

function drawProcesses(view) {
  const rows = listed(view).map(processRow);
  show(byId("process-table").tBodies[0], rows);
  const note = byId("no-process");
  note.hidden = rows.length > 0;
  const hasExited = view.processes.length > 0 && view.processes.every((p) => p.has_exited);
  if (view.processes.length === 0) note.textContent = "No process has used CUDA yet.";
  else if (hasExited) note.textContent = "All processes that used CUDA have exited.";
  else note.textContent = "No process matches the filter.";
}

function entryText(entry) {
  switch (entry.kind) {
    case "failure":
      return ` (${entry.pid}): ${entry.function} failed with ${entry.error}${times(entry.count)}`;
    case "xid":
      return `GPU ${entry.gpu}: XID ${entry.xid}${times(entry.count)}`;
    case "loss":
      return `lost: ${entry.cause.replaceAll("_", " ")}${times(entry.count)}`;
    default:
      return `and ${entry.entries} more at the same time`;
  }
}

function times(n) {
  return n > 1 ? `, ${count(n)} times` : "";
}

function drawLog(log) {
  const entries = log
    .filter((entry, at) => entry.kind === "xid" || at >= log.length - MOST_ENTRIES)
    .reverse()
    .map((entry) => {
      const line = element("li", undefined, entry.kind === "xid" ? "alarm" : "");
      const at = new Date(entry.unix_seconds * 1000);
      const time = element("time", at.toLocaleTimeString());
      time.dateTime = at.toISOString();
      line.append(time, " ");
      // the direction of a name must not change where its pid is shown
      if (entry.name) line.append(element("bdi", entry.name));
      line.append(entryText(entry));
      return line;
    });
  if (entries.length === 0) entries.push(element("li", "None since the start of the daemon.", "faint"));
  show(byId("log"), entries);
}

function drawHealth(view) {
  const rows = [
    ["CPU", percent(view.own_cpu_share)],
    ["Memory", orDash(view.own_resident_bytes, bytes)],
    ["Budget", view.budget === null ? "none" : percent(view.budget)],
    ["Estimated", view.estimated.length === 0 ? "nothing" : view.estimated.join(", ")],
    ["Lost", view.losses.length === 0 ? "nothing" : causes(view.losses)],
  ];
  const cells = rows.flatMap(([name, value]) => [element("dt", name, "faint"), element("dd", value)]);
  show(byId("health"), cells);
}
