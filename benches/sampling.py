#!/usr/bin/env python3
"""Measures sampling under a budget against exact ledgers.

sampling.py GPUPROBE STANDINS [--seconds N] [--window N] [--attach TIER] [--budget SHARE] [MODE ...]

Runs the stand-in workload `rates` in each mode under `gpuprobe daemon --budget`. Its ledger says how often it called each
function at any time. For each sampled function, the calls that the daemon reports in each window are compared with the
ledger. What the probes cost is the CPU time of the workload against that of twins without probes, as a share of
wall-clock time; so is the cost that the daemon itself reports.
"""

import argparse
import bisect
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

MODES = ("steady", "bursty", "phases", "threads", "functions")
# the budget acts on the calls of the first second
SETTLED_AFTER = 3


class Workload:
    """A run of `rates`, with the times and counts of its ledger."""

    def __init__(self, folder, mode, seconds):
        self.process = subprocess.Popen(
            [f"{folder}/rates", mode, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"LD_LIBRARY_PATH": folder},
        )
        self.pid = json.loads(self.process.stdout.readline())["pid"]
        self.times, self.counts, self.end = [], [], None
        self.reader = threading.Thread(target=self.read)

    def read(self):
        for line in self.process.stdout:
            row = json.loads(line)
            if "unix" not in row:
                self.end = row
                return
            self.times.append(row["unix"])
            self.counts.append(row["calls"])

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def start(self):
        self.go_on()
        self.reader.start()

    def finish(self):
        """Returns its last line."""
        self.reader.join()
        self.go_on()
        self.process.wait()
        return self.end

    def made(self, function, unix):
        """Calls up to this time, between two lines of the ledger."""
        at = bisect.bisect_left(self.times, unix)
        if not 0 < at < len(self.times):
            return None
        (before, after), (first, last) = self.times[at - 1 : at + 1], self.counts[at - 1 : at + 1]
        part = (unix - before) / (after - before)
        return first[function] + part * (last[function] - first[function])


class Daemon:
    """A daemon with a budget, for one process: it must not be disturbed by others on the host, nor disturb them."""

    def __init__(self, gpuprobe, pid, budget, tier):
        command = [gpuprobe, "daemon", "-d", str(pid), "--metrics-addr", "127.0.0.1:0", "--budget", budget]
        command += ["--display-interval", "0"] + (["--attach", tier] if tier else [])
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.address = None
        for line in self.process.stderr:
            if "http://" in line:
                self.address = line.split("http://")[1].split("/")[0].split()[0].rstrip(".,")
                break
        if self.address is None:
            sys.exit("the daemon did not start")
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        for line in self.process.stderr:
            print(f"  {line.rstrip()}", file=sys.stderr)

    def snapshot(self):
        with urllib.request.urlopen(f"http://{self.address}/api/snapshot", timeout=10) as answer:
            return json.load(answer)["snapshot"]

    def end(self):
        self.process.terminate()
        self.process.wait()


def observed(snapshot, pid):
    """Time, calls by function, errors by function, and the reported cost of one process."""
    process = next((p for p in snapshot["processes"] if p["pid"] == pid), {"functions": []})
    calls = {f["function"]: f["calls"] for f in process["functions"]}
    budget = snapshot["budget"]
    sampled = {f["function"]: f for f in budget["sampled"]}
    share = next((p["share"] for p in budget["processes"] if p["pid"] == pid), 0.0)
    return snapshot["unix_seconds"], calls, sampled, share


def windows(workload, readings, length):
    """Of each sampled function: (estimate, truth, standard error) of each window."""
    found = {}
    first = next((i for i, (_, _, sampled, _) in enumerate(readings) if sampled), None)
    if first is None:
        return found
    begin = readings[first][0] + SETTLED_AFTER
    rows = [row for row in readings[first:] if row[0] >= begin]
    while rows:
        start = rows[0]
        rest = [row for row in rows if row[0] >= start[0] + length]
        if not rest:
            break
        end = rest[0]
        for function, last in end[2].items():
            if function not in workload.counts[0]:
                continue
            before = start[2].get(function)
            truth = [workload.made(function, row[0]) for row in (start, end)]
            if before is None or None in truth:
                continue
            variance = last["variance"] - before["variance"] + last["current_variance"] + before["current_variance"]
            estimate = end[1].get(function, 0) - start[1].get(function, 0)
            found.setdefault(function, []).append((estimate, truth[1] - truth[0], max(variance, 0) ** 0.5))
        rows = rest
    return found


def twin(folder, mode, seconds):
    """CPU seconds per second without probes."""
    workload = Workload(folder, mode, seconds)
    workload.start()
    end = workload.finish()
    return end["cpu_seconds"] / end["seconds"]


def measure(args, folder, mode):
    alone = twin(folder, mode, args.twin_seconds)
    workload = Workload(folder, mode, args.seconds)
    daemon = Daemon(args.gpuprobe, workload.pid, args.budget, args.attach)
    time.sleep(1.5)
    workload.start()
    readings = []
    while workload.reader.is_alive():
        reading = observed(daemon.snapshot(), workload.pid)
        if not readings or reading[0] > readings[-1][0]:
            readings.append(reading)
        time.sleep(0.2)
    end = workload.finish()
    daemon.end()
    alone = (alone + twin(folder, mode, args.twin_seconds)) / 2
    cost = end["cpu_seconds"] / end["seconds"] - alone
    shares = [row[3] for row in readings if row[2]]
    said = sum(shares) / len(shares) if shares else 0.0
    print(f"{mode:10} cost {cost:7.2%} (twin {alone:.1%}), reported {said:6.2%}")
    for function, rows in sorted(windows(workload, readings, args.window).items()):
        made, estimated = sum(row[1] for row in rows), sum(row[0] for row in rows)
        if made < 1000:
            continue
        within = sum(abs(e - t) <= 1.96 * s + 1 for e, t, s in rows)
        errors = sorted(abs(e / t - 1) for e, t, _ in rows if t)
        stated = sum(s / t for _, t, s in rows if t) / max(len(errors), 1)
        ratio = readings[-1][2].get(function, {}).get("ratio", 1.0)
        print(
            f"  {function:22} {made:12.0f} calls, all {estimated / made - 1:+7.2%}, windows {len(rows):3}:"
            f" median error {errors[len(errors) // 2]:6.2%}, largest {errors[-1]:6.2%}, stated {stated:6.2%},"
            f" within {within / len(rows):4.0%}, probed {ratio:5.1%}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpuprobe")
    parser.add_argument("standins")
    parser.add_argument("modes", nargs="*", default=MODES)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--twin-seconds", type=int, default=20)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--attach", default="")
    parser.add_argument("--budget", default="2%")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # a private copy: the breakpoints are in no other program
        for name in ("libcuda.so.1", "rates"):
            shutil.copy(f"{args.standins}/{name}", folder)
        for mode in args.modes:
            measure(args, folder, mode)


if __name__ == "__main__":
    main()
