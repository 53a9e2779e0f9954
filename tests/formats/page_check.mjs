// Opens pages of `gpuprobe report` in headless Chromium: the console must stay empty, the charts must exist, search
// must hide and mark, zoom must change the view, and no script but the page's own may run.
//
//   page_check.mjs PLAYWRIGHT SCREENSHOT PAGE...        the screenshot is of the last page

import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [playwright, screenshot, ...pages] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(resolve(playwright));
const folder = mkdtempSync(join(tmpdir(), "gpuprobe-page-"));
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
flags.push("--disable-component-update", "--disable-sync");
const browser = await chromium.launchPersistentContext(folder, {
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: flags,
  viewport: { width: 1200, height: 900 },
});
let failures = 0;
function expect(what, is) {
  if (!is) {
    failures += 1;
    console.log(`WRONG ${what}`);
  }
}

async function check(path) {
  const page = await browser.newPage();
  const messages = [];
  page.on("console", (message) => messages.push(message.text()));
  page.on("pageerror", (error) => messages.push(String(error)));
  page.on("dialog", (dialog) => {
    // a script from the trace would open one
    messages.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith("file:")) messages.push(`requested ${request.url()}`);
  });
  await page.goto(pathToFileURL(resolve(path)).href);
  const count = (selector) => page.locator(selector).count();
  expect(`${path}: figures`, (await count("#figures div")) === 8);
  expect(`${path}: a timeline`, (await count("#timeline svg rect")) > 0);
  expect(`${path}: functions with bars`, (await count("#functions tbody tr svg rect")) > 0);
  expect(`${path}: a flame graph`, (await count(".flame svg svg")) > 0);

  // search hides rows that do not match, and shows all again at the end
  const rows = await count("#functions tbody tr");
  const name = await page.locator("#functions tbody tr").first().getAttribute("data-name");
  await page.fill("#search", name);
  const shown = await page.locator("#functions tbody tr:visible").count();
  expect(`${path}: search hides`, shown >= 1 && (rows === 1 || shown < rows));
  expect(`${path}: search marks`, (await count(".flame .found")) >= 1);
  await page.fill("#search", "");
  expect(`${path}: search ends`, (await page.locator("#functions tbody tr:visible").count()) === rows);

  // zoom of the timeline and of a flame graph
  const view = () => page.locator("#timeline svg").first().getAttribute("viewBox");
  const before = await view();
  await page.click("button[data-zoom='0.5']");
  expect(`${path}: the timeline zooms`, (await view()) !== before);
  await page.click("button[data-zoom='0']");
  expect(`${path}: and back`, (await view()) === before);
  const deepest = page.locator(".flame svg svg").last();
  await deepest.evaluate((node) => node.dispatchEvent(new MouseEvent("click", { bubbles: true })));
  expect(`${path}: the flame graph zooms`, parseFloat(await deepest.getAttribute("width")) > 99);

  for (const [scheme, width] of [["dark", 1200], ["light", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 900 });
    const overflows = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth + 1);
    expect(`${path}: fits ${width} columns`, !overflows);
  }
  expect(`${path}: the console must be empty, but has ${messages.join("; ")}`, messages.length === 0);

  // a script that gets into the page anyway is blocked by the policy
  messages.length = 0;
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "alert('script')";
    document.body.append(script);
    document.body.insertAdjacentHTML("beforeend", "<svg onload=\"alert('handler')\"></svg>");
  });
  await page.evaluate(() => new Promise(requestAnimationFrame));
  const refused = messages.filter((text) => text.includes("Content Security Policy"));
  expect(`${path}: other scripts must be blocked, but ${messages.join("; ")}`, refused.length === 2 && messages.length === 2);
  await page.close();
}

try {
  for (const path of pages) await check(path);
  const page = await browser.newPage();
  await page.setViewportSize({ width: 1100, height: 1500 });
  await page.goto(pathToFileURL(resolve(pages.at(-1))).href);
  await page.screenshot({ path: screenshot });
} finally {
  await browser.close();
  rmSync(folder, { recursive: true, force: true });
}
process.exit(failures ? 1 : 0);
