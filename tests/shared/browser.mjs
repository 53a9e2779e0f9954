// Headless Chromium for the checks of pages.

import { createRequire } from "node:module";
import { resolve } from "node:path";

const ARGUMENTS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

const OPTIONS = { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args: ARGUMENTS };

/** Playwright's Chromium, from the folder of playwright-core. */
const chromium = (playwright) => createRequire(import.meta.url)(resolve(playwright)).chromium;

export const launch = (playwright) => chromium(playwright).launch(OPTIONS);

/** A single context, whose files are in a folder. */
export const launchIn = (folder, playwright, more) =>
  chromium(playwright).launchPersistentContext(folder, { ...OPTIONS, ...more });

/** What a page must not do, as it happens: use the console, fail, open a dialog, or request what is not allowed. */
export function watch(page, isAllowed) {
  const messages = [];
  page.on("console", (message) => messages.push(message.text()));
  page.on("pageerror", (error) => messages.push(String(error)));
  page.on("dialog", (dialog) => {
    // a script from the trace, or from the name of a program, would open one
    messages.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!isAllowed(request.url())) messages.push(`requested ${request.url()}`);
  });
  return messages;
}
