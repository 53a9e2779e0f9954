"""Runs the daemon next to programs with ledgers, and page_check.mjs on its page in each way that people reach it: directly,
behind a proxy with a path prefix, and with a password.

    check.py GPUPROBE STANDINS PLAYWRIGHT FOLDER    the binary, the folders of the stand-ins and of playwright-core, and
                                                    the output folder, which is emptied first

Its last line is "N passed, M failed".
"""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "shared"))
from checks import Checks
from servers import Daemon, Workload, stage

# a program with this name, and one whose CUDA kernels have such names, are harmless
MARKUP = "<script>x()<!--"
# the first character turns the direction of the text after it
REVERSED = "\u202eevil-name"
PROGRAMS = {"page_ledger": "ledger", "page_demo": "demo", "page_launches": "launches", MARKUP: "launches", REVERSED: "launches", "page_leaks": "leaks"}
PREFIX = "/gpu/one"
# the hash is one of bcrypt
USER, PASSWORD, HASH = "viewer", "secret", "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW"
BROWSER_SECONDS = 240


class Proxy(BaseHTTPRequestHandler):
    """Serves the daemon under PREFIX, as a reverse proxy does."""

    daemon = None

    def do_GET(self):
        if not self.path.startswith(PREFIX + "/"):
            self.send_error(404)
            return
        request = urllib.request.Request(f"http://{self.daemon}{self.path.removeprefix(PREFIX)}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
            self.send_response(answer.status)
            for name in ("content-type", "content-security-policy"):
                if value := answer.headers.get(name):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def start_proxy(address):
    handler = type("OfDaemon", (Proxy,), {"daemon": address})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}{PREFIX}/"


def web_config(folder):
    path = f"{folder}/web.yml"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"basic_auth_users:\n  {USER}: {HASH}\n")
    return path


def browse(check, playwright, task, folder):
    """Runs page_check.mjs, prints its lines and counts its checks."""
    script = os.path.join(os.path.dirname(__file__), "page_check.mjs")
    done = subprocess.run(["node", script, playwright, folder], input=json.dumps(task), capture_output=True, text=True, timeout=BROWSER_SECONDS)
    print(done.stdout + (done.stderr if done.returncode else ""), end="")
    lines = done.stdout.splitlines()
    passed, failed = (sum(line.startswith(word) for line in lines) for word in ("ok: ", "FAILED: "))
    check.passed += passed
    check.failed += failed
    if done.returncode and not failed or not passed:
        check.fail("the browser ended before its last check")


def main(probe, standins, playwright, folder):
    check, started = Checks(), []
    options, nvml = stage(standins, folder, PROGRAMS), f"{folder}/nvml"
    with open(nvml, "w") as file:
        file.write("xid 0 79\n")
    try:
        started.append(daemon := Daemon(f"{folder}/daemon.log", probe, options, STANDIN_NVML=nvml))
        guarded = Daemon(f"{folder}/guarded.log", probe, [*options, "--web-config", web_config(folder)], STANDIN_NVML=nvml)
        started.append(guarded)
        ledger = Workload(f"{folder}/page_ledger", "--wait", "--pauses", "1", "--threads", "2", "--calls", "20000")
        demo = Workload(f"{folder}/page_demo")
        launches = Workload(f"{folder}/page_launches", "classic", "--wait")
        markup = Workload(f"{folder}/{MARKUP}", "classic", "--wait")
        reversed_name = Workload(f"{folder}/{REVERSED}", "classic", "--wait")
        leaks = Workload(f"{folder}/page_leaks", "--wait", "--rounds", "2000", "--pace", "20")
        started += [ledger, demo, launches, markup, reversed_name, leaks]
        leaks.ledger()
        leaks.go_on()
        ledger.ledger()
        ledger.go_on()
        task = {
            "url": f"http://{daemon.address}/",
            "prefixed": start_proxy(daemon.address),
            "guarded": {"url": f"http://{guarded.address}/", "username": USER, "password": PASSWORD},
            "ledger": ledger.ledger(),
            "launches": launches.ledger(),
            "markup": {"pid": markup.pid, "name": MARKUP},
            "reversed": {"pid": reversed_name.pid, "name": REVERSED.replace("\u202e", "\\u{202e}")},
            "leaks": leaks.pid,
        }
        browse(check, playwright, task, folder)
        daemon.runs()
    except (AssertionError, subprocess.SubprocessError) as error:
        check.fail(error)
    finally:
        for process in reversed(started):
            process.end()
    check.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
