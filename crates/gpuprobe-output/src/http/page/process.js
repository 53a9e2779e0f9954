// One process in detail.

import { curveCard } from "./charts.js";
import { byId, element, show, textNode } from "./dom.js";
import { bytes, count, duration, estimated, growth, orDash, percent, rate, spanOf } from "./units.js";

/** Call sites whose memory is drawn over time. */
const MOST_CURVES = 6;

export function drawProcess(process, details, history) {
  // the direction of a name must not change where its pid is shown
  show(byId("process-title"), [element("bdi", process.name), textNode(` (${process.id.pid})`)]);
  const parts = [`${bytes(process.live_bytes)} live`, `peak ${bytes(process.peak_bytes)}`];
  parts.push(`${estimated(count(process.launches), process.has_estimated_launches)} launches`);
  parts.push(`${estimated(percent(process.calls_share), process.has_estimated_calls)} of its time in calls`);
  if (process.pending) parts.push(`in ${process.pending.function} for ${duration(process.pending.age_ns)}`);
  if (process.has_exited) parts.push("exited");
  byId("process-summary").textContent = parts.join(", ");
  show(byId("process-charts"), curves(process, details, history));
  show(byId("process-tables"), tables(details));
}

export function drawGone(pid) {
  show(byId("process-title"), [textNode(`Process ${pid} is no longer listed.`)]);
  byId("process-summary").textContent = "";
  show(byId("process-charts"), []);
  show(byId("process-tables"), []);
}

function curves(process, details, history) {
  const isThis = (known) => known.id.pid === process.id.pid && known.id.instance === process.id.instance;
  const known = history.processes.find(isThis);
  const cards = [];
  if (known) {
    const times = history.times.slice(-known.live_bytes.length);
    const [most, span] = [Math.max(...known.live_bytes), spanOf({ times })];
    cards.push(curveCard("Live memory", known.live_bytes, most, `${span}, up to ${bytes(most)}`));
    // the first point has none before it
    const launches = known.launches.map((n, at) => (at > 0 ? n / (times[at] - times[at - 1]) : null));
    const fastest = Math.max(0, ...launches.slice(1));
    cards.push(curveCard("Launches", launches, fastest, `${span}, up to ${rate(fastest)} per second`));
  }
  for (const site of details.sites.filter((site) => site.curve.length > 1).slice(0, MOST_CURVES)) {
    const most = Math.max(...site.curve);
    const scale = `${bytes(site.live_bytes)} live, ${site.verdict}, up to ${bytes(most)}`;
    cards.push(curveCard(site.name, site.curve, most, scale, site.is_suspect ? "alarm" : ""));
  }
  return cards;
}

function tables(details) {
  const { streams } = details;
  const below = (ns) => orDash(ns, (ns) => `<${duration(ns)}`);
  return [
    ...table(
      "Kernels",
      ["Launches", "/s", "In graphs", "Mean call", "Mean on GPU", "Of GPU time", "Kernel"],
      details.kernels.map((k) => [
        estimated(count(k.launches), k.is_estimated),
        estimated(rate(k.launches_per_second), k.is_estimated),
        estimated(count(k.in_graphs), k.is_estimated && k.in_graphs > 0),
        orDash(k.mean_call_ns, duration),
        orDash(k.mean_gpu_ns, duration),
        percent(k.gpu_share),
        k.kernel,
      ]),
    ),
    ...table(
      "Live memory by call site",
      ["Live", "Blocks", "Growth/s", "Verdict", "Call site"],
      [...details.sites.map(siteCells), ...otherSites(details)],
    ),
    ...table(
      "Copies",
      ["Copies", "/s", "Bytes", "Bandwidth", "Kind"],
      details.copies.map((c) => [
        estimated(count(c.copies), c.is_estimated),
        estimated(rate(c.copies_per_second), c.is_estimated),
        [estimated(bytes(c.bytes), c.is_estimated), c.bytes],
        estimated(orDash(c.bytes_per_second, (n) => `${bytes(n)}/s`), c.is_estimated),
        c.what,
      ]),
    ),
    ...table(`Gaps of streams: ${count(streams.streams)}`, ["Gaps", "Time", "After"], gaps(streams)),
    ...table(
      "Longest gaps of a stream",
      ["Gap", "Stream", "Meanwhile"],
      details.gaps.map((g) => [duration(g.ns), g.stream, g.meanwhile ?? ""]),
    ),
    ...table(
      "Calls, by total time",
      ["Calls", "/s", "Mean", "50%", "99%", "Errors", "Function"],
      details.calls.map((c) => [
        estimated(count(c.calls), c.is_estimated),
        estimated(rate(c.calls_per_second), c.is_estimated),
        orDash(c.mean_ns, duration),
        below(c.p50_below_ns),
        below(c.p99_below_ns),
        estimated(count(c.errors), c.is_estimated && c.errors > 0),
        c.function,
      ]),
    ),
    ...table(
      "Errors",
      ["Times", "Error"],
      details.errors.map((e) => [estimated(count(e.count), e.is_estimated), `${e.error} in ${e.function}`]),
    ),
  ];
}

function siteCells(site) {
  const grown = orDash(site.growth_per_second, growth);
  return [[bytes(site.live_bytes), site.live_bytes], count(site.allocations), grown, site.verdict, site.name];
}

/** The live memory of call sites that are not listed. */
function otherSites({ other_sites: sites, other_site_bytes: live }) {
  if (sites === 0) return [];
  return [[[bytes(live), live], "", "", "", sites === 1 ? "1 other call site" : `${count(sites)} other call sites`]];
}

/** The gaps of all streams; none if there are no streams. */
function gaps(streams) {
  if (streams.streams === 0) return [];
  return [
    [count(streams.gaps_after_sync), duration(streams.after_sync_ns), "a wait"],
    [count(streams.gaps_after_launch), duration(streams.after_launch_ns), "a launch"],
  ];
}

/** A table with a title. The last column is text. A cell is a text, or a text and the exact number of bytes. */
function table(title, headings, rows) {
  if (rows.length === 0) return [];
  const made = element("table");
  const last = headings.length - 1;
  const head = made.createTHead().insertRow();
  for (const [at, heading] of headings.entries()) {
    const cell = element("th", heading, at === last ? "text" : "");
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const [at, shown] of cells.entries()) {
      const [text, exact] = Array.isArray(shown) ? shown : [shown];
      const cell = element("td", text, at === last ? "text name" : "");
      if (exact !== undefined) cell.title = `${exact} bytes`;
      else if (at === last) cell.title = text;
      row.append(cell);
    }
  }
  const wide = element("div", undefined, "wide");
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", title);
  wide.append(made);
  return [element("h3", title), wide];
}
