// Opens the daemon's page in headless Chromium and compares it with ledgers and with /metrics. Reads what to check from
// stdin, as check.py writes it, and prints a line per check.
//
//   page_check.mjs PLAYWRIGHT FOLDER        screenshots are written to the folder

import { readFileSync } from "node:fs";
import { join } from "node:path";

import { launch, watch } from "../shared/browser.mjs";

const [playwright, folder] = process.argv.slice(2);
const task = JSON.parse(readFileSync(0, "utf8"));
const browser = await launch(playwright);

// longer than anything here takes on a busy machine
const PATIENCE_MS = 60_000;
let failures = 0;
function expect(what, is) {
  failures += is ? 0 : 1;
  console.log(`${is ? "ok" : "FAILED"}: ${what}`);
}

/** A page whose console, dialogs and requests are watched. */
async function open(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const messages = watch(page, (requested) => requested.startsWith(url));
  await page.goto(url);
  await page.waitForSelector("#process-table tbody tr");
  return { page, messages, close: () => context.close() };
}

const linkOf = (pid) => `a[href^="#process/${pid}/"]`;
const rowOf = (page, pid) => page.locator("#process-table tbody tr", { has: page.locator(linkOf(pid)) });
const number = (text) => Number(text.replaceAll(/[^0-9.]/g, ""));

/** The samples of a metric of one process in /metrics: labels and value. */
async function samples(metric, pid) {
  const text = await (await fetch(`${task.url}metrics`)).text();
  const found = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith(`${metric}{`)) continue;
    const labels = Object.fromEntries([...line.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    if (labels.pid === String(pid)) found.push({ labels, value: Number(line.slice(line.lastIndexOf(" ") + 1)) });
  }
  return found;
}
const sum = (rows) => rows.reduce((total, row) => total + row.value, 0);

/** Looks until it is true: the page reads the daemon every two seconds. */
async function until(what, look) {
  const end = Date.now() + PATIENCE_MS;
  while (Date.now() < end) {
    if (await look()) return expect(what, true);
    await new Promise((done) => setTimeout(done, 300));
  }
  expect(what, false);
}

/** The rows of a table of the open process, by its title. */
async function tableRows(page, title) {
  return page.$$eval(`[aria-label="${title}"] tbody tr`, (rows) =>
    rows.map((row) => [...row.cells].map((cell) => ({ text: cell.textContent, title: cell.title }))),
  );
}

/** The ledger program is idle, so that the page, /metrics and the ledger have the same numbers. */
async function checkNumbers(page) {
  const { ledger, launches } = task;
  const live = Object.values(ledger.memory).reduce((total, row) => total + row.live_bytes, 0);
  const headings = await page.$$eval("#process-table th button", (all) => all.map((one) => one.textContent.split(" ")[0]));
  const cell = (pid, heading) => rowOf(page, pid).locator("td").nth(headings.indexOf(heading));
  await until("live bytes equal the ledger", async () => (await cell(ledger.pid, "Live").getAttribute("title")) === `${live} bytes`);
  expect("live bytes equal /metrics", sum(await samples("gpuprobe_memory_live_bytes", ledger.pid)) === live);
  const failed = sum(await samples("gpuprobe_errors_total", ledger.pid));
  const errors = number(await cell(ledger.pid, "Errors").textContent());
  expect(`errors equal /metrics: ${errors} and ${failed}`, errors === failed && failed > 0);
  const launched = sum(await samples("gpuprobe_kernel_launches_total", ledger.pid));
  const title = await cell(ledger.pid, "Launches/s").getAttribute("title");
  const inLedger = Object.values(ledger.launches).reduce((a, b) => a + b, 0);
  expect(`launches equal /metrics and the ledger: ${title}`, title === `${launched} launches` && launched === inLedger);

  // in detail: launches by kernel, copied bytes by direction, live memory by call site
  await page.click(linkOf(launches.pid));
  await page.waitForSelector('[aria-label="Kernels"]');
  const kernels = Object.fromEntries((await tableRows(page, "Kernels")).map((row) => [row.at(-1).text, number(row[0].text)]));
  const wanted = Object.fromEntries(Object.entries(launches.launches).filter(([, n]) => n > 0));
  expect("kernels equal the ledger", sorted(kernels) === sorted(wanted) && Object.keys(wanted).length > 0);
  const metric = await samples("gpuprobe_kernel_launches_total", launches.pid);
  const counted = {};
  for (const { labels, value } of metric) counted[labels.kernel] = (counted[labels.kernel] ?? 0) + value;
  expect("kernels equal /metrics", sorted(kernels) === sorted(counted));
  await page.goBack();
  await page.click(linkOf(ledger.pid));
  await page.waitForSelector('[aria-label="Copies"]');
  const bytes = (await tableRows(page, "Copies")).reduce((total, row) => total + parseInt(row[2].title, 10), 0);
  const moved = sum(await samples("gpuprobe_copy_bytes_total", ledger.pid));
  expect(`copied bytes equal /metrics: ${bytes} and ${moved}`, bytes === moved && moved > 0);
  const calls = Object.fromEntries((await tableRows(page, "Calls, by total time")).map((row) => [row[6].text, number(row[0].text)]));
  const inMetrics = Object.fromEntries((await samples("gpuprobe_calls_total", ledger.pid)).map((row) => [row.labels.function, row.value]));
  expect("calls equal /metrics", sorted(calls) === sorted(inMetrics) && Object.keys(calls).length > 5);
  expect("memory over time is drawn", (await page.locator("#process-charts .curve").first().getAttribute("d")).length > 0);
  await page.goBack();
  await page.waitForSelector("#overview:not([hidden])");
}

function sorted(numbers) {
  return JSON.stringify(Object.entries(numbers).sort());
}

async function checkLog(page) {
  const log = await page.locator("#log").textContent();
  expect("the log has the XID", log.includes("GPU 0: XID 79"));
  expect("the log has errors of the ledger program", log.includes(`page_ledger (${task.ledger.pid}): `) && log.includes("CUDA_ERROR_"));
  const gpu = await page.locator("#gpus .card").first().textContent();
  expect(`a GPU has its figures: ${gpu}`, gpu.includes("42% busy") && gpu.includes("123 W"));
}

async function checkSorting(page) {
  const pids = () => page.$$eval("#process-table tbody tr", (rows) => rows.map((row) => Number(row.cells[0].textContent)));
  const heading = page.locator("#process-table th button", { hasText: "PID" });
  await heading.click();
  const falling = await pids();
  await page.$$eval("#process-table tbody tr", (rows) => rows.forEach((row) => (row.of = row.cells[0].textContent)));
  await heading.click();
  const isSame = await page.$$eval("#process-table tbody tr", (rows) => rows.every((row) => (row.of ?? row.cells[0].textContent) === row.cells[0].textContent));
  expect("a row stays that of its process when the order changes", isSame);
  const rising = await pids();
  expect("a heading sorts", falling.every((pid, at) => at === 0 || falling[at - 1] >= pid));
  expect("and sorts the other way", rising.every((pid, at) => at === 0 || rising[at - 1] <= pid));
  expect("the order is announced", (await page.locator('th[aria-sort="ascending"]').count()) === 1);
  await page.fill("#filter", "page_led");
  expect("the filter hides others", (await pids()).length === 1);
  await page.fill("#filter", "nothing has this name");
  expect("and says so", (await page.locator("#no-process").textContent()) === "No process matches the filter.");
  await page.fill("#filter", "");
}

/** With keys only: to a process, into it, and back. The focus stays while the page is updated. */
async function checkKeys(page) {
  await page.reload();
  await page.waitForSelector(linkOf(task.ledger.pid));
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("href") ?? document.activeElement.id);
  let seen = [];
  for (let times = 0; times < 60 && !(await focused()).startsWith(`#process/${task.ledger.pid}/`); times += 1) {
    await page.keyboard.press("Tab");
    seen.push(await focused());
  }
  expect("Tab reaches the filter, and a process", seen.includes("filter") && seen.at(-1).startsWith(`#process/${task.ledger.pid}/`));
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineWidth);
  expect(`the focus is visible: ${outline}`, parseFloat(outline) >= 2);
  const status = await page.locator("#status").textContent();
  await until("the page is updated", async () => (await page.locator("#status").textContent()) !== status);
  expect("the focus stays", (await focused()).startsWith(`#process/${task.ledger.pid}/`));
  await page.keyboard.press("Enter");
  await page.waitForSelector("#process:not([hidden])");
  await until("the title of the process has the focus", async () => (await focused()) === "process-title");
  await page.click("#back");
  await page.waitForSelector("#overview:not([hidden])");
}

/** Every input, button, image and region has a name; every text has a contrast of at least 4.5 to 1. */
async function checkReadable(page, what) {
  const unnamed = await page.evaluate(() => {
    const name = (node) =>
      node.getAttribute("aria-label") ||
      document.getElementById(node.getAttribute("aria-labelledby"))?.textContent ||
      [...(node.labels ?? [])].map((label) => label.textContent).join("") ||
      node.textContent;
    const all = [...document.querySelectorAll("input, button, a, svg, [role], section, table, th, ol[tabindex]")];
    return all.filter((node) => node.offsetParent !== null && !name(node).trim()).map((node) => node.outerHTML.slice(0, 80));
  });
  expect(`${what}: everything has a name ${unnamed.join(" ")}`, unnamed.length === 0);
  const pale = await page.evaluate(() => {
    const parts = (color) => color.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
      const linear = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const back = (node) => {
      for (; node; node = node.parentElement) {
        const color = parts(getComputedStyle(node).backgroundColor);
        if (color.length === 3 || color[3] > 0) return color;
      }
      return [255, 255, 255];
    };
    const found = [];
    for (const node of document.body.querySelectorAll("*")) {
      const hasText = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
      if (!hasText || node.offsetParent === null) continue;
      const [a, b] = [light(parts(getComputedStyle(node).color)), light(back(node))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast < 4.5) found.push(`${node.textContent.slice(0, 30)}: ${contrast.toFixed(1)}`);
    }
    return found;
  });
  expect(`${what}: contrast ${pale.join("; ")}`, pale.length === 0);
}

async function checkLooks(page) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const what = `${colorScheme}, ${width} pixels`;
      for (const pid of [null, task.ledger.pid]) {
        if (pid) {
          await page.click(linkOf(pid));
          await page.waitForSelector('[aria-label="Kernels"]');
        }
        const isWider = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth + 1);
        expect(`${what}: ${pid ? "a process" : "the overview"} fits`, !isWider);
        await checkReadable(page, what);
        await page.screenshot({ path: join(folder, `${pid ? "process" : "overview"}-${colorScheme}-${width}.png`), fullPage: true });
        if (pid) await page.click("#back");
      }
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}

/** Names with markup are shown as they are; scripts that get into the page anyway are blocked. */
async function checkMarkup(page, messages) {
  for (const [what, { pid, name }] of [["markup", task.markup], ["a turned direction", task.reversed]]) {
    expect(`a name with ${what} is shown as text`, (await page.locator(linkOf(pid)).textContent()) === name);
    await page.click(linkOf(pid));
    await until("and as title", async () => (await page.locator("#process-title").textContent()) === `${name} (${pid})`);
    await page.click("#back");
  }
  expect("scripts are only those of the page", await page.evaluate(() => document.querySelectorAll("script").length === 1));
  expect(`the console is empty: ${messages.join("; ")}`, messages.length === 0);
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "alert('script')";
    document.body.append(script);
    document.body.insertAdjacentHTML("beforeend", "<svg onload=\"alert('handler')\"></svg>");
  });
  await page.evaluate(() => new Promise(requestAnimationFrame));
  const refused = messages.filter((text) => text.includes("Content Security Policy"));
  expect("other scripts are blocked", refused.length === 2 && messages.length === 2);
}

try {
  const direct = await open(task.url);
  await direct.page.waitForSelector(linkOf(task.ledger.pid));
  await checkNumbers(direct.page);
  await checkLog(direct.page);
  await checkSorting(direct.page);
  await checkKeys(direct.page);
  await checkLooks(direct.page);
  await checkMarkup(direct.page, direct.messages);
  await direct.close();

  const prefixed = await open(task.prefixed);
  await prefixed.page.click(linkOf(task.ledger.pid));
  await prefixed.page.waitForSelector('[aria-label="Kernels"]');
  expect(`behind a prefix: ${prefixed.messages.join("; ")}`, prefixed.messages.length === 0);
  await prefixed.close();

  const { url, username, password } = task.guarded;
  expect("without the password there is no page", (await fetch(url)).status === 401);
  const guarded = await open(url, { httpCredentials: { username, password } });
  await guarded.page.click(linkOf(task.ledger.pid));
  await guarded.page.waitForSelector('[aria-label="Kernels"]');
  expect(`with the password: ${guarded.messages.join("; ")}`, guarded.messages.length === 0);
  await guarded.close();
} finally {
  await browser.close();
}
process.exit(failures ? 1 : 0);
