// Loads Chrome trace files into speedscope, in headless Chromium, and compares what it shows with the trace:
//
//   speedscope_check.mjs SPEEDSCOPE PLAYWRIGHT TRACE...
//
// For each trace there are TRACE.chrome, written by gpuprobe, and TRACE.slices, written by trace.py.
//
// speedscope draws on a canvas, so its export in its own format is compared instead.
import { createReadStream, existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { basename, extname, join } from "node:path";

import { launchIn } from "../shared/browser.mjs";

const [, , speedscope, playwright, ...traces] = process.argv;

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".chrome": "application/json" };

// Serves the files of speedscope and the traces.
function serve() {
	const server = createServer((request, response) => {
		const name = basename(new URL(request.url, "http://localhost").pathname) || "index.html";
		const trace = traces.find((trace) => basename(trace) + ".chrome" === name);
		const path = trace ? trace + ".chrome" : join(speedscope, name);
		if (!existsSync(path)) {
			response.writeHead(404).end();
			return;
		}
		response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" });
		createReadStream(path).pipe(response);
	});
	return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

// The names and depths of the calls of each thread, in the order in which they began. speedscope drops calls of length
// 0.
function expected(trace) {
	const threads = JSON.parse(readFileSync(trace + ".slices"));
	const calls = (slices) =>
		slices.filter(([, start, end]) => end > start).map(([name, , , depth]) => JSON.stringify([depth, name]));
	return threads.map(calls).filter((calls) => calls.length > 0);
}

// The same from the export of speedscope.
function shown(saved) {
	return saved.profiles.map((profile) => {
		let depth = 0;
		const calls = [];
		for (const event of profile.events) {
			if (event.type === "O") {
				// speedscope appends the arguments to the name
				const name = saved.shared.frames[event.frame].name.replace(/ \{"event_id":.*$/s, "");
				calls.push(JSON.stringify([depth, name]));
				depth += 1;
			} else {
				depth -= 1;
			}
		}
		return calls;
	});
}

async function load(context, origin, trace) {
	const page = await context.newPage();
	const errors = [];
	page.on("pageerror", (error) => errors.push(String(error)));
	page.on("dialog", (dialog) => {
		errors.push(`dialog: ${dialog.message()}`);
		dialog.dismiss();
	});
	await page.goto(`${origin}/#profileURL=${origin}/${basename(trace)}.chrome`);
	await page.waitForFunction(() => document.title !== "speedscope", null, { timeout: 60_000 });
	const [download] = await Promise.all([
		page.waitForEvent("download", { timeout: 60_000 }),
		page.keyboard.press("Control+s"),
	]);
	const saved = JSON.parse(readFileSync(await download.path()));
	await page.close();
	if (errors.length) throw new Error(errors.join("; "));
	return saved;
}

function compare(trace, saved) {
	const sorted = (threads) => threads.map((calls) => calls.join("\n")).sort();
	const [want, got] = [sorted(expected(trace)), sorted(shown(saved))];
	const lines = (threads) => threads.join("\n").split("\n");
	const [wanted, found] = [lines(want), lines(got)];
	if (wanted.length !== found.length) throw new Error(`${trace}: ${found.length} slices, not ${wanted.length}`);
	found.forEach((call, at) => {
		if (call !== wanted[at]) throw new Error(`${trace}: slice ${at} is ${call}, not ${wanted[at]}`);
	});
	console.log(`${basename(trace)}: ${found.length} slices on ${got.length} threads`);
}

const server = await serve();
const profile = mkdtempSync(join(tmpdir(), "gpuprobe-formats-"));
const context = await launchIn(profile, playwright, { acceptDownloads: true });
try {
	const origin = `http://127.0.0.1:${server.address().port}`;
	for (const trace of traces) compare(trace, await load(context, origin, trace));
} catch (error) {
	console.error(String(error));
	process.exitCode = 1;
} finally {
	await context.close();
	server.close();
	rmSync(profile, { recursive: true, force: true });
}
