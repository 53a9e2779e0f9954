"""Compares the daemon's metrics for a program with the program's own counts. Prints each difference, and exits 1 if any.

    daemon_check.py GPUPROBE bandwidth PROGRAM        effective bandwidth of large copies, pinned and pageable
    daemon_check.py GPUPROBE graph PROGRAM PROFILE    kernels of training steps, eager and by graph replay; PROFILE has the
                                                      counts of torch.profiler for the same steps
"""

import json
import re
import subprocess
import sys
import time
import urllib.request

PORT = 19109
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Daemon:
    def __init__(self, probe, *features, display=None):
        """If a display file is given, the daemon writes its display there every second."""
        arguments = [probe, "daemon", *features, "--display-interval", "1" if display else "0", "--refresh", "0.2"]
        arguments += ["--metrics-addr", f"127.0.0.1:{PORT}"]
        self.process = subprocess.Popen(arguments, stdout=display, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "metrics on" in line:
                break

    def samples(self):
        """All current samples."""
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = filter(None, map(SAMPLE.match, lines))
        return [(m[1], dict(LABEL.findall(m[2] or "")), float(m[3])) for m in found]

    def metrics(self, pid):
        """All samples of a process, after the daemon has read its latest counters."""
        time.sleep(1)
        samples = self.samples()
        lost = sum(value for name, _, value in samples if name == "gpuprobe_events_lost_total")
        return [sample for sample in samples if sample[1].get("pid") == str(pid)], lost

    def end(self):
        self.process.terminate()
        self.process.wait(10)


def sum_of(samples, name, **wanted):
    fits = lambda labels: all(labels.get(key) == value for key, value in wanted.items())
    return sum(value for n, labels, value in samples if n == name and fits(labels))


# how many verdicts were good, and how many were not
VERDICTS = {True: 0, False: 0}


def verdict(good, text):
    VERDICTS[bool(good)] += 1
    print(("ok    " if good else "WRONG ") + text)
    return good


def bandwidth(daemon, program):
    good = True
    for memory in ("pinned", "pageable"):
        child = subprocess.Popen([program, memory, "30"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = json.loads(child.stdout.readline())
        samples, lost = daemon.metrics(child.pid)
        child.communicate("\n")
        for kind, seconds in said["seconds"].items():
            copied = sum_of(samples, "gpuprobe_copy_bytes_total", kind=kind, mode="sync")
            took = sum_of(samples, "gpuprobe_copy_seconds_total", kind=kind, mode="sync")
            of_memory = sum_of(samples, "gpuprobe_copy_host_bytes_total", kind=kind, memory=memory)
            own, seen = said["bytes"] / seconds / 1e9, copied / max(took, 1e-9) / 1e9
            good &= verdict(copied == said["bytes"], f"{kind} {memory}: {copied:.0f} bytes")
            good &= verdict(of_memory == said["bytes"], f"{kind} {memory}: {of_memory:.0f} bytes known to be so")
            close = abs(seen / own - 1) < 0.1
            good &= verdict(close, f"{kind} {memory}: {seen:.3f} GB/s, the program's own {own:.3f} GB/s ({seen / own:.3f})")
        good &= verdict(lost == 0, f"{lost:.0f} lost")
    return good


def graph(daemon, program, profile):
    expected = json.load(open(profile, encoding="utf-8"))
    child = subprocess.Popen(["python3", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    good, before = True, None
    for line in child.stdout:
        samples, lost = daemon.metrics(child.pid)
        counts = {
            "launched": sum_of(samples, "gpuprobe_kernel_launches_total"),
            "derived": sum_of(samples, "gpuprobe_graph_kernels_derived_total"),
            "unnamed": sum_of(samples, "gpuprobe_graph_kernels_derived_total", kernel="unknown"),
            "graphs": sum_of(samples, "gpuprobe_graph_launches_total"),
            "unknown": sum_of(samples, "gpuprobe_graph_launches_unknown_total"),
        }
        if before:
            kind, steps = line.split()[0], int(line.split()[1])
            delta = {name: counts[name] - before[name] for name in counts}
            kernels = delta["launched"] + delta["derived"]
            profiled = sum(expected[kind]["kernels"].values())
            text = f"{kind}: {kernels:.0f} kernels in {steps} steps, torch.profiler {profiled}; {delta}"
            good &= verdict(kernels == profiled, text)
            missing = delta["unknown"] + delta["unnamed"] + lost
            good &= verdict(missing == 0, f"{kind}: no unknown graph or kernel, {lost:.0f} lost")
        before = counts
        child.stdin.write("\n")
        child.stdin.flush()
    child.wait(60)
    return good


def main():
    probe, check, *arguments = sys.argv[1:]
    daemon = Daemon(probe, "--bandwidth-util" if check == "bandwidth" else "--cudatrace")
    try:
        good = {"bandwidth": bandwidth, "graph": graph}[check](daemon, *arguments)
    finally:
        daemon.end()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
