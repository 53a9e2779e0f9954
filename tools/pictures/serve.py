"""Answers `top --connect` with the test data of its screens, without programs whose names only test what screens do with them.
Counters go on as they did between the last two readings. Prints its address."""

import http.server
import json
import os

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SHOWN = {"python", "triton_server", "nccl-test"}

with open(f"{ROOT}/crates/gpuprobe-output/tests/top/readings.json", encoding="utf-8") as file:
    readings = json.load(file)
for reading in readings:
    processes = reading["snapshot"]["processes"]
    processes[:] = [process for process in processes if process["name"] in SHOWN]


def advanced(before, after, steps):
    """What `after` is so many steps later: its counters grow as they did since `before`."""
    if isinstance(after, dict) and isinstance(before, dict):
        return {key: advanced(before.get(key), value, steps) for key, value in after.items()}
    if isinstance(after, list) and isinstance(before, list) and len(after) == len(before):
        return [advanced(old, new, steps) for old, new in zip(before, after)]
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (before, after))
    return after + max(after - before, 0) * steps if is_number else after


class Daemon(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self):
        if self.path.split("?")[0] != "/api/snapshot":
            self.send_error(404)
            return
        steps = max(Daemon.asked - len(readings) + 1, 0)
        current = readings[min(Daemon.asked, len(readings) - 1)]
        Daemon.asked += 1
        body = json.dumps(advanced(readings[-2], current, steps)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Daemon)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
