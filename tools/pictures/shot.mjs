// Screenshots of pages in headless Chromium: shot.mjs PLAYWRIGHT (URL FILE WIDTH HEIGHT SECONDS)...

import { launch } from "../../tests/shared/browser.mjs";

const [playwright, ...tasks] = process.argv.slice(2);
const browser = await launch(playwright);
for (let at = 0; at < tasks.length; at += 5) {
  const [url, path, width, height, seconds] = tasks.slice(at, at + 5);
  const page = await browser.newPage({ viewport: { width: Number(width), height: Number(height) } });
  // on a busy machine
  page.setDefaultTimeout(300_000);
  await page.goto(url);
  await page.waitForTimeout(1000 * Number(seconds));
  await page.screenshot({ path });
  await page.close();
}
await browser.close();
