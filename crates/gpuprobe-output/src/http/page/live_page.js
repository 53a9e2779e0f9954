// Reads /api/view every two seconds, and /api/process/PID/INSTANCE for the process that is open.

import { byId } from "./dom.js";
import { drawOverview } from "./overview.js";
import { drawGone, drawProcess } from "./process.js";

const EVERY_MS = 2000;
const TIMEOUT_MS = 10_000;
/** Figures that are older than this are reported, unless the daemon takes new ones more rarely. */
const OLD_SECONDS = 60;

let latest = null;

/** The process in the address of the page: `#process/PID/INSTANCE`. */
function openProcess() {
  const [what, pid, instance] = location.hash.slice(1).split("/");
  const isNumber = (text) => /^\d+$/.test(text ?? "");
  return what === "process" && isNumber(pid) && isNumber(instance) ? { pid, instance } : null;
}

function draw() {
  const open = openProcess();
  byId("overview").hidden = open !== null;
  byId("process").hidden = open === null;
  if (!latest) return;
  if (!open) {
    drawOverview(latest, draw);
    return;
  }
  const { view, history, details } = latest;
  const isOpen = (p) => String(p.id.pid) === open.pid && p.id.instance === open.instance;
  const process = view.processes.find(isOpen);
  if (process && details) drawProcess(process, details, history);
  else drawGone(open.pid);
}

/** Requests a path below that of the page. The address of the page may have a password, which fetch would refuse. */
function request(path) {
  const url = new URL(path, location.origin + location.pathname);
  return fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
}

async function readView() {
  const answer = await request("api/view");
  if (!answer.ok) throw new Error(`api/view: ${answer.status} ${answer.statusText}`);
  const { view, history } = await answer.json();
  const [before, last] = history.times.slice(-2);
  const tooOld = Math.max(OLD_SECONDS, last > before ? 3 * (last - before) : 0);
  // the clock of the daemon, if possible: that of the browser may differ
  const now = Date.parse(answer.headers.get("date") ?? "") || Date.now();
  const age = now / 1000 - view.unix_seconds;
  return { view, history, oldSeconds: age > tooOld ? Math.round(age) : null };
}

/** The details of a process; null if it is no longer listed. */
async function readProcess({ pid, instance }) {
  const answer = await request(`api/process/${pid}/${instance}`);
  return answer.ok ? answer.json() : null;
}

async function update() {
  const status = byId("status");
  try {
    const open = openProcess();
    const [{ view, history, oldSeconds }, details] = await Promise.all([readView(), open && readProcess(open)]);
    // another process may have been opened meanwhile
    const isStillOpen = openProcess()?.instance === open?.instance;
    latest = { view, history, details: isStillOpen ? details : null };
    if (isStillOpen) draw();
    const running = view.processes.filter((p) => !p.has_exited).length;
    const time = new Date(view.unix_seconds * 1000).toLocaleTimeString();
    const isOld = oldSeconds !== null;
    const text = `Processes: ${running}, GPUs: ${view.gpus.length}, read at ${time}`;
    status.textContent = isOld ? `${text}: the daemon has had no new figures for ${oldSeconds} s` : text;
    status.className = isOld ? "alarm" : "";
  } catch (error) {
    status.textContent = `No answer from the daemon (${error.message}). Trying again.`;
    status.className = "alarm";
  }
}

/** One after the other, however long an answer takes. A hidden page reads nothing. */
async function keepUpdating() {
  if (!document.hidden) await update();
  setTimeout(keepUpdating, EVERY_MS);
}

addEventListener("hashchange", async () => {
  if (location.hash && !openProcess()) return;
  await update();
  (openProcess() ? byId("process-title") : byId("processes")).focus();
});
document.addEventListener("visibilitychange", () => document.hidden || update());
byId("filter").addEventListener("input", draw);
byId("exited").addEventListener("change", draw);
keepUpdating();
