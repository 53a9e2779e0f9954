// Reads /api/view every two seconds, and /api/process/PID/INSTANCE for the process that is open.

import { byId } from "./dom.js";
import { drawOverview } from "./overview.js";
import { drawGone, drawProcess } from "./process.js";

const EVERY_MS = 2000;

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

async function read(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
  return answer.json();
}

/** The details of a process; null if it is no longer listed. */
async function readProcess({ pid, instance }) {
  const answer = await fetch(`api/process/${pid}/${instance}`, { cache: "no-store" });
  return answer.ok ? answer.json() : null;
}

async function update() {
  const status = byId("status");
  try {
    const open = openProcess();
    const [{ view, history }, details] = await Promise.all([read("api/view"), open && readProcess(open)]);
    // another process may have been opened meanwhile
    const isStillOpen = openProcess()?.instance === open?.instance;
    latest = { view, history, details: isStillOpen ? details : null };
    if (isStillOpen) draw();
    const running = view.processes.filter((p) => !p.has_exited).length;
    const time = new Date(view.unix_seconds * 1000).toLocaleTimeString();
    status.textContent = `Processes: ${running}, GPUs: ${view.gpus.length}, read at ${time}`;
    status.className = "";
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
