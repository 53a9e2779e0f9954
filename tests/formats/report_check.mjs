// Opens pages of `gpuprobe report` in headless Chromium: the console must stay empty, the charts must exist, search
// must hide and mark, zoom must change the view, and no script but the page's own may run. On the last page, single
// calls are found and compared with the trace.
//
//   report_check.mjs PLAYWRIGHT SCREENSHOT TRACE PAGE...        the screenshot and the plain trace are of the last page

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

import { launchIn, watch } from "../shared/browser.mjs";

const [playwright, screenshot, trace, ...pages] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "gpuprobe-page-"));
const browser = await launchIn(folder, playwright, { viewport: { width: 1200, height: 900 } });
let failures = 0;
function expect(what, is) {
  if (!is) {
    failures += 1;
    console.log(`WRONG ${what}`);
  }
}

async function check(path) {
  const page = await browser.newPage();
  const messages = watch(page, (url) => url.startsWith("file:"));
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

  // axes: steps of 1, 2 or 5 in one unit, few digits, and no label over another one, however far it is zoomed in
  const ticks = (axis) => page.$$eval(`${axis} span`, (all) => all.map((tick) => ({ text: tick.textContent, left: tick.offsetLeft, right: tick.offsetLeft + tick.offsetWidth })));
  const checkTicks = (what, shown) => {
    const texts = shown.map((tick) => tick.text), all = texts.join(", ");
    const numbers = texts.map((text) => Number(/^[+]?([0-9]+([.][0-9]{1,3})?) (ns|us|ms|s)$/.exec(text)?.[1]));
    expect(`${path}: ${what} has labels: ${all}`, texts.length > 1 && texts.length <= 20);
    // the first label may be the only one that is not an offset
    expect(`${path}: ${what} has short labels: ${all}`, numbers.slice(1).every((number) => !Number.isNaN(number)));
    expect(`${path}: ${what} has different labels: ${all}`, new Set(texts).size === texts.length);
    const steps = numbers.slice(2).map((number, at) => number - numbers[at + 1]);
    const isRound = (step) => [1, 2, 5].some((n) => Math.abs(Math.log10(step / n) - Math.round(Math.log10(step / n))) < 1e-6);
    expect(`${path}: ${what} has round steps: ${all}`, steps.every((step) => isRound(step) && Math.abs(step - steps[0]) < steps[0] / 100));
    expect(`${path}: labels of ${what} do not overlap`, shown.every((tick, at) => at === 0 || tick.left >= shown[at - 1].right));
  };
  const drawn = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  for (const width of [1400, 800, 390]) {
    await page.setViewportSize({ width, height: 900 });
    await drawn();
    checkTicks(`the timeline at ${width} pixels`, await ticks("#axis"));
    if (await page.locator(".chart .axis").count()) checkTicks(`the memory at ${width} pixels`, await ticks(".chart:first-of-type .axis"));
  }
  await page.setViewportSize({ width: 1200, height: 900 });
  for (let times = 0; times < 24; times += 1) {
    await page.evaluate(() => zoom(0.5, 0.7));
    await drawn();
    checkTicks(`the timeline after ${times + 1} zooms`, await ticks("#axis"));
  }
  await page.click("button[data-zoom='0']");

  // a title sorts its table, and sorts it the other way when clicked again
  const calls = () => page.$$eval("#functions tbody tr", (rows) => rows.map((row) => Number(row.cells[1].textContent)));
  const title = page.locator("#functions th button", { hasText: /^calls$/ });
  await title.click();
  const most = await calls();
  expect(`${path}: the most calls are first`, most.every((n, at) => at === 0 || most[at - 1] >= n));
  await title.click();
  expect(`${path}: and then last`, (await calls()).every((n, at, all) => at === 0 || all[at - 1] <= n));
  const deepest = page.locator(".flame svg svg").last();
  await deepest.evaluate((node) => node.dispatchEvent(new MouseEvent("click", { bubbles: true })));
  expect(`${path}: the flame graph zooms`, parseFloat(await deepest.getAttribute("width")) > 99);

  for (const [scheme, width] of [["dark", 1200], ["light", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 900 });
    const overflows = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth + 1);
    expect(`${path}: fits ${width} columns`, !overflows);
  }
  await page.setViewportSize({ width: 800, height: 900 });
  const box = await page.locator("#functions tbody td.name").first().boundingBox();
  expect(`${path}: the function is visible at 800 pixels`, box.x >= 0 && box.width > 100 && box.x + box.width < 800);
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

// Finds single calls: through a link, by zooming and clicking, and with keys.
async function findCalls(path) {
  const page = await browser.newPage();
  await page.goto(pathToFileURL(resolve(path)).href);
  const settled = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const shown = async () => Object.fromEntries(await page.$$eval("#call dd", (all) => all.map((dd) => [dd.dataset.of, dd.textContent])));
  const lines = readFileSync(trace, "utf8").split("\n").filter((line) => line.includes('"phase":"X"')).map((line) => JSON.parse(line));
  const recorded = ({ name, at }) => lines.find((line) => line.name === name && Math.abs(line.ts - parseFloat(at)) < 2e-9);

  // the link of the slowest call zooms to it and selects it
  await page.locator("#slowest a").first().click();
  await settled();
  const slowest = await shown();
  const longest = lines.filter((line) => line.parent === undefined).sort((a, b) => b.duration_us - a.duration_us)[0];
  expect(`${path}: the link leads to the slowest call, not ${slowest.name}`, recorded(slowest)?.event_id === longest.event_id);

  // from there, zoom with the wheel until a call with arguments fills the row, and click it
  const wanted = lines.find((line) => line.name === "cudaMalloc" && line.args.size);
  await page.click("button[data-zoom='0']");
  await settled();
  const track = page.locator("#timeline .track").first();
  await track.scrollIntoViewIfNeeded();
  const box = await track.boundingBox();
  const at = () => page.evaluate((ts) => (ts * 1e9 - data.from - view.from) / view.span, wanted.ts + wanted.duration_us / 2e6);
  const wide = () => page.evaluate((us) => (us * 1e3) / view.span, wanted.duration_us);
  await page.keyboard.down("Control");
  for (let turns = 0; turns < 200 && (await wide()) < 0.3; turns += 1) {
    await page.mouse.move(box.x + box.width * (await at()), box.y + 5);
    await page.mouse.wheel(0, -100);
    await settled();
  }
  await page.keyboard.up("Control");
  expect(`${path}: the wheel zooms to a single call`, (await wide()) >= 0.3);
  await page.mouse.click(box.x + box.width * (await at()), box.y + 5);
  const clicked = await shown();
  expect(`${path}: a click shows the name, not ${clicked.name}`, clicked.name === wanted.name && recorded(clicked)?.event_id === wanted.event_id);
  expect(`${path}: the arguments, not ${clicked.arguments}`, clicked.arguments?.startsWith(`devPtr=${wanted.args.devPtr}, size=`));
  expect(`${path}: the stack`, clicked.stack?.split("\n").length === wanted.stack.length);
  expect(`${path}: the duration, not ${clicked.took}`, clicked.took === `${wanted.duration_us.toFixed(1)} us`);
  console.log(`${path}: ${clicked.name}(${clicked.arguments}) took ${clicked.took}`);

  // keys: the next call, and back; then all
  await page.keyboard.press("n");
  expect(`${path}: n selects the next call`, (await shown()).at > clicked.at);
  await page.keyboard.press("p");
  expect(`${path}: p selects the previous call`, (await shown()).at === clicked.at);
  await page.keyboard.press("0");
  expect(`${path}: 0 shows all`, await page.evaluate(() => view.span === data.span));
  await page.keyboard.press("Escape");
  expect(`${path}: Escape closes the call`, await page.locator("#call").isHidden());
  await page.close();
}

try {
  await findCalls(pages.at(-1));
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
