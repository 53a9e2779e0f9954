"""Reads a trace without gpuprobe, for the checks: the calls of each thread with their times and depths."""

import json
import sys
from decimal import Decimal

BILLION = 10**9


def cut(name, most=1024):
    """A name as gpuprobe shortens it: a long name ends with a hash of the whole name."""
    text = name.encode("utf-8", "replace")
    if len(text) <= most:
        return name
    number = 0x811C9DC5
    for byte in text:
        number = ((number ^ byte) * 0x01000193) & 0xFFFFFFFF
    return text[: most - 12].decode("utf-8", "ignore") + f"...~{number:08x}"


class Call:
    def __init__(self, line):
        self.line = line
        self.id = line["event_id"]
        self.parent = line.get("parent")
        self.name = cut(line["name"])
        self.process = line["process"]
        self.thread = (line["pid"], line["tid"])
        self.start = int(Decimal(line["ts"]) * BILLION)
        self.end = None
        if "duration_us" in line:
            length = int(Decimal(line["duration_us"]) * 1000)
            if line["phase"] == "E":
                self.start -= length
            self.end = self.start + length
        self.depth = 0


class Trace:
    """Reads lines with valid times and counts damaged lines."""

    def __init__(self, path):
        self.calls, self.processes, self.losses, self.damaged = [], [], [], 0
        last, begun = 0, {}
        with open(path, "rb") as file:
            next(file)
            for raw in file:
                line = self.parse(raw)
                if line is None:
                    self.damaged += 1
                elif line["type"] == "process":
                    self.processes.append(line)
                    last = max(last, int(Decimal(line["ts"]) * BILLION))
                elif line["type"] == "loss":
                    self.losses.append(line)
                elif line["type"] not in ("end", "meta"):
                    call = Call(line)
                    last = max(last, call.end or call.start)
                    # with --phases a call has two lines, and the second has more fields
                    at = begun.get(call.id)
                    if at is not None:
                        self.calls[at] = call
                        continue
                    if line["phase"] == "B":
                        begun[call.id] = len(self.calls)
                    self.calls.append(call)
        exits = {p["pid"]: int(Decimal(p["ts"]) * BILLION) for p in self.processes if p["name"] == "exit"}
        for call in self.calls:
            if call.end is None:
                call.end = exits.get(call.thread[0], last)
        by_id = {call.id: call for call in self.calls}
        for call in self.calls:
            around = by_id.get(call.parent)
            while around:
                call.depth += 1
                around = by_id.get(around.parent)

    @staticmethod
    def parse(raw):
        try:
            line = json.loads(raw, parse_float=str)
        except (ValueError, RecursionError):
            return None
        if not isinstance(line, dict) or "type" not in line:
            return None
        if line["type"] == "end":
            return line
        sound = (
            0 <= Decimal(line.get("ts", -1)) < 9 * BILLION
            and 0 <= Decimal(line.get("duration_us", 0)) < 9 * BILLION * 1_000_000
            and all(0 <= line.get(field, -1) < 2**32 for field in ("pid", "tid"))
        )
        return line if sound else None

    def slices(self):
        """Name, start, end and depth of the calls of each thread, in order."""
        threads = {}
        for call in sorted(self.calls, key=lambda call: (call.start, call.id)):
            threads.setdefault(call.thread, []).append((call.name, call.start, call.end, call.depth))
        return threads


if __name__ == "__main__":
    # trace.py TRACE prints the number of damaged lines, trace.py --slices TRACE the slices of each thread
    if sys.argv[1] == "--slices":
        json.dump(list(Trace(sys.argv[2]).slices().values()), sys.stdout)
    else:
        print(Trace(sys.argv[1]).damaged or "")
