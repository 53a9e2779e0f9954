#!/usr/bin/env python3
"""How much slower a PyTorch training loop is under gpuprobe, beside what others take for less.

    overhead.py GPUPROBE PEER_FOLDER [--rounds N] [--steps N] [--json FILE]

One program trains all the while. In each round every mode has its turn: its probes are put in, some steps are made, and
they are taken out again. A mode is compared with the steps without probes of the same round, before and after it.
torch.profiler has a program of its own: what it brings into a process stays there and goes on costing.
PEER_FOLDER is what benches/gpu/build made. Exits 1 where the daemon costs more than 2 %.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 1.02
SETTLED_AFTER = 0.7
# what a step calls of the driver's functions that the daemon counts
COUNTED = ["cuLaunchKernel", "cuLaunchKernelEx", "cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"]


class Loop:
    def __init__(self):
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen(
            [sys.executable, f"{here}/steps.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for line in self.process.stdout:
            if line.startswith("ready "):
                _, self.runtime, self.driver = line.split()
                return
        sys.exit("overhead.py: steps.py did not start: it needs PyTorch and a GPU")

    def step_us(self, steps, what="steps"):
        """By the clock, and of CPU time."""
        self.process.stdin.write(f"{what} {steps}\n")
        self.process.stdin.flush()
        return [float(us) for us in self.process.stdout.readline().split()]


class Beside:
    """A program that runs while steps are made, started when it says a word on stderr."""

    def __init__(self, command, word, folder):
        self.said = open(f"{folder}/said", "w+")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.said)
        for _ in range(3000):
            if word in open(f"{folder}/said").read():
                break
            if self.process.poll() is not None:
                sys.exit(f"overhead.py: {command[0]} ended: {open(f'{folder}/said').read()}")
            time.sleep(0.01)
        # what it does right after its start is not what it costs
        time.sleep(SETTLED_AFTER)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.said.close()


def modes(args, loop, folder):
    probe, peer = args.probe, args.peer
    daemon = [probe, "daemon", "--metrics-addr", "127.0.0.1:0", "--display-interval", "0"]
    trace = [probe, "record", "-d", str(loop.process.pid), "-o", f"{folder}/trace.jsonl", "-v"]
    two = [f"{peer}/two_events", f"{peer}/two_events.bpf.o"]
    return {
        "daemon": ("gpuprobe daemon, as it is by default", daemon, "metrics on"),
        "record": ("gpuprobe record to a file, all telling calls of both layers", trace, "functions in"),
        "empty": ("empty probes on what the daemon counts in this loop", [*two, loop.driver, *COUNTED], "ready"),
        "two_events": ("11 functions of the runtime, two events a call", [*two, loop.runtime], "ready"),
        "profiler": ("torch.profiler, CPU and CUDA", None, None),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("peer")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json")
    args = parser.parse_args()
    loop, profiled = Loop(), Loop()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(args, (loop, profiled), modes(args, loop, folder), folder)
    for each in (loop, profiled):
        each.process.stdin.close()
        each.process.wait()
    sys.exit(tell(args, measured))


def measure(args, loops, chosen, folder):
    measured = {name: {"what": what, "us": [], "before": [], "after": []} for name, (what, _, _) in chosen.items()}
    for round in range(args.rounds):
        # none of them is always the one after the same other
        order = list(chosen)
        order = order[round % len(order) :] + order[: round % len(order)]
        for name in order:
            _, command, word = chosen[name]
            loop = loops[0] if command else loops[1]
            before = loop.step_us(args.steps)
            if command:
                beside = Beside(command, word, folder)
                took = loop.step_us(args.steps)
                beside.end()
            else:
                took = loop.step_us(args.steps, "profiled")
            after = loop.step_us(args.steps)
            for key, us in (("us", took), ("before", before), ("after", after)):
                measured[name][key].append(us)
    return measured


def ratios(mode, which):
    triples = zip(mode["us"], mode["before"], mode["after"])
    return [2 * took[which] / (before[which] + after[which]) for took, before, after in triples]


def tell(args, measured):
    print(f"{args.rounds} rounds of {args.steps} steps in each mode; medians\n")
    print(f"{'us a step':<64}{'without':>10}{'with':>10}{'ratio':>8}   half of all      of CPU time")
    for mode in measured.values():
        mode["ratio"], mode["cpu_ratio"] = ratios(mode, 0), ratios(mode, 1)
    for mode in sorted(measured.values(), key=lambda mode: statistics.median(mode["ratio"])):
        bare = statistics.median(us[0] for us in mode["before"] + mode["after"])
        low, middle, high = statistics.quantiles(mode["ratio"], n=4)
        us, cpu = statistics.median(us[0] for us in mode["us"]), statistics.median(mode["cpu_ratio"])
        print(f"{mode['what']:<64}{bare:>10.0f}{us:>10.0f}{middle:>8.3f}   {low:.3f} to {high:.3f}{cpu:>8.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(measured, file)
    ratio = statistics.median(measured["daemon"]["ratio"])
    print(f"\nthe default daemon: {ratio:.3f}, at most {LIMIT}: {'met' if ratio <= LIMIT else 'missed'}")
    return 0 if ratio <= LIMIT else 1


main()
